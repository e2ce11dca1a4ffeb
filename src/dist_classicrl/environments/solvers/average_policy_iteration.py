"""Gain and bias of a policy by linear equations, and policy iteration with them, for any chain structure."""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.environments import reachability
from dist_classicrl.environments.finite_model import ArrayModel
from dist_classicrl.environments.sampling.ranges import in_ranges
from dist_classicrl.environments.solvers.chains import recurrent_classes
from dist_classicrl.environments.solvers.policy_value import chain_of, value_within
from dist_classicrl.environments.solvers.process import ROUNDING, best_of
from dist_classicrl.environments.solvers.rows import OngoingRows, RowsProcess
from dist_classicrl.errors import ConvergenceError

#: Gains that differ by less, as a fraction of the largest reward of the chains that have them, are taken for
#: equal, and so are pairs of a state, as one of their reward and of how far the bias moves with them.
_EQUAL = 1e-12

#: Biases may be off by this fraction of what they are sums of.
_BIAS_ROUNDING = 10 * ROUNDING


def restarting_chain(model: ArrayModel, probability: np.ndarray) -> OngoingRows:
    """Return the chain of a policy with a node S, the end, which is left for the first states of episodes."""
    return with_restart(chain_of(model, probability, keep_ends=True), model.start_prob)


def chain_of_actions(model: ArrayModel, policy: np.ndarray) -> OngoingRows:
    """Return it of actions that are legal; -1 where none is."""
    probability = np.zeros((model.n_states, model.n_actions))
    acting = np.flatnonzero(policy >= 0)
    probability[acting, policy[acting]] = 1.0
    return restarting_chain(model, probability)


def with_restart(chain: OngoingRows, start_prob: np.ndarray) -> OngoingRows:
    """Give a chain whose ends are kept the node that they lead to."""
    starts = np.flatnonzero(start_prob)
    return OngoingRows(
        pointer=np.append(chain.pointer, chain.pointer[-1] + starts.size),
        weight=np.append(chain.weight, start_prob[starts]),
        follow=np.append(chain.follow, starts.astype(chain.follow.dtype)),
        reward=np.append(chain.reward, 0.0),
        ends=np.append(chain.ends, 0.0),
    )


def durations_of(chain: OngoingRows) -> np.ndarray:
    """Return the steps that it takes to leave a node, float64: 1, but 0 for the end and dead ends."""
    duration = (np.diff(chain.pointer) > 0).astype(np.float64)
    duration[-1] = 0.0
    return duration


def _expected(chain: OngoingRows, v: np.ndarray) -> np.ndarray:
    source = reachability.rows_of(chain.pointer)
    return np.bincount(source, weights=chain.weight * v[chain.follow], minlength=v.size)


def gain_and_bias(chain: OngoingRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return gain and bias of each node, and how large the numbers are that these are sums of.

    The last, float64, shape (2, nodes), bounds rounding: of gains in row 0, of biases in row 1.

    The bias of one node of each recurrent class is 0. Within a class the gain is what is earned until the
    chain comes back to that node, divided by how long it takes: the renewal reward theorem. What leads there
    follows from ``g = P g`` and ``h = r - g d + P h``. The node is one that is come to often: the
    bias of others is the difference of two sums over the way there, of which little is left where that takes
    long.
    """
    member, n_classes = recurrent_classes(chain.pointer, chain.follow)
    source = reachability.rows_of(chain.pointer)
    share: np.ndarray = np.ones(member.size)
    visits = share.copy()
    for _ in range(1 + 4 * member.size**2 // source.size):  # little beside elimination
        share = np.bincount(chain.follow, weights=chain.weight * share[source], minlength=share.size)
        visits += share
    bases = [np.where(member == number, visits, -1.0).argmax() for number in range(n_classes)]
    duration = durations_of(chain)
    inner = member >= 0
    inner[bases] = False
    earned = value_within(chain, inner, 1.0)
    taken = value_within(chain._replace(reward=duration), inner, 1.0)
    round_earned = (chain.reward + _expected(chain, earned))[bases]
    round_taken = (duration + _expected(chain, taken))[bases]
    recurrent = member >= 0
    gain = np.where(recurrent, (round_earned / round_taken)[member], 0.0)
    bias = np.where(recurrent, earned - gain * taken, 0.0)
    gain += value_within(chain._replace(reward=_expected(chain, gain)), ~recurrent, 1.0)
    rest = chain.reward - gain * duration + _expected(chain, bias)
    bias += value_within(chain._replace(reward=rest), ~recurrent, 1.0)
    largest: np.ndarray = np.zeros(n_classes)
    np.maximum.at(largest, member[recurrent], np.abs(chain.reward[recurrent]))
    sizes = np.abs(np.vstack((gain, gain * taken)))
    sizes[0, recurrent] = largest[member[recurrent]]
    sizes[1] += np.abs(bias)
    return gain, bias, sizes


@jit
def _move(
    rows: OngoingRows, n_actions: int, low: int, high: int, v: np.ndarray, size: np.ndarray, out: np.ndarray
) -> None:
    for s in range(low, high):
        for a in range(n_actions):
            row = s * n_actions + a
            for o in range(rows.pointer[row], rows.pointer[row + 1]):
                follow = rows.follow[o]
                if follow != s:
                    change = rows.weight[o] * (v[follow] - v[s])
                    out[0, s, a] += change
                    out[1, s, a] += abs(change)
                    out[2, s, a] += rows.weight[o] * (size[follow] + size[s])


def moves(process: RowsProcess, v: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return how far `v` moves with each pair, float64, shape (3, S, A): on average, in all, and its size.

    To stay is no move, so that nothing is lost to rounding where a state is hardly left.
    """
    out = np.zeros((3, process.n_states, process.n_actions))
    rows, n_actions = process.rows, process.n_actions
    in_ranges(lambda low, high: _move(rows, n_actions, low, high, v, size, out), process.n_states)
    return out


def solve(
    model: ArrayModel, process: RowsProcess, max_iterations: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return gains and biases of the states and the end, the policy, and iterations: Puterman 1994, 9.2.

    A policy is improved by where its actions lead to, and where that is the best already, by what they are
    worth beyond the gain. What counts is by how much these move from the state itself, beside the rounding
    of numbers that the policy meets there: neither a reward that is never paid nor a state elsewhere, which
    takes long to leave, hides what is better. ConvergenceError where a policy comes again: they differ by
    less than rounding.
    """
    legal, states = process.legal, np.arange(process.n_states)
    reward = process.rows.reward.reshape(legal.shape)
    policy = best_of(process.values(0.0, np.zeros(process.n_states + 1)), legal)[1]
    seen = set()

    def of_policy(each: np.ndarray) -> np.ndarray:
        return np.asarray(each[states, policy][:, None])

    for iteration in range(1, max_iterations + 1):
        seen.add(policy.tobytes())
        gain, bias, sizes = gain_and_bias(chain_of_actions(model, policy))
        led, _, equal = moves(process, gain, sizes[0])
        equal = _EQUAL * np.maximum(equal, of_policy(equal))
        led -= of_policy(led)
        worth, moved, same = moves(process, bias, sizes[1])
        worth += reward
        better = legal & (led > equal)
        if better.any():
            better &= led >= np.where(better, led, -np.inf).max(axis=1, keepdims=True) - equal
        else:
            same = np.maximum(_EQUAL * (np.abs(reward) + moved), _BIAS_ROUNDING * same)
            same = np.maximum(same, of_policy(same))
            better = legal & (led >= -equal) & (worth > of_policy(worth) + same)
            if not better.any():
                return gain, bias, policy, iteration
        choice = best_of(worth, better)[1]
        policy = np.where(choice >= 0, choice, policy)
        if policy.tobytes() in seen:
            raise ConvergenceError(
                f"after iteration {iteration} a policy comes again: with biases of up to "
                f"{float(np.abs(bias).max()):.3g}, policies differ by rounding only; use "
                "method='relative_value_iteration'"
            )
    raise ConvergenceError(
        f"the policy still changed in iteration {max_iterations}; allow more with max_iterations"
    )
