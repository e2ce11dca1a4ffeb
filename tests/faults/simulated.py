"""Histories of ranks that die, hang and are cut off, over the real protocol code and a simulated network.

    python tests/faults/simulated.py --histories 10000 [--seed 1] [--processes 2]

A history follows from its seed, and can be told with all its messages:

    python tests/faults/simulated.py --kinds elections --tell 17
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simulated_network import Conditions, Plan, SimNetwork, SimWire, simulated_time

from dist_classicrl.algorithms import q_learning
from dist_classicrl.algorithms.learners import EpisodeTotals, Rates, Stream
from dist_classicrl.distributed.crew import Crew, Timing
from dist_classicrl.distributed.election import Base, Deposed, Election
from dist_classicrl.distributed.membership import View
from dist_classicrl.distributed.messages import Kind, decode
from dist_classicrl.distributed.report import TrainingResult
from dist_classicrl.distributed.roles import take_part
from dist_classicrl.distributed.run import Run
from dist_classicrl.distributed.serving import FIRST_ADMISSION, NobodyLeft, Policy, Serving
from dist_classicrl.distributed.together import AsyncPart
from dist_classicrl.distributed.working import ServerLost, Working
from dist_classicrl.errors import CutOffError, RankLostError, RemoteRankError
from dist_classicrl.settings import Settings
from dist_classicrl.updates.local import LocalTable
from dist_classicrl.updates.shared import SharedTable

INTERVAL, SILENCE, STUCK = 0.1, 1.0, 12.0
ENTRIES, SHARED = 4096, 8
TIMING = Timing(INTERVAL, SILENCE, STUCK)


def random_conditions(rng: random.Random) -> Conditions:
    """Return how the network of one history behaves."""
    return Conditions(
        delay=rng.choice([1e-4, 1e-3, 1e-2, 3e-2]),
        tail=rng.choice([0.0, 0.01, 0.1]),
        longest=rng.choice([0.1, 0.5, 0.5, 2.0]) * SILENCE,
        hand_over=rng.choice([0.0, 0.02, 0.3]),
        nap=rng.choice([0.3, 1.0, 1.0]) * INTERVAL / 2.0,
        has_word=rng.random() < 0.5,
        detection=rng.choice([0.0, 0.05, 0.5]) * SILENCE,
        eager=rng.choice([0.0, 0.5, 1.0]),
    )


def random_hosts(rng: random.Random, size: int) -> list[int]:
    """Return on which host each rank is: often all on one."""
    hosts = 1 if rng.random() < 0.4 else rng.randint(2, size)
    return sorted(rng.randrange(hosts) for _ in range(size))


def plan_faults(network: SimNetwork, rng: random.Random, until: float, kinds: list[Kind]) -> None:
    """Let random things go wrong up to a time."""
    size = network.size
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, size])):
        rank = rng.choice([0, rng.randrange(size)])
        draw = rng.random()
        if draw < 0.3:
            time = rng.random() * until
            network.at(time, lambda rank=rank: network.kill(rank))
        elif draw < 0.7:
            kind = rng.choice([None, *kinds])
            count = rng.randint(1, 60 if kind is None else 2 * size)
            network.ranks[rank].plan = Plan(kind, count, rng.random() < 0.5)
        elif draw < 0.9:
            time, seconds = rng.random() * until, rng.choice([0.3, 1.2, 3.0]) * SILENCE * (0.5 + rng.random())
            network.at(time, lambda rank=rank, seconds=seconds: network.stop(rank, seconds))
        else:
            hosts = sorted(set(network.hosts))
            if len(hosts) > 1:
                cut = frozenset(rng.sample(hosts, rng.randint(1, len(hosts) - 1)))
                seconds = None if rng.random() < 0.3 else rng.choice([0.5, 1.5, 3.0]) * SILENCE
                time, says = rng.random() * until, rng.random() < 0.3
                network.at(
                    time,
                    lambda cut=cut, seconds=seconds, says=says: network.cut(
                        cut, seconds, says and network.conditions.has_word
                    ),
                )


@dataclass
class Story:
    """What is known of a history from outside, and what was wrong in it."""

    network: SimNetwork
    wrong: list[str] = field(default_factory=list)

    def ends(self) -> list[str]:
        """Return how each rank ended."""
        return [
            "killed" if sim.died is not None else type(sim.error).__name__ if sim.error else str(sim.result)
            for sim in self.network.ranks
        ]

    def claim(self, holds: bool, what: str) -> None:
        """Enter what must hold."""
        if not holds:
            self.wrong.append(f"at {self.network.now:.4f}: {what}")
            self.network.note(f"WRONG {what}")


# Elections alone: the servers only say that they are there.


class _Hollow(Serving):
    """A server that has nothing to serve: its table's version grows by itself."""

    version = 0

    def take_in(self, rank: int, message: np.ndarray) -> None:
        self.take_in_common(rank, *decode(message))

    def has_lost(self, rank: int) -> int:
        return 0

    def has_admitted(self, rank: int) -> None:
        pass


class Elections(Story):
    """Ranks that follow a server and find a new one again and again."""

    def __init__(self, seed: int, log: bool = False) -> None:
        rng = random.Random(f"elections {seed}")
        size = rng.randint(2, 7)
        super().__init__(SimNetwork(size, seed, random_conditions(rng), random_hosts(rng, size)))
        if log:
            self.network.log = []
        self.until = 12.0 * SILENCE
        plan_faults(
            self.network,
            rng,
            0.5 * self.until,
            [Kind.PREPARE, Kind.PROMISE, Kind.VIEW, Kind.REFUSE, Kind.BEAT],
        )
        self.bases = [Base(0, rng.choice([-1, 0, 1, 5, 5, rng.randrange(9)])) for _ in range(size)]
        self.bases = [base if base.is_some else Base() for base in self.bases]
        self.bases[0] = Base(0, 9)
        self.views: dict[tuple[int, int], View] = {}
        self.followed = 0

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        self.network.run(self.main, self.until + 25.0 * SILENCE)
        if self.network.gave_up:
            self.wrong.append(f"hangs: {self.network.gave_up}")
        for sim in self.network.ranks:
            if sim.error is not None and not isinstance(sim.error, CutOffError):
                self.wrong.append(f"rank {sim.rank}: {sim.trace}")
        return self.wrong

    def main(self, wire: SimWire) -> str:
        crew = Crew(wire, self.network.hosts)
        crew.begin_call(TIMING)
        while wire.now() < self.until:
            if not crew.is_member:
                return "excluded"
            try:
                self.see(crew)
                if crew.is_server:
                    self.serve(crew)
                else:
                    self.work(crew)
            except Deposed:
                pass
            except NobodyLeft:
                return "alone"
        return "over"

    def see(self, crew: Crew) -> None:
        view = crew.view
        known = self.views.setdefault(view.key, view)
        self.claim(known == view, f"two views of one key: {known}, {view}")
        self.claim(crew.promised >= view.reign, f"rank {crew.rank} follows {view}, promised {crew.promised}")
        if view.reign > 0 and view.revision == 0:
            mine, servers = self.bases[crew.rank], self.bases[view.server]
            is_new = servers.reign < view.reign  # it has not told anything yet
            self.claim(
                not is_new or mine <= servers, f"rank {crew.rank} has {mine}, the new server {servers}"
            )
            self.claim(mine.is_some == servers.is_some, f"{mine} and {servers} are both in {view}")

    def serve(self, crew: Crew) -> None:
        serving = _Hollow(crew, SharedTable(np.zeros(1), np.zeros(1, np.int64)), Policy())
        try:
            while crew.wire.now() < self.until:
                now = serving.wake()
                serving.receive()
                serving.look_around(now)
                # What it tells is new to the others as soon as they hear it.
                self.bases[crew.rank] = Base(crew.view.reign, serving.progress)
                crew.wire.sleep(1e-3)
        finally:
            serving.close(0.0)

    def work(self, crew: Crew) -> None:
        view, wire = crew.view, crew.wire
        follower = _Follower(self, crew)
        follower.follow(FIRST_ADMISSION)
        try:
            while wire.now() < self.until:
                now = follower.wake()
                while (message := follower.channel.poll()) is not None:
                    kind, parts = decode(message)
                    follower.take_in_common(kind, parts)
                    # Nothing of it counts once somebody newer has been promised.
                    self.bases[crew.rank] = max(self.bases[crew.rank], Base(view.reign, int(parts[0][0])))
                    self.followed += 1
                follower.look_around(now)
                wire.sleep(1e-3)
        except ServerLost:
            follower.channel.close()
            Election(crew, self.bases[crew.rank]).run()
        finally:
            follower.channel.close()


class _Follower(Working):
    """A worker that does nothing but listen."""

    def __init__(self, story: Elections, crew: Crew) -> None:
        super().__init__(crew)
        self._story = story

    @property
    def base(self) -> Base:
        return self._story.bases[self.crew.rank]


# Whole calls of train.


class _Source:
    """What a run needs of an environment that nobody steps."""

    simulator = None
    n_actions = 1
    n_states = ENTRIES
    name = "made-up"

    def close(self) -> None:
        pass


@dataclass
class _Made:
    """Who learned an update, and as which life of it: a rank that begins anew has another."""

    rank: int
    life: int
    time: float
    reign: int


class _Learner:
    """Learns each update at an entry of its own, and besides at one of a few that all share."""

    quantum = 1

    def __init__(self, story: Calls, wire: SimWire, table: LocalTable) -> None:
        self.totals = EpisodeTotals()
        self._story = story
        self._wire = wire
        self._table = table

    def prepare(self) -> None:
        pass

    def close(self) -> None:
        pass

    def learn(self, stream: Stream, steps: int) -> None:
        story, rank = self._story, self._wire.rank
        self._wire.work(story.seconds_of(steps))
        for _ in range(steps):
            entry = story.next_entry(rank)
            self._touch(entry, 1.0 + entry, 0.5)
            self._touch(stream.used % SHARED, 1.0, 0.1)
            stream.used += 1
        self.totals.values += steps

    def _touch(self, entry: int, target: float, step_size: float) -> None:
        table = self._table
        if table.updates[entry] == 0:
            table.touched[table.n_touched[0]] = entry
            table.n_touched[0] += 1
        table.updates[entry] += 1
        q_learning.update_entry(
            table.q, table.best, table.greedy, table.weight, table.shift, entry, entry, 1, target, step_size
        )


class _Run(Run):
    """A call of train with that learner."""

    story: Calls
    wire: SimWire

    def learner(self, source: Any, table: LocalTable, rates: Rates, number: int) -> Any:
        return _Learner(self.story, self.wire, table)


class _Part(AsyncPart):
    """A rank's part, watched."""

    def begin_anew(self, *arguments: Any) -> None:
        super().begin_anew(*arguments)
        self.run.story.begins_anew(self.crew)

    def serve(self) -> TrainingResult:
        self.run.story.serves(self.crew)
        return super().serve()


def _is_cut_off(error: BaseException) -> bool:
    """Whether a rank has found that it cannot go on without the others."""
    if isinstance(error, RemoteRankError):
        return "CutOffError" in str(error)
    return isinstance(error, (CutOffError, RankLostError))


class Calls(Story):
    """One or two calls of train, with everything but MPI, learning and checkpoints as it is."""

    def __init__(self, seed: int, log: bool = False) -> None:
        rng = random.Random(f"calls {seed}")
        size = rng.choice([2, 3, 3, 4, 5, 6])
        hosts = random_hosts(rng, size)
        super().__init__(SimNetwork(size, seed, random_conditions(rng), hosts))
        if log:
            self.network.log = []
        self.calls = rng.choice([1, 1, 1, 2])
        self.steps = rng.choice([200, 400, 800])
        self.step_seconds = rng.choice([1e-3, 4e-3])
        self.settings = Settings(
            sync_frequency=rng.choice([1, 5, 20]),
            batch_size=1,
            prefetch_factor=rng.choice([1, 2, 4]),
            compression_threshold=rng.choice([0.0, 0.0, 2.0]),
        )
        self._rng = random.Random(f"learners {seed}")
        plan_faults(
            self.network,
            rng,
            self.calls * (self.steps * self.step_seconds / max(size - 1, 1) + 0.5),
            [Kind.PUSH, Kind.REPLY, Kind.DONE, Kind.BYE, Kind.RELEASE, Kind.VIEW, Kind.PREPARE, Kind.PROMISE,
             Kind.HAND_IN, Kind.JOIN, Kind.WELCOME, Kind.BEAT],
        )  # fmt: skip
        self.made: dict[int, _Made] = {}
        self.lives = [0] * size
        self.servers: dict[int, int] = {}
        self.runs: list[dict[int, tuple[_Run, TrainingResult]]] = [{} for _ in range(self.calls)]

    def seconds_of(self, steps: int) -> float:
        """Return how long so many steps take."""
        rng = self._rng
        seconds = steps * self.step_seconds * (0.5 + rng.random())
        return seconds + (rng.random() * 0.8 * SILENCE if rng.random() < 0.002 else 0.0)

    def next_entry(self, rank: int) -> int:
        """Return an entry that no update was learned at."""
        entry = SHARED + len(self.made)
        self.made[entry] = _Made(rank, self.lives[rank], self.network.now, 0)
        return entry

    def begins_anew(self, crew: Crew) -> None:
        """Note that a rank's last life is over: what it made in it may be gone."""
        self.lives[crew.rank] += 1

    def serves(self, crew: Crew) -> None:
        """Note who serves."""
        server = self.servers.setdefault(crew.view.reign, crew.rank)
        self.claim(server == crew.rank, f"ranks {server} and {crew.rank} both serve reign {crew.view.reign}")

    def main(self, wire: SimWire) -> str:
        crew = Crew(wire, self.network.hosts)
        values, counts = np.zeros(ENTRIES), np.zeros(ENTRIES, np.int64)
        for call in range(self.calls):
            crew.begin_call(TIMING)
            run = _Run(self.settings, _Source(), values, counts, call * self.steps, self.steps, 1, None, 1.0)  # type: ignore[arg-type]
            run.story, run.wire = self, wire
            run.policy, run.told, run.take_over_saving = Policy(), {}, None
            run.wants_to_leave = lambda: None
            part = _Part(run, crew, Rates(self.settings, max(1, len(crew.view.workers))))
            if not crew.is_server:
                part.prepare_worker(Base(crew.view.reign, 0) if crew.is_member else Base())
            clean = False
            try:
                result = take_part(part)
                clean = True
            except (CutOffError, RankLostError) as error:
                part.fail(error)
                raise
            finally:
                part.close(1.0 if clean else 0.0)
                crew.end_call(1.0 if clean else 0.0)
            self.runs[call][wire.rank] = run, result
        return "done"

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        with simulated_time(self.network):
            self.network.run(self.main, 40.0 * SILENCE)
        if self.network.gave_up:
            self.wrong.append(f"hangs: {self.network.gave_up}")
        for sim in self.network.ranks:
            if sim.error is not None and (self.must_end_well or not _is_cut_off(sim.error)):
                self.wrong.append(f"rank {sim.rank}: {sim.trace}")
        if not self.wrong:
            self._check_results()
        return self.wrong

    @property
    def must_end_well(self) -> bool:
        """Whether each rank that lives has to come to the end: MPI tells of all deaths, and of no other."""
        network = self.network
        return (
            network.conditions.has_word
            and network.conditions.longest < SILENCE
            and len(set(network.hosts)) == 1
            and not any(sim.was_stopped for sim in network.ranks)
        )

    def _check_results(self) -> None:
        for number, runs in enumerate(self.runs):
            if not runs:
                continue
            rank, (run, result) = min(runs.items())
            for other, (its_run, its_result) in runs.items():
                same = np.array_equal(run.values, its_run.values) and np.array_equal(
                    run.counts, its_run.counts
                )
                # Tables are the ranks' own, and go on in the next call.
                self.claim(same or number + 1 < self.calls, f"ranks {rank} and {other} have different tables")
                self.claim(result.steps == its_result.steps, f"{result.steps} and {its_result.steps} steps")
            self.claim(result.steps == self.steps, f"{result.steps} steps, not {self.steps}")
            self.claim(result.episodes == self.steps, f"{result.episodes} episodes in {self.steps} steps")
        if self.runs[-1]:
            rank, (run, _) = min(self.runs[-1].items())
            self._check_table(run.values, run.counts)

    def _check_table(self, values: np.ndarray, counts: np.ndarray) -> None:
        steps = self.calls * self.steps
        own, entries = counts[SHARED:], np.arange(SHARED, ENTRIES)
        self.claim(int(own.sum()) == steps, f"{own.sum()} updates in the table, not {steps}")
        shared = int(counts[:SHARED].sum())
        # Small maps wait for others, and go down with their rank, though their steps were counted.
        may_lack = self.settings.compression_threshold > 0.0 and bool(self.network.faults or any(self.lives))
        self.claim(
            shared == steps or (may_lack and shared < steps), f"{shared} updates at the shared entries"
        )
        self.claim(
            int(own.max()) <= 1, f"entries {entries[own > 1][:5]} were learned once and applied more often"
        )
        right = np.where(own == 1, 0.5 * (1.0 + entries), 0.0)
        self.claim(
            np.allclose(values[SHARED:], right), f"entries {entries[values[SHARED:] != right][:5]} are wrong"
        )
        for entry, made in self.made.items():
            sim = self.network.ranks[made.rank]
            survived = sim.is_alive and sim.error is None and self.lives[made.rank] == made.life
            if survived and counts[entry] == 0:
                self.claim(False, f"entry {entry} of rank {made.rank}, which survived, is missing: {made}")
                break


HISTORIES: dict[str, type] = {"elections": Elections, "calls": Calls}


def check_seeds(name: str, seeds: Sequence[int]) -> tuple[int, list[str], Counter[str]]:
    """Let histories happen, up to the first with something wrong.

    Return its seed, or -1, what was wrong, and how many ranks ended how.
    """
    logging.disable(logging.CRITICAL)
    ends: Counter[str] = Counter()
    try:
        for seed in seeds:
            history = HISTORIES[name](seed)
            wrong = history.check()
            ends.update(history.ends())
            if wrong:
                return seed, wrong, ends
    finally:
        logging.disable(logging.NOTSET)
    return -1, [], ends


def tell(name: str, seed: int) -> list[str]:
    """Print all that happens in one history. Return what was wrong."""
    logging.disable(logging.CRITICAL)
    history = HISTORIES[name](seed, log=True)
    wrong = history.check()
    print("\n".join(history.network.log))
    for sim, end in zip(history.network.ranks, history.ends(), strict=True):
        print(f"rank {sim.rank}: {sim.trace or end}")
    print("\n".join(wrong) or "all is well")
    return wrong


def main() -> None:
    """Run many histories, or tell one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=None, help="of the first; a fresh one by default")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=sorted(HISTORIES), default=sorted(HISTORIES))
    parser.add_argument("--tell", type=int, default=None, metavar="SEED", help="tell one history of one kind")
    options = parser.parse_args()
    if options.tell is not None:
        sys.exit(bool(tell(options.kinds[0], options.tell)))
    first = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    for name in options.kinds:
        begin = time.monotonic()
        chunks = [
            range(n, min(n + 20, first + options.histories))
            for n in range(first, first + options.histories, 20)
        ]
        ends: Counter[str] = Counter()
        done = 0
        with ProcessPoolExecutor(options.processes) as pool:
            for chunk, (seed, wrong, its_ends) in zip(
                chunks, pool.map(check_seeds, itertools.repeat(name), chunks), strict=True
            ):
                ends.update(its_ends)
                if wrong:
                    pool.shutdown(wait=False, cancel_futures=True)
                    print(f"{name}, seed {seed}:", *wrong, sep="\n  ")
                    print(f"Tell it with: python tests/faults/simulated.py --kinds {name} --tell {seed}")
                    sys.exit(1)
                done += len(chunk)
                if done % 1000 < len(chunk):
                    print(f"{name}: {done} histories, {time.monotonic() - begin:.0f} s", flush=True)
        told = ", ".join(f"{end}: {count}" for end, count in ends.most_common())
        print(f"{name}: {done} histories from seed {first} on, nothing wrong. Ranks: {told}", flush=True)


if __name__ == "__main__":
    main()
