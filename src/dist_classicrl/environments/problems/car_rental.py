"""Jack's car rental."""

from __future__ import annotations

import numpy as np

from dist_classicrl.checks import WholeNumber, YesOrNo
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import check_size, model_of_outcomes, poisson_tails

_REQUESTS, _RETURNS = (3.0, 4.0), (3.0, 2.0)
_RENT, _MOVE, _PARKING = 10.0, 2.0, 4.0
_PARKED = 10


def car_rental(
    max_cars: int = 20, max_moves: int = 5, modified: bool = False, max_episode_steps: int | None = 100
) -> TabularMDP:
    """Return Jack's car rental of Sutton and Barto, example 4.2.

    Cars at two locations are the state, ``cars at the first * (max_cars + 1) + cars at the second``.
    Overnight action a moves ``a - max_moves`` of them from the first to the second, for 2 each; no
    more than there are. By day customers come to the locations, Poisson with means 3 and 4, who pay
    10 if there is a car; then cars come back, Poisson with means 3 and 2. More than `max_cars` are
    taken away. The reward is the mean of what the day brings, given how many cars are there at its
    end; values are the same as with the day's own.

    The best policy for discount factor 0.9 is the last one of the book's figure 4.2; from 10 cars at
    each location it collects 574.9483, computed by value iteration.

    Train: ``dist-classicrl train dist_classicrl/JacksCarRental-v0 --discount-factor 0.9 --total-steps 1e8``.

    Parameters
    ----------
    max_cars, max_moves : int
        At least 1.
    modified : bool
        The rules of exercise 4.7: the first car that is moved to the second location costs nothing, and
        where more than 10 stay at a location overnight, parking there costs 4.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    most = WholeNumber(1)("max_cars", max_cars)
    moves = WholeNumber(1)("max_moves", max_moves)
    check_size("JacksCarRental", (most + 1) ** 4 * (2 * moves + 1))
    modified = YesOrNo()("modified", modified)
    first, second = np.divmod(np.arange((most + 1) ** 2)[:, None], most + 1)
    moved = np.clip(np.arange(-moves, moves + 1), -second, first)
    cars = np.minimum(first - moved, most), np.minimum(second + moved, most)
    cost = _MOVE * (np.abs(moved) - (modified & (moved > 0)))
    if modified:
        cost = cost + _PARKING * sum((at > _PARKED).astype(int) for at in cars)
    (chance_1, rent_1), (chance_2, rent_2) = (
        _day(most, requests, returns) for requests, returns in zip(_REQUESTS, _RETURNS, strict=True)
    )
    shape = (*moved.shape, (most + 1) ** 2)
    chance = (chance_1[cars[0]][..., None] * chance_2[cars[1]][:, :, None]).reshape(shape)
    rent = (rent_1[cars[0]][..., None] + rent_2[cars[1]][:, :, None]).reshape(shape)
    return model_of_outcomes(
        chance,
        np.arange((most + 1) ** 2),
        rent - cost[:, :, None],
        start=min(10, most) * (most + 2),
        name="JacksCarRental" + (", modified" if modified else ""),
        max_episode_steps=max_episode_steps,
        grid_shape=(most + 1, most + 1),
    )


def _day(most: int, requests: float, returns: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the chances of the cars at the end of a day, and the mean rent given them, by those at first."""
    asked, asked_or_more, _ = poisson_tails(requests, most + 1)
    back, back_or_more, _ = poisson_tails(returns, most + 1)
    chance, rent = np.zeros((most + 1, most + 1)), np.zeros((most + 1, most + 1))
    for cars in range(most + 1):
        for rented in range(cars + 1):
            how_likely = asked[rented] if rented < cars else asked_or_more[cars]
            stay = cars - rented
            after = np.append(back[: most - stay], back_or_more[most - stay]) * how_likely
            chance[cars, stay:] += after
            rent[cars, stay:] += _RENT * rented * after
    return chance, rent / chance
