"""What a learning rule's walkers carry along besides the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.behavior import Ladder, rung
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.learning.state import RULE_ARRAYS, State, check_position, check_range, refused
from dist_classicrl.rules import LearningRule, Range
from dist_classicrl.rules.behaviors import EpsilonGreedy, EpsilonLadder
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.local import LocalTable

_WHOLE, _MODEL = RULE_ARRAYS[0], RULE_ARRAYS[3]


def declared(
    rule: LearningRule, parameters: Any, n_states: int, n_actions: int
) -> dict[str, Sequence[Range] | None]:
    """Return what a rule declares of the numbers that it remembers, by the name of their array.

    SettingsError where it declares others than it remembers.
    """
    size = parameters, n_states, n_actions
    found: dict[str, Sequence[Range] | None] = {}
    kinds = (
        (_WHOLE, "whole numbers", rule.whole_ranges, rule.remembered(parameters)[0]),
        (_MODEL, "numbers of its model", rule.model_ranges, rule.modeled(*size)),
    )
    for name, words, ranges, needed in kinds:
        found[name] = None if ranges is None else ranges(*size)
        if ranges is not None and (count := sum(one.count for one in found[name] or ())) != needed:
            raise SettingsError(
                f"The rule {rule.name!r} declares the ranges of {count} {words}, and remembers {needed} for "
                f"{parameters}. Let the counts of its ranges add up to {needed}."
            )
    return found


def check_ranges(name: str, values: np.ndarray, ranges: Sequence[Range] | None) -> None:
    """Raise CheckpointError unless numbers, shape (.., of the ranges), are in their ranges."""
    first = 0
    for one in ranges or ():
        part = values[..., first : first + one.count]
        first += one.count
        check_range(f"{name}, {one.name},", part, one.least, one.most)
        if one.is_whole and (part != np.floor(part)).any():
            raise refused(
                f"{name}, {one.name},", f"holds {part[part != np.floor(part)][0]}", "whole numbers only"
            )


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
        self._rule, self._parameters, self._size = rule, parameters, table.shape.of_table
        declared(rule, parameters, *self._size)
        whole, real = rule.remembered(parameters)
        owned = rule.n_owned(parameters, *table.shape.of_table)
        arrays = (
            np.zeros((walkers, whole), np.int64),
            np.zeros((walkers, real)),
            np.zeros((walkers, owned)),
            np.zeros(rule.modeled(parameters, *table.shape.of_table)),
        )
        self._arrays: State = dict(zip(RULE_ARRAYS, arrays, strict=True))

    @classmethod
    def together(cls, memories: Sequence[RuleMemory]) -> RuleMemory:
        """Return one for the walkers of several with one behavior, whose arrays become views of its own."""
        both = cls.__new__(cls)
        first_of_all = memories[0]
        both._behavior = first_of_all._behavior
        both._rule, both._parameters, both._size = (
            first_of_all._rule,
            first_of_all._parameters,
            first_of_all._size,
        )
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

    @property
    def notes_masks(self) -> bool:
        """Whether the rule wants to know what is legal in states where actions were chosen."""
        return self._rule.note_masks is not None

    def note_masks(self, states: np.ndarray, masks: np.ndarray | None) -> None:
        """Let it know that; None: nothing came."""
        if masks is not None and self._rule.note_masks is not None:
            self._rule.note_masks(self._arrays[_MODEL], self._size[0], states, masks)

    def state(self, names: Sequence[str] = RULE_ARRAYS) -> State:
        """Return copies of the arrays of these names, without empty ones."""
        return {name: self._arrays[name].copy() for name in names if self._arrays[name].size}

    def restore(self, state: State, names: Sequence[str] = RULE_ARRAYS, n_states: int | None = None) -> None:
        """Put a `state` back that has the arrays of these names in their shapes.

        `n_states`: so many states have rows, where these are less than all.
        CheckpointError where it holds what the rule does not remember; then nothing has changed.
        """
        own = self.state(names)
        states, n_actions = self._size
        known = max(1, states if n_states is None else n_states)
        ranges = declared(self._rule, self._parameters, known, n_actions)
        for name in own:
            if not np.isfinite(state[name]).all():
                raise refused(name, "holds NaN or infinity", "finite numbers only")
            check_ranges(name, state[name], ranges.get(name))
        if _MODEL in own and self._rule.check_model is not None:
            wrong = self._rule.check_model(self._parameters, known, n_actions, state[_MODEL])
            if wrong:
                raise refused(_MODEL, wrong, "what belongs together")
        for name in own:
            self._arrays[name][:] = state[name]


def crew_state(crew: Any, memory: RuleMemory) -> State:
    """Return copies of where the episodes of a crew are, and of what its walkers remember.

    It has the arrays `states`, `elapsed`, `memory` and `collected`, and a `time_limit`, as `Walkers` has.
    """
    position = np.concatenate([np.stack([crew.states, crew.elapsed], 1), crew.memory], 1)
    return {"position": position, "running": crew.collected.copy(), **memory.state()}


def put_crew(crew: Any, memory: RuleMemory, state: State, n_states: int, stuck: np.ndarray | None) -> None:
    """Put a `state` of `crew_state` back whose arrays have their shapes; `stuck` is that of `check_position`.

    CheckpointError where it cannot be; then nothing has changed. What a game keeps in its memory is known to
    the game alone and not checked.
    """
    position, running = state["position"], state["running"]
    check_position(position, running, n_states, crew.time_limit, stuck)
    memory.restore(state, n_states=n_states)
    crew.states[:], crew.elapsed[:], crew.memory[:] = position[:, 0], position[:, 1], position[:, 2:]
    crew.collected[:] = running
