"""Environments for tests of several ranks: stepped through Gymnasium, slow, or broken on purpose."""

from __future__ import annotations

import math
import random
import time
from typing import NamedTuple

import gymnasium
import numba
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv


class SteppedLake(FrozenLakeEnv):
    """FrozenLake 4x4 under another class, which nothing is known of, so that it is stepped."""


class UnevenLake(SteppedLake):
    """The same, but now and then a step takes a few milliseconds, another one on every rank."""

    def __init__(self, pace):
        super().__init__()
        self._pace = random.Random(pace)

    def step(self, action):
        if self._pace.random() < 0.02:
            time.sleep(0.004 * self._pace.random())
        return super().step(action)


class Spread:
    """What shows each state by its method `seen`, before the environment in a class's bases."""

    def reset(self, **options):
        state, info = super().reset(**options)
        return self.seen(state), info

    def step(self, action):
        state, *rest = super().step(action)
        return self.seen(state), *rest


class BrokenLake(SteppedLake):
    """The same, but step number `breaks_at` raises `error`, or yields the reward `reward`.

    A step takes so many `seconds`.
    """

    def __init__(self, breaks_at, error=None, reward=None, seconds=0.0):
        super().__init__()
        self._seconds = seconds
        self._left = breaks_at
        self._error = error
        self._reward = reward

    def step(self, action):
        self._left -= 1
        if self._seconds:
            time.sleep(self._seconds)
        observation, reward, terminated, truncated, info = super().step(action)
        if self._left == 0:
            if self._error is not None:
                raise self._error
            reward = self._reward
        return observation, reward, terminated, truncated, info


class Corridor(gymnasium.Env):
    """Some cells in a row, left and right, the end pays 1; `mask` is what it says is legal.

    Parameters
    ----------
    cells : int
    mask : array_like of two bool
    seconds : float
        What a step takes.
    hangs_until : pathlib.Path, optional
        The tenth step ends when there is this file, or after two minutes.
    """

    def __init__(self, cells=5, mask=(True, True), seconds=0.0, hangs_until=None):
        self.observation_space = gymnasium.spaces.Discrete(cells)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._cells = cells
        self._mask = np.array(mask, np.int8)
        self._seconds = seconds
        self._hangs_until = hangs_until
        self._steps = 0
        self._cell = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._cell = 0
        return 0, {"action_mask": self._mask}

    def step(self, action):
        self._steps += 1
        if self._steps == 10 and self._hangs_until is not None:
            deadline = time.monotonic() + 120.0
            while not self._hangs_until.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(self._seconds)
        self._cell = max(self._cell + (1 if action else -1), 0)
        end = self._cell == self._cells - 1
        return self._cell, float(end), end, False, {"action_mask": self._mask}


class CorridorData(NamedTuple):
    """The rewards of a compiled corridor of 5 cells: at its end, and of every other step."""

    end: float
    way: float


@numba.njit
def corridor_reset(data, memory, random):
    return 0


@numba.njit
def corridor_step(data, memory, state, action, random):
    following = state + 1 if action == 1 else max(state - 1, 0)
    end = following == 4
    return following, data.end if end else data.way, end


class Unbounded(gymnasium.Env):
    """An environment whose observations are not finitely many."""

    observation_space = gymnasium.spaces.Box(-math.inf, math.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)
