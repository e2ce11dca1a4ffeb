"""Gymnasium's Blackjack as the player sees it, compiled: whether 21 came with two cards stays hidden.

With `natural` or `sab` it matters, and the observation does not tell it: what is played is the model whose
states do, and what is learned of is the sum, the dealer's card and the usable ace.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dist_classicrl._jit import jit
from dist_classicrl.environments.blackjack.rules import N_SEEN, fields_of, seen_of
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.sampling.alias import ModelTables
from dist_classicrl.environments.sampling.packing import compile_model
from dist_classicrl.environments.simulate import CompiledSimulator, advance, begin


class HiddenHand(NamedTuple):
    """The model that is played, and the observation in each of its states."""

    tables: ModelTables
    seen: NDArray[np.int64]


@jit
def reset(data: HiddenHand, memory: NDArray[np.int64], random: np.uint64) -> np.int64:
    """Deal: return the first observation; see `CompiledSimulator`."""
    memory[0] = begin(data.tables, memory, random)
    return data.seen[memory[0]]


@jit
def step(
    data: HiddenHand, memory: NDArray[np.int64], state: np.int64, action: np.int64, random: np.uint64
) -> tuple[np.int64, float, bool]:
    """Stick or hit: return the next observation, the reward and whether the game is over."""
    after, reward, terminated = advance(data.tables, memory, memory[0], action, random, 2)
    memory[0] = after
    return data.seen[after], reward, terminated


@lru_cache(8)  # to pack the tables takes a tenth of a second
def simulator_of(name: str, natural: bool, sab: bool, max_episode_steps: int | None) -> CompiledSimulator:
    """Return the game by what the player sees: the model of it, where nothing that matters is hidden."""
    model = TabularMDP(**fields_of(natural, sab), name=name, max_episode_steps=max_episode_steps)
    if model.n_states == N_SEEN:
        return CompiledSimulator.from_model(model)
    data: Any = HiddenHand(compile_model(model), seen_of(model.n_states))
    return CompiledSimulator.game(
        name,
        n_states=N_SEEN,
        n_actions=model.n_actions,
        data=data,
        reset=reset,
        step=step,
        memory_size=1,
        max_episode_steps=max_episode_steps,
    )
