"""Instructions and cache misses per step, by valgrind: the training loop against the same loop in C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import common
import fused_loop
import large_tables
import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.environments.resolve import resolve
from suite import valgrind
from suite.form import Effort, table_row
from suite.peers import Peers

SMALL = (common.FROZEN_LAKE, common.TAXI, common.GARNET)
LOG_STATES, ACTIONS = 19, 8
LARGE = f"{ACTIONS << LOG_STATES:,} entries, 32 episodes in turns"
MARCH = "-march=x86-64-v3"
BEFORE, STEPS, CHUNK = 1_000_000, 100_000, 50_000
LEVELS = {"instructions": ("Ir",), "misses of L1": ("D1mr", "D1mw"), "misses of all caches": ("DLmr", "DLmw")}


def loops(folder: str) -> Iterator[tuple[str, str, Callable[[int], object]]]:
    """Make one loop after the other, which makes so many steps: problem, by whom, and the loop."""
    key = int(stream_key(0, "counts"))
    for name in SMALL:
        source, rate = resolve(common.problem(name), 1, None), fused_loop.STEP_SIZES["n^-0.7"]
        simulator = source.simulator
        assert simulator is not None
        fixed = f"-DN_ACTIONS={simulator.n_actions}"
        for label, is_alone in (("ours", True), ("ours, as a worker", False)):
            ours = fused_loop.PackageLearner(source, rate, is_alone)
            yield name, label, lambda steps, ours=ours: ours.learn(key, steps, CHUNK)
        for label, options in (("C", ()), ("C, number of actions fixed", (fixed,))):
            library = f"{name}{len(options)}".replace(" ", "-")
            twin = fused_loop.CLearner(fused_loop.build(folder, library, MARCH, *options), simulator, rate)
            yield name, label, lambda steps, twin=twin: twin.learn(key, steps, CHUNK)
    simulator = large_tables.random_problem(LOG_STATES, ACTIONS)
    function = large_tables.build(folder, ACTIONS, "float64", MARCH)
    for label, learner in (
        ("ours", large_tables.PackageLearner(simulator, "float64")),
        ("C, number of actions fixed", large_tables.CLearner(function, simulator, "float64")),
    ):
        yield LARGE, label, lambda steps, learner=learner: learner.learn(key, steps)


def run_parts(folder: str) -> None:
    """Be the process that valgrind counts."""
    parts = valgrind.Parts()
    for name, label, learn in loops(folder):
        learn(BEFORE)
        for times in (1, 2):
            parts.part(f"{name}/{label} x{times}", lambda: learn(times * STEPS))  # noqa: B023


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Count, once: counts do not vary."""
    reason = valgrind.why_not()
    headers = ["", "by", *(f"{name} per step" for name in LEVELS)]
    if reason:
        return table_row("counts", case, headers, [], {"all": reason})
    found = valgrind.counted(["-m", "suite.counts", folder], f"{folder}/cache", folder, caches=True)
    rows: list[list[Any]] = []
    for part in found:
        name, _, times = part.rpartition(" x")
        if times == "1":
            problem, _, label = name.rpartition("/")
            more = {event: n - found[part][event] for event, n in found[f"{name} x2"].items()}
            rows.append([problem, label, *(_per_step(more, events) for events in LEVELS.values())])
    order = [*SMALL, LARGE]
    rows.sort(key=lambda row: (order.index(row[0]), row[1] != "ours", row[1]))
    return table_row("counts", case, headers, rows)


def _per_step(counts: dict[str, int], events: tuple[str, ...]) -> float:
    return float(np.round(max(0, sum(counts[event] for event in events)) / STEPS, 4))


if __name__ == "__main__":
    run_parts(sys.argv[1])
