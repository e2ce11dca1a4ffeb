"""The exact value of a policy in a model, without the model's time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.checks import YesOrNo, as_array, sum_tolerance
from dist_classicrl.environments import reachability
from dist_classicrl.environments.finite_model import ArrayModel, Pairs
from dist_classicrl.environments.solution import check_finite
from dist_classicrl.environments.solvers.process import Changes, Sweeps, checked_discount
from dist_classicrl.environments.solvers.rows import OngoingRows, RowsProcess
from dist_classicrl.errors import ConvergenceError, SettingsError

#: Up to this many states a policy's value comes from one dense linear system, above it from sweeps.
DENSE_STATES = 2_000

#: The bound on the error of a policy's value where it comes from sweeps, unless rounding stops them earlier.
POLICY_TOLERANCE = 1e-10

MOST_SWEEPS = 1_000_000

EPSILON = np.finfo(np.float64).eps


def policy_value(
    model: ArrayModel, policy: np.ndarray, discount_factor: float, from_start: bool = False
) -> np.ndarray:
    """Compute the exact value of a policy in every state.

    Up to 2,000 states it is the solution of one dense linear system; above, of sweeps until the bound on
    the error is below 1e-10, or until rounding stops them. At discount factor 1 the value must exist: from
    every state that a reward can follow, the policy must reach, with some probability, a transition that
    terminates or a state that no reward follows.

    Parameters
    ----------
    model : TabularMDP
    policy : ndarray of int, shape (S,), or of float, shape (S, A)
        An action for each state, or probabilities; states without legal actions are ignored, and worth 0.
    discount_factor : float
        From 0 to 1.
    from_start : bool
        At discount factor 1, leave out the states that no episode of this policy comes to: they need no
        value, and are worth 0.

    Raises
    ------
    SettingsError
        The policy or the discount factor is outside what is allowed, or the policy takes an illegal action.
    ConvergenceError
        The discount factor is 1 and rewards go on for ever.
    """
    discount = checked_discount(discount_factor)
    from_start = YesOrNo()("from_start", from_start)
    with np.errstate(over="ignore", invalid="ignore"):  # it is said below
        chain = chain_of(model, checked_policy(model, policy))
        v = _value(chain, discount, model.start_prob > 0.0 if from_start else None)
    check_finite(v)
    return v


def value_of_actions(model: ArrayModel, policy: np.ndarray, discount: float) -> np.ndarray:
    """Do what `policy_value` does for actions that are legal; -1 where none is."""
    return _value(_chain_of_actions(model, policy), discount)


def check_has_value(model: ArrayModel, policy: np.ndarray) -> None:
    """Raise ConvergenceError unless such actions have a value at discount factor 1."""
    _rewarded_states(_chain_of_actions(model, policy), None)


def _chain_of_actions(model: ArrayModel, policy: np.ndarray) -> OngoingRows:
    acting = np.flatnonzero(policy >= 0)
    pair = acting * model.n_actions + policy[acting]
    return _chain_of_pairs(model, pair, np.ones(pair.size))


def chain_of(model: ArrayModel, probability: np.ndarray, keep_ends: bool = False) -> OngoingRows:
    """Return the Markov reward process of a policy given as probabilities, shape (S, A)."""
    used = np.flatnonzero(probability.reshape(-1) > 0)
    return _chain_of_pairs(model, used, probability.reshape(-1)[used], keep_ends)


def _chain_of_pairs(
    model: ArrayModel, pair: np.ndarray, probability: np.ndarray, keep_ends: bool = False
) -> OngoingRows:
    outcome = reachability.elements_of(model.outcome_ptr, pair)
    sizes = model.outcome_ptr[pair + 1] - model.outcome_ptr[pair]
    weight = np.repeat(probability, sizes) * model.outcome_prob[outcome]
    state = np.repeat(pair // model.n_actions, sizes)
    return OngoingRows.of_rows(state, model.n_states, weight, outcome, model, keep_ends)


def _value(chain: OngoingRows, discount: float, starts: np.ndarray | None = None) -> np.ndarray:
    active = np.ones(chain.reward.size, dtype=bool) if discount < 1.0 else _rewarded_states(chain, starts)
    return value_within(chain, active, discount)


def value_within(chain: OngoingRows, active: np.ndarray, discount: float) -> np.ndarray:
    """Return the value of each state of a chain when those that are not `active` are worth 0."""
    if chain.reward.size <= DENSE_STATES + 1:  # average rewards have a node for the end
        return _value_by_linear_system(chain, active, discount)
    return _value_by_sweeps(chain, active, discount)


def _rewarded_states(chain: OngoingRows, starts: np.ndarray | None) -> np.ndarray:
    """Mark the states that a reward can follow, and make sure that each can get away from the rewards.

    Where `starts` are marked, those that they do not lead to are left out.
    """
    n_states = chain.reward.size
    source = reachability.rows_of(chain.pointer)
    back_pointer, back = reachability.reverse_edges(source, chain.follow, n_states)
    rewarded = reachability.successors_closure(back_pointer, back, chain.reward != 0.0)
    if starts is not None:
        rewarded &= reachability.successors_closure(chain.pointer, chain.follow, starts)
    leaving = (chain.ends > 0.0) & rewarded
    leaving[source[~rewarded[chain.follow]]] = True
    escaping = reachability.successors_closure(back_pointer, back, leaving & rewarded)
    trapped = np.flatnonzero(rewarded & ~escaping)
    if trapped.size:
        raise ConvergenceError(
            f"at discount factor 1 this policy has no value in state {trapped[0]}: rewards go on for ever, "
            "as no transition that terminates can be reached; use a discount factor below 1"
        )
    return rewarded


def _value_by_linear_system(chain: OngoingRows, active: np.ndarray, discount: float) -> np.ndarray:
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
    solution = chain.reward[states]
    left = np.where(active[chain.follow], 0.0, chain.weight)
    exits: np.ndarray = chain.ends + np.bincount(source, weights=left, minlength=active.size)
    exits[np.diff(chain.pointer) == 0] = 1.0  # also where nothing is done
    exits = 1.0 - discount + discount * exits[states]
    # Not by LAPACK: where processes share the cores, its threads wait for each other a hundred times as long.
    stuck = solve_in_place(np.eye(n) - discount * transition, solution, exits, np.empty(n, np.int64))
    if stuck >= 0:
        raise ConvergenceError(
            f"the policy has no finite value in state {states[stuck]} at discount factor {discount}: to "
            "double precision rewards go on for ever; use a smaller discount factor"
        )
    v[states] = solution
    return v


@jit
def solve_in_place(a: np.ndarray, b: np.ndarray, exits: np.ndarray, ends: np.ndarray) -> int:
    """Let `b` be the solution of a x = b, by elimination row by row; `a` is used up.

    Both are float64, of shape (n, n) and (n,); beside the diagonal of `a` nothing is positive. Its rows or
    columns are dominated by their diagonals, so that no pivots have to be looked for; of its zeros few are
    met. `exits`, float64 of shape (n,), is what each row adds up to, at least 0, and is used up: pivots are
    sums of it and of what is beside the diagonal, so that nothing is lost to rounding however small they are
    (Grassmann, Taksar and Heyman 1985). Where it has shape (0,) pivots are differences, and those that may
    be rounding count as none. `ends`, int64 of shape (n,), is for where each row has zeros only. Return -1,
    or the first row without a pivot.
    """
    n = b.size
    least = 0.0 if exits.size else n * EPSILON
    for i in range(n):
        end = n
        while end > i + 1 and a[i, end - 1] == 0.0:
            end -= 1
        for k in range(i):
            if a[i, k] != 0.0:
                factor = a[i, k] / a[k, k]
                for j in range(k + 1, ends[k]):
                    a[i, j] -= factor * a[k, j]
                b[i] -= factor * b[k]
                end = max(end, ends[k])
                if exits.size:
                    exits[i] -= factor * exits[k]
        if exits.size:
            a[i, i] = exits[i]
            for j in range(i + 1, end):
                a[i, i] -= a[i, j]
        if a[i, i] <= least:
            return i
        ends[i] = end
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, ends[i]):
            b[i] -= a[i, j] * b[j]
        b[i] /= a[i, i]
    return -1


def _value_by_sweeps(chain: OngoingRows, active: np.ndarray, discount: float) -> np.ndarray:
    sweeps = Sweeps(RowsProcess.of_chain(chain), discount)
    sweeps.policy[active] = 0
    to_value(sweeps)
    return sweeps.v[:-1]


def to_value(sweeps: Sweeps) -> None:
    """Sweep until the values are those of the policy."""
    changes = Changes(sweeps.discount)
    for _ in range(MOST_SWEEPS):
        change = sweeps.evaluate()
        if changes.bound(change) < POLICY_TOLERANCE or sweeps.is_rounding(change):
            return
    raise ConvergenceError(
        f"the policy's values at discount factor {sweeps.discount} still changed by {change:.3g} in sweep "
        f"{MOST_SWEEPS}; use a smaller discount factor"
    )


def checked_policy(model: Pairs, policy: Any, states: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """Return the policy as probabilities, float64, shape (S, A), zero in states without legal actions.

    `states` are the numbers by which errors call them, where these are others than 0 to S - 1.
    """
    given = as_array("policy", policy)
    S, A = model.n_states, model.n_actions
    names = range(S) if states is None else states
    legal = model.legal_pairs()
    acting = np.flatnonzero(legal.any(axis=1))
    probability = np.zeros((S, A))
    if given.shape == (S,) and given.dtype.kind in "iu":
        actions = checked_actions(given, legal, names)
        probability[acting, actions[acting]] = 1.0
    elif given.shape == (S, A) and given.dtype.kind in "fiu":
        probability[acting] = given[acting]
        total = probability[acting].sum(axis=1)
        # Written so that NaN fails the test as well.
        sound = (np.abs(total - 1.0) <= sum_tolerance(given)) & (probability[acting] >= 0).all(axis=1)
        if not sound.all():
            s = acting[np.flatnonzero(~sound)[0]]
            raise SettingsError(
                f"the policy's probabilities in state {names[s]} are {given[s]}; they must be at least 0 "
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
        raise _takes_illegal(a, names[s], legal[s])
    return probability


def checked_actions(given: np.ndarray, legal: np.ndarray, states: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the actions of states, int64, -1 where none is legal.

    `legal` is bool, shape (states, A), and `states` are their numbers.
    """
    A = legal.shape[1]
    acting = np.flatnonzero(legal.any(axis=1))
    taken = given[acting]
    outside = np.flatnonzero((taken < 0) | (taken >= A))
    if outside.size:
        state, action = states[acting[outside[0]]], taken[outside[0]]
        raise SettingsError(f"the policy takes action {action} in state {state}; actions are 0 to {A - 1}")
    illegal = np.flatnonzero(~legal[acting, taken])
    if illegal.size:
        s = acting[illegal[0]]
        raise _takes_illegal(given[s], states[s], legal[s])
    actions = np.full(given.size, -1, np.int64)
    actions[acting] = taken
    return actions


def _takes_illegal(action: int, state: int, legal: np.ndarray) -> SettingsError:
    return SettingsError(
        f"the policy takes action {action} in state {state}, which is illegal there; legal are "
        f"{np.flatnonzero(legal).tolist()}"
    )
