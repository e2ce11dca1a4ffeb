"""Policy iteration: evaluate a policy exactly, improve it, until nothing is better (Howard 1960)."""

from __future__ import annotations

import numpy as np

from dist_classicrl.environments.finite_model import ArrayModel
from dist_classicrl.environments.solution import Solution, check_finite
from dist_classicrl.environments.solvers.policy_value import value_of_actions
from dist_classicrl.environments.solvers.process import ROUNDING, best_of, error_bound, gives_up
from dist_classicrl.environments.solvers.progress import progressing_policy
from dist_classicrl.environments.solvers.rows import RowsProcess
from dist_classicrl.errors import ConvergenceError


def solve(
    model: ArrayModel,
    process: RowsProcess,
    discount: float,
    tolerance: float,
    max_iterations: int,
    start: np.ndarray | None = None,
) -> Solution:
    """Do what `discounted.solve` does by this method, with arguments that are checked.

    The first policy is `start`, if there is one. A state keeps its action unless another is better by more
    than rounding, so that no two policies follow each other for ever.
    """
    legal, states = process.legal, np.arange(model.n_states)
    reward = np.abs(process.rows.reward).reshape(legal.shape)
    best, policy = best_of(process.values(0.0, np.zeros(model.n_states + 1)), legal)
    if start is not None:
        policy = start
    elif discount == 1.0:
        policy = progressing_policy(process.rows, legal, np.ones(model.n_states, dtype=bool), policy)
    for iteration in range(1, max_iterations + 1):
        v = value_of_actions(model, policy, discount)
        check_finite(v)
        q = process.values(discount, np.append(v, 0.0))
        best, greedy = best_of(q, legal)
        gain = best - q[states, policy]  # of the last action where there is none; then 0 - 0
        # Of the policy: those of illegal pairs and of others that nobody takes are no part of its values.
        largest = float(reward[states, policy].max(where=policy >= 0, initial=0.0))
        rounding = 10 * ROUNDING * max(float(np.abs(v).max()), largest)
        better = gain > rounding
        change = float(np.abs(best - v).max())
        residual = change if discount == 1.0 else error_bound(change, discount)
        if not better.any() or (discount < 1.0 and residual < tolerance):
            if rounding > largest:
                raise ConvergenceError(
                    f"values at discount factor {discount} are up to {float(np.abs(v).max()):.3g}, beside "
                    f"which rewards of up to {largest:.3g} are rounding, so that the best action is unknown; "
                    "use a smaller discount factor"
                )
            return Solution(q, best, greedy if discount < 1.0 else policy, iteration, residual)
        policy = np.where(better, greedy, policy)
    raise gives_up(discount, change, max_iterations)
