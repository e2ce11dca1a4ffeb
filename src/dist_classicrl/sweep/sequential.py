"""How many seeds are enough? A test that looks after each batch of seeds, and stops as soon as it can.

Group-sequential permutation tests after Mathieu, Della Vecchia, Shilova, Centa de Medeiros, Kohler, Maillard
and Preux, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL agents" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count
from typing import Any

import numpy as np

from dist_classicrl._words import counted
from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.comparison import LEVEL, PERMUTATIONS, check_level, checked_count, checked_values

DIFFERENT, UNDECIDED, NOT_FOUND = "different", "undecided", "no difference found"
UNDECIDABLE = "cannot be decided"
_TWO = ("first", "second")

#: Sums that differ by less are equal: a fraction of how far scores are from their mean, and of the largest.
_SUM_ROUNDING, _SCORE_ROUNDING = 1e-9, 1e-14


@dataclass(frozen=True)
class Verdict:
    """What the seeds so far say.

    Attributes
    ----------
    outcome : {"different", "undecided", "no difference found", "cannot be decided"}
        The last where nothing could be found in all stages, whatever the scores are, among the variants that
        are left.
    better : str or None
        Which one has the higher mean, where they are different: "first" or "second", or its name.
    difference : float
        Mean score of the first less that of the second, averaged over tasks.
    seeds : int
        Of each variant and task, so far.
    more_seeds : int
        To run before asking again; 0 where it is decided, or cannot be.
    undecidable : str or None
        Why it cannot be decided, and with how many stages or seeds it could.
    """

    outcome: str
    better: str | None
    difference: float
    seeds: int
    more_seeds: int
    undecidable: str | None = None

    def __str__(self) -> str:
        if self.outcome == UNDECIDED:
            return f"{UNDECIDED}: run {self.more_seeds} more"
        return f"{DIFFERENT}: {self._named} is better" if self.better else self.undecidable or NOT_FOUND

    @property
    def _named(self) -> str:
        return f"the {self.better}" if self.better in _TWO else str(self.better)


def is_names(given: Any) -> bool:
    """Whether this is a sequence of names."""
    is_row = isinstance(given, Sequence) and not isinstance(given, str)
    return is_row and all(isinstance(name, str) for name in given)


class AdaStop:
    """A comparison of all pairs of several variants in stages, each of so many seeds.

    With probability 1 - `level` no pair of equal variants is called different, in any stage. The statistic is
    the largest difference of means of a pair. A permutation deals scores out anew, within each stage and
    task, among all variants that undecided pairs join: so the level is exact where all are equal, as it is
    not with permutations within pairs. After stage i of K, at most i `level` / K of all permutations have
    been beyond a stage's boundary. Step down: a pair that is beyond it is decided, and the others are
    compared as if they had been the only ones from the start. A variant all pairs of which are decided needs
    no more seeds. Those that are left can be dealt out in fewer ways: where these are too few to show
    anything in all stages together, their pairs end as such that cannot be decided.

    Parameters
    ----------
    variants : sequence of str
        Their names, two or more.
    stages : int
    seeds_per_stage : int
        At least 2. With fewer than 5 the first stages have too few permutations to find anything.
    level : float
    permutations : int
    seed : int
        Of the permutations.

    Attributes
    ----------
    verdicts : dict of (str, str) to Verdict
        Of each pair, in the order of `variants`.

    Raises
    ------
    StudyError
        If a number is out of range, or names are fewer than two or not different, and by `add`.
    """

    def __init__(
        self,
        variants: Sequence[str],
        stages: int = 5,
        seeds_per_stage: int = 5,
        level: float = LEVEL,
        permutations: int = PERMUTATIONS,
        seed: int = 0,
    ) -> None:
        stages = checked_count("stages", stages, 1)
        seeds_per_stage = checked_count("seeds_per_stage", seeds_per_stage, 2)
        permutations = checked_count("permutations", permutations, 100)
        check_level(level)
        checked_count("seed", seed, 0)
        if level * (1 + permutations) < 1 - 1e-9:
            raise StudyError(
                f"With {permutations:,} permutations no difference can be found at level {level}. Give at "
                f"least {math.ceil(1 / level) - 1:,}, or a larger level."
            )
        names = tuple(variants) if is_names(variants) else ()
        if len(names) < 2 or len(set(names)) < len(names):
            raise StudyError(f"Comparing needs the names of two variants or more, got {variants!r}.")
        self.variants, self.stages, self.seeds_per_stage, self.level = names, stages, seeds_per_stage, level
        self._seed, self._permutations = seed, permutations
        undecided = Verdict(UNDECIDED, None, 0.0, 0, seeds_per_stage)
        self.verdicts = dict.fromkeys(combinations(names, 2), undecided)
        #: Of each stage the scores of each variant in each task.
        self._stages: list[dict[str, dict[str, np.ndarray]]] = []
        #: Of variants that are compared with each other, a generator and the sums after each stage.
        self._kept: dict[tuple[str, ...], tuple[np.random.Generator, list[np.ndarray]]] = {}
        self._tasks: set[str] | None = None

    @property
    def undecided(self) -> tuple[str, ...]:
        """The variants whose scores the next stage needs; none where all is decided."""
        needed = {name for pair in self._pairs() for name in pair}
        return tuple(name for name in self.variants if name in needed)

    def check_power(self, tasks: int) -> None:
        """Raise `StudyError` if in so many tasks no scores whatever could show that variants differ.

        That is where scores which do not even overlap come about in more than `level` of all ways to deal
        them out, or `tasks` is no whole number of 1 or more. `add` does it as well, which knows the tasks of
        the first stage.
        """
        checked_count("tasks", tasks, 1)
        n = len(self.variants)
        if enough := self._lacks(n, len(self.verdicts), tasks):
            raise StudyError(
                f"{counted(self.stages, 'stage')} of {self.seeds_per_stage} seeds cannot show that any of "
                f"{n} variants differ at level {self.level}, however far apart they are. Give {enough}."
            )

    def _lacks(self, n: int, pairs: int, tasks: int) -> str | None:
        """Return how much is enough to decide any of so many pairs of `n` variants; None where it is so."""

        def is_enough(stages: int, seeds: int) -> bool:
            # Of all ways one variant has all of the lowest scores, in each task and stage, and one all of
            # the highest; the largest difference may be that of any pair, in either order.
            dealt = math.lgamma(n * seeds + 1) - 2 * math.lgamma(seeds + 1) - math.lgamma((n - 2) * seeds + 1)
            return math.log(2 * pairs) - stages * tasks * dealt <= math.log(self.level) + 1e-9

        if is_enough(self.stages, self.seeds_per_stage):
            return None
        stages = next(i for i in count(self.stages) if is_enough(i, self.seeds_per_stage))
        seeds = next(i for i in count(self.seeds_per_stage) if is_enough(self.stages, i))
        return f"at least stages={stages} or seeds_per_stage={seeds}"

    def _pairs(self) -> list[tuple[str, str]]:
        return [pair for pair, verdict in self.verdicts.items() if verdict.outcome == UNDECIDED]

    def add(self, scores: Mapping[str, Any]) -> dict[tuple[str, str], Verdict]:
        """Take in the scores of the next stage, and return what all so far show of each pair.

        Parameters
        ----------
        scores : mapping of str to array_like of float, or to mapping of str to array_like of float
            New runs of each variant of `undecided`, of shape (seeds_per_stage,), or such an array per task.
            Several tasks count alike, so their scores should have one scale.

        Raises
        ------
        StudyError
            If all is decided, variants or tasks are others, there are not `seeds_per_stage` scores, one is
            NaN, or so few seeds can show nothing.
        """
        if not self.undecided:
            raise StudyError(
                f"The comparison has ended ({'; '.join(map(str, self.verdicts.values()))}), and a look at "
                "more seeds would raise its share of false alarms. Make a new one for new seeds."
            )
        if not isinstance(scores, Mapping) or set(scores) != set(self.undecided):
            given = list(scores) if isinstance(scores, Mapping) else scores
            raise StudyError(
                f"This stage needs scores of {list(self.undecided)}, got those of {given}. Give the former."
            )
        checked = {name: self._checked(scores[name], name) for name in self.undecided}
        every = [set(each) for each in checked.values()]
        known = every[0] if self._tasks is None else self._tasks
        if any(tasks != known for tasks in every):
            raise StudyError(
                f"Tasks differ: {', '.join(str(sorted(tasks)) for tasks in every)}, of {sorted(known)}. Give "
                "scores of the same tasks for each variant, in each stage."
            )
        if self._tasks is None:
            self.check_power(len(known))
        self._tasks = known
        self._stages.append(checked)
        self._decide(self._pairs())
        return dict(self.verdicts)

    def _decide(self, pairs: list[tuple[str, str]]) -> None:
        stage, n_tasks = len(self._stages), len(self._tasks or " ")
        seeds = stage * self.seeds_per_stage
        found: set[tuple[str, str]] = set()
        while len(found) < len(pairs):
            beyond = self._beyond([pair for pair in pairs if pair not in found])
            if beyond is None:
                break
            found.add(beyond)
        left = [pair for pair in pairs if pair not in found]
        too_few: dict[str, str | None] = {}
        for group in _joined(left):
            enough = self._lacks(len(group), sum(a in group for a, _ in left), n_tasks)
            why = (
                f"{UNDECIDABLE} with {len(group)} variants left and {counted(self.stages, 'stage')} of "
                f"{self.seeds_per_stage} seeds: {enough}"
            )
            too_few |= dict.fromkeys(group, enough and why)
        for a, b in pairs:
            difference = float(
                sum((each[a][task] - each[b][task]).sum() for each in self._stages for task in each[a])
            )
            difference /= seeds * n_tasks
            verdict = Verdict(UNDECIDED, None, difference, seeds, self.seeds_per_stage)
            if (a, b) in found:
                verdict = replace(verdict, outcome=DIFFERENT, better=a if difference > 0 else b, more_seeds=0)
            elif too_few[a] is not None:
                verdict = replace(verdict, outcome=UNDECIDABLE, more_seeds=0, undecidable=too_few[a])
            elif stage == self.stages:
                verdict = replace(verdict, outcome=NOT_FOUND, more_seeds=0)
            self.verdicts[a, b] = verdict

    def _beyond(self, pairs: list[tuple[str, str]]) -> tuple[str, str] | None:
        """Return the pair that is farthest beyond the boundaries that these alone have, if one is."""
        sums: dict[str, list[np.ndarray]] = {}
        groups = _joined(pairs)
        for group in groups:
            sums |= self._sums(group)
        within = np.ones(1 + self._permutations, bool)
        for stage in range(1, len(self._stages) + 1):
            distances = {(a, b): np.abs(sums[a][stage - 1] - sums[b][stage - 1]) for a, b in pairs}
            # Sums that differ by rounding only are equal.
            farthest = np.round(np.max(list(distances.values()), axis=0) / self._rounding(groups, stage - 1))
            allowed = int(self.level * stage / self.stages * len(farthest) + 1e-9)
            room = allowed - int((~within).sum())
            inside = np.sort(farthest[within])[::-1]
            # No more than `room` are above the boundary.
            boundary = inside[min(room, len(inside) - 1)]
            if farthest[0] > boundary:
                return max(pairs, key=lambda pair: distances[pair][0])
            within &= farthest <= boundary
        return None

    def _sums(self, group: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
        """Return the sum of the scores of each variant of a group after each stage, in each permutation.

        Number 0 is what was seen: under the hypothesis it is one among the others.
        """
        kept = self._kept.setdefault(
            group, (np.random.default_rng((self._seed, *map(self.variants.index, group))), [])
        )
        rng, stages = kept
        for checked in self._stages[len(stages) :]:
            total = np.zeros((1 + self._permutations, len(group)))
            for task in sorted(self._tasks or ()):
                pooled = np.concatenate([checked[name][task] for name in group])
                pooled = pooled - pooled.mean()  # so that sums keep the digits in which scores differ
                dealt = np.tile(pooled, (len(total), 1))
                rng.permuted(dealt[1:], axis=1, out=dealt[1:])
                total += dealt.reshape(len(total), len(group), -1).sum(axis=2)
            stages.append(total + stages[-1] if stages else total)
        return {name: [stage[:, place] for stage in stages] for place, name in enumerate(group)}

    def _rounding(self, groups: list[tuple[str, ...]], stage: int) -> float:
        """Return what sums of a stage may be off by for rounding, or 1 where all scores are 0."""
        found = 0.0
        for group in groups:
            for task in self._tasks or ():
                pooled = np.concatenate([self._stages[stage][name][task] for name in group])
                farthest = float(np.abs(pooled - pooled.mean()).max())
                found = max(found, _SUM_ROUNDING * farthest, _SCORE_ROUNDING * float(np.abs(pooled).max()))
        return found or 1.0

    def _checked(self, scores: Any, name: str) -> dict[str, np.ndarray]:
        tasks = scores if isinstance(scores, Mapping) else {"": scores}
        checked = {}
        for task, values in tasks.items():
            if not isinstance(task, str):
                raise StudyError(f"Names of tasks are text, got {task!r}. Write {{{str(task)!r}: scores}}.")
            what = f"Scores of the {name} variant" if name in _TWO else f"Scores of {name!r}"
            what += f" in {task!r}" if task else ""
            checked[task] = checked_values(values, what)
            if len(checked[task]) != self.seeds_per_stage:
                raise StudyError(
                    f"{what} are of {len(checked[task])} seeds, and a stage has {self.seeds_per_stage}. "
                    "Give as many as were said beforehand: the boundaries hold for those."
                )
        if not checked:
            raise StudyError(f"Variant {name!r} has no scores. Give those of one task at least.")
        return checked


def _joined(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the groups of variants that pairs join, directly or through others."""
    groups: list[dict[str, None]] = []
    for pair in pairs:
        touched = [group for group in groups if not group.keys().isdisjoint(pair)]
        groups = [group for group in groups if group not in touched]
        groups.append(dict.fromkeys([*(name for group in touched for name in group), *pair]))
    return [tuple(sorted(group)) for group in groups]


class SequentialComparison:
    """A comparison of two variants in stages, each of so many seeds, that may end after any of them.

    Equal variants are called different with probability `level` at most, over all stages together. It is
    `AdaStop` for two.

    Parameters
    ----------
    stages : int
    seeds_per_stage : int
        At least 2. With fewer than 5 the first stages have too few permutations to find anything.
    level : float
    permutations : int
    seed : int
        Of the permutations.

    Raises
    ------
    StudyError
        If a number is out of range, and by `add`.
    """

    def __init__(
        self,
        stages: int = 5,
        seeds_per_stage: int = 5,
        level: float = LEVEL,
        permutations: int = PERMUTATIONS,
        seed: int = 0,
    ) -> None:
        self._test = AdaStop(_TWO, stages, seeds_per_stage, level, permutations, seed)

    def add(self, first_scores: Any, second_scores: Any) -> Verdict:
        """Take in the scores of the next stage, and say what all so far show.

        Parameters
        ----------
        first_scores, second_scores : array_like of float, or mapping of str to array_like of float
            New runs of the two variants, of shape (seeds_per_stage,), or such an array per task. Several
            tasks count alike, so their scores should have one scale.

        Raises
        ------
        StudyError
            If all is decided, tasks differ, there are not `seeds_per_stage` scores, or one is NaN.
        """
        return self._test.add({"first": first_scores, "second": second_scores})[_TWO]


def compare_until_significant(
    more_runs: Callable[[range], tuple[Any, Any]],
    *,
    stages: int = 5,
    seeds_per_stage: int = 5,
    level: float = LEVEL,
    permutations: int = PERMUTATIONS,
    first_seed: int = 0,
    seed: int = 0,
) -> Verdict:
    """Run seeds until two variants are shown to differ, or `stages` x `seeds_per_stage` seeds are spent.

    Parameters
    ----------
    more_runs : callable
        Takes seeds that were not run before, as a range, and returns the scores of the first variant and
        those of the second with these seeds, as `SequentialComparison.add` takes them.
    stages, seeds_per_stage, level, permutations, seed
        As those of `SequentialComparison`.
    first_seed : int
        The first one of the runs.

    Raises
    ------
    StudyError
        As `SequentialComparison`, and where `more_runs` does not return two.
    """
    test = SequentialComparison(stages, seeds_per_stage, level, permutations, seed)
    begin, count = checked_count("first_seed", first_seed, 0), int(seeds_per_stage)
    if not callable(more_runs):
        raise StudyError(f"more_runs must be a function that takes seeds, got {more_runs!r}.")
    while True:
        scores = more_runs(range(begin, begin + count))
        if not isinstance(scores, Sequence) or len(scores) != 2:
            raise StudyError(
                f"more_runs must return the scores of both variants, got {scores!r}. Write return "
                "first_scores, second_scores."
            )
        verdict = test.add(*scores)
        if verdict.outcome != UNDECIDED:
            return verdict
        begin += count
