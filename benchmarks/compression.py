"""What `compression_threshold` saves and costs: bytes pushed and error on a Garnet of a million entries.

One MPI job per threshold trains from an empty table on the same model; the error is the root-mean-square
difference to Q* over all pairs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP

DISCOUNT = 0.5
STEP_SIZE = 0.1


def model() -> TabularMDP:
    """Return a Garnet of 100,000 states and 10 actions."""
    return TabularMDP.garnet(100_000, 10, 5, seed=0)


def run_rank(threshold: float, steps: int) -> None:
    """Train as one rank of a job; rank 0 prints what it cost."""
    problem = model()
    agent = DistAsyncQLearning(
        learning_rate=STEP_SIZE,
        discount_factor=DISCOUNT,
        epsilon=1.0,
        compression_threshold=threshold,
        seed=0,
    )
    result = agent.train(problem, total_steps=steps)
    if agent.rank == 0:
        error = agent.q_table - problem.solve(DISCOUNT, tolerance=1e-6).q
        found: dict[str, Any] = {**result.to_dict(), "rms": float(np.sqrt(np.mean(error**2)))}
        found["visits"] = int(agent.visits.sum())
        print(json.dumps(found))


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "compression.json")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000_000)
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.0, 0.01])
    parser.add_argument("--threshold_of", type=float, help="used by the jobs that this starts")
    arguments = parser.parse_args()
    if arguments.threshold_of is not None:
        run_rank(arguments.threshold_of, arguments.steps)
        return
    rows = []
    for threshold in arguments.thresholds:
        program = [str(Path(__file__).resolve()), "--threshold_of", str(threshold)]
        program += ["--steps", str(arguments.steps)]
        found = json.loads(common.mpi_output(arguments.ranks, program, 300.0).splitlines()[-1])
        rows.append({"threshold": threshold, **found})
    common.show(
        ["threshold", "pushes", "MB pushed", "MB saved", "RMS error", "M steps/s"],
        [
            [
                row["threshold"],
                row["pushes"],
                f"{row['bytes_pushed'] / 1e6:.1f}",
                f"{row['bytes_saved'] / 1e6:.1f}",
                f"{row['rms']:.4f}",
                f"{row['steps_per_second'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )
    common.save(arguments.output, rows, ranks=arguments.ranks, steps=arguments.steps)


if __name__ == "__main__":
    main()
