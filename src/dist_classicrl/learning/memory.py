"""What a learning rule's walkers carry along besides the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.learning.behavior import EpsilonGreedy
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.learning.state import RULE_ARRAYS, State, refused
from dist_classicrl.rules import LearningRule
from dist_classicrl.tables.local import LocalTable


class RuleMemory:
    """What each of some walkers remembers by its rule, and what the rule shares with merge "owner".

    Parameters
    ----------
    rule : LearningRule
    parameters : NamedTuple
    table : LocalTable
    walkers : int
    """

    def __init__(self, rule: LearningRule, parameters: Any, table: LocalTable, walkers: int) -> None:
        whole, real = rule.memory(parameters)
        owned = rule.n_owned(parameters, table.n_states, table.n_actions)
        self._arrays = (
            np.zeros((walkers, whole), np.int64),
            np.zeros((walkers, real)),
            np.zeros((walkers, owned)),
        )

    def context(
        self,
        table: LocalTable,
        step_sizes: np.ndarray | None,
        discount: float,
        masks: np.ndarray | None = None,
    ) -> Context:
        """Return what the kernels are called with."""
        return Context(table.arrays, step_sizes, discount, EpsilonGreedy(), masks, *self._arrays)

    def state(self) -> State:
        """Return copies of the arrays, without empty ones."""
        named = zip(RULE_ARRAYS, self._arrays, strict=True)
        return {name: array.copy() for name, array in named if array.size}

    def restore(self, state: State) -> None:
        """Put a `state` of these names and shapes back.

        Raises
        ------
        CheckpointError
            If it holds NaN or infinity.
        """
        for name, array in zip(RULE_ARRAYS, self._arrays, strict=True):
            if array.size:
                if not np.isfinite(state[name]).all():
                    raise refused(name, "holds NaN or infinity", "finite numbers only")
                array[:] = state[name]
