"""What of the memory's bandwidth the training loop of a large table uses."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import common
import large_tables
import numba
import numpy as np

from dist_classicrl._memory import zeros
from dist_classicrl._random import GAMMA, mix, stream_key
from suite.form import Effort, Sized, table_row
from suite.peers import Peers

LOG_STATES, ACTIONS = 20, 8
LINE = 64
READ, WRITTEN = 3, 2
"""Lines of memory that a step of a large table reads and changes: the pair's outcomes; the next row's values
and, where they do not fit beside them, counts; both of the row are written back in the end."""
MEMORY_BYTES = 1 << 28


@numba.njit(nogil=True)
def sum_of_lines(data, key, n):  # type: ignore[no-untyped-def]
    """Read n lines of 64 bytes at random; return the sum of their first numbers."""
    total, lines = 0.0, np.uint64(data.size // 8)
    for i in range(n):
        drawn = mix(key + np.uint64(i) * GAMMA)
        total += data[((drawn >> np.uint64(32)) * lines >> np.uint64(32)) * np.uint64(8)]
    return total


@numba.njit(nogil=True)
def sum_of_all(data):  # type: ignore[no-untyped-def]
    """Read all numbers in order, in four sums."""
    a = b = c = d = 0.0
    for i in range(0, data.size, 4):
        a += data[i]
        b += data[i + 1]
        c += data[i + 2]
        d += data[i + 3]
    return a + b + c + d


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Measure gigabytes a second of reading in order, of reading lines at random, and of the loop."""
    data = zeros(MEMORY_BYTES // 8, np.float64)
    data[:] = 1.0
    learner = large_tables.PackageLearner(large_tables.random_problem(LOG_STATES, ACTIONS), "float64")
    keys = iter(range(10**9))

    def whole(n: int) -> float:
        times = max(1, n * 8 // data.nbytes)
        return common.timed(lambda: [sum_of_all(data) for _ in range(times)]) * n * 8 / (times * data.nbytes)

    def lines(n: int) -> float:
        return common.timed(lambda: sum_of_lines(data, np.uint64(next(keys)), n))

    def steps(n: int) -> float:
        whole_turns = -(-n // 32) * 32
        return learner.learn(int(stream_key(0, next(keys))), whole_turns) * n / whole_turns

    moved = LINE * (READ + WRITTEN)
    candidates: dict[str, tuple[Callable[[int], float], int, int]] = {
        "numbers read in order": (whole, 8, data.size),
        "lines read at random": (lines, LINE, 1_000_000),
        "steps of the training loop": (steps, moved, 1_000_000),
    }
    sized = {name: Sized(call, effort.seconds, first) for name, (call, _, first) in candidates.items()}

    def rate(one: Sized, number: int) -> float:
        done, seconds = one(number)
        return done / seconds

    found = common.interleave(
        {name: lambda number, one=one: rate(one, number) for name, one in sized.items()}, effort.rounds
    )
    rows = []
    for name, (_, size, _) in candidates.items():
        at = median(found[name])
        rows.append([name, at, size, f"{at * size / 1e9:.2f}"])
    text = (
        f"A table of {1 << LOG_STATES:,} states and {ACTIONS} actions in float64, whose outcomes, values and "
        f"counts no cache holds; one process. A step reads {READ} lines of {LINE} bytes at places that "
        f"nothing foretells and writes {WRITTEN} back; what hits a cache by chance is counted, too."
    )
    return table_row("memory", case, ["", "per second", "bytes each", "GB/s"], rows, text=text)
