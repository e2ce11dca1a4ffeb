"""The import path that existing scripts use for `DistAsyncQLearning`."""

from dist_classicrl.agent.agent import DistAsyncQLearning

__all__ = ["DistAsyncQLearning"]
