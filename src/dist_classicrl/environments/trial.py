"""What a compiled game gives is looked at: in the first thousands of steps each index of its own, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from dist_classicrl._jit import jit, jit_for
from dist_classicrl._random import GAMMA, below, mix, stream_key
from dist_classicrl._words import why_not_compiled
from dist_classicrl.environments.keyed import as_key, may_play, no_key
from dist_classicrl.environments.simulate import (
    CAME,
    CompiledSimulator,
    advance,
    begin,
    is_wrong,
    note,
    state_that_came,
    tell_wrong,
    with_checks,
)
from dist_classicrl.environments.state_keys import held
from dist_classicrl.errors import EnvError, ModelError, OutsideSpaceError, RewardError

TRIAL_STEPS = 4_096


@jit
def _play(
    simulation: Any,
    memory: np.ndarray,
    legal: np.ndarray,
    time_limit: int,
    key: np.uint64,
    steps: int,
    came: np.ndarray,
    reward_that_came: np.ndarray,
    fraction: np.ndarray,
) -> bool:
    """Play uniformly random legal actions; return whether something wrong came, which is then told.

    It ends, too, where a state is no whole number, which is then in `fraction`: as one it would be rounded.
    """
    n_states, n_actions = legal.shape
    counter = key
    state = np.int64(-1)
    elapsed = 0
    for _ in range(steps):
        counter += GAMMA
        count = 0
        if state >= 0:
            for action in range(n_actions):
                count += legal[state, action]
        if count == 0 or elapsed >= time_limit:
            note(simulation, came, -1, -1)
            first = begin(simulation, memory, mix(counter))
            state = np.int64(first)
            elapsed = 0
            if state != first:
                fraction[0] = first
                return False
            if is_wrong(simulation, state, 0.0, n_states):
                came[0], came[1], came[2] = -1, -1, state
                return True
            continue
        pick = below(mix(counter), count)
        chosen = -1
        while pick >= 0:
            chosen += 1
            pick -= legal[state, chosen]
        counter += GAMMA
        note(simulation, came, state, chosen)
        next_state, reward, terminated = advance(simulation, memory, state, chosen, mix(counter), n_actions)
        if np.int64(next_state) != next_state:
            fraction[0] = next_state
            return False
        if is_wrong(simulation, np.int64(next_state), reward, n_states):
            came[0], came[1], came[2] = state, chosen, np.int64(next_state)
            reward_that_came[0] = reward
            return True
        elapsed += 1
        state = np.int64(-1) if terminated else np.int64(next_state)
    return False


@jit
def _play_by_keys(
    simulation: Any,
    memory: np.ndarray,
    n_actions: int,
    time_limit: int,
    random: np.uint64,
    steps: int,
    came: np.ndarray,
    reward_that_came: np.ndarray,
) -> bool:
    """Do what `_play` does where states are keys, of which none is wrong."""
    counter = random
    key = no_key(simulation)
    elapsed = -1
    for _ in range(steps):
        counter += GAMMA
        count = 0
        if elapsed >= 0:
            for action in range(n_actions):
                count += may_play(simulation, key, action)
        if count == 0 or elapsed >= time_limit:
            note(simulation, came, -1, -1)
            key = held(begin(simulation, memory, mix(counter)))
            elapsed = 0
            continue
        pick = below(mix(counter), count)
        chosen = -1
        while pick >= 0:
            chosen += 1
            pick -= may_play(simulation, key, chosen)
        counter += GAMMA
        note(simulation, came, key, chosen)
        next_key, reward, terminated = advance(
            simulation, memory, as_key(simulation, key), chosen, mix(counter), n_actions
        )
        if not (abs(reward) < np.inf):
            tell_wrong(came, key, chosen, next_key)
            reward_that_came[0] = reward
            return True
        elapsed = -1 if terminated else elapsed + 1
        key = held(next_key)
    return False


def try_out(simulator: CompiledSimulator) -> None:
    """Play the first thousands of steps of a game of somebody else's with all of its indices checked.

    EnvError, or one of its kinds, if what it gives cannot be learned from.
    """
    tables = with_checks(simulator.tables)
    if tables is None or jit_for(_play, type(simulator.tables)) is _play:  # a model, or a game of our own
        return
    memory = np.zeros(simulator.memory_size, np.int64)
    limit = simulator.max_episode_steps or TRIAL_STEPS
    came, reward, fraction = np.full(CAME, -1), np.zeros(1), np.zeros(1)
    rest = limit, stream_key(0, "trial"), TRIAL_STEPS, came, reward
    if simulator.keys is not None:
        play = jit_for(_play_by_keys, type(tables))
        run_game(simulator, came, reward, play, tables, memory, simulator.n_actions, *rest)
        return
    legal = simulator.legal
    if legal is None:
        legal = np.broadcast_to(np.True_, (simulator.n_states, simulator.n_actions))
    play = jit_for(_play, type(tables))
    with compiling(simulator):
        run_game(simulator, came, reward, play, tables, memory, legal, *rest, fraction)
    if fraction[0] != 0.0:
        raise OutsideSpaceError(
            f"{simulator.name}: {_asked(simulator, came)} gave the state {fraction[0]}. States are whole "
            "numbers: correct the game's functions, for instance by np.int64(...)."
        )


@contextmanager
def compiling(simulator: CompiledSimulator) -> Iterator[None]:
    """Say of which game the functions cannot be compiled, if they cannot."""
    try:
        yield
    except (NumbaError, NotImplementedError) as error:  # the latter of types that it has no code for
        raise ModelError(
            f"{simulator.name}: its functions cannot be compiled. reset(data, memory, random) returns a "
            "state; step(data, memory, state, action, random) returns next state, reward and whether the "
            "episode is over, which are a whole number, a number and a flag; data has arrays, numbers and "
            f"flags. {why_not_compiled(error)}"
        ) from error


def run_game(
    simulator: CompiledSimulator, came: np.ndarray, reward: np.ndarray, kernel: Any, *arguments: Any
) -> None:
    """Call a kernel that plays a game, and returns whether something came from it that must not.

    Then `came` tells it, see `dist_classicrl.environments.simulate.note`, and the first of `reward` is the
    reward that came. EnvError, or one of its kinds, is raised of that.
    """
    try:
        if kernel(*arguments):
            raise _wrong_step(simulator, came, float(reward[0]))
    except IndexError as error:  # where indices are checked
        raise OutsideSpaceError(
            f"{simulator.name}: {_asked(simulator, came)} read or wrote an array at an index that it does "
            f"not have. It must work for each of {_states(simulator)} and {simulator.n_actions} actions that "
            f"are legal there, and in a memory of {simulator.memory_size} numbers: correct the game's "
            "functions, its data, n_actions or memory_size."
        ) from error


def _wrong_step(simulator: CompiledSimulator, came: np.ndarray, reward: float) -> EnvError:
    asked, state = _asked(simulator, came), int(came[2])
    if simulator.keys is not None or 0 <= state < simulator.n_states:
        return RewardError(
            f"{simulator.name}: {asked} gave the reward {reward}. Rewards must be finite numbers: correct "
            "the game's step function."
        )
    function = "reset" if came[1] < 0 else "step"
    return OutsideSpaceError(
        f"{simulator.name}: {asked} gave the state {state}. States go from 0 to {simulator.n_states - 1}, as "
        f"n_states={simulator.n_states} says: correct the game's {function} function, or n_states."
    )


def _asked(simulator: CompiledSimulator, came: np.ndarray) -> str:
    if came[1] < 0:
        return "reset"
    return f"step in state {state_that_came(came, simulator.keys)} with action {came[1]}"


def _states(simulator: CompiledSimulator) -> str:
    return "its states" if simulator.keys is not None else f"the {simulator.n_states} states"
