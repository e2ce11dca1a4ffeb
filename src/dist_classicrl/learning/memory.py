"""What a learning rule's walkers carry along besides the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_classicrl.learning.behavior import Ladder, rung
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.learning.state import RULE_ARRAYS, State, refused
from dist_classicrl.rules import LearningRule
from dist_classicrl.rules.behaviors import EpsilonGreedy, EpsilonLadder
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.local import LocalTable


class RuleMemory:
    """What each of some walkers remembers by its rule, and what the rule shares with merge "owner".

    `number` is that of the worker, which `EpsilonLadder` depends on.
    """

    def __init__(
        self,
        rule: LearningRule,
        parameters: Any,
        table: LocalTable | LineTable,
        walkers: int,
        behavior: Any = EpsilonGreedy(),  # noqa: B008 - it has no state
        number: int = 0,
    ) -> None:
        if isinstance(behavior, EpsilonLadder):
            behavior = Ladder(1.0 + behavior.steepness * rung(number))
        self._behavior = behavior
        whole, real = rule.memory(parameters)
        owned = rule.n_owned(parameters, *table.shape.of_table)
        arrays = (
            np.zeros((walkers, whole), np.int64),
            np.zeros((walkers, real)),
            np.zeros((walkers, owned)),
            np.zeros(rule.model(parameters, *table.shape.of_table)),
        )
        self._arrays: State = dict(zip(RULE_ARRAYS, arrays, strict=True))

    @classmethod
    def together(cls, memories: Sequence[RuleMemory]) -> RuleMemory:
        """Return one for the walkers of several with one behavior, whose arrays become views of its own."""
        both = cls.__new__(cls)
        both._behavior = memories[0]._behavior
        both._arrays = {
            name: np.concatenate([each._arrays[name] for each in memories]) for name in RULE_ARRAYS
        }
        first = 0
        for each in memories:
            end = first + len(each._arrays[RULE_ARRAYS[0]])
            each._arrays = {name: array[first:end] for name, array in both._arrays.items()}
            first = end
        return both

    def context(
        self,
        table: LocalTable | LineTable,
        step_sizes: np.ndarray | None,
        discount: float,
        masks: np.ndarray | None = None,
    ) -> Context:
        """Return what the kernels are called with."""
        return Context(table.arrays, step_sizes, discount, self._behavior, masks, *self._arrays.values())

    def state(self, names: Sequence[str] = RULE_ARRAYS) -> State:
        """Return copies of the arrays of these names, without empty ones."""
        return {name: self._arrays[name].copy() for name in names if self._arrays[name].size}

    def restore(self, state: State, names: Sequence[str] = RULE_ARRAYS) -> None:
        """Put a `state` back that has the arrays of these names in their shapes.

        CheckpointError where it holds NaN or infinity.
        """
        for name in self.state(names):
            if not np.isfinite(state[name]).all():
                raise refused(name, "holds NaN or infinity", "finite numbers only")
            self._arrays[name][:] = state[name]
