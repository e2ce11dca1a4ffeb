"""Values of a model that a function gives, by sweeps in threads that ask it anew: nothing of it is stored.

A sweep reads the values of the one before it (Jacobi), so what comes out does not depend on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl.environments.policy_value import to_value
from dist_classicrl.environments.sampling.function_kernels import Kernels, Place
from dist_classicrl.environments.sampling.ranges import in_ranges
from dist_classicrl.environments.solve import Solution, check_tolerance, to_optimum
from dist_classicrl.environments.sweeps import checked_discount
from dist_classicrl.errors import ConvergenceError


class _Sweeps:
    """The values of the states, and how they are changed."""

    def __init__(self, kernels: Kernels, place: Place, discount: float) -> None:
        self.v = np.zeros(place.n_states)
        self._new = np.zeros(place.n_states)
        self._kernels, self._place, self._discount = kernels, place, discount

    def all_of(self, kernel: Any, *arguments: Any) -> list[Any]:
        """Call a kernel for all states."""
        place = self._place
        return in_ranges(lambda low, high: kernel(place, low, high, *arguments), place.n_states)

    def sweep(self, kernel: Any, *arguments: Any) -> Callable[[], float]:
        """Return what does a sweep, and returns the largest change."""

        def do() -> float:
            changes = self.all_of(kernel, self._discount, self.v, self._new, *arguments)
            self.v[:] = self._new
            return float(max(changes))

        return do


def _checked_discount(value: Any) -> float:
    discount = checked_discount(value)
    if discount == 1.0:
        raise ConvergenceError(
            "whether values exist at discount factor 1 is not known of a model without arrays; use a "
            "discount factor below 1, or make the model with tables=True"
        )
    return discount


def solve(kernels: Kernels, place: Place, discount_factor: float, tolerance: float) -> Solution:
    """Do what `dist_classicrl.environments.solve.solve` does."""
    discount = _checked_discount(discount_factor)
    check_tolerance(tolerance)
    sweeps = _Sweeps(kernels, place, discount)
    v, policy = sweeps.v, np.full(place.n_states, -1)
    lowest = min(0.0, *sweeps.all_of(kernels.lowest, v))
    v[:] = lowest / (1.0 - discount)
    none = np.zeros((0, 0))
    iterations, residual = to_optimum(
        sweeps.sweep(kernels.improve, policy),
        sweeps.sweep(kernels.evaluate, policy, none),
        v,
        discount,
        tolerance,
    )
    q = np.zeros((place.n_states, place.n_actions))
    best = np.zeros(place.n_states)
    sweeps.all_of(kernels.values, discount, v, q, best, policy)
    return Solution(q=q, v=best, policy=policy, iterations=iterations, residual=residual)


def policy_value(
    kernels: Kernels, place: Place, actions: np.ndarray, weights: np.ndarray, discount_factor: float
) -> np.ndarray:
    """Do what `dist_classicrl.environments.policy_value.policy_value` does, by sweeps.

    One of `actions` and `weights` is empty: see the kernel `evaluate`.
    """
    discount = _checked_discount(discount_factor)
    sweeps = _Sweeps(kernels, place, discount)
    to_value(sweeps.sweep(kernels.evaluate, actions, weights), sweeps.v, discount)
    return sweeps.v
