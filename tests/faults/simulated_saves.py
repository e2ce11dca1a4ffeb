"""Histories of whole agents that save, stop, leave, die and are started again: see `simulated`.

A history is some jobs, one after the other, that run the same script with the same folder of checkpoints, on
ranks of their own. In all but the last something happens: ranks are asked to stop or to leave, are killed, or
hang. After each job all that is in the folder is read.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest import mock

import numpy as np
import simulated_network
from simulated_calls import INTERVAL, SILENCE, TIMING, Story, random_conditions, random_hosts
from simulated_network import SimNetwork, SimRank, SimWire, kind_of

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent import session, training
from dist_classicrl.checkpoint import file_thread, folder, writer
from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.engines.roles import cores, server_base
from dist_classicrl.engines.supersteps import division, part, server
from dist_classicrl.engines.supersteps import training as superstep_training
from dist_classicrl.errors import (
    CheckpointFencedError,
    CheckpointUnreadableError,
    CutOffError,
    RankLostError,
    RankTimeoutError,
    RemoteRankError,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.membership.group import Group
from dist_classicrl.model import places
from dist_classicrl.process.stop import Stop, StopWatch
from dist_classicrl.tables import large_table

OURS = (
    TrainingStopped, WorkerLeft, CutOffError, RankLostError, RankTimeoutError, CheckpointFencedError,
    CheckpointUnreadableError,
)  # fmt: skip
DISK, AGAIN = "disk", "again"
_job: Job  # the one that runs


class _ThreadOf(SimRank):
    """What a thread of a rank is to the scheduler: it dies and is stopped with its rank."""

    died = property(lambda self: self.owner.died, lambda *_: None)
    stopped_until = property(lambda self: self.owner.stopped_until, lambda *_: None)

    def __init__(self, owner: SimRank) -> None:
        self.owner = owner
        super().__init__(owner.rank)


class _Thread(threading.Thread):
    """A thread of a rank, which takes its turn as ranks do."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._network, self._sim = _job.network, _ThreadOf(_job.who)

    def start(self) -> None:
        self._network.at(self._network.now, self._sim)
        super().start()

    def run(self) -> None:
        self._network._live(self._sim, lambda _: super(_Thread, self).run())


_THREADS = SimpleNamespace(
    Thread=_Thread, Condition=threading.Condition, current_thread=threading.current_thread
)


def _wait(is_done: Callable[[], bool], seconds: float) -> bool:
    network = _job.network
    end = network.now + seconds
    while not is_done() and network.now < end:
        network.pause(0.02)
    return is_done()


class _Storage(LocalStorage):
    """A folder in which everything takes its time; whoever dies meanwhile does no more to it."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        def slow() -> Iterator[bytes | memoryview]:
            for chunk in chunks:
                yield chunk
                _job.use_disk()

        super().write(path, slow())

    def create(self) -> None:
        _job.use_disk()
        super().create()

    def names(self, folder: str = "") -> list[str]:
        _job.use_disk()
        return super().names(folder)

    def write_new(self, path: str, data: bytes) -> bool:
        _job.use_disk()
        return super().write_new(path, data)

    def open(self, path: str) -> BinaryIO:
        _job.use_disk()
        return super().open(path)

    def remove(self, path: str) -> None:
        _job.use_disk()
        super().remove(path)

    def sync(self, folder: str) -> None:
        _job.use_disk()


class _Agents(dict[str, list[str]]):
    """What the agents of each process learn: `places` keeps it for one, and all are one here."""

    def setdefault(self, folder: str, agents: list[str]) -> list[str]:
        return super().setdefault(f"{_job.number} {_job.who.rank} {folder}", agents)

    def __getitem__(self, folder: str) -> list[str]:
        return self.setdefault(folder, [])

    def get(self, folder: str, default: Any = None) -> list[str]:
        return self.setdefault(folder, [])


class _Network(SimNetwork):
    """A network that says what is sent."""

    job: Job

    def before_sending(self, sender: int, message: np.ndarray) -> Any:
        plan = super().before_sending(sender, message)
        self.job.happens(kind_of(message).name)
        return plan


@dataclass
class Event:
    """What happens when something has been done so often, by one rank or by any."""

    what: str  # a kind of message that is sent, `DISK`, or `AGAIN`, where a rank goes on after a stop
    count: int
    by: int | None
    does: str  # "stop", "leave", "kill" or "hang"
    to: int | None  # a rank; None: who did that
    delay: float = 0.0
    hangs: float = 2.5 * SILENCE


class Job:
    """One start of the script of a history."""

    def __init__(self, story: Saves, number: int, log: list[str] | None) -> None:
        self.story, self.number = story, number
        rng = self._rng = random.Random(f"{story.name} {story.seed} job {number}")
        size = rng.choice(story.sizes)
        conditions = random_conditions(rng)
        conditions.has_word, conditions.tail, conditions.longest = True, 0.0, 0.1 * SILENCE
        conditions.delay = min(conditions.delay, 1e-2)
        self.network = _Network(size, story.seed + number, conditions, story.random_hosts(rng, size))
        self.network.job, self.network.log = self, log
        self.network.most_turns = 3_000_000
        self.disk_seconds = rng.choice([0.0, 1e-2, 5e-2])
        self.events: list[Event] = [] if number + 1 == story.n_jobs else self._random_events(rng, size)
        self.watches: dict[int, StopWatch] = {}
        self.agents: dict[int, DistAsyncQLearning] = {}
        self.asked: set[str] = set()  # what ranks were asked for: "stop", "leave"
        self.results: list[dict[int, Any]] = [{} for _ in story.calls]

    def _random_events(self, rng: random.Random, size: int) -> list[Event]:
        def event() -> Event:
            return Event(
                rng.choice([DISK, AGAIN, *self.story.kinds]),
                rng.randint(1, rng.choice([2, 2 * size, 60])),
                rng.choice([None, rng.randrange(size)]),
                rng.choice(["stop", "stop", "leave", "kill", "hang"]),
                rng.choice([None, 0, rng.randrange(size)]),
                rng.choice([0.0, 0.1, 0.5]) * rng.random(),
                SILENCE * rng.choice([0.5, 1.2, 2.5]),
            )

        return [event() for _ in range(rng.choice([1, 1, 2, 3]))]

    @property
    def who(self) -> SimRank:
        """The rank that runs, or one of whose threads does."""
        sim = self.network._current
        return getattr(sim, "owner", sim)

    def use_disk(self) -> None:
        """Take the time that a disk takes for a piece."""
        self.network.pause(self.disk_seconds * self._rng.random())
        self.happens(DISK)

    def happens(self, what: str) -> None:
        """Do what is to happen when the rank that runs does this."""
        rank = self.who.rank
        for event in self.events:
            if event.what == what and event.by in (None, rank):
                event.count -= 1
                if event.count == 0:
                    self.network.at(self.network.now + event.delay, partial(self._do, event, rank))
                    if event.delay == 0.0:
                        self.network.pause(0.0)

    def _do(self, event: Event, by: int) -> None:
        network, rank = self.network, by if event.to is None else event.to
        when = f"({event.what} of rank {by})"
        if event.does == "kill":
            network.kill(rank, when)
        elif event.does == "hang":
            network.stop(rank, event.hangs, when)
        elif rank in self.watches and not network.ranks[rank].is_over:
            network.note(f"rank {rank} is asked to {event.does} {when}")
            self.asked.add(event.does)
            if event.does == "leave":
                self.agents[rank].leave()
            else:
                self.watches[rank].ask(Stop(os.EX_TEMPFAIL, "a test"))

    @property
    def is_calm(self) -> bool:
        """Whether nobody was lost, or could seem to be."""
        return not self.network.faults

    def run(self) -> None:
        """Let it happen."""
        global _job
        _job, story, exits = self, self.story, mock.MagicMock()
        exits.survival_advice.return_value = None
        groups = [
            Group(SimWire(self.network, rank), [str(host) for host in self.network.hosts])
            for rank in range(self.network.size)
        ]
        with (
            simulated_network.simulated_time(self.network),
            mock.patch.multiple(
                training,
                find_world=lambda *_: SimpleNamespace(Get_rank=lambda: self.who.rank),
                group_of=lambda *_: groups[self.who.rank],
                sole_use=contextlib.nullcontext,
                timing_of=lambda *_: TIMING,
                first_rank=lambda _: 0,
                process_exit=exits,
                _watching=self._watching,
            ),
            mock.patch.multiple(writer, threading=_THREADS),
            mock.patch.object(writer.Writer, "wait", lambda w, seconds: _wait(lambda: not w.busy, seconds)),
            mock.patch.multiple(
                file_thread,
                threading=_THREADS,
                wait=lambda futures, seconds: SimpleNamespace(done=_wait(futures[0].done, seconds)),
            ),
            mock.patch.object(
                folder, "open_storage", lambda place, name, mode: _Storage(os.path.join(place, name), mode)
            ),
            mock.patch.object(places, "_agents", _Agents()),
            mock.patch.object(cores, "bound_cores", lambda: list(range(story.cores))),
            mock.patch.object(cores, "core_quota", lambda: None),
            contextlib.ExitStack() as more,
        ):
            story.change(self, more)
            self.network.run(self._main, 120.0 * SILENCE)

    @contextlib.contextmanager
    def _watching(self, plan: Any, rank: int) -> Iterator[StopWatch]:
        self.watches[rank] = StopWatch((), None, None, rank)
        yield self.watches[rank]

    def _main(self, wire: SimWire) -> str:
        agent, story = self.story.agent(), self.story
        self.agents[wire.rank] = agent
        for results, steps, end in zip(
            self.results, story.calls, itertools.accumulate(story.calls), strict=True
        ):
            try:
                result = agent.train(**story.asked(steps))
            except TrainingStopped as stopped:
                if not story.goes_on:
                    raise
                self.happens(AGAIN)
                steps = end - stopped.steps
                result = agent.train(**story.asked(steps))
            results[wire.rank] = result
            self.story.claim(result.steps == steps, f"rank {wire.rank}: {result.steps} steps, not {steps}")
        return "done"


class Saves(Story):
    """Jobs with a server: asynchronous ones, whatever the topology."""

    name = "saves"
    kinds: tuple[str, ...] = ("GATHER", "TOLD", "PUSH", "REPLY", "DONE", "BYE", "VIEW", "HAND_IN", "LEAVE")
    sizes: tuple[int, ...] = (2, 3, 4, 5, 6)
    placement = "replicated"
    is_reproducible = False

    def __init__(self, seed: int, log: bool = False) -> None:
        rng = random.Random(f"{self.name} {seed}")
        self.seed, self.log = seed, [] if log else None
        self.calls = rng.choice([[400], [800], [300, 300]])
        total = sum(self.calls)
        self.interval = rng.choice([total // 20, total // 4, total // 3, "0.3s", 10**9])
        self.keep_last = rng.choice([1, 2, 3])
        self.cores = rng.choice([1, 2, 64])
        self.step_seconds = rng.choice([1e-3, 4e-3])
        self.sync_frequency = rng.choice([1, 5, 20])
        self.n_jobs = rng.choice([2, 3, 4])
        self.goes_on = not self.is_reproducible and rng.random() < 0.3  # after a stop, in the same job
        self.newest = 0  # steps of the newest checkpoint
        self.jobs: list[Job] = []
        self.wrong = []
        self.folder = ""

    @property
    def network(self) -> SimNetwork:  # type: ignore[override]
        """Of the last job."""
        return self.jobs[-1].network

    def random_hosts(self, rng: random.Random, size: int) -> list[int]:
        """Return on which host each rank is."""
        return random_hosts(rng, size)

    # The script

    def settings(self) -> dict[str, Any]:
        """Return what the agent is made with, besides."""
        return {"sync_frequency": self.sync_frequency, "topology": "flat"}

    def agent(self) -> DistAsyncQLearning:
        """Return the agent of a rank."""
        own = {"seed": 1, "learning_rate": 0.3, "epsilon": 0.5, "batch_size": 1, "timeout": 12.0}
        return DistAsyncQLearning(**own | self.settings())

    def asked(self, steps: int) -> dict[str, Any]:
        """Return what a call of train is asked for."""
        saving = {"checkpoint_dir": self.folder, "checkpoint_interval": self.interval}
        return {**self.learning(steps), **saving, "keep_last": self.keep_last}

    def learning(self, steps: int) -> dict[str, Any]:
        """Return the same without a place to save it."""
        return {"env": "FrozenLake-v1", "total_steps": steps, "placement": self.placement}

    def change(self, job: Job, more: contextlib.ExitStack) -> None:
        """Change for a job what cannot be as it is in a simulation: learning takes its time there."""
        learn, rng = CompiledLearner.learn, random.Random(f"learning {self.seed} {job.number}")

        def slowly(learner: Any, walker: int, stream: Any, steps: int) -> None:
            job.network.pause(steps * self.step_seconds * (0.5 + rng.random()))
            job.network.gets_on()
            learn(learner, walker, stream, steps)

        more.enter_context(mock.patch.object(CompiledLearner, "learn", slowly))

    # What has to be right

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        load_engines()
        self.folder = tempfile.mkdtemp()
        try:
            with mock.patch.object(os, "fsync", lambda _: None):
                for number in range(self.n_jobs):
                    self.jobs.append(job := Job(self, number, self.log))
                    job.run()
                    self.check_job(job)
                    if self.wrong:
                        break
        finally:
            shutil.rmtree(self.folder)
        return [f"job {len(self.jobs) - 1}: {wrong}" for wrong in self.wrong]

    def check_job(self, job: Job) -> None:
        """Whether each rank has come to an end that is right, and what is on disk."""
        self.claim(not job.network.gave_up, f"hangs: {job.network.gave_up}")
        for sim in job.network.ranks:
            error = sim.error
            told = isinstance(error, RemoteRankError) and any(own.__name__ in str(error) for own in OURS)
            has_to_end = job.is_calm and not (
                isinstance(error, TrainingStopped)
                and "stop" in job.asked
                or isinstance(error, WorkerLeft)
                and "leave" in job.asked
            )
            is_right = error is None or not has_to_end and (told or isinstance(error, OURS))
            self.claim(is_right, f"rank {sim.rank}: {sim.trace}")
        for rank, result in job.results[0].items():
            goes_on = result.resumed_from is not None or self.newest == 0 or self.goes_on
            self.claim(goes_on, f"rank {rank} has begun anew, though {self.newest} steps were saved")
        self.check_disk(job)

    def check_disk(self, job: Job) -> None:
        """Whether each checkpoint is whole, and the newest one as new as it has to be."""
        there = folder.CheckpointFolder(self.folder, "agent-0")
        names = there.names()
        self.claim(len(names) <= self.keep_last + 1, f"there are {len(names)} checkpoints")
        newest = 0
        for name in reversed(names):
            saved = there.read(name)
            values, visits = np.asarray(saved.arrays["q_table"]), np.asarray(saved.arrays["visits"])
            newest = saved.body["steps"]
            made = saved.body["call"]["begin"] + saved.body["tally"]["steps"]
            self.claim(made == newest, f"{name} has counted {made} steps")
            self.check_table(newest, values, visits)
        stopped = {sim.error.steps for sim in job.network.ranks if isinstance(sim.error, TrainingStopped)}
        if job.is_calm:
            self.claim(newest >= self.newest, f"the newest checkpoint had {self.newest} steps, now {newest}")
            self.claim(stopped <= {newest}, f"stopped at {stopped}, but {newest} steps are saved")
        if job.results[-1]:
            self.claim(newest == sum(self.calls), f"all is done, but {newest} steps are saved")
        self.newest = newest

    def check_table(self, steps: int, values: np.ndarray, visits: np.ndarray) -> None:
        """Whether a table is one that so many steps can have made."""
        self.claim(int(visits.sum()) == steps, f"{visits.sum()} visits in {steps} steps")
        self.claim(
            0.0 <= values.min() and values.max() <= 1.0, f"values are {values.min()} to {values.max()}"
        )
        if self.is_reproducible:
            same = map(np.array_equal, (values, visits), self._alone(steps))
            self.claim(all(same), f"the table of {steps} steps is not that of a process alone")

    def _alone(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what a process alone has learned after so many steps."""
        agent = self.agent()
        for total, before in zip(self.calls, itertools.accumulate(self.calls, initial=0), strict=False):
            if steps > before:
                agent.train(**self.learning(min(total, steps - before)))
        return (agent.q_table, agent.visits) if steps else (np.zeros((16, 4)), np.zeros((16, 4)))


class SavedTrees(Saves):
    """The same where ranks compose the maps of others."""

    name = "saved-trees"
    kinds = (*Saves.kinds, "ROUTE", "COMPOSED", "PASSED_ON")
    sizes = (5, 6, 7, 9)

    def settings(self) -> dict[str, Any]:
        """See `Saves`."""
        return super().settings() | {"topology": "tree", "tree_group_size": 3}


class SavedDecentralized(Saves):
    """The same without a server."""

    name = "saved-decentralized"
    kinds = (*Saves.kinds, "ROUNDS_BEGIN", "ROUNDS_PLAY", "ROUNDS_PLAYED", "ROUNDS_SUMS")

    def settings(self) -> dict[str, Any]:
        """See `Saves`."""
        return super().settings() | {"topology": "decentralized"}


class SavedSupersteps(Saves):
    """Jobs in supersteps: what is on disk has the bits of a process alone."""

    name = "saved-supersteps"
    kinds = ("GATHER", "TOLD", "BEGIN", "PLAY", "PLAYED", "ROWS", "KEEP", "DONE", "BYE", "VIEW", "LEAVE")
    placement = "sharded"
    is_reproducible = True
    has_rows = is_divided = False

    def settings(self) -> dict[str, Any]:
        """See `Saves`."""
        return {"async_updates": False}

    def learning(self, steps: int) -> dict[str, Any]:
        """See `Saves`."""
        return {**super().learning(steps), "walkers": 64}

    def change(self, job: Job, more: contextlib.ExitStack) -> None:
        """See `Saves`."""
        play, rng = part.Part.play, random.Random(f"playing {self.seed} {job.number}")

        def slowly(own: part.Part, until: int, tend: Callable[[], None]) -> Any:
            job.network.pause(0.1 * INTERVAL * rng.random())
            job.network.gets_on()
            return play(own, until, tend)

        for changed in (
            mock.patch.multiple(server, _FIRST_STEPS=60, _PLAY_SECONDS=0.2),
            mock.patch.multiple(server_base, _COPY_SECONDS=0.3, _COPY_SHARE=1.0),
            mock.patch.multiple(part, _POLLS=2),
            mock.patch.object(part.Part, "play", slowly),
            mock.patch.multiple(superstep_training, _memory=lambda *_: None, open_desk=lambda *_: None),
            mock.patch.multiple(session, open_desk=lambda *_: None),
            mock.patch.multiple(large_table, FROM_ENTRIES=1 if self.has_rows else large_table.FROM_ENTRIES),
            mock.patch.object(superstep_training, "_join_rows", partial(join_rows, job)),
        ):
            more.enter_context(changed)
        if self.is_divided:
            more.enter_context(mock.patch.multiple(division, BLOCK_SHIFT=0))
            is_large = mock.patch.object(large_table.LargeTable, "is_too_large_to_copy", lambda _: True)
            more.enter_context(is_large)


class SavedRows(SavedSupersteps):
    """The same of rows that are there once for a host."""

    name = "saved-rows"
    kinds = (*SavedSupersteps.kinds, "HALT", "HALTED", "SOME_ROWS", "GOT_ROWS", "ASK_ROWS")
    has_rows = True


class SavedDivided(SavedRows):
    """The same of rows that are divided between hosts."""

    name = "saved-divided"
    kinds = (*SavedRows.kinds, "SAVE_ROWS", "SAVED_ROWS", "LOAD_ROWS", "PUT_ROWS")
    sizes = (3, 4, 5, 6)
    is_divided = True

    def random_hosts(self, rng: random.Random, size: int) -> list[int]:
        """See `Saves`: on two hosts at least."""
        hosts = super().random_hosts(rng, size)
        return hosts if len(set(hosts)) > 1 else [*hosts[:-1], hosts[-1] + 1]


def join_rows(job: Job, large: Any, group: Group, told: dict[str, Any]) -> None:
    """Do what the engine does where a rank that joins is on a host with one that has the memory."""
    hosts = job.network.hosts
    others = [rank for rank in group.view.members if hosts[rank] == hosts[group.rank] and rank != group.rank]
    if not others and not large.is_in_use:
        raise CutOffError("This rank cannot open the memory of the others.")
    JOIN_ROWS(large, group, told)


JOIN_ROWS = superstep_training._join_rows


@cache
def load_engines() -> None:
    """Load what is loaded when it is chosen, which is to take the time from the network."""
    for engine in ("rounds", "server", "decentralized"):
        importlib.import_module(f"dist_classicrl.engines.{engine}.training")
    importlib.import_module("dist_classicrl.learning.supersteps.share")
