"""Learning curves of one run: return, temporal-difference error, throughput, communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

    from dist_classicrl.monitoring.reading import Metrics


@dataclass(frozen=True)
class Panel:
    """How one column of the records is drawn."""

    column: str
    title: str
    unit: str
    color: str
    factor: float = 1.0  # the column times this is drawn
    from_zero: bool = False  # the axis begins at 0
    may_be_log: bool = False  # the axis is logarithmic where the values span more than a factor of 30


PANELS = (
    Panel("mean_return", "Return while exploring", "mean return per episode", canvas.BLUE),
    Panel("td_error", "Temporal-difference error", "mean absolute error", canvas.VERMILLION, may_be_log=True),
    Panel("steps_per_second", "Throughput", "steps/s, all workers", canvas.GREEN, from_zero=True),
    Panel("communication_fraction", "Communication", "% of the workers' time", canvas.PURPLE, 100.0, True),
)

AXES = {"steps": "step", "time": "time"}
"""What may be on the horizontal axis, and its column in the records."""

_LOG_FROM = 30.0
_SMOOTHED_SHARE = 20  # a smooth line averages over a twentieth of the reports
_FEWEST = 3


@dataclass(frozen=True)
class Curve:
    """One line: the reports that have a value.

    Attributes
    ----------
    x, y : ndarray(float64)
        In steps or seconds, and in the unit of the records.
    smooth : ndarray(float64)
        The mean of `y` over `window` reports around each, weighted by their episodes where `y` is a return.
    window : int
    """

    x: np.ndarray
    y: np.ndarray
    smooth: np.ndarray
    window: int


Curves = dict[tuple[str, str], Curve]
"""The lines of one run, by column of the records and horizontal axis."""


@canvas.styled
def plot_curves(
    metrics: Metrics, x: str | Sequence[str] = ("steps", "time"), title: str = ""
) -> tuple[Figure, Curves]:
    """Draw return (raw and smoothed), TD error, throughput and communication of one run.

    Parameters
    ----------
    metrics : Metrics
        As `read_metrics` returns it.
    x : {"steps", "time"} or a sequence of them
        The horizontal axis. With both, each has a column of panels.
    title : str
        The run's name.

    Returns
    -------
    Figure
    dict of (str, str) to Curve
        What is drawn, by column of the records and horizontal axis.

    Raises
    ------
    PlotError
        If the records are empty, or tell nothing that is drawn.
    """
    wanted = axes_of(x)
    curves = curves_of(metrics, wanted, title)
    figure = canvas.new_figure(height_of(wanted))
    draw_curves(figure, curves, title)
    return figure, curves


def axes_of(x: str | Sequence[str]) -> tuple[str, ...]:
    """Return the horizontal axes that are asked for, each once."""
    wanted = (x,) if isinstance(x, str) else tuple(dict.fromkeys(x))
    if not wanted or any(name not in AXES for name in wanted):
        raise PlotError(f"x must be {' or '.join(map(repr, AXES))}, or both, got {x!r}.")
    return wanted


def curves_of(metrics: Metrics, x: Sequence[str], name: str) -> Curves:
    """Return the lines of all panels; see `plot_curves`."""
    _check_records(metrics, name or "the run")
    curves = {}
    for panel in PANELS:
        y = metrics[panel.column]
        there = np.isfinite(y)
        is_return = panel.column == "mean_return"
        weights = metrics["episodes"] if is_return else np.ones(y.size)
        window = max(_FEWEST, int(there.sum()) // _SMOOTHED_SHARE) | 1  # odd
        smooth = smoothed(y[there], weights[there], window)
        for axis in x:
            curves[panel.column, axis] = Curve(metrics[AXES[axis]][there], y[there], smooth, window)
    return curves


def _check_records(metrics: Metrics, name: str) -> None:
    """Raise `PlotError` where there is no report, or nothing to draw in any."""
    if not len(metrics):
        raise PlotError(
            f"The records of {name} hold no report of progress, so there is nothing to draw. Train longer "
            "than one progress interval, or give another run."
        )
    if not any(np.isfinite(metrics[panel.column]).any() for panel in PANELS):
        raise PlotError(
            f"The {len(metrics)} reports of {name} tell neither return nor error, throughput or "
            "communication, so there is nothing to draw. Train longer, or give another run."
        )


def smoothed(y: np.ndarray, weights: np.ndarray, window: int) -> np.ndarray:
    """Return the weighted mean of `y` over `window` values around each; fewer at the ends."""
    reach = window // 2
    begin = np.maximum(np.arange(y.size) - reach, 0)
    end = np.minimum(np.arange(y.size) + reach + 1, y.size)
    sums, counts = (np.concatenate(([0.0], np.cumsum(part))) for part in (weights * y, weights))
    return (sums[end] - sums[begin]) / (counts[end] - counts[begin])


def height_of(x: Sequence[str]) -> float:
    """Return how high, in inches, the panels are together."""
    return 10.0 if len(x) > 1 else 6.6


def draw_curves(figure: FigureBase, curves: Curves, title: str) -> None:
    """Draw `curves` into an empty figure or a part of one."""

    def draw(axes: Axes, panel: Panel, axis: str, scale: float) -> None:
        _draw_curve(axes, panel, curves[panel.column, axis], scale)

    draw_panels(figure, [curves], title, draw)


def draw_panels(
    figure: FigureBase, runs: Sequence[Curves], title: str, draw: Callable[[Axes, Panel, str, float], None]
) -> Axes:
    """Draw all panels of some runs: two by two, or one column for each of two horizontal axes.

    `draw` draws the lines of one panel and horizontal axis, by which scale the places on it are divided.
    Return the axes of the last one.
    """
    x = tuple(dict.fromkeys(axis for _, axis in runs[0]))
    both = len(x) > 1
    grid = figure.subplots(len(PANELS) if both else 2, 2, sharex="col", sharey="row" if both else False)
    canvas.write_title(figure, title)
    for i, axes in enumerate(grid.flat):
        panel, axis = PANELS[i // 2 if both else i], x[i % 2 if both else 0]
        scale, label = _scale_of(axis, runs)
        draw(axes, panel, axis, scale)
        if not any(curves[panel.column, axis].x.size for curves in runs):
            text = "no episode has ended" if panel.column == "mean_return" else "not reported"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=canvas.GRAY)
        _finish_panel(axes, panel, axis, label)
    return axes


def _scale_of(axis: str, runs: Sequence[Curves]) -> tuple[float, str]:
    """Return what the places on an axis are divided by, and the axis's label."""
    if axis == "steps":
        return 1.0, "environment steps of all workers"
    drawn = (curve.x for curves in runs for key, curve in curves.items() if key[1] == axis)
    factor, unit = canvas.time_unit(max((float(x[-1]) for x in drawn if x.size), default=0.0))
    return factor, f"training time ({unit})"


def _draw_curve(axes: Axes, panel: Panel, curve: Curve, scale: float) -> None:
    x, y = curve.x / scale, curve.y * panel.factor
    if not curve.x.size:
        return
    if curve.x.size <= _FEWEST:
        axes.plot(x, y, "-o", color=panel.color, lw=2, ms=5)
    elif panel.column == "mean_return":
        axes.plot(x, y, color=canvas.SKY, lw=1, label="each report")
        axes.plot(x, curve.smooth, color=panel.color, lw=2, label=f"mean of {curve.window} reports")
        axes.legend(loc="best")
    else:
        axes.plot(x, y, color=panel.color, lw=1.5)


def _finish_panel(axes: Axes, panel: Panel, axis: str, label: str) -> None:
    """Write title, labels and ticks of a panel in which the lines are drawn."""
    least, most = axes.dataLim.intervaly
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    elif panel.may_be_log and 0.0 < _LOG_FROM * least < most < np.inf:
        axes.set_yscale("log")
    if panel.column == "steps_per_second":
        axes.yaxis.set_major_formatter(canvas.quantity())
    if axis == "steps":
        axes.xaxis.set_major_formatter(canvas.quantity())
    axes.set_xlim(left=0)
    axes.set_title(panel.title)
    place = axes.get_subplotspec()
    if place is None or place.is_first_col() or not axes.get_shared_y_axes().get_siblings(axes)[1:]:
        axes.set_ylabel(panel.unit)
    if place is None or place.is_last_row():
        axes.set_xlabel(label)
