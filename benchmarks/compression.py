"""What compression of messages saves and costs, on FrozenLake 8x8 and on a Garnet of 100,000 entries.

One MPI job per problem and kind trains from an empty table, with pushes at the same steps; the error is the
root-mean-square difference to Q* over the pairs that can be reached. Bytes are those of pushes and of
refreshes, per million steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP

GARNET = "Garnet 100,000"
DISCOUNTS = {common.FROZEN_LAKE: 0.99, GARNET: 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "threshold": {"compression_threshold": 0.01},
    "lossless": {"compression": "lossless"},
    "both": {"compression": "lossless", "compression_threshold": 0.01},
}


def model(name: str) -> TabularMDP:
    """Return a problem: the Garnet has 10,000 states and 10 actions."""
    return TabularMDP.garnet(10_000, 10, 5, seed=0) if name == GARNET else common.problem(name)


def run_rank(name: str, kind: str, steps: int, sync_frequency: int) -> None:
    """Train as one rank of a job; rank 0 prints what it cost."""
    problem, discount = model(name), DISCOUNTS[name]
    agent = DistAsyncQLearning(
        discount_factor=discount, epsilon=1.0, sync_frequency=sync_frequency, seed=0, **KINDS[kind]
    )
    result = agent.train(problem, total_steps=steps, placement="replicated")
    if agent.rank == 0:
        error = (agent.q_table - problem.solve(discount, tolerance=1e-6).q)[problem.reachable_pairs()]
        found: dict[str, Any] = {**result.to_dict(), "rms": float(np.sqrt(np.mean(error**2)))}
        found["visits"] = int(agent.visits.sum())
        print(json.dumps(found))


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "compression.json")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--sync_frequency", type=int, default=100, help="updates of 32 steps per push")
    parser.add_argument("--job", nargs=2, metavar=("PROBLEM", "KIND"), help="used by the jobs of this")
    arguments = parser.parse_args()
    if arguments.job is not None:
        run_rank(*arguments.job, arguments.steps, arguments.sync_frequency)
        return
    rows = []
    for name in DISCOUNTS:
        for kind in KINDS:
            program = [str(Path(__file__).resolve()), "--job", name, kind]
            program += ["--steps", str(arguments.steps), "--sync_frequency", str(arguments.sync_frequency)]
            found = json.loads(common.mpi_output(arguments.ranks, program, 300.0).splitlines()[-1])
            rows.append({"problem": name, "kind": kind, **found})
    millions = arguments.steps / 1e6
    common.show(
        ["problem", "kind", "pushes", "kB pushed", "kB pulled", "kB saved", "RMS error", "M steps/s"],
        [
            [
                row["problem"],
                row["kind"],
                row["pushes"],
                *(
                    f"{row[key] / 1e3 / millions:.1f}"
                    for key in ("bytes_pushed", "bytes_pulled", "bytes_saved")
                ),
                f"{row['rms']:.4f}",
                f"{row['steps_per_second'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )
    common.save(
        arguments.output,
        rows,
        ranks=arguments.ranks,
        steps=arguments.steps,
        sync_frequency=arguments.sync_frequency,
    )


if __name__ == "__main__":
    main()
