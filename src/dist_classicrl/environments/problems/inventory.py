"""Inventories: set-up costs, lost sales with a lead time, and several products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.checks import WholeNumber, is_whole
from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.problems.outcomes import (
    AMOUNT,
    CHANCE,
    check_size,
    checked,
    checked_mean,
    model_of_outcomes,
    poisson_tails,
)
from dist_classicrl.environments.sampling.packing import MOST_STATES
from dist_classicrl.errors import SettingsError


def inventory(
    mean_demand: float = 10.0,
    setup_cost: float = 64.0,
    holding_cost: float = 1.0,
    backorder_cost: float = 9.0,
    lowest: int = -10,
    highest: int = 60,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP:
    """Return the inventory of one product with a set-up cost, whose best policies are of the (s, S) kind.

    The state is the level of the inventory, ``level - lowest``; below 0 customers wait. Action a
    orders up to the level ``lowest + a``, and nothing where the level is that or more: an order
    costs `setup_cost`, whatever its size, and is there at once. Then comes Poisson demand, and the
    period costs `holding_cost` for each piece that is left, or `backorder_cost` for each customer
    who waits. The reward is minus the cost. The level does not fall below `lowest`: whom that would
    leave waiting gets the piece elsewhere, at the cost of one period. So it makes no difference to a
    policy that orders there.

    The best policy orders up to S where the level is s or less (Scarf 1960; Iglehart 1963). Its mean
    cost is published for set-up 64, holding 1, backorder 9 and 24 means of the demand by Zheng and
    Federgruen, "Finding optimal (s, S) policies is about as simple as evaluating a single policy"
    (Operations Research 39, 1991). With the defaults, mean 10: s = 6, S = 40, and 35.022 a period. The
    package's tests meet the 24 costs to three decimals; that of mean 30, 57.819, is the tests' own, by the
    exact solver and by renewal theory.

    Train: ``dist-classicrl train dist_classicrl/Inventory-v0 --total-steps 20000000``.

    Parameters
    ----------
    mean_demand : float
        Pieces a period, above 0 and at most 10,000.
    setup_cost, holding_cost, backorder_cost : float
        At least 0.
    lowest, highest : int
        The lowest level, at most 0, and the highest one, at least 1.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    mean = checked_mean(mean_demand)
    setup, hold, wait = checked(
        AMOUNT, setup_cost=setup_cost, holding_cost=holding_cost, backorder_cost=backorder_cost
    )
    highest = WholeNumber(1)("highest", highest)
    if not is_whole(lowest) or lowest > 0:
        raise SettingsError(f"lowest must be a whole number of at most 0, got {lowest!r}.")
    backlog = -int(lowest)
    check_size("Inventory", (backlog + highest + 1) ** 3)
    level = np.arange(-backlog, highest + 1)
    n = level.size
    chance, at_least, mean_beyond = poisson_tails(mean, n)
    # Of the level after the order: its outcomes are the demands below `rest`, and that or more of them.
    rest = (level + backlog)[:, None]
    demand = np.arange(n)[None, :]
    is_rest = demand == rest
    weight = np.where(demand < rest, chance[:n], np.where(is_rest, at_least[rest], 0.0))
    left = level[:, None] - np.where(is_rest, mean_beyond[rest], demand)
    cost = np.where(left > 0, hold * left, -wait * left)
    ordered_to = np.maximum(np.arange(n)[:, None], np.arange(n)[None, :])
    has_ordered = np.arange(n)[:, None] < np.arange(n)[None, :]
    return model_of_outcomes(
        weight[ordered_to],
        np.maximum(rest - demand, 0)[ordered_to],
        -cost[ordered_to] - np.where(has_ordered, setup, 0.0)[:, :, None],
        start=backlog,
        name=f"Inventory({mean:g})",
        max_episode_steps=max_episode_steps,
    )


class _Lost(NamedTuple):
    """What the function of `lost_sales` reads."""

    stocks: int  # how many levels of the stock there are
    orders: int  # and sizes of an order
    later: int  # orders ** (lead_time - 1): what stands for the orders that are under way
    lead_time: int
    holding_cost: float
    lost_cost: float
    chance: np.ndarray  # of each demand
    at_least: np.ndarray  # of that demand or more
    mean_beyond: np.ndarray  # the mean of the demand, given that


@jit
def _sell(data, state, action, outcome):
    stock = state // data.later
    if outcome > stock:
        return 0.0, 0, 0.0, False
    if outcome < stock:
        weight, lost = data.chance[outcome], 0.0
    else:
        weight, lost = data.at_least[stock], data.mean_beyond[stock] - stock
    under_way = state % data.later
    if data.lead_time == 1:
        arrives, next_under_way = action, 0
    else:
        first = data.later // data.orders
        arrives, next_under_way = under_way // first, under_way % first * data.orders + action
    left = stock - outcome
    next_stock = min(left + arrives, data.stocks - 1)
    cost = data.holding_cost * left + data.lost_cost * lost
    return weight, next_stock * data.later + next_under_way, -cost, False


def lost_sales(
    lead_time: int = 2,
    mean_demand: float = 5.0,
    holding_cost: float = 1.0,
    lost_sale_cost: float = 4.0,
    max_stock: int = 24,
    max_order: int = 10,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP | FunctionMDP:
    """Return the inventory in which an order takes its time and customers do not wait.

    Action a orders a pieces, which are there `lead_time` periods later. Poisson demand is met from
    stock, and what cannot be met is lost: a period costs `holding_cost` for each piece that is left,
    and `lost_sale_cost` for each customer who gets none. The reward is minus the cost. The state is
    the stock, then the orders under way, oldest first, as the digits of a number: stock times
    ``(max_order + 1) ** (lead_time - 1)`` and so on. What would exceed `max_stock` is sent back.

    Zipkin, "Old and new methods for lost-sales inventory systems" (Operations Research 56, 2008), has the
    mean costs of the best policies, for Poisson demand of mean 5 and holding cost 1:

    ========= ==== ==== ==== =====
    lost sale  4    9    19   39
    ========= ==== ==== ==== =====
    lead 1    4.04 5.44 6.68 7.84
    lead 2    4.40 6.09 7.66 9.11
    lead 3    4.60 6.53 8.36 10.04
    lead 4    4.73 6.84 8.89 10.79
    ========= ==== ==== ==== =====

    Train: ``dist-classicrl train dist_classicrl/LostSales-v0 --total-steps 50000000``.

    Parameters
    ----------
    lead_time : int
        Periods, at least 1. The number of states is ``(max_stock + 1) (max_order + 1)^(lead_time - 1)``;
        where it is large the model is not stored, see `TabularMDP.from_function`.
    mean_demand : float
        Pieces a period, above 0 and at most 10,000.
    holding_cost, lost_sale_cost : float
        At least 0.
    max_stock, max_order : int
        At least 1.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    lead = WholeNumber(1, bits=5)("lead_time", lead_time)
    stocks = WholeNumber(1, bits=12)("max_stock", max_stock) + 1
    orders = WholeNumber(1, bits=12)("max_order", max_order) + 1
    _require_states(f"lead_time={lead}", stocks * orders ** (lead - 1), "max_order")
    tails = poisson_tails(checked_mean(mean_demand), stocks)
    hold, lost = checked(AMOUNT, holding_cost=holding_cost, lost_sale_cost=lost_sale_cost)
    return TabularMDP.from_function(
        _sell,
        n_states=stocks * orders ** (lead - 1),
        n_actions=orders,
        n_outcomes=stocks,
        start=0,
        data=_Lost(stocks, orders, orders ** (lead - 1), lead, hold, lost, *tails),
        max_episode_steps=max_episode_steps,
        name=f"LostSales({lead})",
    )


class _Products(NamedTuple):
    """What the function of `multi_product` reads."""

    levels: int  # of each stock
    pieces: np.ndarray  # int32: how many there are in each state
    place: np.ndarray  # int64: what the level of each product counts in the state's number
    demand: np.ndarray  # float64: the chance that a customer comes for it; the last one, that none does
    price: float
    setup_cost: float
    holding_cost: float
    lost_cost: float


@jit
def _serve(data, state, action, outcome):
    levels, sold = data.levels, 0
    place = data.place[max(action, 1) - 1]
    filled = (levels - 1 - state // place % levels) * place if action > 0 else 0
    stock = state + filled
    reward = -data.setup_cost if action > 0 else 0.0
    if outcome < data.place.size:
        place = data.place[outcome]
        sold = place if stock // place % levels > 0 else 0
        reward += data.price if sold > 0 else -data.lost_cost
    stock -= sold
    return data.demand[outcome], stock, reward - data.holding_cost * data.pieces[stock], False


def multi_product(
    n_products: int = 3,
    max_stock: int = 9,
    demand: float = 0.8,
    price: float = 5.0,
    setup_cost: float = 8.0,
    holding_cost: float = 0.05,
    lost_sale_cost: float = 2.0,
    max_episode_steps: int | None = 1_000,
) -> TabularMDP | FunctionMDP:
    """Return the inventory of several products of which only one can be ordered in a period.

    The state has a digit for each product, its stock from 0 to `max_stock`, that of the first one
    counting most. Action 0 orders nothing, and action i fills up product i for `setup_cost`, at
    once. Then at most one customer comes, with the chance `demand`, for one piece of product i with
    a chance that is proportional to i: who gets it pays `price`, who does not costs
    `lost_sale_cost`. Each piece that is left costs `holding_cost` a period.

    Six products with up to nine pieces are a million states, of which 4 bytes each are stored, see
    `TabularMDP.from_function`. With the defaults and discount factor 0.99 the best policy collects
    263.9853 from full shelves, which is computed by value iteration.

    Train: ``dist-classicrl train dist_classicrl/MultiProduct-v0 --env-arg n_products=6 --total-steps 1e9``.

    Parameters
    ----------
    n_products : int
        At least 1.
    max_stock : int
        Pieces of each product, at least 1.
    demand : float
        The chance that a customer comes in a period, from 0 to 1.
    price, setup_cost, holding_cost, lost_sale_cost : float
        At least 0.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    products = WholeNumber(1, bits=5)("n_products", n_products)
    levels = WholeNumber(1, bits=12)("max_stock", max_stock) + 1
    _require_states(f"n_products={products}", levels**products, "max_stock")
    comes = CHANCE("demand", demand)
    share = np.arange(1, products + 1) / (products * (products + 1) / 2)
    amounts = checked(
        AMOUNT, price=price, setup_cost=setup_cost, holding_cost=holding_cost, lost_sale_cost=lost_sale_cost
    )
    return TabularMDP.from_function(
        _serve,
        n_states=levels**products,
        n_actions=products + 1,
        n_outcomes=products + 1,
        start=levels**products - 1,
        data=_Products(
            levels,
            _digit_sums(products, levels),
            levels ** np.arange(products - 1, -1, -1),
            np.append(comes * share, 1.0 - comes),
            *amounts,
        ),
        max_episode_steps=max_episode_steps,
        name=f"MultiProduct({products})",
    )


def _digit_sums(digits: int, base: int) -> np.ndarray:
    sums = np.zeros(1, np.int32)
    for _ in range(digits):
        sums = np.add.outer(sums, np.arange(base, dtype=np.int32)).ravel()
    return sums


def _require_states(argument: str, states: int, other: str) -> None:
    if states > MOST_STATES:
        raise SettingsError(
            f"{argument} makes {states:,} states, and at most {MOST_STATES:,} are allowed. Take a smaller "
            f"one, or a smaller {other}."
        )
