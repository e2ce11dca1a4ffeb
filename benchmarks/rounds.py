"""What the reproducible mode costs by default: its rate beside asynchronous training, and its accuracy.

Tables below 3,500 entries are learned in rounds, and that of the Garnet in supersteps.

Rates are measured in pairs of trainings, one after the other in the same processes, alone and on several
ranks. Beside the ratio of steps per second there is that of steps per processor second of the rank that
used most: on a machine where others compute, too, the first says little. The tables of rounds have to be the
same bits on any number of ranks, which is checked. Errors are the RMS error to Q* over
the entries that were visited with the first seed, after the same number of steps, beside rounds of 32
updates of each logical worker throughout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from dataclasses import replace

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning
from dist_classicrl._hints import rank_of_environment
from dist_classicrl.settings import ROUND_UPDATES

PROBLEMS = (common.TAXI, common.FROZEN_LAKE, common.GARNET)
STEPS = {common.TAXI: (1e6, 2e6), common.FROZEN_LAKE: (2e6, 2e7), common.GARNET: (2e7, 6e7)}
"""After how many steps errors are compared: before all is learned, and later."""


def largest_of_ranks(value: float) -> float:
    """Return the largest of the values of all ranks of this job."""
    if rank_of_environment() is None:
        return value
    from mpi4py import MPI

    return float(MPI.COMM_WORLD.allreduce(value, MPI.MAX))


def measure(name: str, steps: float, pairs: int) -> None:
    """Train in pairs, on all ranks of this job; rank 0 prints rates as JSON, and what rounds came to.

    Rates are steps per second, and per processor second of the busiest rank.
    """
    model = common.problem(name)
    rates: dict[str, list[list[float]]] = {"asynchronous": [], "rounds": []}
    for pair in range(-1, pairs):
        for kind, found in rates.items():
            agent = DistAsyncQLearning(seed=max(pair, 0), async_updates=kind == "asynchronous")
            begin = time.process_time()
            result = agent.train(model, total_steps=int(steps if pair >= 0 else 1000))
            spent = largest_of_ranks(time.process_time() - begin)
            if pair >= 0:
                found.append([result.steps_per_second, steps / spent])
    if agent.rank == 0:  # the last one played rounds
        table = hashlib.sha256(agent.q_table.tobytes() + agent.visits.tobytes()).hexdigest()
        print(json.dumps({"rates": rates, "table": table}))


def compare_rates(
    problems: list[str], ranks: list[int], steps: float, pairs: int, timeout: float
) -> list[dict[str, object]]:
    """Return the rates of problems on these numbers of ranks, and print them; SystemExit if bits differ."""
    results: list[dict[str, object]] = []
    rows = []
    tables: dict[str, str] = {}
    for n in ranks:
        for name in problems:
            job = [__file__, "--job", name, "--steps", str(steps), "--pairs", str(pairs)]
            told = json.loads(common.mpi_output(n, job, timeout=timeout).splitlines()[-1])
            rates = told["rates"]
            if tables.setdefault(name, told["table"]) != told["table"]:
                raise SystemExit(
                    f"{name}: the table of rounds on {n} ranks has other bits than on {ranks[0]}."
                )
            results.append({"problem": name, "ranks": n, **told})
            cells = []
            for which in (0, 1):
                ours, others = ([pair[which] for pair in rates[kind]] for kind in ("rounds", "asynchronous"))
                million = statistics.median(others) / 1e6, statistics.median(ours) / 1e6
                cells += [
                    f"{million[0]:.1f}",
                    f"{million[1]:.1f}",
                    f"{common.median_ratio(ours, others):.2f}",
                ]
            rows.append([name, n, *cells])
    headers = ["asynchronous, M steps/s", "rounds", "ratio", "asynchronous, M per CPU s", "rounds", "ratio"]
    common.show(["problem", "ranks", *headers], rows)
    return results


def errors(name: str, steps: float, seeds: int) -> dict[str, list[float]]:
    """Return the RMS errors to Q* with each seed, of rounds of 32 updates and of those of the default."""
    model = common.problem(name)
    # Without a time limit, which is no part of what Q* is about.
    q = replace(model, max_episode_steps=None).solve(0.99).q
    known: np.ndarray | None = None
    found: dict[str, list[float]] = {}
    for kind, sync_frequency in (("32 updates", ROUND_UPDATES), ("default", "auto")):
        found[kind] = []
        for seed in range(seeds):
            agent = DistAsyncQLearning(seed=seed, async_updates=False, sync_frequency=sync_frequency)
            agent.train(model, total_steps=int(steps))
            known = agent.visits > 0 if known is None else known
            found[kind].append(float(np.sqrt(((agent.q_table - q)[known] ** 2).mean())))
    return found


def compare_errors(problems: list[str], seeds: int) -> list[dict[str, object]]:
    """Return the errors of problems, and print their means."""
    results: list[dict[str, object]] = []
    rows = []
    for name in problems:
        for steps in STEPS[name]:
            found = errors(name, steps, seeds)
            results.append({"problem": name, "steps": steps, "errors": found})
            fixed, ours = found.values()
            mean = statistics.mean(fixed)
            spread = (sum(statistics.variance(each) for each in (fixed, ours)) / seeds) ** 0.5
            ratio = f"{statistics.mean(ours) / mean:.3f} +- {spread / mean:.3f}"
            rows.append([name, f"{steps:.0e}", f"{mean:.4g}", f"{statistics.mean(ours):.4g}", ratio])
    common.show(["problem", "steps", "32 updates", "default", "ratio"], rows)
    return results


def main() -> None:
    """Measure, or be a rank of a job that does."""
    parser = common.parser(__doc__, "rounds.json")
    parser.add_argument("--seeds", type=int, default=10, help="of the errors; 0: none are compared")
    parser.add_argument("--pairs", type=int, default=7, help="of the rates; 0: none are compared")
    parser.add_argument("--steps", type=float, default=1e8, help="of each training of a pair")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for each job")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        measure(arguments.job, arguments.steps, arguments.pairs)
        return
    compared = compare_errors(arguments.problems, arguments.seeds) if arguments.seeds else []
    sys.stdout.flush()
    rates = []
    if arguments.pairs:
        rates = compare_rates(
            arguments.problems, arguments.ranks, arguments.steps, arguments.pairs, arguments.timeout
        )
    common.save(arguments.output, {"errors": compared, "rates": rates}, steps=arguments.steps)


if __name__ == "__main__":
    main()
