"""Time from mpirun to the first training step, and of importing the package.

In turns: a training job on --ranks ranks whose compiled code is on disk already, timed from the start of
mpirun until the first worker, and until the last one, makes its first step; and a job of as many ranks that
only loads mpi4py, numba and Gymnasium, timed until mpirun returns. Then, each in a process of its own:
``import dist_classicrl``, the same with the class `DistAsyncQLearning`, and ``import numpy, numba``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import common

IMPORTS = {
    "bare job": "from mpi4py import MPI; import numba, gymnasium",
    "numpy, numba": "import numpy, numba",
    "dist_classicrl": "import dist_classicrl",
    "DistAsyncQLearning": "from dist_classicrl import DistAsyncQLearning",
}


def run_rank() -> None:
    """Be one rank of the training job; rank 0 prints when ranks were where, in seconds since the epoch."""
    began = time.time()
    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.learning.compiled import CompiledLearner

    imported = time.time()
    first_step: list[float] = []
    learn = CompiledLearner.learn

    def noting(self: Any, *arguments: Any) -> None:
        if not first_step:
            first_step.append(time.time())
        learn(self, *arguments)

    CompiledLearner.learn = noting  # type: ignore[method-assign]
    result = DistAsyncQLearning(seed=0).train(env="FrozenLake-v1", total_steps=20_000_000)
    trained = time.time()
    from mpi4py import MPI

    times = [began, imported, *first_step, trained]
    everyone = MPI.COMM_WORLD.gather(times)
    if everyone is not None:
        workers = [times for times in everyone if len(times) == 4]
        print(
            json.dumps(
                {
                    "python": max(times[0] for times in everyone),
                    "imported": max(times[1] for times in everyone),
                    "first_step": min(times[2] for times in workers),
                    "last_first_step": max(times[2] for times in workers),
                    "trained": max(times[-1] for times in everyone),
                    "compile_seconds": result.compile_seconds,
                }
            )
        )


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "startup.json")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", action="store_true", help="used by the jobs that this starts")
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank()
        return
    details: list[dict[str, float]] = []

    def train(number: int) -> float:
        begin = time.time()
        output = common.mpi_output(arguments.ranks, [str(Path(__file__).resolve()), "--rank"], 120.0)
        times = json.loads(output.splitlines()[-1])
        compile_seconds = times.pop("compile_seconds")
        found = {name: moment - begin for name, moment in times.items()}
        if number >= 0:
            details.append({**found, "compile_seconds": compile_seconds})
        return found["first_step"]

    def bare(_: int) -> float:
        return common.timed(lambda: common.mpi_output(arguments.ranks, ["-c", IMPORTS["bare job"]], 120.0))

    def importing(name: str) -> float:
        return common.timed(lambda: subprocess.run([sys.executable, "-c", IMPORTS[name]], check=True))

    jobs = common.interleave({"training": train, "bare": bare}, arguments.rounds)
    names = ("numpy, numba", "dist_classicrl", "DistAsyncQLearning")
    imports = common.interleave(
        {name: lambda _, name=name: importing(name) for name in names}, 2 * arguments.rounds
    )
    phases = {name: statistics.median(found[name] for found in details) for name in details[0]}
    ratio = common.median_ratio(jobs["training"], jobs["bare"])
    common.show(
        [f"mpirun -n {arguments.ranks}", "seconds", "/ bare job"],
        [
            ["mpi4py, numba, gymnasium, and exit", f"{statistics.median(jobs['bare']):.2f}", "1.00"],
            ["first training step of any worker", f"{phases['first_step']:.2f}", f"{ratio:.2f}"],
            *(
                [name, f"{phases[key]:.2f}", ""]
                for name, key in (
                    ("  last rank runs Python", "python"),
                    ("  last rank has imported", "imported"),
                    ("  loading compiled code, slowest rank", "compile_seconds"),
                    ("  first training step of the last worker", "last_first_step"),
                )
            ),
        ],
    )
    print()
    base = imports["numpy, numba"]
    common.show(
        ["import", "seconds", "more than numpy, numba"],
        [
            [
                name,
                f"{statistics.median(imports[name]):.2f}",
                f"{statistics.median(a - b for a, b in zip(imports[name], base, strict=True)):+.2f}",
            ]
            for name in names
        ],
    )
    results = {"ratio": ratio, "phases": phases, "jobs": jobs, "imports": imports}
    common.save(arguments.output, results, ranks=arguments.ranks, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
