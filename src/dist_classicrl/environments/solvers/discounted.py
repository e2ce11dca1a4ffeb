"""The truth that learning is compared with: the optimal values of a model.

They are for the process without its time limit, because how much time is left is not part of the state.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl.environments.finite_model import ArrayModel
from dist_classicrl.environments.solution import Solution
from dist_classicrl.environments.solvers import policy_iteration
from dist_classicrl.environments.solvers.policy_value import DENSE_STATES, check_has_value, value_of_actions
from dist_classicrl.environments.solvers.process import (
    MOST_SWEEPS,
    ROUNDING,
    Changes,
    Process,
    Sweeps,
    best_of,
    check_limits,
    check_method,
    checked_discount,
    gives_up,
)
from dist_classicrl.environments.solvers.progress import progressing_policy
from dist_classicrl.environments.solvers.rows import RowsProcess

METHODS = ("modified_policy_iteration", "value_iteration", "policy_iteration")

#: Sweeps that keep the policy after each one that improves it. They cost a fraction of it, one action of A.
EVALUATIONS_PER_IMPROVEMENT = 20


def solve(
    model: ArrayModel,
    discount_factor: float,
    tolerance: float = 1e-10,
    method: str = METHODS[0],
    max_iterations: int = MOST_SWEEPS,
) -> Solution:
    """Compute optimal values and a policy that attains them.

    Sweeps run in place (Gauss-Seidel); those over more than 32,768 states run in threads on all cores. What
    comes out does not depend on how many there are.

    Parameters
    ----------
    model : TabularMDP
    discount_factor : float
        From 0 to 1. At 1 the values must be finite, as they are where every policy ends or waiting has a
        cost.
    tolerance : float
        Largest error of a value; above 0. For discount factors g below 1 sweeps stop when the bound on the
        error, ``g / (1 - g)`` times the largest change of a value, is below it. There is no such bound at
        discount factor 1, so they stop when the error that a geometric series predicts from the last eight
        changes is below it; up to 2,000 states the value of the policy that was found is then computed, and
        where it is another one policy iteration goes on from there. Among actions that are equally good, the
        policy there takes one that makes progress towards the end of the episode, since one that waits for
        ever is never paid.
    method : str
        "modified_policy_iteration", "value_iteration" or "policy_iteration" (Puterman 1994, sections 6.3 to
        6.5). The first follows each improving sweep by 20 that keep the policy, at discount factors below 1;
        there it is the fastest for large models. At 1 it is value iteration from values of 0. The last is
        exact to rounding up to 2,000 states, where it solves linear equations; it takes few iterations,
        and at discount factor 1 begins with a policy that ends wherever one can.
    max_iterations : int
        Improving sweeps before it gives up.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    ConvergenceError
        The sweeps were used up: the values are infinite, or need more sweeps. Or the policy that they come
        to has no value, since rewards that cancel go on for ever. Or rounding hides what is best, as where
        the discount factor is below 1 by less than 1e-15.
    """
    discount = checked_discount(discount_factor)
    check_limits(tolerance, max_iterations)
    check_method(method, METHODS)
    process = RowsProcess.of_model(model)
    if method == "policy_iteration":
        return policy_iteration.solve(model, process, discount, tolerance, max_iterations)
    found = of_process(process, process.legal, discount, tolerance, method, max_iterations)
    if discount < 1.0:
        return found
    rounding = 10 * ROUNDING * float(np.abs(found.v).max())
    # Where rounding stopped the sweeps there may be no bound.
    tie = max(10 * found.residual if found.residual < np.inf else 0.0, rounding)
    optimal = process.legal & (found.q >= found.v[:, None] - tie)
    policy = progressing_policy(process.rows, optimal, np.abs(found.v) <= tie, found.policy)
    check_has_value(model, policy)
    if model.n_states <= DENSE_STATES and not _is_of(model, policy, found.v, max(tolerance, rounding)):
        return policy_iteration.solve(model, process, discount, tolerance, max_iterations, policy)
    return Solution(found.q, found.v, policy, found.iterations, found.residual)


def _is_of(model: ArrayModel, policy: np.ndarray, v: np.ndarray, tolerance: float) -> bool:
    """Say whether values are the undiscounted ones of a policy."""
    return bool(np.abs(value_of_actions(model, policy, 1.0) - v).max() <= tolerance)


def of_process(
    process: Process, legal: np.ndarray, discount: float, tolerance: float, method: str, max_iterations: int
) -> Solution:
    """Do what `solve` does, by sweeps, with arguments that are checked."""
    sweeps = Sweeps(process, discount)
    if discount < 1.0:
        # From below all values, sweeps that keep the policy only raise values (Puterman 1994, theorem 6.5.5).
        sweeps.v[:-1] = min(0.0, process.lowest()) / (1.0 - discount)
    evaluations = 0
    if discount < 1.0 and method == "modified_policy_iteration":
        evaluations = EVALUATIONS_PER_IMPROVEMENT
    iterations, residual = to_optimum(sweeps, evaluations, tolerance, max_iterations)
    q = process.values(discount, sweeps.v)
    v, policy = best_of(q, legal)
    return Solution(q, v, policy, iterations, residual)


def to_optimum(sweeps: Sweeps, evaluations: int, tolerance: float, max_iterations: int) -> tuple[int, float]:
    """Sweep until the values are optimal; return improving sweeps and residual."""
    changes = Changes(sweeps.discount)
    for iteration in range(1, max_iterations + 1):
        change = sweeps.improve()
        residual = changes.bound(change)
        if residual < tolerance or sweeps.is_rounding(change):
            return iteration, residual
        held = sweeps.under_policy() if evaluations else sweeps
        for _ in range(evaluations):
            held.evaluate()
    raise gives_up(sweeps.discount, change, max_iterations)
