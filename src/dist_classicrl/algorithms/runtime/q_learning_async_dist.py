"""The import path that existing scripts use for `DistAsyncQLearning`."""

from dist_classicrl.runtime.agent import DistAsyncQLearning

__all__ = ["DistAsyncQLearning"]
