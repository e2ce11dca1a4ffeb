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


class GameData(NamedTuple):
    """Read-only tables of the compiled game, as described in `rules.Rules`."""

    slot_ptr: NDArray[np.int32]
    slots: NDArray[np.int16]
    starts: NDArray[np.int16]


def game_data(agent_plays: AgentPlays = "first") -> GameData:
    """Return the tables that `reset` and `step` take as `data`."""
    tables = rules(agent_plays)
    return GameData(tables.slot_ptr, tables.slots, tables.starts)


@jit
def reset(data: GameData, memory: NDArray[np.int64], random: np.uint64) -> np.int64:
    """Begin a game: return the first state with the agent to move; see `CompiledSimulator`."""
    return np.int64(data.starts[below(random, data.starts.size)])


@jit
def step(
    data: GameData, memory: NDArray[np.int64], state: np.int64, action: np.int64, random: np.uint64
) -> tuple[np.int64, float, bool]:
    """Play one turn: the agent's move and, unless it ends the game, the machine's reply.

    `action` is a square of the canonical board of `state`; one that is taken loses the game. The next state
    is `state` itself where the game is over.
    """
    pair = state * 9 + action
    first = np.int64(data.slot_ptr[pair])
    slot = np.int64(data.slots[first + below(random, data.slot_ptr[pair + 1] - first)])
    if slot < 0:
        return np.int64(state), np.float64(slot + SLOT_TO_REWARD), True
    return slot, 0.0, False
