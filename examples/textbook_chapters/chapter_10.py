"""Beyond discounting and chance: the access-control queue, and the deep sea, which is not in the book."""

from __future__ import annotations

import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.plotting import canvas
from dist_classicrl.rules import DifferentialQLearning, UCBQLearning
from dist_classicrl.schedules import PerVisit
from textbook_chapters.common import Check, Drawn, colored, lines, problem


@canvas.styled
def access_control(quick: bool) -> Drawn:
    """Draw example 10.2 and figure 10.5, in a table: who gets in, and what a customer is worth.

    Differential Q-learning, which finds the best policy's mean reward; the book's differential SARSA has that
    of a policy that explores, and 2.31 by tile coding.
    """
    model = problem("AccessControl", max_episode_steps=None)
    best = model.solve_average_reward()
    gain = float(np.ravel(best.gain)[0])
    agent = DistAsyncQLearning(
        algorithm=DifferentialQLearning(eta=0.03), epsilon=0.3, learning_rate=PerVisit(0.7), seed=1
    )
    agent.train(model, total_steps=20_000_000 if quick else 100_000_000)
    learned = float(agent.shared["mean_reward"][0])
    policy = agent.policy.greedy
    figure = canvas.new_figure(4.5)
    left, right = map(colored, figure.subplots(1, 2))
    left.grid(False)
    left.imshow(policy.reshape(11, 4)[1:].T, origin="lower", aspect="auto", vmin=0, vmax=1)
    left.set(xlabel="free servers", ylabel="customer pays", title="who gets in (bright)")
    left.set_xticks(range(10), map(str, range(1, 11)))
    left.set_yticks(range(4), ["1", "2", "4", "8"])
    values = agent.q_table.max(axis=1).reshape(11, 4)
    for kind, pays in enumerate((1, 2, 4, 8)):
        right.plot(range(11), values[:, kind], label=f"pays {pays}")
    right.set(xlabel="free servers", ylabel="differential value of the best action")
    right.legend()
    policy_gain = float(np.ravel(model.policy_gain(policy).gain)[0])
    exact = "relative value iteration"
    return figure, [
        Check("mean reward that was learned", learned, gain, 0.01 * gain, exact),
        Check("mean reward of the policy that was learned", policy_gain, gain, 0.001 * gain, exact),
    ]


@canvas.styled
def deep_sea(quick: bool) -> Drawn:
    """Draw the deep sea (Osband et al. 2020), 10 to 50 rows: episodes until the treasure is found.

    Q-learning with bonuses (UCB-H) against epsilon-greedy Q-learning, epsilon 0.1, in as many episodes.
    """
    sizes = (10, 20) if quick else (10, 20, 30, 40, 50)
    runs = 2 if quick else 3
    figure, axes = lines()
    needed, worth = [], []
    for size in sizes:
        bonus = 0.5 / size**1.5  # the first of a pair is 0.5
        found = [_dive(size, UCBQLearning(size, bonus), 0.0, 10**6, seed) for seed in range(runs)]
        needed.append([episodes for episodes, _ in found])
        most = max(needed[-1])
        greedy = [_dive(size, "q_learning", 0.1, most, seed)[1] for seed in range(runs)]
        worth.append((min(value for _, value in found), max(greedy)))
    axes.plot(sizes, np.mean(needed, axis=1), "o-", label="with bonuses")
    axes.plot(sizes, 2.0 ** np.array(sizes), "--", color=canvas.GRAY, label="by chance, one in 2^rows")
    axes.set(yscale="log", xlabel="rows", ylabel="episodes", ylim=(10, 1e8))
    axes.legend()
    checks = []
    for size, (with_bonuses, without) in zip(sizes, worth, strict=True):
        checks.append(
            Check(f"{size} rows, bonuses: worst return of {runs} runs", with_bonuses, 0.99, 1e-9, "exact")
        )
        checks.append(
            Check(f"{size} rows, epsilon-greedy: best return", without, 0.0, sign="<=", by="Osband")
        )
    return figure, checks


def _dive(size: int, rule: str | UCBQLearning, epsilon: float, most: int, seed: int) -> tuple[int, float]:
    """Train until the greedy policy is the best one, or so long; return episodes and what it collects."""
    model = problem("DeepSea", size=size)
    agent = DistAsyncQLearning(algorithm=rule, epsilon=epsilon, discount_factor=1.0, seed=seed)
    while True:
        episodes = agent.steps // size
        value = 0.0
        if episodes:
            value = model.start_value(model.policy_value(agent.policy.greedy, 1.0))
            if value > 0.98 or episodes >= most:
                return episodes, value
        agent.train(model, total_steps=size * min(max(100, episodes // 4), most - episodes))
