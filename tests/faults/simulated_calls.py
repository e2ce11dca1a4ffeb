"""Histories of elections, and of calls of train in all ways of learning together: see `simulated`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from simulated_network import Conditions, Plan, SimNetwork, SimWire, simulated_time

from dist_classicrl._steps import next_multiple
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import decode
from dist_classicrl.compression import Carry, Quantized, TopK
from dist_classicrl.engines import schedule
from dist_classicrl.engines.engine import engine_for
from dist_classicrl.engines.outcome import Outcome, Tally
from dist_classicrl.engines.progress import Observer, Progress, Reporter
from dist_classicrl.engines.roles import cores, participants, server_base
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.roles.server_base import NobodyLeft, Serving
from dist_classicrl.engines.roles.worker_base import ServerLost, Working
from dist_classicrl.engines.run import LossPolicy, Resumed, Run
from dist_classicrl.engines.saving import Position
from dist_classicrl.engines.schedule import Pace, RoundPlayer, next_quotas
from dist_classicrl.engines.supersteps import part as superstep_part
from dist_classicrl.engines.supersteps import server as superstep_server
from dist_classicrl.engines.supersteps import training as superstep_training
from dist_classicrl.engines.supersteps.who_plays import WhoPlays
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import CutOffError, RankLostError, RankTimeoutError, RemoteRankError
from dist_classicrl.learning.learner import Stream, Totals
from dist_classicrl.learning.rates import Rates
from dist_classicrl.membership.admission import FIRST_ADMISSION, join
from dist_classicrl.membership.election import Base, Deposed, Election
from dist_classicrl.membership.group import Group, Timing
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.membership.heartbeat import Beat
from dist_classicrl.membership.view import View
from dist_classicrl.settings import Settings
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.round_merge import RoundMerge
from dist_classicrl.tables.rows import ROW_FUNCTIONS, TableArrays
from dist_classicrl.tables.shared import SharedTable

INTERVAL, SILENCE, STUCK = 0.2, 1.0, 12.0
EVENT_STEPS = 37
ENTRIES, SHARED = 4096, 8
_LAKE_ENTRIES = 16 * 4

SETUP_SECONDS, LINGER = 8.0, 1.0
LONGEST_STEP = 0.25 * SILENCE
TIMING = Timing(INTERVAL, SILENCE, STUCK)


@contextmanager
def _short_rounds() -> Iterator[None]:
    """Let the length of rounds change often in runs of hundreds of steps."""
    with mock.patch.multiple(schedule, ROUND_UPDATES=3, LONGEST_SHARE=2, MOVING_LOAD=3.0):
        yield


def random_conditions(rng: random.Random) -> Conditions:
    """Return how the network of one history behaves."""
    return Conditions(
        delay=rng.choice([1e-4, 1e-3, 1e-2, 3e-2]),
        tail=rng.choice([0.0, 0.01, 0.1]),
        longest=rng.choice([0.1, 0.3, 0.5, 2.0]) * SILENCE,
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
            stop = 0.0 if rng.random() < 0.7 else rng.choice([0.3, 1.2, 3.0]) * SILENCE * (0.5 + rng.random())
            network.ranks[rank].plan = Plan(kind, count, rng.random() < 0.5, stop)
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


class _Hollow(Serving[None]):
    """A server that has nothing to serve: its table's version grows by itself."""

    can_rescue = False
    learning = 0
    position = Position(0, {}, "async")

    def run(self) -> None:
        pass

    def take_in(self, peer: Peer[None], message: np.ndarray) -> None:
        self.take_in_common(peer, decode(message))

    def new_client(self, is_first: bool) -> None:
        pass

    def has_lost(self, rank: int) -> int:
        return 0

    def has_admitted(self, rank: int) -> None:
        pass

    def has_made(self, alone: Any) -> None:
        pass


class Elections(Story):
    """Ranks that follow a server and find a new one again and again."""

    name = "elections"

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
        group = Group(wire, list(map(str, self.network.hosts)))
        group.begin_call(TIMING)
        while wire.now() < self.until:
            if not group.is_member:
                return "excluded"
            try:
                self.see(group)
                if group.is_server:
                    self.serve(group)
                else:
                    self.work(group)
            except Deposed:
                pass
            except NobodyLeft:
                return "alone"
        return "over"

    def see(self, group: Group) -> None:
        view = group.view
        known = self.views.setdefault(view.key, view)
        self.claim(known == view, f"two views of one key: {known}, {view}")
        self.claim(
            group.promised >= view.term, f"rank {group.rank} follows {view}, promised {group.promised}"
        )
        if view.term > 0 and view.revision == 0:
            mine, servers = self.bases[group.rank], self.bases[view.server]
            is_new = servers.term < view.term  # it has not told anything yet
            self.claim(
                not is_new or mine <= servers, f"rank {group.rank} has {mine}, the new server {servers}"
            )
            same = mine.is_some == servers.is_some
            self.claim(not is_new or same, f"{mine} and {servers} are both in {view}")

    def serve(self, group: Group) -> None:
        table, tally = SharedTable(np.zeros(1), np.zeros(1, np.int64)), Tally(total_steps=0)
        serving = _Hollow(group, table, LossPolicy(), tally, Reporter(tally))
        try:
            while group.wire.now() < self.until:
                now = serving.wake()
                serving.receive()
                serving.look_around(now)
                # What it tells is new to the others as soon as they hear it.
                self.bases[group.rank] = Base(group.view.term, serving.progress)
                group.wire.sleep(1e-3)
        finally:
            serving.close(0.0)

    def work(self, group: Group) -> None:
        view, wire = group.view, group.wire
        follower = _Follower(self, group)
        follower.follow(FIRST_ADMISSION)
        try:
            while wire.now() < self.until:
                now = follower.wake()
                while (message := follower.channel.poll()) is not None:
                    beat: Beat = decode(message)
                    follower.take_in_common(beat)
                    # Nothing of it counts once somebody newer has been promised.
                    base = Base(view.term, beat.progress)
                    self.bases[group.rank] = max(self.bases[group.rank], base)
                    self.followed += 1
                follower.look_around(now)
                wire.sleep(1e-3)
        except ServerLost:
            follower.channel.close()
            Election(group, self.bases[group.rank]).run()
        finally:
            follower.channel.close()


class _Follower(Working):
    """A worker that does nothing but listen."""

    def __init__(self, story: Elections, group: Group) -> None:
        super().__init__(group)
        self._story = story

    @property
    def base(self) -> Base:
        return self._story.bases[self.group.rank]

    def run(self) -> None:
        pass

    def begin_anew(self, channel: Any, sequence: int) -> None:
        self.follow_on(channel)


# Whole calls of train.


class _Source:
    """What a run needs of an environment that nobody steps."""

    n_actions = 1
    n_states = ENTRIES
    name = "made-up"
    stepped = SimpleNamespace(n_envs=16)
    make_another = None

    def __init__(self, story: Calls, wire: SimWire) -> None:
        self.simulator: Any = None
        self.story = story
        self.wire = wire

    def close(self) -> None:
        pass


@dataclass
class _Made:
    """Who learned an update, and as which life of it: a rank that begins anew has another."""

    rank: int
    life: int
    time: float


class _Table(LocalTable):
    """A worker's table that takes its time to move to a new base, so that not each reply brings one."""

    def __init__(self, story: Calls, wire: SimWire | None, dtype: np.dtype) -> None:
        super().__init__(ENTRIES, 1, dtype)
        self._story = story
        self._wire = wire

    def rebase(self, *arguments: Any) -> None:
        if self._story.rebase_seconds and self._wire is not None:
            self._wire.work(self._story.rebase_seconds)
        super().rebase(*arguments)

    def touch(self, entry: int, target: float, step_size: float) -> None:
        """Learn something."""
        if self.updates[entry] == 0:
            self.touched[self.n_touched[0]] = entry
            self.n_touched[0] += 1
        self.updates[entry] += 1
        ROW_FUNCTIONS[TableArrays].learn_target(self.arrays, entry, 0, target, step_size)


class _Learner:
    """Learns each update at an entry of its own, and besides at one of a few that all share."""

    quantum = 1

    def __init__(self, story: Calls, wire: SimWire | None, dtype: np.dtype) -> None:
        self.table = _Table(story, wire, dtype)
        self.totals = Totals()
        self.walkers: list[int] = []
        self._story = story
        self._wire = wire

    def add(self, number: int, *_: Any) -> None:
        if number not in self.walkers:
            self.walkers.append(number)

    def close(self) -> None:
        pass

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        if self._wire is not None:
            self._wire.work(self._story.seconds_of(steps))
        for _ in range(steps):
            self._learn_step(walker, stream)
            stream.used += 1
        self.totals.values += steps

    def _learn_step(self, walker: int, stream: Stream) -> None:
        entry = self._story.next_entry(self._wire.rank)
        self.table.touch(entry, 1.0 + entry, 0.5)
        self.table.touch(stream.used % SHARED, 1.0, 0.1)


class _ChainedLearner(_Learner):
    """Learns each update at the entry of its step; it follows from all that its walker learned before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._chains: dict[int, float] = {}

    def add(self, number: int, *_: Any) -> None:
        super().add(number)
        self._chains[number] = 1.0

    def _learn_step(self, walker: int, stream: Stream) -> None:
        table, step = self.table, stream.start + stream.used
        shared = step % SHARED
        chain = math.fmod(1.7 * self._chains[walker] + table.q[shared] + 0.1 * step, 10.0)
        self._chains[walker] = chain
        table.touch(SHARED + step, chain, 0.5)
        table.touch(shared, chain, 0.1)

    def state(self, walker: int) -> dict[str, np.ndarray]:
        return {"running": np.array([self._chains[walker]])}

    def restore(self, walker: int, state: dict[str, np.ndarray]) -> None:
        self._chains[walker] = float(state["running"][0])


class _Run(Run):
    """A call of train with such learners."""

    def __post_init__(self) -> None:
        self.story, self.wire = self.source.story, self.source.wire
        self.source.simulator = None
        super().__post_init__()
        self.pace = replace(self.pace, may_grow=self.settings.sync_frequency == "auto")
        # In the reproducible mode rounds can be played again only where an environment is compiled.
        self.source.simulator = None if self.settings.async_updates else "compiled"

    def learner(self, rates: Rates, n_states: int | None = None) -> Any:
        kind = _Learner if self.logical is None else _ChainedLearner
        return kind(self.story, self.wire, self.values.dtype)

    def compile(self, *_: Any) -> None:
        """Take the time that compilation takes."""
        self.wire.work(self.story.seconds_of(20))


class _LakeRun(Run):
    """A call of train that learns a small lake, with kernels as they are."""

    story: Calls


@dataclass
class _Records:
    """What callbacks that record a call of train on disk have there in the end, whichever ranks served."""

    begin: int = 0  # steps that an earlier job has made
    term: int = -1
    reports: list[tuple[int, int]] = field(default_factory=list)  # steps and episodes of each
    tables: list[int] = field(default_factory=list)  # steps in the table after each push


class _Recording(Observer):
    """What a rank that serves adds to them, as long as nobody has taken its place."""

    wants_pushes = True

    def __init__(self, records: _Records, group: Group) -> None:
        self._records, self._group = records, group
        self._steps = 0

    def next_step(self, steps: int, total_steps: int) -> float:
        """Ask for a report every so many steps."""
        return next_multiple(steps, EVENT_STEPS)

    def started(self, progress: Progress, reported: int) -> None:
        """Go on from the server's table: what was recorded of later ones is lost."""
        records, self._steps = self._records, progress.steps
        if self._group.view.term >= records.term:
            records.term = self._group.view.term
            records.reports = [report for report in records.reports if report[0] <= reported]
            records.tables = [*(steps for steps in records.tables if steps <= reported), self._steps]

    def reported(self, progress: Progress) -> bool:
        """Enter a report."""
        if self._group.view.term == self._records.term:
            self._records.reports.append((progress.steps, progress.episodes))
        return True

    def pushed(self, rank: int, steps: int, staleness: int, n_bytes: int) -> None:
        """Enter what is in the table now."""
        self._group.wire.network.gets_on()
        self._steps += steps
        if self._group.view.term == self._records.term:
            self._records.tables.append(self._steps)


class _Watched(participants.Participant):
    """A rank's part, of which something is noted."""

    def begin_anew(self, entry: Any) -> None:
        self.run.story.begins_anew(self.group)
        super().begin_anew(entry)

    def serve(self) -> Outcome:
        self.run.story.serves(self.group)
        return super().serve()


class _Unsettled:
    """What stands in for the setup where only silence says who has died: there, a death ends it.

    So does a cut, and without a setup each side would begin by itself what it took for the next call.
    """

    def __init__(self, group: Group) -> None:
        self.is_head, self.rank = group.is_server, group.rank
        self.term, self.members, self.head = group.view.term, group.view.members, group.view.server
        network, server = group.wire.network, group.view.server
        if any(network.is_cut(server, rank) for rank in group.view.members):
            raise CutOffError("There is no setup over a network that is cut.")

    def agree(
        self, error: BaseException | None, description: dict[str, Any], numbers: list[int]
    ) -> np.ndarray:
        if error is not None:
            raise error
        return np.array([numbers] * len(self.members), np.int64)  # alike in all of them here

    def broadcast(self, array: np.ndarray, what: str) -> None:
        pass

    def compile_together(self, parts: Sequence[Callable[[], None]]) -> None:
        for part in parts:
            part()

    def close(self, linger: float) -> None:
        pass


def _is_cut_off(error: BaseException) -> bool:
    """Whether a rank has found that it cannot go on without the others."""
    if isinstance(error, RemoteRankError):
        return any(name in str(error) for name in ("CutOffError", "RankTimeoutError", "RankLostError"))
    return isinstance(error, (CutOffError, RankLostError, RankTimeoutError))


def with_compression(settings: Settings, rng: random.Random) -> Settings:
    """Return the settings of asynchronous training, in half of all histories with some compression."""
    if not settings.async_updates or rng.random() < 0.5:
        return settings
    if settings.topology == "decentralized":
        return replace(settings, compression="delta")
    kinds = ["delta", Quantized(8), Quantized(16)]
    if settings.compression_threshold == 0.0:
        kinds += [TopK(0.1), TopK(0.5)]
    return replace(settings, compression=rng.choice(kinds))


def with_staleness(settings: Settings, rng: random.Random) -> Settings:
    """Return the settings of training with a server, in half of all histories with bounds for stale workers.

    What others learned of an entry of one's own is nothing, so both ways to merge leave the same there.
    """
    has_versions = settings.async_updates and settings.topology != "decentralized"
    if not has_versions or rng.random() < 0.5:
        return settings
    most = rng.choice([None, 0, 1, 3, 10])
    return replace(settings, max_staleness=most, merging=rng.choice(["affine", "order_free"]))


class Calls(Story):
    """One or two calls of train, with everything but MPI, learning and checkpoints as it is.

    The first may go on from where an earlier job has left it.
    """

    name = "calls"
    kinds = (
        Kind.PUSH, Kind.REPLY, Kind.DONE, Kind.BYE, Kind.RELEASE, Kind.VIEW, Kind.PREPARE, Kind.PROMISE,
        Kind.HAND_IN, Kind.JOIN, Kind.WELCOME, Kind.BEAT, Kind.GATHER, Kind.TOLD,
    )  # fmt: skip
    sizes: tuple[int, ...] = (2, 3, 3, 4, 5, 6)
    placement = "auto"
    first = 0  # global step at which the first call begins

    def __init__(self, seed: int, log: bool = False) -> None:
        rng = random.Random(f"{self.name} {seed}")
        size = rng.choice(self.sizes)
        hosts = random_hosts(rng, size)
        super().__init__(SimNetwork(size, seed, random_conditions(rng), hosts))
        if log:
            self.network.log = []
        self.calls = rng.choice([1, 1, 1, 2])
        self.steps = rng.choice([200, 400, 800])
        self.step_seconds = rng.choice([1e-3, 4e-3])
        self.rebase_seconds = rng.choice([0.0, 1e-3, 2e-2])
        self.settings = self.with_more(self.random_settings(rng), seed)
        self.policy = LossPolicy()
        self.earlier = self.random_earlier(random.Random(f"earlier {seed}"))
        #: Of each host: where ranks wait for each other, no more of them learn.
        self.cores = random.Random(f"cores {seed}").choice([1, 2, 64])
        self._rng = random.Random(f"learners {seed}")
        until = self.calls * (self.steps * self.step_seconds / max(size - 1, 1) + 0.5)
        self.plan(rng, until)
        self.made: dict[int, _Made] = {}
        self.lives = [0] * size
        self.servers: dict[int, int] = {}
        self.at_first: dict[int, tuple[int, ...]] = {}  # by number of the call: who was in it as it began
        self.runs: list[dict[int, tuple[Run, Outcome]]] = [{} for _ in range(self.calls)]
        self.records = [_Records(0 if call else self.earlier) for call in range(self.calls)]

    def random_settings(self, rng: random.Random) -> Settings:
        """Return those that the protocol depends on."""
        return Settings(
            sync_frequency=rng.choice([1, 5, 20]),
            batch_size=1,
            prefetch_factor=rng.choice([1, 2, 4]),
            compression_threshold=rng.choice([0.0, 0.0, 2.0]),
        )

    def with_more(self, settings: Settings, seed: int) -> Settings:
        """Return them with more, where there is a choice."""
        settings = with_compression(settings, random.Random(f"compression {seed}"))
        return with_staleness(settings, random.Random(f"staleness {seed}"))

    def random_earlier(self, rng: random.Random) -> int:
        """Return how many steps of the first call an earlier job has made."""
        return rng.choice([0, 1, rng.randrange(self.steps // 2)])

    def plan(self, rng: random.Random, until: float) -> None:
        """Let things go wrong up to a time."""
        plan_faults(self.network, rng, until, self.kinds)

    def beginning(self) -> tuple[np.ndarray, np.ndarray, dict[int, dict[str, np.ndarray]]]:
        """Return the table with the steps that an earlier job has made, and its learners' state."""
        values, counts = np.zeros(ENTRIES), np.zeros(ENTRIES, np.int64)
        steps = np.arange(self.earlier)
        values[SHARED + steps], counts[SHARED + steps] = 0.5 * (1.0 + SHARED + steps), 1
        np.add.at(counts, steps % SHARED, 1)
        return values, counts, {}

    def resumed(self) -> Resumed | None:
        """Return what the checkpoint of the earlier job says of the first call."""
        if not self.earlier:
            return None
        tally = Tally(total_steps=0)
        tally.steps = tally.episodes = self.earlier
        tally.reported = tally.copy()
        mode = "async" if self.settings.async_updates else "rounds"
        return Resumed("earlier", self.earlier, tally.to_dict(1.0), mode, learners=self.beginning()[2])

    def seconds_of(self, steps: int) -> float:
        """Return how long so many steps take."""
        rng = self._rng
        seconds = steps * self.step_seconds * (0.5 + rng.random())
        return seconds + (rng.random() * LONGEST_STEP if rng.random() < 0.002 else 0.0)

    def next_entry(self, rank: int) -> int:
        """Return an entry that no update was learned at."""
        entry = SHARED + self.earlier + len(self.made)
        self.made[entry] = _Made(rank, self.lives[rank], self.network.now)
        self.network.gets_on()
        return entry

    def run_of(self, group: Group, *begin: Any, **more: Any) -> Run:
        """Return what a rank trains."""
        source: Any = _Source(self, group.wire)
        return _Run(self.settings, source, *begin, **more)

    def begins_anew(self, group: Group) -> None:
        """Note that a rank's last life is over: what it made in it may be gone."""
        self.lives[group.rank] += 1

    def serves(self, group: Group) -> None:
        """Note who serves."""
        server = self.servers.setdefault(group.view.term, group.rank)
        self.claim(server == group.rank, f"ranks {server} and {group.rank} both serve term {group.view.term}")
        # Who was lost before may take itself for the server of this call, and comes to it late.
        is_newest = group.view.term == max(self.servers)
        if is_newest and not any(event["kind"] == "failover" for event in group.events.entries):
            self.at_first[group.call - 1] = group.view.members

    def main(self, wire: SimWire) -> str:
        group = Group(wire, list(map(str, self.network.hosts)))
        values, counts, _ = self.beginning()
        for call in range(self.calls):
            group.begin_call(TIMING)
            clean = False
            try:
                run, result = self._train(group, call, values, counts)
                clean = True
            finally:
                group.end_call(LINGER if clean else 0.0)
            values, counts = self.table_of(run)
            self.runs[call][wire.rank] = run, result
        return "done"

    def _train(self, group: Group, call: int, values: np.ndarray, counts: np.ndarray) -> tuple[Run, Outcome]:
        """Do what `train` does on each of many ranks."""
        engine = engine_for(self.settings, group.wire.size, self.placement)
        made, resumed = (self.earlier, self.resumed()) if call == 0 else (0, None)
        span = self.first + call * self.steps + made, self.steps - made
        while True:
            observer = _Recording(self.records[call], group)
            begin = values.copy(), counts.copy(), *span, 1, observer, 1.0
            run = self.run_of(group, *begin, resumed=resumed, policy=self.policy)
            try:
                if not group.is_member:
                    entry = join(group)
                    run.told = dict(entry.told)  # as `Session` does
                    return run, engine.train(run, group, entry)
                setup = Setup(group, SETUP_SECONDS) if self.network.conditions.has_word else _Unsettled(group)
                try:
                    setup.agree(None, {}, [call])
                    setup.broadcast(run.values, "the values")
                    setup.broadcast(run.counts, "the counts")
                    return run, engine.train(run, group, setup)
                finally:
                    setup.close(LINGER)
            except Deposed:
                continue

    @_short_rounds()
    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        with (
            simulated_time(self.network),
            mock.patch.object(participants, "Participant", _Watched),
            mock.patch.object(cores, "bound_cores", lambda: list(range(self.cores))),
            mock.patch.object(cores, "core_quota", lambda: None),
        ):
            self.network.run(self.main, 120.0 * SILENCE)
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
        """Whether each rank that lives has to come to the end: nobody can seem to be lost who is not."""
        network, dead = self.network, sum(sim.died is not None for sim in self.network.ranks)
        if (
            network.conditions.longest + LONGEST_STEP > 0.6 * SILENCE
            or network.was_cut
            or any(sim.was_stopped for sim in network.ranks)
        ):
            return False
        return 2 * dead < network.size or (network.conditions.has_word and len(set(network.hosts)) == 1)

    def _check_results(self) -> None:
        for number, runs in enumerate(self.runs):
            if not runs:
                continue
            rank, (run, result) = min(runs.items())
            for other, (its_run, its_result) in runs.items():
                same = all(map(np.array_equal, self.table_of(run), self.table_of(its_run)))
                # Tables are the ranks' own, and go on in the next call.
                may_differ = number + 1 < self.calls or not self.tables_must_agree
                self.claim(same or may_differ, f"ranks {rank} and {other} have different tables")
                self.claim(result.steps == its_result.steps, f"{result.steps} and {its_result.steps} steps")
            self.claim(result.steps == self.steps, f"{result.steps} steps, not {self.steps}")
            self._check_events(result, self.at_first.get(number, ()))
            right = self.episodes_of(number)
            self.claim(result.episodes == right, f"{result.episodes} episodes in {self.steps} steps")
            self._check_records(self.records[number], right)
        if self.runs[-1]:
            rank, (run, _) = min(self.runs[-1].items())
            self._check_table(*self.table_of(run))

    def _check_events(self, result: Outcome, at_first: tuple[int, ...]) -> None:
        """Whether there is one event of each loss, or of leaving, whoever was to tell it and was lost."""
        lost: set[int] = set()
        for event in result.events:
            kind, rank = event["kind"], event["rank"]
            if kind == "excluded":
                self.claim(rank not in lost, f"rank {rank} is lost twice: {result.events}")
                lost.add(rank)
            elif kind == "left":
                lost.add(rank)
            elif kind == "readmitted":
                lost.discard(rank)
        untold = set(result.lost_workers).intersection(at_first) - lost
        self.claim(not untold, f"the loss of {untold} is told nowhere: {result.events}")

    def table_of(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return values and visits that a rank has in the end, flat."""
        return run.values, run.counts

    @property
    def tables_must_agree(self) -> bool:
        """Whether all ranks have to have the same table in the end."""
        return True

    def tables_of(self, records: _Records) -> list[int]:
        """Return the steps in each table of a call of which there could be a report."""
        return records.tables

    def episodes_of(self, call: int) -> int:
        """Return how many episodes end in a call."""
        return self.steps

    def _check_records(self, records: _Records, episodes_of_all: int) -> None:
        """Whether there is a report at each step that was asked for, and nothing is in two of them."""
        steps = [steps for steps, _ in records.reports]
        episodes = sum(episodes for _, episodes in records.reports)
        new = episodes_of_all - records.begin
        self.claim(episodes == new, f"{episodes} episodes are reported, not {new}")
        self.claim(steps[-1] == self.steps, f"the last report is of {steps[-1]} steps, not {self.steps}")
        for before, after in itertools.pairwise([records.begin, *steps]):
            due = next_multiple(before, EVENT_STEPS)
            first = min((table for table in self.tables_of(records) if table >= due), default=after)
            self.claim(before <= after <= first, f"what was due at step {due} was reported at {after}")

    def _check_table(self, values: np.ndarray, counts: np.ndarray) -> None:
        steps = self.calls * self.steps
        own, entries = counts[SHARED:], np.arange(SHARED, ENTRIES)
        shared = int(counts[:SHARED].sum())
        # What waits for a later push goes down with its rank, though its steps were counted.
        carry = Carry.of(self.settings.compression, self.settings.compression_threshold)
        has_lost = any(self.lives) or any(
            sim.died is not None or sim.error is not None for sim in self.network.ranks
        )
        made, may_lack = int(own.sum()), has_lost and carry.share < 1.0
        self.claim(made == steps or (may_lack and made < steps), f"{made} updates in the table, not {steps}")
        may_lack = has_lost and (carry.threshold > 0.0 or carry.share < 1.0)
        self.claim(
            shared == steps or (may_lack and shared < steps), f"{shared} updates at the shared entries"
        )
        self.claim(
            int(own.max()) <= 1, f"entries {entries[own > 1][:5]} were learned once and applied more often"
        )
        right = np.where(own == 1, 0.5 * (1.0 + entries), 0.0)
        quantum = 2.0 * right.max() / (2 ** (carry.bits - 1) - 1) if carry.bits and has_lost else 0.0
        wrong = ~np.isclose(values[SHARED:], right, atol=max(quantum / 2, 1e-8))
        self.claim(not wrong.any(), f"entries {entries[wrong][:5]} are wrong")
        self._check_kept(counts)

    def _check_kept(self, counts: np.ndarray) -> None:
        """Whether the table has all that ranks have learned that live to the end."""
        for entry, made in self.made.items():
            sim = self.network.ranks[made.rank]
            survived = sim.is_alive and sim.error is None and self.lives[made.rank] == made.life
            if survived and counts[entry] == 0:
                self.claim(False, f"entry {entry} of rank {made.rank}, which survived, is missing: {made}")
                break


@dataclass
class _Undisturbed:
    """What rounds come to that nobody disturbs."""

    table: SharedTable
    learner: _ChainedLearner
    ends: list[int]  # steps of the last call at the end of each round
    pace: Pace


class Rounds(Calls):
    """The same in the reproducible mode: whoever dies, the bits are those of a run in which nobody does."""

    name = "rounds"
    kinds = (
        Kind.ROUND, Kind.MERGED, Kind.DONE, Kind.BYE, Kind.RELEASE, Kind.VIEW, Kind.PREPARE, Kind.PROMISE,
        Kind.JOIN, Kind.WELCOME, Kind.BEAT, Kind.GATHER, Kind.TOLD,
    )  # fmt: skip

    def random_settings(self, rng: random.Random) -> Settings:
        """Return those that the protocol depends on."""
        return Settings(
            sync_frequency=rng.choice(["auto", 5, 20, 50]),
            batch_size=1,
            logical_workers=rng.choice([2, 5, 8]),
            async_updates=False,
            seed=1,
        )

    def tables_of(self, records: _Records) -> list[int]:
        """Return the steps at the end of each round."""
        number = next(i for i, each in enumerate(self.records) if each is records)
        return [0, *self._without_deaths(number + 1).ends]

    def random_earlier(self, rng: random.Random) -> int:
        """Return how many steps an earlier job has made, in whole rounds."""
        ends = [0, *self._without_deaths(1).ends]
        return ends[rng.randrange(len(ends) // 2 + 1)]

    def beginning(self) -> tuple[np.ndarray, np.ndarray, dict[int, dict[str, np.ndarray]]]:
        """Return the table with the steps that an earlier job has made, and its learners' state."""
        table, learner = self._earlier_job.table, self._earlier_job.learner
        states = {number: learner.state(number) for number in learner.walkers}
        return table.values.copy(), table.counts.copy(), states

    @cached_property
    def _earlier_job(self) -> _Undisturbed:
        return self._without_deaths(1, self.earlier)

    def resumed(self) -> Resumed | None:
        """Return what the checkpoint of the earlier job says of the first call."""
        resumed = super().resumed()
        return None if resumed is None else replace(resumed, pace=self._earlier_job.pace.to_dict())

    @_short_rounds()
    def _without_deaths(self, calls: int, until: int | None = None) -> _Undisturbed:
        """Return what a run of so many calls comes to in which nobody dies; the last one up to a step."""
        right = SharedTable(np.zeros(ENTRIES), np.zeros(ENTRIES, np.int64))
        learner = _ChainedLearner(self, None, right.values.dtype)
        merge, player = RoundMerge(right), RoundPlayer(learner)
        for call in range(calls):
            for number in range(self.settings.logical_workers):
                learner.add(number)
            ends: list[int] = []
            pace, made = Pace.first(self.settings, True), 0
            while made < (self.steps if until is None or call + 1 < calls else until):
                start, left = call * self.steps + made, self.steps - made
                quotas = next_quotas(self.settings, pace.updates, start, left, 1)
                version = right.version
                load = merge.merge([player.play(quotas)[0]])
                learner.table.rebase(right.refresh(version), [])
                steps = quotas.total
                pace = pace.after(steps, load, right.values, self.settings)
                made += steps
                ends.append(made)
        return _Undisturbed(right, learner, ends, pace)

    def _check_table(self, values: np.ndarray, counts: np.ndarray) -> None:
        right = self._without_deaths(self.calls).table
        self.claim(np.array_equal(values, right.values), "the values are not those of a run without deaths")
        self.claim(np.array_equal(counts, right.counts), "the counts are not those of a run without deaths")


class Ends(Calls):
    """Calls with few steps left from an earlier job: who has nothing yet has hardly time to join."""

    name = "ends"

    def random_earlier(self, rng: random.Random) -> int:
        """Return how many steps of the first call an earlier job has made."""
        return self.steps - rng.choice([1, 1, 2, 5, 30])


class RoundEnds(Rounds):
    """The same in the reproducible mode."""

    name = "round-ends"

    def random_earlier(self, rng: random.Random) -> int:
        """Return how many steps an earlier job has made: all but the last round or two."""
        ends = [0, *self._without_deaths(1).ends]
        return ends[max(0, len(ends) - 1 - rng.choice([1, 1, 2]))]


class Cuts(Calls):
    """Calls over a network that is cut near the server: MPI says that ranks have died, one by one."""

    name = "cuts"

    def plan(self, rng: random.Random, until: float) -> None:
        """Cut the server's host off from others, and let ranks die there and elsewhere."""
        network, size = self.network, self.network.size
        near, others = rng.randint(1, size - 1), rng.choice([1, 2])  # ranks on the server's host, and hosts
        network.hosts[:] = [0 if rank < near else 1 + rng.randrange(others) for rank in range(size)]
        network.conditions.has_word = True
        network.conditions.detection = rng.choice([0.05, 0.5, 0.9]) * SILENCE
        for _ in range(rng.choice([0, 0, 1, 2])):
            time, rank = rng.random() * until, rng.randrange(size)
            network.at(time, lambda rank=rank: network.kill(rank))
        for _ in range(rng.choice([1, 1, 2])):
            time, seconds = rng.random() * until, rng.choice([None, 0.5, 1.5, 3.0])
            cut = frozenset([0] if rng.random() < 0.7 else rng.sample([0, 1, 2], rng.choice([1, 2])))
            network.at(time, lambda cut=cut, seconds=seconds: network.cut(cut, seconds, True))


class Takeovers(Calls):
    """Calls whose server dies, and who holds the vote for another one is cut off while some still think."""

    name = "takeovers"
    sizes = (4, 4, 5, 6)

    def __init__(self, seed: int, log: bool = False) -> None:
        super().__init__(seed, log)
        self.calls, self.steps = 1, 800

    def plan(self, rng: random.Random, until: float) -> None:
        """Kill the server, let others be in a long step, and cut off the lowest of those that are left."""
        network, conditions = self.network, self.network.conditions
        network.hosts[:] = [0, 1, *(rng.choice([0, 0, 1]) for _ in range(network.size - 3)), 0]
        conditions.has_word, conditions.detection = True, 0.05 * SILENCE
        conditions.longest, conditions.tail, conditions.delay = 0.1 * SILENCE, 0.0, 1e-3
        died = 0.2 + 0.3 * rng.random()
        network.at(died, lambda: network.kill(0))
        for rank in range(3, network.size):
            if rng.random() < 0.7:
                network.at(died, lambda rank=rank: network.stop(rank, 0.8 * SILENCE))
        cut_at = died + 0.6 * SILENCE * rng.random()
        network.at(cut_at, lambda: network.cut(frozenset([1]), None, False))

    def random_earlier(self, rng: random.Random) -> int:
        """Return 0: no earlier job."""
        return 0

    def _check_records(self, records: _Records, episodes_of_all: int) -> None:
        """Nothing: whoever is cut off begins to serve and records what it does until it misses the others."""


class Trees(Calls):
    """Calls in which ranks compose the maps of others: of groups of three, and of groups of these."""

    name = "trees"
    kinds = (*Calls.kinds, Kind.ROUTE, Kind.COMPOSED, Kind.PASSED_ON)
    sizes = (5, 6, 6, 7, 9, 12)

    def random_settings(self, rng: random.Random) -> Settings:
        """Return those that the protocol depends on."""
        return replace(super().random_settings(rng), topology="tree", tree_group_size=3)

    def tables_of(self, records: _Records) -> list[int]:
        """Return none: what is composed of several pushes makes one table."""
        return []


class Decentralized(Calls):
    """Calls without a server: what a round under way had is made again."""

    name = "decentralized"
    kinds = (
        Kind.ROUNDS_BEGIN, Kind.ROUNDS_PLAY, Kind.ROUNDS_PLAYED, Kind.ROUNDS_SUMS, Kind.DONE, Kind.BYE,
        Kind.RELEASE, Kind.VIEW, Kind.PREPARE, Kind.PROMISE, Kind.JOIN, Kind.WELCOME, Kind.BEAT, Kind.GATHER,
        Kind.TOLD,
    )  # fmt: skip

    def random_settings(self, rng: random.Random) -> Settings:
        """Return those that the protocol depends on."""
        return Settings(
            sync_frequency=rng.choice([1, 5, 20, "auto"]),
            batch_size=1,
            topology="decentralized",
            exchange_pattern=rng.choice(["auto", "doubling", "ring", "tree", "two_level"]),
        )

    def tables_of(self, records: _Records) -> list[int]:
        """Return none: reports come between rounds, which end where one is due."""
        return []

    def _check_kept(self, counts: np.ndarray) -> None:
        """Nothing: what survivors have learned in a round that a death has ended is made again."""


class Supersteps(Calls):
    """Calls in which rows stay and walkers travel: whoever dies, the bits are those of a process alone."""

    name = "supersteps"
    kinds = (
        Kind.BEGIN, Kind.PLAY, Kind.PLAYED, Kind.WALKERS, Kind.TELL, Kind.ROWS, Kind.KEEP, Kind.DONE,
        Kind.BYE, Kind.RELEASE, Kind.VIEW, Kind.PREPARE, Kind.PROMISE, Kind.JOIN, Kind.WELCOME, Kind.BEAT,
        Kind.GATHER, Kind.TOLD,
    )  # fmt: skip
    placement = "sharded"

    def __init__(self, seed: int, log: bool = False) -> None:
        super().__init__(seed, log)
        # The later, the more steps at once.
        self.first = random.Random(f"first {seed}").choice([0, 300, 1000, 10000])
        self.steps = self.steps // 4 if self.first < 1000 else self.steps * 2
        # Each superstep takes messages of all: nothing would be made where one of a hundred comes too late.
        conditions = self.network.conditions
        conditions.tail = conditions.tail if conditions.longest < SILENCE else min(conditions.tail, 5e-4)
        self._chances = random.Random(f"who plays {seed}")
        self._may_be_alone = self._chances.random() < 0.5

    def _change(self, who: WhoPlays, *noted: float) -> bool:
        """Let one rank play alone for an order now and then, which takes no time here."""
        changes = who.is_alone or self._may_be_alone and self._chances.random() < 0.2
        who.is_alone ^= changes
        return changes

    def random_settings(self, rng: random.Random) -> Settings:
        """Return those that the protocol depends on."""
        return Settings(async_updates=False, seed=1)

    def random_earlier(self, rng: random.Random) -> int:
        """Return 0: no earlier job."""
        return 0

    def beginning(self) -> tuple[np.ndarray, np.ndarray, dict[int, dict[str, np.ndarray]]]:
        """Return an empty table."""
        return np.zeros(_LAKE_ENTRIES), np.zeros(_LAKE_ENTRIES, np.int64), {}

    def run_of(self, group: Group | None, *begin: Any, **more: Any) -> Run:
        """Return what a rank trains."""
        run = _LakeRun(self.settings, resolve("FrozenLake-v1", 1, False), *begin, walkers=64, **more)
        run.story = self
        return run

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        with (
            mock.patch.multiple(superstep_server, _FIRST_STEPS=150, _PLAY_SECONDS=0.2),
            mock.patch.multiple(server_base, _COPY_SECONDS=0.3, _COPY_SHARE=1.0),
            mock.patch.object(superstep_part, "_POLLS", 2),
            mock.patch.object(superstep_training, "_memory", lambda *_: None),  # they send messages
            mock.patch.object(superstep_part.Part, "can_be_alone", self._may_be_alone),
            mock.patch.object(WhoPlays, "note", lambda *noted: self._change(*noted)),
        ):
            return super().check()

    @cached_property
    def _alone(self) -> list[tuple[np.ndarray, np.ndarray, Outcome]]:
        """What the calls come to in a process alone."""
        made: list[tuple[np.ndarray, np.ndarray, Outcome]] = []
        for call in range(self.calls):
            values, counts = made[-1][:2] if made else self.beginning()[:2]
            span = self.first + call * self.steps, self.steps
            run = self.run_of(None, values.copy(), counts.copy(), *span, 1, Observer(), math.inf)
            outcome = superstep_training.train(run, None, None)
            made.append((run.values, run.counts, outcome))
        return made

    def episodes_of(self, call: int) -> int:
        """Return how many episodes end in a call."""
        return self._alone[call][2].episodes

    def tables_of(self, records: _Records) -> list[int]:
        """Return none: reports come between supersteps."""
        return []

    def _check_table(self, values: np.ndarray, counts: np.ndarray) -> None:
        right_values, right_counts, _ = self._alone[-1]
        self.claim(np.array_equal(values, right_values), "the values are not those of a process alone")
        self.claim(np.array_equal(counts, right_counts), "the counts are not those of a process alone")
