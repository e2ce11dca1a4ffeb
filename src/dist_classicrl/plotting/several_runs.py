"""Several runs in one picture: their mean with an interval, or each by itself where they are too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas
from dist_classicrl.plotting.curves import Curve, Panel, axes_of, curves_of, draw_panels, height_of
from dist_classicrl.plotting.intervals import common_grid, t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dist_classicrl.monitoring.reading import Metrics

FEWEST = 3
"""Runs of which a mean with an interval is drawn; fewer are drawn one by one."""

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
