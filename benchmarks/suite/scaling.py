"""Throughput on 1 to 32 ranks: the share of talking, efficiency, memory and start-up, by engine and table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import common
import large_models

from suite.form import Effort, table_row
from suite.peers import Peers

# By engine: what asks for it.
ENGINES: dict[str, dict[str, Any]] = {
    "server": {"agent": {}, "train": {"placement": "replicated"}},
    "rounds": {"agent": {"async_updates": False}, "train": {"placement": "replicated"}},
    "sharded": {"agent": {}, "train": {"placement": "sharded"}},
}
STATES = {"256 entries": 64, "1,000,000 entries": 250_000, "100,000,000 entries": 12_500_000}
COPY_BYTES = 200
"""For each entry, about, that a rank with a copy of the table needs while pushes are on their way."""
ROOM_BYTES = 6e9
"""Which a job may take at most for copies of the table."""
LEAST_SECONDS = 1.5
"""Of a timed training: workers join one after the other within its first half second."""
LIMIT_SECONDS = 240.0


def problem(case: str) -> Any:
    """Return the model of a case: FrozenLake 8x8, a Garnet, or one that a function gives."""
    if case == "256 entries":
        return common.problem(common.FROZEN_LAKE)
    if case == "1,000,000 entries":
        from dist_classicrl import TabularMDP

        return TabularMDP.garnet(STATES[case], 4, 2, seed=0)
    return large_models.garnet_model(STATES[case])


def engines_for(case: str, ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the engines that a case is trained by on so many ranks, and the others with the reason."""
    entries = int(case.split()[0].replace(",", ""))
    needed = COPY_BYTES * entries * ranks
    if ranks == 1:
        return ["sharded" if needed > ROOM_BYTES else "server"], {}
    if needed <= ROOM_BYTES:
        return list(ENGINES), {}
    reason = f"a copy of the table on each of {ranks} ranks would need {needed / 1e9:.0f} GB"
    return ["sharded"], {name: reason for name in ENGINES if name != "sharded"}


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Start a job for each number of ranks, in which all engines take turns."""
    cores = int(common.machine()["cores"])
    rows: list[list[Any]] = []
    left_out: dict[str, str] = {}
    lines: dict[str, list[list[Any]]] = {}
    alone: float | None = None
    for ranks in effort.ranks[case]:
        engines, refused = engines_for(case, ranks)
        left_out |= {f"{engine}, {ranks} ranks": reason for engine, reason in refused.items()}
        try:
            found = job(case, ranks, engines, effort)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            left_out[f"{ranks} ranks"] = f"the job failed: {error}"
            continue
        for engine, seen in found["engines"].items():
            rate = float(seen["rate"])
            alone = rate if ranks == 1 else alone
            efficiency = None if alone is None else rate / (alone * min(ranks, cores))
            name = "one process" if ranks == 1 else engine
            size = f"{ranks}, {ranks / cores:g} a core" if ranks > cores else str(ranks)
            memory = f"{median(found['own']) / 1e6:.0f} + {found['shared'] / 1e6:.0f}"
            share = f"{seen['talking']:.0%}" if ranks > 1 else ""
            spread = f"{seen['lowest'] / 1e6:.3g} to {seen['highest'] / 1e6:.3g}"
            row = [size, name, f"{rate / 1e6:.3g}", spread, share]
            rows.append([*row, efficiency, memory, f"{found['started']:.1f}"])
            lines.setdefault(name, []).append([ranks, rate, seen["lowest"], seen["highest"]])
    if alone is not None and len(lines) > 1:
        first = lines.pop("one process")
        lines = {name: [*first, *line] for name, line in lines.items()}
    headers = ["ranks", "engine", "M steps/s", "lowest and highest", "not learning", "efficiency"]
    headers += ["MB a rank + shared", "s to start"]
    plot = {"x": "ranks", "y": "steps per second", "log_x": True, "log_y": True, "lines": lines}
    plots = [plot] if lines else []
    return table_row("scaling", case, headers, rows, left_out, plots=plots, cores=cores)


def job(case: str, ranks: int, engines: list[str], effort: Effort) -> Mapping[str, Any]:
    """Run one job; return what its ranks say."""
    seconds, rounds = max(LEAST_SECONDS, 2.0 * effort.seconds), max(2, effort.jobs - 1)
    order = {"case": case, "engines": engines, "seconds": seconds, "rounds": rounds}
    begin = time.time()
    words = ["-m", "suite.scaling", json.dumps({**order, "begin": begin})]
    if ranks == 1:
        command = [sys.executable, *words]
        done = subprocess.run(command, timeout=LIMIT_SECONDS, check=True, stdout=subprocess.PIPE, text=True)
        output = done.stdout
    else:
        output = common.mpi_output(ranks, words, LIMIT_SECONDS + 4.0 * ranks)
    return common.last_told(output)


def run_rank(order: dict[str, Any]) -> None:
    """Be one rank of a job; rank 0 prints."""
    from mpi4py import MPI

    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.schedules import PerVisit

    comm = MPI.COMM_WORLD
    model = problem(order["case"])
    started = comm.gather(time.time())
    dtype = "float32" if order["case"].startswith("100,") else "float64"
    agents = {
        name: DistAsyncQLearning(
            learning_rate=PerVisit(0.7), epsilon=0.2, seed=0, dtype=dtype, **ENGINES[name]["agent"]
        )
        for name in order["engines"]
    }
    found: dict[str, list[Any]] = {name: [] for name in agents}
    steps = dict.fromkeys(agents, 200_000)
    for number in range(-2, order["rounds"]):
        for name, agent in agents.items():
            result = agent.train(model, total_steps=steps[name], progress_bar=False, **ENGINES[name]["train"])
            if number < 0:
                steps[name] = max(steps[name], int(result.steps_per_second * order["seconds"]))
            else:
                found[name].append((result.steps_per_second, result.communication_fraction))
    own, shared = memory()
    gathered = comm.gather((own, shared))
    if started is None or gathered is None:
        return
    engines = {
        name: {
            "rate": median(rate for rate, _ in runs),
            "lowest": min(rate for rate, _ in runs),
            "highest": max(rate for rate, _ in runs),
            "talking": median(share for _, share in runs),
        }
        for name, runs in found.items()
    }
    print(
        json.dumps(
            {
                "engines": engines,
                "started": max(started) - order["begin"],
                "own": [own for own, _ in gathered],
                "shared": max(shared for _, shared in gathered),
            }
        )
    )


def memory() -> tuple[int, int]:
    """Return the bytes that this process has of its own, and shares with others."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    sizes = {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}
    return sizes["RssAnon"] << 10, sizes["RssShmem"] << 10


if __name__ == "__main__":
    run_rank(json.loads(sys.argv[1]))
