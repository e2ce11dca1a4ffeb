"""What rules converge to, computed from a model: the fixed points of their expected updates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.errors import ConvergenceError
from dist_classicrl.rules.behaviors import UCB, Boltzmann, EpsilonGreedy, FixedPolicy, behavior_of
from dist_classicrl.schedules.kinds import as_schedule, final_value
from dist_classicrl.settings import Settings

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

_MOST_SWEEPS = 200_000


def final_epsilon(settings: Settings) -> float:
    """Return the exploration rate in which a schedule ends."""
    return final_value(settings.epsilon)


def backed_up(model: TabularMDP, v: np.ndarray, discount: float) -> np.ndarray:
    """Return the mean reward and discounted value of the next state of each pair, shape (S, A)."""
    from dist_classicrl.environments.reachability import rows_of

    worth = model.outcome_reward + discount * ~model.outcome_terminated * v[model.outcome_next]
    size = model.n_states * model.n_actions
    sums = np.bincount(rows_of(model.outcome_ptr), weights=model.outcome_prob * worth, minlength=size)
    return np.where(model.legal_pairs(), sums.reshape(model.n_states, model.n_actions), 0.0)


def optimal_values(model: TabularMDP, parameters: Any, settings: Settings) -> np.ndarray:
    """Return Q*, shape (S, A)."""
    return model.solve(settings.discount_factor).q


def behavior_values(model: TabularMDP, parameters: Any, settings: Settings) -> np.ndarray:
    """Return the values of the behavior that follows these values, shape (S, A): what SARSA converges to.

    They are the fixed point of q(s, a) = E[r + gamma sum_a' pi(a' | s') q(s', a')], Sutton and Barto (2018),
    equation 6.9, with pi the behavior at q: unique where pi is epsilon-greedy, as the largest value and the
    mean are non-expansions, or stays as it is. UCB comes to take the best action in all but a vanishing share
    of the visits. Of a ladder of epsilons it is the first worker's.

    Raises
    ------
    ConvergenceError
        If there is none, as for a discount factor of 1 without an end.
    """
    return _settled(model, settings, partial(_of_policy, model, settings, behavior_of(settings.behavior)))


def behavior_policy(model: TabularMDP, settings: Settings) -> np.ndarray:
    """Return the chances of actions, shape (S, A), where all legal ones are worth the same."""
    same = np.where(model.legal_pairs(), 0.0, -np.inf)
    return _chances(behavior_of(settings.behavior), same, final_epsilon(settings))


def soft_values(model: TabularMDP, settings: Settings, epsilon: float) -> np.ndarray:
    """Return likewise the values of the policy that is epsilon-greedy in its own values."""
    return _settled(model, settings, partial(_of_policy, model, settings, EpsilonGreedy(), epsilon=epsilon))


def pengs_values(model: TabularMDP, settings: Settings, trace_decay: float, n: int) -> np.ndarray:
    """Return the fixed point of the expected return of Peng's Q(lambda), truncated after n steps."""
    behavior, epsilon, discount = (
        behavior_of(settings.behavior),
        final_epsilon(settings),
        settings.discount_factor,
    )
    acts = model.legal_pairs().any(axis=1)

    def backup(q: np.ndarray, shown: np.ndarray) -> np.ndarray:
        best = np.where(acts, shown.max(axis=1), 0.0)
        chances = _chances(behavior, shown, epsilon)
        found = backed_up(model, best, discount)
        for _ in range(n - 1):
            later = (chances * found).sum(axis=1)
            found = backed_up(model, (1.0 - trace_decay) * best + trace_decay * later, discount)
        return found

    return _settled(model, settings, backup)


def _of_policy(
    model: TabularMDP,
    settings: Settings,
    behavior: Any,
    q: np.ndarray,
    shown: np.ndarray,
    epsilon: float | None = None,
) -> np.ndarray:
    """Return what q is backed up to under a behavior; `shown` is q, with -inf where an action is illegal."""
    chances = _chances(behavior, shown, final_epsilon(settings) if epsilon is None else epsilon)
    return backed_up(model, (chances * q).sum(axis=1), settings.discount_factor)


def _settled(
    model: TabularMDP, settings: Settings, backup: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the fixed point of a backup; ConvergenceError where it does not come to one."""
    legal = model.legal_pairs()
    q = np.zeros((model.n_states, model.n_actions))
    for _ in range(_MOST_SWEEPS):
        new = backup(q, np.where(legal, q, -np.inf))
        if np.abs(new - q).max() <= 1e-13 * max(1.0, np.abs(new).max()):
            return new
        q = new
    raise ConvergenceError(
        f"What the rule converges to in {model.name!r} has not settled after "
        f"{_MOST_SWEEPS:,} sweeps at a discount factor of {settings.discount_factor:g}. Make it smaller."
    )


def _chances(behavior: Any, q: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the chance of each action by its values, -inf where it is illegal, shape (S, A)."""
    if isinstance(behavior, FixedPolicy):
        return np.asarray(behavior.probabilities)
    acts = (q > -np.inf).any(axis=1, keepdims=True)
    top = np.where(acts, q.max(axis=1, keepdims=True), 0.0)
    if isinstance(behavior, Boltzmann):
        weights = np.exp((q - top) / final_value(as_schedule("temperature", behavior.temperature)))
    else:
        weights = (q == top).astype(float)
    greedy = weights / np.where(acts, weights.sum(axis=1, keepdims=True), 1.0)
    if isinstance(behavior, (Boltzmann, UCB)):
        return np.asarray(greedy)
    legal = q > -np.inf
    uniform = legal / np.where(acts, legal.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(greedy + epsilon * (uniform - greedy))


def relative_values(model: TabularMDP) -> tuple[np.ndarray, float]:
    """Return differential action values, centered, shape (S, A), and the best mean reward (the gain).

    ConvergenceError where that depends on the start.
    """
    found, legal = model.solve_average_reward(tolerance=1e-12), model.legal_pairs()
    return np.where(legal, found.q - found.q[legal].mean(), 0.0), found.gain
