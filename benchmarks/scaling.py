"""Throughput of mpirun against the same ranks running the same kernel without ever communicating.

In one MPI job, in turns: a training of the package from an empty table, and a stretch in which every worker
rank runs the training kernel by itself while rank 0 sleeps. Both last --seconds or more on FrozenLake 8x8.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import common

from dist_classicrl import DistAsyncQLearning
from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import Source, resolve
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings

STEP_SIZES: dict[str, Any] = {"0.1": 0.1, "n^-0.7": PerVisit(0.7)}
_SLICE = 1_000_000


def alone_together(comm: Any, source: Source, step_size: Any, seconds: float) -> float:
    """Return the steps per second of all ranks but 0, each learning for `seconds` by itself."""
    from dist_classicrl.comm.transport import wait_until

    learner = common.learner_in(source, Settings(learning_rate=step_size))
    # Waits that sleep: MPI's own would take a core while the others still work.
    wait_until(comm.Ibarrier().Test, 60.0, "all ranks to begin")
    rate = 0.0
    if comm.Get_rank() > 0:
        stream = Stream(stream_key(0, comm.Get_rank()), 0)
        begin = now = time.perf_counter()
        while now - begin < seconds:
            learner.learn(0, stream, _SLICE)
            now = time.perf_counter()
        rate = stream.used / (now - begin)
    wait_until(comm.Ibarrier().Test, 60.0 + 10.0 * seconds, "all ranks to finish")
    return float(comm.allreduce(rate))


def run_rank(step_size: str, seconds: float, rounds: int) -> None:
    """Be one rank of the job; rank 0 prints the figures as JSON."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rate = STEP_SIZES[step_size]
    model = common.problem(common.FROZEN_LAKE)
    source = resolve(model, 1, None)
    results = []
    guess = alone_together(comm, source, rate, 0.5)
    for number in range(rounds):
        alone = alone_together(comm, source, rate, seconds)
        agent = DistAsyncQLearning(learning_rate=rate, seed=number)
        trained = agent.train(env=model, total_steps=int(seconds * max(alone, guess)))
        results.append({"alone": alone, **trained.to_dict()})
    if comm.Get_rank() == 0:
        print(json.dumps(results))


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "scaling.json")
    parser.add_argument("--ranks", type=int, nargs="+", default=[3, 17])
    parser.add_argument("--step_sizes", nargs="+", default=list(STEP_SIZES), choices=list(STEP_SIZES))
    parser.add_argument("--seconds", type=float, default=4.0, help="least length of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank_of", help="used by the jobs that this starts")
    arguments = parser.parse_args()
    if arguments.rank_of is not None:
        run_rank(arguments.rank_of, arguments.seconds, arguments.rounds)
        return
    rows = []
    for ranks in arguments.ranks:
        for step_size in arguments.step_sizes:
            program = [str(Path(__file__).resolve()), "--rank_of", step_size]
            program += ["--seconds", str(arguments.seconds), "--rounds", str(arguments.rounds)]
            limit = 60.0 + 6.0 * arguments.seconds * arguments.rounds
            found = json.loads(common.mpi_output(ranks, program, limit).splitlines()[-1])
            together = [run["steps_per_second"] for run in found]
            rows.append(
                {
                    "ranks": ranks,
                    "step_size": step_size,
                    "steps_per_second": statistics.median(together),
                    "alone": statistics.median(run["alone"] for run in found),
                    "ratio": common.median_ratio(together, [run["alone"] for run in found]),
                    "communication_fraction": statistics.median(
                        run["communication_fraction"] for run in found
                    ),
                    "runs": found,
                }
            )
    common.show(
        ["ranks", "step size", "together, M/s", "never talking, M/s", "ratio", "ratios", "not learning"],
        [
            [
                row["ranks"],
                row["step_size"],
                f"{row['steps_per_second'] / 1e6:.1f}",
                f"{row['alone'] / 1e6:.1f}",
                f"{row['ratio']:.3f}",
                " ".join(f"{run['steps_per_second'] / run['alone']:.3f}" for run in row["runs"]),
                f"{row['communication_fraction']:.1%}",
            ]
            for row in rows
        ],
    )
    common.save(arguments.output, rows, seconds=arguments.seconds, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
