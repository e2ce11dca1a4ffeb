"""A lake on which every step takes a while, so that a training takes its time on any machine.

A job that was queued again makes haste: nobody waits for anything to happen to it.
"""

from __future__ import annotations

import os
import time

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

PAUSE = 0.0 if "SLURM_RESTART_COUNT" in os.environ else 2e-3


class SlowLake(FrozenLakeEnv):
    """FrozenLake 4x4 without slipping, in which a rank makes at most 500 steps in a second at first."""

    def __init__(self):
        super().__init__(is_slippery=False)

    def step(self, action):
        if PAUSE:
            time.sleep(PAUSE)
        return super().step(action)
