"""How many updates N workers need, and what summing does.

The workers are simulated; the tables and kernels are the package's own.

Speed-up: workers take turns, each pushes every K steps and is re-based on the server's table at once. Counted
are a worker's updates until the server's table has an RMS error to Q* below 0.06 (FrozenLake 8x8, step size
0.05), relative to one worker's. N k a is the workers' number times an entry's mean visits per push (weighted
by visits) times the step size: theory wants it below about 4.

Divergence: on Taxi, every worker learns K steps from the same table, and their differences are added, which
is what adding gradients would be; the same with affine maps. Counted are the rounds until a value exceeds
1,000 (Q* is within 21).
"""

from __future__ import annotations

import math
from typing import Any

import common
import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Stream
from dist_classicrl.settings import Settings
from dist_classicrl.tables import kernels
from dist_classicrl.tables.shared import SharedTable

DISCOUNT = 0.99
STEP_SIZE = 0.05
TARGET = 0.06
SUMMED_STEP_SIZE = 0.5
DIVERGED = 1_000.0
SETTINGS = [(1, 1_000), (16, 1_000), (64, 100), (16, 10_000), (64, 1_000), (16, 30_000), (64, 30_000)]
SUMMING = [(1, 100), (4, 100), (16, 100), (64, 100)]


class Workers:
    """N workers in one process, and their server's table."""

    def __init__(self, name: str, workers: int, step_size: float, epsilon: float, seed: int) -> None:
        self.model = common.problem(name)
        source = resolve(self.model, 1, None)
        settings = Settings(learning_rate=step_size, epsilon=epsilon, discount_factor=DISCOUNT)
        size = source.n_states * source.n_actions
        self.server = SharedTable(np.zeros(size), np.zeros(size, np.int64))
        self.windows = []
        self.learners = []
        self.streams = []
        for worker in range(workers):
            learner = common.learner_in(source, settings, workers)
            self.learners.append(learner)
            self.windows.append(PushWindow(learner.table, 1, 0))
            self.streams.append(Stream(stream_key(seed, worker), 0))
        self.loads: list[float] = []

    def turn(self, worker: int, steps: int) -> None:
        """Let a worker learn, push and be re-based."""
        window = self.windows[worker]
        self.learners[worker].learn(0, self.streams[worker], steps)
        pushed = window.push()
        sequence, packed = pushed.sequence, pushed.packed
        self.server.apply(worker + 1, sequence, packed)
        window.refresh(self.server.refresh(window.version), sequence)
        self.loads.append(kernels.map_load(packed))

    def add_differences(self, steps: int) -> None:
        """Let all workers learn from the same table, and add what each changed: the rule that diverges."""
        total = np.zeros_like(self.server.values)
        for learner, stream in zip(self.learners, self.streams, strict=True):
            learner.table.load(self.server.values, self.server.counts)
            learner.learn(0, stream, steps)
            total += learner.table.q - self.server.values
        self.server.values += total


def updates_needed(workers: int, interval: int, seed: int, epsilon: float, most: int) -> tuple[float, float]:
    """Return the updates of all workers until the error is below `TARGET`, and N k a.

    Their number is infinite if the error is not below it after `most`.
    """
    team = Workers(common.FROZEN_LAKE, workers, STEP_SIZE, epsilon, seed)
    truth = team.model.solve(DISCOUNT).q.ravel()
    pairs = team.model.reachable_pairs().ravel()
    # Looked at ten times per 200,000 updates, and after every push where pushes are rarer.
    every = max(1, 20_000 // interval)
    turns = 0
    while turns * interval < most:
        team.turn(turns % workers, interval)
        turns += 1
        if turns % every == 0:
            error = math.sqrt(float(np.mean((team.server.values - truth)[pairs] ** 2)))
            if error < TARGET:
                return turns * interval, workers * float(np.mean(team.loads))
    return math.inf, workers * float(np.mean(team.loads))


def speed_ups(seeds: int, epsilon: float, most: int) -> list[dict[str, Any]]:
    """Return the speed-up of each of `SETTINGS`, by the median over seeds."""
    rows: list[dict[str, Any]] = []
    pairs = int(common.problem(common.FROZEN_LAKE).reachable_pairs().sum())
    for workers, interval in SETTINGS:
        found = [updates_needed(workers, interval, seed, epsilon, most) for seed in range(seeds)]
        updates = float(np.median([updates for updates, _ in found]))
        single = rows[0]["updates"] if rows else updates
        rows.append(
            {
                "workers": workers,
                "interval": interval,
                "n_k_a": workers * interval * STEP_SIZE / pairs,
                "n_k_a_of_visits": float(np.median([load for _, load in found])),
                "updates": updates,
                "speed_up": workers * single / updates,
            }
        )
    return rows


def rounds_to_diverge(workers: int, interval: int, summing: bool, rounds: int) -> int | None:
    """Return the round after which a value on Taxi exceeds `DIVERGED`, or None."""
    team = Workers(common.TAXI, workers, SUMMED_STEP_SIZE, 0.1, 0)
    for number in range(1, rounds + 1):
        if summing:
            team.add_differences(interval)
        else:
            for worker in range(workers):
                team.turn(worker, interval)
        if not np.abs(team.server.values).max() < DIVERGED:
            return number
    return None


def main() -> None:
    """Print both tables."""
    parser = common.parser(__doc__, "speedup.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--most", type=int, default=60_000_000, help="updates after which to give up")
    parser.add_argument("--rounds", type=int, default=2_000, help="in which summing may diverge")
    arguments = parser.parse_args()
    rows = speed_ups(arguments.seeds, arguments.epsilon, arguments.most)
    common.show(
        ["workers", "steps per push", "N k a", "N k a, mean over visits", "updates in all, M", "speed-up"],
        [
            [
                row["workers"],
                f"{row['interval']:,}",
                f"{row['n_k_a']:.1f}",
                f"{row['n_k_a_of_visits']:.1f}",
                f"{row['updates'] / 1e6:.2f}",
                f"{row['speed_up']:.1f}",
            ]
            for row in rows
        ],
    )
    diverging = [
        {
            "workers": workers,
            "interval": interval,
            "summing": rounds_to_diverge(workers, interval, True, arguments.rounds),
            "affine": rounds_to_diverge(workers, interval, False, arguments.rounds),
        }
        for workers, interval in SUMMING
    ]

    def shown(rounds: int | None) -> str:
        return "never" if rounds is None else f"after {rounds} rounds"

    print()
    common.show(
        ["Taxi: workers", "steps per push", "sums of differences diverge", "affine maps diverge"],
        [[row["workers"], row["interval"], shown(row["summing"]), shown(row["affine"])] for row in diverging],
    )
    common.save(arguments.output, {"speed_up": rows, "divergence": diverging}, epsilon=arguments.epsilon)


if __name__ == "__main__":
    main()
