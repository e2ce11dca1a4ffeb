"""The truth that learning is compared with: the optimal values of a model.

They are for the process without its time limit, because how much time is left is not part of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl._jit import compiled_for, jit
from dist_classicrl.environments import reachability
from dist_classicrl.environments.sweeps import ROUNDING, OngoingRows, checked_discount, error_bound, evaluate
from dist_classicrl.errors import ConvergenceError, SettingsError

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

#: Sweeps that keep the policy after each one that improves it. They cost a fraction of it, one action of A.
EVALUATIONS_PER_IMPROVEMENT = 20

MOST_SWEEPS = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Optimal values of a `TabularMDP`.

    Attributes
    ----------
    q : ndarray of float64, shape (S, A)
        Value of each pair; 0 where the pair is illegal.
    v : ndarray of float64, shape (S,)
        The largest `q` of the legal actions; 0 in a state that has none.
    policy : ndarray of int64, shape (S,)
        A legal action that attains `v`; -1 in a state that has none.
    iterations : int
        Improving sweeps over all pairs.
    residual : float
        For discount factors below 1 a bound on the error of every entry of `q` and `v`, but for rounding.
        It is larger than the tolerance only where rounding ended the sweeps. For discount factor 1 an
        estimate of it.
    """

    q: np.ndarray
    v: np.ndarray
    policy: np.ndarray
    iterations: int
    residual: float

    def __repr__(self) -> str:
        n_states, n_actions = self.q.shape
        return (
            f"Solution({n_states:,} states, {n_actions:,} actions, values from {self.v.min():.4g} to "
            f"{self.v.max():.4g}, {self.iterations:,} iterations, residual {self.residual:.2g})"
        )


@jit
def improve(rows: OngoingRows, legal: np.ndarray, discount: float, v: np.ndarray, pair: np.ndarray) -> float:
    """One Gauss-Seidel sweep of value iteration, in place; return the largest change of a value.

    `legal` has shape (S, A); `pair[s]` becomes the best pair ``s * A + a``, and stays as it is where no
    action is legal.
    """
    n_states, n_actions = legal.shape
    change = 0.0
    for s in range(n_states):
        best = -np.inf
        for a in range(n_actions):
            if legal[s, a]:
                row = s * n_actions + a
                future = 0.0
                for o in range(rows.pointer[row], rows.pointer[row + 1]):
                    future += rows.weight[o] * v[rows.follow[o]]
                value = rows.reward[row] + discount * future
                if value > best:
                    best = value
                    pair[s] = row
        if best > -np.inf:
            change = max(change, abs(best - v[s]))
            v[s] = best
    return change


def solve(
    model: TabularMDP, discount_factor: float, tolerance: float = 1e-10, max_sweeps: int = MOST_SWEEPS
) -> Solution:
    """Compute optimal values and a policy that attains them, by value iteration.

    Sweeps run in place (Gauss-Seidel). For discount factors g below 1, each is followed by sweeps that keep
    the policy (modified policy iteration: Puterman 1994, sections 6.3.3 and 6.5), and they stop when the
    bound on the error, ``g / (1 - g)`` times the largest change of a value, is below the tolerance.

    At discount factor 1 the sweeps start from 0 and improve only. There is no such bound then, so they stop
    when the error that a geometric series predicts from the last two changes is below the tolerance. Among
    actions that are equally good, the policy there takes one that makes progress towards the end of the
    episode, since one that waits for ever is never paid.

    Parameters
    ----------
    model : TabularMDP
    discount_factor : float
        From 0 to 1. At 1 the values must be finite, as they are where every policy ends or waiting has a
        cost.
    tolerance : float
        Largest error of a value; above 0.
    max_sweeps : int
        Improving sweeps before it gives up.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    ConvergenceError
        The sweeps were used up: the values are infinite, or need more sweeps.
    """
    discount = checked_discount(discount_factor)
    check_tolerance(tolerance)
    legal = model.legal_pairs()
    outcome = np.arange(model.outcome_prob.size)
    rows = OngoingRows.of_rows(
        reachability.rows_of(model.outcome_ptr), legal.size, model.outcome_prob, outcome, model
    )
    v, iterations, residual = _sweep_to_optimum(rows, legal, discount, tolerance, max_sweeps)
    q = np.where(legal, rows.values(discount, v).reshape(legal.shape), 0.0)
    acting = legal.any(axis=1)
    policy = np.where(acting, np.where(legal, q, -np.inf).argmax(axis=1), -1)
    v = np.where(acting, q[np.arange(model.n_states), policy], 0.0)
    if discount == 1.0:
        tie = 10 * max(residual, ROUNDING * float(np.abs(v).max()))
        policy = _progressing_policy(rows, legal & (q >= v[:, None] - tie), np.abs(v) <= tie, policy)
    return Solution(q=q, v=v, policy=policy, iterations=iterations, residual=residual)


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that is not above 0."""
    if not tolerance > 0:
        raise SettingsError(f"tolerance is {tolerance!r}; it must be above 0, such as 1e-10")


def _sweep_to_optimum(
    rows: OngoingRows, legal: np.ndarray, discount: float, tolerance: float, max_sweeps: int
) -> tuple[np.ndarray, int, float]:
    pair = np.full(legal.shape[0], -1, dtype=np.int64)
    v = np.zeros(legal.shape[0])
    if discount < 1.0:
        # From below all values, sweeps that keep the policy only raise values (Puterman 1994, theorem 6.5.5).
        v[legal.any(axis=1)] = min(0.0, float(rows.reward.min())) / (1.0 - discount)
    evaluate_again = compiled_for(evaluate, rows, pair, discount, v)
    iterations, residual = to_optimum(
        lambda: improve(rows, legal, discount, v, pair),
        lambda: evaluate_again(rows, pair, discount, v),
        v,
        discount,
        tolerance,
        max_sweeps,
    )
    return v, iterations, residual


def to_optimum(
    improve: Callable[[], float],
    evaluate: Callable[[], float],
    v: np.ndarray,
    discount: float,
    tolerance: float,
    max_sweeps: int = MOST_SWEEPS,
) -> tuple[int, float]:
    """Call sweeps until `v`, which they change, is optimal; return improving sweeps and residual.

    See `solve`. Sweeps return the largest change of a value.
    """
    previous = 0.0
    for iteration in range(1, max_sweeps + 1):
        change = improve()
        residual = error_bound(change, previous, discount)
        if residual < tolerance or change <= ROUNDING * np.abs(v).max():
            return iteration, residual
        previous = change
        if discount < 1.0:
            for _ in range(EVALUATIONS_PER_IMPROVEMENT):
                evaluate()
    raise ConvergenceError(
        f"the optimal values at discount factor {discount} still changed by {change:.3g} in sweep "
        f"{max_sweeps}; they may be infinite, which a discount factor below 1 cures"
    )


def _progressing_policy(
    rows: OngoingRows, optimal: np.ndarray, worthless: np.ndarray, policy: np.ndarray
) -> np.ndarray:
    """Choose among the optimal pairs, bool, shape (S, A), so that every value is really collected.

    First find the states where one can go on for ever at no reward and lose nothing, since their value is
    0. Then, from these and from the transitions that terminate, work backwards: a state takes an optimal
    action that leads with some probability to where the ones before it lead.
    """
    policy = policy.copy()
    row = reachability.rows_of(rows.pointer)
    free = optimal & (rows.reward == 0.0).reshape(optimal.shape)
    settled = worthless & free.any(axis=1)
    while True:
        leaving = np.bincount(row, weights=~settled[rows.follow], minlength=optimal.size) > 0
        staying = free & ~leaving.reshape(optimal.shape)
        remaining = settled & staying.any(axis=1)
        if (remaining == settled).all():
            break
        settled = remaining
    policy[settled] = staying[settled].argmax(axis=1)
    while True:
        arriving = np.bincount(row, weights=settled[rows.follow], minlength=optimal.size) > 0
        progress = optimal & (arriving | rows.ends).reshape(optimal.shape)
        fresh = ~settled & progress.any(axis=1)
        if not fresh.any():
            return policy
        policy[fresh] = progress[fresh].argmax(axis=1)
        settled |= fresh
