"""What goes between hosts in each topology: bytes, and the error at equal steps.

Three hosts are emulated on this machine, with four workers each: ranks believe to be on them, and what they
send to ranks of another one is counted, from the first to the last step. A tree has one rank more on each
host but the first, and without a server there is none of that either. The error is the root-mean-square
difference to Q* over the pairs that can be reached.

`--exchange` measures instead how long one exchange of a round takes by each pattern, of maps of all entries
of a table, beside MPI's own Iallreduce of arrays of the same numbers: products of weights, and sums of three
more. That one can do no more than wait where a rank has died.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import common
import numpy as np

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.comm import envelope
from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.transport import Channel, Wire
from dist_classicrl.engines.decentralized.messages import SentSums
from dist_classicrl.engines.decentralized.patterns import PATTERNS, Adder, ExchangePattern, Sums
from dist_classicrl.membership.group import Group
from dist_classicrl.schedules import PerVisit
from dist_classicrl.tables.maps import PackedSums

GARNET = "Garnet 100,000"
DISCOUNTS = {common.FROZEN_LAKE: 0.95, GARNET: 0.5}
WORKERS, HOSTS = 4, 3
SETUP = {"GATHER", "TOLD"}
TOPOLOGIES = ("flat", "tree", "decentralized")
EXCHANGED = (256, 10_000, 100_000, 1_000_000)


def model(name: str) -> TabularMDP:
    """Return a problem: the Garnet has 10,000 states and 10 actions."""
    return TabularMDP.garnet(10_000, 10, 5, seed=0) if name == GARNET else common.problem(name)


def sizes(topology: str) -> list[int]:
    """Return how many ranks each host has."""
    if topology == "decentralized":
        return [WORKERS] * HOSTS
    return [WORKERS + 1, *[WORKERS + (topology == "tree")] * (HOSTS - 1)]


def run_rank(name: str, topology: str, steps: int, sync_frequency: int, seed: int) -> None:
    """Train as one rank of a job; rank 0 prints what it cost."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hosts = [str(host) for host, size in enumerate(sizes(topology)) for _ in range(size)]
    sent: Counter[str] = Counter()
    send = Channel.send

    def counted(channel: Channel, message: np.ndarray) -> None:
        if hosts[channel.peer] != hosts[world.rank]:
            sent[envelope.decode(message)[0].name] += message.size
        send(channel, message)

    setattr(Channel, "send", counted)  # noqa: B010
    setattr(Group, "host_of", lambda group, rank: hosts[rank])  # noqa: B010
    problem, discount = model(name), DISCOUNTS[name]
    agent = DistAsyncQLearning(
        discount_factor=discount,
        epsilon=1.0,
        learning_rate=PerVisit(0.7),
        sync_frequency=sync_frequency,
        topology=topology,  # type: ignore[arg-type]
        seed=seed,
    )
    result = agent.train(problem, total_steps=steps, placement="replicated")
    everyone = world.gather(dict(sent))
    if everyone is not None:
        kinds = sum(map(Counter, everyone), Counter())
        error = (agent.q_table - problem.solve(discount, tolerance=1e-6).q)[problem.reachable_pairs()]
        found: dict[str, Any] = {**result.to_dict(), "rms": float(np.sqrt(np.mean(error**2)))}
        found["visits"], found["kinds"] = int(agent.visits.sum()), dict(kinds)
        found["between_hosts"] = sum(kinds[kind] for kind in kinds.keys() - SETUP)
        print(json.dumps(found))


def exchange(wire: Wire, channels: dict[int, Channel], pattern: ExchangePattern, own: Sums) -> Sums:
    """Exchange with all other ranks, as the engine does where it has nothing else to do."""
    came: dict[int, deque[Sums]] = {rank: deque() for rank in channels}
    running = pattern.exchange(wire.rank, (0,) * wire.size, own)
    got: Any = None
    while True:
        try:
            step = running.send(got)
        except StopIteration as ended:
            total: Sums = ended.value
            return total
        for place, sums in step.send.items():
            channels[place].send(encode(SentSums(0, sums.maps, sums.counted)))
        while not all(came[place] for place in step.awaits):
            for channel, message in wire.receive(list(channels.values())):
                told = decode(message)
                came[channel.peer].append(Sums(told.maps, told.counted, own.adder))
        got = {place: came[place].popleft() for place in step.awaits}


def exchange_rank(rounds: int) -> None:
    """Be one of the ranks that exchange maps; rank 0 prints the shortest seconds of each way."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    wire = Wire(world.Dup())
    found: dict[str, dict[str, float]] = {}
    for entries in EXCHANGED:
        random = np.random.default_rng(wire.rank)
        maps = PackedSums(
            np.arange(entries, dtype=np.int32),
            random.random(entries),
            random.random(entries),
            random.random(entries),
            random.integers(1, 9, entries),
        )
        own = Sums(maps, np.zeros(9), Adder(entries))
        seconds: dict[str, float] = {}
        weight, rest = np.empty(entries), np.empty((3, entries))
        sent = np.array([maps.targets, maps.updates, maps.visits])
        channels = {rank: wire.channel(rank, 7) for rank in range(wire.size) if rank != wire.rank}
        for turn in range(rounds if entries < EXCHANGED[-1] else max(2, rounds // 3)):
            for name in (*PATTERNS, "Iallreduce"):
                world.Barrier()
                begin = time.perf_counter()
                if name == "Iallreduce":
                    requests = [
                        world.Iallreduce(maps.weight, weight, MPI.PROD),
                        world.Iallreduce(sent, rest, MPI.SUM),
                    ]
                    MPI.Request.Waitall(requests)
                else:
                    exchange(wire, channels, PATTERNS[name](), own)
                passed = world.allreduce(time.perf_counter() - begin, MPI.MAX)
                if turn:
                    seconds[name] = min(seconds.get(name, passed), passed)
        for channel in channels.values():
            channel.close()
        found[str(entries)] = seconds
    if wire.rank == 0:
        print(json.dumps(found))


def compare_exchanges(arguments: Any) -> None:
    """Let jobs of several sizes exchange, and show how long that takes."""
    results = {}
    for ranks in arguments.ranks:
        program = [str(Path(__file__).resolve()), "--exchange_job", "--runs", str(arguments.runs)]
        lines = common.mpi_output(ranks, program, 300.0).splitlines()
        results[ranks] = json.loads(next(line for line in lines if line.startswith("{")))
        common.save(arguments.output, results, runs=arguments.runs)
    names = [*PATTERNS, "Iallreduce"]
    common.show(
        ["ranks", "entries", *(f"{name}, ms" for name in names)],
        [
            [ranks, f"{int(entries):,}", *(f"{1e3 * seconds[name]:.2f}" for name in names)]
            for ranks, found in results.items()
            for entries, seconds in found.items()
        ],
    )


def main() -> None:
    """Start the jobs, or be a rank of one."""
    parser = common.parser(__doc__, "topologies.json")
    parser.add_argument("--steps", type=int, default=30_000_000)
    parser.add_argument("--problems", nargs="+", choices=sorted(DISCOUNTS), default=sorted(DISCOUNTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sync_frequency", type=int, default=1000, help="updates of 32 steps per push")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--topologies", nargs="+", choices=TOPOLOGIES, default=TOPOLOGIES)
    parser.add_argument("--exchange", action="store_true", help="measure exchanges alone")
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 4, 8), help="of them")
    parser.add_argument("--exchange_job", action="store_true", help="used by its jobs")
    parser.add_argument("--job", nargs=3, metavar=("PROBLEM", "TOPOLOGY", "SEED"), help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.job is not None:
        name, topology, seed = arguments.job
        run_rank(name, topology, arguments.steps, arguments.sync_frequency, int(seed))
        return
    if arguments.exchange_job:
        exchange_rank(arguments.runs)
        return
    if arguments.exchange:
        compare_exchanges(arguments)
        return
    rows = []
    for name in arguments.problems:
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            for topology in arguments.topologies:
                program = [str(Path(__file__).resolve()), "--job", name, topology, str(seed)]
                program += ["--steps", str(arguments.steps)]
                program += ["--sync_frequency", str(arguments.sync_frequency)]
                output = common.mpi_output(sum(sizes(topology)), program, 300.0)
                rows.append({"problem": name, "topology": topology, **json.loads(output.splitlines()[-1])})
                common.save(
                    arguments.output,
                    rows,
                    steps=arguments.steps,
                    sync_frequency=arguments.sync_frequency,
                )
    millions = arguments.steps / 1e6
    common.show(
        ["problem", "topology", "pushes", "kB between hosts", "RMS error", "M steps/s"],
        [
            [
                row["problem"],
                row["topology"],
                row["pushes"],
                f"{row['between_hosts'] / 1e3 / millions:.1f}",
                f"{row['rms']:.4f}",
                f"{row['steps_per_second'] / 1e6:.1f}",
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
