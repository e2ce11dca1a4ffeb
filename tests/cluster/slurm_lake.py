"""A lake on which every step takes a while, so that a training takes its time on any machine."""

from __future__ import annotations

import time

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

PAUSE = 2e-3


class SlowLake(FrozenLakeEnv):
    """FrozenLake 4x4 without slipping, in which a rank makes at most 500 steps in a second."""

    def __init__(self):
        super().__init__(is_slippery=False)

    def step(self, action):
        time.sleep(PAUSE)
        return super().step(action)
