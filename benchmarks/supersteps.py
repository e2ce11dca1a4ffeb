"""Tables whose rows are divided among the ranks of this machine: steps per second, reproducibly.

The problem is random: 8 actions with 2 possible next states anywhere, in float32, so that almost every step
waits for memory, and of R ranks all but one in R cross to another. Each run is a job of its own under mpirun,
whose second call of `train` counts. With ``--against`` a C program takes turns with it, which is compiled
with ``mpicc -O3 -march=native -lm``, called as ``program LOG2_STATES WALKERS_PER_RANK SUPERSTEPS``, and
prints "... M steps/s": a job of as many ranks and walkers, about as long.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import common

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.schedules import PerVisit


def run_rank(log_states: int, walkers: int, seconds: float) -> None:
    """Be one rank of the job; rank 0 prints the rate as JSON."""
    model = TabularMDP.garnet(1 << log_states, 8, 2, seed=1)
    agent = DistAsyncQLearning(
        learning_rate=PerVisit(0.7),
        epsilon=0.2,
        discount_factor=0.9,
        seed=1,
        dtype="float32",
        async_updates=False,
    )
    asked = {"placement": "sharded", "walkers": walkers}
    first = agent.train(model, total_steps=40_000_000, **asked)
    steps = max(10_000_000, int(seconds * first.steps_per_second))
    result = agent.train(model, total_steps=steps, **asked)
    if agent.rank == 0:
        waiting = result.communication_fraction
        print(json.dumps({"rate": result.steps_per_second, "waiting": waiting, "seconds": result.seconds}))


def rate_in_c(program: Path, ranks: int, log_states: int, walkers: int, seconds: float) -> float:
    """Run the C program for about so long, and return its steps per second."""
    supersteps = 200
    for _ in range(2):
        words = [str(program), str(log_states), str(walkers // ranks), str(supersteps)]
        command = [*mpirun_command(ranks), *words]
        environment = launch_environment()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=True
        )
        found = re.search(r"([\d.]+) M steps/s", done.stdout)
        assert found is not None, done.stdout
        rate = 1e6 * float(found.group(1))
        supersteps = max(100, int(seconds * rate / walkers))
    return rate


def main() -> None:
    """Run the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "supersteps.json")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run, about")
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--states", type=int, nargs="+", default=(17, 22, 24), help="their binary logarithms")
    parser.add_argument("--walkers", type=int, default=16_384)
    parser.add_argument("--against", type=Path, help="a C program")
    parser.add_argument("--as_rank", type=int, metavar="LOG_STATES", help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.as_rank is not None:
        run_rank(arguments.as_rank, arguments.walkers, arguments.seconds)
        return
    results, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        if arguments.against is not None:
            source = str(arguments.against)
            command = ["mpicc", "-O3", "-march=native", source, "-lm", "-o", str(program)]
            subprocess.run(command, check=True, capture_output=True)
        for log_states in arguments.states:
            for ranks in arguments.ranks:
                found = []
                for _ in range(arguments.pairs):
                    words = [str(Path(__file__).resolve()), "--as_rank", str(log_states)]
                    words += ["--walkers", str(arguments.walkers), "--seconds", str(arguments.seconds)]
                    ours = json.loads(common.mpi_output(ranks, words, 900.0).splitlines()[-1])
                    if arguments.against is not None:
                        ours["c"] = rate_in_c(
                            program, ranks, log_states, arguments.walkers, arguments.seconds
                        )
                    found.append(ours)
                results.append({"states": 1 << log_states, "ranks": ranks, "runs": found})
                rates = statistics.median(run["rate"] for run in found) / 1e6
                waiting = statistics.median(run["waiting"] for run in found)
                cells = [f"{8 << log_states:,}", ranks, f"{rates:.1f}", f"{waiting:.2f}"]
                if arguments.against is not None:
                    ratio = statistics.median(run["rate"] / run["c"] for run in found)
                    rate = statistics.median(run["c"] for run in found) / 1e6
                    cells += [f"{rate:.1f}", f"{ratio:.2f}"]
                rows.append(cells)
                common.show(["entries", "ranks", "M steps/s", "waiting", "C", "ratio"][: len(cells)], rows)
    common.save(arguments.output, results, walkers=arguments.walkers, seconds=arguments.seconds)


if __name__ == "__main__":
    main()
