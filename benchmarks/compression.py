"""What compression of messages saves and costs, on FrozenLake 8x8 and on Garnets of 100,000 and 1 M entries.

One MPI job per problem and kind trains from an empty table, with pushes at the same steps; the error is the
root-mean-square difference to Q* over the pairs that can be reached. Bytes are those of pushes and of
refreshes, per million steps.

With --mbit the ranks are behind slow links, see `slow_link`. Then "s to error" is when each kind first had
the error that the worst ends with, or --error.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
from slow_link import SlowLink

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.compression import Quantized, TopK

GARNETS = {"Garnet 100,000": 10_000, "Garnet 1,000,000": 100_000}
DISCOUNTS = {common.FROZEN_LAKE: 0.99, **dict.fromkeys(GARNETS, 0.5)}
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "threshold": {"compression_threshold": 0.01},
    "delta": {"compression": "delta"},
    "lossless": {"compression": "lossless"},
    "threshold, lossless": {"compression": "lossless", "compression_threshold": 0.01},
    "top_k": {"compression": TopK(0.1)},
    "top_k, half": {"compression": TopK(0.5)},
    "quantized": {"compression": Quantized(8)},
    "quantized, 16": {"compression": Quantized(16)},
    "auto": {"compression": "auto"},
}


def model(name: str) -> TabularMDP:
    """Return a problem; Garnets have 10 actions."""
    return TabularMDP.garnet(GARNETS[name], 10, 5, seed=0) if name in GARNETS else common.problem(name)


class Errors(BaseCallback):
    """Notes the error of the table, and when that was, at each report."""

    def __init__(self, truth: np.ndarray, pairs: np.ndarray) -> None:
        super().__init__()
        self._truth, self._pairs = truth, pairs
        self.curve: list[tuple[float, float]] = []

    @property
    def error(self) -> float:
        """The error now."""
        return float(np.sqrt(np.mean((self.model.q_table - self._truth)[self._pairs] ** 2)))

    def _on_step(self) -> bool:
        self.curve.append((self.progress.seconds, self.error))
        return True


def run_rank(name: str, kind: str, truth: Path, arguments: Any) -> None:
    """Train as one rank of a job; rank 0 prints what it cost."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if arguments.mbit:
        SlowLink.install(arguments.mbit * 1e6, arguments.delay_ms * 1e-3, world.rank, world.size)
    problem = model(name)
    errors = Errors(np.load(truth), problem.reachable_pairs())
    agent = DistAsyncQLearning(
        discount_factor=DISCOUNTS[name],
        epsilon=1.0,
        sync_frequency=arguments.sync_frequency,
        seed=0,
        **KINDS[kind],
    )
    result = agent.train(
        problem,
        total_steps=arguments.steps,
        placement="replicated",
        callbacks=[errors] if arguments.mbit else None,
        progress_interval=arguments.report_seconds if arguments.mbit else "auto",
    )
    if agent.rank == 0:
        errors.model = agent
        found: dict[str, Any] = {**result.to_dict(), "rms": errors.error, "curve": errors.curve}
        print(json.dumps(found))


def seconds_to(error: float, row: dict[str, Any]) -> float:
    """Return when a job's table first had at most this error."""
    return min((seconds for seconds, rms in row["curve"] if rms <= error), default=row["seconds"])


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "compression.json")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--sync_frequency", type=int, default=100, help="updates of 32 steps per push")
    parser.add_argument("--problems", nargs="+", default=list(DISCOUNTS), choices=list(DISCOUNTS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--mbit", type=float, default=0.0, help="of a link, in Mbit/s; 0: there is none")
    parser.add_argument("--delay_ms", type=float, default=2.5, help="of it, each way")
    parser.add_argument("--error", type=float, default=0.0, help="to come to; 0: that of the worst")
    parser.add_argument("--report_seconds", type=float, default=0.5, help="how often the error is taken then")
    parser.add_argument(
        "--job", nargs=3, metavar=("PROBLEM", "KIND", "TRUTH"), help="used by the jobs of this"
    )
    arguments = parser.parse_args()
    if arguments.job is not None:
        run_rank(arguments.job[0], arguments.job[1], Path(arguments.job[2]), arguments)
        return
    rows = []
    for name in arguments.problems:
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.npy"
            np.save(truth, model(name).solve(DISCOUNTS[name], tolerance=1e-6).q)
            for kind in arguments.kinds:
                program = [str(Path(__file__).resolve()), "--job", name, kind, str(truth)]
                for setting in ("steps", "sync_frequency", "mbit", "delay_ms", "report_seconds"):
                    program += [f"--{setting}", str(getattr(arguments, setting))]
                found = json.loads(common.mpi_output(arguments.ranks, program, 300.0).splitlines()[-1])
                rows.append({"problem": name, "kind": kind, **found})
        own = [row for row in rows if row["problem"] == name]
        error = arguments.error or max(each["rms"] for each in own)
        for row in own:
            row["seconds_to_error"] = seconds_to(error, row)
    millions = arguments.steps / 1e6
    common.show(
        [
            "problem",
            "kind",
            "pushes",
            "kB pushed",
            "kB pulled",
            "kB saved",
            "s compressing",
            "most waiting",
            "RMS error",
            "s to error",
            "M steps/s",
        ],
        [
            [
                row["problem"],
                row["kind"],
                row["pushes"],
                *(
                    f"{row[key] / 1e3 / millions:.1f}"
                    for key in ("bytes_pushed", "bytes_pulled", "bytes_saved")
                ),
                f"{row['compression_seconds']:.2f}",
                row["most_waiting"],
                f"{row['rms']:.4f}",
                f"{row['seconds_to_error']:.2f}",
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
        mbit=arguments.mbit,
        delay_ms=arguments.delay_ms,
    )


if __name__ == "__main__":
    main()
