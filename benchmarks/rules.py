"""What every learning rule comes to, on 1 and 4 ranks, beside what theory says; and how fast it is.

Two problems whose answers are known: a Garnet of 8 states without an end, where each rule has a fixed point
of its own, and the random walk of Sutton and Barto (2018), example 6.2, whose values are 1/6 to 5/6; for
average rewards two states, whose values are solved by hand. The errors are the largest of all pairs, over
the seeds. Rules of which there are several kinds come with these, too; `--rules` takes some of all. Speed is
a ratio to Q-learning's in the same compiled loop on FrozenLake 8x8, in turns.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.rules import TD, DynaQ, MonteCarlo, QLambda, TreeBackup, registry
from dist_classicrl.schedules import PerVisit

GARNET = TabularMDP.garnet(8, 2, 2, seed=1)
WALK = TabularMDP.from_dict(
    [
        dict.fromkeys(
            (0, 1),
            [(0.5, max(s - 1, 0), 0.0, s == 0), (0.5, min(s + 1, 4), float(s == 4), s == 4)],
        )
        for s in range(5)
    ],
    np.eye(5)[2],
)
TWO_STATES = TabularMDP.from_dict(
    [
        {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 1, 0.0, False)]},
        {0: [(1.0, 1, 2.0, False)], 1: [(1.0, 0, 0.0, False)]},
    ],
    [1.0, 0.0],
)
RULES: dict[str, Any] = {name: name for name in registry.BUILT_IN} | {
    "n-step Q-learning": QLambda(trace_decay=1.0, n=4),
    "Peng's Q(lambda)": QLambda(variant="peng"),
    "tree backup, soft target": TreeBackup(target_epsilon=0.2),
    "Monte Carlo, first visits": MonteCarlo(longest=100, first_visit=True),
    "n-step TD": TD(n=4),
    "TD(lambda)": TD(n=16, trace_decay=0.9),
    "Dyna-Q+": DynaQ(bonus=0.0005),
}
WALK_VALUES = np.repeat(np.arange(1, 6) / 6.0, 2).reshape(5, 2)
TWO_STATES_VALUES = np.array([[-3.0, -2.0], [0.0, -4.0]])


def error_of(algorithm: Any, model: TabularMDP, steps: int, seed: int, discount: float) -> float:
    """Train, and return the largest error of all pairs."""
    from dist_classicrl.learning.rules import find

    agent = DistAsyncQLearning(
        algorithm=algorithm, epsilon=0.3, discount_factor=discount, learning_rate=PerVisit(0.7), seed=seed
    )
    agent.train(model, total_steps=steps)
    if model is GARNET:
        rule, parameters = find(algorithm)
        assert rule.truth is not None
        truth = rule.truth(model, parameters, agent.settings)
    else:
        truth = WALK_VALUES if model is WALK else TWO_STATES_VALUES
    difference = agent.q_table - truth
    if algorithm == "differential_q_learning":  # known up to a constant
        difference = difference - difference.mean()
    return float(np.abs(difference).max())


def run_rank(names: Sequence[str], steps: int, seeds: int) -> None:
    """Be one rank of the job; rank 0 prints the errors as JSON."""
    found: dict[str, Any] = {}
    for name in names:
        rule = RULES[name]
        second = TWO_STATES if name == "differential_q_learning" else WALK
        found[name] = {
            "Garnet": [error_of(rule, GARNET, steps, seed, 0.9) for seed in range(seeds)],
            "closed form": [error_of(rule, second, steps, seed, 1.0) for seed in range(seeds)],
        }
        print(f"{name}: done", file=sys.stderr, flush=True)
    if DistAsyncQLearning().rank == 0:
        print(json.dumps(found))


def speeds(names: Sequence[str], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return steps per second of each rule, in rounds of all in turns."""
    from dist_classicrl._random import stream_key
    from dist_classicrl.environments.resolve import resolve
    from dist_classicrl.learning.learner import Stream
    from dist_classicrl.settings import Settings

    source = resolve(common.problem(common.FROZEN_LAKE), 1, None)

    def timing(name: str) -> Any:
        settings = Settings(algorithm=RULES[name], epsilon=0.1, learning_rate=0.1)
        learner = common.learner_in(source, settings)
        stream = Stream(stream_key(1, "rules"), 0)
        learner.learn(0, stream, 100_000)
        steps = int(100_000 * seconds / common.timed(lambda: learner.learn(0, stream, 100_000)))
        return lambda number: steps / common.timed(lambda: learner.learn(0, stream, steps))

    return common.interleave({name: timing(name) for name in ("q_learning", *names)}, rounds)


def main() -> None:
    """Run the jobs and the timings, or be a rank of one."""
    parser = common.parser(__doc__, "rules.json")
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="length of each timing, about")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
    parser.add_argument("--as_rank", action="store_true", help="used by its jobs")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    if arguments.as_rank:
        run_rank(arguments.rules, arguments.steps, arguments.seeds)
        return
    rates = speeds(arguments.rules, arguments.rounds, arguments.seconds)
    own = [str(Path(__file__)), "--as_rank", "--steps", str(arguments.steps), "--seeds", str(arguments.seeds)]
    own += ["--rules", *arguments.rules]
    errors = {ranks: json.loads(common.mpi_output(ranks, own, 3600.0)) for ranks in arguments.ranks}
    results: dict[str, Any] = {}
    rows = []
    for name in arguments.rules:
        speed = common.median_ratio(rates[name], rates["q_learning"])
        results[name] = {"speed": speed, "errors": {ranks: found[name] for ranks, found in errors.items()}}
        cells = [
            f"{statistics.mean(figures):.3f} ({max(figures):.3f})"
            for found in errors.values()
            for figures in found[name].values()
        ]
        rows.append([name, *cells, f"{speed:.2f}"])
    heads = [f"{problem}, {ranks}" for ranks in errors for problem in ("Garnet", "closed form")]
    common.show(["rule", *heads, "speed"], rows)
    common.save(arguments.output, results, steps=arguments.steps, seeds=arguments.seeds)


if __name__ == "__main__":
    main()
