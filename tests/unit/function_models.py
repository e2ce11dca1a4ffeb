"""Models that functions give, and the same ones as tuples of outcomes, made in plain Python."""

from typing import NamedTuple

import numba
import numpy as np

from dist_classicrl._random import mix
from dist_classicrl.environments.model import TabularMDP

GAMMA = np.uint64(0x9E3779B97F4A7C15)


class Stock(NamedTuple):
    """A shop: `demand[k]` is the chance that k customers come, `price` what each pays."""

    capacity: int
    demand: np.ndarray
    price: float


STOCK = Stock(4, np.array([0.25, 0.5, 0.0, 0.125, 0.125]), 3.0)
STOCKED = dict(n_states=6, n_actions=5, n_outcomes=5, data=STOCK, start=2, max_episode_steps=20, name="stock")
"""State 5 is the shop that has closed: where demand takes all that there was, with luck."""


@numba.njit
def sell(data, state, action, outcome):
    chance = data.demand[outcome]
    if state > data.capacity:
        return chance, state, 0.0, True
    there = min(state + action, data.capacity)
    left = max(0, there - outcome)
    closes = left == 0 and outcome == 4
    return chance, data.capacity + 1 if closes else left, data.price * (there - left) - action, closes


@numba.njit
def may_order(data, state, action):
    return state + action <= data.capacity or (state > data.capacity and action == 0)


def random_model(n_outcomes, even, rare):
    """Return a function of outcomes that are drawn anew.

    `even`: as many in all pairs, with one reward. `rare`: few pairs have more than one.
    """

    @numba.njit
    def transition(data, state, action, outcome):
        pair = np.uint64(state * data.n_actions + action) * GAMMA
        drawn = np.uint64(mix(pair))
        size = n_outcomes if even else np.int64(1 + drawn % np.uint64(n_outcomes))
        if rare:
            size = n_outcomes if drawn % np.uint64(16) == 0 else 1
        weights = 0.0
        for number in range(size):
            weights += 1.0 + float(np.uint64(mix(pair + np.uint64(number))) % np.uint64(97))
        own = np.uint64(mix(pair + np.uint64(outcome)))
        chance = (1.0 + float(own % np.uint64(97))) / weights if outcome < size else 0.0
        reward = float(drawn % np.uint64(9)) if even else float(own % np.uint64(1000)) / 7.0
        return (
            chance,
            np.int64(np.uint64(mix(own)) % np.uint64(data.n_states)),
            reward,
            own % np.uint64(11) == 0,
        )

    return transition


class Sizes(NamedTuple):
    """The `data` of `random_model`."""

    n_states: int
    n_actions: int


def random_arguments(n_states=60, n_actions=3, n_outcomes=4, even=False, rare=False):
    """Return the arguments of a random model."""
    return dict(
        transition=random_model(n_outcomes, even, rare), n_states=n_states, n_actions=n_actions,
        n_outcomes=n_outcomes, data=Sizes(n_states, n_actions), max_episode_steps=30,
    )  # fmt: skip


def in_python(transition, n_states, n_actions, n_outcomes, data, start=None, legal=None, **labels):
    """Return the model that `TabularMDP.from_function` should make: each outcome is asked for in Python."""
    P = {state: {} for state in range(n_states)}
    may = (lambda data, state, action: True) if legal is None else getattr(legal, "py_func", legal)
    if isinstance(legal, np.ndarray):
        may = lambda data, state, action: legal[state, action]  # noqa: E731
    for state in range(n_states):
        for action in range(n_actions):
            if may(data, state, action):
                with np.errstate(over="ignore"):
                    outcomes = [transition.py_func(data, state, action, k) for k in range(n_outcomes)]
                P[state][action] = [(float(p), int(s), float(r), bool(t)) for p, s, r, t in outcomes]
    prob = np.full(n_states, 1.0 / n_states) if start is None else start
    if isinstance(start, int):
        prob = np.arange(n_states) == start
    mask = None if legal is None else np.array([[a in P[s] for a in range(n_actions)] for s in P])
    return TabularMDP.from_dict(P, np.array(prob, float), n_actions=n_actions, action_mask=mask, **labels)
