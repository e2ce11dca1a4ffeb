"""What rules converge to, computed from a model: the fixed points of their expected updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.errors import ConvergenceError
from dist_classicrl.settings import Settings

if TYPE_CHECKING:
    from dist_classicrl.environments.model import TabularMDP

_MOST_SWEEPS = 200_000
_LATE = 1 << 60  # a step by which schedules have come to their end


def final_epsilon(settings: Settings) -> float:
    """Return the exploration rate in which a schedule ends."""
    return float(settings.epsilon.at(_LATE))


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


def soft_values(model: TabularMDP, settings: Settings, epsilon: float) -> np.ndarray:
    """Return the values of the policy that is epsilon-greedy in its own values, shape (S, A).

    They are the fixed point of q(s, a) = E[r + gamma sum_a' pi(a' | s') q(s', a')], Sutton and Barto (2018),
    equation 6.9, with pi epsilon-greedy in q: a contraction, as the largest value and the mean are
    non-expansions.

    Raises
    ------
    ConvergenceError
        If there is none, as for a discount factor of 1 without an end.
    """
    legal = model.legal_pairs()
    n_legal = np.maximum(legal.sum(axis=1), 1)
    q = np.zeros((model.n_states, model.n_actions))
    for _ in range(_MOST_SWEEPS):
        best = np.where(legal.any(axis=1), np.where(legal, q, -np.inf).max(axis=1), 0.0)
        v = best + epsilon * ((q * legal).sum(axis=1) / n_legal - best)
        new = backed_up(model, v, settings.discount_factor)
        if np.abs(new - q).max() <= 1e-13 * max(1.0, np.abs(new).max()):
            return new
        q = new
    raise ConvergenceError(
        f"The values of the epsilon-greedy policy of {model.name!r} have not settled after "
        f"{_MOST_SWEEPS:,} sweeps at a discount factor of {settings.discount_factor:g}. Make it smaller."
    )


def behavior_values(model: TabularMDP, parameters: Any, settings: Settings) -> np.ndarray:
    """Return the values of the behavior that follows these values, shape (S, A): what SARSA converges to."""
    return soft_values(model, settings, final_epsilon(settings))


def relative_values(model: TabularMDP) -> tuple[np.ndarray, float]:
    """Return differential action values, centred, shape (S, A), and the best mean reward (the gain).

    Relative value iteration (Puterman, 1994, section 8.5) on the process that stays where it is every second
    step, which has no periods and the same differences up to that factor.

    Raises
    ------
    ConvergenceError
        If the values have not settled, as where the best mean reward depends on the start.
    """
    legal = model.legal_pairs()
    v = np.zeros(model.n_states)
    for _ in range(_MOST_SWEEPS):
        q = backed_up(model, v, 1.0)
        new = np.where(legal, q, -np.inf).max(axis=1)
        change = new - v
        if np.ptp(change) < 1e-12 * max(1.0, np.abs(v).max()):
            gain = float(change.mean())
            return q - gain - (q - gain)[legal].mean(), gain
        v = 0.5 * (v + new)
        v -= v[0]
    raise ConvergenceError(
        f"The differential values of {model.name!r} have not settled after {_MOST_SWEEPS:,} sweeps: does the "
        "best mean reward depend on the state in which it starts?"
    )
