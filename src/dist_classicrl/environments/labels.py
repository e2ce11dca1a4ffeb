"""What the states and actions of known environments are called, and where their states lie on a map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.environments.making.toy_text import unwrap_unchanged
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.resolve import factory_of
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import EnvError

_TAXI_PASSENGER = ("red", "green", "yellow", "blue", "aboard,")
_MARKS = ".XO"


@dataclass(frozen=True)
class Labels:
    """What is known of an environment besides its numbers; None where it is not known.

    `letters` is a map, (rows, columns), whose state is ``row * columns + column``: what is printed where
    nobody acts, such as "H" for a hole; blank where there is nothing to say.
    """

    actions: tuple[str, ...] | None = None  # a name each; on a map "left", "down", "right" and "up" are moves
    letters: np.ndarray | None = None
    boards: np.ndarray | None = None  # int8 (states, 9), TicTacToe's: 0 empty, 1 an X, 2 an O
    state: Callable[[int], str] | None = None  # gives the text of a state


def labels_of(env: Any) -> Labels:
    """Return the names in `env`, which is what `resolve` takes; an environment is only read, never stepped.

    Those of Gymnasium's toy-text environments, of the registry's problems and of TicTacToe are known, with
    any map, and the map of a `TabularMDP` that has a `grid_shape`. Wrappers must be of kinds that change
    nothing.
    """
    if isinstance(env, CompiledSimulator):
        env = env.model
    if isinstance(env, TabularMDP):
        return Labels(letters=None if env.grid_shape is None else np.full(env.grid_shape, " "))
    import gymnasium

    factory = None if env is None else factory_of(env)
    one = env if factory is None else factory()
    try:
        if not isinstance(one, gymnasium.Env):
            return Labels()
        base, _ = unwrap_unchanged(one)
    except EnvError:
        return Labels()
    finally:
        if factory is not None:
            one.close()
    return _of_known(base)


def _of_known(base: Any) -> Labels:
    from gymnasium.envs.toy_text.blackjack import BlackjackEnv
    from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
    from gymnasium.envs.toy_text.taxi import TaxiEnv

    from dist_classicrl.environments.problems.env import ProblemEnv
    from dist_classicrl.environments.tictactoe.env import TicTacToeEnv
    from dist_classicrl.environments.tictactoe.rules import rules

    kind = type(base)
    if kind is FrozenLakeEnv:
        letters = np.asarray(base.desc).astype("U1")
        return Labels(("left", "down", "right", "up"), np.where(np.isin(letters, ("H", "G")), letters, " "))
    if kind is CliffWalkingEnv:
        letters = np.where(base._cliff, "C", " ")
        letters[-1, -1] = "G"
        return Labels(("up", "right", "down", "left"), letters)
    if kind is TaxiEnv:
        return Labels(
            ("south", "north", "east", "west", "pick up", "drop off"),
            state=lambda state: _taxi_text(*base.decode(state)),
        )
    if kind is BlackjackEnv:
        return Labels(("stick", "hit"))
    if kind is ProblemEnv:
        names = base.problem.actions[: base.model.n_actions]
        shape = getattr(base.model, "grid_shape", None)
        return Labels(names or None, None if shape is None else np.full(shape, " "))
    if kind is TicTacToeEnv:
        boards = rules(base.agent_plays).boards
        return Labels(boards=boards, state=lambda state: board_text(boards[state]))
    return Labels()


def _taxi_text(row: int, column: int, passenger: int, destination: int) -> str:
    return f"at {row},{column}; {_TAXI_PASSENGER[passenger]} to {_TAXI_PASSENGER[destination]}"


def board_text(board: np.ndarray) -> str:
    """Return a board of TicTacToe, int8 of shape (9,), in one line."""
    marks = "".join(_MARKS[mark] for mark in board)
    return f"{marks[:3]} {marks[3:6]} {marks[6:]}"
