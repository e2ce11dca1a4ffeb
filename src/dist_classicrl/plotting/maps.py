"""What was learned on a grid: the greedy value of each cell as a heat map, the greedy actions as arrows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import as_array
from dist_classicrl.errors import PlotError
from dist_classicrl.plotting import canvas, planes
from dist_classicrl.plotting.grids import GridMap, grid_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

_MOST_CELL = 0.95  # inches
_WIDTH = canvas.WIDTH - 2.0
_TALLEST, _LEAST = 11.0, 3.2
_LEAST_CELL_WITH_NUMBER = 0.55
_NAMES = {"G": "goal", "H": "hole", "C": "cliff"}
_GOAL, _NOBODY_ACTS, _NOT_LEARNED = "#FFFFFF", "#4A4A4A", "#E4E4E4"


def plot_maps(
    q_table: np.ndarray, env: Any, visits: np.ndarray | None = None, title: str = ""
) -> tuple[Figure, GridMap]:
    """Draw the greedy value of each cell of a grid problem as a heat map, with arrows for the greedy actions.

    Parameters
    ----------
    q_table : array_like, shape (states, actions)
        At least as large as the environment needs.
    env : str, gymnasium.Env, callable or TabularMDP
        FrozenLake with any map, CliffWalking, a model with a `grid_shape`, or anything else whose
        observations have two numbers, such as ``MultiDiscrete([30, 30])``: there the first one goes down, and
        actions have a color each in place of an arrow.
    visits : array_like, shape of `q_table`, optional
        How often each entry was updated: cells without updates are left blank.
    title : str

    Raises
    ------
    PlotError
        If the environment is no grid, or larger than the table, or an argument is something else.
    """
    grid_map = map_of(q_table, env, visits)
    return plot_map(grid_map, title), grid_map


@canvas.styled
def plot_map(grid_map: GridMap, title: str = "") -> Figure:
    """Draw a map that `map_of` made; see `plot_maps`."""
    figure = canvas.new_figure(height_of(grid_map))
    draw_map(figure, grid_map, title)
    return figure


def map_of(q_table: np.ndarray, env: Any, visits: np.ndarray | None = None) -> GridMap:
    """Return what `plot_maps` draws."""
    q_table, visits = _checked("q_table", q_table), None if visits is None else _checked("visits", visits)
    if visits is not None and visits.shape != q_table.shape:
        raise PlotError(f"visits must have the shape of q_table, {q_table.shape}, got {visits.shape}.")
    grid = grid_of(env)
    shape = grid.legal.shape
    states, actions = grid.acting.size, shape[2]
    if q_table.shape[0] < states or q_table.shape[1] < actions:
        raise PlotError(
            f"{grid.name} has {states} states and {actions} actions, the table only {q_table.shape[0]} and "
            f"{q_table.shape[1]}. Give the environment that was trained in."
        )
    known, legal = grid.acting, grid.legal
    if visits is not None and visits.any():  # a table from elsewhere may come without counts
        visited = visits[:states, :actions].reshape(shape) > 0
        known = known & visited.any(axis=2)
        legal = legal & visited if grid.is_masked else legal
    q = np.where(legal, q_table[:states, :actions].reshape(shape), -np.inf)
    best = np.max(q, axis=2)
    return GridMap(grid, np.where(known, best, np.nan), (q == best[:, :, None]) & known[:, :, None])


def _checked(name: str, given: Any) -> np.ndarray:
    array = as_array(name, given, PlotError)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise PlotError(
            f"{name} must be numbers of shape (states, actions), as agent.{name} where states are no keys, "
            f"got {type(given).__name__} of shape {array.shape} and type {array.dtype}."
        )
    return array


def height_of(grid_map: GridMap) -> float:
    """Return how high, in inches, the map is with its title and legend."""
    if grid_map.grid.directions is None:
        return planes.height_of(grid_map)
    return max(_cell(grid_map) * grid_map.values.shape[0] + 1.4, _LEAST)


def _cell(grid_map: GridMap) -> float:
    rows, columns = grid_map.values.shape
    return min(_MOST_CELL, _WIDTH / columns, _TALLEST / rows)


def draw_map(figure: FigureBase, grid_map: GridMap, title: str) -> None:
    """Draw a map into an empty figure or a part of one."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    directions = grid_map.grid.directions
    if directions is None:
        planes.draw_plane(figure, grid_map, title)
        return
    axes = figure.subplots()
    canvas.write_title(figure, title)
    known = grid_map.drawn[np.isfinite(grid_map.values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    shade = ScalarMappable(Normalize(low, high if high > low else low + 1.0), "viridis")
    faces = _faces(grid_map, shade)
    axes.imshow(faces, interpolation="nearest")
    ink = np.where(faces[:, :, :3] @ (0.299, 0.587, 0.114) > 0.5, "black", "white")
    cell = _cell(grid_map)
    _draw_arrows(axes, grid_map, directions, ink, cell)
    _write_cells(axes, grid_map, ink, cell)
    _finish(axes, grid_map.values.shape, cell)
    axes.set_title(f"{grid_map.grid.name}: greedy value and policy")
    axes.set_xlabel(_explained(grid_map))
    figure.colorbar(shade, ax=axes, label="greedy value", pad=0.015, aspect=25, shrink=0.95)


def _faces(grid_map: GridMap, shade: Any) -> np.ndarray:
    """Return the color of each cell, float64, shape (rows, columns, 4)."""
    from matplotlib.colors import to_rgba

    faces = shade.to_rgba(np.nan_to_num(grid_map.drawn))
    faces[np.isnan(grid_map.values)] = to_rgba(_NOT_LEARNED)
    faces[~grid_map.grid.acting] = to_rgba(_NOBODY_ACTS)
    faces[grid_map.grid.letters == "G"] = to_rgba(_GOAL)
    return faces


def _draw_arrows(axes: Axes, grid_map: GridMap, directions: np.ndarray, ink: np.ndarray, cell: float) -> None:
    """Draw an arrow for each greedy action; several begin in the middle of the cell, one lies there."""
    row, column, action = np.nonzero(grid_map.greedy)
    alone = grid_map.greedy.sum(axis=2)[row, column] == 1
    vector = directions[action] * (0.32 if _has_numbers(cell) else 0.42)
    lift = 0.12 if _has_numbers(cell) else 0.0  # room for the number below
    y, x = (np.column_stack((row - lift, column)) - np.where(alone[:, None], 0.5 * vector, 0.0)).T
    axes.quiver(
        x, y, vector[:, 1], vector[:, 0], color=ink[row, column], angles="xy", scale_units="xy", scale=1.0,
        units="inches", width=0.035 * cell, headwidth=4.5, headlength=4.5, headaxislength=4.0, minlength=0.0,
        zorder=2,
    )  # fmt: skip
    nowhere = ~vector.any(axis=1)
    axes.scatter(
        x[nowhere], y[nowhere], s=(9 * cell) ** 2, c=ink[row, column][nowhere], zorder=2, linewidths=0
    )


def _has_numbers(cell: float) -> bool:
    return cell >= _LEAST_CELL_WITH_NUMBER


def _write_cells(axes: Axes, grid_map: GridMap, ink: np.ndarray, cell: float) -> None:
    """Write the values where there is room, the letters where nobody acts, and frame starts and goals."""
    from matplotlib.patches import Rectangle

    look: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
    for (row, column), letter in np.ndenumerate(grid_map.grid.letters):
        value, look["color"] = grid_map.values[row, column], ink[row, column]
        if letter in _NAMES:
            axes.text(column, row, letter, fontsize=max(18 * cell, 5), fontweight="bold", **look)
        elif np.isfinite(value) and _has_numbers(cell):
            axes.text(column, row + 0.35, f"{value:.3g}", fontsize=12 * cell, **look)
    goals = grid_map.grid.letters == "G"
    for cells, color, width in ((goals, _NOBODY_ACTS, 1.0), (grid_map.grid.starts, canvas.ORANGE, 4 * cell)):
        for row, column in np.argwhere(cells):
            place = (column - 0.46, row - 0.46)
            axes.add_patch(Rectangle(place, 0.92, 0.92, fill=False, ec=color, lw=max(width, 1.0)))


def _finish(axes: Axes, shape: tuple[int, ...], cell: float) -> None:
    rows, columns = shape
    axes.grid(False)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color="white", lw=min(2 * cell, 1.5))
    axes.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    for side in axes.spines.values():
        side.set_visible(False)


def _explained(grid_map: GridMap) -> str:
    """Return what frames, letters and gray cells mean."""
    letters, acting = grid_map.grid.letters, grid_map.grid.acting
    parts = ["orange frame: start"]
    parts += [f"{letter}: {name}" for letter, name in _NAMES.items() if (letters == letter).any()]
    if (~acting & (letters == " ")).any():
        parts.append("dark: nobody acts there")
    if (acting & np.isnan(grid_map.values)).any():
        parts.append("light grey: never visited")
    return "    ".join(parts)
