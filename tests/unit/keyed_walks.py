"""A walk whose states are keys, of 64 bits or of 128, and what tests of several ranks ask of its table."""

import hashlib
from typing import NamedTuple

import numba
import numpy as np

from dist_classicrl import CompiledSimulator

PLACED = {"placement": "sharded", "walkers": 512}


class Data(NamedTuple):
    most: int


@numba.njit
def reset(data, memory, random):
    memory[0] += 1
    return np.int64(random % np.uint64(100)) - 50


@numba.njit
def step(data, memory, key, action, random):
    further = key + (2 if action else -1) + np.int64(random % np.uint64(2))
    return further, 1.0 + 1e-3 * (memory[0] % 7), further > data.most


@numba.njit
def legal(data, key, action):
    return action != 2 or key % 5 == 0


@numba.njit
def by_tens(key):
    return key // 10 % 2


@numba.njit
def pair_of(place):
    """Return what a place is called: many share the high half, and as many the low one."""
    return np.uint64(place // 10) << np.uint64(60), np.uint64(place % 10)


@numba.njit
def place_of(key):
    return np.int64(key[0] >> np.uint64(60)) * 10 + np.int64(key[1])


@numba.njit
def reset_wide(data, memory, random):
    memory[0] += 1
    return pair_of(random % np.uint64(100))


@numba.njit
def step_wide(data, memory, key, action, random):
    further = place_of(key) + (2 if action else -1) + np.int64(random % np.uint64(2))
    return pair_of(max(further, 0)), 1.0 + 1e-3 * (memory[0] % 7), further > data.most


@numba.njit
def legal_wide(data, key, action):
    return action != 2 or key[1] % np.uint64(5) == 0


@numba.njit
def wide_by_tens(key):
    return np.int64(key[0] >> np.uint64(60) & np.uint64(1))


class Walk(NamedTuple):
    """A game, a function that divides its keys between two ranks, and how many words a key is."""

    functions: tuple
    most: int
    by_tens: object
    words: int

    def game(self):
        reset, step, legal = self.functions
        shape = {"n_actions": 3, "keyed": True, "memory_size": 1, "max_episode_steps": 30}
        return CompiledSimulator.game(
            "walk", data=Data(self.most), reset=reset, step=step, legal=legal, **shape
        )


NARROW = Walk((reset, step, legal), 60, by_tens, 1)
WIDE = Walk((reset_wide, step_wide, legal_wide), 140, wide_by_tens, 2)


def digest(agent):
    """Return that of a table, whose keys ascend."""
    table = agent.q_table
    assert list(table) == sorted(table)
    arrays = table.states, table.array, agent.visits.array
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
