"""What a policy is worth, by episodes that were played with another one.

Ordinary and weighted importance sampling: Sutton and Barto (2018), sections 5.5 and 5.6. Per decision:
section 5.9, after Precup, Sutton and Singh (2000). By the model: the value in the empirical model. Its error
is that of its influence function, the efficient one: Kallus and Uehara, "Double reinforcement learning for
efficient off-policy evaluation in Markov decision processes", JMLR 21, 2020.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dist_classicrl._student import t_quantile
from dist_classicrl.checks import as_float, is_real
from dist_classicrl.data.acted import Acted, in_rows_of
from dist_classicrl.data.empirical import empirical_model
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.environments.reachability import reverse_edges, rows_of, successors_closure
from dist_classicrl.environments.solvers.policy_value import (
    DENSE_STATES,
    MOST_SWEEPS,
    chain_of,
    solve_in_place,
)
from dist_classicrl.environments.solvers.process import check_method, checked_discount
from dist_classicrl.environments.solvers.rows import OngoingRows
from dist_classicrl.errors import ConvergenceError, DataError, SettingsError

METHODS = ("weighted", "ordinary", "per_decision", "model")

_MOST_SCORES = 500
_EPISODES = 1024
"""Whose scores are in memory at a time."""


@dataclass(frozen=True, repr=False)
class ValueEstimate:
    """What a policy is worth from the first states of the episodes on, and how sure that is.

    Attributes
    ----------
    value : float
        Mean discounted return.
    low, high : float
        An interval that covers the true value in a share `confidence` of all samples, as far as episodes are
        many and no weight is much larger than the others. Infinite, as the error, where "weighted" has
        effective episodes that round to one.
    standard_error : float
    episodes : int
    effective_episodes : float
        How many episodes of the policy itself would tell as much by their weights: ``(sum w)**2 / sum w**2``.
        For "model" the number of episodes.
    method : str
    confidence : float
    """

    value: float
    low: float
    high: float
    standard_error: float
    episodes: int
    effective_episodes: float
    method: str
    confidence: float

    def __repr__(self) -> str:
        return (
            f"ValueEstimate({self.value:.4g}, {100 * self.confidence:.12g}% from {self.low:.4g} to "
            f"{self.high:.4g}, {self.method}, {self.episodes:,} episodes worth "
            f"{self.effective_episodes:,.4g})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)


def estimate_value(
    transitions: Any,
    policy: np.ndarray,
    discount_factor: float,
    method: str = "weighted",
    behavior: np.ndarray | None = None,
    confidence: float = 0.95,
) -> ValueEstimate:
    """Estimate what a policy is worth from episodes that another one played.

    Parameters
    ----------
    transitions
        As `Transitions.of` takes them; whole episodes, in order. To importance sampling one that was cut off
        is what was collected until then, to the model its last state has the value that it has there.
    policy : ndarray of int, shape (S,), or of float, shape (S, A), or Policy
        An action for each state, or probabilities; only states in which somebody acted matter. An agent's
        `policy` knows what its environment calls the states, where they are not counted from 0.
    discount_factor : float
        From 0 to 1.
    method : str
        "ordinary" importance sampling has no bias, "weighted" far less variance and a bias that vanishes;
        "per_decision" weighs each reward by the actions before it only. "model" solves the model that the
        transitions suggest: the surest where states are truly Markov and all that the policy does was tried.
    behavior : ndarray of float, shape (S, A), optional
        The probabilities with which the actions were chosen. None: how often they were in each state, which
        gives less variance than the true ones where behavior depends on the state alone. "model" does not
        need it.
    confidence : float
        Of the interval, above 0 and below 1.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    DataError
        Fewer than two episodes; an action that was taken and has probability 0; weights that are all 0, or,
        but for "weighted", beyond all numbers; a policy that says nothing of a state in which somebody acted;
        or one that does what was never tried, where the model is asked.
    ConvergenceError
        The discount factor is 1, and in the model the policy never ends.
    """
    check_method(method, METHODS)
    discount = checked_discount(discount_factor)
    if not is_real(confidence) or not 0.0 < as_float(confidence) < 1.0:
        raise SettingsError(f"confidence is {confidence!r}; it must be above 0 and below 1, such as 0.95")
    policy, data = in_rows_of(policy, transitions)
    acted = Acted.of(data, policy, behavior)
    data, n = acted.transitions, data.starts.size
    if n < 2:
        raise DataError("there is one episode only; an interval takes at least two, and is good with 100")
    target = acted.chances("policy", policy)
    evidence, effective = n, float(n)
    if method == "model":
        if behavior is not None:
            acted.chances("behavior", behavior)
        value, influence = _by_model(acted, target, discount)
    else:
        ratio = log_ratios(acted, target, behavior)
        value, influence, weights = _by_weights(data, ratio, discount, method)
        if behavior is None:
            influence = _less_what_was_counted(acted, influence)
        effective = float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0
        if method == "weighted":  # what has hardly any weight is no evidence
            evidence = round(effective)
    error = reach = np.inf
    if evidence > 1:
        error = float(np.sqrt((influence**2).sum() * evidence / (evidence - 1.0)) / n)
        reach = t_quantile(evidence - 1, float(confidence)) * error
    return ValueEstimate(value, value - reach, value + reach, error, n, effective, method, float(confidence))


def log_ratios(acted: Acted, target: np.ndarray, behavior: Any) -> np.ndarray:
    """Return the log of how much more likely the policy takes each action than what took it."""
    data = acted.transitions
    if behavior is None:
        _, pair, times = np.unique(acted.pairs, return_inverse=True, return_counts=True)
        chosen = times[pair] / np.bincount(data.states)[data.states]
    else:
        chosen = acted.chances("behavior", behavior)[data.states, data.actions]
    never = np.flatnonzero(chosen == 0.0)
    if never.size:
        i = never[0]
        raise DataError(
            f"transition {i} takes action {data.actions[i]} in state {acted.states[data.states[i]]}, which "
            "has probability 0 in behavior: give the probabilities with which these actions were chosen"
        )
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(target[data.states, data.actions]) - np.log(chosen))


def check_weights(weighed: np.ndarray, others: str) -> None:
    """Raise DataError, which advises `others`, where weights have gone beyond what numbers can hold."""
    if not np.isfinite(weighed).all():
        raise DataError(
            "an episode is so much likelier under the policy than under behavior that its weight is beyond "
            f"all numbers; use {others}, shorter episodes, or ones that were played more as the policy would"
        )


def _by_weights(
    data: Transitions, log_ratio: np.ndarray, discount: float, method: str
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the estimate, what each episode adds to n times its error, and weights over the largest.

    Weights of long episodes are beyond all numbers, or below, so that their logs are added up.
    """
    starts, n = data.starts, data.starts.size
    lengths = np.diff(np.append(starts, len(data)))
    collected = np.zeros(n)
    logs = np.zeros(n)
    for t in range(int(lengths.max())):
        alive = np.flatnonzero(lengths > t)
        at = starts[alive] + t
        logs[alive] += log_ratio[at]
        with np.errstate(over="ignore", invalid="ignore"):
            before = np.exp(logs[alive]) if method == "per_decision" else 1.0
            collected[alive] += discount**t * before * data.rewards[at]
    largest = logs.max()
    begins = (log_ratio[starts] > -np.inf).any()  # some episode begins with an action that the policy takes
    if not (begins if method == "per_decision" else largest > -np.inf):
        others = "method='per_decision' or 'model'" if begins else "method='model'"
        raise DataError(
            "no episode has only actions that the policy takes, so their weights are all 0; use "
            f"{others}, or other episodes"
        )
    weights = np.exp(logs - largest) if largest > -np.inf else np.zeros(n)
    if method == "weighted":
        total = weights.sum()
        value = float((weights * collected).sum() / total)
        return value, n * weights * (collected - value) / total, weights
    with np.errstate(over="ignore", invalid="ignore"):
        weighed = collected if method == "per_decision" else np.exp(logs) * collected
    check_weights(weighed, "method='weighted' or 'model'")
    return float(weighed.mean()), weighed - weighed.mean(), weights


def _less_what_was_counted(acted: Acted, influence: np.ndarray) -> np.ndarray:
    """Return what each episode adds to n times the error where behavior was counted in the same episodes.

    Counting takes away what the scores of the behavior explain, which are the actions taken less those that
    were to be expected (Hirano, Imbens and Ridder, Econometrica 71, 2003). Where scores are too many for the
    episodes to tell, it is left as it is, and the interval is wider than it need be.
    """
    pairs, pair = np.unique(acted.pairs, return_inverse=True)
    n = influence.size
    if 4 * pairs.size > n or pairs.size > _MOST_SCORES:
        return influence
    bounds = np.append(acted.transitions.starts, pair.size)
    state = pairs // acted.n_actions
    same = (state[:, np.newaxis] == state).astype(float)
    times = np.bincount(pair)
    share = times / (times @ same)  # of the times in its state, how often each pair was taken

    def in_blocks() -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the scores of some episodes at a time, shape (episodes, pairs)."""
        for first in range(0, n, _EPISODES):
            of = slice(first, min(first + _EPISODES, n))
            lengths = np.diff(bounds[of.start : of.stop + 1])
            cell = np.repeat(np.arange(lengths.size) * pairs.size, lengths)
            cell += pair[bounds[of.start] : bounds[of.stop]]
            taken = np.bincount(cell, minlength=lengths.size * pairs.size).reshape(-1, pairs.size)
            yield of, taken - (taken @ same) * share

    squares, moments = np.zeros((pairs.size, pairs.size)), np.zeros(pairs.size)
    for of, scores in in_blocks():
        squares += scores.T @ scores
        moments += influence[of] @ scores
    inverse = np.linalg.pinv(squares, hermitian=True)
    left = np.empty(n)
    for of, scores in in_blocks():
        leverage = np.minimum(((scores @ inverse) * scores).sum(axis=1), 0.9)
        # As the others alone would explain it (MacKinnon and White, Journal of Econometrics 29, 1985).
        left[of] = (influence[of] - scores @ (inverse @ moments)) / (1.0 - leverage)
    return left


def _by_model(acted: Acted, target: np.ndarray, discount: float) -> tuple[float, np.ndarray]:
    """Return the value in the empirical model, and what each episode adds to n times its error."""
    data = acted.transitions
    model = empirical_model(data, *target.shape)
    legal = model.legal_pairs()
    reached = np.where(legal, target, 0.0)
    chain = chain_of(model, reached)
    comes = successors_closure(chain.pointer, chain.follow, model.start_prob > 0)
    untried = np.argwhere(comes[:, np.newaxis] & (target > 0) & ~legal)
    if untried.size:
        raise DataError(
            f"the policy takes action {untried[0][1]} in state {acted.states[untried[0][0]]}, which it comes "
            "to, and there is no such transition; use transitions in which it was tried, or a policy of "
            "actions that were"
        )
    # Where the policy never comes to, any action will do.
    even = legal / np.maximum(legal.sum(axis=1, keepdims=True), 1)
    v = model.policy_value(np.where(comes[:, np.newaxis], reached, even), discount, from_start=True)
    value = model.start_value(v)
    taken = np.bincount(acted.pairs, minlength=legal.size)
    n = data.starts.size
    occupancy = _occupancy(chain, model.start_prob, comes, discount)[:, np.newaxis] * reached
    share = occupancy.ravel() / np.maximum(taken / n, 1e-300)
    pairs = rows_of(model.outcome_ptr)
    going = np.where(model.outcome_terminated, 0.0, v[model.outcome_next])
    q = np.bincount(
        pairs, weights=model.outcome_prob * (model.outcome_reward + discount * going), minlength=legal.size
    )
    surprise = data.rewards + discount * np.where(data.terminated, 0.0, v[data.next_states]) - q[acted.pairs]
    # They add up to 0 at each pair, so their squares are too small, as those of any sample.
    surprise *= np.sqrt(taken / np.maximum(taken - 1, 1))[acted.pairs]
    influence = np.add.reduceat(share[acted.pairs] * surprise, data.starts)
    return value, influence + v[data.states[data.starts]] - value


def _occupancy(chain: OngoingRows, start: np.ndarray, comes: np.ndarray, discount: float) -> np.ndarray:
    """Return the discounted number of times that the policy is in each state in an episode, float64 (S,).

    `comes` marks the states that it comes to.
    """
    source, S = rows_of(chain.pointer), start.size
    if discount == 1.0:
        back = reverse_edges(source, chain.follow, S)
        if (comes & ~successors_closure(*back, chain.ends > 0.0)).any():
            raise _endless(discount, "never ends")
    states = np.flatnonzero(comes)
    if states.size <= DENSE_STATES:
        index = np.cumsum(comes) - 1
        here = comes[source]
        cell = index[chain.follow[here]] * states.size + index[source[here]]
        follows = np.bincount(cell, weights=chain.weight[here], minlength=states.size**2)
        total, times = np.zeros(S), start[states]
        matrix = np.eye(states.size) - discount * follows.reshape(states.size, -1)
        if solve_in_place(matrix, times, np.zeros(0), np.empty(states.size, np.int64)) >= 0:
            raise _endless(discount, "never ends, to double precision,")
        total[states] = times
        return total
    now, total = start.copy(), np.zeros(S)
    for _ in range(MOST_SWEEPS):
        total += now
        now = discount * np.bincount(chain.follow, weights=now[source] * chain.weight, minlength=S)
        if now.sum() < 1e-9 * total.sum():
            return total
    raise _endless(discount, f"has not ended after {MOST_SWEEPS:,} steps")


def _endless(discount: float, what: str) -> ConvergenceError:
    return ConvergenceError(
        f"at discount factor {discount} the policy {what} in the model that the transitions suggest; use a "
        "smaller discount factor"
    )
