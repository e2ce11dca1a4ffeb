"""What one rank does in supersteps: it owns rows, and exchanges walkers and targets with the other owners."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._memory import zeros
from dist_classicrl._random import stream_key
from dist_classicrl.checkpoint.arrays import ArrayEntry
from dist_classicrl.checkpoint.file_thread import FileThread
from dist_classicrl.checkpoint.parts import stretches_of, write_part
from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.run import Resumed, Run
from dist_classicrl.engines.saving import longest_silence
from dist_classicrl.engines.sharded.host_memory import HostMemory, opened_later
from dist_classicrl.engines.supersteps.divided_rows import put_rows
from dist_classicrl.engines.supersteps.division import Division
from dist_classicrl.engines.supersteps.messages import Cut, Played, Rows
from dist_classicrl.errors import ProtocolError, StateLimitError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import find
from dist_classicrl.learning.state import State
from dist_classicrl.learning.supersteps.by_messages.exchanges import Exchanges, Parts
from dist_classicrl.learning.supersteps.crew import totals_of
from dist_classicrl.learning.supersteps.keyed_share import KeyedShare, in_key_order
from dist_classicrl.learning.supersteps.owners import Written
from dist_classicrl.learning.supersteps.row_share import HostShare
from dist_classicrl.learning.supersteps.share import Share, record_sizes, supersteps
from dist_classicrl.learning.supersteps.shares import share_of
from dist_classicrl.learning.supersteps.stepped.share import SteppedShare, numbers_of
from dist_classicrl.learning.supersteps.together import Boxes, boxes_in, bytes_of
from dist_classicrl.membership.group import Group
from dist_classicrl.tables.line_table import LineTable, size_of
from dist_classicrl.tables.maps import Refresh

_TEND_SECONDS = 0.01
_POLLS = 200
"""So often messages are looked for before this process sleeps: a superstep lasts about as long as a sleep."""

_SPINS = 20
"""So often others are looked for in memory, likewise."""

_LOOKS = 40_000
"""Looks each of these times: some 50 microseconds, or longer where ranks outnumber cores."""


def first_cut(run: Run) -> Cut:
    """Return where a call begins, or goes on from a checkpoint."""
    stream = run.alone_stream()
    return Cut(stream.start, stream.used, stream.last, _walkers_of(run.resumed))


def cut_at(run: Run, saved: Resumed) -> Cut:
    """Return where a call was when it was `saved`, by a process that has begun it with this `run`."""
    first = first_cut(run)
    before = 0 if run.resumed is None else run.resumed.made
    return replace(first, used=first.used + saved.made - before, walkers=_walkers_of(saved))


def _walkers_of(resumed: Resumed | None) -> State:
    is_same = resumed is not None and resumed.mode == "supersteps" and 0 in resumed.learners
    return resumed.learners[0] if resumed is not None and is_same else {}


class WalkerCounts:
    """What walkers have counted, entered into the tally of a call, which was at `cut` when this was made."""

    def __init__(self, tally: Tally, cut: Cut) -> None:
        self._tally = tally
        before = np.array([tally.episodes, tally.returns, tally.lengths, tally.td_errors])
        # Of a process before that learned in another way, the walkers know nothing.
        self._before = before - totals_of(cut.walkers["counted"]) if cut.walkers else before

    def enter(self, totals: np.ndarray) -> None:
        """Let the tally be what all walkers have counted since they began."""
        tally = self._tally
        tally.episodes, tally.returns, tally.lengths, tally.td_errors = (self._before + totals).tolist()


@dataclass(eq=False)
class Part:
    """What this rank does of a run: what it owns is said by `begin`."""

    run: Run
    group: Group
    rates: Rates
    memory: np.ndarray | None = None  # what all ranks share, `shared_bytes` long; None: they send messages
    shares_rows: bool = False  # whether all can open memory that the server makes for rows as well

    def __post_init__(self) -> None:
        self.attempt = -1
        #: What ends the run at the end of a superstep, on all ranks alike.
        self.full: StateLimitError | None = None
        self.players: tuple[int, ...] = ()
        self._channels: list[Channel] = []  # to the other players, in their order
        self._came: list[deque[np.ndarray]] = []
        self._owners = np.zeros(0, np.int64)
        self._tended = 0.0
        self._sends = False  # messages to the other players, since they share no memory
        self._rows: LineTable | None = None  # of all ranks of an attempt
        self._writing, self._reading = FileThread("written"), FileThread("read")
        self._made: HostMemory | None = None  # in which they are, on the rank that made it

    def share(self, rank: int, ranks: int, boxes: Boxes | None = None) -> Share:
        """Return what is owned by number `rank` of so many."""
        run, division = self.run, self.division
        assert run.walkers is not None  # else another engine trains
        problem = run.problem(self.rates)
        partition = run.partition if division is None else division.holding(self._owners)
        if callable(partition):  # it names ranks of the job, of which there may be fewer now
            partition = Written(partition, self.group.wire.size)
        kind: Callable[..., Share] = share_of
        if self._rows is not None:
            problem, kind = replace(problem, rows=self._rows), HostShare
        return kind(problem, run.walkers, partition, rank, ranks, is_alone=False, boxes=boxes)

    def _table_in(self, memory: np.ndarray | None) -> LineTable:
        problem = self.run.problem(self.rates)
        return LineTable(problem.shape, problem.dtype, problem.legal, memory)

    def new_rows(self) -> dict[str, Any]:
        """Return where the others find new memory for the rows of all ranks; {}: each has its own alone.

        Whoever was lost in the middle of a superstep may still write into the memory before.
        """
        if not self.shares_rows:
            return {}
        self._forget_rows()
        problem = self.run.problem(self.rates)
        self._made = HostMemory.new(size_of(problem.shape, problem.dtype), is_sparse=True)
        return self._made.told

    def _forget_rows(self) -> None:
        self._rows = None
        if self._made is not None:
            self._made.close()
            self._made = None

    def _open_rows(self, told: dict[str, Any]) -> None:
        """Have the memory that the server told of."""
        if not told:
            self._rows = None
        elif self._made is not None and self._made.told == told:
            self._rows = self._table_in(self._made.array(is_taken=True))
        else:
            problem = self.run.problem(self.rates)
            opened = opened_later(told, size_of(problem.shape, problem.dtype))
            self._rows = self._table_in(opened.array())
            opened.close()

    @property
    def division(self) -> Division | None:
        """Which host has which rows, where they are divided between hosts."""
        large = self.run.large
        return None if large is None else large.division

    def owners(self, players: tuple[int, ...]) -> np.ndarray:
        """Return what `Begin` says of the slots that players own; nothing where there are none."""
        division = self.division
        return np.zeros(0, np.int64) if division is None else division.owners(players, self.group.host_of)

    def note_owners(self, players: tuple[int, ...], owners: np.ndarray) -> None:
        """Take note of what `Begin` says of the slots that players own, and of the hosts that have them."""
        self.players, self._owners = players, np.array(owners)
        if self.run.large is not None:
            self.run.large.is_in_use = True
        if self.division is not None:
            self.division.holders[:] = [self.group.host_of(players[owner]) for owner in owners.tolist()]

    def note_rows(self) -> None:
        """Take note that all ranks have begun with the rows of their host, those that own none among them.

        Of rows that are divided between hosts `note_owners` says who has them.
        """
        if self.run.large is not None and not self.run.large.is_divided:
            self.run.large.is_in_use = True

    @property
    def owners_now(self) -> np.ndarray:
        """What the last `Begin` said of the slots."""
        return self._owners

    @property
    def own_share(self) -> Share:
        """What this rank owns since `begin`."""
        return self._share

    @property
    def can_be_alone(self) -> bool:
        """Whether one rank can make supersteps without the others, which send messages, and has the table."""
        return self.memory is None and can_be_in_memory(self.run) and self.run.large is None

    def _boxes(self, attempt: int, players: tuple[int, ...]) -> Boxes | None:
        if self.memory is not None:
            ranks = self.group.wire.size
            return boxes_in(self.memory, ranks, *_sizes(self.run), self.group.rank, players, attempt)
        if len(players) > 1 or not self.can_be_alone:
            return None
        memory = zeros(shared_bytes(self.run, 1), np.uint8)
        return boxes_in(memory, 1, *_sizes(self.run), 0, (0,), attempt)

    def kernels(self) -> list[Callable[[], None]]:
        """Return what compiles what is called."""
        players = self.group.view.members
        self._owners = self.owners(players)
        self._rows = self._table_in(None) if self.shares_rows else None
        own = players.index(self.group.rank), len(players)
        if not self.can_be_alone:
            return self.share(*own, self._boxes(0, players)).kernels()
        alone = self.share(0, 1, self._boxes(0, (self.group.rank,)))
        return [*self.share(*own).kernels(), *alone.kernels()]

    def make_environments(self, players: tuple[int, ...]) -> None:
        """See to it that there are those that this rank steps among the players, and no others."""
        run = self.run
        assert run.walkers is not None  # else another engine trains
        n_envs = len(numbers_of(run.walkers, players.index(self.group.rank), len(players)))
        run.source = run.source.with_envs(max(1, n_envs))  # one at least, for its spaces

    def begin(
        self, attempt: int, players: tuple[int, ...], cut: Cut, owners: np.ndarray, rows: dict[str, Any]
    ) -> None:
        """Own what is this rank's among the players, with the run's table as it is now, from `cut` on.

        `owners` and `rows` are those of `Begin`.
        """
        self.close()
        self._open_rows(rows)
        run, wire = self.run, self.group.wire
        self.note_owners(players, owners)
        self.attempt = attempt
        self._own = players.index(self.group.rank)
        boxes = self._boxes(attempt, players)
        self._sends = boxes is None
        self._share = share = self.share(self._own, len(players), boxes)
        self.full = None
        if isinstance(share, KeyedShare):
            assert run.keyed is not None
            share.load(run.values, run.counts, run.keyed.keys)
        else:
            share.load(run.values, run.counts)
        if cut.walkers:
            self._share.restore(cut.walkers)
        if isinstance(share, SteppedShare):
            self.make_environments(players)
            envs: Any = run.source.stepped  # which can be stepped one by one, see `check_supersteps`
            share.begin(envs, run.environment_seed(0), cut.start + cut.used)
        self.stream = Stream(stream_key(run.seed, "alone", cut.start), cut.start, cut.used, last=cut.last)
        if self._sends:
            tag = self.group.tag_between_workers(attempt)
            self._channels = [wire.channel(rank, tag) for rank in players if rank != self.group.rank]
        self._came = [deque() for _ in self._channels]

    def close(self) -> None:
        """Exchange nothing more."""
        for channel in self._channels:
            channel.close()
        self._channels = []

    def end(self) -> None:
        """Do likewise, for good."""
        self.close()
        self._forget_rows()

    def play(self, until: int, tend: Callable[[], None]) -> Played:
        """Make supersteps up to step `until` of the stream; `tend` is called every 10 ms.

        What that raises ends it, somewhere in the middle: then there has to be another `begin`.
        """
        begun = time.perf_counter()
        if self._sends:
            moved, n_bytes, learning = self._play_by_messages(until, tend)
            seconds = time.perf_counter() - begun
        else:
            moved, n_bytes, share_of_time = self._play_in_memory(until, tend)
            seconds = time.perf_counter() - begun
            learning = share_of_time * seconds
        share = self._share
        share.check()
        if isinstance(share, KeyedShare) and share.is_over:
            self.full = share.full()
        return Played(self.attempt, self.stream.used, moved, share.counted(), learning, seconds, n_bytes)

    def _play_in_memory(self, until: int, tend: Callable[[], None]) -> tuple[int, int, float]:
        share = self._share
        backoff, before = Backoff(self.group.wire.sleep, _SPINS), -1
        self._tend(tend)  # who is alone waits for nobody
        while not share.play_together(self.stream, self.rates, until, _LOOKS):
            self._tend(tend)
            if share.superstep_together != before:
                before = share.superstep_together
                backoff.reset()
            backoff.wait()
        moved, crossed, learning = share.exchanged()
        return moved, 8 * crossed, learning

    def _play_by_messages(self, until: int, tend: Callable[[], None]) -> tuple[int, int, float]:
        share, moved = self._share, 0
        self._n_sent, self._learned = 0, 0.0
        for stretch, done, size in supersteps(self.stream, self.rates, share.walkers, until):
            self._follow(share.superstep(stretch, done, size), tend)
            moved += share.moved
            if share.has_to_end:
                self.stream.used += size  # as the loop does, which ends here
                break
        self._follow(share.settle_all(), tend)
        return moved, self._n_sent, self._learned

    def _follow(self, steps: Exchanges, tend: Callable[[], None]) -> None:
        """Exchange what the steps of a superstep give."""
        came = None
        while True:
            before = time.perf_counter()
            try:
                parts = next(steps) if came is None else steps.send(came)
            except StopIteration:
                return
            finally:
                self._learned += time.perf_counter() - before
            came = self._exchange(parts, tend)
            self._n_sent += sum(part.nbytes for part in parts) - parts[self._own].nbytes

    def rows(self) -> Rows:
        """Return its rows, and the state of its walkers."""
        share = self._share
        keys = share.keys.view(np.int64) if isinstance(share, KeyedShare) else None
        return Rows(self.attempt, *share.rows(), share.state(), keys)

    def take(self, refresh: Refresh) -> None:
        """Let the run's table be a whole one that the server has told, where each rank has one."""
        if self.run.large is None:
            self.run.take(refresh)

    def save_rows(self, name: str, number: int, meanwhile: Callable[[], None]) -> dict[str, ArrayEntry]:
        """Write what this host has of a table that is divided to a checkpoint, as a part of this number.

        `meanwhile` is called every 50 ms, and what it raises comes through. OSError, whatever a disk or store
        raises, and where nothing is written for long.
        """
        run, division, host = self.run, self.division, self.group.host_of(self.group.rank)
        assert run.large is not None and division is not None and run.storage is not None
        rows, storage = run.large.rows, run.storage
        n_bytes = division.share_of(host) * (rows.values.nbytes + rows.counts.nbytes)

        def write(look: Callable[[], None]) -> dict[str, ArrayEntry]:
            stretches = []
            for part in division.slices():
                look()
                stretches.append(stretches_of(division.rows_of(host, *part)))
            own = np.concatenate(stretches)
            return write_part(storage(), name, number, own, rows.values, rows.counts, look)

        patience = longest_silence(run.settings.timeout, n_bytes)
        return self._writing.do(write, patience, meanwhile)

    def load_rows(self, name: str, meanwhile: Callable[[], None]) -> dict[str, ArrayEntry]:
        """Read what this host has of a table that is divided from a checkpoint; it writes nothing.

        Else as `save_rows`.
        """
        run, host = self.run, self.group.host_of(self.group.rank)
        assert run.large is not None and run.read_table is not None
        large, read_table = run.large, run.read_table

        def load(look: Callable[[], None]) -> dict[str, ArrayEntry]:
            put_rows(large, host, *read_table(name, look), look)
            return {}

        return self._reading.do(load, run.settings.timeout, meanwhile)

    def reload(self, meanwhile: Callable[[], None]) -> Resumed | None:
        """Go back to the last checkpoint of the call, see `Run.reload`, with errors as in `save_rows`."""
        work, patience = self.run.reload, self.run.settings.timeout
        return None if work is None else self._reading.do(work, patience, meanwhile)

    def gather(self, rows: list[Rows]) -> None:
        """Write the rows of all players, in their order, into the run's table."""
        run = self.run
        if run.large is not None:  # they are there
            return
        if run.keyed is None:
            for number, told in enumerate(rows):
                share = self.share(number, len(rows))
                share.place(told.values, run.values)
                share.place(told.counts, run.counts)
            return
        dtype, own = run.keyed.keys.dtype, self._share
        parts = [(told.keys.view(dtype), told.values, told.counts) for told in rows if told.keys is not None]
        keys, values, counts = in_key_order(parts, own.n_tables, own.table.shape.n_actions)
        run.values, run.counts = run.keyed.fit(keys)
        run.values[:], run.counts[:] = values, counts

    # Messages

    def _exchange(self, parts: Parts, tend: Callable[[], None]) -> Parts:
        """Send each player its part, and return theirs, in their order, of rows of the same length."""
        others = parts[: self._own] + parts[self._own + 1 :]
        for channel, part in zip(self._channels, others, strict=True):
            channel.send(envelope.encode(Kind.WALKERS, part))
        wire = self.group.wire
        backoff = Backoff(wire.sleep, _POLLS)
        while missing := [
            channel for channel, came in zip(self._channels, self._came, strict=True) if not came
        ]:
            arrived = wire.receive(missing)
            for channel, message in arrived:
                self._came[self._channels.index(channel)].append(message)
            self._tend(tend)
            if arrived:
                backoff.reset()
            else:
                backoff.wait()
        self._tend(tend)
        words = parts[self._own].shape[1]
        received = [_opened(came.popleft(), words) for came in self._came]
        received.insert(self._own, parts[self._own])
        return received

    def _tend(self, tend: Callable[[], None]) -> None:
        now = self.group.wire.now()
        if now - self._tended > _TEND_SECONDS:
            self._tended = now
            tend()
            for channel in self._channels:
                channel.reap()


def _sizes(run: Run) -> tuple[int, int, int, int]:
    """Return the walkers of a run, and `record_sizes`."""
    simulator, walkers = run.source.simulator, run.walkers
    assert simulator is not None and walkers is not None
    rule, parameters = find(run.settings.algorithm)
    return walkers, *record_sizes(simulator, rule, parameters)


def can_be_in_memory(run: Run) -> bool:
    """Whether walkers can be exchanged in memory, where ranks share some: not of environments in Python.

    Nor where a rule shares numbers, for which ranks exchange once more.
    """
    return run.source.simulator is not None and find(run.settings.algorithm)[0].on_target is None


def shared_bytes(run: Run, ranks: int) -> int:
    """Return the bytes that so many ranks share which exchange walkers in memory."""
    return bytes_of(ranks, *_sizes(run))


def _opened(message: np.ndarray, words: int) -> np.ndarray:
    kind, parts = envelope.decode(message)
    if kind is not Kind.WALKERS or len(parts) != 1 or parts[0].dtype != np.int64 or parts[0].size % words:
        raise ProtocolError(
            f"{kind.name} came from another owner of rows, and is not what it was asked for. Do all ranks "
            "run the same version?"
        )
    return parts[0].reshape(-1, words)
