"""The error of each topology at equal steps, with nothing of a machine's speed in it.

Three hosts with four workers each are played in this process, with the library's learners, maps, tables and
windows. Time is virtual: a worker makes the steps between two pushes in one unit of it, workers begin at
different moments, and a message between hosts takes `--delay` of a unit. So what differs is the topology
alone: how old is what a worker learns on. A server of a node waits for a push of each of its workers, and has
one composed map on its way at a time.

*decentralized* merges rounds, order-free, one round late, as the engine does.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import common
import numpy as np

from dist_classicrl import TabularMDP
from dist_classicrl._random import stream_key
from dist_classicrl.engines.decentralized.part import sums_of
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.learning.learner import Stream
from dist_classicrl.schedules import PerVisit
from dist_classicrl.settings import Settings
from dist_classicrl.tables.composition import Composition
from dist_classicrl.tables.maps import Refresh
from dist_classicrl.tables.round_merge import Parts, RoundMerge
from dist_classicrl.tables.shared import SharedTable

HOSTS, WORKERS = 3, 4
RANKS = HOSTS * WORKERS
DISCOUNTS = {common.FROZEN_LAKE: 0.95, common.TAXI: 0.95, common.GARNET: 0.9}
TOPOLOGIES = ("flat", "tree", "decentralized")


class Worker:
    """A learner, with its window of pushes."""

    def __init__(self, source: Any, rank: int, seed: int, steps: int) -> None:
        settings = Settings(learning_rate=PerVisit(0.7), epsilon=1.0, discount_factor=DISCOUNTS[source[0]])
        self.learner: Any = common.learner_in(source[1], settings, RANKS)
        self.window = PushWindow(self.learner.table, 1 << 20, 0)
        self.stream = Stream(stream_key(seed, "topology error", rank), 0)
        self.steps = steps  # between two pushes
        self.rank = rank

    def learn(self) -> None:
        """Make the steps up to the next push."""
        self.learner.learn(0, self.stream, self.steps)


class Play:
    """Events in virtual time."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), action))

    def run(self) -> None:
        """Let all happen."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


def with_server(workers: list[Worker], turns: int, delay: float, by_tree: bool) -> SharedTable:
    """Return the table of a server that hears workers, or of other hosts a server of the node."""
    size = workers[0].learner.table.q.size
    table = SharedTable(np.zeros(size), np.zeros(size, np.int64))
    play = Play()

    def begin(worker: Worker, left: int) -> None:
        def end() -> None:
            worker.learn()
            pushed = worker.window.push()
            send(worker, pushed)
            if left > 1:
                play.after(1.0, lambda: begin_again(worker, left - 1))

        end()

    def begin_again(worker: Worker, left: int) -> None:
        begin(worker, left)

    def answered(worker: Worker, refresh: Refresh, included: int) -> None:
        worker.window.refresh(refresh, included)

    def arrive(worker: Worker, pushed: Any, way: float) -> None:
        table.apply(worker.rank, pushed.sequence, pushed.packed)
        refresh = table.refresh(worker.window.version)
        play.after(way, lambda: answered(worker, refresh, pushed.sequence))

    nodes = {host: Node(play, table, delay, size) for host in range(1, HOSTS)} if by_tree else {}

    def send(worker: Worker, pushed: Any) -> None:
        host = worker.rank // WORKERS
        if host in nodes:
            nodes[host].take(worker, pushed)
        else:
            way = delay if host else 0.0
            play.after(way, lambda: arrive(worker, pushed, way))

    for worker in workers:
        play.after(1.0 + worker.rank / RANKS, lambda worker=worker: begin(worker, turns))
    play.run()
    for node in nodes.values():
        node.flush()
    play.run()
    return table


class Node:
    """A server of a node: it composes, and hands on what comes back."""

    def __init__(self, play: Play, root: SharedTable, delay: float, size: int) -> None:
        self._play, self._root, self._delay = play, root, delay
        self._copy = SharedTable(np.zeros(size), np.zeros(size, np.int64))
        self._composition = Composition(size)
        self._waiting: list[tuple[Worker, Any]] = []
        self._is_under_way = False

    def take(self, worker: Worker, pushed: Any) -> None:
        """Take in a push."""
        self._waiting.append((worker, pushed))
        self._send()

    def flush(self) -> None:
        """Send what there is."""
        self._send(all_there_is=True)

    def _send(self, all_there_is: bool = False) -> None:
        came = {worker.rank for worker, _ in self._waiting}
        if self._is_under_way or not came or (len(came) < WORKERS and not all_there_is):
            return
        waiting, self._waiting = self._waiting, []
        composed = self._composition.of([pushed.packed for _, pushed in waiting])
        ranges: dict[int, tuple[int, int]] = {}
        for worker, pushed in waiting:
            first, _ = ranges.get(worker.rank, (pushed.sequence, 0))
            ranges[worker.rank] = first, pushed.sequence
        self._is_under_way = True

        def arrive() -> None:
            self._root.apply_composed([(rank, *both) for rank, both in ranges.items()], composed)
            refresh = self._root.refresh(self._copy.version)
            self._play.after(self._delay, lambda: back(refresh))

        def back(refresh: Refresh) -> None:
            self._copy.follow(refresh)
            self._is_under_way = False
            for worker in {id(worker): worker for worker, _ in waiting}.values():
                worker.window.refresh(self._copy.refresh(worker.window.version), ranges[worker.rank][1])
            self._send()

        self._play.after(self._delay, arrive)


def without_server(workers: list[Worker], turns: int) -> SharedTable:
    """Return the table of all where rounds are merged while the next one is learned."""
    size = workers[0].learner.table.q.size
    table = SharedTable(np.zeros(size), np.zeros(size, np.int64))
    merge = RoundMerge(table)
    under_way: list[Parts] = []
    for _ in range(turns):
        sums = []
        for worker in workers:
            worker.learn()
        if under_way:
            merge_in(table, merge, under_way, workers)
        for worker in workers:
            sums.append(Parts.one(worker.rank, sums_of(worker.learner.table.pack())))
        under_way = sums
    merge_in(table, merge, under_way, workers)
    return table


def merge_in(table: SharedTable, merge: RoundMerge, parts: list[Parts], workers: list[Worker]) -> None:
    """Merge a round, and bring all to it."""
    version = table.version
    merge.merge(parts)
    refresh = table.refresh(version)
    for worker in workers:
        worker.learner.table.rebase(refresh, [])


def error(name: str, topology: str, steps: int, interval: int, delay: float, seed: int) -> float:
    """Return the root-mean-square error to Q* over the pairs that can be reached."""
    model: TabularMDP = common.problem(name)
    source = name, resolve(model, 1, None)
    workers = [Worker(source, rank, seed, interval) for rank in range(RANKS)]
    turns = steps // (RANKS * interval)
    if topology == "decentralized":
        table = without_server(workers, turns)
    else:
        table = with_server(workers, turns, delay, topology == "tree")
    assert table.counts.sum() == turns * RANKS * interval
    exact = model.solve(DISCOUNTS[name], tolerance=1e-9).q
    pairs = model.reachable_pairs()
    found = table.values.reshape(exact.shape)
    return float(np.sqrt(np.mean((found - exact)[pairs] ** 2)))


def main() -> None:
    """Play, and show means over seeds with their standard errors, and ratios to flat of the same seeds."""
    parser = common.parser(__doc__, "topology_error.json")
    parser.add_argument("--problems", nargs="+", choices=sorted(DISCOUNTS), default=[common.FROZEN_LAKE])
    parser.add_argument("--steps", type=int, nargs="+", default=[20_000_000, 60_000_000])
    parser.add_argument("--intervals", type=int, nargs="+", default=[4_000, 32_000], help="steps per push")
    parser.add_argument("--delay", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    table = []
    for name, steps, interval, delay in itertools.product(
        arguments.problems, arguments.steps, arguments.intervals, arguments.delay
    ):
        found = {
            topology: [error(name, topology, steps, interval, delay, seed) for seed in range(arguments.seeds)]
            for topology in TOPOLOGIES
        }
        rows.append({"problem": name, "steps": steps, "interval": interval, "delay": delay, "errors": found})
        common.save(arguments.output, rows, seeds=arguments.seeds)
        line = [name, f"{steps / 1e6:.0f} M", f"{interval:,}", f"{delay:g}"]
        for topology in TOPOLOGIES:
            line.append(f"{statistics.mean(found[topology]):.4f} ± {spread(found[topology]):.4f}")
        for topology in TOPOLOGIES[1:]:
            ratio = statistics.mean(found[topology]) / statistics.mean(found["flat"])
            line.append(f"{ratio:.2f}")
        table.append(line)
        print(*line, flush=True)
    common.show(
        ["problem", "steps", "a push", "delay", *TOPOLOGIES, "tree / flat", "decentralized / flat"], table
    )


def spread(values: list[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
