"""The truth that learning is compared with: optimal values of a model, and the exact value of a policy.

Both are for the process without its time limit, because how much time is left is not part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.environments import reachability
from dist_classicrl.environments.model import PROBABILITY_TOLERANCE, TabularMDP
from dist_classicrl.errors import ConvergenceError, SettingsError

#: Sweeps that keep the policy after each one that improves it. They cost a fraction of it, one action of A.
EVALUATIONS_PER_IMPROVEMENT = 20

#: Up to this many states a policy's value comes from one dense linear system, above it from sweeps.
DENSE_STATES = 2_000

#: The bound on the error of a policy's value where it comes from sweeps, unless rounding stops them earlier.
POLICY_TOLERANCE = 1e-10

#: A change of the values below this fraction of the largest value is rounding, and no further sweep can
#: improve it.
ROUNDING = 4 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
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


@jit
def improve(
    pointer: np.ndarray,
    weight: np.ndarray,
    follow: np.ndarray,
    reward: np.ndarray,
    legal: np.ndarray,
    discount: float,
    v: np.ndarray,
    pair: np.ndarray,
) -> float:
    """One Gauss-Seidel sweep of value iteration, in place; return the largest change of a value.

    `legal` has shape (S, A); `pair[s]` becomes the best pair ``s * A + a``, and stays as it is where no
    action is legal. The other arrays are those of `_Continuation`.
    """
    n_states, n_actions = legal.shape
    change = 0.0
    for s in range(n_states):
        best = -np.inf
        for a in range(n_actions):
            if legal[s, a]:
                row = s * n_actions + a
                future = 0.0
                for o in range(pointer[row], pointer[row + 1]):
                    future += weight[o] * v[follow[o]]
                value = reward[row] + discount * future
                if value > best:
                    best = value
                    pair[s] = row
        if best > -np.inf:
            change = max(change, abs(best - v[s]))
            v[s] = best
    return change


@jit
def evaluate(
    pointer: np.ndarray,
    weight: np.ndarray,
    follow: np.ndarray,
    reward: np.ndarray,
    pair: np.ndarray,
    discount: float,
    v: np.ndarray,
) -> float:
    """One Gauss-Seidel sweep for the policy that chooses `pair`, in place; return the largest change.

    A negative entry of `pair` marks a state without a choice, whose value stays.
    """
    change = 0.0
    for s in range(pair.size):
        row = pair[s]
        if row >= 0:
            value = 0.0
            for o in range(pointer[row], pointer[row + 1]):
                value += weight[o] * v[follow[o]]
            value = reward[row] + discount * value
            change = max(change, abs(value - v[s]))
            v[s] = value
    return change


@dataclass(frozen=True, eq=False)
class _Continuation:
    """Rows (pairs, or states of a chain) with their mean reward and the outcomes that go on."""

    pointer: np.ndarray  # int64 (R + 1,): row r goes on with the outcomes pointer[r] to pointer[r + 1] - 1
    weight: np.ndarray  # float64 (C,): their probabilities; what lacks to 1 is the probability of ending
    follow: np.ndarray  # int64 (C,): the states that they reach
    reward: np.ndarray  # float64 (R,): mean reward of a row, transitions that terminate included
    ends: np.ndarray  # bool (R,): whether a row can terminate

    @classmethod
    def of_rows(
        cls, row: np.ndarray, n_rows: int, weight: np.ndarray, outcome: np.ndarray, model: TabularMDP
    ) -> _Continuation:
        """Gather outcomes of `model` into rows; `row` never falls, and `weight` is positive."""
        terminated = model.outcome_terminated[outcome]
        going = ~terminated
        pointer = np.zeros(n_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(row[going], minlength=n_rows), out=pointer[1:])
        return cls(
            pointer=pointer,
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


def solve(
    model: TabularMDP, discount_factor: float, tolerance: float = 1e-10, max_sweeps: int = 100_000
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

    Returns
    -------
    Solution

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    ConvergenceError
        The sweeps were used up: the values are infinite, or need more sweeps.
    """
    discount = _checked_discount(discount_factor)
    if not tolerance > 0:
        raise SettingsError(f"tolerance is {tolerance!r}; it must be above 0, such as 1e-10")
    legal = model.legal_pairs()
    outcome = np.arange(model.outcome_prob.size)
    rows = _Continuation.of_rows(
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


def _sweep_to_optimum(
    rows: _Continuation, legal: np.ndarray, discount: float, tolerance: float, max_sweeps: int
) -> tuple[np.ndarray, int, float]:
    pair = np.full(legal.shape[0], -1, dtype=np.int64)
    v = np.zeros(legal.shape[0])
    arrays = (rows.pointer, rows.weight, rows.follow, rows.reward)
    if discount < 1.0:
        # From below all values, sweeps that keep the policy only raise values (Puterman 1994, theorem 6.5.5).
        v[legal.any(axis=1)] = min(0.0, float(rows.reward.min())) / (1.0 - discount)
    previous = 0.0
    for iteration in range(1, max_sweeps + 1):
        change = improve(*arrays, legal, discount, v, pair)
        residual = _error_bound(change, previous, discount)
        if residual < tolerance or change <= ROUNDING * np.abs(v).max():
            return v, iteration, residual
        previous = change
        if discount < 1.0:
            for _ in range(EVALUATIONS_PER_IMPROVEMENT):
                evaluate(*arrays, pair, discount, v)
    raise ConvergenceError(
        f"the optimal values at discount factor {discount} still changed by {change:.3g} in sweep "
        f"{max_sweeps}; they may be infinite, which a discount factor below 1 cures"
    )


def _error_bound(change: float, previous: float, discount: float) -> float:
    """Return what a geometric series of changes leaves to come; below discount 1 that is a true bound."""
    if change == 0.0:
        return 0.0
    rate = discount
    if discount == 1.0:
        rate = change / previous if previous > 0.0 else 1.0
    return change * rate / (1.0 - rate) if rate < 1.0 else np.inf


def _progressing_policy(
    rows: _Continuation, optimal: np.ndarray, worthless: np.ndarray, policy: np.ndarray
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


def policy_value(model: TabularMDP, policy: np.ndarray, discount_factor: float) -> np.ndarray:
    """Compute the exact value of a policy in every state.

    Up to 2,000 states it is the solution of one dense linear system; above, of sweeps until the bound on
    the error is below 1e-10, or until rounding stops them. At discount factor 1 the value must exist: from
    every state that a reward can follow, the policy must reach, with some probability, a transition that
    terminates or a state that no reward follows.

    Parameters
    ----------
    model : TabularMDP
    policy : ndarray of int, shape (S,), or of float, shape (S, A)
        An action for each state, or probabilities. What stands in a state without legal actions is ignored.
    discount_factor : float
        From 0 to 1.

    Returns
    -------
    ndarray of float64, shape (S,)
        0 in a state without legal actions.

    Raises
    ------
    SettingsError
        The policy or the discount factor is outside what is allowed, or the policy takes an illegal action.
    ConvergenceError
        The discount factor is 1 and rewards go on for ever.
    """
    discount = _checked_discount(discount_factor)
    chain = _chain(model, _checked_policy(model, policy))
    active = np.ones(model.n_states, dtype=bool) if discount < 1.0 else _rewarded_states(chain)
    if model.n_states <= DENSE_STATES:
        return _value_by_linear_system(chain, active, discount)
    return _value_by_sweeps(chain, active, discount)


def _chain(model: TabularMDP, probability: np.ndarray) -> _Continuation:
    """Return the Markov reward process of a policy given as probabilities, shape (S, A)."""
    used = np.flatnonzero(probability.reshape(-1) > 0)
    outcome = reachability.elements_of(model.outcome_ptr, used)
    pair = np.repeat(used, model.outcome_ptr[used + 1] - model.outcome_ptr[used])
    weight = probability.reshape(-1)[pair] * model.outcome_prob[outcome]
    return _Continuation.of_rows(pair // model.n_actions, model.n_states, weight, outcome, model)


def _rewarded_states(chain: _Continuation) -> np.ndarray:
    """Mark the states that a reward can follow, and make sure that each can get away from the rewards."""
    n_states = chain.reward.size
    source = reachability.rows_of(chain.pointer)
    back_pointer, back = reachability.reverse_edges(source, chain.follow, n_states)
    rewarded = reachability.successors_closure(back_pointer, back, chain.reward != 0.0)
    leaving = chain.ends & rewarded
    leaving[source[~rewarded[chain.follow]]] = True
    escaping = reachability.successors_closure(back_pointer, back, leaving & rewarded)
    trapped = np.flatnonzero(rewarded & ~escaping)
    if trapped.size:
        raise ConvergenceError(
            f"at discount factor 1 this policy has no value in state {trapped[0]}: rewards go on for ever, "
            "as no transition that terminates can be reached; use a discount factor below 1"
        )
    return rewarded


def _value_by_linear_system(chain: _Continuation, active: np.ndarray, discount: float) -> np.ndarray:
    """Solve (I - discount P) v = r over the active states; the others are worth 0."""
    states = np.flatnonzero(active)
    n = states.size
    index = np.full(active.size, -1, dtype=np.int64)
    index[states] = np.arange(n)
    source = reachability.rows_of(chain.pointer)
    inside = active[source] & active[chain.follow]
    cell = index[source[inside]] * n + index[chain.follow[inside]]
    transition = np.bincount(cell, weights=chain.weight[inside], minlength=n * n).reshape(n, n)
    v = np.zeros(active.size)
    v[states] = np.linalg.solve(np.eye(n) - discount * transition, chain.reward[states])
    return v


def _value_by_sweeps(
    chain: _Continuation, active: np.ndarray, discount: float, max_sweeps: int = 1_000_000
) -> np.ndarray:
    v = np.zeros(active.size)
    row = np.where(active, np.arange(active.size), -1)
    previous = 0.0
    for _ in range(max_sweeps):
        change = evaluate(chain.pointer, chain.weight, chain.follow, chain.reward, row, discount, v)
        if (
            _error_bound(change, previous, discount) < POLICY_TOLERANCE
            or change <= ROUNDING * np.abs(v).max()
        ):
            return v
        previous = change
    raise ConvergenceError(
        f"the policy's values at discount factor {discount} still changed by {change:.3g} in sweep "
        f"{max_sweeps}; use a smaller discount factor"
    )


def _checked_discount(value: Any) -> float:
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0.0 <= value <= 1.0:
        raise SettingsError(f"discount_factor is {value!r}; it must be a number from 0 to 1, such as 0.99")
    return float(value)


def _checked_policy(model: TabularMDP, policy: Any) -> np.ndarray:
    """Return the policy as probabilities, float64, shape (S, A), zero in states without legal actions."""
    given = np.asarray(policy)
    S, A = model.n_states, model.n_actions
    legal = model.legal_pairs()
    acting = np.flatnonzero(legal.any(axis=1))
    probability = np.zeros((S, A))
    if given.shape == (S,) and given.dtype.kind in "iu":
        outside = acting[(given[acting] < 0) | (given[acting] >= A)]
        if outside.size:
            raise SettingsError(
                f"the policy takes action {given[outside[0]]} in state {outside[0]}; actions are 0 to {A - 1}"
            )
        probability[acting, given[acting]] = 1.0
    elif given.shape == (S, A) and given.dtype.kind in "fiu":
        probability[acting] = given[acting]
        total = probability[acting].sum(axis=1)
        # Written so that NaN fails the test as well.
        sound = (np.abs(total - 1.0) <= PROBABILITY_TOLERANCE) & (probability[acting] >= 0).all(axis=1)
        if not sound.all():
            s = acting[np.flatnonzero(~sound)[0]]
            raise SettingsError(
                f"the policy's probabilities in state {s} are {given[s]}; they must be at least 0 "
                "and add up to 1"
            )
        probability[acting] /= total[:, None]
    else:
        raise SettingsError(
            f"the policy has shape {given.shape} and dtype {given.dtype}; it must be actions, int with "
            f"shape ({S},), or probabilities, float with shape ({S}, {A})"
        )
    illegal = np.argwhere((probability > 0) & ~legal)
    if illegal.size:
        s, a = illegal[0]
        raise SettingsError(
            f"the policy takes action {a} in state {s}, which is illegal there; legal are "
            f"{np.flatnonzero(legal[s]).tolist()}"
        )
    return probability
