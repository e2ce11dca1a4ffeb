"""Walks along a line: random walk, chain, RiverSwim, deep sea."""

from __future__ import annotations

import numpy as np

from dist_classicrl.checks import Or, WholeNumber
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import (
    CHANCE,
    REWARD,
    check_size,
    checked,
    model_of_outcomes,
)
from dist_classicrl.errors import SettingsError


def random_walk(
    n_states: int = 19,
    left_reward: float = -1.0,
    right_reward: float = 1.0,
    max_episode_steps: int | None = None,
) -> TabularMDP:
    """Return the random walk of Sutton and Barto: example 6.2 (5 states, rewards 0 and 1), 7.1 (19 states).

    Each step goes to the left or to the right with the same chance, until it leaves the line: there is one
    action, and what is to be learned is the value. Episodes begin in the middle. Without discount the value
    of state s, counted from 0, is ``left_reward + (right_reward - left_reward) (s + 1) / (n_states + 1)``; in
    the middle of the default walk it is 0.

    Train: ``dist-classicrl train dist_classicrl/RandomWalk-v0 --discount-factor 1 --total-steps 1000000``.

    Parameters
    ----------
    n_states : int
        At least 1, and odd, so that there is a middle.
    left_reward, right_reward : float
        Of the step that leaves the line at its left and at its right.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    n = WholeNumber(1)("n_states", n_states)
    check_size("RandomWalk", 2 * n)
    if n % 2 == 0:
        raise SettingsError(f"n_states must be odd, so that there is a middle to begin in, got {n_states!r}.")
    left, right = checked(REWARD, left_reward=left_reward, right_reward=right_reward)
    state = np.arange(n)[:, None, None]
    follow = state + np.array([-1, 1])
    ends = (follow < 0) | (follow >= n)
    return model_of_outcomes(
        0.5,
        np.clip(follow, 0, n - 1),
        np.where(follow < 0, left, np.where(follow >= n, right, 0.0)),
        ends,
        start=n // 2,
        name=f"RandomWalk({n})",
        max_episode_steps=max_episode_steps,
    )


def chain(
    n_states: int = 5,
    slip: float = 0.2,
    back_reward: float = 2.0,
    end_reward: float = 10.0,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return the chain of Strens, "A Bayesian framework for reinforcement learning" (2000).

    Action 0 goes on by one state, and in the last one stays there for `end_reward`; action 1 goes back to the
    first one for `back_reward`. With the chance `slip` the other one happens. Who always goes on has the mean
    reward per step ``(1 - slip)**n_states * end_reward + slip * back_reward``. With the defaults that is the
    best policy, and 3.6768 (Strens: 3,677 in 1,000 steps); where the end gives too little, or `slip` is
    above 1/2, it need not be.

    Train: ``dist-classicrl train dist_classicrl/Chain-v0 --total-steps 1000000``.

    Parameters
    ----------
    n_states : int
        At least 2.
    slip : float
        From 0 to 1.
    back_reward, end_reward : float
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    n = WholeNumber(2)("n_states", n_states)
    check_size("Chain", 4 * n)
    slips = CHANCE("slip", slip)
    back, end = checked(REWARD, back_reward=back_reward, end_reward=end_reward)
    state = np.arange(n)[:, None, None]
    outcome = np.arange(2)  # goes on, goes back
    return model_of_outcomes(
        np.array([[1 - slips, slips], [slips, 1 - slips]]),
        np.where(outcome == 0, np.minimum(state + 1, n - 1), 0) + np.zeros((1, 2, 1)),
        np.where(outcome == 1, back, np.where(state == n - 1, end, 0.0)),
        start=0,
        name=f"Chain({n})",
        max_episode_steps=max_episode_steps,
    )


def river_swim(
    n_states: int = 6,
    forward: float = 0.35,
    backward: float = 0.05,
    small_reward: float = 0.005,
    large_reward: float = 1.0,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return RiverSwim (Strehl and Littman 2008), with the chances of Osband, Russo and Van Roy (2013).

    Action 0 swims to the left, with the current: it always succeeds, and gives `small_reward` in state 0.
    Action 1 swims to the right: on by one state with the chance `forward`, back with `backward`, else it
    stays; in state 0 it goes on with 0.6, in the last one it goes back with 0.4 and gives `large_reward`.

    The best policy with the defaults always swims to the right. Its states are a birth-death chain, of which
    the last one has the share 3601.5 / 8402.5 of the time: so the mean reward per step is 0.428622.

    Train: ``dist-classicrl train dist_classicrl/RiverSwim-v0 --total-steps 5000000``.

    Parameters
    ----------
    n_states : int
        At least 3.
    forward, backward : float
        From 0 to 1, together at most 1.
    small_reward, large_reward : float
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    n = WholeNumber(3)("n_states", n_states)
    check_size("RiverSwim", 6 * n)
    on, back = checked(CHANCE, forward=forward, backward=backward)
    if on + back > 1.0 + 1e-12:
        raise SettingsError(
            f"forward and backward must add up to at most 1, got {forward!r} and {backward!r}."
        )
    small, large = checked(REWARD, small_reward=small_reward, large_reward=large_reward)
    state = np.arange(n)
    goes_on = np.where(state == 0, 0.6, np.where(state == n - 1, 0.0, on))
    goes_back = np.where(state == 0, 0.0, np.where(state == n - 1, 0.4, back))
    right = np.stack((goes_back, np.maximum(1.0 - goes_on - goes_back, 0.0), goes_on), axis=1)
    left = np.broadcast_to([1.0, 0.0, 0.0], right.shape)
    reward = np.zeros((n, 2, 1))
    reward[0, 0], reward[-1, 1] = small, large
    return model_of_outcomes(
        np.stack((left, right), axis=1),
        np.clip(state[:, None, None] + np.array([-1, 0, 1]), 0, n - 1),
        reward,
        start=0,
        name=f"RiverSwim({n})",
        max_episode_steps=max_episode_steps,
    )


def deep_sea(
    size: int = 10,
    move_cost: float = 0.01,
    treasure: float = 1.0,
    seed: int | None = None,
    max_episode_steps: int | None = None,
) -> TabularMDP:
    """Return the deep sea of Osband et al., "Behaviour suite for reinforcement learning" (2020).

    A diver sinks by one row of a ``size * size`` grid with each step, and moves a column to the left or the
    right. A move to the right costs ``move_cost / size``. Where the last row's right end is left to the
    right, the treasure is found. Only one of ``2**size`` episodes of random actions finds it. The best
    policy always moves to the right and collects ``treasure - move_cost``, 0.99, where that is above 0,
    without discount.

    Train: ``dist-classicrl train dist_classicrl/DeepSea-v0 --discount-factor 1 --total-steps 1000000``.

    Parameters
    ----------
    size : int
        Rows and columns, at least 2. States are ``row * size + column``.
    move_cost, treasure : float
    seed : int, optional
        In each cell it is drawn which of the two actions moves to the right. None: action 1 does.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    N = WholeNumber(2)("size", size)
    check_size("DeepSea", 2 * N * N)
    cost, prize = checked(REWARD, move_cost=move_cost, treasure=treasure)
    seed = Or(None, WholeNumber(0))("seed", seed)
    swapped = np.zeros(N * N, bool) if seed is None else np.random.default_rng(seed).random(N * N) < 0.5
    row, column = np.divmod(np.arange(N * N), N)
    right = (np.arange(2) == 1) != swapped[:, None]
    next_column = np.clip(column[:, None] + np.where(right, 1, -1), 0, N - 1)
    found = right & (row == N - 1)[:, None] & (column == N - 1)[:, None]
    return model_of_outcomes(
        1.0,
        (np.minimum(row + 1, N - 1)[:, None] * N + next_column)[:, :, None],
        (np.where(right, -cost / N, 0.0) + np.where(found, prize, 0.0))[:, :, None],
        (row == N - 1)[:, None, None],
        start=0,
        name=f"DeepSea({N})",
        max_episode_steps=max_episode_steps,
        grid_shape=(N, N),
    )
