"""TicTacToe against a random machine player, compiled: `reset` and `step` for jitted training loops.

Only the state is kept, never the board that a player would see. It is the same process: the machine picks
each empty square with the same probability, a symmetry maps empty squares one to one onto empty squares,
and it keeps lines lines. So the next state's distribution depends on the present state alone, and the game
needs no memory besides it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dist_classicrl._jit import jit
from dist_classicrl._random import below
from dist_classicrl.environments.tictactoe.rules import SLOT_TO_REWARD, AgentPlays, rules

MEMORY_SIZE = 0
"""Length of the `memory` array that `reset` and `step` need."""


class GameData(NamedTuple):
    """Read-only tables of the compiled game, as described in `rules.Rules`.

    Attributes
    ----------
    slot_ptr : ndarray(int32), shape (n_states * 9 + 1,)
    slots : ndarray(int16), shape (n_slots,)
    starts : ndarray(int16), shape (n_starts,)
    """

    slot_ptr: NDArray[np.int32]
    slots: NDArray[np.int16]
    starts: NDArray[np.int16]


def game_data(agent_plays: AgentPlays = "first") -> GameData:
    """Return the tables that `reset` and `step` take as `data`.

    Raises
    ------
    SettingsError
        If `agent_plays` is not "first", "second" or "both".
    """
    tables = rules(agent_plays)
    return GameData(tables.slot_ptr, tables.slots, tables.starts)


def legal_actions(agent_plays: AgentPlays = "first") -> NDArray[np.bool_]:
    """Return the read-only mask of legal actions, bool of shape (n_states, 9).

    Raises
    ------
    SettingsError
        If `agent_plays` is not "first", "second" or "both".
    """
    return rules(agent_plays).legal


@jit
def reset(data: GameData, memory: NDArray[np.int64], random: np.uint64) -> np.int64:
    """Begin a game.

    Parameters
    ----------
    data : GameData
    memory : ndarray(int64), shape (MEMORY_SIZE,)
        Not used.
    random : uint64
        Fresh uniform bits.

    Returns
    -------
    int64
        The first state with the agent to move.
    """
    return np.int64(data.starts[below(random, data.starts.size)])


@jit
def step(
    data: GameData, memory: NDArray[np.int64], state: np.int64, action: np.int64, random: np.uint64
) -> tuple[np.int64, float, bool]:
    """Play one turn: the agent's move and, unless it ends the game, the machine's reply.

    Parameters
    ----------
    data : GameData
    memory : ndarray(int64), shape (MEMORY_SIZE,)
        Not used.
    state : int64
        A state from 0 to n_states - 1. Not checked.
    action : int64
        A square of the state's canonical board, 0 to 8. Not checked; a square that is taken loses the game.
    random : uint64
        Fresh uniform bits.

    Returns
    -------
    next_state : int64
        The next state, or `state` itself where the game is over.
    reward : float64
        1 for a win, -1 for a loss, 0 for a draw and while the game goes on.
    terminated : bool
        True where the game is over.
    """
    pair = state * 9 + action
    first = np.int64(data.slot_ptr[pair])
    slot = np.int64(data.slots[first + below(random, data.slot_ptr[pair + 1] - first)])
    if slot < 0:
        return np.int64(state), np.float64(slot + SLOT_TO_REWARD), True
    return slot, 0.0, False
