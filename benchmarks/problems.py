"""What Q-learning with the default settings reaches in each problem of the registry, and how fast that is.

Reached is the exact value of the greedy policy, over that of the best one: with the problem's own
discount factor, or 0.99 where its optimum is a mean per step. Of the control problems, whose optimum nobody
knows, the mean return of 1,000 episodes is told; `--control` tells of these alone what their docstrings say:
the mean over ten seeds after so many steps, with an interval of 95 %. Speed is that of learning in compiled
code over Gymnasium's own environment of the same rules, which is stepped with one action after the other and
learns nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import gymnasium

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.environments import Problem, registry

OF_GYMNASIUM = {
    "Blackjack-v0": "Blackjack-v1",
    "CartPole-v0": "CartPole-v1",
    "MountainCar-v0": "MountainCar-v0",
    "Acrobot-v0": "Acrobot-v1",
}
STEPPED = 20_000
CONTROL = {"CartPole-v0": 5_000_000, "MountainCar-v0": 20_000_000, "Acrobot-v0": 20_000_000}
T_OF_TEN = 2.262  # 97.5 % of Student's t, nine degrees of freedom


def reached(problem: Problem, steps: int, seed: int) -> tuple[float, float]:
    """Return what the greedy policy collects after training, and what the best one does."""
    made = problem.make()
    discount = 0.99 if problem.discount_factor is None or problem.optimum is None else problem.discount_factor
    agent = DistAsyncQLearning(seed=seed, discount_factor=discount)
    agent.train(made, total_steps=steps, verbose=0)
    if isinstance(made, CompiledSimulator):
        return agent.evaluate(made, episodes=1_000, seed=1).mean_return, float("nan")
    # A little less than 1, so that the value of a policy that never ends an episode is a number, too.
    exact = min(discount, 1.0 - 1e-6)
    return (
        made.start_value(made.policy_value(agent.policy.greedy, exact)),
        made.start_value(made.solve(exact).v),
    )


def compiled(name: str, steps: int) -> Callable[[int], float]:
    """Return what tells the steps per second of learning."""
    made = registry()[f"dist_classicrl/{name}"].make()

    def rate(_: int) -> float:
        return DistAsyncQLearning(seed=1).train(made, total_steps=steps, verbose=0).steps_per_second

    return rate


def stepped(name: str) -> Callable[[int], float]:
    """Return what tells the steps per second of Gymnasium's own environment."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(name)

    def play() -> None:
        env.reset(seed=1)
        for number in range(STEPPED):
            _, _, terminated, truncated, _ = env.step(number % 2)
            if terminated or truncated:
                env.reset()

    return lambda _: STEPPED / common.timed(play)


def control(names: Sequence[str], output: Path) -> None:
    """Tell what the greedy policy collects in control problems, of ten seeds."""
    rows, results = [], {}
    for name in names:
        problem = registry()[f"dist_classicrl/{name}"]
        values = [reached(problem, CONTROL[name], seed)[0] for seed in range(10)]
        reach = T_OF_TEN * statistics.stdev(values) / 10**0.5
        results[name] = {"steps": CONTROL[name], "values": values}
        rows.append((name, f"{CONTROL[name]:,}", f"{statistics.mean(values):.1f} +- {reach:.1f}"))
    common.show(("problem", "steps", "mean return, 95 %"), rows)
    common.save(output, results, seeds=10)


def main() -> None:
    """Measure."""
    arguments = common.parser(__doc__, "problems.json")
    arguments.add_argument("--steps", type=float, default=1e7, help="of each training (default: %(default)g)")
    arguments.add_argument("--seeds", type=int, default=3, help="(default: %(default)s)")
    arguments.add_argument("--rounds", type=int, default=5, help="of speed (default: %(default)s)")
    arguments.add_argument(
        "--control", nargs="*", choices=CONTROL, metavar="PROBLEM", help="these, or all three, alone"
    )
    given = arguments.parse_args()
    if given.control is not None:
        control(given.control or list(CONTROL), given.output)
        return
    rows, results = [], {}
    for problem in registry().values():
        name = problem.id.partition("/")[2]
        pairs = [reached(problem, int(given.steps), seed) for seed in range(given.seeds)]
        values, best = [value for value, _ in pairs], pairs[0][1]
        gap = 100 * abs(best - statistics.mean(values)) / max(abs(best), 1e-9)
        results[name] = {"values": values, "best": best}
        is_known = problem.optimum is not None and abs(best) > 1e-6
        share = f"{gap:.3g} %" if is_known else ""
        rows.append((name, f"{statistics.mean(values):.5g}", f"{best:.5g}" if is_known else "", share))
    common.show(("problem", "greedy policy", "best", "gap"), rows)
    speed = {}
    for name, other in OF_GYMNASIUM.items():
        rates = common.interleave(
            {"compiled": compiled(name, int(given.steps)), "stepped": stepped(other)}, given.rounds
        )
        speed[name] = {**rates, "ratio": common.median_ratio(rates["compiled"], rates["stepped"])}
    ratios = [(name, each["compiled"], each["stepped"], each["ratio"]) for name, each in speed.items()]
    common.show(
        ("problem", "learning, M steps/s", "Gymnasium's, M steps/s", "ratio"),
        [
            (name, f"{statistics.median(a) / 1e6:.3g}", f"{statistics.median(b) / 1e6:.3g}", f"{ratio:.0f}")
            for name, a, b, ratio in ratios
        ],
    )
    common.save(
        given.output,
        {"reached": results, "speed": speed},
        steps=given.steps,
        seeds=given.seeds,
        rounds=given.rounds,
    )


if __name__ == "__main__":
    main()
