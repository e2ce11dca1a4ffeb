"""Instructions that the compiled loops take, counted by valgrind's callgrind: repeatable where times are not.

All loops run in one process, each twice, of which one time does more of it; the difference belongs to the
loop alone. The code is compiled for a processor that valgrind knows (x86-64-v3), so the counts are those of
that, on whichever machine. The figures are per step, and for the handling of pushes per entry.

``results/instructions.json`` is kept in the repository. With ``--compare`` the counts are compared with those
there, and the exit status is 1 where one has grown by more than 3 %; a test does the same. Where counts have
changed for a good reason, run this with ``--output benchmarks/results/instructions.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import numba
import numpy as np
from suite import valgrind

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.shared import SharedTable

KEPT = Path(__file__).with_name("results") / "instructions.json"
TOLERANCE = 0.03
BEFORE = 300_000  # steps after which a table is no longer all ties


def learner_of(problem: str, is_alone: bool = False, **settings: Any) -> tuple[Learner, Stream]:
    """Return a learner that has learned for a while, and its stream."""
    chosen = Settings(epsilon=0.3, **settings)
    learner = common.learner_in(resolve(common.problem(problem), 1, None), chosen, is_alone=is_alone)
    stream = Stream(stream_key(0, "instructions"), 0)
    learner.learn(0, stream, BEFORE)
    return learner, stream


def learning(problem: str, **given: Any) -> Callable[[int], None]:
    """Return what makes so many steps."""
    learner, stream = learner_of(problem, **given)
    return lambda steps: learner.learn(0, stream, steps)


def handling_pushes(stage: str) -> Callable[[int], None]:
    """Return what applies or takes in so many entries, in pushes of the whole table."""
    learner, _ = learner_of(common.GARNET, learning_rate=PerVisit(0.7))
    table = learner.table
    shared = SharedTable(np.zeros(table.q.size), np.zeros(table.q.size, np.int64))
    packed = table.pack()
    # As it is where four workers push at this rate: entries were visited 8 times, and 24 times by others.
    packed.visits[:], packed.weight[:], packed.known[:] = 8, 0.5, 2**32 - 24
    refresh = shared.refresh(-1)
    sequence = iter(range(1, 10**9))

    def run(entries: int) -> None:
        for _ in range(entries // packed.size):
            if stage == "apply":
                shared.apply(1, next(sequence), packed)
                packed.known[:] += np.uint32(8)
            else:
                table.rebase(refresh, [packed])

    return run


LOOPS: dict[str, tuple[Callable[[], Callable[[int], None]], int]] = {
    "learn FrozenLake 8x8, n^-0.7": (
        lambda: learning(common.FROZEN_LAKE, learning_rate=PerVisit(0.7)),
        50_000,
    ),
    "learn Garnet, n^-0.7": (lambda: learning(common.GARNET, learning_rate=PerVisit(0.7)), 50_000),
    "apply": (lambda: handling_pushes("apply"), 200_000),
    "re-base": (lambda: handling_pushes("re-base"), 200_000),
    "learn FrozenLake 8x8 alone, n^-0.7": (
        lambda: learning(common.FROZEN_LAKE, is_alone=True, learning_rate=PerVisit(0.7)),
        50_000,
    ),
    "learn FrozenLake 8x8": (lambda: learning(common.FROZEN_LAKE, learning_rate=0.1), 50_000),
    "learn FrozenLake 8x8, replay": (
        lambda: learning(common.FROZEN_LAKE, learning_rate=0.1, replay_ratio=1.0),
        30_000,
    ),
    "learn Taxi, n^-0.7": (lambda: learning(common.TAXI, learning_rate=PerVisit(0.7)), 50_000),
}
GUARDED = tuple(LOOPS)[:5]
"""Of which the test compares the counts: one kind of learning, with maps and without, so that it compiles
little."""


def run_parts(names: Sequence[str]) -> None:
    """Be the process that valgrind counts."""
    parts = valgrind.Parts()
    for name in names:
        make, size = LOOPS[name]
        run = make()
        run(size)
        for times in (1, 2):
            parts.part(f"{name} x{times}", lambda: run(times * size))  # noqa: B023


def count(names: Sequence[str] = tuple(LOOPS)) -> dict[str, float]:
    """Return the instructions of each loop, per step or entry."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
        found = valgrind.counted([str(Path(__file__).resolve()), "--run", *names], cache, folder)
    sizes = {name: LOOPS[name][1] for name in names}
    return {n: (found[f"{n} x2"]["Ir"] - found[f"{n} x1"]["Ir"]) / size for n, size in sizes.items()}


def why_not_compared(kept: dict[str, Any]) -> str | None:
    """Say why counts of here say nothing about those that were kept; None if they do."""
    theirs = kept["machine"]["numba"].split(".")[:2]
    if theirs != numba.__version__.split(".")[:2]:
        return f"the counts that are kept are of Numba {'.'.join(theirs)}, and this is {numba.__version__}"
    return valgrind.why_not()


def grown(found: dict[str, float], kept: dict[str, float], tolerance: float = TOLERANCE) -> dict[str, str]:
    """Return the loops that take more instructions than before, beyond the tolerance, with both counts."""
    return {
        name: f"{name}: {count:.1f} instructions, where it took {kept[name]:.1f}"
        for name, count in found.items()
        if count > kept[name] * (1.0 + tolerance)
    }


def main() -> int:
    """Count, show, and save or compare."""
    parser = common.parser(__doc__, "instructions.json")
    parser.add_argument("--compare", action="store_true", help="with what is kept; nothing is saved")
    parser.add_argument("--run", nargs="+", help="used by the process that is counted")
    options = parser.parse_args()
    if options.run is not None:
        run_parts(options.run)
        return 0
    kept = json.loads(KEPT.read_text()) if options.compare else None
    reason = valgrind.why_not() if kept is None else why_not_compared(kept)
    if reason:
        print(f"Left out: {reason}.")
        return 0
    found = count()
    common.show(["loop", "instructions"], [[name, f"{number:.1f}"] for name, number in found.items()])
    if kept is None:
        common.save(options.output, found, target=valgrind.TARGET)
        return 0
    worse = grown(found, kept["results"])
    print("\n".join(worse.values()) or f"None has grown by more than {TOLERANCE:.0%}.")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
