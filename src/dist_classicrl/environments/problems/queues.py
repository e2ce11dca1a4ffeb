"""Queues: who may use a server, who may wait, and where."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from dist_classicrl.checks import WholeNumber, check_shown, checked_positive
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import (
    AMOUNT,
    CHANCE,
    check_size,
    checked,
    model_of_outcomes,
)
from dist_classicrl.errors import SettingsError


def access_control(
    n_servers: int = 10,
    free_probability: float = 0.06,
    payments: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return the access-control queue of Sutton and Barto, example 10.2.

    The customer at the head of the queue is of a class that is drawn evenly, and would pay that
    class's payment to be served. Action 1 lets it have a free server, where there is one, and action
    0 sends it away. Then each busy server becomes free with `free_probability`. The state is
    ``free servers * classes + class``.

    The book learns a mean reward of about 2.31 per step with differential semi-gradient Sarsa. That
    of the best policy is 2.747642, computed by policy iteration: it lets in who
    pays 4 or 8 always, who pays 2 where at least four servers are free, and who pays 1 never.

    Train: ``dist-classicrl train dist_classicrl/AccessControl-v0 --total-steps 20000000``.

    Parameters
    ----------
    n_servers : int
        From 1 to 1,023.
    free_probability : float
        Of a busy server in a step, from 0 to 1.
    payments : sequence of float
        Of each class, at least one.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    N = WholeNumber(1, bits=10)("n_servers", n_servers)
    p = CHANCE("free_probability", free_probability)
    pays = _numbers("payments", payments)
    K = pays.size
    check_size("AccessControl", 2 * ((N + 1) * K) ** 2)
    becoming_free = np.array(
        [[comb(busy, k) * p**k * (1 - p) ** max(busy - k, 0) for k in range(N + 1)] for busy in range(N + 1)]
    )
    free, kind = np.divmod(np.arange((N + 1) * K), K)
    is_in = (np.arange(2) == 1) & (free > 0)[:, None]
    left = free[:, None] - is_in
    chance = becoming_free[N - left]  # state, action, servers that become free
    after = np.minimum(left[:, :, None] + np.arange(N + 1), N)
    shape = (free.size, 2, (N + 1) * K)
    return model_of_outcomes(
        np.repeat(chance / K, K, axis=2),
        (after[..., None] * K + np.arange(K)).reshape(shape),
        np.where(is_in, pays[kind][:, None], 0.0)[:, :, None],
        start=np.where(free == N, 1.0 / K, 0.0),
        name=f"AccessControl({N})",
        max_episode_steps=max_episode_steps,
    )


def admission(
    arrival_rate: float = 0.9,
    service_rate: float = 1.0,
    reward: float = 10.0,
    waiting_cost: float = 1.0,
    max_customers: int = 20,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return the queue of Naor, "The regulation of queue size by levying tolls" (Econometrica 37, 1969).

    Customers come to one server by a Poisson process, and are served in an exponential time. Action
    1 lets the next one in, action 0 sends it away; the state is how many are there. Each who comes in
    brings `reward`, and each who is there costs `waiting_cost` per unit of time. A step is the time
    to the next event, an arrival or the end of a service, of which an empty server has some, too, that
    change nothing (uniformization): its mean is ``1 / (arrival_rate + service_rate)``.

    The best policy lets in up to n0 customers, the whole part of the v that solves
    ``(v (1 - r) - r (1 - r**v)) / (1 - r)**2 = reward * service_rate / waiting_cost``, with r the rate
    of arrivals over that of services: less than the customers themselves would choose. With the
    defaults that is 4, and the mean reward per step is 3.035669.

    Train: ``dist-classicrl train dist_classicrl/Admission-v0 --total-steps 20000000``.

    Parameters
    ----------
    arrival_rate, service_rate : float
        Customers per unit of time, above 0.
    reward, waiting_cost : float
        At least 0.
    max_customers : int
        Of those who come when so many are there nobody gets in. At least 1.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    comes = checked_positive("arrival_rate", arrival_rate)
    serves = checked_positive("service_rate", service_rate)
    brings, waits = checked(AMOUNT, reward=reward, waiting_cost=waiting_cost)
    N = WholeNumber(1)("max_customers", max_customers)
    check_size("Admission", 4 * (N + 1))
    rate = _total(("arrival_rate", "service_rate"), [comes, serves])
    there = np.arange(N + 1)[:, None, None]
    is_in = (np.arange(2) == 1)[:, None] & (np.arange(2) == 0) & (there < N)  # outcomes: arrival, service
    return model_of_outcomes(
        np.array([comes, serves]) / rate,
        np.where(np.arange(2) == 0, there + is_in, np.maximum(there - 1, 0)),
        np.where(is_in, brings, 0.0) - waits * there / rate,
        start=0,
        name=f"Admission({comes:g}, {serves:g})",
        max_episode_steps=max_episode_steps,
    )


def routing(
    arrival_rate: float = 1.5,
    service_rates: Sequence[float] = (1.0, 1.0),
    loss_cost: float = 50.0,
    max_customers: int = 15,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return two queues with a server each, to one of which each customer is sent.

    Customers come by a Poisson process and are served in exponential times. The action is the queue
    that the next one joins; where that is full it is lost, for `loss_cost`. Each who is there costs 1
    per unit of time. The state is ``customers in queue 0 * (max_customers + 1) + those in queue 1``. A
    step is the time to the next event, see `admission`.

    With equal rates it is best to join the shorter queue (Winston 1977). With the defaults that
    costs 1.048883 per step, which is computed by policy iteration.

    Train: ``dist-classicrl train dist_classicrl/Routing-v0 --total-steps 20000000``.

    Parameters
    ----------
    arrival_rate : float
        Customers per unit of time, above 0.
    service_rates : sequence of two float
        Above 0.
    loss_cost : float
        At least 0.
    max_customers : int
        That a queue holds, at least 1.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    comes = checked_positive("arrival_rate", arrival_rate)
    serves = _numbers("service_rates", service_rates)
    if serves.size != 2 or not (serves > 0).all():
        raise SettingsError(f"service_rates must be two numbers above 0, got {service_rates!r}.")
    cost = AMOUNT("loss_cost", loss_cost)
    N = WholeNumber(1)("max_customers", max_customers)
    check_size("Routing", 6 * (N + 1) ** 2)
    rate = _total(("arrival_rate", "service_rates"), [comes, *serves])
    queues = np.stack(np.divmod(np.arange((N + 1) ** 2), N + 1), axis=1)
    joined = queues[:, None] + np.eye(2, dtype=np.int64)  # state, action, queue
    is_lost = np.any(joined > N, axis=2)
    joined = np.minimum(joined, N)
    left = np.maximum(queues[:, None] - np.eye(2, dtype=np.int64), 0)  # state, server, queue
    number = np.array([N + 1, 1])
    follow = np.concatenate(
        ((joined @ number)[:, :, None], np.broadcast_to((left @ number)[:, None], (len(queues), 2, 2))),
        axis=2,
    )
    loses = is_lost[:, :, None] & (np.arange(3) == 0)
    return model_of_outcomes(
        np.array([comes, *serves]) / rate,
        follow,
        -(queues.sum(axis=1) / rate)[:, None, None] - np.where(loses, cost, 0.0),
        start=0,
        name=f"Routing({comes:g})",
        max_episode_steps=max_episode_steps,
        grid_shape=(N + 1, N + 1),
    )


def _total(names: tuple[str, str], rates: list[float]) -> float:
    """Return the rate of all events; SettingsError where it is beyond the numbers of float64."""
    total = float(sum(map(float, rates)))
    if total == np.inf:
        raise SettingsError(
            f"{' and '.join(names)} must add up to at most 1.8e308, got {rates}; give the rates in another "
            "unit of time."
        )
    return total


def _numbers(name: str, values: Sequence[float]) -> np.ndarray:
    """Return a sequence of finite numbers as float64."""
    check_shown(name, values)
    try:
        given = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        given = np.array([])
    if given.ndim != 1 or not given.size or not np.isfinite(given).all():
        raise SettingsError(f"{name} must be a list of finite numbers, such as [1.0, 2.0], got {values!r}.")
    return given
