"""Steps per second by ranks: flat, tree and decentralized; measured here, and simulated to 4,096 ranks.

Measured: jobs of 3 to 33 ranks on this machine's cores, in each topology, with a push (or a round) every
32,000 steps. Where ranks outnumber cores that says what talking costs, not how it scales.

Simulated: what one machine's cores and messages cost, the shortest time of all rounds (`costs`), put
together as below. Nothing of that was measured on a cluster; networks are assumed, 16 ranks a host share its
link, all cores are equally fast, and entries are visited evenly. A push of p steps has maps of
m(p) = E (1 - exp(-p / E)) of E entries, and what all others learned meanwhile is told back.

*Flat*: the server takes in each push, applies it, and packs and sends a refresh; the rate is that of the
slowest of workers, server, and the server's link. *Tree*: one rank a host composes the pushes of 15 workers,
groups of 16 hosts have one more, and so on; the rate is that of the slowest rank or link. *Decentralized*:
all ranks learn; a round is added up in a tree on each host and by swaps between hosts, and merged by all,
while the next one is learned.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
import superstep_simulation as supersteps

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._random import stream_key
from dist_classicrl.comm.transport import Wire
from dist_classicrl.engines.decentralized.part import sums_of
from dist_classicrl.engines.decentralized.patterns import Adder
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.composition import Composition
from dist_classicrl.tables.maps import PackedMap
from dist_classicrl.tables.round_merge import Parts, RoundMerge
from dist_classicrl.tables.shared import SharedTable

TOPOLOGIES = ("flat", "tree", "decentralized")
STEPS_OF_PUSH = 32_000
RANKS_OF_HOST = 16
RANKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MEASURED_RANKS = (3, 5, 9, 17, 33)
SIZES = {"256 entries": 256, "100,000 entries": 100_000, "1 M entries": 1_000_000}
MAP_BYTES, SUM_BYTES, CHANGE_BYTES, WHOLE_BYTES, HEAD_BYTES = 28, 36, 20, 16, 300
SHORT, LONG = supersteps.SHORT, supersteps.LONG


class Costs(NamedTuple):
    """Seconds that were measured: of a step, of an entry in each of these, and of messages."""

    step: float
    pack: float
    apply: float
    refresh: float
    rebase: float
    compose: float
    add: float  # of sums
    merge: float  # of a round
    message: float  # sent and received
    byte: float


class Network(NamedTuple):
    """A link of a host: bits and seconds."""

    name: str
    bandwidth: float
    latency: float


NETWORKS = (
    Network("1 Gbit/s, 50 µs", 1e9, 50e-6),
    Network("10 Gbit/s, 20 µs", 10e9, 20e-6),
    Network("100 Gbit/s, 2 µs", 100e9, 2e-6),
)


def shortest(function: Callable[[], Any], seconds: float) -> float:
    """Return the shortest time that a function has taken within so many seconds, after a first call."""
    function()
    best, begin = math.inf, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        before = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - before)
    return best


def costs_of(entries: int, seconds: float, messages: dict[str, float]) -> Costs:
    """Return the costs where the table has so many entries."""
    model = (
        common.problem(common.FROZEN_LAKE)
        if entries == 256
        else TabularMDP.garnet(entries // 10, 10, 5, seed=0)
    )
    source = resolve(model, 1, None)
    learner: Any = common.learner_in(source, Settings(learning_rate=PerVisit(0.7), epsilon=1.0))
    stream = Stream(stream_key(1, "throughput"), 0)
    step = shortest(lambda: learner.learn(0, stream, STEPS_OF_PUSH), seconds) / STEPS_OF_PUSH
    table, packed = learner.table, learner.table.pack()

    def learned() -> PackedMap:
        learner.learn(0, stream, STEPS_OF_PUSH)
        begin = time.perf_counter()
        maps: PackedMap = table.pack()
        packing.append((time.perf_counter() - begin) / maps.size)
        return maps

    packing: list[float] = []
    shortest(learned, seconds)
    first, second = learned(), learned()
    values, counts = np.zeros(table.q.size), np.zeros(table.q.size, np.int64)
    shared = SharedTable(values, counts)
    sequence = iter(range(1, 1 << 40))
    apply = shortest(lambda: shared.apply(1, next(sequence), first), seconds) / first.size

    def refreshed() -> None:
        shared.apply(1, next(sequence), first)
        begin = time.perf_counter()
        refresh = shared.refresh(shared.version - 1)
        refreshing.append((time.perf_counter() - begin) / refresh.values.size)
        begin = time.perf_counter()
        table.rebase(refresh, [])
        rebasing.append((time.perf_counter() - begin) / refresh.values.size)

    refreshing: list[float] = []
    rebasing: list[float] = []
    shortest(refreshed, seconds)
    composition, adder, merge = Composition(table.q.size), Adder(table.q.size), RoundMerge(shared)
    two = first.size + second.size
    compose = shortest(lambda: composition.of([first, second]), seconds) / two
    sums = sums_of(first), sums_of(second)
    add = shortest(lambda: adder(*sums), seconds) / two
    merging = shortest(lambda: merge.merge([Parts.one(0, sums[0], workers=2)]), seconds) / first.size
    byte = (messages[str(LONG)] - messages[str(SHORT)]) / (LONG - SHORT)
    del packed
    return Costs(
        step,
        min(packing),
        apply,
        min(refreshing),
        min(rebasing),
        compose,
        add,
        merging,
        messages[str(SHORT)],
        byte,
    )


class Model:
    """Steps per second of so many ranks, with these costs, over a network."""

    def __init__(self, costs: Costs, network: Network, entries: int) -> None:
        self.costs, self.network, self.entries = costs, network, entries

    def touched(self, steps: float) -> float:
        """Return how many entries so many steps visit."""
        return self.entries * -math.expm1(-steps / self.entries)

    def told(self, steps: float) -> tuple[float, float]:
        """Return entries and bytes of what tells the changes of so many steps."""
        entries = self.touched(steps)
        if entries * CHANGE_BYTES > self.entries * WHOLE_BYTES:
            return self.entries, self.entries * WHOLE_BYTES + HEAD_BYTES
        return entries, entries * CHANGE_BYTES + HEAD_BYTES

    def on_link(self, n_bytes: float) -> float:
        """Return how long so many bytes keep a link busy."""
        return n_bytes * 8.0 / self.network.bandwidth

    def message(self, n_bytes: float) -> float:
        """Return what a message costs a core at one of its ends."""
        return self.costs.message + n_bytes * self.costs.byte

    def worker(self, all_steps: float) -> float:
        """Return a worker's time from push to push, in which all make so many steps."""
        costs, maps = self.costs, self.touched(STEPS_OF_PUSH)
        changed, n_bytes = self.told(all_steps)
        busy = STEPS_OF_PUSH * costs.step + maps * costs.pack + changed * costs.rebase
        return busy + self.message(maps * MAP_BYTES + HEAD_BYTES) + self.message(n_bytes)

    def push(self, steps: float, all_steps: float, taking: float) -> tuple[float, float, float]:
        """Return what a push of maps of so many steps costs who takes it and answers, and bytes both ways."""
        maps, (changed, back) = self.touched(steps), self.told(all_steps)
        there = maps * MAP_BYTES + HEAD_BYTES
        seconds = self.message(there) + maps * taking + changed * self.costs.refresh + self.message(back)
        return seconds, there, back

    def flat(self, ranks: int) -> float:
        """Return the rate with one server."""
        workers = ranks - 1
        steps = workers * STEPS_OF_PUSH
        seconds, there, back = self.push(STEPS_OF_PUSH, steps, self.costs.apply)
        away = max(0, ranks - RANKS_OF_HOST)
        turn = max(self.worker(steps), workers * seconds, away * self.on_link(max(there, back)))
        return steps / turn

    def tree(self, ranks: int) -> float:
        """Return the rate with a server on each host, and one more for each 16 of these, and so on."""
        hosts = max(1, ranks // RANKS_OF_HOST)
        workers = ranks - hosts
        steps = workers * STEPS_OF_PUSH
        turns = [self.worker(steps)]
        below, of_one, n_below = STEPS_OF_PUSH, RANKS_OF_HOST - 1, hosts
        while True:
            is_root = n_below == 1
            taking = self.costs.apply if is_root else self.costs.compose
            seconds, there, back = self.push(below, steps, taking)
            busy = of_one * seconds
            if below > STEPS_OF_PUSH:  # from other hosts
                turns.append(of_one * self.on_link(max(there, back)))
            below *= of_one
            if not is_root:
                up = self.touched(below) * MAP_BYTES + HEAD_BYTES
                changed, n_bytes = self.told(steps)
                busy += self.message(up) + self.message(n_bytes) + changed * self.costs.merge
            turns.append(busy)
            if is_root:
                return steps / max(turns)
            of_one = min(RANKS_OF_HOST, n_below)
            n_below = -(-n_below // RANKS_OF_HOST)

    def decentralized(self, ranks: int) -> float:
        """Return the rate without a server, by two levels."""
        costs, here = self.costs, min(ranks, RANKS_OF_HOST)
        steps = ranks * STEPS_OF_PUSH
        total = self.touched(steps)
        busy = STEPS_OF_PUSH * costs.step + self.touched(STEPS_OF_PUSH) * costs.pack
        busy += total * (costs.merge + costs.rebase)
        exchange, together = 0.0, STEPS_OF_PUSH
        while together < steps:
            n_bytes = self.touched(together) * SUM_BYTES + HEAD_BYTES
            is_between = together >= here * STEPS_OF_PUSH
            added = 2.0 * self.touched(together) * costs.add
            # The first rank of a host takes part in all of it.
            ends = 2.0 if is_between else 1.0
            busy += ends * self.message(n_bytes) + added
            exchange += ends * self.message(n_bytes) + added
            if is_between:
                exchange += self.network.latency + self.on_link(n_bytes)
            together *= 2
        down = math.log2(here) * self.message(total * SUM_BYTES + HEAD_BYTES)
        return steps / max(busy + down, exchange + down)


def run_rank(steps: int) -> None:
    """Be a rank of a job; rank 0 prints the rates that it measured, or of two ranks what a message costs."""
    from mpi4py import MPI

    wire = Wire(MPI.COMM_WORLD.Dup())
    found: dict[str, float] = {}
    if wire.size == 2:
        for n_bytes in (SHORT, LONG):
            found[str(n_bytes)] = supersteps.seconds_of_message(wire, n_bytes)
    else:
        for topology in TOPOLOGIES:
            more: dict[str, Any] = {"tree_group_size": 8} if topology == "tree" else {}
            agent = DistAsyncQLearning(
                discount_factor=0.95,
                epsilon=1.0,
                learning_rate=PerVisit(0.7),
                sync_frequency=STEPS_OF_PUSH // 32,
                topology=topology,  # type: ignore[arg-type]
                seed=1,
                **more,
            )
            result = agent.train(common.problem(common.FROZEN_LAKE), total_steps=steps)
            found[topology] = result.steps_per_second
    if wire.rank == 0:
        print(json.dumps(found))


def job(ranks: int, steps: int) -> dict[str, float]:
    """Return what a job of so many ranks prints."""
    words = [str(Path(__file__).resolve()), "--as_rank", "--steps", str(steps)]
    lines = common.mpi_output(ranks, words, 400.0).splitlines()
    found: dict[str, float] = json.loads(next(line for line in lines if line.startswith("{")))
    return found


def main() -> None:
    """Measure, then compute, or be a rank of a job."""
    parser = common.parser(__doc__, "throughput.json")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement of a cost")
    parser.add_argument("--steps", type=int, default=20_000_000, help="of each measured training")
    parser.add_argument("--ranks", type=int, nargs="*", default=MEASURED_RANKS, help="of measured jobs")
    parser.add_argument("--measured", type=Path, help="go on from what an earlier result measured")
    parser.add_argument("--rounds", type=int, default=3, help="of measurements of costs; the shortest counts")
    parser.add_argument("--as_rank", action="store_true", help="used by its jobs")
    arguments = parser.parse_args()
    if arguments.as_rank:
        run_rank(arguments.steps)
        return
    if arguments.rounds < 1 and arguments.measured is None:
        parser.error("--rounds 0 needs the costs of an earlier result: give it as --measured")
    costs: dict[str, Costs] = {}
    rates: dict[str, dict[str, float]] = {}
    if arguments.measured is not None:
        before = json.loads(arguments.measured.read_text())["results"]
        costs = {size: Costs(**each) for size, each in before["costs"].items()}
        rates = before["measured"]
    for _ in range(arguments.rounds):
        messages = job(2, arguments.steps)
        for size, n in SIZES.items():
            new = costs_of(n, arguments.seconds, messages)
            costs[size] = Costs(*map(min, new, costs.get(size, new)))
    for ranks in arguments.ranks:
        rates[str(ranks)] = job(ranks, arguments.steps)
        save(arguments, costs, rates, [])
    simulated = [
        {
            "size": size,
            "network": network.name,
            "topology": topology,
            "rates": [getattr(Model(costs[size], network, n), topology)(ranks) for ranks in RANKS],
        }
        for size, n in SIZES.items()
        for network in NETWORKS
        for topology in TOPOLOGIES
    ]
    show(costs, rates, simulated)
    save(arguments, costs, rates, simulated)


def save(
    arguments: Any, costs: dict[str, Costs], rates: dict[str, Any], simulated: list[dict[str, Any]]
) -> None:
    """Write down what was found so far."""
    data = {
        "costs": {size: each._asdict() for size, each in costs.items()},
        "measured": dict(sorted(rates.items(), key=lambda each: int(each[0]))),
        "ranks": RANKS,
        "simulated": simulated,
    }
    common.save(arguments.output, data, steps=arguments.steps, seconds=arguments.seconds)


def show(costs: dict[str, Costs], rates: dict[str, Any], simulated: list[dict[str, Any]]) -> None:
    """Print what was measured, and what follows from it."""
    print("Costs, in ns (a message in µs):")
    common.show(
        ["table", *Costs._fields],
        [
            [
                size,
                *(
                    f"{1e9 * cost / (1e3 if name == 'message' else 1.0):.2f}"
                    for name, cost in each._asdict().items()
                ),
            ]
            for size, each in costs.items()
        ],
    )
    print("\nMeasured here, FrozenLake 8x8, M steps/s:")
    common.show(
        ["ranks", *TOPOLOGIES],
        [[ranks, *(f"{found[each] / 1e6:.1f}" for each in TOPOLOGIES)] for ranks, found in rates.items()],
    )
    for size in SIZES:
        print(f"\nSimulated, {size}: M steps/s in all")
        common.show(
            ["network", "topology", *map(str, RANKS)],
            [
                [each["network"], each["topology"], *(f"{rate / 1e6:.0f}" for rate in each["rates"])]
                for each in simulated
                if each["size"] == size
            ],
        )


if __name__ == "__main__":
    main()
