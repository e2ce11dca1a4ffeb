"""How fast collective operations in two levels are beside MPI's own, and one synchronization beside many.

One MPI job; each figure is the median over interleaved rounds of how long the slowest rank took. Without
`--hosts`, hosts are those that share memory; with it the ranks are grouped as if they were on so many
hosts, which on one machine shows what the second level costs, and nothing of what a network makes of it.
`--emulated N` starts the ranks on N emulated hosts (network namespaces of this machine, as tests/cluster
makes them: root is needed). Bytes are what the network cards of all hosts have sent for one operation.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
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
    shared = world.Split_type(MPI.COMM_TYPE_SHARED)
    is_first_of_host = shared.rank == 0
    rows = []
    for size in sizes:
        array = np.ones(size // 8)
        for name in OPERATIONS:
            calls = {
                label: lambda each=each, name=name, array=array: getattr(each, name)(array)
                for label, each in (("mpi", own), ("levels", levels), ("unchecked", unchecked))
            }
            seconds, sent = measured(world, calls, rounds, is_first_of_host)
            rows.append({"operation": name, "bytes": array.nbytes, **seconds, "sent": sent})
    arrays = {f"{i}": np.ones(NUMBERS) for i in range(ARRAYS)}
    with ParameterSync(world) as sync:
        calls = {
            "each by Allreduce": lambda: [
                world.Allreduce(array, np.empty_like(array)) for array in arrays.values()
            ],
            "ParameterSync": lambda: sync.start(arrays, op="sum").wait(),
        }
        seconds, _ = measured(world, calls, rounds, is_first_of_host)
    if world.rank == 0:
        print(json.dumps({"hosts": levels.hosts, "operations": rows, "synchronization": seconds}))


def measured(
    world: Any, calls: dict[str, Callable[[], Any]], rounds: int, is_first_of_host: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Return of each call the median seconds until the last rank has made it, and of the bytes sent."""
    from mpi4py import MPI

    sent: dict[str, list[float]] = {name: [] for name in calls}

    def slowest(name: str) -> float:
        world.Barrier()
        before = bytes_sent() if is_first_of_host else 0
        world.Barrier()
        seconds = np.array([common.timed(calls[name])])
        world.Barrier()
        both = np.array([bytes_sent() - before if is_first_of_host else 0], float)
        world.Allreduce(MPI.IN_PLACE, both, MPI.SUM)
        world.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        sent[name].append(float(both[0]))
        return float(seconds[0])

    figures = common.interleave({name: lambda _, name=name: slowest(name) for name in calls}, rounds, 3)
    medians = {name: statistics.median(each) for name, each in figures.items()}
    return medians, {name: statistics.median(each) for name, each in sent.items()}


def bytes_sent() -> int:
    """Return what this host's network cards have sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    cards = (line.split(":") for line in lines)
    return sum(int(numbers.split()[8]) for name, numbers in cards if name.strip() != "lo")


def start(arguments: Any, program: list[str]) -> str:
    """Start the job, and return what it wrote."""
    if not arguments.emulated:
        return common.mpi_output(arguments.ranks, program, 300.0)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))
    import host_jobs
    import hosts as emulated

    if reason := emulated.why_not():
        raise SystemExit(reason)
    slots = {f"h{number + 1}": arguments.ranks // arguments.emulated for number in range(arguments.emulated)}
    with emulated.Hosts(arguments.emulated) as hosts, tempfile.TemporaryDirectory() as folder:
        hosts.impair(delay_ms=arguments.delay_ms)
        output: str = host_jobs.launch(hosts, folder, program, slots=slots)
        return output


def main() -> None:
    """Start the job, or be a rank of one."""
    parser = common.parser(__doc__, "mpi_tools.json")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=0, help="group the ranks into so many hosts")
    parser.add_argument("--emulated", type=int, default=0, help="start the ranks on so many emulated hosts")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each packet between those")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 8_192, 1 << 20, 1 << 23], help="in bytes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--is-rank", action="store_true", help="used by the job that this starts")
    arguments = parser.parse_args()
    if arguments.is_rank:
        run_rank(arguments.sizes, arguments.hosts, arguments.rounds)
        return
    program = [str(Path(__file__).resolve()), "--is-rank", "--hosts", str(arguments.hosts)]
    program += ["--rounds", str(arguments.rounds), "--sizes", *map(str, arguments.sizes)]
    (line,) = (each for each in start(arguments, program).splitlines() if each.startswith('{"hosts"'))
    found = json.loads(line)
    common.show(
        [
            "operation",
            "bytes",
            "MPI's own, us",
            "two levels / MPI's own",
            "without the check",
            "kB sent by MPI's own",
            "by two levels",
        ],
        [
            [
                row["operation"],
                f"{row['bytes']:,}",
                f"{row['mpi'] * 1e6:,.0f}",
                f"{row['levels'] / row['mpi']:.2f}",
                f"{row['unchecked'] / row['mpi']:.2f}",
                f"{row['sent']['mpi'] / 1e3:,.1f}",
                f"{row['sent']['unchecked'] / 1e3:,.1f}",
            ]
            for row in found["operations"]
        ],
    )
    seconds = found["synchronization"]
    common.show(
        [f"{ARRAYS} arrays of {NUMBERS} numbers", "us"],
        [[name, f"{each * 1e6:,.0f}"] for name, each in seconds.items()],
    )
    common.save(arguments.output, found, **{**vars(arguments), "output": None})


if __name__ == "__main__":
    main()
