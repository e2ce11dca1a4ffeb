"""Garnets: random Markov decision processes of any size, for tests and measurements.

T. W. Archibald, K. I. M. McKinnon and L. C. Thomas, "On the generation of Markov decision processes",
Journal of the Operational Research Society 46 (1995); rewards as in S. Bhatnagar et al., "Natural
actor-critic algorithms", Automatica 45 (2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.checks import as_float, is_real, is_whole
from dist_classicrl.errors import SettingsError

_MOST_OUTCOMES = 1 << 32
"""Some 100 GB, and as much again while they are drawn."""


def draw(
    n_states: int,
    n_actions: int,
    branching: int,
    seed: int,
    reward_std: float,
    terminal_states: int,
    termination_probability: float,
) -> dict[str, Any]:
    """Return the fields of a random model; see `TabularMDP.garnet`."""
    n_states = _whole("n_states", n_states, 1, None)
    n_actions = _whole("n_actions", n_actions, 1, None)
    branching = _whole("branching", branching, 1, n_states)
    terminal_states = _whole("terminal_states", terminal_states, 0, n_states - 1)
    _require_number("reward_std", reward_std, np.inf)
    _require_number("termination_probability", termination_probability, 1.0)
    seed = _whole("seed", seed, 0, None)
    pairs = n_states * n_actions
    if pairs * branching > _MOST_OUTCOMES:
        raise SettingsError(
            f"n_states={n_states:,}, n_actions={n_actions:,} and branching={branching:,} make "
            f"{pairs * branching:,} outcomes, and at most {_MOST_OUTCOMES:,} are drawn. Give smaller numbers."
        )
    rng = np.random.default_rng(seed)
    follow = _distinct_states(rng, pairs, n_states, branching)
    cuts = np.sort(rng.random((pairs, branching - 1)), axis=1)
    prob = np.diff(cuts, axis=1, prepend=0.0, append=1.0)
    with np.errstate(over="ignore"):  # the model refuses what is infinite
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
    return {
        "n_states": n_states,
        "n_actions": n_actions,
        "outcome_ptr": np.arange(0, pairs * outcomes + 1, outcomes),
        "outcome_prob": prob.reshape(-1),
        "outcome_next": follow.reshape(-1),
        "outcome_reward": np.repeat(reward, outcomes),
        "outcome_terminated": ends.reshape(-1),
        "start_prob": np.where(terminal, 0.0, 1.0 / (n_states - terminal_states)),
    }


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


def _whole(name: str, value: Any, lowest: int, highest: int | None) -> int:
    if not is_whole(value) or value < lowest or (highest is not None and value > highest):
        limit = "" if highest is None else f" and at most {highest}"
        raise SettingsError(f"{name} is {value!r}; it must be a whole number of at least {lowest}{limit}")
    return int(value)


def _require_number(name: str, value: Any, below: float) -> None:
    if not is_real(value) or not 0.0 <= as_float(value) < below:
        raise SettingsError(f"{name} is {value!r}; it must be a number from 0 to below {below}")
