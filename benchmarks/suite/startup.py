"""From the command to the first step of training, against importing what anybody needs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import startup as script

from suite.form import Effort, Measured, measure
from suite.options import SCRIPTS
from suite.peers import Peers

RANKS = {"1 process": 1, "4 ranks": 4}
BARE = "import numpy, numba, gymnasium; from mpi4py import MPI"
CACHED = f"""{BARE}

@numba.njit(cache=True)
def total(values):
    found = 0.0
    for value in values:
        found += value
    return found

total(numpy.ones(8))
"""
LIMIT_SECONDS = 180.0


def output_of(ranks: int, *words: str) -> str:
    """Return what Python with these arguments prints, alone or on ranks."""
    if ranks > 1:
        return common.mpi_output(ranks, words, LIMIT_SECONDS)
    command = [sys.executable, *words]
    return subprocess.run(
        command, timeout=LIMIT_SECONDS, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def until(moment: str, ranks: int) -> Callable[[int], Measured]:
    """Return jobs that train, timed until a moment that `startup.run_rank` names."""

    def train(_: int) -> Measured:
        begin = time.time()
        output = output_of(ranks, str(SCRIPTS / "startup.py"), "--rank")
        return 1.0, common.last_told(output)[moment] - begin

    return train


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Measure processes whose compiled code is on disk: the first round compiles."""
    ranks = RANKS[case]

    def bare(_: int) -> Measured:
        return 1.0, common.timed(lambda: output_of(ranks, "-c", BARE))

    def imported(_: int) -> Measured:
        return 1.0, common.timed(lambda: output_of(ranks, "-c", script.IMPORTS["DistAsyncQLearning"]))

    program = Path(folder, "cached.py")
    program.write_text(CACHED)

    def cached(_: int) -> Measured:
        return 1.0, common.timed(lambda: output_of(ranks, str(program)))

    candidates = {
        "ours, until the first step": until("first_step", ranks),
        "ours, until the last rank has imported": until("imported", ranks),
        "ours, imported, and exit": imported,
        "bare imports, and exit": bare,
        "the same with one compiled function, kept on disk": cached,
    }
    return measure("startup", case, "s", candidates, effort.jobs)
