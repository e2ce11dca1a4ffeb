"""Steps of games that a core plays, and a card cannot, and one that it can.

They are not in a module of tests, whose assertions pytest writes anew.
"""

from typing import NamedTuple

import numba
import numpy as np


class Data(NamedTuple):
    rewards: np.ndarray


class Named(NamedTuple):
    rewards: np.ndarray
    name: str


@numba.njit
def counted(number):
    if number > 2:
        raise RuntimeError("a number above 2")
    return number


@numba.njit
def raising_rarely(data, memory, state, action, random):
    if (random >> np.uint64(44)) == np.uint64(0):
        raise ValueError("once in 1,048,576 steps")
    return state + 1, 1.0, state == 2


@numba.njit
def asserting(data, memory, state, action, random):
    assert data.rewards[state] > 0.0
    return state + 1, 1.0, state == 2


@numba.njit
def asserting_with_number(data, memory, state, action, random):
    assert data.rewards[state] > 0.0, state
    return state + 1, 1.0, state == 2


@numba.njit
def calling(data, memory, state, action, random):
    return counted(state) + 1, 1.0, state == 2


@numba.njit
def raising_with_numbers(data, memory, state, action, random):
    if state > 2:
        raise ValueError(state)
    return state + 1, 1.0, state == 2


@numba.njit
def catching(data, memory, state, action, random):
    reward = 1.0
    try:
        reward = data.rewards[state]
    except Exception:
        reward = 0.0
    return state + 1, reward, state == 2


@numba.njit
def drawing(data, memory, state, action, random):
    return state + 1, np.random.random(), state == 2  # noqa: NPY002


@numba.njit
def never_raising(data, memory, state, action, random):
    """Nobody comes to what it raises; and what numba would raise itself is looked at nowhere."""
    number = 3
    if number > 4:
        raise ValueError("never")
    assert action * action >= 0 or number > 4
    total = 0.0
    for _, each in enumerate((1.0, 2.0)):
        total += each
    return state + 1, total + np.argmax(data.rewards) + (1.0, 2.0)[action], state == 2
