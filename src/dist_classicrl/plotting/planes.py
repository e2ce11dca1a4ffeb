"""What was learned where observations have two numbers: value and greedy action of each pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.plotting import canvas
from dist_classicrl.plotting.grids import GridMap, Side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_NOT_LEARNED = "#E4E4E4"
_PANEL = 4.6  # inches
_MOST_NAMED = 20  # actions with a color and a name each


def height_of(grid_map: GridMap) -> float:
    """Return how high, in inches, the two panels are with their titles and labels."""
    rows, columns = grid_map.values.shape
    return min(max(_PANEL * rows / columns, 2.2), 8.0) + 1.0


def draw_plane(figure: FigureBase, grid_map: GridMap, title: str) -> None:
    """Draw values and greedy actions into an empty figure or a part of one."""
    left, right = figure.subplots(1, 2)
    canvas.write_title(figure, title)
    known = np.isfinite(grid_map.values)
    values = left.imshow(np.ma.masked_where(~known, grid_map.drawn), **_look(grid_map, "viridis"))
    figure.colorbar(values, ax=left, label="greedy value", pad=0.02, shrink=0.85)
    _draw_actions(figure, right, grid_map, known)
    for axes, what in ((left, "greedy value"), (right, "greedy action")):
        _finish(axes, grid_map, f"{grid_map.grid.name}: {what}")
    if not known.all():
        figure.supxlabel("light grey: never visited", fontsize="medium")


def _draw_actions(figure: FigureBase, axes: Axes, grid_map: GridMap, known: np.ndarray) -> None:
    """Draw the first of the greedy actions of each cell."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    n = grid_map.grid.legal.shape[2]
    colors: Any = colormaps["viridis"].resampled(n)
    if n <= _MOST_NAMED:
        colors = ListedColormap(colormaps["tab10" if n <= 10 else "tab20"].colors[:n])  # type: ignore[attr-defined]
    first = np.ma.masked_where(~known, np.argmax(grid_map.greedy, axis=2))
    drawn = axes.imshow(first, vmin=-0.5, vmax=n - 0.5, **_look(grid_map, colors))
    bar = figure.colorbar(drawn, ax=axes, label="action", pad=0.02, shrink=0.85)
    every = -(-n // _MOST_NAMED)
    bar.set_ticks(range(0, n, every), labels=grid_map.grid.actions[::every])


def _look(grid_map: GridMap, colors: Any) -> dict[str, Any]:
    rows, columns = grid_map.values.shape
    (down, right) = grid_map.grid.sides or (Side("row", 0), Side("column", 0))
    extent = (right.first - 0.5, right.first + columns - 0.5, down.first + rows - 0.5, down.first - 0.5)
    aspect = "equal" if 1 / 3 <= rows / columns <= 3 else "auto"
    return {"interpolation": "nearest", "cmap": colors, "extent": extent, "aspect": aspect}


def _finish(axes: Axes, grid_map: GridMap, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    down, right = grid_map.grid.sides or (Side("row", 0), Side("column", 0))
    axes.grid(False)
    axes.set_facecolor(_NOT_LEARNED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(right.name)
    axes.set_ylabel(down.name)
    axes.set_title(title)
