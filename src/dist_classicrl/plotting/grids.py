"""Which environments are grids, what lies in their cells, and where their actions lead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.errors import PlotError

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

_NEIGHBORS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # rows, columns
_NO_DIRECTION = 0.05


@dataclass(frozen=True)
class Grid:
    """A grid problem; its state is ``row * columns + column``. Arrays have the shape (rows, columns, ...)."""

    name: str
    letters: np.ndarray  # str, as in `Labels.letters`: what lies where nobody acts; blank if there is nothing
    starts: np.ndarray  # bool: episodes can begin here
    acting: np.ndarray  # bool: some policy may have to act here
    #: float64, shape (actions, 2): where each action leads on average, rows down and columns to the right, of
    #: length 1; 0 if nowhere.
    directions: np.ndarray
    legal: np.ndarray  # bool, shape (rows, columns, actions)


def grid_of(env: Any) -> Grid:
    """Return the grid that an environment, which is anything that `resolve` takes, is.

    A `PlotError` is raised if it is none, and an `EnvError` if it cannot be resolved.
    """
    from dist_classicrl.environments.labels import labels_of
    from dist_classicrl.environments.resolve import resolve

    source = resolve(env, n_envs=1, use_action_mask=None)
    source.close()
    model = None if source.simulator is None else source.simulator.model
    letters = labels_of(env).letters
    if model is None or letters is None:
        raise PlotError(
            f"{source.name} is no grid that is known, so it has no map. Those that have one are Gymnasium's "
            "FrozenLake with any map, CliffWalking, and models with a grid_shape. Draw --kind curves or "
            "--kind timeline instead."
        )
    acting = np.asarray(model.reachable_pairs().any(axis=1))
    return Grid(
        name=model.name,
        letters=letters,
        starts=(model.start_prob > 0).reshape(letters.shape),
        acting=acting.reshape(letters.shape),
        directions=_directions(model, letters.shape, acting),
        legal=model.legal_pairs().reshape(*letters.shape, model.n_actions),
    )


def _directions(model: TabularMDP, shape: tuple[int, ...], acting: np.ndarray) -> np.ndarray:
    """Return where each action leads on average.

    For each of the four neighbors: how probable it is, over the cells that have such a neighbor. So walls
    around the grid, and what throws a walker far away, make no difference.
    """
    rows, columns = shape
    pair = np.repeat(np.arange(model.outcome_ptr.size - 1), np.diff(model.outcome_ptr))
    state, action = np.divmod(pair, model.n_actions)
    row, column = np.divmod(np.arange(model.n_states), columns)
    directions = np.zeros((model.n_actions, 2))
    for down, right in _NEIGHBORS:
        there = (row + down >= 0) & (row + down < rows) & (column + right >= 0) & (column + right < columns)
        counted = acting & there
        if counted.any():
            moves = counted[state] & (model.outcome_next == state + down * columns + right)
            chance = np.bincount(action[moves], model.outcome_prob[moves], model.n_actions) / counted.sum()
            directions += np.outer(chance, (down, right))
    length = np.hypot(*directions.T)[:, None]
    return np.where(length > _NO_DIRECTION, directions / np.maximum(length, _NO_DIRECTION), 0.0)
