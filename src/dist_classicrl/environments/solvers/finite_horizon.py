"""Optimal values of a given number of steps, from the last one backwards (Puterman 1994, section 4.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl.checks import as_array, is_whole
from dist_classicrl.environments.solution import FiniteHorizonSolution, check_finite
from dist_classicrl.environments.solvers.process import Process, Sweeps, checked_discount
from dist_classicrl.errors import SettingsError


def solve(
    process_of: Callable[[], Process],
    horizon: int | None,
    limit: int | None,
    discount_factor: float,
    final_values: Any = None,
) -> FiniteHorizonSolution:
    """Do what `TabularMDP.solve_finite_horizon` does; `limit` is the model's time limit."""
    if horizon is None and limit is None:
        raise SettingsError(
            "horizon is None, and the model has no max_episode_steps; give the number of steps, such as 100"
        )
    steps: Any = limit if horizon is None else horizon
    if not is_whole(steps) or steps < 1:
        raise SettingsError(f"horizon is {steps!r}; it must be a whole number of at least 1, such as 100")
    discount = checked_discount(discount_factor)
    process = process_of()
    S = process.n_states
    try:
        v = np.zeros((steps + 1, S + 1))
        policy = np.full((steps, S), -1, dtype=np.int64)
    except (MemoryError, ValueError) as error:  # NumPy has both for what is too large
        raise SettingsError(
            f"horizon is {steps!r}, and there is no memory for values and actions of {S:,} states at each of "
            "so many steps; give a shorter one, or use a discount factor below 1 (solve)"
        ) from error
    if final_values is not None:
        v[-1, :-1] = _checked_values(final_values, S)
    sweeps = Sweeps(process, discount)
    for step in range(steps - 1, -1, -1):
        sweeps.v, sweeps.new, sweeps.policy = v[step + 1], v[step], policy[step]
        sweeps.ahead(process.improve, 0, S)
    check_finite(v)
    v.setflags(write=False)
    return FiniteHorizonSolution(
        v[:, :-1], policy, lambda after: process.values(discount, np.append(after, 0.0))
    )


def _checked_values(given: Any, n_states: int) -> np.ndarray:
    found = as_array("final_values", given)
    if found.shape != (n_states,) or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        raise SettingsError(
            f"final_values has shape {found.shape} and dtype {found.dtype}; it must be one finite number for "
            f"each state, shape ({n_states},)"
        )
    return found.astype(np.float64)
