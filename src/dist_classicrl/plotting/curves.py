"""Learning curves of one run: returns, temporal-difference error, throughput, communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.checks import as_row
from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas
from dist_classicrl.plotting.greedy import NOTHING, Greedy

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
    is_return: bool = False  # the best policy's return is a mark for it


RETURN, GREEDY = "mean_return", "greedy_return"
PANELS = (
    Panel(RETURN, "Return while exploring", "mean return per episode", canvas.BLUE, is_return=True),
    Panel(
        GREEDY, "Return of the greedy policy", "mean return of an evaluation", canvas.GREEN, is_return=True
    ),
    Panel("td_error", "Temporal-difference error", "mean absolute error", canvas.VERMILLION, may_be_log=True),
    Panel("steps_per_second", "Throughput", "steps/s, all workers", canvas.GREEN, from_zero=True),
    Panel("communication_fraction", "Communication", "% of the workers' time", canvas.PURPLE, 100.0, True),
)

AXES = {"steps": "step", "time": "time"}
"""What may be on the horizontal axis, and its column in the records."""

_RATES = ("steps_per_second", "communication_fraction")
_LOG_FROM = 30.0
_SHORT = 0.3  # of the median between two reports, of time or steps: too little to measure anything
_SMOOTHED_SHARE = 20  # a smooth line averages over a twentieth of the reports
_FEWEST = 3
_FEW = 60  # so many points can be told apart


@dataclass(frozen=True)
class Curve:
    """One line: the reports that have a value.

    Attributes
    ----------
    x, y : ndarray(float64)
        In steps or seconds, and in the unit of the records; `canvas.drawable`. A report of little time or few
        steps, as the last one may be, has the mean over it and those before it.
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
    metrics: Metrics, x: str | Sequence[str] = "steps", title: str = "", greedy: Greedy = NOTHING
) -> tuple[Figure, Curves]:
    """Draw return (raw and smoothed), TD error, throughput and communication of one run.

    What was not measured has no panel, such as communication where nobody communicates.

    Parameters
    ----------
    metrics : Metrics
        As `read_metrics` returns it.
    x : {"steps", "time"} or a sequence of them
        The horizontal axis. With both, each has a column of panels.
    title : str
        The run's name.
    greedy : Greedy
        What `read_evaluations` returns: evaluations get a panel, and the best policy's return, where it is
        known, is a dashed line.

    Returns
    -------
    Figure
    dict of (str, str) to Curve
        What is drawn, by column of the records, or "greedy_return", and horizontal axis.

    Raises
    ------
    PlotError
        If the records are empty, or tell nothing that is drawn.
    """
    wanted = axes_of(x)
    curves = curves_of(metrics, wanted, title, greedy)
    figure = canvas.new_figure(height_of(curves))
    draw_curves(figure, curves, title, greedy)
    return figure, curves


def axes_of(x: str | Sequence[str]) -> tuple[str, ...]:
    """Return the horizontal axes that are asked for, each once."""
    wanted = (x,) if isinstance(x, str) else as_row(x)
    if not wanted or not all(isinstance(name, str) and name in AXES for name in wanted):
        raise PlotError(f"x must be {' or '.join(map(repr, AXES))}, or both, got {x!r}.")
    return tuple(dict.fromkeys(wanted))


def curves_of(metrics: Metrics, x: Sequence[str], name: str, greedy: Greedy = NOTHING) -> Curves:
    """Return the lines of all panels that have something to show; see `plot_curves`."""
    _check_records(metrics, name or "the run")
    seconds, steps = (np.diff(metrics[name], prepend=0) for name in ("time", "step"))
    weights = {RETURN: metrics["episodes"], "td_error": steps}
    curves = {}
    for panel in PANELS:
        if panel.column == GREEDY:
            continue
        y = metrics[panel.column]
        there = np.isfinite(y)
        if not (there.any() or panel.column == RETURN) or (panel.column in _RATES and not y[there].any()):
            continue
        y, own = canvas.drawable(y[there]), weights.get(panel.column, seconds)[there]
        window = max(_FEWEST, y.size // _SMOOTHED_SHARE) | 1  # odd
        calm = pooled(y, own, seconds[there], steps[there])
        even = smoothed(y, own, window) if panel.column == RETURN else smoothed(calm, np.ones(y.size), window)
        for axis in x:
            curves[panel.column, axis] = Curve(metrics[AXES[axis]][there], calm, even, window)
    if greedy.steps.size:
        for axis in x:
            places = np.interp(greedy.steps, metrics["step"], metrics[AXES[axis]])
            returns = canvas.drawable(greedy.returns)
            curves[GREEDY, axis] = Curve(places, returns, returns, 1)
    return curves


def _check_records(metrics: Metrics, name: str) -> None:
    """Raise `PlotError` where there is no report, or nothing to draw in any."""
    canvas.check_metrics(metrics, name)
    canvas.check_reported(metrics, name)
    if not any(np.isfinite(metrics[panel.column]).any() for panel in PANELS if panel.column != GREEDY):
        raise PlotError(
            f"The {len(metrics)} reports of {name} tell neither return nor error, throughput or "
            "communication, so there is nothing to draw. Train longer, or give another run."
        )


def pooled(y: np.ndarray, weights: np.ndarray, *extents: np.ndarray) -> np.ndarray:
    """Return `y`, but for reports of a small extent with the weighted mean over them and those before them.

    Extents, such as seconds and steps, are small below `_SHORT` of their median. The last report of a run may
    tell of a few steps alone, in which workers mostly waited for each other.
    """
    small = [_SHORT * float(np.median(extent)) if y.size else 0.0 for extent in extents]
    last = np.arange(y.size)
    first = last
    for extent, least in zip(extents, small, strict=True):
        before = np.append(0, np.cumsum(extent))  # each report
        first = np.clip(np.searchsorted(before, before[1:] - least, side="right") - 1, 0, first)
    result = y.copy()
    for i in np.flatnonzero(first < last):
        both = slice(first[i], i + 1)
        if weights[both].sum() > 0:
            result[i] = np.average(y[both], weights=weights[both])
    return result


def smoothed(y: np.ndarray, weights: np.ndarray, window: int) -> np.ndarray:
    """Return the weighted mean of `y` over `window` values around each; fewer at the ends."""
    reach = window // 2
    windows = [slice(max(i - reach, 0), i + reach + 1) for i in range(y.size)]
    # Not as differences of running sums, in which very large values would leave their rounding for good.
    return np.array([weights[each] @ y[each] / weights[each].sum() for each in windows])


def height_of(curves: Curves) -> float:
    """Return how high, in inches, the panels are together."""
    rows, _ = _layout(*_shown([curves]))
    return 0.6 + 3.0 * rows


def _shown(runs: Sequence[Curves]) -> tuple[list[Panel], tuple[str, ...]]:
    """Return the panels that have a line in one of the runs, and the horizontal axes."""
    columns = {column for curves in runs for column, _ in curves}
    x = tuple(dict.fromkeys(axis for curves in runs for _, axis in curves))
    return [panel for panel in PANELS if panel.column in columns], x


def _layout(panels: list[Panel], x: tuple[str, ...]) -> tuple[int, int]:
    """Return rows and columns: one column for each of two horizontal axes, or two or three of panels."""
    if len(x) > 1:
        return len(panels), len(x)
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    return -(-len(panels) // columns), columns


def draw_curves(figure: FigureBase, curves: Curves, title: str, greedy: Greedy = NOTHING) -> None:
    """Draw `curves` into an empty figure or a part of one."""

    def draw(axes: Axes, panel: Panel, axis: str, scale: float) -> None:
        _draw_curve(axes, panel, curves[panel.column, axis], scale)
        if panel.is_return and greedy.best is not None:
            draw_best(axes, greedy.best)
            axes.legend(loc="best")

    draw_panels(figure, [curves], title, draw)


def draw_best(axes: Axes, best: float, color: str = canvas.BLACK) -> None:
    """Draw the mark of what the best policy collects."""
    axes.axhline(float(canvas.drawable(best)), ls="--", lw=1.3, color=color, label="best policy")


def draw_panels(
    figure: FigureBase, runs: Sequence[Curves], title: str, draw: Callable[[Axes, Panel, str, float], None]
) -> list[Axes]:
    """Draw all panels of some runs: side by side, or one column for each of two horizontal axes.

    `draw` draws the lines of one panel and horizontal axis, by which scale the places on it are divided.
    Return the axes of all panels.
    """
    panels, x = _shown(runs)
    both = len(x) > 1
    rows, columns = _layout(panels, x)
    grid = figure.subplots(
        rows, columns, sharex="col" if both else False, sharey="row" if both else False, squeeze=False
    )
    canvas.write_title(figure, title)
    places = [(panel, axis) for panel in panels for axis in x]
    for axes in grid.flat[len(places) :]:
        axes.remove()
    for axes, (panel, axis) in zip(grid.flat, places, strict=False):
        scale, label = _scale_of(axis, runs)
        draw(axes, panel, axis, scale)
        if not any(curves[panel.column, axis].x.size for curves in runs if (panel.column, axis) in curves):
            axes.text(
                0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", color=canvas.GRAY
            )
        _finish_panel(axes, panel, axis, label, both)
    return list(grid.flat[: len(places)])


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
        axes.plot(x, y, "-o", color=panel.color, lw=2, ms=5, clip_on=False)
    elif panel.column == GREEDY:
        axes.plot(x, y, "-o", color=panel.color, lw=1.5, ms=3 if x.size < _FEW else 0)
    elif panel.column == RETURN:
        axes.plot(x, y, color=canvas.SKY, lw=1, label="each report")
        axes.plot(x, curve.smooth, color=panel.color, lw=2, label=f"mean of {curve.window} reports")
        axes.legend(loc="best")
    else:
        axes.plot(x, y, color=panel.color, lw=1.5)


def _finish_panel(axes: Axes, panel: Panel, axis: str, label: str, is_beside: bool) -> None:
    """Write title, labels and ticks of a panel; `is_beside` the same one over another axis."""
    least, most = axes.dataLim.intervaly
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    elif panel.may_be_log and 0.0 < _LOG_FROM * least < most < np.inf:
        canvas.use_log_scale(axes)
    if panel.column == "steps_per_second":
        axes.yaxis.set_major_formatter(canvas.quantity())
    if axis == "steps":
        axes.xaxis.set_major_formatter(canvas.quantity())
    axes.set_xlim(left=0)
    axes.set_title(panel.title)
    place = axes.get_subplotspec()
    if place is None or not is_beside or place.is_first_col():
        axes.set_ylabel(panel.unit)
    if place is None or not is_beside or place.is_last_row():
        axes.set_xlabel(label)
