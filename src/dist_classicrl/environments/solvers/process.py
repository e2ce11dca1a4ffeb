"""What solvers share: what they ask of a model, its values, and when values are good enough."""

from __future__ import annotations

import math
from collections import deque
from copy import copy
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from dist_classicrl.checks import as_float, is_real, is_whole
from dist_classicrl.environments.sampling.ranges import in_ranges
from dist_classicrl.errors import ConvergenceError, SettingsError

#: A change of the values below this fraction of the largest value is rounding, and no further sweep can
#: improve it.
ROUNDING = 4 * np.finfo(np.float64).eps

#: Improving sweeps before a solver gives up, unless somebody says.
MOST_SWEEPS = 100_000


#: At discount factor 1 the error is predicted from the rates of so many sweeps.
RATES = 8

#: Up to this many states a sweep is made by one thread, in place: each state reads what those before it have
#: become (Gauss-Seidel).
ONE_THREAD = 1 << 15

#: Above, it has so many parts, one after the other. Within one, states read what is from before it, so that
#: what comes out does not depend on threads; it takes hardly more sweeps than in place.
PARTS = 8

_RANGE = 1 << 13  # states that a thread takes at a time


class Process(Protocol):
    """A model as solvers see it. Values have S + 1 entries; the last is what follows an end."""

    n_states: int
    n_actions: int

    def lowest(self) -> float:
        """Return the lowest mean reward of a pair."""

    def improve(
        self, low: int, high: int, discount: float, v: np.ndarray, new: np.ndarray, policy: np.ndarray
    ) -> float:
        """Write best values and actions when states are worth `v`; return the largest change.

        For the states from `low` to `high` - 1; `new` may be `v`. Where no action is legal the value is 0,
        and the policy stays as it is.
        """

    def evaluate(
        self, low: int, high: int, discount: float, v: np.ndarray, new: np.ndarray, policy: np.ndarray
    ) -> float:
        """Do what `improve` does, with the policy's actions."""

    def under(self, policy: np.ndarray) -> tuple[Process, np.ndarray]:
        """Return a process and actions for which `evaluate` does the same as with a policy, and sooner."""

    def values(self, discount: float, v: np.ndarray) -> np.ndarray:
        """Return the value of each pair, float64, shape (S, A); 0 where it is illegal."""


class Sweeps:
    """The values of the states of a process, float64, shape (S + 1,), and sweeps that change them."""

    def __init__(self, process: Process, discount: float) -> None:
        self.process, self.discount = process, discount
        self.v, self.new = np.zeros((2, process.n_states + 1))
        self.policy = np.full(process.n_states, -1, dtype=np.int64)

    def improve(self) -> float:
        """Improve the values; return the largest change."""
        return self.swept(self.process.improve)

    def evaluate(self) -> float:
        """Bring the values nearer to the policy's; return the largest change."""
        return self.swept(self.process.evaluate)

    def under_policy(self) -> Sweeps:
        """Return sweeps of the same values that keep the policy as it is now, and do so soonest."""
        held = copy(self)
        held.process, held.policy = self.process.under(self.policy)
        return held

    def swept(self, kernel: Any) -> float:
        """Write what the values of all states become; return the largest change."""
        n = self.process.n_states
        if n <= ONE_THREAD:
            return float(kernel(0, n, self.discount, self.v, self.v, self.policy))
        change = 0.0
        for part in range(PARTS):
            low, high = n * part // PARTS, n * (part + 1) // PARTS
            change = max(change, self.ahead(kernel, low, high))
            self.v[low:high] = self.new[low:high]
        return change

    def ahead(self, kernel: Any, low: int, high: int) -> float:
        """Write what values become into `new`, for some states; return the largest change."""
        rest = (self.discount, self.v, self.new, self.policy)
        return float(max(in_ranges(lambda i, j: kernel(low + i, low + j, *rest), high - low, _RANGE)))

    def is_rounding(self, change: float) -> bool:
        """Say whether a change is no more than rounding."""
        return bool(change <= ROUNDING * np.abs(self.v).max())


def best_of(q: np.ndarray, legal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest value of each state, and the first legal action that has it; else 0 and -1."""
    acting = legal.any(axis=1)
    policy = np.where(acting, np.where(legal, q, -np.inf).argmax(axis=1), -1)
    return np.where(acting, q[np.arange(len(q)), policy], 0.0), policy


def error_bound(change: float, rate: float) -> float:
    """Return what is to come of changes that shrink at least at this rate: the discount factor is one."""
    if change == 0.0:
        return 0.0
    return change * rate / (1.0 - rate) if rate < 1.0 else np.inf


class Changes:
    """The largest changes of the last sweeps, and what they leave to come; 0 before the first.

    ConvergenceError for discount factors at which that is not known, for rounding.
    """

    def __init__(self, discount: float) -> None:
        if discount < 1.0 and error_bound(ROUNDING, discount) >= 1.0:
            raise ConvergenceError(
                f"discount factor {discount!r} is so near to 1 that the rounding of sweeps adds up to as "
                "much as the values; use 1.0, or at most 1 - 1e-14"
            )
        self._discount = discount
        self._last: deque[float] = deque([0.0] * (RATES + 1), RATES + 1)

    def bound(self, change: float) -> float:
        """Take in that of the next sweep, and return a bound on the error.

        Below discount factor 1 it is a true one, and at 1 that of a geometric series at the largest rate of
        late: a state that moves slowly may follow one that was far off and is settled all at once.
        """
        self._last.append(change)
        if self._discount < 1.0:
            return error_bound(change, self._discount)
        pairs = pairwise(self._last)
        return error_bound(change, max(new / old if old > 0.0 else 1.0 for old, new in pairs))


def checked_discount(value: Any) -> float:
    """Return a discount factor as a float; SettingsError unless it is from 0 to 1."""
    if not is_real(value) or not 0.0 <= value <= 1.0:
        raise SettingsError(f"discount_factor is {value!r}; it must be a number from 0 to 1, such as 0.99")
    return float(value)


def check_limits(tolerance: Any, max_iterations: Any) -> None:
    """Refuse a tolerance that is not finite and above 0, and a number of sweeps that is not at least 1."""
    if not is_real(tolerance) or not 0.0 < as_float(tolerance) < math.inf:
        raise SettingsError(f"tolerance is {tolerance!r}; it must be finite and above 0, such as 1e-10")
    if not is_whole(max_iterations) or max_iterations < 1:
        raise SettingsError(
            f"max_iterations is {max_iterations!r}; it must be a whole number of at least 1, such as 100_000"
        )


def check_method(method: Any, methods: tuple[str, ...]) -> None:
    """Refuse a method that there is not."""
    if not isinstance(method, str) or method not in methods:
        raise SettingsError(f"method is {method!r}; it must be one of {', '.join(map(repr, methods))}")


def gives_up(discount: float, change: float, sweeps: int) -> ConvergenceError:
    """Return the error of optimal values that do not come."""
    return ConvergenceError(
        f"the optimal values at discount factor {discount} still changed by {change:.3g} in sweep {sweeps}; "
        "they may be infinite, which a discount factor below 1 cures, or need a larger max_iterations"
    )
