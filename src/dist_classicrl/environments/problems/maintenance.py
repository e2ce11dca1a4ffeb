"""Machine replacement."""

from __future__ import annotations

import numpy as np

from dist_classicrl.checks import WholeNumber
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import (
    AMOUNT,
    CHANCE,
    check_size,
    checked,
    model_of_outcomes,
)


def machine_replacement(
    n_states: int = 10,
    wear: float = 0.3,
    running_cost: float = 1.0,
    replacement_cost: float = 20.0,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return the machine that costs more the more it is worn, and can be replaced.

    The state is how worn the machine is, from 0, new. Action 0 runs it for a period, which costs
    `running_cost` times the state, and wears it by one with the chance `wear`, up to the last state.
    Action 1 replaces it for `replacement_cost`; the new one is there in the next period.

    The best policy replaces from some state k on, or never (Derman 1963). Where `wear` is above 0, its mean
    cost per period is by the renewal-reward theorem the smallest of

        (replacement_cost + running_cost * k (k - 1) / (2 wear)) / (1 + k / wear)

    for k from 1 to ``n_states - 1``, and of ``running_cost * (n_states - 1)``, that of the last state for
    ever. With the defaults k = 3, of 2.727273.

    Train: ``dist-classicrl train dist_classicrl/MachineReplacement-v0 --total-steps 5000000``.

    Parameters
    ----------
    n_states : int
        At least 2.
    wear : float
        From 0 to 1.
    running_cost, replacement_cost : float
        At least 0.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    n = WholeNumber(2)("n_states", n_states)
    check_size("MachineReplacement", 4 * n)
    chance = CHANCE("wear", wear)
    running, replacement = checked(AMOUNT, running_cost=running_cost, replacement_cost=replacement_cost)
    state = np.arange(n)
    follow = np.zeros((n, 2, 2), np.int64)
    follow[:, 0] = np.stack((state, np.minimum(state + 1, n - 1)), axis=1)
    cost = np.stack((running * state, np.full(n, replacement)), axis=1)
    return model_of_outcomes(
        np.array([[1 - chance, chance], [1.0, 0.0]]),
        follow,
        -cost[:, :, None],
        start=0,
        name=f"MachineReplacement({n})",
        max_episode_steps=max_episode_steps,
    )
