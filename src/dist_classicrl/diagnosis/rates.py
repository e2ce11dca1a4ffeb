"""How fast this machine learns: rates of one core, the cost of a push, and rates of a job of several ranks.

Run as a program under mpirun it is a rank of that job, and rank 0 writes what was found as JSON.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from dist_classicrl._hints import bound_cores
from dist_classicrl.diagnosis import marked
from dist_classicrl.errors import LauncherError

FROZEN_LAKE = "FrozenLake 8x8"
TAXI = "Taxi"
GARNET = "Garnet, 100,000 states"
STEPPED_LAKE = "FrozenLake 8x8, by Gymnasium"
STEPPED_BLACKJACK = "Blackjack, by Gymnasium"
ONE_CORE = (FROZEN_LAKE, TAXI, GARNET, STEPPED_LAKE, STEPPED_BLACKJACK)
TOGETHER = (FROZEN_LAKE, GARNET)

_FIRST_STEPS = 20_000  # of the run that compiles
_PUSH_STEPS = 50_000
_PUSH_ROUNDS = 200
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Rate:
    """Steps per second in one environment, from whole calls of `train`."""

    name: str
    steps_per_second: float  # the median
    runs: tuple[float, ...]  # of each run
    communication_fraction: float  # share of the workers' time that did not go into learning, the median
    workers: int  # ranks that learned


@dataclass(frozen=True)
class PushCost:
    """What a push costs besides its way through the network, in seconds."""

    name: str  # of the environment
    steps: int  # between two pushes
    entries: int
    n_bytes: int
    pack: float  # the worker makes it
    apply: float  # the server applies it
    refresh: float  # the server makes the reply
    rebase: float  # the worker takes the reply


def problem(name: str) -> Any:
    """Return one of the environments of `ONE_CORE`, in a form that `train` takes."""
    from dist_classicrl.environments.model import TabularMDP

    if name == FROZEN_LAKE:
        return TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8")
    if name == TAXI:
        return TabularMDP.from_gymnasium("Taxi-v4")
    if name == GARNET:
        return TabularMDP.garnet(100_000, 8, 3, seed=0)
    return _stepped_lake if name == STEPPED_LAKE else _stepped_blackjack


def _stepped_lake() -> Any:
    return _stepped("FrozenLake-v1", map_name="8x8")


def _stepped_blackjack() -> Any:
    return _stepped("Blackjack-v1")


def _stepped(name: str, **arguments: Any) -> Any:
    import gymnasium

    class Unchanged(gymnasium.Wrapper):
        """Changes nothing, which the library cannot know."""

    return Unchanged(gymnasium.make(name, **arguments))


def learning_rates(names: Sequence[str], seconds: float, rounds: int, is_rank: bool = False) -> list[Rate]:
    """Train in turns in the environments of these names, of `ONE_CORE`, alone or with the ranks of a job.

    Each run lasts at least so many seconds, compilation apart.
    """
    trainers = {name: _Trainer(problem(name), seconds, is_rank) for name in names}
    results: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            results[name].append(trainer.run())
    return [
        Rate(
            name,
            statistics.median(result.steps_per_second for result in found),
            tuple(result.steps_per_second for result in found),
            statistics.median(result.communication_fraction for result in found),
            found[-1].workers,
        )
        for name, found in results.items()
    ]


class _Trainer:
    """Trains one agent again and again, each time for a number of seconds or longer."""

    def __init__(self, env: Any, seconds: float, is_rank: bool) -> None:
        from dist_classicrl.agent.agent import DistAsyncQLearning

        # A batch script of SLURM has variables that promise ranks, and is none.
        self._agent = DistAsyncQLearning(seed=0, allow_singletons=not is_rank)
        self._env = env
        self._seconds = seconds
        self._steps = _FIRST_STEPS
        self._agent.train(env, total_steps=self._steps)

    def run(self) -> Any:
        """Return the result of a run that was long enough."""
        while True:
            # All ranks get the same result, and so ask for the same number of steps.
            result = self._agent.train(self._env, total_steps=self._steps)
            if result.seconds >= self._seconds:
                return result
            missing = self._seconds / max(result.seconds, 1e-3)
            self._steps = int(self._steps * min(1.2 * missing, 100.0)) + 1


def rates_of_ranks(n_ranks: int, seconds: float, rounds: int, names: Sequence[str] = TOGETHER) -> list[Rate]:
    """Return the rates of a job of `n_ranks` ranks, one of them the server, on this machine.

    Other arguments are those of `learning_rates`. LauncherError if the job fails or does not end.
    """
    from dist_classicrl.launch.launcher import find_launcher
    from dist_classicrl.launch.mpirun import mpirun_command, run_ranks

    launcher = find_launcher()
    words = [sys.executable, "-m", __name__, str(seconds), str(rounds), *names]
    longest = _START_SECONDS + 4.0 * seconds * (rounds + 1) * len(names)
    job = run_ranks(launcher, [*mpirun_command(n_ranks, launcher), *words], timeout=longest)
    found = marked.read(job.output)
    if job.returncode != 0 or not found:
        how = "did not end in time" if job.timed_out else f"ended with status {job.returncode}"
        raise LauncherError(
            f"The job of {n_ranks} ranks {how}. See what `dist-classicrl doctor` says.\n{job.output}"
        )
    return [Rate(**{**row, "runs": tuple(row["runs"])}) for row in found[-1]["rates"]]


def push_cost(name: str) -> PushCost:
    """Measure what a push costs after `_PUSH_STEPS` steps in an environment, with nothing on its way."""
    from dist_classicrl._random import stream_key
    from dist_classicrl.environments.resolve import resolve
    from dist_classicrl.learning.kinds import new_learner, problem_of
    from dist_classicrl.learning.learner import Stream
    from dist_classicrl.learning.rates import Rates
    from dist_classicrl.settings import Settings
    from dist_classicrl.tables.shared import SharedTable

    settings = Settings()
    source = resolve(problem(name), 1, None)
    learner = new_learner(problem_of(source, settings, Rates(settings, 1)))
    learner.add(0, source, 0)
    local = learner.table
    shared = SharedTable(np.zeros(local.q.size), np.zeros(local.q.size, np.int64))
    local.rebase(shared.refresh(-1), [])
    stream = Stream(stream_key(0, "push"), 0)
    seconds: dict[str, list[float]] = {"pack": [], "apply": [], "refresh": [], "rebase": []}
    entries: list[int] = []
    packed: Any = None
    for number in range(1, _PUSH_ROUNDS + 1):
        learner.learn(0, stream, _PUSH_STEPS)
        since = shared.version
        packed = _timed(seconds["pack"], local.pack)
        _timed(seconds["apply"], partial(shared.apply, 1, number, packed))
        refresh = _timed(seconds["refresh"], partial(shared.refresh, since))
        _timed(seconds["rebase"], partial(local.rebase, refresh, []))
        entries.append(packed.size)
    bytes_each = sum(part.itemsize for part in packed.parts)
    middle = {stage: statistics.median(found) for stage, found in seconds.items()}
    size_of_push = int(statistics.median(entries))
    return PushCost(name, _PUSH_STEPS, size_of_push, size_of_push * bytes_each, **middle)


def _timed(seconds: list[float], call: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    value = call()
    seconds.append(time.perf_counter() - begin)
    return value


def machine() -> Mapping[str, Any]:
    """Return what the rates depend on: processor, cores, versions."""
    import numba

    return {
        "processor": _processor(),
        "cores": len(bound_cores()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0].split(":", 1)[1].strip() if lines else platform.processor() or platform.machine()


def main(seconds: float, rounds: int, names: Sequence[str]) -> None:
    """Measure as a rank of the job of `rates_of_ranks`."""
    from mpi4py import MPI

    found = learning_rates(names, seconds, rounds, is_rank=True)
    if MPI.COMM_WORLD.Get_rank() == 0:
        marked.write(rates=[asdict(rate) for rate in found])


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
