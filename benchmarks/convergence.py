"""How close the learned values come to the optimum, on 1, 2, 4 and 16 ranks, at the same number of updates.

One MPI job per number of ranks goes through environments, step sizes, modes and seeds; every finished
training is appended to a JSON-lines file, so that an interrupted benchmark goes on where it stopped. For each
it records the exact value of the greedy policy from the start states, as a share of the optimal one, and the
root-mean-square error against Q* over the state-action pairs that can be reached.

Exploration is uniform half of the time (epsilon 0.5), and always on the Garnet, where a greedy walk sees too
little.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.schedules import PerVisit

DISCOUNT = 0.99
EPSILON = {common.FROZEN_LAKE: 0.5, common.TAXI: 0.5, common.CLIFF: 0.5, common.GARNET: 1.0}
STEP_SIZES = {"n^-0.7": PerVisit(0.7), "0.05": 0.05}
MODES = {"async": True, "reproducible": False}
EXACT = 1e-6
"""An RMS error below this share of Q*'s own root mean square counts as none."""

Cell = tuple[int, str, str, str, int]  # ranks, environment, step size, mode, seed


def finished(path: Path) -> dict[Cell, dict[str, Any]]:
    """Return the trainings that `path` already holds."""
    if not path.exists():
        return {}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {(r["ranks"], r["environment"], r["step_size"], r["mode"], r["seed"]): r for r in records}


def judge(model: TabularMDP, q: np.ndarray) -> dict[str, float]:
    """Return the greedy policy's value as a share of the optimal one, and the RMS error against Q*."""
    truth = model.solve(DISCOUNT)
    pairs = model.reachable_pairs()
    best = model.start_value(truth.v)
    value = model.start_value(model.policy_value(q.argmax(axis=1), DISCOUNT))
    return {
        "value_share": 1.0 - (best - value) / abs(best),
        "rms": math.sqrt(float(np.mean((q - truth.q)[pairs] ** 2))),
        "rms_of_optimal": math.sqrt(float(np.mean(truth.q[pairs] ** 2))),
    }


def run_cells(todo: list[Cell], updates: int, path: Path) -> None:
    """Train every cell of `todo`, which all ranks of this job are given alike; rank 0 appends to `path`."""
    models = {name: common.problem(name) for name in {cell[1] for cell in todo}}
    rank = _rank()
    for ranks, environment, step_size, mode, seed in todo:
        agent = DistAsyncQLearning(
            learning_rate=STEP_SIZES[step_size],
            discount_factor=DISCOUNT,
            epsilon=EPSILON[environment],
            async_updates=MODES[mode],
            seed=seed,
        )
        model = models[environment]
        begin = time.perf_counter()
        result = agent.train(env=model, total_steps=updates)
        if rank == 0:
            record = {
                "ranks": ranks,
                "environment": environment,
                "step_size": step_size,
                "mode": mode,
                "seed": seed,
                **judge(model, agent.q_table),
                "updates": result.steps,
                "steps_per_second": result.steps_per_second,
                "seconds": time.perf_counter() - begin,
                "pushes": result.pushes,
                "communication_fraction": result.communication_fraction,
                "sha256": hashlib.sha256(agent.q_table.tobytes()).hexdigest(),
            }
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def _rank() -> int:
    from dist_classicrl._hints import rank_of_environment

    return rank_of_environment() or 0


def summarise(records: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean over seeds, with ratios to a single learner (async, 1 rank), per setting."""
    groups: dict[tuple[str, str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for (ranks, environment, step_size, mode, _), record in records.items():
        groups[environment, step_size, mode, ranks].append(record)
    rows = []
    for (environment, step_size, mode, ranks), found in sorted(groups.items()):
        alone = groups.get((environment, step_size, "async", 1))
        rms = float(np.mean([r["rms"] for r in found]))
        single = math.nan if alone is None else float(np.mean([r["rms"] for r in alone]))
        floor = EXACT * found[0]["rms_of_optimal"]
        rows.append(
            {
                "environment": environment,
                "step_size": step_size,
                "mode": mode,
                "ranks": ranks,
                "seeds": len(found),
                "value_share": float(np.mean([r["value_share"] for r in found])),
                "worst_value_share": float(min(r["value_share"] for r in found)),
                "rms": rms,
                "rms_std": float(np.std([r["rms"] for r in found])),
                "rms_ratio": 1.0 if rms < floor and single < floor else rms / single,
                "exact": rms < floor,
                "seconds": float(np.mean([r["seconds"] for r in found])),
            }
        )
    return rows


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "convergence.json")
    parser.add_argument("--cells", type=Path, default=Path("convergence.jsonl"), help="finished trainings")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--updates", type=int, default=20_000_000, help="of each training, all ranks together"
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--environments", nargs="+", default=list(common.PROBLEMS), choices=common.PROBLEMS)
    parser.add_argument("--step_sizes", nargs="+", default=list(STEP_SIZES), choices=list(STEP_SIZES))
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--timeout", type=float, default=36_000.0, help="seconds for each job")
    parser.add_argument("--todo", help="used by the jobs that this starts")
    arguments = parser.parse_args()
    if arguments.todo is not None:
        run_cells([tuple(cell) for cell in json.loads(arguments.todo)], arguments.updates, arguments.cells)
        return
    for ranks in arguments.ranks:
        known = finished(arguments.cells)
        wanted = [
            (ranks, environment, step_size, mode, seed)
            for seed in range(arguments.seeds)
            for environment in arguments.environments
            for step_size in arguments.step_sizes
            for mode in arguments.modes
        ]
        todo = [cell for cell in wanted if cell not in known]
        if ranks == 1:
            run_cells(todo, arguments.updates, arguments.cells)
        elif todo:
            program = [str(Path(__file__).resolve()), "--todo", json.dumps(todo)]
            program += ["--updates", str(arguments.updates), "--cells", str(arguments.cells)]
            sys.stdout.write(common.mpi_output(ranks, program, arguments.timeout))
    rows = summarise(finished(arguments.cells))
    common.show(
        [
            "environment",
            "step size",
            "mode",
            "ranks",
            "seeds",
            "value / optimal",
            "RMS error",
            "RMS / single rank's",
        ],
        [
            [
                row["environment"],
                row["step_size"],
                row["mode"],
                row["ranks"],
                row["seeds"],
                f"{row['value_share']:.4f}",
                f"{row['rms']:.3g}",
                "both exact" if row["exact"] and row["rms_ratio"] == 1.0 else f"{row['rms_ratio']:.2f}",
            ]
            for row in rows
        ],
    )
    common.save(arguments.output, rows, updates=arguments.updates, discount=DISCOUNT, epsilon=EPSILON)


if __name__ == "__main__":
    main()
