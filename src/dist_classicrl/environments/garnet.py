"""Garnets: random Markov decision processes of any size, for tests and measurements.

T. W. Archibald, K. I. M. McKinnon and L. C. Thomas, "On the generation of Markov decision processes",
Journal of the Operational Research Society 46 (1995); rewards as in S. Bhatnagar et al., "Natural
actor-critic algorithms", Automatica 45 (2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import SettingsError


def garnet(
    n_states: int,
    n_actions: int,
    branching: int,
    *,
    seed: int,
    reward_std: float = 1.0,
    terminal_states: int = 0,
    termination_probability: float = 0.0,
    max_episode_steps: int | None = 100,
    name: str | None = None,
) -> TabularMDP:
    """Make a random model.

    Each pair leads to `branching` distinct states, drawn uniformly. Their probabilities are the lengths of
    the pieces into which ``branching - 1`` independent uniform points cut the unit interval. The reward of
    a pair is normal with mean 0 and the same for all its outcomes. Episodes start in a uniformly drawn
    state that is not terminal.

    A Garnet goes on for ever. Episodes come from the time limit, which leaves the values as they are, or from
    terminations, which don't.

    Parameters
    ----------
    n_states, n_actions : int
    branching : int
        Outcomes per pair, from 1 to `n_states`. Time and memory grow with pairs times `branching`.
    seed : int
        The same arguments and seed give the same model, with the same version of NumPy.
    reward_std : float
        Standard deviation of the pairs' rewards, at least 0.
    terminal_states : int
        So many states, drawn at random, end the episode when they are reached; less than `n_states`.
    termination_probability : float
        Each step ends the episode with this probability, wherever it leads; from 0 to below 1. It is one
        more outcome per pair, with the same reward, into one of the pair's next states.
    max_episode_steps : int or None
        Time limit of an episode. None: no limit.
    name : str, optional
        None: a name that holds the sizes and the seed.

    Returns
    -------
    TabularMDP

    Raises
    ------
    SettingsError
        An argument is outside what is allowed.
    ModelError
        `n_states`, `n_actions` or `max_episode_steps` is not a whole number of at least 1.
    """
    _require_whole("n_states", n_states, 1, None)
    _require_whole("n_actions", n_actions, 1, None)
    _require_whole("branching", branching, 1, n_states)
    _require_whole("terminal_states", terminal_states, 0, n_states - 1)
    _require_number("reward_std", reward_std, np.inf)
    _require_number("termination_probability", termination_probability, 1.0)
    rng = np.random.default_rng(seed)
    pairs = n_states * n_actions
    follow = _distinct_states(rng, pairs, n_states, branching)
    cuts = np.sort(rng.random((pairs, branching - 1)), axis=1)
    prob = np.diff(cuts, axis=1, prepend=0.0, append=1.0)
    reward = reward_std * rng.standard_normal(pairs)
    terminal = np.zeros(n_states, dtype=bool)
    terminal[rng.choice(n_states, size=terminal_states, replace=False)] = True
    ends = terminal[follow]
    if termination_probability > 0:
        ending = np.full(pairs, termination_probability)
        prob = np.column_stack((prob * (1.0 - termination_probability), ending))
        follow = np.column_stack((follow, follow[:, 0]))
        ends = np.column_stack((ends, np.ones(pairs, dtype=bool)))
    outcomes = prob.shape[1]
    return TabularMDP(
        n_states=n_states,
        n_actions=n_actions,
        outcome_ptr=np.arange(0, pairs * outcomes + 1, outcomes),
        outcome_prob=prob.reshape(-1),
        outcome_next=follow.reshape(-1),
        outcome_reward=np.repeat(reward, outcomes),
        outcome_terminated=ends.reshape(-1),
        start_prob=np.where(terminal, 0.0, 1.0 / (n_states - terminal_states)),
        max_episode_steps=max_episode_steps,
        name=name or f"Garnet({n_states}, {n_actions}, {branching}, seed={seed})",
    )


def _distinct_states(rng: np.random.Generator, rows: int, n_states: int, size: int) -> np.ndarray:
    """Draw `size` distinct states per row, int64, shape (rows, size): R. Floyd's algorithm, all rows at once.

    Every set of states is equally likely. The order within a row is not uniform, which does not matter
    where the probabilities that go with it are exchangeable.
    """
    drawn = np.empty((rows, size), dtype=np.int64)
    for column, last in enumerate(range(n_states - size, n_states)):
        candidate = rng.integers(0, last + 1, size=rows)
        taken = (drawn[:, :column] == candidate[:, None]).any(axis=1)
        drawn[:, column] = np.where(taken, last, candidate)
    return drawn


def _require_whole(name: str, value: Any, lowest: int, highest: int | None) -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < lowest or (highest is not None and value > highest):
        limit = "" if highest is None else f" and at most {highest}"
        raise SettingsError(f"{name} is {value!r}; it must be a whole number of at least {lowest}{limit}")


def _require_number(name: str, value: Any, below: float) -> None:
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0.0 <= value < below:
        raise SettingsError(f"{name} is {value!r}; it must be a number from 0 to below {below}")
