"""The largest average reward of a step, and that of a policy.

An episode that ends begins anew from the start distribution: its end is a node of its own, S, which takes
no time and is left for the states that episodes start in. Where the end is worth `start_prob @ v`, all else
is as for processes that never end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dist_classicrl.environments import reachability
from dist_classicrl.environments.finite_model import ArrayModel
from dist_classicrl.environments.solution import AverageSolution, PolicyGain
from dist_classicrl.environments.solvers import average_policy_iteration as policy_iteration
from dist_classicrl.environments.solvers.chains import periods_of, recurrent_classes
from dist_classicrl.environments.solvers.policy_value import DENSE_STATES, chain_of, checked_policy
from dist_classicrl.environments.solvers.process import (
    MOST_SWEEPS,
    Process,
    Sweeps,
    best_of,
    check_limits,
    check_method,
)
from dist_classicrl.environments.solvers.relative_values import sweep_to_gain
from dist_classicrl.environments.solvers.rows import OngoingRows, RowsProcess
from dist_classicrl.errors import SettingsError

METHODS = ("relative_value_iteration", "policy_iteration")


def solve(
    model: ArrayModel, tolerance: float = 1e-10, method: str = METHODS[0], max_iterations: int = MOST_SWEEPS
) -> AverageSolution:
    """Do what `TabularMDP.solve_average_reward` does."""
    check_limits(tolerance, max_iterations)
    check_method(method, METHODS)
    process = RowsProcess.of_model(model, keep_ends=True)
    if method == "relative_value_iteration":
        found = of_process(
            process,
            process.legal,
            model.start_prob,
            tolerance,
            max_iterations,
            lambda: not _has_one_gain(process, model.start_prob),
        )
    elif model.n_states > DENSE_STATES:
        raise SettingsError(
            f"method is 'policy_iteration', which solves linear equations of up to {DENSE_STATES:,} states; "
            f"this model has {model.n_states:,}: use 'relative_value_iteration'"
        )
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # what it returns is looked at
            gains, bias, policy, iterations = policy_iteration.solve(model, process, max_iterations)
        found = _solution(process, process.legal, model.start_prob, gains, bias, policy, iterations, 0.0)
    periods = _periods(policy_iteration.chain_of_actions(model, found.policy))
    return replace(found, periods=periods)


def of_process(
    process: Process,
    legal: np.ndarray,
    start_prob: np.ndarray,
    tolerance: float,
    max_iterations: int,
    can_differ: Callable[[], bool],
) -> AverageSolution:
    """Do it by relative value iteration, with arguments that are checked; periods are not known then."""
    sweeps, acting = Sweeps(process, 1.0), np.any(legal, axis=1)
    gain, error, iterations = sweep_to_gain(
        sweeps, start_prob, acting, tolerance, max_iterations, True, can_differ
    )
    gains = np.where(acting, gain, 0.0)
    return _solution(process, legal, start_prob, gains, sweeps.v, None, iterations, error)


def _solution(
    process: Process,
    legal: np.ndarray,
    start_prob: np.ndarray,
    gains: np.ndarray,
    bias: np.ndarray,
    policy: np.ndarray | None,
    iterations: int,
    error: float,
) -> AverageSolution:
    bias = _centered(bias, start_prob, np.any(legal, axis=1))
    gains = gains[: process.n_states]
    with np.errstate(over="ignore", invalid="ignore"):
        q = np.where(legal, process.values(1.0, np.append(bias, 0.0)) - gains[:, None], 0.0)
    policy = best_of(q, legal)[1] if policy is None else policy
    return AverageSolution(gains, float(start_prob @ gains), bias, None, error, q, policy, iterations)


def _centered(bias: np.ndarray, start_prob: np.ndarray, acting: np.ndarray) -> np.ndarray:
    """Return the biases of the states, for which the mean over the start distribution is 0."""
    bias = bias[: acting.size]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(acting, bias - start_prob @ bias, 0.0)


def _periods(chain: OngoingRows) -> tuple[int, ...]:
    member, n_classes = recurrent_classes(chain.pointer, chain.follow)
    duration = policy_iteration.durations_of(chain).astype(np.int64)
    return periods_of(chain.pointer, chain.follow, member, n_classes, duration)


def policy_gain(
    model: ArrayModel, policy: np.ndarray, tolerance: float = 1e-10, max_iterations: int = MOST_SWEEPS
) -> PolicyGain:
    """Do what `TabularMDP.policy_gain` does."""
    check_limits(tolerance, max_iterations)
    probability = checked_policy(model, policy)
    acting, start_prob = np.any(probability, axis=1), model.start_prob
    chain = policy_iteration.restarting_chain(model, probability)
    periods = _periods(chain)
    if model.n_states > DENSE_STATES:
        process = RowsProcess.of_chain(chain_of(model, probability, keep_ends=True))
        actions = np.where(acting, 0, -1)
        many = len(periods) > 1
        found = gain_of_process(process, actions, start_prob, acting, tolerance, max_iterations, lambda: many)
        return replace(found, periods=periods)
    with np.errstate(over="ignore", invalid="ignore"):
        gains, bias, _ = policy_iteration.gain_and_bias(chain)
    gains, bias = gains[:-1], _centered(bias, start_prob, acting)
    return PolicyGain(gains, float(start_prob @ gains), bias, periods, 0.0)


def gain_of_process(
    process: Process,
    actions: np.ndarray,
    start_prob: np.ndarray,
    acting: np.ndarray,
    tolerance: float,
    max_iterations: int,
    can_differ: Callable[[], bool],
) -> PolicyGain:
    """Find the gain of a policy by sweeps, with arguments that are checked; periods are not known then."""
    sweeps = Sweeps(process, 1.0)
    sweeps.policy = actions
    gain, error, _ = sweep_to_gain(sweeps, start_prob, acting, tolerance, max_iterations, False, can_differ)
    gains = np.where(acting, gain, 0.0)
    bias = _centered(sweeps.v, start_prob, acting)
    return PolicyGain(gains, float(start_prob @ gains), bias, None, error)


def _has_one_gain(process: RowsProcess, start_prob: np.ndarray) -> bool:
    """Say whether a model is weakly communicating: then the largest gain is the same everywhere.

    All states but those of one class, in which one can get from each to each, are left whatever one does
    (Puterman 1994, section 8.3).
    """
    rows, legal, S = process.rows, process.legal, process.n_states
    pair = reachability.rows_of(rows.pointer)
    used = legal.reshape(-1)[pair]
    state, follow = pair[used] // legal.shape[1], rows.follow[used]
    empty = np.zeros(S)
    graph = OngoingRows(reachability.row_pointer(state, S), empty[:0], follow, empty, empty)
    graph = policy_iteration.with_restart(graph, start_prob)
    member, n_classes = recurrent_classes(graph.pointer, graph.follow)
    if n_classes > 1:
        return False
    kept = (member < 0) & (np.diff(graph.pointer) > 0)
    while True:
        leaving = np.bincount(pair, weights=~kept[rows.follow], minlength=legal.size) > 0
        staying = np.append(
            (legal & ~leaving.reshape(legal.shape)).any(axis=1), kept[:S][start_prob > 0].all()
        )
        if (kept == (kept & staying)).all():
            return not kept.any()
        kept &= staying
