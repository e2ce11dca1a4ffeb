"""A model of arrays that have an axis for the outcomes of each pair."""

from __future__ import annotations

from math import lgamma, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dist_classicrl.checks import RealNumber, checked_positive
from dist_classicrl.environments.making.conversion import fields_of_outcomes
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import SettingsError

CHANCE = RealNumber(0.0, 1.0)
AMOUNT = RealNumber(0.0, 1e9)
REWARD = RealNumber(-1e9, 1e9)

MOST_OUTCOMES = 1 << 25
"""That are stored: about 1 GB, and as much again while they are made."""


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
    """Return the model of the outcomes in arrays, see `fields_of_outcomes`.

    `start` is a state, or the distribution of the first one.
    """
    fields = fields_of_outcomes(probability, next_state, reward, terminated)
    if np.ndim(start) == 0:
        start = np.arange(fields["n_states"]) == start
    return TabularMDP(
        **fields,
        start_prob=np.asarray(start, dtype=float),
        max_episode_steps=max_episode_steps,
        name=name,
        grid_shape=grid_shape,
    )


def check_size(name: str, outcomes: int) -> None:
    """Refuse a model whose outcomes would be too many to store."""
    if outcomes > MOST_OUTCOMES:
        raise SettingsError(
            f"{name} of this size has {outcomes:,} outcomes, and at most {MOST_OUTCOMES:,} are stored. Give "
            "smaller numbers."
        )


def checked(kind: RealNumber, **given: Any) -> list[float]:
    """Return the arguments of a maker in their order; SettingsError where one is not of this kind."""
    return [kind(name, value) for name, value in given.items()]


def checked_mean(mean_demand: Any) -> float:
    """Return the mean of a Poisson distribution; SettingsError where it is none, or above 10,000."""
    mean = checked_positive("mean_demand", mean_demand)
    if mean > 10_000:
        raise SettingsError(f"mean_demand must be at most 10,000, got {mean_demand!r}.")
    return mean


def poisson_tails(mean: float, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the chance of k, that of k or more, and the mean of these, for k from 0 to ``size - 1``.

    Each is float64 of shape (size,). Tails are summed from far outside, so that small ones are right.
    """
    far = size + int(mean + 20 * sqrt(mean) + 60)
    k = np.arange(far)
    chance = np.exp(k * log(mean) - mean - np.array([lgamma(i + 1.0) for i in k]))
    tail = chance[::-1].cumsum()[::-1]
    moment = (k * chance)[::-1].cumsum()[::-1]
    beyond = np.divide(moment, tail, out=k.astype(float), where=tail > 0)
    return chance[:size], tail[:size] / tail[0], beyond[:size]
