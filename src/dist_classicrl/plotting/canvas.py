"""What all pictures have in common: how they look, how numbers on axes are written, how they are saved."""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Callable, Hashable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from dist_classicrl.checks import checked_path, is_mapping
from dist_classicrl.errors import MissingExtraError, PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase, SubFigure

_P = ParamSpec("_P")
_R = TypeVar("_R")

WIDTH = 12.0
"""Of every figure, in inches: 1200 pixels at `DPI`."""
DPI = 100
_LEGEND = 0.5  # inches, for which figures have room
_LARGEST = 1e200  # of a value that is drawn: logarithmic axes have margins, and marks beyond them
_WRAPPED = 0.8  # of the letters that fit in a line on average

FORMATS = (".png", ".svg", ".pdf")
"""What `save` writes."""

# Okabe and Ito's colors, which people with any kind of color vision tell apart.
BLACK = "#000000"
BLUE = "#0072B2"
GREEN = "#009E73"
GRAY = "#8C8C8C"
ORANGE = "#E69F00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
VERMILLION = "#D55E00"
COLORS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)  # of lines, one after the other
_STYLES = ("-", ":", "-.", (0, (5, 1)))  # one after the other where there are more lines than colors

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.formatter.use_mathtext": False,
    "axes.grid": True,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "font.size": 11,
    "grid.color": "#E4E4E4",
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # names of folders, settings and environments are no formulas
    "xtick.color": "#333333",
    "ytick.color": "#333333",
}


def _has(name: str) -> Callable[[Any], bool]:
    return lambda given: hasattr(given, name) and not isinstance(given, type)


_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("explained", "figures", "groups", "curves", "marks", "profiles", "settings"),
        ("a dict by name", is_mapping),
    ),
    "greedy": ("what read_evaluations(folder) returns", _has("best")),
    "grid_map": ("what map_of(q_table, env) returns", _has("grid")),
    "report": ("a ScalingReport", _has("baseline")),
    **dict.fromkeys(("score", "title"), ("text", lambda given: isinstance(given, Hashable))),
}
"""What arguments of these names have to be, in words, and whether an object may be one.

As text matplotlib writes numbers, paths and None as well.
"""


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let `draw` run with the look of this package, and leave the caller's settings as they were.

    `PlotError` where one of its arguments is not what it has to be.
    """
    known = inspect.signature(draw)

    @wraps(draw)
    def in_style(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        require_matplotlib()
        import matplotlib

        for name, given in known.bind(*args, **kwargs).arguments.items():
            if name not in _ARGUMENTS or given is known.parameters[name].default:
                continue
            what, may_be = _ARGUMENTS[name]
            if not may_be(given):
                raise PlotError(f"{name} must be {what}, got {given!r:.200}.")
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return in_style


def require_matplotlib() -> None:
    """Raise `MissingExtraError` where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"Plots need matplotlib, which cannot be imported ({error}). Write: pip install matplotlib."
        ) from error


def new_figure(height: float) -> Figure:
    """Return an empty figure, `height` inches high, that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")


def write_title(figure: FigureBase, title: str) -> None:
    """Write a title above a figure or a part of one, if there is any."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure to `path`, as the suffix says, in a folder that is made if it is not there.

    Raises
    ------
    PlotError
        If the suffix is not one of `FORMATS`, `figure` is none, or the file cannot be written.
    """
    target = check_target(path)
    if not hasattr(figure, "savefig"):
        raise PlotError(
            f"What is saved is a figure, as the functions that plot return it, got {figure!r:.200}."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    except OSError as error:
        raise PlotError(f"The picture cannot be written to {target}: {error}. Give another path.") from error
    return target


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a picture can have that name; see `save`."""
    target = Path(checked_path("path", path))
    if target.suffix.lower() not in FORMATS:
        raise PlotError(
            f"A picture cannot be written to {target}: the name must end in {', '.join(FORMATS)}. "
            f"Give, for instance, {target.with_suffix('.png') if target.name else 'plot.png'}."
        )
    return target


def as_number(given: Any) -> float | None:
    """Return a number, or an array of a single one, as a float; None of what is none."""
    try:
        return None if isinstance(given, (str, bytes)) else float(np.asarray(given, object).item())
    except (OverflowError, TypeError, ValueError):
        return None


def check_metrics(metrics: Any, name: str) -> None:
    """Raise `PlotError` unless these are the records of a run."""
    if not hasattr(metrics, "columns"):
        raise PlotError(
            f"The records of {name} must be what read_metrics(folder) returns, got {type(metrics).__name__}."
        )


def check_reported(metrics: Any, name: str) -> None:
    """Raise `PlotError` where there is no report."""
    if not len(metrics):
        raise PlotError(
            f"The records of {name} hold no report of progress, so there is nothing to draw. Train longer "
            "than one progress interval, or give another run."
        )


def drawable(values: Any) -> np.ndarray:
    """Return `values`, none larger than that the range of all has a size, which axes and colors need."""
    return np.clip(values, -_LARGEST, _LARGEST)


def quantity() -> Any:
    """Return a formatter of ticks that writes 20000000 as 20 M."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter()


def use_log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic. Its numbers are powers of ten, which matplotlib has as formulas."""
    axes.set_yscale("log")
    for tick in (*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()):
        tick.label1.set_parse_math(True)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the length in seconds, and the name, of the unit that suits a span of `seconds`."""
    if seconds >= 3 * 86400:
        return 86400.0, "days"
    if seconds >= 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if seconds >= 300 else (1.0, "s")


def legend_below(figure: Figure | SubFigure, handles: list[Any], columns: int) -> None:
    """Put a legend under everything in `figure`, where it covers nothing, in as many columns as find room.

    A whole figure becomes higher by what more than two lines need, so that no panel gets smaller.
    """
    from matplotlib.figure import Figure

    if not handles:
        return
    room = figure.bbox.width
    for ncols in range(min(columns, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=ncols)
        width = legend.get_window_extent().width
        if width <= room:
            break
        if ncols > 1:
            legend.remove()
    if width > room:  # one column, of long names
        longest = max(len(text.get_text()) for text in legend.get_texts())
        for text in legend.get_texts():
            text.set_text(textwrap.fill(text.get_text(), int(_WRAPPED * longest * room / width)))
    more = legend.get_window_extent().height / figure.dpi - _LEGEND
    if more > 0.0 and isinstance(figure, Figure):
        figure.set_figheight(figure.get_figheight() + more)


def shown_label(name: str) -> str:
    """Return `name` as a label that has a place in legends, which leave out what begins with _."""
    return f" {name}" if name.startswith("_") else name


def line_look(number: int) -> tuple[str, Any]:
    """Return the color and the style of the line of this number, from 0 on, among several in one picture."""
    turns, place = divmod(number, len(COLORS))
    return COLORS[place], _STYLES[turns % len(_STYLES)]
