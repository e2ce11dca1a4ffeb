"""Dynamic pricing."""

from __future__ import annotations

import numpy as np

from dist_classicrl.checks import WholeNumber, checked_positive
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import CHANCE, check_size, model_of_outcomes
from dist_classicrl.errors import SettingsError


def dynamic_pricing(
    stock: int = 5,
    periods: int = 50,
    arrival_probability: float = 0.5,
    n_prices: int = 16,
    max_price: float = 4.0,
    max_episode_steps: int | None = None,
) -> TabularMDP:
    """Return the sale of a stock by a deadline, after Gallego and van Ryzin (Management Science 40, 1994).

    In each period a customer comes with `arrival_probability`, and buys at price x with the chance
    exp(-x). Action a asks for the price ``max_price * (a + 1) / n_prices``. The reward is the price
    of what was sold. The state is ``periods over * (stock + 1) + stock``; the episode ends when all
    is sold or the time is over, and what is left is worth nothing.

    In continuous time and with any price, n pieces and the chance of a customer m from now to the end
    are worth ``log(sum of (m / e)**i / i! for i from 0 to n)``, 6.9359 for the defaults: many short
    periods and many prices come near to that. With the defaults the best policy collects 7.002104,
    computed by value iteration.

    Train: ``dist-classicrl train dist_classicrl/DynamicPricing-v0 --discount-factor 1 --total-steps 5e7``.

    Parameters
    ----------
    stock, periods : int
        At least 1.
    arrival_probability : float
        From 0 to 1.
    n_prices : int
        At least 1.
    max_price : float
        Above 0.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    pieces = WholeNumber(1)("stock", stock)
    T = WholeNumber(1)("periods", periods)
    comes = CHANCE("arrival_probability", arrival_probability)
    prices = WholeNumber(1)("n_prices", n_prices)
    check_size("DynamicPricing", 2 * T * (pieces + 1) * prices)
    highest = checked_positive("max_price", max_price)
    if highest * prices == np.inf:
        raise SettingsError(
            f"max_price times n_prices must be a finite number, got {max_price!r} times {prices:,}. Give "
            "smaller ones."
        )
    price = highest * np.arange(1, prices + 1) / prices
    time, left = np.divmod(np.arange(T * (pieces + 1))[:, None, None], pieces + 1)
    sold = np.array([1, 0])
    buys = comes * np.exp(-price)
    after = np.maximum(left - sold, 0)
    return model_of_outcomes(
        np.stack((buys, 1.0 - buys), axis=1),
        np.minimum(time + 1, T - 1) * (pieces + 1) + after,
        np.where(left > 0, sold * price[:, None], 0.0),
        (time == T - 1) | (after == 0),
        start=pieces,
        name=f"DynamicPricing({pieces}, {T})",
        max_episode_steps=max_episode_steps,
    )
