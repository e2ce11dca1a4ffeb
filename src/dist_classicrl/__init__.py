"""Tabular reinforcement learning on a cluster, from one import.

Q-learning under an MPI parameter server, fast and right.

>>> from dist_classicrl import DistAsyncQLearning
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from dist_classicrl._lazy import after_import, lazy_names
from dist_classicrl._version import __version__ as __version__
from dist_classicrl.process import last_collections

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning, TabularAgent
    from dist_classicrl.agent.result import TrainingResult
    from dist_classicrl.engines.progress import Progress
    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.simulate import CompiledSimulator
    from dist_classicrl.environments.solution import Solution
    from dist_classicrl.evaluation.episodes import EvaluationResult
    from dist_classicrl.model.policy import Policy
    from dist_classicrl.mpi_tools.debugger import DistributedDebugger
    from dist_classicrl.mpi_tools.detector import FailureDetector
    from dist_classicrl.mpi_tools.monitor import DistributedMonitor
    from dist_classicrl.sweep.study import Study
    from dist_classicrl.sweep.sweep import Sweep

_HOMES = {
    "CompiledSimulator": "dist_classicrl.environments.simulate",
    "DistAsyncQLearning": "dist_classicrl.agent.agent",
    "DistributedDebugger": "dist_classicrl.mpi_tools.debugger",
    "DistributedMonitor": "dist_classicrl.mpi_tools.monitor",
    "EvaluationResult": "dist_classicrl.evaluation.episodes",
    "FailureDetector": "dist_classicrl.mpi_tools.detector",
    "Policy": "dist_classicrl.model.policy",
    "Progress": "dist_classicrl.engines.progress",
    "Solution": "dist_classicrl.environments.solution",
    "Study": "dist_classicrl.sweep.study",
    "Sweep": "dist_classicrl.sweep.sweep",
    "TabularAgent": "dist_classicrl.agent.agent",
    "TabularMDP": "dist_classicrl.environments.model",
    "TrainingResult": "dist_classicrl.agent.result",
}

__all__ = [
    "CompiledSimulator",
    "DistAsyncQLearning",
    "DistributedDebugger",
    "DistributedMonitor",
    "EvaluationResult",
    "FailureDetector",
    "Policy",
    "Progress",
    "Solution",
    "Study",
    "Sweep",
    "TabularAgent",
    "TabularMDP",
    "TrainingResult",
]


__getattr__, __dir__ = lazy_names(__name__, _HOMES)

# Before others register theirs, such as the one of `logging`: those are called first.
atexit.register(last_collections.spare)

# Since 1.0 Gymnasium has no entry points for packages: only what is imported can tell it of environments.
after_import("gymnasium", "dist_classicrl.environments.problems.registry:register_all")
