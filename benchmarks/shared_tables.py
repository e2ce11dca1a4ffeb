"""Tables that the ranks of this machine share, each learning a part of the steps: steps per second beside C.

The problem is random: 8 actions with 2 possible next states anywhere, so that almost every step waits for
memory. Ours is one job under mpirun for each row of the result, which learns on when it is told to, a first
time to compile and twice to find how many steps take as long as is asked for; then it takes turns with C.

Asynchronous ranks are compared with threads that learn in one table by plain stores: those of
`large_tables.py`, which do the same as a rank, or in float32 those of the program of ``--threads``, called as
``program LOG2_STATES THREADS 32 SECONDS huge``. Reproducible ones are compared, in float32, with the program
of ``--supersteps``, an MPI job of as many ranks and walkers, called as ``program LOG2_STATES
WALKERS_PER_RANK SUPERSTEPS``. Both print "... M steps/s"; they are compiled with ``-O3 -march=native``, by
``gcc`` and ``mpicc``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
import large_models
import large_tables
import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl._random import stream_key
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command

MODES = ("asynchronous", "reproducible")
LONGEST = 1800.0
"""Seconds of a job, after which it is killed."""


def run_rank(log_states: int, mode: str, dtype: str, walkers: int) -> None:
    """Be one rank of the job: rank 0 reads how many steps to learn, a line each, and prints how it went."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    model = large_models.garnet_model(1 << log_states, seed=1).simulator(tables=True)
    agent = DistAsyncQLearning(
        learning_rate=large_tables.STEP_SIZE,
        epsilon=large_tables.EPSILON,
        discount_factor=large_tables.DISCOUNT,
        seed=1,
        dtype=dtype,
        async_updates=mode == "asynchronous",
    )
    asked: dict[str, Any] = {"placement": "sharded", "progress_bar": False}
    if mode == "reproducible":
        asked["walkers"] = walkers
    while steps := _told(world):
        result = agent.train(model, total_steps=steps, **asked)
        if agent.rank == 0:
            told = {"rate": result.steps_per_second, "waiting": result.communication_fraction}
            print(json.dumps({**told, "seconds": result.seconds}), flush=True)


def _told(world: Any) -> int:
    """Return what rank 0 reads; the others sleep until then, so that nothing disturbs C."""
    steps = np.zeros(1, np.int64)
    if world.rank == 0:
        steps[0] = int(sys.stdin.readline() or 0)
        for rank in range(1, world.size):
            world.Send(steps, rank)
    else:
        while not world.Iprobe(0):
            time.sleep(0.02)
        world.Recv(steps, 0)
    return int(steps[0])


@contextmanager
def job(ranks: int, words: list[str]) -> Iterator[Callable[[int], dict[str, float]]]:
    """Run such a job; what this gives lets it learn so many steps, and returns what it printed."""
    command = [*mpirun_command(ranks), sys.executable, str(Path(__file__).resolve()), *words]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=launch_environment(), start_new_session=True, **pipes)
    end = threading.Timer(LONGEST, os.killpg, (process.pid, signal.SIGKILL))
    end.start()

    def learn(steps: int) -> dict[str, float]:
        assert process.stdin is not None and process.stdout is not None
        print(steps, file=process.stdin, flush=True)
        for line in process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise RuntimeError(f"{' '.join(command)} ended with status {process.wait()}")

    try:
        yield learn
        told, _ = process.communicate("0\n", timeout=120.0)
        assert "{" not in told, told  # mpirun may write escape sequences of its own
    finally:
        end.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def compiled(folder: str, source: Path, compiler: str) -> str:
    """Compile a C program; return where it is."""
    program = str(Path(folder, source.stem))
    command = [compiler, "-O3", "-march=native", "-pthread", str(source), "-lm", "-o", program]
    subprocess.run(command, check=True, capture_output=True)
    return program


def printed_rate(command: list[str]) -> float:
    """Run a program; return the steps per second that it prints."""
    environment = launch_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=True)
    found = re.search(r"([\d.]+) M steps/s", done.stdout)
    assert found is not None, done.stdout
    return 1e6 * float(found.group(1))


class Supersteps:
    """A C program that does supersteps, over MPI."""

    def __init__(self, program: str, ranks: int, log_states: int, walkers: int, seconds: float) -> None:
        self._command = [*mpirun_command(ranks), program, str(log_states), str(walkers // ranks)]
        self._walkers, self._seconds = walkers, seconds
        self._supersteps = 200
        self()

    def __call__(self) -> float:
        """Return its steps per second."""
        rate = printed_rate([*self._command, str(self._supersteps)])
        self._supersteps = max(100, int(self._seconds * rate / self._walkers))
        return rate


class Threads:
    """The C loop of `large_tables.py`, in threads that learn in one table."""

    def __init__(self, folder: str, ranks: int, log_states: int, dtype: str, seconds: float) -> None:
        simulator = large_tables.random_problem(log_states, large_tables.ACTIONS)
        function = large_tables.build(folder, large_tables.ACTIONS, dtype)
        self._learners = [large_tables.CLearner(function, simulator, dtype) for _ in range(ranks)]
        for learner in self._learners:
            learner.table = self._learners[0].table
        self._steps = large_tables.steps_in(self._learners[0], seconds)
        self._turn = 0

    def __call__(self) -> float:
        """Return the steps per second of all."""
        self._turn += 1
        keys = [int(stream_key(number, "turn", self._turn)) for number in range(len(self._learners))]
        threads = [
            threading.Thread(target=learner.learn, args=(key, self._steps))
            for learner, key in zip(self._learners, keys, strict=True)
        ]

        def run() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return len(threads) * self._steps / common.timed(run)


def twin(arguments: Any, folder: str, mode: str, dtype: str, ranks: int, log_states: int) -> Any:
    """Return what is called for the rate of C; None: there is nothing to compare with."""
    seconds = arguments.seconds
    if mode == "reproducible":
        if arguments.supersteps is None or dtype != "float32":
            return None
        program = compiled(folder, arguments.supersteps, "mpicc")
        return Supersteps(program, ranks, log_states, arguments.walkers, seconds)
    if arguments.threads is None or dtype != "float32":
        return Threads(folder, ranks, log_states, dtype, seconds)
    program = compiled(folder, arguments.threads, "gcc")
    command = [program, str(log_states), str(ranks), "32", str(seconds), "huge"]
    return lambda: printed_rate(command)


def compare(
    arguments: Any, folder: str, mode: str, dtype: str, ranks: int, log_states: int
) -> dict[str, Any]:
    """Measure ours in turn with C."""
    words = ["--as-rank", str(log_states), mode, dtype, "--walkers", str(arguments.walkers)]
    with job(ranks, words) as learn:
        steps = 40_000_000
        for _ in range(3):
            steps = max(10_000_000, int(arguments.seconds * learn(steps)["rate"]))
        rate_of_c = twin(arguments, folder, mode, dtype, ranks, log_states)
        runs = []
        for _ in range(arguments.pairs):
            runs.append(learn(steps))
            if rate_of_c is not None:
                runs[-1]["c"] = rate_of_c()
    return {"mode": mode, "dtype": dtype, "ranks": ranks, "states": 1 << log_states, "runs": runs}


def row(found: dict[str, Any]) -> list[Any]:
    """Return what the table on the screen says of a comparison."""
    runs = found["runs"]

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(of, runs))

    cells = [found["mode"], f"{8 * found['states']:,}", found["dtype"], found["ranks"]]
    cells += [f"{median(lambda run: run['rate']) / 1e6:.1f}", f"{median(lambda run: run['waiting']):.2f}"]
    if "c" not in runs[0]:
        return [*cells, *[""] * 4]
    ratios = [run["rate"] / run["c"] for run in runs]
    cells.append(f"{median(lambda run: run['c']) / 1e6:.1f}")
    return [*cells, *(f"{figure:.2f}" for figure in (statistics.median(ratios), min(ratios), max(ratios)))]


HEADERS = ["mode", "entries", "values", "ranks", "M steps/s", "waiting", "C, M/s", "ratio", "least", "most"]


def main() -> None:
    """Run the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "shared_tables.json")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run, about")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=MODES)
    parser.add_argument("--dtypes", choices=("float32", "float64"), nargs="+", default=("float32",))
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--states", type=int, nargs="+", default=(17, 22, 24), help="their binary logarithms")
    parser.add_argument("--walkers", type=int, default=16_384, help="of reproducible ranks, all together")
    parser.add_argument("--threads", type=Path, help="a C program")
    parser.add_argument("--supersteps", type=Path, help="a C program")
    parser.add_argument("--as-rank", nargs=3, help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.as_rank is not None:
        log_states, mode, dtype = arguments.as_rank
        run_rank(int(log_states), mode, dtype, arguments.walkers)
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for log_states in arguments.states:
            for mode in arguments.modes:
                for dtype in arguments.dtypes:
                    for ranks in arguments.ranks:
                        results.append(compare(arguments, folder, mode, dtype, ranks, log_states))
                        print(row(results[-1]), file=sys.stderr)
    common.show(HEADERS, [row(found) for found in results])
    common.save(arguments.output, results, walkers=arguments.walkers, seconds=arguments.seconds)


if __name__ == "__main__":
    main()
