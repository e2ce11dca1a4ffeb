"""Several runs in one picture, by themselves or in groups: the middle of each group with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import as_row
from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas
from dist_classicrl.plotting.curves import (
    Curve,
    Curves,
    Panel,
    axes_of,
    curves_of,
    draw_best,
    draw_panels,
    height_of,
)
from dist_classicrl.plotting.greedy import NOTHING, Greedy
from dist_classicrl.plotting.intervals import INTERVALS, MEAN, common_grid, middle_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dist_classicrl.monitoring.reading import Metrics

FEWEST = 3  # runs of which a middle with an interval is drawn; fewer are drawn one by one


@dataclass(frozen=True)
class RunRecords:
    """What is drawn of one run: its records, and its evaluations where it has any."""

    metrics: Metrics
    name: str
    greedy: Greedy = NOTHING


@dataclass(frozen=True)
class Comparison:
    """What one panel shows of several runs.

    Attributes
    ----------
    curves : tuple of Curve
        Of each run, in the order in which they were given.
    x : ndarray(float64)
        The common grid; empty where each run is drawn by itself, as are the others.
    middle, low, high : ndarray(float64)
        The mean or the median of the runs, and the interval around it, which is NaN for two runs.
    """

    curves: tuple[Curve, ...]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval around the middle."""
        return self.x.size > 0 and len(self.curves) >= FEWEST


Comparisons = dict[tuple[str, str], Comparison]
"""What is drawn of some runs, by column of the records, or "greedy_return", and horizontal axis."""


@canvas.styled
def plot_several_runs(
    runs: Sequence[Metrics], names: Sequence[str], x: str | Sequence[str] = "steps", title: str = ""
) -> tuple[Figure, Comparisons]:
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
        For the legend; two runs need different ones.
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
        If there are fewer than two runs, or two of the same name, the records of one are empty, or there is
        no range that all of them cover.
    """
    runs, names = as_row(runs), as_row(names)
    if len(runs) < 2 or len(names) != len(runs):
        raise PlotError(
            f"Several runs, each with a name, are compared; got {len(runs)} and {len(names)} names. "
            "Use plot_curves for one."
        )
    wanted = axes_of(x)
    records = [RunRecords(run, name) for run, name in zip(runs, names, strict=True)]
    compared = _compared(records, wanted, MEAN)
    if len(runs) < FEWEST:
        if names[0] == names[1]:
            raise PlotError(
                f"Both runs are called {names[0]!r}, so that the legend could not tell them apart. Give each "
                "a name of its own."
            )
        each = {record.name: _compared([record], wanted, MEAN) for record in records}
        return _drawn(each, {}, title, MEAN), compared
    return _drawn({"": compared}, {}, title, MEAN), compared


@canvas.styled
def plot_groups(
    groups: Mapping[str, Sequence[RunRecords]],
    x: str | Sequence[str] = "steps",
    title: str = "",
    average: str = MEAN,
) -> tuple[Figure, dict[str, Comparisons]]:
    """Draw groups of runs, such as those with the same learning rate, each in a color of its own.

    A group of three runs or more has their mean with its 95 % t-interval, as in `plot_several_runs`, or their
    median with the range from the first to the third quartile; one of two their middle alone. Each lies on a
    common grid over the range that all runs of the group cover; without such a range each run is drawn by
    itself. Evaluations have a panel, and what the best policy collects is a dashed line: one for all groups
    where it is the same for all.

    Parameters
    ----------
    groups : mapping of str to sequence of RunRecords
        By what the legend says of them; at least one, and each of at least one run.
    x : {"steps", "time"} or a sequence of them
    title : str
    average : {"mean", "median"}

    Returns
    -------
    Figure
    dict of str to dict of (str, str) to Comparison
        What is drawn, by group, and by column of the records and horizontal axis.

    Raises
    ------
    PlotError
        If there is no run, or the records of one are empty.
    """
    groups = {name: as_row(runs) for name, runs in groups.items()}
    if not groups or not all(groups.values()):
        raise PlotError("Each group needs a run at least, and there must be one group. Give some.")
    for runs in groups.values():
        for run in runs:
            if not isinstance(run, RunRecords):
                raise PlotError(
                    f"A run of a group is a RunRecords, got {type(run).__name__}. Write "
                    "RunRecords(read_metrics(folder), name)."
                )
    if not isinstance(average, str) or average not in INTERVALS:
        raise PlotError(f"average must be {' or '.join(map(repr, INTERVALS))}, got {average!r}.")
    wanted = axes_of(x)
    compared = {name: _compared(runs, wanted, average, is_strict=False) for name, runs in groups.items()}
    labels = {name: f"{name} ({len(runs)} runs)" if len(runs) > 1 else name for name, runs in groups.items()}
    best = {name: _best_of(runs) for name, runs in groups.items()}
    return _drawn(compared, labels, title, average, best), compared


def _best_of(runs: Sequence[RunRecords]) -> float | None:
    """Return what the best policy collects in the runs of a group, where that is the same for all."""
    found = {run.greedy.best for run in runs}
    return found.pop() if len(found) == 1 else None


def _compared(
    runs: Sequence[RunRecords], x: tuple[str, ...], average: str, is_strict: bool = True
) -> Comparisons:
    each = [curves_of(run.metrics, x, run.name, run.greedy) for run in runs]
    keys = dict.fromkeys(key for curves in each for key in curves)
    return {
        key: _comparison([curves[key] for curves in each if key in curves], key[1], average, is_strict)
        for key in keys
    }


def _comparison(curves: list[Curve], axis: str, average: str, is_strict: bool) -> Comparison:
    fewest = FEWEST if is_strict else 2
    if len(curves) >= fewest and all(curve.x.size for curve in curves):
        what = "steps" if axis == "steps" else "seconds of training"
        try:
            x, values = common_grid([(curve.x, curve.smooth) for curve in curves], what)
            middle, low, high = middle_of(values, average)
            if len(curves) < FEWEST:
                low = high = np.full_like(middle, np.nan)
            return Comparison(tuple(curves), x, middle, low, high)
        except PlotError:
            if is_strict:
                raise
    empty = np.empty(0)
    return Comparison(tuple(curves), empty, empty, empty, empty)


def _drawn(
    groups: Mapping[str, Comparisons],
    labels: Mapping[str, str],
    title: str,
    average: str,
    best: Mapping[str, float | None] | None = None,
) -> Figure:
    """Return a figure of these groups; one alone has a legend that says what its lines are."""
    alone = len(groups) == 1
    shown: list[Curves] = [
        {key: curve}
        for compared in groups.values()
        for key, comparison in compared.items()
        for curve in comparison.curves
    ]
    whole: Curves = {key: curve for curves in shown for key, curve in curves.items()}
    figure = canvas.new_figure(height_of(whole))
    marks = {} if best is None else best
    is_common = len(set(marks.values())) == 1

    def draw(axes: Axes, panel: Panel, axis: str, scale: float) -> None:
        for number, (name, compared) in enumerate(groups.items()):
            color, style = canvas.line_look(number)
            comparison = compared.get((panel.column, axis))
            if comparison is not None:
                look = {"color": color, "ls": style}
                if alone and comparison.x.size:
                    _draw_alone(axes, comparison, scale, panel.factor, average)
                else:
                    _draw_group(
                        axes,
                        comparison,
                        scale,
                        panel.factor,
                        look,
                        canvas.shown_label(labels.get(name, name)),
                    )
            mark = marks.get(name)
            if panel.is_return and mark is not None and (number == 0 or not is_common):
                draw_best(axes, mark, canvas.BLACK if is_common else color)

    panels = draw_panels(figure, shown, title, draw)
    canvas.legend_below(figure, _legend_of(panels, groups, alone, average), columns=4)
    return figure


def _draw_alone(axes: Axes, comparison: Comparison, scale: float, factor: float, average: str) -> None:
    for i, curve in enumerate(comparison.curves):
        label = "each run" if i == 0 else None
        axes.plot(curve.x / scale, curve.smooth * factor, color=canvas.GRAY, lw=0.8, alpha=0.5, label=label)
    x = comparison.x / scale
    if comparison.has_interval:
        low, high = comparison.low * factor, comparison.high * factor
        axes.fill_between(x, low, high, color=canvas.SKY, alpha=0.45, lw=0, label=INTERVALS[average])
    label = f"{average} of {len(comparison.curves)} runs"
    axes.plot(x, comparison.middle * factor, color=canvas.BLUE, lw=2, label=label)


def _draw_group(
    axes: Axes, comparison: Comparison, scale: float, factor: float, look: dict[str, Any], label: str
) -> None:
    if not comparison.x.size:
        for i, curve in enumerate(comparison.curves):
            marker = "o" if curve.x.size == 1 else ""
            y = curve.smooth * factor
            axes.plot(curve.x / scale, y, **look, marker=marker, lw=1.8, label=None if i else label)
        return
    x = comparison.x / scale
    if comparison.has_interval:
        low, high = comparison.low * factor, comparison.high * factor
        axes.fill_between(x, low, high, color=look["color"], alpha=0.18, lw=0)
    axes.plot(x, comparison.middle * factor, **look, lw=2, label=label)


def _legend_of(
    panels: Sequence[Axes], groups: Mapping[str, Comparisons], alone: bool, average: str
) -> list[Any]:
    """Return what the legend has, each once: the groups, their interval, and the best policy."""
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    has_band = any(each.has_interval for shown in groups.values() for each in shown.values())
    if has_band and not alone:
        found[INTERVALS[average]] = Patch(color=canvas.GRAY, alpha=0.3, lw=0, label=INTERVALS[average])
    return list(found.values())
