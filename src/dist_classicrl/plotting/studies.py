"""Pictures of many trainings: learning curves, performance profiles, settings that matter, and comparisons.

Each function takes plain arrays, as `dist_classicrl.sweep` finds them, and returns a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dist_classicrl.checks import as_floats, as_row, is_mapping
from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Interval = tuple[Any, Any, Any]
"""Middle, low and high end: numbers, or arrays of one shape."""

_T = TypeVar("_T")

_PANEL, _BAR = 3.2, 0.45  # inches


@canvas.styled
def plot_learning_curves(
    steps: Any, curves: Mapping[str, Interval], title: str = "", score: str = "score"
) -> Figure:
    """Draw the learning curve of each variant, with its interval as a band.

    Parameters
    ----------
    steps : array_like, shape (points,)
    curves : mapping of str to (middle, low, high), each of shape (points,)
    title, score : str
        Above the picture, and at its upright axis.

    Raises
    ------
    PlotError
        If there is nothing to draw, or shapes differ.
    """
    figure, axes = _bands(steps, curves, title)
    axes.xaxis.set_major_formatter(canvas.quantity())
    axes.set(xlabel="environment steps", ylabel=score)
    return figure


@canvas.styled
def plot_profiles(thresholds: Any, profiles: Mapping[str, Interval], title: str = "") -> Figure:
    """Draw which fraction of each variant's runs scores above each threshold, with intervals as bands.

    Parameters
    ----------
    thresholds : array_like, shape (points,)
    profiles : mapping of str to (fraction, low, high), each of shape (points,)
    title : str

    Raises
    ------
    PlotError
        If there is nothing to draw, or shapes differ.
    """
    figure, axes = _bands(thresholds, profiles, title)
    axes.set(xlabel="score", ylabel="fraction of runs above it", ylim=(-0.02, 1.02))
    return figure


@canvas.styled
def plot_sensitivity(
    settings: Mapping[str, tuple[Sequence[str], Any, Any, Any]],
    explained: Mapping[str, float],
    title: str = "",
) -> Figure:
    """Draw the mean score for each value of each setting, a panel a setting.

    Parameters
    ----------
    settings : mapping of str to (values, means, low, high)
        Of each setting its values as text, and arrays of shape (values,); NaN where there is no interval.
    explained : mapping of str to float
        Share of the variance of scores that each setting explains, 0 to 1.
    title : str

    Raises
    ------
    PlotError
        If there is nothing to draw, shapes differ, or a setting's share is missing.
    """
    settings = _entries(settings)
    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    figure = canvas.new_figure(_PANEL * rows + 0.6)
    canvas.write_title(figure, title)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axes, (name, given) in zip(panels, settings.items(), strict=False):
        share = canvas.as_number(explained[name]) if name in explained else None
        if share is None:
            raise PlotError(f"Setting {name!r} has no share of the variance. Give one in explained.")
        values, *interval = as_row(given) or ((),)
        places = np.arange(len(as_row(values)))
        middle, low, high = _arrays(name, interval, places.shape)
        axes.errorbar(places, middle, _arms(middle, low, high), fmt="o-", color=canvas.BLUE, capsize=4)
        axes.set_xticks(places, list(values), rotation=20 if len(values) > 3 else 0)
        axes.set_title(f"{name}: {share:.0%} of the variance")
    for axes in panels[len(settings) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("mean score")
    return figure


@canvas.styled
def plot_comparison(
    figures: Mapping[str, Mapping[str, Interval]], marks: Mapping[str, float] | None = None, title: str = ""
) -> Figure:
    """Draw figures of variants, or of pairs of them, as bars from low to high with a line at the middle.

    Parameters
    ----------
    figures : mapping of str to mapping of str to (value, low, high)
        Of each figure, which gets a panel, the interval of each variant.
    marks : mapping of str to float, optional
        Where a panel has an upright line, such as 0 for differences, and 0.5 for probabilities of
        improvement.
    title : str

    Raises
    ------
    PlotError
        If there is nothing to draw.
    """
    figures = {name: _entries(intervals) for name, intervals in _entries(figures).items()}
    most = max(map(len, figures.values()))
    figure = canvas.new_figure(_BAR * most + 1.6)
    canvas.write_title(figure, title)
    panels = figure.subplots(1, len(figures), squeeze=False).ravel()
    for axes, (name, intervals) in zip(panels, figures.items(), strict=True):
        for place, (variant, interval) in enumerate(intervals.items()):
            middle, low, high = (float(each) for each in _arrays(variant, interval, ()))
            color = canvas.COLORS[place % len(canvas.COLORS)]
            axes.barh(place, high - low, left=low, height=0.6, color=color, alpha=0.5)
            axes.vlines(middle, place - 0.3, place + 0.3, color=canvas.BLACK, lw=2)
        if marks is not None and name in marks:
            mark = canvas.as_number(marks[name])
            if mark is None:
                raise PlotError(f"The mark of {name!r} must be a number, got {marks[name]!r:.200}.")
            axes.axvline(mark, color=canvas.GRAY, ls="--", lw=1)
        axes.use_sticky_edges = False  # which would end the axis where the first bar begins
        axes.autoscale_view()
        axes.set_yticks(range(len(intervals)), list(intervals))
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_title(name)
    return figure


def _bands(x: Any, curves: Mapping[str, Interval], title: str) -> tuple[Figure, Axes]:
    curves = _entries(curves)
    places = as_floats("The places on the horizontal axis", x, PlotError)
    figure = canvas.new_figure(_PANEL + 1.6)
    canvas.write_title(figure, title)
    axes = figure.subplots()
    lines = []
    for number, (name, curve) in enumerate(curves.items()):
        color, style = canvas.line_look(number)
        middle, low, high = _arrays(name, curve, places.shape)
        axes.fill_between(places, low, high, color=color, alpha=0.18, lw=0)
        lines += axes.plot(places, middle, color=color, ls=style, lw=2, label=name)
    canvas.legend_below(figure, lines, columns=4)
    return figure, axes


def _entries(what: Mapping[str, _T]) -> dict[str, _T]:
    """Return the entries of a dict, or of a table or column of pandas; PlotError where there are none."""
    entries = dict(what.items()) if is_mapping(what) else {}
    if not entries:
        raise PlotError(f"There is nothing to draw in {what!r:.200}. Give a dict with one entry at least.")
    return entries


def _arrays(name: str, interval: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    arrays = [as_floats(f"What {name!r} has", each, PlotError) for each in as_row(interval)]
    if len(arrays) != 3 or any(each.shape != shape for each in arrays):
        raise PlotError(
            f"{name!r} has arrays of shapes {[each.shape for each in arrays]}. Give three of shape {shape}: "
            "the middle, the low and the high end."
        )
    return arrays


def _arms(middle: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return how far intervals reach from the middle, downwards and upwards; 0 where there is none."""
    return np.nan_to_num(np.maximum(0.0, np.array([middle - low, high - middle])))
