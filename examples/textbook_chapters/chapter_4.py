"""Dynamic programming: Jack's car rental and the gambler's problem."""

from __future__ import annotations

import numpy as np

from dist_classicrl.plotting import canvas
from textbook_chapters.common import Check, Drawn, backed_up, colored, problem, show_grid


@canvas.styled
def car_rental(quick: bool) -> Drawn:
    """Draw example 4.2 and figure 4.2: the policies of policy iteration, and the last values."""
    model = problem("JacksCarRental")
    first, second = np.indices((21, 21)).reshape(2, -1)
    moved = np.clip(np.arange(-5, 6), -second[:, None], first[:, None])
    policies = [np.full(441, 5)]
    while True:
        v = model.policy_value(policies[-1], 0.9)
        q = backed_up(model, v, 0.9)
        better = (q - 1e-9 * np.abs(moved)).argmax(axis=1)  # of equal ones the one that moves less
        if (q[np.arange(441), better] < v + 1e-9).all():
            break
        policies.append(better)
    figure = canvas.new_figure(7.0)
    panels = figure.subplots(2, 3).flat
    for number, policy in enumerate(policies):
        cars = moved[np.arange(441), policy].reshape(21, 21)
        show_grid(next(panels), cars, f"policy {number}: cars moved", vmin=-5, vmax=5, cmap="RdBu")
    show_grid(next(panels), v.reshape(21, 21), f"values of policy {len(policies) - 1}", cmap="viridis")
    for axes in figure.axes[: len(policies) + 1]:
        axes.set(xlabel="cars at the second location", ylabel="at the first")
    best = model.solve(0.9).v
    return figure, [
        Check("policies after the first until none is better", len(policies) - 1, 4),
        Check("most cars moved to the second location", int(cars.max()), 5),
        Check("most cars moved to the first location", int(-cars.min()), 4),
        Check("largest distance from value iteration", float(np.abs(v - best).max()), 0.0, 1e-6, "exact"),
    ]


@canvas.styled
def gambler(quick: bool) -> Drawn:
    """Draw example 4.3 and figure 4.3: values after sweeps of value iteration, and a best policy.

    Sweeps are of all states at once, from the values before; the book's are in place, and so a little ahead.
    """
    model = problem("Gambler")
    best = model.solve(1.0, tolerance=1e-12)
    capital = np.arange(1, 100)
    stake = best.q[1:100] >= best.v[1:100, None] - 1e-9
    smallest = stake.argmax(axis=1) + 1
    figure = canvas.new_figure(4.5)
    left, right = map(colored, figure.subplots(1, 2))
    v = np.zeros(101)
    for sweep in range(1, 33):
        v = backed_up(model, v, 1.0).max(axis=1)
        if sweep in (1, 2, 3, 32):
            left.plot(capital, v[1:100], label=f"sweep {sweep}")
    left.plot(capital, best.v[1:100], color=canvas.BLACK, label="best")
    left.legend()
    left.set(xlabel="capital", ylabel="value", title="chance to reach the goal")
    right.step(capital, smallest, where="mid")
    right.set(xlabel="capital", ylabel="stake", title="smallest of the best stakes")
    bold = _bold_play(capital / 100)
    return figure, [
        Check("value of 25", float(best.v[25]), 0.16, 1e-9, "exact"),
        Check("value of 50", float(best.v[50]), 0.4, 1e-9, "exact"),
        Check("value of 75", float(best.v[75]), 0.64, 1e-9, "exact"),
        Check(
            "largest distance from bold play", float(np.abs(best.v[1:100] - bold).max()), 0.0, 1e-9, "exact"
        ),
        Check("stake with 25", int(smallest[24]), 25),
        Check("stake with 50", int(smallest[49]), 50),
        Check("stake with 51", int(smallest[50]), 1),
        Check("stake with 75", int(smallest[74]), 25),
    ]


def _bold_play(share: np.ndarray) -> np.ndarray:
    """Return the chance to get from a share of the goal to all of it by the largest stakes, with p = 0.4."""
    value, weight, share = np.zeros(share.size), np.ones(share.size), share.copy()
    for _ in range(60):
        high = share >= 0.5
        value += weight * np.where(high, 0.4, 0.0)
        weight *= np.where(high, 0.6, 0.4)
        share = 2.0 * share - high
    return value
