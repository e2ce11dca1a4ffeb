"""Is one variant better than another? Their scores over seeds and tasks, with intervals and a test.

The figures are those of Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep Reinforcement Learning at
the Edge of the Statistical Precipice" (2021). A higher score is a better one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from dist_classicrl._arguments import named_arguments
from dist_classicrl._words import counted
from dist_classicrl.checks import as_float, as_floats, is_mapping, is_real, is_row, is_whole
from dist_classicrl.errors import MissingExtraError, StudyError

Scores = Mapping[str, Mapping[str, Any]]
"""One score per seed, as a 1-D array, of each variant in each task: ``scores[task][variant]``."""

CONFIDENCE, LEVEL = 0.95, 0.05
RESAMPLES = 2_000
PERMUTATIONS = 9_999
FEWEST, FEW = 2, 10  # seeds, and below how many of them intervals are too narrow
_BATCH = 2_000_000  # numbers that are drawn at once


@dataclass(frozen=True)
class Estimate:
    """A figure, and the interval that should hold what endlessly many seeds would give; see `caution`.

    Attributes
    ----------
    value, low, high : float
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Summary:
    """What the scores of one variant come to, over all tasks.

    Attributes
    ----------
    name : str
    runs : int
        Scores of all tasks together.
    iqm : Estimate
        Interquartile mean: the mean of the middle half of all scores.
    optimality_gap : Estimate or None
        Mean of max(0, 1 - score); None where scores were not normalized.
    """

    name: str
    runs: int
    iqm: Estimate
    optimality_gap: Estimate | None


@dataclass(frozen=True)
class Comparison:
    """What was found of two variants.

    Attributes
    ----------
    first, second : Summary
    difference : Estimate
        Interquartile mean of the first less that of the second.
    probability_of_improvement : Estimate
        That a run of the first scores higher than one of the second in the same task, a tie counted as half;
        the mean over tasks.
    p_value : float
        Of the hypothesis that in each task the scores of both have the same distribution, by a permutation
        test of `difference`, from both sides; where that is the same, the difference of means decides which
        is larger.
    adjusted_p_value : float
        The same after Holm's correction for all pairs of `compare_all`; `p_value` where one pair was
        compared.
    level : float
        Below it, an adjusted p-value counts as a difference.
    undecidable : str or None
        Why nothing could be found whatever the scores are, and how many seeds could; None where it could.
    """

    first: Summary
    second: Summary
    difference: Estimate
    probability_of_improvement: Estimate
    p_value: float
    adjusted_p_value: float
    level: float
    undecidable: str | None

    @property
    def better(self) -> str | None:
        """The name of the better variant, or None where no difference was found."""
        if self.adjusted_p_value > self.level:
            return None
        return (self.first if self.difference.value > 0 else self.second).name

    def __str__(self) -> str:
        found = f"{self.better} is better" if self.better else self.undecidable or "no difference found"
        return (
            f"{self.first.name} - {self.second.name}: {self.difference}, "
            f"p = {self.adjusted_p_value:.4g}: {found}"
        )


@named_arguments("compare")
def compare(
    scores: Scores,
    first: str,
    second: str,
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Comparison:
    """Compare two variants by their scores.

    Parameters
    ----------
    scores : mapping of str to mapping of str to array_like of float, shape (seeds,)
        Of each variant in each task. Tasks and variants may have different numbers of seeds, with which the
        test keeps its level. The interquartile mean of 3 seeds or fewer is their mean, so that of skewed
        scores those of few and of many seeds differ in the long run, and so does `difference` from 0.
    first, second : str
        Names of variants, which every task has.
    bounds : mapping of str to (float, float), optional
        Of each task the score of a random policy and of an optimal one, which become 0 and 1. Without it
        scores are taken as they are, so several tasks should have scores of one scale.
    level : float
        Share of comparisons of equal variants in which a difference may be reported.
    resamples : int
        Of the stratified bootstrap, which draws runs of each task and variant by themselves, for the 95 %
        percentile intervals, which are too narrow with fewer than 10 seeds.
    permutations : int
        Of the test, which deals the runs of each task out to both variants anew. Where there are no more ways
        than that, each is taken once and the p-value is exact.
    seed : int
        With the same seed the result is the same.

    Raises
    ------
    StudyError
        If a variant is unknown, lacks a task, or has fewer than 2 scores or one that is no finite number, or
        an argument is none of those above.
    MissingExtraError
        If scipy is not installed.
    """
    resamples = checked_count("resamples", resamples, 100)
    permutations = checked_count("permutations", permutations, 100)
    checked_count("seed", seed, 0)
    check_level(level)
    checked = checked_scores(scores, (first, second), bounds)
    if first == second:
        raise StudyError(f"{first!r} was to be compared with itself. Give the names of two variants.")
    a, b = ([task[name] for task in checked.values()] for name in (first, second))
    rng = np.random.default_rng(seed)
    is_normalized = bounds is not None
    summaries = [
        summary_of(name, groups, is_normalized, resamples, rng) for name, groups in ((first, a), (second, b))
    ]
    tasks = len(a)
    difference = bootstrap(
        [*a, *b], lambda *each: _middle(each[:tasks]) - _middle(each[tasks:]), resamples, rng
    )
    improvement = bootstrap([*a, *b], lambda *each: _improvement(each[:tasks], each[tasks:]), resamples, rng)
    p = permutation_p_value(a, b, permutations, rng)
    sizes = [(len(ours), len(theirs)) for ours, theirs in zip(a, b, strict=True)]
    (why,) = undecidable([sizes], level, permutations)
    return Comparison(summaries[0], summaries[1], difference, improvement, p, p, level, why)


def compare_all(
    scores: Scores,
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Comparison]:
    """Compare each pair of variants, so that with probability 1 - `level` no equal pair is called different.

    The arguments are those of `compare`. P-values are corrected by Holm, "A simple sequentially rejective
    multiple test procedure" (1979).

    Raises
    ------
    StudyError
        As `compare`, and where there are fewer than two variants.
    MissingExtraError
        If scipy is not installed.
    """
    check_mapping(scores)
    names = list(dict.fromkeys(name for _, task in scores.items() for name in task.keys()))
    if len(names) < 2:
        raise StudyError(
            f"Comparing needs two variants, and the scores have {len(names)}. Give scores of two."
        )
    checked = checked_scores(scores, names, bounds)
    pairs = list(combinations(names, 2))
    found = [
        compare(
            scores,
            a,
            b,
            bounds=bounds,
            level=level,
            resamples=resamples,
            permutations=permutations,
            seed=seed,
        )
        for a, b in pairs
    ]
    adjusted = holm([each.p_value for each in found])
    sizes = [[(len(task[a]), len(task[b])) for task in checked.values()] for a, b in pairs]
    why = undecidable(sizes, level, int(permutations))
    return [
        replace(each, adjusted_p_value=p, undecidable=reason)
        for each, p, reason in zip(found, adjusted, why, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's correction: the k-th smallest of m is multiplied by m - k + 1.

    None gets smaller than one that was smaller before, and none greater than 1. StudyError for no numbers.
    """
    given = _in_rows(p_values, "P-values", most=1)
    order = np.argsort(given)
    scaled = np.minimum(1.0, given[order] * np.arange(len(given), 0, -1))
    adjusted = np.empty(len(given))
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted.tolist()


def interquartile_mean(values: Any, axis: int = -1) -> Any:
    """Return the mean of the middle half of `values`: a quarter, rounded down, is left out at each end.

    This is scipy's ``trim_mean(values, 0.25)``, as rliable has it.
    """
    given = np.atleast_1d(as_floats("Values", values, StudyError))
    return stats().trim_mean(given, 0.25, axis=axis)


def optimality_gap(values: Any, axis: int = -1) -> Any:
    """Return how far normalized scores stay below 1, on average: scores above 1 make up for nothing."""
    below = 1.0 - (as_floats("Scores", values, StudyError) if axis is None else _in_rows(values, "Scores"))
    return np.maximum(0.0, below).mean(axis=axis)


def least_p_value(sizes: Sequence[tuple[int, int]], permutations: int) -> float:
    """Return the smallest p-value of `permutation_p_value`, however far apart the scores are.

    That is where no deal of the runs is as far apart but the one that was seen and, where both variants have
    as many runs of each task, the one that changes all of them over. `sizes` has how many these are.
    """
    ways = math.prod(math.comb(a + b, a) for a, b in sizes)
    least = (2 if all(a == b for a, b in sizes) else 1) / ways
    return least if ways <= permutations else max(least, 1 / (1 + permutations))


def undecidable(
    sizes: Sequence[Sequence[tuple[int, int]]], level: float, permutations: int
) -> list[str | None]:
    """Return of each pair of variants, with so many runs in each task, why it cannot be decided, or None.

    It cannot where the smallest p-values that are possible are above `level` after Holm's correction.
    """
    pairs, least = len(sizes), holm([least_p_value(each, permutations) for each in sizes])
    beside = f" and {pairs} pairs" if pairs > 1 else ""
    if pairs / (1 + permutations) > level:
        enough = math.ceil(pairs / level) - 1
        why = f"cannot be decided with {counted(permutations, 'permutation')}{beside}: at least {enough:,}"
        return [why] * pairs
    seeds = FEWEST
    while pairs * least_p_value([(seeds, seeds)] * len(sizes[0]), permutations) > level:
        seeds += 1
    found: list[str | None] = []
    for each, p in zip(sizes, least, strict=True):
        few, many = min(map(min, each)), max(map(max, each))
        between = "and" if len(each) == 1 else "to"
        there = counted(few, "seed") if few == many else f"{few:,} {between} {many:,} seeds"
        why = f"cannot be decided with {there}{beside}: at least {seeds:,} seeds each"
        found.append(why if p > level else None)
    return found


def permutation_p_value(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], permutations: int, rng: np.random.Generator
) -> float:
    """Return the p-value of a stratified permutation test of the difference of two interquartile means.

    Of deals of the runs with the same difference, as there are where these exchange runs outside of both
    middle halves, those with a smaller difference of means are not as far apart. Without that order, four
    seeds could show nothing.

    Parameters
    ----------
    first, second : sequence of ndarray of float, shape (seeds,)
        One array per task.
    permutations : int
        To be drawn at random, with which the p-value is (1 + those as far from 0 as what was seen) /
        (1 + `permutations`), never below the level that it claims, nor below `least_p_value`; where there
        are no more than so many ways to deal out the runs, all are taken.
    rng : Generator
    """
    pooled = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    sizes = [len(each) for each in first]
    seen = _distances([each[None] for each in pooled], sizes)
    # What differs by rounding only is as far away.
    rounding = 1e-12 * max(float(np.abs(each).max()) for each in pooled)

    def as_far(dealt: Sequence[np.ndarray]) -> Any:
        middles, means = (each - there for each, there in zip(_distances(dealt, sizes), seen, strict=True))
        return (middles > rounding) | ((middles >= -rounding) & (means >= -rounding))

    ways = math.prod(math.comb(len(each), size) for each, size in zip(pooled, sizes, strict=True))
    if ways <= permutations:
        return float(as_far(_all_ways(pooled, sizes)).mean())
    at_once, beyond = max(1, _BATCH // sum(map(len, pooled))), 0
    for begin in range(0, permutations, at_once):
        count = min(at_once, permutations - begin)
        dealt = [rng.permuted(np.tile(each, (count, 1)), axis=1) for each in pooled]
        beyond += int(as_far(dealt).sum())
    both = [(size, len(each) - size) for each, size in zip(pooled, sizes, strict=True)]
    return max((1 + beyond) / (1 + permutations), least_p_value(both, permutations))


def summary_of(
    name: str, groups: Sequence[np.ndarray], is_normalized: bool, resamples: int, rng: np.random.Generator
) -> Summary:
    """Return what a variant's scores, an array per task, come to."""
    iqm = bootstrap(groups, lambda *each: _middle(each), resamples, rng)
    gap = None
    if is_normalized:
        gap = bootstrap(groups, lambda *each: optimality_gap(np.concatenate(each, axis=-1)), resamples, rng)
    return Summary(name, sum(map(len, groups)), iqm, gap)


def caution(seeds: int) -> str:
    """Return what is to be said of bootstrap intervals of so few seeds of each task; nothing of many.

    The shares are those of interquartile means of normal scores, which `benchmarks/comparisons.py` measures.
    """
    if seeds >= FEW:
        return ""
    return (
        f"Intervals of fewer than {FEW} seeds are too narrow for their 95 %: those of 2 hold the truth in "
        "about 50 of 100 studies, those of 3 in 75, those of 5 in 90."
    )


def bootstrap(
    groups: Sequence[np.ndarray], statistic: Any, resamples: int, rng: np.random.Generator
) -> Estimate:
    """Return a statistic of some samples and its 95 % percentile interval, each sample drawn from by itself.

    `statistic` takes as many arrays as there are samples, and has to reduce their last axis.
    """
    low, high = bootstrap_interval(groups, statistic, resamples, rng)
    return Estimate(float(statistic(*groups)), float(low), float(high))


def bootstrap_interval(
    groups: Sequence[np.ndarray], statistic: Any, resamples: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends, of shape (...), of the interval of `bootstrap` for samples of shape (..., seeds)."""
    found = stats().bootstrap(
        tuple(groups),
        lambda *each, axis: statistic(*each),
        vectorized=True,
        axis=-1,
        n_resamples=resamples,
        batch=max(1, _BATCH // (8 * sum(each.size for each in groups))),
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=rng,
    )
    return found.confidence_interval.low, found.confidence_interval.high


def normalized(scores: Scores, bounds: Mapping[str, tuple[float, float]]) -> dict[str, dict[str, np.ndarray]]:
    """Return scores as (score - random) / (optimal - random): 0 for a random policy, 1 for an optimal one.

    Raises
    ------
    StudyError
        If a task has no bounds, or its optimum is not above its random policy; or scores are no numbers.
    """
    check_mapping(scores)
    if not is_mapping(bounds):
        raise StudyError(
            f"bounds must be a dict of tasks, got {type(bounds).__name__}. Write bounds={{task: (score of a "
            "random policy, score of an optimal one), ...}."
        )
    made = {}
    for task, variants in scores.items():
        if task not in bounds:
            raise StudyError(
                f"Task {task!r} has no bounds, which are there for {list(bounds.keys())}. Write "
                f"bounds={{{task!r}: (score of a random policy, score of an optimal one), ...}}."
            )
        ends = tuple(bounds[task]) if is_row(bounds[task]) else ()
        is_pair = len(ends) == 2 and all(is_real(end) and math.isfinite(as_float(end)) for end in ends)
        if not is_pair or not ends[0] < ends[1]:
            raise StudyError(
                f"The bounds of task {task!r} are {bounds[task]!r}: two finite numbers, and the first must "
                "be below the second. Give (score of a random policy, score of an optimal one)."
            )
        random, optimal = map(float, ends)
        made[task] = {
            name: (as_floats(f"Scores of {name!r} in {task!r}", each, StudyError) - random)
            / (optimal - random)
            for name, each in variants.items()
        }
    return made


def checked_scores(
    scores: Scores, names: Sequence[str], bounds: Mapping[str, tuple[float, float]] | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores of these variants in all tasks as float64, normalized if there are bounds.

    Raises
    ------
    StudyError
        As `compare`.
    """
    check_mapping(scores)
    known = list(dict.fromkeys(name for _, task in scores.items() for name in task.keys()))
    checked: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        if not isinstance(name, Hashable) or name not in known:
            raise StudyError(f"There is no variant {name!r}. Give one of {known}.")
        lacking = [task for task, variants in scores.items() if name not in variants]
        if lacking:
            raise StudyError(
                f"Variant {name!r} has no scores in {lacking}. Give its scores in all tasks, or leave out "
                "the tasks that it was not trained in."
            )
        for task, variants in scores.items():
            values = checked_values(variants[name], f"Scores of {name!r} in {task!r}")
            checked.setdefault(task, {})[name] = values
    return checked if bounds is None else normalized(checked, bounds)


def check_mapping(scores: Any) -> None:
    """Raise `StudyError` unless scores are those of variants in tasks."""
    tasks = [task for _, task in scores.items()] if is_mapping(scores) else [None]
    if not all(map(is_mapping, tasks)):
        raise StudyError(
            f"Scores must be a dict of tasks, each a dict of variants, got {type(scores).__name__}. Write "
            "scores={task: {variant: [one score per seed], ...}, ...}."
        )


def _in_rows(values: Any, what: str, most: float = math.inf) -> np.ndarray:
    """Return numbers as an array of at least one dimension, and at `most` so many."""
    array = as_floats(what, values, StudyError)
    if not 1 <= array.ndim <= most:
        raise StudyError(f"{what} must be numbers in a row, as a list, got {values!r}.")
    return array


def checked_values(values: Any, what: str) -> np.ndarray:
    """Return `values` as a 1-D array of at least 2 finite numbers, or raise `StudyError`."""
    array = as_floats(what, values, StudyError)
    if array.ndim != 1:
        raise StudyError(f"{what} have shape {array.shape}. Give one number per seed, as a list.")
    if array.size < FEWEST:
        raise StudyError(
            f"{what} are of {counted(array.size, 'seed')}, and {FEWEST} are the fewest that say how runs "
            "differ. Run more seeds; 10 tell more."
        )
    if not np.isfinite(array).all():
        raise StudyError(
            f"{what} hold NaN or infinity, at seed number {int(np.argmin(np.isfinite(array)))}. Give the "
            "score that a failed run counts as, such as that of a random policy; leaving it out would "
            "flatter the variant."
        )
    return array


def checked_count(name: str, count: int, least: int) -> int:
    """Return `count` as an int; `StudyError` if it is no whole number of at least `least`, below 2**63."""
    if not is_whole(count) or count < least:
        raise StudyError(f"{name} must be a whole number of at least {least:,}, got {count!r}.")
    if count >= 2**63:
        raise StudyError(f"{name} must be below 2**63, got a larger number.")
    return int(count)


def check_level(level: float) -> None:
    """Raise `StudyError` if `level` is no share between 0 and 1."""
    if not is_real(level) or not 0.0 < level < 1.0:
        raise StudyError(f"level must be between 0 and 1, got {level!r}. Write level=0.05.")


def stats() -> Any:
    """Return `scipy.stats`, or raise `MissingExtraError`."""
    try:
        import scipy.stats
    except ImportError as error:
        raise MissingExtraError(
            f"Comparing trainings needs scipy, which cannot be imported ({error}). It comes with the extra "
            "sweep: pip install '.[sweep]' in a clone of this project, or pip install scipy."
        ) from error
    return scipy.stats


def _middle(groups: Sequence[np.ndarray]) -> Any:
    return interquartile_mean(np.concatenate(groups, axis=-1))


def _improvement(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> Any:
    """Return the Mann-Whitney statistic as a share of pairs, averaged over tasks.

    By the sum of ranks, in which those that tie share theirs: Mann and Whitney (1947), equation 1. Comparing
    each pair would take memory for all pairs of each resample.
    """
    shares = []
    for a, b in zip(first, second, strict=True):
        n, m = a.shape[-1], b.shape[-1]
        ranks = stats().rankdata(np.concatenate([a, b], axis=-1), axis=-1)[..., :n]
        shares.append((ranks.sum(axis=-1) - n * (n + 1) / 2) / (n * m))
    return np.mean(shares, axis=0)


def _distances(dealt: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return how far apart both interquartile means of each way are, and both means."""
    first = [each[:, :size] for each, size in zip(dealt, sizes, strict=True)]
    second = [each[:, size:] for each, size in zip(dealt, sizes, strict=True)]
    middles = np.abs(_middle(first) - _middle(second))
    means = [np.concatenate(each, axis=-1).mean(axis=-1) for each in (first, second)]
    return middles, np.abs(means[0] - means[1])


def _all_ways(pooled: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
    """Return each way to deal out the runs of all tasks, a row a way, the first variant's runs in front."""
    each_task = []
    for values, size in zip(pooled, sizes, strict=True):
        chosen = list(combinations(range(len(values)), size))
        rows = [[*ours, *sorted(set(range(len(values))) - set(ours))] for ours in chosen]
        each_task.append(values[np.array(rows)])
    picks = np.meshgrid(*(np.arange(len(ways)) for ways in each_task), indexing="ij")
    return [ways[pick.ravel()] for ways, pick in zip(each_task, picks, strict=True)]
