"""The middle of several curves on a common grid, and the interval around it."""

from __future__ import annotations

import math

import numpy as np

from dist_classicrl._student import t_quantile
from dist_classicrl.errors import PlotError

CONFIDENCE = 0.95
POINTS = 200  # of the common grid
MEAN, MEDIAN = "mean", "median"
INTERVALS = {MEAN: "95 % t-interval", MEDIAN: "quartiles"}
"""What may stand for several runs, and what the interval around it is called."""


def common_grid(curves: list[tuple[np.ndarray, np.ndarray]], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves, as ascending places and values, on one grid over the range that all of them cover.

    Return the places, of shape (POINTS,), and the values, of shape (curves, POINTS). A `PlotError`, which
    says `what` the places are, is raised if there is no such range.
    """
    first = max(float(x[0]) for x, _ in curves)
    last = min(float(x[-1]) for x, _ in curves)
    if first >= last:
        if any(x.size == 1 for x, _ in curves):
            why = "one has a single report, which covers none"
        else:
            why = f"one begins at {first:,.0f}, and another has ended at {last:,.0f}"
        raise PlotError(
            f"The runs have no range of {what} in common: {why}. Give runs with several reports "
            "over the same range."
        )
    places = np.linspace(first, last, POINTS)
    return places, np.array([np.interp(places, x, y) for x, y in curves])


def middle_of(values: np.ndarray, average: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the middle over axis 0, of at least 2 entries, and the least and the most of its interval."""
    if average == MEDIAN:
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        return middle, low, high
    mean, half = t_interval(values)
    return mean, mean - half, mean + half


def t_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over axis 0, of at least 2 entries, and half the width of its 95 % t-interval.

    Over n runs with sample standard deviation s the interval is mean +- t s / sqrt(n), with t the 97.5 %
    quantile of Student's distribution with n - 1 degrees of freedom: it covers the mean of endlessly many
    such runs in 95 % of all experiments, where the values are about normal.
    """
    n = len(values)
    # In powers of two near the largest, which round nothing: squares of very large values are infinite.
    scale = np.ldexp(1.0, np.frexp(np.abs(values).max(axis=0))[1] - 1)
    half = t_quantile(n - 1, CONFIDENCE) * (values / scale).std(axis=0, ddof=1) / math.sqrt(n) * scale
    return values.mean(axis=0), half
