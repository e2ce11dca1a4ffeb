"""What a policy is worth, by episodes that were played with another one.

Ordinary and weighted importance sampling: Sutton and Barto (2018), sections 5.5 and 5.6. Per decision:
section 5.9, after Precup, Sutton and Singh (2000). By the model: the value in the empirical model. Its error
is that of its influence function, the efficient one: Kallus and Uehara, "Double reinforcement learning for
efficient off-policy evaluation in Markov decision processes", JMLR 21, 2020.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._student import t_quantile
from dist_classicrl.checks import as_array, as_float, is_real
from dist_classicrl.data.empirical import empirical_model
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.reachability import rows_of
from dist_classicrl.environments.solvers.policy_value import checked_policy
from dist_classicrl.environments.solvers.process import check_method, checked_discount
from dist_classicrl.errors import ConvergenceError, DataError, SettingsError

METHODS = ("weighted", "ordinary", "per_decision", "model")

_MOST_STEPS = 100_000
_MOST_SCORES = 500


@dataclass(frozen=True, repr=False)
class ValueEstimate:
    """What a policy is worth from the first states of the episodes on, and how sure that is.

    Attributes
    ----------
    value : float
        Mean discounted return.
    low, high : float
        An interval that covers the true value in a share `confidence` of all samples, as far as episodes are
        many and no weight is much larger than the others.
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
            f"ValueEstimate({self.value:.4g}, {self.confidence:.0%} from {self.low:.4g} to {self.high:.4g}, "
            f"{self.method}, {self.episodes:,} episodes worth {self.effective_episodes:,.4g})"
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
    policy : ndarray of int, shape (S,), or of float, shape (S, A)
        An action for each state, or probabilities.
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
        Fewer than two episodes; an action that was taken and has probability 0; weights that are all 0; or a
        policy that does what was never tried, where the model is asked.
    ConvergenceError
        The discount factor is 1, and in the model the policy never ends.
    """
    check_method(method, METHODS)
    discount = checked_discount(discount_factor)
    if not is_real(confidence) or not 0.0 < as_float(confidence) < 1.0:
        raise SettingsError(f"confidence is {confidence!r}; it must be above 0 and below 1, such as 0.95")
    data = Transitions.of(transitions)
    n_states, n_actions = table_size(data, policy, behavior)
    model = empirical_model(data, n_states, n_actions)
    if data.starts.size < 2:
        raise DataError("there is one episode only; an interval takes at least two, and is good with 100")
    if method == "model":
        value, influence = _by_model(data, model, policy, discount)
        weights = np.ones(data.starts.size)
    else:
        ratio = ratios(data, model, policy, behavior)
        value, influence, weights = _by_weights(data, ratio, discount, method)
        if behavior is None:
            influence = _less_what_was_counted(data, model, influence)
    n = data.starts.size
    error = float(np.sqrt((influence**2).sum() / (n * (n - 1.0))))
    reach = t_quantile(n - 1, float(confidence)) * error
    total = weights.sum()
    effective = float(total**2 / (weights**2).sum()) if total > 0 else 0.0
    return ValueEstimate(value, value - reach, value + reach, error, n, effective, method, float(confidence))


def table_size(data: Transitions, policy: Any, behavior: Any) -> tuple[int, int]:
    """Return states and actions, which the arrays say, where one has two dimensions."""
    n_states, n_actions = data.n_states, data.n_actions
    for array in (policy, behavior):
        shape = as_array(array).shape
        n_states = max(n_states, shape[0]) if shape else n_states
        n_actions = max(n_actions, shape[1]) if len(shape) > 1 else n_actions
    given = as_array(policy)
    if given.ndim == 1 and given.dtype.kind in "iu" and given.size:
        n_actions = max(n_actions, int(given.max()) + 1)
    return n_states, n_actions


def _probabilities(name: str, model: TabularMDP, given: Any) -> np.ndarray:
    """Return probabilities, shape (S, A), of any action; SettingsError where they are none."""
    try:
        return checked_policy(_Free(model.n_states, model.n_actions), given)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from None


class _Free(NamedTuple):
    """A table of which every pair is legal."""

    n_states: int
    n_actions: int

    def legal_pairs(self) -> np.ndarray:
        return np.ones(self, dtype=bool)


def ratios(data: Transitions, model: TabularMDP, policy: Any, behavior: Any) -> np.ndarray:
    """Return how much more likely the policy takes each action than the one that took it."""
    target = _probabilities("policy", model, policy)
    if behavior is None:
        taken = np.bincount(data.states * model.n_actions + data.actions, minlength=target.size).reshape(
            target.shape
        )
        chance = taken / np.maximum(taken.sum(axis=1, keepdims=True), 1)
    else:
        chance = _probabilities("behavior", model, behavior)
    chosen = chance[data.states, data.actions]
    never = np.flatnonzero(chosen == 0.0)
    if never.size:
        i = never[0]
        raise DataError(
            f"transition {i} takes action {data.actions[i]} in state {data.states[i]}, which has "
            "probability 0 in behavior: give the probabilities with which these actions were chosen"
        )
    return np.asarray(target[data.states, data.actions] / chosen)


def check_weights(weights: np.ndarray) -> None:
    """Raise DataError where products of ratios have gone beyond what numbers can hold."""
    if not np.isfinite(weights).all():
        raise DataError(
            "an episode is so much likelier under the policy than under behavior that its weight is beyond "
            "all numbers; use method='model', shorter episodes, or ones that were played more as the policy "
            "would"
        )


def _by_weights(
    data: Transitions, ratio: np.ndarray, discount: float, method: str
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the estimate, what each episode adds to n times its error, and the weights of episodes."""
    starts, n = data.starts, data.starts.size
    lengths = np.diff(np.append(starts, len(data)))
    collected = np.zeros(n)
    weights = np.ones(n)
    for t in range(int(lengths.max())):
        alive = np.flatnonzero(lengths > t)
        at = starts[alive] + t
        with np.errstate(over="ignore", invalid="ignore"):
            weights[alive] *= ratio[at]
        before = weights[alive] if method == "per_decision" else 1.0
        collected[alive] += discount**t * before * data.rewards[at]
    check_weights(weights)
    begins = ratio[starts].any()  # some episode begins with an action that the policy takes
    if not (begins if method == "per_decision" else weights.any()):
        others = "method='per_decision' or 'model'" if begins else "method='model'"
        raise DataError(
            "no episode has only actions that the policy takes, so their weights are all 0; use "
            f"{others}, or other episodes"
        )
    if method == "per_decision":
        return float(collected.mean()), collected - collected.mean(), weights
    if method == "ordinary":
        value = float((weights * collected).mean())
        return value, weights * collected - value, weights
    total = weights.sum()
    value = float((weights * collected).sum() / total)
    return value, n * weights * (collected - value) / total, weights


def _less_what_was_counted(data: Transitions, model: TabularMDP, influence: np.ndarray) -> np.ndarray:
    """Return what each episode adds to n times the error where behavior was counted in the same episodes.

    Counting takes away what the scores of the behavior explain, which are the actions taken less those that
    were to be expected (Hirano, Imbens and Ridder, Econometrica 71, 2003). Where scores are too many for the
    episodes to tell, it is left as it is, and the interval is wider than it need be.
    """
    seen = np.flatnonzero(model.legal_pairs().ravel())
    n = influence.size
    if 4 * seen.size > n or seen.size > _MOST_SCORES:
        return influence
    episode = np.repeat(np.arange(n), np.diff(np.append(data.starts, len(data))))
    pair = data.states * model.n_actions + data.actions
    shape = (n, model.n_states, model.n_actions)
    taken = np.zeros(shape)
    np.add.at(taken.reshape(n, -1), (episode, pair), 1.0)
    chance = taken.sum(axis=0)
    chance /= np.maximum(chance.sum(axis=1, keepdims=True), 1.0)
    scores = (taken - taken.sum(axis=2, keepdims=True) * chance).reshape(n, -1)[:, seen]
    inverse = scores @ np.linalg.pinv(scores.T @ scores, hermitian=True)
    leverage = np.minimum((inverse * scores).sum(axis=1), 0.9)
    # As the others alone would explain it (MacKinnon and White, Journal of Econometrics 29, 1985).
    return np.asarray((influence - scores @ (inverse.T @ influence)) / (1.0 - leverage))


def _by_model(data: Transitions, model: TabularMDP, policy: Any, discount: float) -> tuple[float, np.ndarray]:
    """Return the value in the empirical model, and what each episode adds to n times its error."""
    target = _probabilities("policy", model, policy)
    legal = model.legal_pairs()
    occupancy, untried = _occupancy(model, np.where(legal, target, 0.0), target, discount)
    if untried is not None:
        raise DataError(
            f"the policy takes action {untried[1]} in state {untried[0]}, which it comes to, and there is no "
            "such transition; use transitions in which it was tried, or a policy of actions that were"
        )
    reached = np.where(legal, target, 0.0)
    total = reached.sum(axis=1, keepdims=True)
    # Where the policy never comes to, any action will do.
    even = legal / np.maximum(legal.sum(axis=1, keepdims=True), 1)
    usable = np.where(total > 1.0 - 1e-9, reached / np.maximum(total, 1e-300), even)
    v = model.policy_value(usable, discount, from_start=True)
    value = model.start_value(v)
    taken = np.bincount(data.states * model.n_actions + data.actions, minlength=legal.size)
    n = data.starts.size
    share = occupancy.ravel() / np.maximum(taken / n, 1e-300)
    pair = data.states * model.n_actions + data.actions
    pairs = rows_of(model.outcome_ptr)
    going = np.where(model.outcome_terminated, 0.0, v[model.outcome_next])
    q = np.bincount(
        pairs, weights=model.outcome_prob * (model.outcome_reward + discount * going), minlength=legal.size
    )
    surprise = data.rewards + discount * np.where(data.terminated, 0.0, v[data.next_states]) - q[pair]
    # They add up to 0 at each pair, so their squares are too small, as those of any sample.
    surprise *= np.sqrt(taken / np.maximum(taken - 1, 1))[pair]
    influence = np.add.reduceat(share[pair] * surprise, data.starts)
    return value, influence + v[data.states[data.starts]] - value


def _occupancy(
    model: TabularMDP, usable: np.ndarray, target: np.ndarray, discount: float
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Return the discounted number of times that the policy takes each pair in an episode.

    And a pair that it comes to and that was never tried, if there is one.
    """
    row = rows_of(model.outcome_ptr)
    going = ~model.outcome_terminated
    row, follow, prob = row[going], model.outcome_next[going], model.outcome_prob[going]
    acting = np.any(model.legal_pairs(), axis=1)
    now, total = model.start_prob.copy(), np.zeros(usable.shape)
    for _ in range(_MOST_STEPS):
        missing = np.argwhere(((now > 0) & acting)[:, np.newaxis] & (target > 0) & (usable == 0))
        if missing.size:
            return total, (int(missing[0][0]), int(missing[0][1]))
        taken = now[:, np.newaxis] * usable
        total += taken
        now = discount * np.bincount(follow, weights=taken.ravel()[row] * prob, minlength=model.n_states)
        if now.sum() < 1e-13 * max(1.0, total.sum()):
            return total, None
    raise ConvergenceError(
        f"at discount factor {discount} the policy has not ended after {_MOST_STEPS:,} steps in the model "
        "that the transitions suggest; use a smaller discount factor"
    )
