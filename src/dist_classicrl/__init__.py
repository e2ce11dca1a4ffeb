"""Tabular reinforcement learning on a cluster, from one import.

Q-learning under an MPI parameter server, fast and right.

>>> from dist_classicrl import DistAsyncQLearning
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl._lazy import lazy_names

if TYPE_CHECKING:
    from dist_classicrl.distributed.debugger import DistributedDebugger
    from dist_classicrl.distributed.detector import FailureDetector
    from dist_classicrl.distributed.monitor import DistributedMonitor
    from dist_classicrl.distributed.progress import Progress
    from dist_classicrl.distributed.report import TrainingResult
    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.simulate import CompiledSimulator
    from dist_classicrl.runtime.agent import DistAsyncQLearning

__version__ = "0.1.0"

_HOMES = {
    "CompiledSimulator": "dist_classicrl.environments.simulate",
    "DistAsyncQLearning": "dist_classicrl.runtime.agent",
    "DistributedDebugger": "dist_classicrl.distributed.debugger",
    "DistributedMonitor": "dist_classicrl.distributed.monitor",
    "FailureDetector": "dist_classicrl.distributed.detector",
    "Progress": "dist_classicrl.distributed.progress",
    "TabularMDP": "dist_classicrl.environments.model",
    "TrainingResult": "dist_classicrl.distributed.report",
}

__all__ = [
    "CompiledSimulator",
    "DistAsyncQLearning",
    "DistributedDebugger",
    "DistributedMonitor",
    "FailureDetector",
    "Progress",
    "TabularMDP",
    "TrainingResult",
]


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
