"""Sweeps over the values of a finite model, which optimal values and the value of a policy both come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.environments import reachability
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

#: A change of the values below this fraction of the largest value is rounding, and no further sweep can
#: improve it.
ROUNDING = 4 * np.finfo(np.float64).eps


class OngoingRows(NamedTuple):
    """Rows (pairs, or states of a chain) with their mean reward and the outcomes that go on."""

    pointer: np.ndarray  # int64 (R + 1,): row r goes on with the outcomes pointer[r] to pointer[r + 1] - 1
    weight: np.ndarray  # float64 (C,): their probabilities; what is missing to 1 is the probability of ending
    follow: np.ndarray  # int64 (C,): the states that they reach
    reward: np.ndarray  # float64 (R,): mean reward of a row, transitions that terminate included
    ends: np.ndarray  # bool (R,): whether a row can terminate

    @classmethod
    def of_rows(
        cls, row: np.ndarray, n_rows: int, weight: np.ndarray, outcome: np.ndarray, model: TabularMDP
    ) -> OngoingRows:
        """Gather outcomes of `model` into rows; `row` never falls, and `weight` is positive."""
        terminated = model.outcome_terminated[outcome]
        going = ~terminated
        return cls(
            pointer=reachability.row_pointer(row[going], n_rows),
            weight=weight[going],
            follow=model.outcome_next[outcome[going]],
            reward=np.bincount(row, weights=weight * model.outcome_reward[outcome], minlength=n_rows),
            ends=np.bincount(row[terminated], minlength=n_rows) > 0,
        )

    def values(self, discount: float, v: np.ndarray) -> np.ndarray:
        """Return the value of every row when the states are worth `v`."""
        row = reachability.rows_of(self.pointer)
        future = np.bincount(row, weights=self.weight * v[self.follow], minlength=self.reward.size)
        return self.reward + discount * future


@jit
def evaluate(rows: OngoingRows, pair: np.ndarray, discount: float, v: np.ndarray) -> float:
    """One Gauss-Seidel sweep for the policy that chooses `pair`, in place; return the largest change.

    A negative entry of `pair` marks a state without a choice, whose value stays.
    """
    change = 0.0
    for s in range(pair.size):
        row = pair[s]
        if row >= 0:
            value = 0.0
            for o in range(rows.pointer[row], rows.pointer[row + 1]):
                value += rows.weight[o] * v[rows.follow[o]]
            value = rows.reward[row] + discount * value
            change = max(change, abs(value - v[s]))
            v[s] = value
    return change


def error_bound(change: float, previous: float, discount: float) -> float:
    """Return what a geometric series of changes leaves to come; below discount 1 that is a true bound."""
    if change == 0.0:
        return 0.0
    rate = discount
    if discount == 1.0:
        rate = change / previous if previous > 0.0 else 1.0
    return change * rate / (1.0 - rate) if rate < 1.0 else np.inf


def checked_discount(value: Any) -> float:
    """Return a discount factor as a float; SettingsError unless it is from 0 to 1."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0.0 <= value <= 1.0:
        raise SettingsError(f"discount_factor is {value!r}; it must be a number from 0 to 1, such as 0.99")
    return float(value)
