"""Which environments are grids, what lies in their cells, and where their actions lead if that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.errors import PlotError
from dist_classicrl.model.policy import plain_value
from dist_classicrl.plotting import canvas

if TYPE_CHECKING:
    from dist_classicrl.environments.finite_model import ArrayModel
    from dist_classicrl.environments.resolve import Source
    from dist_classicrl.environments.stepped.base import SteppedEnv
    from dist_classicrl.environments.stepped.spaces import SpaceIndex

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
    #: length 1; 0 if nowhere. None: nothing is known but that observations have two numbers.
    directions: np.ndarray | None
    legal: np.ndarray  # bool, shape (rows, columns, actions)
    sides: tuple[Side, Side] | None = None  # what rows and columns are; None: just cells
    is_masked: bool = False  # which actions are legal is known while it goes on alone
    actions: tuple[str, ...] = ()  # what they are called, where it has `sides`


@dataclass(frozen=True)
class Side:
    """One of the two numbers of an observation."""

    name: str
    first: int  # its least value


@dataclass(frozen=True)
class GridMap:
    """What is drawn.

    Attributes
    ----------
    grid : Grid
        The cells, their letters, and where the actions lead.
    values : ndarray(float64), shape (rows, columns)
        The greatest value of a legal action; NaN where no policy acts, or nothing was ever learned.
    greedy : ndarray(bool), shape (rows, columns, actions)
        The actions that have that value: several where they are equally good.
    """

    grid: Grid
    values: np.ndarray
    greedy: np.ndarray

    @property
    def drawn(self) -> np.ndarray:
        """The values, as large as colors can be of."""
        return canvas.drawable(self.values)


def grid_of(env: Any) -> Grid:
    """Return the grid that an environment, which is anything that `resolve` takes, is.

    A `PlotError` is raised if it is none, and an `EnvError` if it cannot be resolved.
    """
    from dist_classicrl.environments.resolve import resolve

    source = resolve(env, n_envs=1, use_action_mask=None)
    try:
        return _grid_of(env, source)
    finally:
        source.close()


def _grid_of(env: Any, source: Source) -> Grid:
    from dist_classicrl.environments.labels import labels_of
    from dist_classicrl.environments.model import TabularMDP

    model = None if source.simulator is None else source.simulator.model
    labels = labels_of(env)
    letters = labels.letters
    stepped = None if source.is_keyed else source.stepped
    if stepped is not None and letters is None and len(stepped.observations.sizes) == 2:
        if source.make_another is not None:  # not the caller's own
            stepped.reset()  # so it says whether it has masks
        return _plane(source.name, stepped, labels.actions or _action_names(stepped.actions))
    if not isinstance(model, TabularMDP) or letters is None:
        raise PlotError(
            f"{source.name} is no grid that is known, so it has no map. Those that have one are Gymnasium's "
            "FrozenLake with any map, CliffWalking, models with a grid_shape, and environments whose "
            "observations have two numbers, as MultiDiscrete([30, 30]) and a Tuple of two Discrete have. "
            "Draw --kind curves or --kind timeline instead."
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


def _action_names(actions: SpaceIndex) -> tuple[str, ...]:
    """Return the value that `predict` gives for each action, as text."""
    every = actions.decode_each(np.arange(actions.n, dtype=np.int64))
    return tuple(repr(plain_value(value)) for value in every)


def _plane(name: str, env: SteppedEnv, actions: tuple[str, ...]) -> Grid:
    """Return the grid of all observations of two numbers, of which nothing else is known."""
    shape, first = tuple(env.observations.sizes), env.observations.first_values
    rows, columns = (Side(name, least) for name, least in zip(env.observations.names, first, strict=True))
    return Grid(
        name=name,
        letters=np.full(shape, " "),
        starts=np.zeros(shape, bool),
        acting=np.ones(shape, bool),
        directions=None,
        legal=np.ones((*shape, env.n_actions), bool),
        sides=(rows, columns),
        is_masked=env.masks is not None,
        actions=actions,
    )


def _directions(model: ArrayModel, shape: tuple[int, ...], acting: np.ndarray) -> np.ndarray:
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
