"""Several runs in one picture: their mean with an interval, or each by itself where they are too few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas
from dist_classicrl.plotting.curves import Curve, Panel, axes_of, curves_of, draw_panels, height_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dist_classicrl.monitoring.reading import Metrics

FEWEST = 3  # runs of which a mean with an interval is drawn; fewer are drawn one by one
CONFIDENCE = 0.95
POINTS = 200  # of the common grid
_COLORS = (canvas.BLUE, canvas.VERMILLION)


@dataclass(frozen=True)
class Comparison:
    """What one panel shows of several runs.

    Attributes
    ----------
    curves : tuple of Curve
        Of each run, in the order in which they were given.
    x : ndarray(float64)
        The common grid; empty where each run is drawn by itself, as are the others.
    mean, half : ndarray(float64)
        The interval is mean - half to mean + half.
    """

    curves: tuple[Curve, ...]
    x: np.ndarray
    mean: np.ndarray
    half: np.ndarray


@canvas.styled
def plot_several_runs(
    runs: Sequence[Metrics], names: Sequence[str], x: str | Sequence[str] = "steps", title: str = ""
) -> tuple[Figure, dict[tuple[str, str], Comparison]]:
    """Draw several runs of the same kind, such as one training with several seeds.

    From three runs on each panel has their mean and its 95 % t-interval, on a common grid of 200 places over
    the range that all runs cover; between reports values are interpolated linearly. The interval is
    mean +- t s / sqrt(n), with s the sample standard deviation of the n runs at that place and t the 97.5 %
    quantile of Student's distribution with n - 1 degrees of freedom. Two runs are drawn one by one. All lines
    are smoothed first, as `Curve.smooth` is.

    Parameters
    ----------
    runs : sequence of Metrics
        At least two.
    names : sequence of str
        For the legend.
    x : {"steps", "time"} or a sequence of them
    title : str

    Returns
    -------
    Figure
    dict of (str, str) to Comparison
        What is drawn, by column of the records and horizontal axis.

    Raises
    ------
    PlotError
        If there are fewer than two runs, the records of one are empty, or there is no range that all of them
        cover.
    """
    if len(runs) < 2 or len(names) != len(runs):
        raise PlotError(
            f"Several runs, each with a name, are compared; got {len(runs)} and {len(names)} names. "
            "Use plot_curves for one."
        )
    wanted = axes_of(x)
    each = [curves_of(run, wanted, name) for run, name in zip(runs, names, strict=True)]
    compared = {key: _compared([curves[key] for curves in each], key[1]) for key in each[0]}
    figure = canvas.new_figure(height_of(wanted))

    def draw(axes: Axes, panel: Panel, axis: str, scale: float) -> None:
        _draw(axes, compared[panel.column, axis], scale, panel.factor, names)

    handles, _ = draw_panels(figure, each, title, draw).get_legend_handles_labels()
    canvas.legend_below(figure, handles, columns=4)
    return figure, compared


def _compared(curves: list[Curve], axis: str) -> Comparison:
    empty = np.empty(0)
    if len(curves) < FEWEST or not all(curve.x.size for curve in curves):
        return Comparison(tuple(curves), empty, empty, empty)
    what = "steps" if axis == "steps" else "seconds of training"
    x, values = common_grid([(curve.x, curve.smooth) for curve in curves], what)
    return Comparison(tuple(curves), x, *t_interval(values))


def _draw(axes: Axes, comparison: Comparison, scale: float, factor: float, names: Sequence[str]) -> None:
    if not comparison.x.size:
        for i, (curve, name) in enumerate(zip(comparison.curves, names, strict=True)):
            color = _COLORS[i % len(_COLORS)]
            axes.plot(curve.x / scale, curve.smooth * factor, color=color, lw=1.8, label=name)
        return
    for i, curve in enumerate(comparison.curves):
        label = "each run" if i == 0 else None
        axes.plot(curve.x / scale, curve.smooth * factor, color=canvas.GRAY, lw=0.8, alpha=0.5, label=label)
    x, mean, half = comparison.x / scale, comparison.mean * factor, comparison.half * factor
    axes.fill_between(
        x, mean - half, mean + half, color=canvas.SKY, alpha=0.45, lw=0, label="95 % t-interval"
    )
    label = f"mean of {len(comparison.curves)} runs"
    axes.plot(x, mean, color=canvas.BLUE, lw=2, label=label)


def common_grid(curves: list[tuple[np.ndarray, np.ndarray]], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves, as ascending places and values, on one grid over the range that all of them cover.

    Return the places, of shape (POINTS,), and the values, of shape (curves, POINTS). A `PlotError`, which
    says `what` the places are, is raised if there is no such range.
    """
    first = max(float(x[0]) for x, _ in curves)
    last = min(float(x[-1]) for x, _ in curves)
    if first >= last:
        raise PlotError(
            f"The runs have no range of {what} in common: one begins at {first:,.0f}, and another has ended "
            f"at {last:,.0f}. Give runs that were reported over the same range."
        )
    places = np.linspace(first, last, POINTS)
    return places, np.array([np.interp(places, x, y) for x, y in curves])


def t_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over axis 0, of at least 2 entries, and half the width of its 95 % t-interval.

    Over n runs with sample standard deviation s the interval is mean +- t s / sqrt(n), with t the 97.5 %
    quantile of Student's distribution with n - 1 degrees of freedom: it covers the mean of endlessly many
    such runs in 95 % of all experiments, where the values are about normal.
    """
    n = len(values)
    half = t_quantile(n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return values.mean(axis=0), half


def t_quantile(freedom: int) -> float:
    """Return the t with P(abs(T) < t) = 0.95 for Student's T with `freedom` >= 1 degrees of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < CONFIDENCE else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return P(abs(T) < sqrt(freedom) tan(angle)), by its finite series of powers of the cosine."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
