"""Values of a model that a function gives, by sweeps in threads that ask it anew: nothing of it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.environments.sampling.function_kernels import Kernels, Place
from dist_classicrl.environments.sampling.ranges import in_ranges
from dist_classicrl.environments.solution import Solution
from dist_classicrl.environments.solvers import discounted
from dist_classicrl.environments.solvers.policy_value import to_value
from dist_classicrl.environments.solvers.process import Sweeps, check_limits, check_method, checked_discount
from dist_classicrl.errors import ConvergenceError, SettingsError

METHODS = discounted.METHODS[:2]


class FunctionProcess:
    """What solvers ask of a model, by its function: see `Process`.

    `weights` are a policy's probabilities, shape (S, A), to be evaluated instead of its actions.
    """

    def __init__(self, kernels: Kernels, place: Place, weights: np.ndarray | None = None) -> None:
        self.n_states, self.n_actions = place.n_states, place.n_actions
        self._weights = np.zeros((0, 0)) if weights is None else weights
        self._kernels, self._place = kernels, place
        self._no_actions = np.zeros(0, np.int64)

    def _all(self, kernel: Any, *arguments: Any) -> list[Any]:
        place = self._place
        return in_ranges(lambda low, high: kernel(place, low, high, *arguments), self.n_states)

    def lowest(self) -> float:
        """Return the lowest mean reward of a pair."""
        return float(min(self._all(self._kernels.lowest, np.zeros(self.n_states + 1))))

    def improve(
        self, low: int, high: int, discount: float, v: np.ndarray, new: np.ndarray, policy: np.ndarray
    ) -> float:
        """Do what `Process.improve` does."""
        return float(self._kernels.improve(self._place, low, high, discount, v, new, policy))

    def evaluate(
        self, low: int, high: int, discount: float, v: np.ndarray, new: np.ndarray, policy: np.ndarray
    ) -> float:
        """Do what `Process.evaluate` does."""
        actions = self._no_actions if self._weights.size else policy
        arguments = (discount, v, new, actions, self._weights)
        return float(self._kernels.evaluate(self._place, low, high, *arguments))

    def under(self, policy: np.ndarray) -> tuple[FunctionProcess, np.ndarray]:
        """Do what `Process.under` does."""
        return self, policy

    def values(self, discount: float, v: np.ndarray) -> np.ndarray:
        """Return the value of each pair, float64, shape (S, A); 0 where it is illegal."""
        q = np.zeros((self.n_states, self.n_actions))
        self._all(self._kernels.values, discount, v, q)
        return q


def _checked_discount(value: Any) -> float:
    discount = checked_discount(value)
    if discount == 1.0:
        raise ConvergenceError(
            "whether values exist at discount factor 1 is not known of a model without arrays; use a "
            "discount factor below 1, or make the model with tables=True"
        )
    return discount


def solve(
    process: FunctionProcess,
    legal: np.ndarray,
    discount_factor: float,
    tolerance: float,
    method: str,
    max_iterations: int,
) -> Solution:
    """Do what `discounted.solve` does."""
    discount = _checked_discount(discount_factor)
    check_limits(tolerance, max_iterations)
    if method in discounted.METHODS and method not in METHODS:
        raise SettingsError(
            f"method is {method!r}, which needs a model with arrays; use {METHODS[0]!r}, or make the model "
            "with tables=True"
        )
    check_method(method, METHODS)
    return discounted.of_process(process, legal, discount, tolerance, method, max_iterations)


def policy_value(process: FunctionProcess, actions: np.ndarray, discount_factor: float) -> np.ndarray:
    """Do what `policy_value.policy_value` does, by sweeps."""
    sweeps = Sweeps(process, _checked_discount(discount_factor))
    sweeps.policy = actions
    to_value(sweeps)
    return sweeps.v[:-1]
