"""What it costs that things happen at steps: 200 records and 100 evaluations, the evaluating itself excluded.

FrozenLake 8x8 and Taxi, in one process, with a server, and in the rounds of the reproducible mode. Calls of
`train` have, in turns, the records of `dist-classicrl train` with a callback that asks for 100 reports where
it would evaluate, and none of them. The time is that of the training; throughput as a ratio.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
from pathlib import Path

import common

EVALUATIONS = 100
WAYS = {"alone": (1, True), "server": (3, True), "rounds": (3, False)}


def run_rank(way: str, name: str, pairs: int, seconds: float) -> None:
    """Be one rank of the job; rank 0 prints the rates as JSON."""
    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.callbacks import BaseCallback, EveryNTimesteps, MetricsCallback

    agent = DistAsyncQLearning(learning_rate=0.1, seed=0, async_updates=WAYS[way][1])
    env = common.problem(name)
    agent.train(env, total_steps=1_000_000)
    steps = int(seconds * agent.train(env, total_steps=19_000_000).steps_per_second)
    # Evaluations come at steps of records, as with round numbers they do.
    steps -= steps % (2 * EVALUATIONS)
    agent.train(env, total_steps=-agent.steps % steps)
    found, calls = [], 0
    for number in range(-1, pairs):
        rates = {}
        for is_asked in (number % 2 == 0, number % 2 == 1):
            evaluation = EveryNTimesteps(steps // EVALUATIONS, BaseCallback())
            with tempfile.TemporaryDirectory() as folder:  # what an earlier call recorded would be read again
                asked: list[BaseCallback] = [MetricsCallback(folder), evaluation]
                result = agent.train(env, total_steps=steps, callbacks=asked if is_asked else None)
            rates["with" if is_asked else "without"] = result.steps_per_second
            calls += evaluation.callback.n_calls
        if number >= 0:  # the first pair warms up
            found.append(rates)
    if agent.rank == 0:
        print(json.dumps({"pairs": found, "steps": steps, "evaluations": calls / (pairs + 1)}))


def main() -> None:
    """Run the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "at_steps.json")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each training, about")
    parser.add_argument("--as_rank", nargs=2, metavar=("WAY", "PROBLEM"), help="used by its jobs")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if arguments.as_rank:
        run_rank(*arguments.as_rank, arguments.pairs, arguments.seconds)
        return
    limit = 120.0 + 4.0 * arguments.pairs * arguments.seconds
    results, rows = [], []
    for way, (ranks, _) in WAYS.items():
        for name in (common.FROZEN_LAKE, common.TAXI):
            program = [str(Path(__file__).resolve()), "--as_rank", way, name]
            program += ["--pairs", str(arguments.pairs), "--seconds", str(arguments.seconds)]
            found = json.loads(common.mpi_output(ranks, program, limit).splitlines()[-1])
            ratios = [pair["with"] / pair["without"] for pair in found["pairs"]]
            results.append({"way": way, "problem": name, **found})
            rows.append(
                [
                    way,
                    name,
                    f"{found['steps'] / 1e6:.0f}",
                    f"{found['evaluations']:.0f}",
                    f"{statistics.median(pair['without'] for pair in found['pairs']) / 1e6:.1f}",
                    common.mean_with_interval(ratios),
                    f"{statistics.median(ratios):.4f}",
                ]
            )
    common.show(
        ["way", "problem", "M steps", "evaluations", "without, M/s", "with / without", "median"], rows
    )
    common.save(arguments.output, results, pairs=arguments.pairs, seconds=arguments.seconds)


if __name__ == "__main__":
    main()
