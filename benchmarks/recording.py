"""What the records of a run cost: metrics.jsonl, metrics.csv and what is shown, as `train` writes them.

FrozenLake 8x8 in one job under mpirun, whose calls of `train` have, in turns, the callbacks that
`dist-classicrl train` gives them, at its interval of a second, and none. Throughput as a ratio with a 95 %
confidence interval of its mean.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
from pathlib import Path

import common


def run_rank(pairs: int, seconds: float) -> None:
    """Be one rank of the job; rank 0 prints the rates as JSON."""
    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.callbacks import BaseCallback, MetricsCallback
    from dist_classicrl.callbacks.display import LogCallback, StatusCallback

    agent = DistAsyncQLearning(learning_rate=0.1, seed=0)
    env = common.problem(common.FROZEN_LAKE)
    agent.train(env, total_steps=1_000_000)
    steps = int(seconds * agent.train(env, total_steps=20_000_000).steps_per_second)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        status = StatusCallback(Path(folder) / "status.json")
        recording: list[BaseCallback] = [MetricsCallback(folder), LogCallback(1.0), status]
        for number in range(-1, pairs):
            rates = {}
            for records in (number % 2 == 0, number % 2 == 1):
                result = agent.train(
                    env, total_steps=steps, callbacks=recording if records else None, progress_interval=1.0
                )
                rates["with" if records else "without"] = result.steps_per_second
            if number >= 0:  # the first pair warms up
                found.append(rates)
    if agent.rank == 0:
        print(json.dumps(found))


def main() -> None:
    """Run the job, or be a rank of it."""
    parser = common.parser(__doc__, "recording.json")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.5, help="length of each training, about")
    parser.add_argument("--as_rank", action="store_true", help="used by the job that this starts")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if arguments.as_rank:
        run_rank(arguments.pairs, arguments.seconds)
        return
    program = [str(Path(__file__).resolve()), "--as_rank", "--pairs", str(arguments.pairs)]
    program += ["--seconds", str(arguments.seconds)]
    limit = 120.0 + 4.0 * arguments.pairs * arguments.seconds
    found = json.loads(common.mpi_output(arguments.ranks, program, limit).splitlines()[-1])
    ratios = [pair["with"] / pair["without"] for pair in found]
    common.show(
        ["pairs", "with records, M/s", "without, M/s", "with / without", "median"],
        [
            [
                len(found),
                f"{statistics.median(pair['with'] for pair in found) / 1e6:.1f}",
                f"{statistics.median(pair['without'] for pair in found) / 1e6:.1f}",
                common.mean_with_interval(ratios),
                f"{statistics.median(ratios):.4f}",
            ]
        ],
    )
    common.save(arguments.output, found, ranks=arguments.ranks, seconds=arguments.seconds)


if __name__ == "__main__":
    main()
