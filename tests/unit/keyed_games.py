"""Games whose states are keys, as a user writes them, and the same ones with numbers as states."""

from functools import cache
from typing import NamedTuple

import gymnasium
import numba
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl._random import below
from dist_classicrl.environments.simulate import CompiledSimulator, advance, begin, compile_model

ODD = 0x9E3779B97F4A7C15
INVERSE = pow(ODD, -1, 1 << 64)
"""A number times one is the key of a state, and times the other the state."""


def keys_of(states, dtype=np.uint64):
    return (np.asarray(states, np.uint64) * np.uint64(ODD)).view(dtype)


def states_of(keys):
    return (np.asarray(keys).view(np.uint64) * np.uint64(INVERSE)).view(np.int64)


class Signed(NamedTuple):
    tables: NamedTuple
    n_actions: int


class Unsigned(NamedTuple):
    tables: NamedTuple
    n_actions: int
    legal: np.ndarray


@numba.njit
def reset(data, memory, random):
    return np.int64(np.uint64(begin(data.tables, memory, random)) * np.uint64(ODD))


@numba.njit
def step(data, memory, key, action, random):
    state = np.int64(np.uint64(key) * np.uint64(INVERSE))
    after, reward, terminated = advance(data.tables, memory, state, action, random, data.n_actions)
    return np.int64(np.uint64(after) * np.uint64(ODD)), reward, terminated


@numba.njit
def reset_unsigned(data, memory, random):
    return np.uint64(begin(data.tables, memory, random)) * np.uint64(ODD)


@numba.njit
def step_unsigned(data, memory, key, action, random):
    state = np.int64(key * np.uint64(INVERSE))
    after, reward, terminated = advance(data.tables, memory, state, action, random, data.n_actions)
    return np.uint64(after) * np.uint64(ODD), reward, terminated


@numba.njit
def legal_unsigned(data, key, action):
    return data.legal[np.int64(key * np.uint64(INVERSE)), action]


def scrambled(model, check=False):
    """Return a model as a game whose keys tell nothing of the states' numbers."""
    tables = compile_model(model)
    if model.action_mask is None:
        data, functions = Signed(tables, model.n_actions), (reset, step)
    else:
        data = Unsigned(tables, model.n_actions, np.ascontiguousarray(model.action_mask))
        functions = (reset_unsigned, step_unsigned, legal_unsigned)
    return _of_model("scrambled", model, data, functions, check)


def _of_model(word, model, data, functions, check=False):
    shape = {"max_episode_steps": model.max_episode_steps, "check": check, "keyed": True}
    return CompiledSimulator.game(f"{word} {model.name}", None, model.n_actions, data, *functions, **shape)


@cache
def taxi():
    return TabularMDP.from_gymnasium(gymnasium.make("Taxi-v4"))


class Corridor(NamedTuple):
    """A walk along the whole numbers: each step goes one to the left, or some to the right."""

    length: int
    stride: int


@numba.njit
def reset_corridor(data, memory, random):
    memory[0] = 0
    return np.int64(below(random, 3))


@numba.njit
def step_corridor(data, memory, key, action, random):
    memory[0] += 1
    further = key + (data.stride if action == 1 else -1)
    return further, 1.0 if memory[0] % 2 else 0.0, further == data.length


def corridor(length=1 << 40, limit=100, stride=1):
    """Return the walk, which ends at `length`: by default nobody comes there."""
    return _walk("corridor", Corridor(length, stride), reset_corridor, step_corridor, limit)


def _walk(name, data, reset, step, limit):
    shape = {"n_actions": 2, "memory_size": 1, "max_episode_steps": limit, "keyed": True}
    return CompiledSimulator.game(name, data=data, reset=reset, step=step, **shape)


# Keys of 128 bits: neither half of a key tells the state.

FEW = np.uint64(8)


class WideSigned(NamedTuple):
    tables: NamedTuple
    n_actions: int
    high: np.uint64


class Wide(NamedTuple):
    tables: NamedTuple
    n_actions: int
    legal: np.ndarray


def wide_keys_of(states):
    """Return whole numbers, as a user gives them."""
    high, low = np.divmod(np.asarray(states, np.uint64), FEW)
    return [a << 64 | b for a, b in zip(keys_of(high).tolist(), keys_of(low).tolist(), strict=True)]


def wide_states_of(halves):
    """Return the states of keys, uint64 of shape (n, 2)."""
    return states_of(halves[:, 0]) * int(FEW) + states_of(halves[:, 1])


@numba.njit
def pair_of(state):
    state = np.uint64(state)
    return state // FEW * np.uint64(ODD), state % FEW * np.uint64(ODD)


@numba.njit
def state_of_pair(key):
    return np.int64(key[0] * np.uint64(INVERSE) * FEW + key[1] * np.uint64(INVERSE))


@numba.njit
def reset_wide(data, memory, random):
    return pair_of(begin(data.tables, memory, random))


@numba.njit
def step_wide(data, memory, key, action, random):
    state = state_of_pair(key)
    after, reward, terminated = advance(data.tables, memory, state, action, random, data.n_actions)
    return pair_of(after), reward, terminated


@numba.njit
def legal_wide(data, key, action):
    return data.legal[state_of_pair(key), action]


@numba.njit
def reset_behind(data, memory, random):
    return data.high, np.uint64(reset(data, memory, random))


@numba.njit
def step_behind(data, memory, key, action, random):
    after, reward, terminated = step(data, memory, key[1], action, random)
    return (key[0], np.uint64(after)), reward, terminated


def scrambled_wide(model, check=False):
    """Return a model as a game whose keys have 128 bits, by `wide_keys_of`."""
    mask = (
        np.ones((model.n_states, model.n_actions), bool) if model.action_mask is None else model.action_mask
    )
    functions = reset_wide, step_wide, *(() if model.action_mask is None else (legal_wide,))
    data = Wide(compile_model(model), model.n_actions, np.ascontiguousarray(mask))
    return _of_model("wide", model, data, functions, check)


def behind(model, high=0):
    """Return a model without masks as a game whose keys are those of `scrambled`, behind one high half."""
    data = WideSigned(compile_model(model), model.n_actions, np.uint64(high))
    return _of_model("behind", model, data, (reset_behind, step_behind))


@numba.njit
def reset_wide_corridor(data, memory, random):
    return np.uint64(7), np.uint64(reset_corridor(data, memory, random))


@numba.njit
def step_wide_corridor(data, memory, key, action, random):
    memory[0] += 1
    further = key[1] + (np.uint64(data.stride) if action == 1 else np.uint64(0) - np.uint64(1))
    return (key[0], further), 1.0 if memory[0] % 2 else 0.0, further == np.uint64(data.length)


def wide_corridor(length=1 << 40, limit=100, stride=1):
    """Return the walk of `corridor` along the low halves of keys."""
    return _walk("wide corridor", Corridor(length, stride), reset_wide_corridor, step_wide_corridor, limit)
