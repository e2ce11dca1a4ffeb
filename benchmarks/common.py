"""What the benchmarks share.

The problems, interleaved timing, MPI jobs, tables on the screen and JSON on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl import TabularMDP
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command

if TYPE_CHECKING:
    from dist_classicrl.environments.resolve import Source
    from dist_classicrl.learning.learner import Learner
    from dist_classicrl.settings import Settings

FROZEN_LAKE = "FrozenLake 8x8"
TAXI = "Taxi"
CLIFF = "CliffWalking"
GARNET = "Garnet 1,000"
PROBLEMS = (FROZEN_LAKE, TAXI, CLIFF, GARNET)


def problem(name: str) -> TabularMDP:
    """Return one of `PROBLEMS` as a model; Gymnasium's with their own options and time limits."""
    if name == FROZEN_LAKE:
        return TabularMDP.from_gymnasium("FrozenLake-v1", map_name="8x8", is_slippery=True)
    if name == TAXI:
        return TabularMDP.from_gymnasium("Taxi-v4")
    if name == CLIFF:
        return TabularMDP.from_gymnasium("CliffWalking-v1")
    return TabularMDP.garnet(1000, 4, 5, seed=0)


def learner_in(source: Source, settings: Settings, workers: int = 1, is_alone: bool = False) -> Learner:
    """Return a learner with walker 0, compiled, as one of so many workers has it, or who `is_alone`."""
    from dist_classicrl.learning.kinds import new_learner, problem_of
    from dist_classicrl.learning.rates import Rates

    learner = new_learner(problem_of(source, settings, Rates(settings, workers), is_alone=is_alone))
    learner.add(0, source, 0)
    return learner


def parser(description: str | None, output: str) -> argparse.ArgumentParser:
    """Return a parser that knows --output, whose default is `output` in the current folder."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--output", type=Path, default=Path(output), help="JSON file (default: %(default)s)")
    return made


def interleave(
    candidates: Mapping[str, Callable[[int], float]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Call every candidate once per round, so that all meet the same machine; return what they returned.

    Parameters
    ----------
    candidates : mapping of str to callable
        Each takes the number of the round, negative while warming up, and returns a figure, as seconds.
    rounds : int
    warm_up : int
        Rounds before the first that counts.
    """
    figures: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(-warm_up, rounds):
        for name, call in candidates.items():
            figure = call(number)
            if number >= 0:
                figures[name].append(figure)
    return figures


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the median over rounds of numerator / denominator.

    Each round is measured at nearly the same time.
    """
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def mean_with_interval(ratios: Sequence[float]) -> str:
    """Return the mean of `ratios` and its 95 % confidence interval, as text."""
    spread = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    return f"{statistics.mean(ratios):.4f} +- {spread:.4f}"


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds that `call` takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def mpi_output(
    ranks: int, program: Sequence[str], timeout: float, launcher_options: Sequence[str] = ()
) -> str:
    """Run Python with the arguments `program` on `ranks` ranks, and return their standard output.

    What they write to standard error is passed through.

    Raises
    ------
    subprocess.CalledProcessError
        If the job failed.
    subprocess.TimeoutExpired
        If it took more than `timeout` seconds.
    """
    environment = launch_environment()
    command = [*mpirun_command(ranks), *launcher_options, sys.executable, *program]
    done = subprocess.run(
        command, env=environment, timeout=timeout, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def last_told(output: str) -> Any:
    """Return the last line of JSON among what ranks printed; behind it a terminal may have been set right."""
    return json.loads([line for line in output.splitlines() if line.startswith(("{", "["))][-1])


def show(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a markdown table."""
    texts = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(headers))]
    for number, row in enumerate(texts):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    sys.stdout.flush()


def save(path: Path, results: Any, **settings: Any) -> None:
    """Write `results`, how they were measured and on what machine, as JSON to `path`."""
    data = {"machine": machine(), "settings": settings, "results": results}
    path.write_text(json.dumps(data, indent=1, default=str) + "\n")
    print(f"wrote {path}", flush=True)


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, versions."""
    import numba
    import numpy

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
