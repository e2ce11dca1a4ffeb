"""What each action is worth under a policy, by episodes that another one played.

Off-policy Monte Carlo prediction, every visit: Sutton and Barto (2018), section 5.6, the box on page 110. Per
decision: Precup, Sutton and Singh (2000), for action values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.data.empirical import empirical_model
from dist_classicrl.data.estimates import check_weights, ratios, table_size
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
    policy : ndarray of int, shape (S,), or of float, shape (S, A)
        An action for each state, or probabilities.
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
    data = Transitions.of(transitions)
    n_states, n_actions = table_size(data, policy, behavior)
    ratio = ratios(data, empirical_model(data, n_states, n_actions), policy, behavior)
    weights, collected = _from_each_step(data, ratio, discount, method)
    pair, size = data.states * n_actions + data.actions, n_states * n_actions
    visits = np.bincount(pair, minlength=size)
    sums, squares = (np.bincount(pair, each, size) for each in (weights, weights**2))
    total = np.bincount(pair, collected, size)
    over = sums if method == "weighted" else visits
    shape = (n_states, n_actions)
    q = np.divide(total, over, out=np.full(size, np.nan), where=over > 0)
    effective = np.divide(sums**2, squares, out=np.zeros(size), where=squares > 0)
    return ActionValueEstimate(q.reshape(shape), visits.reshape(shape), effective.reshape(shape), method)


def _from_each_step(
    data: Transitions, ratio: np.ndarray, discount: float, method: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of what follows each step, and the weighed return from it on, from ends backwards."""
    ends = np.append(data.starts[1:], len(data)) - 1
    lengths = ends - data.starts + 1
    weights, collected = np.ones(len(data)), data.rewards.astype(np.float64)
    for back in range(1, int(lengths.max())):
        at = ends[lengths > back] - back
        with np.errstate(over="ignore", invalid="ignore"):
            weights[at] = ratio[at + 1] * weights[at + 1]
        later = collected[at + 1]
        collected[at] += discount * (ratio[at + 1] * later if method == "per_decision" else later)
    check_weights(weights)
    return weights, collected if method == "per_decision" else weights * collected
