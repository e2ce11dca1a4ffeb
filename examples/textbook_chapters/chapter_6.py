"""Temporal-difference learning: a random walk, the windy gridworld, the cliff, and the maximization bias."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.plotting import canvas
from dist_classicrl.rules import TD, MonteCarlo
from textbook_chapters.common import Check, Drawn, colored, exploring, follow, lines, problem

_WALK = np.arange(1, 6) / 6.0


@canvas.styled
def random_walk(quick: bool) -> Drawn:
    """Draw example 6.2: what TD(0) and Monte Carlo make of the walk of five states, by episodes.

    The errors are means over runs of 100 episodes. Means of values are up to 0.03 beyond the truth even in
    many runs, also in plain loops: the step size does not fall.
    """
    runs = 4 if quick else 60
    model = problem("RandomWalk", n_states=5, left_reward=0.0)
    ends = np.arange(101)
    figure = canvas.new_figure(4.5)
    left, right = map(colored, figure.subplots(1, 2))
    last: dict[str, float] = {}
    means: dict[str, float] = {}
    lines = [(TD(), rate, "TD", "-") for rate in (0.15, 0.1, 0.05)]
    lines += [(MonteCarlo(), rate, "Monte Carlo", "--") for rate in (0.01, 0.02, 0.03, 0.04)]
    for number, (rule, rate, name, style) in enumerate(lines):
        values = np.array([_walked(model, rule, rate, seed, ends) for seed in range(runs)])
        errors = np.sqrt(((values - _WALK) ** 2).mean(axis=2)).mean(axis=0)
        right.plot(ends, errors, style, color=canvas.COLORS[number], label=f"{name}, step size {rate}")
        means.setdefault(name, np.inf)
        means[name] = min(means[name], float(errors.mean()))
        last[f"{name} {rate}"] = float(errors[-1])
        if name == "TD" and rate == 0.1:
            for end in (0, 1, 10, 100):
                left.plot(range(5), values[0, end], "o-", markersize=4, label=f"{end} episodes")
            after = values.mean(axis=0)
    left.plot(range(5), _WALK, color=canvas.BLACK, label="true values")
    left.set_xticks(range(5), "ABCDE")
    left.set(xlabel="state", ylabel="value", title="one run of TD, step size 0.1")
    right.set(xlabel="episodes", ylabel="RMS error", title=f"mean of {runs} runs", ylim=(0, None))
    left.legend()
    right.legend()
    noise = 0.08 if quick else 0.03
    return figure, [
        Check(
            "RMS error at the beginning",
            float(errors[0]),
            float(np.sqrt(((0.5 - _WALK) ** 2).mean())),
            1e-9,
            "exact",
        ),
        Check(
            "largest error of the mean values, TD 0.1",
            float(np.abs(after[-1] - _WALK).max()),
            0.0,
            noise + 0.03,
            "exact",
        ),
        Check("RMS error at the end, TD 0.05", last["TD 0.05"], _twin(True, 0.05), noise, "plain loops"),
        Check(
            "RMS error at the end, Monte Carlo 0.01",
            last["Monte Carlo 0.01"],
            _twin(False, 0.01),
            noise,
            "plain loops",
        ),
        Check(
            "mean RMS error, the best Monte Carlo to the best TD",
            means["Monte Carlo"] / means["TD"],
            1.1,
            sign=">=",
        ),
    ]


def _twin(is_td: bool, rate: float, runs: int = 200) -> float:
    """Return the mean RMS error after 100 episodes, by plain loops: equations 6.2, and 6.1 at the end."""
    random, errors = np.random.default_rng(1), []
    for _ in range(runs):
        v = np.array([0.0, *np.full(5, 0.5), 1.0])  # with the ends: the reward is what lies behind the right
        for _ in range(100):
            states = [3]
            while 0 < (state := states[-1]) < 6:
                states.append(state + (1 if random.random() < 0.5 else -1))
                if is_td:
                    v[state] += rate * (v[states[-1]] - v[state])
            for state in () if is_td else states[:-1]:
                v[state] += rate * (v[states[-1]] - v[state])
        errors.append(np.sqrt(((v[1:-1] - _WALK) ** 2).mean()))
    return float(np.mean(errors))


def _walked(model: TabularMDP, rule: TD | MonteCarlo, rate: float, seed: int, ends: np.ndarray) -> np.ndarray:
    agent = DistAsyncQLearning(
        algorithm=rule, learning_rate=rate, discount_factor=1.0, initial_value=0.5, seed=seed
    )
    run = follow(agent, model, 100_000, 5, lambda agent: agent.q_table[:, 0].copy(), episodes=int(ends[-1]))
    return np.concatenate((np.full((1, 5), 0.5), run.at_episodes(ends[1:])))


@canvas.styled
def windy_gridworld(quick: bool) -> Drawn:
    """Draw example 6.5: episodes of SARSA in the windy gridworld, by time steps, of 8,000.

    The library's map differs near the lower edge, where nobody needs to go.
    """
    runs = 8 if quick else 50
    model = problem("WindyGridworld", max_episode_steps=None)
    followed = []
    for seed in range(runs):
        agent = DistAsyncQLearning(
            algorithm="sarsa", learning_rate=0.5, epsilon=0.1, discount_factor=1.0, seed=seed
        )
        followed.append(follow(agent, model, 8_000, 40))
    figure, axes = lines()
    for run in followed:
        axes.plot(run.steps, run.episodes, color=canvas.GRAY, linewidth=0.5)
    episodes = np.mean([run.episodes for run in followed], axis=0)
    axes.plot(followed[0].steps, episodes, label=f"mean of {runs} runs")
    axes.set(xlabel="time steps", ylabel="episodes")
    axes.legend()
    best = model.solve(1.0)
    explored = model.policy_value(exploring(model, best.q.argmax(axis=1), 0.1), 1.0)
    return figure, [
        Check("shortest way", -model.start_value(best.v), 15.0, 1e-9),
        Check("episodes in 8,000 steps", float(episodes[-1]), 170.0, 25.0),
        Check(
            "mean steps of the best policy with an epsilon of 0.1", -model.start_value(explored), 17.0, 0.5
        ),
    ]


@canvas.styled
def cliff(quick: bool) -> Drawn:
    """Draw example 6.6: what SARSA and Q-learning collect in 500 episodes on the cliff.

    Q-learning's last 100 episodes are compared with the exact value of the best policy that explores so,
    which it comes to. The book reads some -25 for SARSA and -50 for Q-learning.
    """
    runs = 5 if quick else 60
    model = TabularMDP.from_gymnasium("CliffWalking-v1")
    figure, axes = lines()
    late: dict[str, float] = {}
    ways: dict[str, list[float]] = {}
    for name, label in (("sarsa", "SARSA"), ("q_learning", "Q-learning")):
        returns = []
        for seed in range(runs):
            agent = DistAsyncQLearning(
                algorithm=name, learning_rate=0.5, epsilon=0.1, discount_factor=1.0, seed=seed
            )
            returns.append(follow(agent, model, 10**6, 12, episodes=500).returns[:500])
            ways.setdefault(name, []).append(agent.evaluate(model, episodes=1, max_steps=100).mean_return)
        mean = np.mean(returns, axis=0)
        axes.plot(np.convolve(mean, np.ones(10) / 10, "valid"), label=label)
        late[name] = float(mean[-100:].mean())
    axes.set(xlabel="episodes", ylabel="sum of rewards in an episode", ylim=(-100, 0))
    axes.legend()
    best = model.solve(1.0)
    values = model.policy_value(exploring(model, best.q.argmax(axis=1), 0.1), 1.0)
    return figure, [
        Check("best way, of Q-learning", float(np.median(ways["q_learning"])), -13.0),
        Check("way of SARSA, at most", float(np.median(ways["sarsa"])), -15.0, sign="<="),
        Check(
            "last 100 episodes, Q-learning",
            late["q_learning"],
            model.start_value(values),
            6.0,
            "linear equations",
        ),
        Check("last 100 episodes, SARSA", late["sarsa"], -25.0, 12.0 if quick else 5.0),
        Check("SARSA collects more, by", late["sarsa"] - late["q_learning"], 10.0, sign=">="),
    ]


def _bait(actions: int = 10, points: int = 21) -> TabularMDP:
    """Return the problem of figure 6.5: A (state 0) with left and right, and B (1) behind the left.

    The rewards in B are normal with mean -0.1 and variance 1, as so many equally likely numbers.
    """
    rewards = np.array([NormalDist().inv_cdf((k + 0.5) / points) for k in range(points)])
    rewards = rewards / rewards.std() - 0.1
    of_b = [(1.0 / points, 1, float(reward), True) for reward in rewards]
    over = [(1.0, 0, 0.0, True)]
    of_a = {action: [(1.0, 1, 0.0, False)] if action == 0 else over for action in range(actions)}
    mask = np.ones((2, actions), bool)
    mask[0, 2:] = False
    return TabularMDP.from_dict([of_a, dict.fromkeys(range(actions), of_b)], [1.0, 0.0], action_mask=mask)


@canvas.styled
def maximization_bias(quick: bool) -> Drawn:
    """Draw example 6.7 and figure 6.5: how often Q-learning and Double Q-learning go left.

    B has 10 actions. Episodes are counted in the reports of 6 steps in which they ended.
    """
    runs = 60 if quick else 600
    model = _bait()
    figure, axes = lines()
    found = {}
    for name, label in (("q_learning", "Q-learning"), ("double_q_learning", "Double Q-learning")):
        lengths = []
        for seed in range(runs):
            agent = DistAsyncQLearning(
                algorithm=name, learning_rate=0.1, epsilon=0.1, discount_factor=1.0, seed=seed
            )
            lengths.append(follow(agent, model, 1_000, 12 if quick else 6, episodes=300).lengths[:300])
        left = 100.0 * (np.mean(lengths, axis=0) - 1.0)
        axes.plot(np.arange(1, 301), left, label=label)
        found[name] = left
    axes.axhline(5.0, color=canvas.BLACK, linestyle="--", label="best")
    axes.set(xlabel="episodes", ylabel="% of episodes that begin to the left", ylim=(0, 100))
    axes.legend()
    spread = 3.0 if quick else 1.5
    return figure, [
        Check(
            "% left, Q-learning, most of 10 episodes",
            float(np.convolve(found["q_learning"], np.ones(10) / 10, "valid").max()),
            60.0,
            sign=">=",
        ),
        Check(
            "% left, Q-learning, last 50 episodes", float(found["q_learning"][-50:].mean()), 10.0, 2 * spread
        ),
        Check(
            "% left, Double Q-learning, last 50 episodes",
            float(found["double_q_learning"][-50:].mean()),
            5.0,
            2 * spread,
        ),
    ]
