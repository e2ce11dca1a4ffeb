"""Ways to put pushes into the server's table, compared by the error at equal steps.

Workers are simulated, in turns in one process; learning, windows, maps and the server's table are the
package's own. In each round all workers push once, in an order drawn anew, after so many steps each. With
"refreshed every" 1 a worker is brought up to date with each push, with 4 with every fourth, which is what
happens without `max_staleness` where refreshes are dear. Errors are the RMS error to Q* over the entries that
the first way visited with the same seed. "late" means that the first half is merged as "affine".
"reject_stale" refuses what did not know of more pushes than there are workers.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

import common
import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.merging import Merging
from dist_classicrl.tables.shared import SharedTable

DISCOUNT = 0.99
EPSILON = 0.3
STEP_SIZES = {"per visit": PerVisit(0.7, scale=0.5, offset=100), "constant": 0.05}
STEPS = {common.FROZEN_LAKE: 4_000_000, common.TAXI: 2_000_000, common.GARNET: 8_000_000}
WAYS = ("affine", "order_free", "order_free late", "staleness_weighted", "reject_stale")


@dataclass(frozen=True)
class Case:
    """What is compared in."""

    problem: str
    step_size: str
    workers: int
    interval: int
    refreshed_every: int


def trained(case: Case, way: str, seed: int, model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the server's values and counts after `STEPS` steps of all workers."""
    source = resolve(model, 1, None)
    step_size = STEP_SIZES[case.step_size]
    settings = Settings(learning_rate=step_size, epsilon=EPSILON, discount_factor=DISCOUNT)
    size = source.n_states * source.n_actions
    server = SharedTable(np.zeros(size), np.zeros(size, np.int64))
    name, _, is_late = way.partition(" ")
    merging = Merging(name, case.workers)
    workers = []
    for number in range(case.workers):
        learner = common.learner_in(source, settings, case.workers)
        window = PushWindow(learner.table, case.refreshed_every, 0)
        workers.append((learner, window, Stream(stream_key(seed, number), 0)))
    rng = np.random.default_rng(seed)
    rounds = STEPS[case.problem] // (case.workers * case.interval)
    for number in range(rounds):
        if number == (rounds // 2 if is_late else 0):
            server.merging = merging
        for worker in rng.permutation(case.workers).tolist():
            learner, window, stream = workers[worker]
            learner.learn(0, stream, case.interval)
            pushed = window.push()
            staleness = max(0, server.version - window.known_version(pushed.sequence))
            server.apply(worker, pushed.sequence, pushed.packed, staleness)
            window.receipt(pushed.sequence)
            if (number + worker) % case.refreshed_every == 0:
                window.refresh(server.refresh(window.version), pushed.sequence)
    return server.values, server.counts


def compare(case: Case, seeds: int) -> dict[str, Any]:
    """Return the errors of all ways, by seed."""
    model = common.problem(case.problem)
    q = replace(model, max_episode_steps=None).solve(DISCOUNT).q.ravel()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        known: np.ndarray | None = None
        for way in WAYS:
            values, counts = trained(case, way, seed, model)
            known = counts > 0 if known is None else known
            found[way].append(math.sqrt(float(np.mean((values - q)[known] ** 2))))
    return {**vars(case), "steps": STEPS[case.problem], "errors": found}


def main() -> None:
    """Measure, print means and their ratios to "affine", and write all to JSON."""
    parser = common.parser(__doc__, "merging.json")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--intervals", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--refreshed-every", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--problems", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--step-sizes", nargs="+", choices=list(STEP_SIZES), default=["per visit"])
    given = parser.parse_args()
    results, rows = [], []
    for case in (
        Case(problem, step_size, workers, interval, every)
        for problem in given.problems
        for step_size in given.step_sizes
        for workers in given.workers
        for interval in given.intervals
        for every in given.refreshed_every
    ):
        results.append(compare(case, given.seeds))
        affine = results[-1]["errors"]["affine"]
        cells = [f"{statistics.mean(affine):.4g}"]
        for way in WAYS[1:]:
            ratios = [ours / theirs for ours, theirs in zip(results[-1]["errors"][way], affine, strict=True)]
            cells.append(common.mean_with_interval(ratios) if given.seeds > 1 else f"{ratios[0]:.3f}")
        rows.append([*vars(case).values(), *cells])
        print(*rows[-1], flush=True)
    headers = ["problem", "step size", "workers", "interval", "refreshed every", *WAYS]
    common.show(headers, rows)
    common.save(given.output, results, seeds=given.seeds)


if __name__ == "__main__":
    main()
