"""Episodes of a known model, played with a policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.checks import WholeNumber
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.solvers.policy_value import checked_policy
from dist_classicrl.errors import SettingsError

_EPISODES, _SEED, _STEPS = WholeNumber(1, bits=31), WholeNumber(0, bits=63), WholeNumber(1, bits=62)


def play_episodes(
    model: TabularMDP, policy: Any, episodes: int, seed: int, max_steps: int = 1_000_000
) -> Transitions:
    """Play a policy in a model, all episodes side by side, and return them one after the other.

    Parameters
    ----------
    model : TabularMDP
    policy : ndarray of int, shape (S,), or of float, shape (S, A)
        An action for each state, or probabilities.
    episodes : int
        At least 1.
    seed : int
        Of the random numbers: the same one gives the same episodes.
    max_steps : int
        An episode that is longer is truncated there, as it is by the model's own time limit.

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    """
    if not isinstance(model, TabularMDP):
        raise SettingsError(
            f"play_episodes takes a TabularMDP, got {type(model).__name__}. Write for instance "
            'TabularMDP.from_gymnasium("FrozenLake-v1").'
        )
    chances = np.cumsum(checked_policy(model, policy), axis=1)
    n = _EPISODES("episodes", episodes)
    limit = min(_STEPS("max_steps", max_steps), model.max_episode_steps or max_steps)
    random = np.random.default_rng(_SEED("seed", seed))
    ptr, ahead = model.outcome_ptr, np.append(0.0, np.cumsum(model.outcome_prob))
    number = np.arange(n)
    state = random.choice(model.n_states, size=n, p=model.start_prob)
    steps, elapsed = [], 0
    while state.size:
        elapsed += 1
        drawn = random.random(state.size) * chances[state, -1]
        action = (drawn[:, None] >= chances[state]).sum(axis=1)
        pair = state * model.n_actions + action
        low, high = ahead[ptr[pair]], ahead[ptr[pair + 1]]
        outcome = np.searchsorted(ahead, low + random.random(state.size) * (high - low), side="right") - 1
        outcome = np.clip(outcome, ptr[pair], ptr[pair + 1] - 1)
        follow, ends = model.outcome_next[outcome], model.outcome_terminated[outcome]
        cut = ~ends & (elapsed >= limit)
        steps.append((number, state, action, model.outcome_reward[outcome], follow, ends, cut))
        goes_on = ~(ends | cut)
        state, number = follow[goes_on], number[goes_on]
    columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Transitions(*(column[order] for column in columns[1:]))
