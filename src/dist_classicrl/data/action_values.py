"""What each action is worth under a policy, by episodes that another one played.

Off-policy Monte Carlo prediction, every visit: Sutton and Barto (2018), section 5.6, the box on page 110. Per
decision: Precup, Sutton and Singh (2000), for action values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.data.acted import Acted, in_rows_of
from dist_classicrl.data.estimates import check_weights, log_ratios
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.environments.solvers.process import check_method, checked_discount

METHODS = ("weighted", "ordinary", "per_decision")


@dataclass(frozen=True, repr=False, eq=False)
class ActionValueEstimate:
    """What the pairs of a table are worth under a policy, and by how much that is known.

    Attributes
    ----------
    q : ndarray of float64, shape (S, A)
        Mean discounted returns; NaN where no visit says anything.
    visits : ndarray of int64, shape (S, A)
        Times that a pair was taken.
    effective_visits : ndarray of float64, shape (S, A)
        How many visits of the policy itself would tell as much by their weights: ``(sum w)**2 / sum w**2``.
    method : str
    """

    q: np.ndarray
    visits: np.ndarray
    effective_visits: np.ndarray
    method: str

    def __repr__(self) -> str:
        known = np.isfinite(self.q)
        least = self.effective_visits[known].min() if known.any() else 0.0
        return (
            f"ActionValueEstimate({int(known.sum()):,} of {known.size:,} pairs, {self.method}, "
            f"{int(self.visits.sum()):,} visits, of a pair worth {least:,.4g} at least)"
        )


def estimate_action_values(
    transitions: Any,
    policy: np.ndarray,
    discount_factor: float,
    method: str = "weighted",
    behavior: np.ndarray | None = None,
) -> ActionValueEstimate:
    """Estimate what each pair is worth under a policy from episodes that another one played.

    What follows a pair is weighed by how much likelier the policy takes the actions after it than what took
    them; the action of the pair itself is given.

    Parameters
    ----------
    transitions
        As `Transitions.of` takes them; whole episodes, in order. One that was cut off is what was collected
        until then.
    policy : ndarray of int, shape (S,), or of float, shape (S, A), or Policy
        As `estimate_value` takes it.
    discount_factor : float
        From 0 to 1.
    method : str
        "weighted" importance sampling divides by the sum of weights: it has a bias that vanishes, and far
        less variance than "ordinary", which divides by the number of visits. "per_decision" weighs each
        reward by the actions before it only, and divides by the number of visits.
    behavior : ndarray of float, shape (S, A), optional
        The probabilities with which the actions were chosen. None: how often they were in each state.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    DataError
        The transitions cannot be read, an action that was taken has probability 0, or weights are beyond all
        numbers.
    """
    check_method(method, METHODS)
    discount = checked_discount(discount_factor)
    policy, data = in_rows_of(policy, transitions)
    acted = Acted.of(data, policy, behavior)
    target = acted.chances("policy", policy)
    logs, collected = _from_each_step(
        acted.transitions, log_ratios(acted, target, behavior), discount, method
    )
    pair, size = acted.pairs, target.size
    largest = np.full(size, -np.inf)
    np.maximum.at(largest, pair, logs)
    largest[largest == -np.inf] = 0.0
    weights = np.exp(logs - largest[pair])  # those of a pair up to a factor, of which the largest is 1
    visits = np.bincount(pair, minlength=size)
    sums, squares = (np.bincount(pair, each, size) for each in (weights, weights**2))
    if method == "weighted":
        total, over = np.bincount(pair, weights * collected, size), sums
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            weighed = collected if method == "per_decision" else np.exp(logs) * collected
        check_weights(weighed, "method='weighted'")
        total, over = np.bincount(pair, weighed, size), visits
    q = np.divide(total, over, out=np.full(size, np.nan), where=over > 0)
    effective = np.divide(sums**2, squares, out=np.zeros(size), where=squares > 0)

    def by_rows(found: np.ndarray, otherwise: float) -> np.ndarray:
        table = np.full((len(policy), acted.n_actions), otherwise, found.dtype)
        table[acted.states] = found.reshape(target.shape)[:-1]
        return table

    return ActionValueEstimate(by_rows(q, np.nan), by_rows(visits, 0), by_rows(effective, 0.0), method)


def _from_each_step(
    data: Transitions, log_ratio: np.ndarray, discount: float, method: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log of the weight of what follows each step, and the return from it on, from ends backwards.

    That of "per_decision" is weighed, that of others is not.
    """
    ends = np.append(data.starts[1:], len(data)) - 1
    lengths = ends - data.starts + 1
    logs, collected = np.zeros(len(data)), data.rewards.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(log_ratio) if method == "per_decision" else np.ones(len(data))
        for back in range(1, int(lengths.max())):
            at = ends[lengths > back] - back
            logs[at] = log_ratio[at + 1] + logs[at + 1]
            collected[at] += discount * ratio[at + 1] * collected[at + 1]
    return logs, collected
