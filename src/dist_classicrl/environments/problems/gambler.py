"""The gambler's problem."""

from __future__ import annotations

import numpy as np

from dist_classicrl.checks import WholeNumber
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import CHANCE, check_size, model_of_outcomes


def gambler(p_heads: float = 0.4, goal: int = 100, max_episode_steps: int | None = None) -> TabularMDP:
    """Return the gambler's problem of Sutton and Barto, example 4.3.

    The state is the gambler's capital. Action a stakes ``a + 1`` on a coin, at most what there is and what is
    missing to the goal: a larger stake is that one. With heads, of chance `p_heads`, the stake is won, else
    lost. The reward is 1 where the goal is reached. Episodes begin with any capital from 1 to ``goal - 1``.
    The book allows to stake nothing, too: that has the value of the best stake, and a policy that does it
    never ends.

    Where `p_heads` is at most 1/2 bold play is best (Dubins and Savage, "How to gamble if you must", 1965):
    stake as much as is allowed. With c the share of the goal, its value is F(c) = p F(2c) up to 1/2, and
    p + (1 - p) F(2c - 1) above. The mean over all capitals is 0.399064 with the defaults, and with 25, 50 and
    75 of 100 it is 0.16, 0.4 and 0.64.

    Train: ``dist-classicrl train dist_classicrl/Gambler-v0 --discount-factor 1 --total-steps 10000000``.

    Parameters
    ----------
    p_heads : float
        From 0 to 1.
    goal : int
        At least 2.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    p = CHANCE("p_heads", p_heads)
    goal = WholeNumber(2)("goal", goal)
    check_size("Gambler", 2 * (goal + 1) * (goal // 2))
    capital = np.arange(goal + 1)[:, None, None]
    stake = np.minimum(np.arange(1, goal // 2 + 1)[None, :, None], np.minimum(capital, goal - capital))
    follow = capital + stake * np.array([1, -1])
    wins = (follow == goal) & (capital < goal)
    return model_of_outcomes(
        np.array([p, 1 - p]),
        follow,
        np.where(wins, 1.0, 0.0),
        (follow == 0) | (follow == goal),
        start=np.where((capital > 0) & (capital < goal), 1.0 / (goal - 1), 0.0).ravel(),
        name=f"Gambler({p:g})",
        max_episode_steps=max_episode_steps,
    )
