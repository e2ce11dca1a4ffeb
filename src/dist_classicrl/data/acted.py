"""Logged transitions by the states in which somebody acted, and what policies do in these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.checks import as_array
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.environments.solvers.policy_value import checked_policy
from dist_classicrl.errors import DataError, SettingsError
from dist_classicrl.tables import large_table


class Acted(NamedTuple):
    """Transitions with their S - 1 states in which an action was taken counted from 0 on.

    All other states, of which a policy need say nothing, are state S - 1.
    """

    transitions: Transitions
    states: np.ndarray  # int64 (S - 1,), ascending: the numbers that they had
    n_actions: int

    @classmethod
    def of(cls, data: Transitions, policy: Any, behavior: Any) -> Acted:
        """Return what was logged; DataError where numbers are below 0, or so many that no table has room."""
        data.check_size(data.n_states, data.n_actions)
        states, acted = np.unique(data.states, return_inverse=True)
        follow = np.searchsorted(states, data.next_states)
        known = states[np.minimum(follow, states.size - 1)] == data.next_states
        n_actions = _actions(data, states, policy, behavior)
        if states.size * n_actions >= large_table.FROM_ENTRIES:
            raise DataError(
                f"{states.size:,} states in which somebody acted and {n_actions:,} actions make a table of "
                f"{states.size * n_actions:,} entries, and estimates take fewer than "
                f"{large_table.FROM_ENTRIES:,}. Number the actions that there are from 0 on, or give fewer "
                "episodes."
            )
        renumbered = replace(data, states=acted, next_states=np.where(known, follow, states.size))
        return cls(renumbered, states, n_actions)

    @property
    def pairs(self) -> np.ndarray:
        """The state and action of each transition as one number, int64, shape (N,)."""
        return self.transitions.states * self.n_actions + self.transitions.actions

    def chances(self, name: str, given: Any) -> np.ndarray:
        """Return the probabilities of actions, float64, shape (S, A), that a user gives as `name`.

        SettingsError where they are none, DataError where they lack a state in which somebody acted.
        """
        array = as_array(name, given)
        is_sound = array.ndim == 1 and array.dtype.kind in "iu" and array.size
        if array.ndim == 2 and array.shape[1] == self.n_actions and array.dtype.kind in "fiu":
            is_sound = array.size
        if not is_sound:
            raise SettingsError(
                f"{name} has shape {array.shape} and dtype {array.dtype}; it must be actions, int with shape "
                f"(states,), or probabilities, float with shape (states, {self.n_actions})"
            )
        if len(array) <= self.states[-1]:
            state = self.states[self.states >= len(array)][0]
            raise DataError(
                f"somebody acted in state {state}, of which {name} says nothing, with states from 0 to "
                f"{len(array) - 1}: give one with an entry for each state in which somebody acted, or leave "
                "such transitions out"
            )
        try:
            chances = checked_policy(_Free(self.states.size, self.n_actions), array[self.states], self.states)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
        return np.vstack([chances, np.zeros(self.n_actions)])


def in_rows_of(policy: Any, given: Any) -> tuple[Any, Transitions]:
    """Return a policy as an array, and what was logged by its rows, which a `Policy` has names for."""
    data = Transitions.of(given)
    if not hasattr(policy, "greedy"):
        return policy, data
    return policy.greedy, data.in_rows(policy.observations, policy.actions)


class _Free(NamedTuple):
    """A table of which every pair is legal."""

    n_states: int
    n_actions: int

    def legal_pairs(self) -> np.ndarray:
        return np.ones(self, dtype=bool)


def _actions(data: Transitions, states: np.ndarray, policy: Any, behavior: Any) -> int:
    """Return the number of actions, which the arrays say, where one has two dimensions."""
    n_actions = data.n_actions
    for array in (as_array("policy", policy), as_array("behavior", behavior)):
        if array.ndim == 2:
            n_actions = max(n_actions, array.shape[1])
        elif array.ndim == 1 and array.dtype.kind in "iu" and array.size > states[-1]:
            n_actions = max(n_actions, int(array[states].max()) + 1)
    return n_actions
