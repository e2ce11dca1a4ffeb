"""Inventories, queues, machines, prices, cars: against published optima, closed forms and slow twins."""

import itertools
import math

import numpy as np
import pytest
from average_reward import best_gain

from dist_classicrl.environments import FunctionMDP, registry
from dist_classicrl.errors import SettingsError

pytestmark = pytest.mark.slow


def make(name, **arguments):
    return registry()[f"dist_classicrl/{name}-v0"].make(**arguments)


# The mean of the demand, and the mean cost of the best (s, S) policy: Zheng and Federgruen (1991);
# for mean 30 as computed here.
ZHENG_FEDERGRUEN = """
10 35.022  15 42.698  20 49.173  21 50.406  22 51.632  23 52.757  24 53.518  25 54.262
30 57.819  35 61.215  40 64.512  45 67.776  50 70.975  51 71.611  52 72.246  55 74.149
59 76.679  60 77.306  61 77.929  63 78.287  64 78.402  65 78.518  70 79.037  75 79.554
"""
POLICIES = {10: (6, 40), 15: (10, 49), 20: (14, 62), 75: (67, 86)}


def cost_of_s_S(mean, s, S):
    """Return the mean cost of an (s, S) policy by renewal theory: Zheng and Federgruen, equation (2)."""
    chance = [math.exp(-mean)]
    for k in range(1, 400):
        chance.append(chance[-1] * mean / k)
    one_period = {
        y: sum(p * (y - k if k < y else 9 * (k - y)) for k, p in enumerate(chance))
        for y in range(s + 1, S + 1)
    }
    renewals = [1 / (1 - chance[0])]  # how often the level is S - j in a cycle
    for j in range(1, S - s):
        renewals.append(sum(chance[k] * renewals[j - k] for k in range(1, j + 1)) / (1 - chance[0]))
    costs = sum(m * one_period[S - j] for j, m in enumerate(renewals))
    return (64 + costs) / sum(renewals)


def test_s_S_policies_cost_what_zheng_and_federgruen_say():
    numbers = np.array(ZHENG_FEDERGRUEN.split(), float).reshape(24, 2)
    for mean, cost in numbers:
        # Enough levels for the best S, and no more: above it nobody orders up to.
        highest = 132 if 40 <= mean <= 62 else 92
        model = make("Inventory", mean_demand=mean, lowest=0, highest=highest)
        gain, _, policy = best_gain(model)
        assert -gain == pytest.approx(cost, abs=6e-4), mean
        orders = policy > np.arange(model.n_states)
        s = np.flatnonzero(orders)[-1]
        (S,) = set(policy[orders])
        assert orders[: s + 1].all() and cost_of_s_S(mean, s, S) == pytest.approx(-gain, abs=1e-8)
        assert POLICIES.get(mean, (s, S)) == (s, S)


# Zipkin (2008), by lead time: mean costs for lost sales of 4, 9, 19 and 39.
ZIPKIN = {
    1: (4.04, 5.44, 6.68, 7.84),
    2: (4.40, 6.09, 7.66, 9.11),
    3: (4.60, 6.53, 8.36, 10.04),
    4: (4.73, 6.84, 8.89, 10.79),
}


@pytest.mark.parametrize("lead_time", ZIPKIN)
def test_lost_sales_cost_what_zipkin_says(lead_time):
    # With a lead time of four only where small orders are enough, so that the model stays small.
    prices, most = ((4, 9), 7) if lead_time == 4 else ((4, 9, 19, 39), 10)
    for lost, cost in zip(prices, ZIPKIN[lead_time], strict=False):
        model = make("LostSales", lead_time=lead_time, lost_sale_cost=lost, max_order=most)
        assert model.solve_average_reward(1e-4).gain == pytest.approx(-cost, abs=0.0052), lost


@pytest.mark.slow
def test_a_long_lead_time_and_dear_lost_sales_cost_what_zipkin_says():
    for lost, cost in zip((19, 39), ZIPKIN[4][2:], strict=True):
        model = make("LostSales", lead_time=4, lost_sale_cost=lost, max_order=10, max_stock=32)
        assert model.solve_average_reward(1e-4).gain == pytest.approx(-cost, abs=0.0052), lost


def test_a_lead_time_of_three_is_a_queue_of_orders():
    model = make("LostSales", lead_time=3)
    state = (23 * 11 + 2) * 11 + 1  # 23 in stock, orders of 2 and of 1 under way
    pair = state * model.n_actions + 4
    which = slice(model.outcome_ptr[pair], model.outcome_ptr[pair + 1])
    stock = [min(24, 23 - sold + 2) for sold in range(24)]
    assert model.outcome_next[which].tolist() == [(each * 11 + 1) * 11 + 4 for each in stock]
    chance = [math.exp(-5) * 5**k / math.factorial(k) for k in range(80)]
    assert model.outcome_prob[which] == pytest.approx([*chance[:23], sum(chance[23:])])
    lost = sum((k - 23) * p for k, p in enumerate(chance) if k > 23) / sum(chance[23:])
    assert model.outcome_reward[which] == pytest.approx([*range(-23, 0), -4 * lost])


def test_several_products_are_what_their_rules_say():
    """Value iteration over a plain model of three products, written down once more."""
    model = make("MultiProduct", max_stock=2)
    stocks = list(itertools.product(range(3), repeat=3))
    values = dict.fromkeys(stocks, 0.0)

    def worth(stock, action):
        filled = [2 if product == action - 1 else n for product, n in enumerate(stock)]
        total = 0.0
        for product, chance in ((0, 0.8 / 6), (1, 1.6 / 6), (2, 2.4 / 6), (None, 0.2)):
            left, paid = list(filled), -8.0 if action else 0.0
            if product is not None and left[product]:
                left[product] -= 1
                paid += 5.0
            elif product is not None:
                paid -= 2.0
            total += chance * (paid - 0.05 * sum(left) + 0.8 * values[tuple(left)])
        return total

    for _ in range(120):
        values = {stock: max(worth(stock, action) for action in range(4)) for stock in stocks}
    assert model.solve(0.8).v == pytest.approx([values[stock] for stock in stocks], abs=1e-8)


def test_a_million_states_of_several_products_are_not_stored():
    large = make("MultiProduct", n_products=6)
    assert isinstance(large, FunctionMDP) and large.n_states == 1_000_000
    with pytest.raises(SettingsError, match="1,000,000,000,000 states"):
        make("MultiProduct", n_products=12)


def test_jack_moves_cars_as_in_the_book():
    model = make("JacksCarRental")
    policy = model.solve(0.9).policy.reshape(21, 21)
    first, second = np.indices((21, 21))
    moved = np.clip(policy - 5, -second, first)
    # Figure 4.2 of Sutton and Barto, the last policy: 20 cars at the first location, none, and 10.
    assert moved[20].tolist() == [5, 5, 5, 5, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert moved[0].tolist() == [0] * 8 + [-1, -1, -2, -2, -2, -3, -3, -3, -3, -3, -4, -4, -4]
    assert moved[10].tolist() == [4, 4, 3, 3, 2, 1] + [0] * 15
    reward = np.add.reduceat(model.outcome_prob * model.outcome_reward, model.outcome_ptr[:-1])
    # Of 5 and 2 cars one is moved: rents of the first 4 and 3 Poisson customers, and 2 for moving.
    rents = [
        sum(min(k, n) * math.exp(-m) * m**k / math.factorial(k) for k in range(80))
        for n, m in ((4, 3), (3, 4))
    ]
    assert reward[(5 * 21 + 2) * 11 + 6] == pytest.approx(10 * sum(rents) - 2)


def test_the_rules_of_exercise_4_7():
    models = make("JacksCarRental"), make("JacksCarRental", modified=True)
    plain, modified = (np.add.reduceat(m.outcome_prob * m.outcome_reward, m.outcome_ptr[:-1]) for m in models)
    more = (modified - plain).reshape(21, 21, 11)
    assert more[5, 2, 6] == pytest.approx(2) and more[5, 2, 4] == pytest.approx(0)
    assert more[11, 15, 5] == pytest.approx(-8) and more[11, 9, 6] == pytest.approx(2)


def test_access_control_turns_away_who_pays_little():
    model = make("AccessControl")
    gain, _, policy = best_gain(model)
    accepted = policy.reshape(11, 4)[1:] == 1
    assert accepted[:, 2:].all() and not accepted[:, 0].any()
    assert accepted[:, 1].tolist() == [False] * 3 + [True] * 7
    # Of all who are let in, always: an Erlang-like chain of busy servers alone, solved by itself.
    always, _, _ = best_gain(model, np.ones(44, int))
    chance = np.zeros((11, 11))
    for free in range(11):
        busy = 10 - max(free - 1, 0)
        for k in range(busy + 1):
            chance[free, 10 - busy + k] += math.comb(busy, k) * 0.06**k * 0.94 ** (busy - k)
    stationary = np.linalg.matrix_power(chance, 4_096)[0]
    assert always == pytest.approx((1 - stationary[0]) * 3.75) and always < gain


@pytest.mark.parametrize("arrivals, reward", [(0.9, 10.0), (0.5, 30.0), (1.4, 25.0)])
def test_naor_says_how_many_are_let_in(arrivals, reward):
    r = arrivals

    def gain(n):  # of letting in up to n, per unit of time: an M/M/1/n queue
        weight = r ** np.arange(n + 1)
        weight /= weight.sum()
        return arrivals * (1 - weight[-1]) * reward - weight @ np.arange(n + 1)

    best, _, policy = best_gain(make("Admission", arrival_rate=arrivals, reward=reward))
    n0 = int(policy.argmin())
    assert best * (arrivals + 1) == pytest.approx(max(gain(n) for n in range(1, 21)))

    def costs(v):  # Naor's equation, which grows with v
        return (v * (1 - r) - r * (1 - r**v)) / (1 - r) ** 2

    assert costs(n0) <= reward < costs(n0 + 1) and n0 < math.floor(reward)


def test_it_is_best_to_join_the_shorter_queue():
    model = make("Routing", max_customers=7)
    gain, _, _ = best_gain(model)
    first, second = np.divmod(np.arange(64), 8)
    shorter, _, _ = best_gain(model, (second < first).astype(int))
    assert gain == pytest.approx(shorter, abs=1e-9)
    # One queue that is as good as never used: an M/M/1/7 queue, whose losses cost 50.
    alone = make("Routing", arrival_rate=0.5, service_rates=[1.0, 1e-9], max_customers=7)
    weight = 0.5 ** np.arange(8)
    weight /= weight.sum()
    cost = (weight @ np.arange(8) + 0.5 * weight[-1] * 50) / 1.5
    always, _, _ = best_gain(alone, np.zeros(64, int))
    assert -always == pytest.approx(cost, rel=1e-5)
    with pytest.raises(SettingsError, match="service_rates must be two numbers above 0"):
        make("Routing", service_rates=[1.0])


@pytest.mark.parametrize(
    "n_servers, free, busy_after", [(4, 1.0, 0.0), (4, 0.0, 4.0), (500, 0.9, 50.0), (1_000, 0.5, 500.0)]
)
def test_servers_become_free_by_a_binomial(n_servers, free, busy_after):
    model = make("AccessControl", n_servers=n_servers, free_probability=free, payments=[1.0])
    which = slice(*model.outcome_ptr[:2])  # all are busy, and nobody is let in
    chance, after = model.outcome_prob[which], model.outcome_next[which]
    assert chance @ (n_servers - after) == pytest.approx(busy_after)


def test_a_machine_is_replaced_when_renewals_say_so():
    for wear, price in ((0.3, 20.0), (0.1, 5.0), (0.9, 60.0), (0.3, 1_000.0)):
        k = np.arange(1, 20)
        costs = np.append((price + k * (k - 1) / (2 * wear)) / (1 + k / wear), 19.0)  # the last: never
        model = make("MachineReplacement", n_states=20, wear=wear, replacement_cost=price)
        gain, _, policy = best_gain(model)
        assert -gain == pytest.approx(costs.min()) and policy.argmax() == (*k, 0)[costs.argmin()]


def test_prices_come_near_to_those_of_continuous_time():
    fine = make("DynamicPricing", periods=1_000, arrival_probability=0.025, n_prices=40)
    limit = math.log(sum((25 / math.e) ** i / math.factorial(i) for i in range(6)))
    assert fine.start_value(fine.solve(1.0).v) == pytest.approx(limit, rel=2e-3)


def test_prices_are_the_best_backwards_in_time():
    model = make("DynamicPricing", stock=2, periods=4, n_prices=3)
    worth = np.zeros(3)
    prices = np.array([4 / 3, 8 / 3, 4])
    buys = 0.5 * np.exp(-prices)
    for _ in range(4):
        worth = np.array([0, *(max(buys * (prices + worth[n - 1]) + (1 - buys) * worth[n]) for n in (1, 2))])
    assert model.start_value(model.solve(1.0).v) == pytest.approx(worth[2])
