"""Monte Carlo methods: Blackjack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.data import Transitions, estimate_value, play_episodes
from dist_classicrl.errors import DataError
from dist_classicrl.plotting import canvas
from dist_classicrl.rules import MonteCarlo
from dist_classicrl.schedules import PerVisit
from textbook_chapters.common import Check, Drawn, lines, problem, show_grid

STICK, HIT = 0, 1
_SUM, _DEALER = np.meshgrid(np.arange(12, 22), np.arange(1, 11), indexing="ij")
_STATES = {ace: (_SUM * 11 + _DEALER) * 2 + ace for ace in (1, 0)}
"""As the model numbers them, of shape (sums from 12 to 21, cards that the dealer shows)."""
_TITLES = {1: "usable ace", 0: "no usable ace"}


def _sticks_on_20() -> np.ndarray:
    actions = np.full(715, HIT)
    actions[20 * 22 :] = STICK
    return actions


def _panels(rows: int, height: float) -> tuple[Figure, np.ndarray]:
    figure = canvas.new_figure(height)
    return figure, figure.subplots(rows, 2, squeeze=False)


@canvas.styled
def prediction(quick: bool) -> Drawn:
    """Draw example 5.1 and figure 5.1: the value of sticking on 20 and 21 alone.

    The error is that of the states without a usable ace, which are all met often, over their values.
    """
    model = problem("Blackjack")
    truth = model.policy_value(_sticks_on_20(), 1.0)
    behavior = np.eye(2)[_sticks_on_20()]
    agent = DistAsyncQLearning(
        algorithm=MonteCarlo(32), behavior=behavior, learning_rate=PerVisit(1.0), discount_factor=1.0, seed=1
    )
    figure, panels = _panels(2, 7.0)
    errors, played = [], 0
    for column, episodes in enumerate((10_000, 500_000)):
        result = agent.train(model, total_steps=10 * episodes, total_episodes=episodes - played)
        played += result.episodes
        values = agent.q_table[np.arange(715), _sticks_on_20()]
        for row, (ace, title) in enumerate(_TITLES.items()):
            show_grid(
                panels[row, column],
                values[_STATES[ace]],
                f"{title}, {episodes:,} episodes",
                extent=(0.5, 10.5, 11.5, 21.5),
                vmin=-1,
                vmax=1,
            )
            panels[row, column].set(xlabel="dealer shows", ylabel="player's sum")
        errors.append(float(np.sqrt(np.mean((values - truth)[_STATES[0]] ** 2))))
    state = int(_STATES[1][1, 1])
    exact = "linear equations"
    return figure, [
        Check("value with 13, usable ace, dealer 2, as computed", float(truth[state]), -0.27726, 3e-4),
        Check(
            "value with 20, no ace, dealer 10",
            float(values[_STATES[0][8, 9]]),
            float(truth[_STATES[0][8, 9]]),
            0.02,
            exact,
        ),
        Check("RMS error without ace, 10,000 episodes", errors[0], 0.0, 0.2, exact),
        Check("RMS error without ace, 500,000 episodes", errors[1], 0.0, 0.025, exact),
    ]


@canvas.styled
def exploring_starts(quick: bool) -> Drawn:
    """Draw example 5.3 and figure 5.2: the best policy by Monte Carlo control with exploring starts.

    Episodes begin in any state. The library chooses the first action as all others, which the book draws:
    in its place epsilon, 0.05, lets all be tried.
    """
    model = problem("Blackjack")
    agent = DistAsyncQLearning(
        algorithm=MonteCarlo(32),
        epsilon=0.05,
        exploring_starts=True,
        learning_rate=PerVisit(1.0),
        discount_factor=1.0,
        seed=1,
    )
    agent.train(model, total_steps=5_000_000 if quick else 50_000_000)
    best, policy = model.solve(1.0), agent.policy.greedy
    figure, panels = _panels(2, 7.0)
    differing = 0
    for row, (ace, title) in enumerate(_TITLES.items()):
        states = _STATES[ace]
        look = {"extent": (0.5, 10.5, 11.5, 21.5)}
        show_grid(panels[row, 0], policy[states], f"{title}: 1 hits", vmin=0, vmax=1, **look)
        show_grid(
            panels[row, 1], agent.q_table[states].max(axis=2), f"{title}: value", vmin=-1, vmax=1, **look
        )
        differing += int((policy != best.policy)[states].sum())
        for axes in panels[row]:
            axes.set(xlabel="dealer shows", ylabel="player's sum")
    optimum = model.start_value(best.v)
    worth = model.start_value(model.policy_value(policy, 1.0))
    return figure, [
        Check(
            "mean return of the policy learned", worth, optimum, 0.003 if quick else 0.001, "value iteration"
        ),
        Check(
            "states of 200 with another action",
            differing,
            12 if quick else 6,
            by="value iteration",
            sign="<=",
        ),
    ]


@canvas.styled
def off_policy(quick: bool) -> Drawn:
    """Draw example 5.4 and figure 5.3: a state's value from episodes of another policy.

    100 runs of 10,000 episodes of hitting and sticking by chance. The estimates are those of
    `estimate_value`, which takes two episodes at least: so the curves begin there.
    """
    runs = 100
    ends = (2, 10, 100, 1_000) if quick else (2, 4, 10, 30, 100, 300, 1_000, 3_000, 10_000)
    state = int(_STATES[1][1, 1])
    model = replace(problem("Blackjack"), start_prob=np.eye(715)[state])
    even, asked = np.full((715, 2), 0.5), np.eye(2)[_sticks_on_20()]
    truth = float(model.policy_value(asked, 1.0)[state])
    found: dict[str, list[list[float]]] = {"ordinary": [], "weighted": []}
    for run in range(runs):
        data = play_episodes(model, even, ends[-1], seed=run)
        parts = [_first(data, episodes) for episodes in ends]
        for method, rows in found.items():
            rows.append([_estimate(part, asked, method, even) for part in parts])
    figure, axes = lines()
    errors = {}
    for method, rows in found.items():
        errors[method] = np.mean((np.array(rows) - truth) ** 2, axis=0)
        axes.plot(ends, errors[method], "o-", markersize=3, label=f"{method} importance sampling")
    axes.set(xscale="log", xlabel="episodes", ylabel="mean square error", ylim=(0, None))
    axes.legend()
    checks = [Check("true value", truth, -0.27726, 3e-4)]
    for method, rows in found.items():
        last = np.array(rows)[:, -1]
        spread = float(4.0 * last.std(ddof=1) / np.sqrt(runs))
        checks.append(
            Check(f"{method}, mean of {runs} runs of {ends[-1]:,}", float(last.mean()), -0.27726, spread)
        )
    ratio = float(errors["ordinary"][0] / errors["weighted"][0])
    checks.append(Check("squared error after 2 episodes, ordinary to weighted", ratio, 3.0, sign=">="))
    return figure, checks


def _first(data: Transitions, episodes: int) -> Transitions:
    """Return the first episodes."""
    end = len(data) if episodes >= data.starts.size else int(data.starts[episodes])
    assert data.truncated is not None
    return Transitions(
        data.states[:end],
        data.actions[:end],
        data.rewards[:end],
        data.next_states[:end],
        data.terminated[:end],
        data.truncated[:end],
    )


def _estimate(data: Transitions, asked: np.ndarray, method: str, behavior: np.ndarray) -> float:
    """Return an estimate; 0, as in the book, where no episode is one that the policy could have played."""
    try:
        return estimate_value(data, asked, 1.0, method, behavior).value
    except DataError:
        return 0.0
