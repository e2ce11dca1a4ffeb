"""What being ready for failures costs while nothing fails.

FrozenLake 8x8 under mpirun, a job of its own each time, in turns: as `launch` starts it, with the extension
of MPI that survives deaths, signs of life and all that is kept for a new server; and without. "Without" is
another version of the package (--baseline, the folder that holds its `dist_classicrl`, for instance of a
commit before), or else this one under a plain mpirun, with a sign of life every 1000 s. Throughput as a
ratio with a 95 % confidence interval of its mean, and likewise the steps per second of processor time, of all
ranks together, which a machine with other work on it disturbs less.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common

_CALM = {"heartbeat_interval": 1000.0, "heartbeat_timeout": 1e6}


def run_rank(steps: int, settings: dict[str, Any]) -> None:
    """Be one rank of a job; each prints its processor time, rank 0 the rate."""
    from dist_classicrl import DistAsyncQLearning

    agent = DistAsyncQLearning(learning_rate=0.1, seed=0, **settings)
    env = common.problem(common.FROZEN_LAKE)
    agent.train(env, total_steps=1_000_000)
    begin = time.process_time()
    result = agent.train(env, total_steps=steps)
    told = {"seconds": time.process_time() - begin}
    print(json.dumps({**told, "rate": result.steps_per_second} if agent.rank == 0 else told), flush=True)


def rate(ranks: int, steps: int, ready: bool, baseline: Path | None) -> tuple[float, float]:
    """Return the steps per second of one job, by the clock and by the processor time of all ranks."""
    # A rank may be of a version of the package that knows nothing of survival.
    from dist_classicrl.launch.launcher import find_launcher, launch_environment
    from dist_classicrl.launch.mpirun import mpirun_command, survival_words

    launcher = find_launcher()
    environment = launch_environment()
    settings: dict[str, Any] = {}
    options: list[str] = []
    if ready:
        options = survival_words(launcher)
    elif baseline is None:
        settings = _CALM
    else:
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(baseline.resolve()), environment.get("PYTHONPATH", "")]
        )
    program = [str(Path(__file__).resolve()), "--as_rank", str(steps), "--settings", json.dumps(settings)]
    command = [*mpirun_command(ranks, launcher), *options, sys.executable, *program]
    done = subprocess.run(
        command, env=environment, timeout=300.0, check=True, stdout=subprocess.PIPE, text=True
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == ranks
    return next(one["rate"] for one in told if "rate" in one), steps / sum(one["seconds"] for one in told)


def main() -> None:
    """Run the jobs in turns, or be a rank of one."""
    parser = common.parser(__doc__, "failures.json")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each training, about")
    parser.add_argument("--baseline", type=Path, help="folder that holds another version of dist_classicrl")
    parser.add_argument("--as_rank", type=int, metavar="STEPS", help="used by the jobs that this starts")
    parser.add_argument("--settings", default="{}", help="likewise")
    arguments = parser.parse_args()
    if arguments.as_rank is not None:
        run_rank(arguments.as_rank, json.loads(arguments.settings))
        return

    def measured(ready: bool) -> tuple[float, float]:
        return rate(arguments.ranks, steps, ready, arguments.baseline)

    steps = 20_000_000
    steps = int(arguments.seconds * measured(ready=True)[0])
    found = []
    for number in range(arguments.pairs):
        first = number % 2 == 0
        pair = {ready: measured(ready) for ready in (first, not first)}
        found.append({"ready": pair[True], "without": pair[False]})
    rows = []
    for column, name in enumerate(("clock", "processor time")):
        ready, without = ([pair[which][column] for pair in found] for which in ("ready", "without"))
        ratios = [one / other for one, other in zip(ready, without, strict=True)]
        rows.append(
            [
                name,
                len(found),
                f"{statistics.median(ready) / 1e6:.1f}",
                f"{statistics.median(without) / 1e6:.1f}",
                common.mean_with_interval(ratios),
                f"{statistics.median(ratios):.4f}",
            ]
        )
    common.show(["by", "pairs", "ready, M/s", "without, M/s", "ready / without", "median"], rows)
    common.save(
        arguments.output,
        found,
        ranks=arguments.ranks,
        seconds=arguments.seconds,
        baseline=None if arguments.baseline is None else str(arguments.baseline),
    )


if __name__ == "__main__":
    main()
