"""Instructions that the compiled loops take, counted by valgrind's callgrind: repeatable where times are not.

Each loop is run in two processes, of which one does more of it; the difference belongs to the loop alone. The
code is compiled for a processor that valgrind knows (x86-64-v3), so the counts are those of that, on
whichever machine.

The figures are per step, and for the handling of pushes per entry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable

import common
import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shared import SharedTable

FEATURES = "+avx2,+bmi,+bmi2,+lzcnt,+popcnt,+fma,+sse4.2"
BEFORE = 300_000  # steps after which a table is no longer all ties


def learner_of(problem: str, **settings: object) -> tuple[Learner, Stream]:
    """Return a learner that has learned for a while, and its stream."""
    chosen = Settings(epsilon=0.3, **settings)
    learner = common.learner_in(resolve(common.problem(problem), 1, None), chosen)
    stream = Stream(stream_key(0, "instructions"), 0)
    learner.learn(0, stream, BEFORE)
    return learner, stream


def learning(problem: str, **settings: object) -> Callable[[int], None]:
    """Return what makes so many steps."""
    learner, stream = learner_of(problem, **settings)
    return lambda steps: learner.learn(0, stream, steps)


def handling_pushes(stage: str) -> Callable[[int], None]:
    """Return what packs, applies or takes in so many entries, in pushes of the whole table."""
    learner, _ = learner_of(common.GARNET)
    table = learner.table
    shared = SharedTable(np.zeros(table.q.size), np.zeros(table.q.size, np.int64))
    packed = table.pack()
    refresh = shared.refresh(-1)

    def run(entries: int) -> None:
        for number in range(1, 1 + entries // packed.size):
            if stage == "apply":
                shared.apply(1, number, packed)
            elif stage == "re-base":
                table.rebase(refresh, [packed])

    return run


LOOPS: dict[str, tuple[Callable[[], Callable[[int], None]], int]] = {
    "learn FrozenLake 8x8": (lambda: learning(common.FROZEN_LAKE), 500_000),
    "learn FrozenLake 8x8, n^-0.7": (
        lambda: learning(common.FROZEN_LAKE, learning_rate=PerVisit(0.7)),
        500_000,
    ),
    "learn FrozenLake 8x8, replay": (lambda: learning(common.FROZEN_LAKE, replay_ratio=1.0), 300_000),
    "learn Taxi, n^-0.7": (lambda: learning(common.TAXI, learning_rate=PerVisit(0.7)), 500_000),
    "learn Garnet": (lambda: learning(common.GARNET), 500_000),
    "apply": (lambda: handling_pushes("apply"), 2_000_000),
    "re-base": (lambda: handling_pushes("re-base"), 2_000_000),
}


def counted(name: str, size: int, cache: str) -> int:
    """Return the instructions of a process that does so much of a loop."""
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "x86-64-v3",
        "NUMBA_CPU_FEATURES": FEATURES,
        "NUMBA_CACHE_DIR": cache,
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    words = [sys.executable, __file__, "--run", name, str(size)]
    subprocess.run(words, env=environment, check=True)  # compiles
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run([*valgrind, *words], env=environment, check=True, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", done.stderr)[1])


def main() -> None:
    """Count, show, and save."""
    options = common.parser(__doc__, "instructions.json").parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, (_, size) in LOOPS.items():
            found[name] = (counted(name, 2 * size, cache) - counted(name, size, cache)) / size
    common.show(["loop", "instructions"], [[name, f"{count:.1f}"] for name, count in found.items()])
    common.save(options.output, found, target=f"x86-64-v3 {FEATURES}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        LOOPS[sys.argv[2]][0]()(int(sys.argv[3]))
    else:
        main()
