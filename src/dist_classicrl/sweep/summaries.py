"""What is drawn of many trainings: learning curves, performance profiles, and what each setting matters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.checks import as_float, as_floats, is_mapping, is_real, is_row
from dist_classicrl.errors import StudyError
from dist_classicrl.plotting.intervals import t_interval
from dist_classicrl.sweep.comparison import (
    FEWEST,
    RESAMPLES,
    Scores,
    bootstrap_interval,
    checked_count,
    checked_scores,
    checked_values,
    interquartile_mean,
)

AVERAGES = ("iqm", "mean")


@dataclass(frozen=True)
class Band:
    """A curve with a 95 % bootstrap interval at each of its points.

    Attributes
    ----------
    middle, low, high : ndarray of float64, shape (points,)
    """

    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Sensitivity:
    """How scores go with one setting.

    Attributes
    ----------
    explained : float
        Share of the variance of scores that the setting explains by itself, 0 to 1: epsilon squared, which is
        eta squared less what as many groups would explain by chance (Kelley, "An unbiased correlation ratio
        measure", 1935).
    values : tuple of str
        The values of the setting, or ranges of them.
    runs : ndarray of int64, shape (values,)
    means, low, high : ndarray of float64, shape (values,)
        Mean score of the runs with each value, over whatever else they had, and its 95 % t-interval; NaN for
        the interval where there was one run.
    """

    explained: float
    values: tuple[str, ...]
    runs: np.ndarray
    means: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve_with_interval(
    curves: Any, average: str = "iqm", *, resamples: int = RESAMPLES, seed: int = 0
) -> Band:
    """Return the middle of the learning curves of several seeds, with an interval.

    Parameters
    ----------
    curves : array_like of float, shape (seeds, points)
        All at the same steps.
    average : {"iqm", "mean"}
    resamples : int
        Of the bootstrap, which draws whole curves.
    seed : int

    Raises
    ------
    StudyError
        If there are fewer than 2 curves, a number is NaN or infinite, or `average` is another one.
    MissingExtraError
        If scipy is not installed.
    """
    if not isinstance(average, str) or average not in AVERAGES:
        raise StudyError(f"average must be {' or '.join(map(repr, AVERAGES))}, got {average!r}.")
    checked_count("resamples", resamples, 100)
    checked_count("seed", seed, 0)
    values = as_floats("Curves", curves, StudyError)
    if values.ndim != 2 or len(values) < FEWEST or not values.shape[1]:
        raise StudyError(
            f"Curves have shape {values.shape}. Give an array of shape (seeds, points), with {FEWEST} seeds "
            "at least."
        )
    if not np.isfinite(values).all():
        raise StudyError(
            "Curves hold NaN or infinity. Give their points up to where all of them have been evaluated."
        )

    def middle(each: np.ndarray) -> Any:
        return interquartile_mean(each) if average == "iqm" else each.mean(axis=-1)

    low, high = bootstrap_interval([values.T], middle, resamples, np.random.default_rng(seed))
    return Band(middle(values.T), low, high)


def performance_profile(
    scores: Scores,
    variant: str,
    thresholds: Any,
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Band:
    """Return which fraction of a variant's runs, in all tasks, scores above each threshold.

    Parameters
    ----------
    scores, bounds
        As those of `dist_classicrl.sweep.comparison.compare`.
    variant : str
    thresholds : array_like of float, shape (points,)
    resamples : int
        Of the bootstrap, which draws runs of each task by themselves.
    seed : int

    Raises
    ------
    StudyError
        If the variant is unknown, or its scores are too few or no numbers, or thresholds are none.
    MissingExtraError
        If scipy is not installed.
    """
    checked_count("resamples", resamples, 100)
    checked_count("seed", seed, 0)
    bars = np.atleast_1d(as_floats("Thresholds", thresholds, StudyError))
    if bars.ndim != 1 or not bars.size or not np.isfinite(bars).all():
        raise StudyError(
            f"Thresholds must be finite numbers in a row, got shape {bars.shape}. Write for instance "
            "thresholds=np.linspace(0, 1, 101)."
        )
    groups = [task[variant] for task in checked_scores(scores, (variant,), bounds).values()]
    above = [(each[None, :] > bars[:, None]).astype(float) for each in groups]

    def fraction(*each: np.ndarray) -> Any:
        return np.concatenate(each, axis=-1).mean(axis=-1)

    low, high = bootstrap_interval(above, fraction, resamples, np.random.default_rng(seed))
    return Band(fraction(*above), low, high)


def sensitivity(settings: Mapping[str, Sequence[Any]], scores: Any, bins: int = 5) -> dict[str, Sensitivity]:
    """Return how much each setting matters for the score, greatest share of the variance first.

    Parameters
    ----------
    settings : mapping of str to sequence, of length runs
        The value of each setting in each run. Numbers with more than `bins` different values are put into
        that many ranges with equally many runs, but a value that a share of 1 / `bins` of the runs has is one
        by itself.
    scores : array_like of float, shape (runs,)
    bins : int

    Raises
    ------
    StudyError
        If a setting has not as many values as there are scores, or one that is no word or finite number, or
        a score is NaN.
    """
    checked_count("bins", bins, 2)
    values = checked_values(scores, "Scores of runs")
    if not is_mapping(settings):
        raise StudyError(
            f"settings must be a dict of lists, got {type(settings).__name__}. Write settings={{name: [its "
            "value in each run], ...}."
        )
    found = {}
    for name, given in settings.items():
        if not is_row(given) or not all(map(_is_value, given := list(given))):
            raise StudyError(
                f"The values of setting {name!r} must be words or finite numbers, one per run, got {given!r}."
            )
        if len(given) != len(values):
            raise StudyError(
                f"Setting {name!r} has {len(given)} values, and there are {len(values)} scores. Give one "
                "per run."
            )
        labels, group = _groups(given, bins)
        found[name] = _sensitivity(labels, group, values)
    return dict(sorted(found.items(), key=lambda item: -item[1].explained))


def _is_value(given: Any) -> bool:
    return isinstance(given, Hashable) and not (is_real(given) and not math.isfinite(as_float(given)))


def _groups(given: Sequence[Any], bins: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the groups of runs, and the number of each run's group."""
    is_number = all(
        isinstance(each, (int, float, np.number)) and not isinstance(each, bool) for each in given
    )
    distinct = list(dict.fromkeys(given))
    if is_number:
        distinct = sorted(distinct)
        if len(distinct) > bins:
            return _ranges(np.asarray(given, float), bins)
    place = {each: i for i, each in enumerate(distinct)}
    return [f"{each:g}" if is_number else str(each) for each in distinct], np.array([place[x] for x in given])


def _ranges(numbers: np.ndarray, bins: int) -> tuple[list[str], np.ndarray]:
    """Do what `_groups` does, for numbers with many values.

    A value that one in `bins` runs has is a group. The values between two such are cut by ranks.
    """
    distinct, place, runs = np.unique(numbers, return_inverse=True, return_counts=True)
    is_common = runs * bins >= len(numbers)
    stretch = np.cumsum(is_common | np.append(True, is_common[:-1]))  # of neighbors that may be together
    cut = np.zeros(len(distinct), np.int64)
    for number in np.unique(stretch):
        here = stretch == number
        total = runs[here].sum()
        parts = max(1, round(bins * total / len(numbers)))
        middle = np.cumsum(runs[here]) - runs[here] / 2
        cut[here] = middle * parts / total
    starts = np.append(True, (np.diff(stretch) > 0) | (np.diff(cut) > 0))
    lows, highs = distinct[starts], distinct[np.append(starts[1:], True)]
    labels = [f"{a:.3g} to {b:.3g}" if a < b else f"{a:g}" for a, b in zip(lows, highs, strict=True)]
    return labels, (np.cumsum(starts) - 1)[place]


def _sensitivity(labels: list[str], group: np.ndarray, values: np.ndarray) -> Sensitivity:
    runs = np.bincount(group, minlength=len(labels))
    means = np.bincount(group, values, len(labels)) / np.maximum(runs, 1)
    total = float(((values - values.mean()) ** 2).sum())
    within = float(((values - means[group]) ** 2).sum())
    filled = int((runs > 0).sum())
    left = len(values) - filled
    explained = 0.0
    if total > 0.0 and left > 0:
        explained = max(0.0, 1.0 - (within / left) / (total / (len(values) - 1)))
    half = np.array(
        [t_interval(values[group == i])[1] if runs[i] > 1 else np.nan for i in range(len(labels))]
    )
    means[runs == 0] = np.nan
    return Sensitivity(explained, tuple(labels), runs, means, means - half, means + half)
