"""A lake on which every step takes a while, so that a training takes its time on any machine.

It makes haste as soon as there is a file `hurry` in the job's folder: what was to happen to it has happened.
"""

from __future__ import annotations

import os
import time

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

PAUSE = 2e-3


class SlowLake(FrozenLakeEnv):
    """FrozenLake 4x4 without slipping, in which a rank makes at most 500 steps in a second at first."""

    def __init__(self):
        super().__init__(is_slippery=False)
        self._pause = PAUSE

    def step(self, action):
        if self._pause:
            time.sleep(self._pause)
            self._pause *= not os.path.exists("hurry")
        return super().step(action)
