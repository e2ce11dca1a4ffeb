"""A model of arrays that have an axis for the outcomes of each pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dist_classicrl.environments.model import TabularMDP


def model_of_outcomes(
    probability: npt.ArrayLike,
    next_state: npt.ArrayLike,
    reward: npt.ArrayLike,
    terminated: npt.ArrayLike = False,
    *,
    start: int | npt.ArrayLike,
    name: str,
    max_episode_steps: int | None,
    grid_shape: tuple[int, int] | None = None,
) -> TabularMDP:
    """Return the model whose arrays broadcast to the shape (states, actions, outcomes).

    Outcomes of probability 0 are left out. `start` is a state, or the distribution of the first one.
    """
    shape = np.broadcast_shapes(*map(np.shape, (probability, next_state, reward, terminated)))
    S, A, most = shape

    def flat(values: npt.ArrayLike, dtype: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, dtype=dtype), shape).reshape(-1)

    if np.ndim(start) == 0:
        start = np.arange(S) == start
    return TabularMDP(
        n_states=S,
        n_actions=A,
        outcome_ptr=np.arange(0, S * A * most + 1, most),
        outcome_prob=flat(probability, float),
        outcome_next=flat(next_state, np.int64),
        outcome_reward=flat(reward, float),
        outcome_terminated=flat(terminated, bool),
        start_prob=np.asarray(start, dtype=float),
        max_episode_steps=max_episode_steps,
        name=name,
        grid_shape=grid_shape,
    )


def poisson(mean: float, most: int) -> np.ndarray:
    """Return the chances of 0 to ``most - 1``, and of `most` or more, float64, shape (most + 1,)."""
    from math import exp, lgamma, log

    chance = np.array([exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(most)])
    return np.append(chance, max(0.0, 1.0 - chance.sum()))
