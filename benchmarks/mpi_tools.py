"""How fast collective operations in two levels are beside MPI's own, and one synchronization beside many.

One MPI job; each figure is the median over interleaved rounds of how long the slowest rank took. Without
`--hosts`, hosts are those that share memory; with it the ranks are grouped as if they were on so many
hosts, which on one machine shows what the second level costs, and nothing of what a network makes of it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np

OPERATIONS = ("allreduce", "broadcast", "reduce_scatter", "allgather")
ARRAYS, NUMBERS = 64, 250


def run_rank(sizes: list[int], hosts: int, rounds: int) -> None:
    """Measure as one rank of a job; rank 0 prints what was found."""
    from mpi4py import MPI

    from dist_classicrl.mpi_tools import ParameterSync, TwoLevel

    world = MPI.COMM_WORLD
    host = str(world.rank * hosts // world.size) if hosts else None
    own, levels, unchecked = (
        TwoLevel(world, method=method, host=host, check=check)
        for method, check in (("mpi", False), ("two_level", True), ("two_level", False))
    )
    rows = []
    for size in sizes:
        array = np.ones(size // 8)
        for name in OPERATIONS:
            calls = {
                label: lambda each=each, name=name, array=array: getattr(each, name)(array)
                for label, each in (("mpi", own), ("levels", levels), ("unchecked", unchecked))
            }
            seconds = measured(world, calls, rounds)
            rows.append({"operation": name, "bytes": array.nbytes, **seconds})
    arrays = {f"{i}": np.ones(NUMBERS) for i in range(ARRAYS)}
    with ParameterSync(world) as sync:
        calls = {
            "each by Allreduce": lambda: [
                world.Allreduce(array, np.empty_like(array)) for array in arrays.values()
            ],
            "ParameterSync": lambda: sync.start(arrays, op="sum").wait(),
        }
        seconds = measured(world, calls, rounds)
    if world.rank == 0:
        print(json.dumps({"hosts": levels.hosts, "operations": rows, "synchronization": seconds}))


def measured(world: Any, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, until the last rank has made it."""
    from mpi4py import MPI

    def slowest(call: Callable[[], Any]) -> float:
        world.Barrier()
        seconds = np.array([common.timed(call)])
        world.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        return float(seconds[0])

    figures = common.interleave(
        {name: lambda number, call=call: slowest(call) for name, call in calls.items()}, rounds, 3
    )
    return {name: statistics.median(each) for name, each in figures.items()}


def main() -> None:
    """Start the job, or be a rank of one."""
    parser = common.parser(__doc__, "mpi_tools.json")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=0, help="group the ranks into so many hosts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 8_192, 1 << 20, 1 << 23], help="in bytes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--is-rank", action="store_true", help="used by the job that this starts")
    arguments = parser.parse_args()
    if arguments.is_rank:
        run_rank(arguments.sizes, arguments.hosts, arguments.rounds)
        return
    program = [str(Path(__file__).resolve()), "--is-rank", "--hosts", str(arguments.hosts)]
    program += ["--rounds", str(arguments.rounds), "--sizes", *map(str, arguments.sizes)]
    found = json.loads(common.mpi_output(arguments.ranks, program, 300.0).splitlines()[-1])
    common.show(
        ["operation", "bytes", "MPI's own, us", "two levels / MPI's own", "without the check"],
        [
            [
                row["operation"],
                f"{row['bytes']:,}",
                f"{row['mpi'] * 1e6:,.0f}",
                f"{row['levels'] / row['mpi']:.2f}",
                f"{row['unchecked'] / row['mpi']:.2f}",
            ]
            for row in found["operations"]
        ],
    )
    seconds = found["synchronization"]
    common.show(
        [f"{ARRAYS} arrays of {NUMBERS} numbers", "us"],
        [[name, f"{each * 1e6:,.0f}"] for name, each in seconds.items()],
    )
    common.save(arguments.output, found, ranks=arguments.ranks, hosts=arguments.hosts)


if __name__ == "__main__":
    main()
