"""Relative value iteration: sweeps whose changes come to be the same everywhere, which is the gain.

When states are worth v, and one sweep makes them Tv, the largest gain from any state is between the smallest
and the largest entry of Tv - v, and the policy of that sweep has a gain of at least the smallest: Puterman
1994, theorem 8.5.5. That holds for every v and every model, so no assumption has to be trusted. A sweep goes
a part of the way only, which makes every chain aperiodic (section 8.5.4).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dist_classicrl.environments.solution import check_finite
from dist_classicrl.environments.solvers.process import ROUNDING, Sweeps
from dist_classicrl.errors import ConvergenceError

#: The part of the way. Close to 1 long circles take long to settle, close to 0 everything does.
STEP = 0.75

_FIRST_LOOK = 512


def sweep_to_gain(
    sweeps: Sweeps,
    start_prob: np.ndarray,
    acting: np.ndarray,
    tolerance: float,
    max_iterations: int,
    is_improving: bool,
    can_differ: Callable[[], bool],
) -> tuple[float, float, int]:
    """Sweep until the gain is known within the tolerance; return it, its error and the number of sweeps.

    `acting`, bool, shape (S,): the states with legal actions. `sweeps.v` is then the bias but for a constant.
    `can_differ` is asked when sweeps get nowhere: whether states may have different gains.
    """
    kernel = sweeps.process.improve if is_improving else sweeps.process.evaluate
    v, new = sweeps.v, sweeps.new
    look, last = _FIRST_LOOK, np.inf
    for iteration in range(1, max_iterations + 1):
        v[-1] = start_prob @ v[:-1]
        sweeps.ahead(kernel, 0, acting.size)
        change = (new - v)[:-1]
        low, high = change[acting].min(), change[acting].max()
        middle, error = low / 2 + high / 2, high / 2 - low / 2  # of which none overflows
        if not np.isfinite(error):
            check_finite(change)
        if error < tolerance or error <= ROUNDING * np.abs(v).max():
            return float(middle), float(error), iteration
        if iteration == look:
            if error > 0.99 * last and can_differ():
                raise _differ(change, acting)
            look, last = 2 * look, error
        v[:-1] += np.where(acting, STEP * (change - middle), 0.0)
    raise ConvergenceError(
        f"after {max_iterations} sweeps the gain is only known to be between {low:.6g} and {high:.6g}; allow "
        "more with max_iterations, or a larger tolerance; it may also depend on the state, for which there "
        "is method='policy_iteration' of models with arrays"
    )


def _differ(change: np.ndarray, acting: np.ndarray) -> ConvergenceError:
    worst = np.where(acting, change, np.inf).argmin()
    best = np.where(acting, change, -np.inf).argmax()
    return ConvergenceError(
        f"the gain depends on the state: it is about {change[worst]:.6g} from state {worst} on, and "
        f"{change[best]:.6g} from state {best} on, so the model is multichain; use "
        "method='policy_iteration', which gives the gain of each state"
    )
