"""Histories of tables whose rows are there once for a host, and go back to a checkpoint after a loss."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from simulated_calls import (
    ENTRIES,
    INTERVAL,
    LONGEST_STEP,
    SHARED,
    SILENCE,
    Calls,
    Supersteps,
    _Learner,
    _Run,
    _Source,
)
from simulated_network import SimWire

from dist_classicrl._steps import next_multiple
from dist_classicrl.checkpoint.file_thread import FileThread
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.run import Resumed, Run
from dist_classicrl.engines.saving import Position
from dist_classicrl.engines.sharded import server as sharded_server
from dist_classicrl.engines.sharded import training as sharded_training
from dist_classicrl.engines.sharded.host_memory import HostMemory, share_rows
from dist_classicrl.engines.sharded.own_share import Chunk, Done, OwnShare
from dist_classicrl.engines.sharded.rows import HostRows
from dist_classicrl.engines.supersteps import division
from dist_classicrl.engines.supersteps import training as superstep_training
from dist_classicrl.engines.supersteps.divided_rows import put_rows
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.errors import CheckpointFencedError, CutOffError
from dist_classicrl.learning.learner import Stream, Totals
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.state import unstack_states
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.settings import Settings
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.shape import TableShape

SHARE_ROWS = superstep_training._share_rows


@dataclass
class _Disk:
    """What the last checkpoint of a call has, and who may write the next one."""

    saved: Resumed | None = None
    values: np.ndarray | None = None
    counts: np.ndarray | None = None
    savers: int = 0
    numbers: dict[int, int] = field(default_factory=dict)  # of each rank, the last one that it has claimed


class _Saver:
    """What `saving.Saver` is to an engine."""

    asked_to_stop = None

    def __init__(self, story: SharedRows, call: int, group: Group, takes_over: bool = True) -> None:
        self._story, self._group, self._disk = story, group, story.disks[call]
        self._begin = story.first + call * story.steps
        self._every = story.steps_between_checkpoints
        # A head whose setup begins anew claims nothing a second time.
        if takes_over or group.rank not in self._disk.numbers:
            self._disk.savers += 1
            self._disk.numbers[group.rank] = self._disk.savers
        self._number = self._disk.numbers[group.rank]
        self.next_step: float = self._begin + self._every

    def look(self, steps: int) -> None:
        if self._number != self._disk.savers:
            raise CheckpointFencedError("Another server saves this call.")

    def is_due(self, steps: int) -> bool:
        return steps >= self.next_step

    def begin(self, steps: int) -> None:
        self.next_step = next_multiple(steps - self._begin, self._every) + self._begin

    #: See `saving.Saver`.
    write_parts: Callable[[str], Any] | None = None

    def save_and_wait(
        self, values: np.ndarray, counts: np.ndarray, position: Position, meanwhile: Callable[[], None]
    ) -> None:
        """Write a checkpoint, which takes its time."""
        name = f"{self._number}-{position.steps}"
        if self.write_parts is not None:
            try:
                self.write_parts(name)
            except OSError:  # a rank was lost that wrote some
                return
        before = values.copy(), counts.copy()
        for _ in range(self._story.slices):
            self._group.wire.work(0.5 * INTERVAL)
            meanwhile()
        self.look(position.steps)
        same = np.array_equal(before[0], values) and np.array_equal(before[1], counts)
        self._story.claim(same, "rows were written while they were saved")
        learners = {} if not position.learners else dict(enumerate(unstack_states(position.learners, 1)))
        made, disk = position.steps - self._begin, self._disk
        self._story.claim(disk.saved is None or disk.saved.made <= made, "an older checkpoint came later")
        disk.saved = Resumed(f"folder/{name}", made, position.tally, position.mode, None, learners)
        disk.values, disk.counts = before

    def finish(self, values: Any, counts: Any, position: Position, result: Outcome, meanwhile: Any) -> str:
        self.save_and_wait(values, counts, position, meanwhile)
        return "checkpoint"

    def stop(self) -> None:
        pass

    def news(self) -> None:
        return None


class _Memory:
    """What `HostMemory` is to a large table."""

    def __init__(self, size: int, host: int) -> None:
        self.bytes = np.zeros(size, np.uint8)
        self.told = {"host": host}

    def array(self, in_small_pages: bool = False, is_taken: bool = False) -> np.ndarray:
        return self.bytes

    def close(self) -> None:
        pass


def _do_now(thread: FileThread, work: Callable[[Callable[[], None]], Any], *_: Any) -> Any:
    """Do what `FileThread.do` does, where there are no threads."""
    return work(lambda: None)


class SharedRows(Supersteps):
    """Calls in supersteps whose rows are there once for a host, with checkpoints or without.

    What comes to an end has the bits of a process alone. Without a checkpoint to go back to a loss may end
    the call, and so it may where nobody can say whether a rank that is not heard still writes.
    """

    name = "rows"
    kinds = (*Supersteps.kinds, Kind.HALT, Kind.HALTED, Kind.SOME_ROWS, Kind.GOT_ROWS, Kind.ASK_ROWS)

    def __init__(self, seed: int, log: bool = False) -> None:
        super().__init__(seed, log)
        self._may_be_alone = False  # since rows are there once
        rng = random.Random(f"rows {seed}")
        self.steps_between_checkpoints: float = rng.choice(
            [math.inf, self.steps // 10, self.steps // 4, self.steps // 2]
        )
        self.network.most_turns = 10_000_000  # steps are made again and again
        if self.network.conditions.longest >= SILENCE:
            # Each loss costs all steps since the last checkpoint: with one a minute nothing would be made.
            self.network.conditions.tail = 0.0
        self.slices = rng.choice([0, 1, 3])  # that a checkpoint is written in, half a beat each
        self.disks = [_Disk() for _ in range(self.calls)]
        shape = TableShape(16, 4)
        self.larges = [LargeTable(shape, np.dtype(np.float64)) for _ in self.network.ranks]
        self._memories: dict[int, HostMemory] = {}  # by host
        self.dies_moving = rng.random() < 0.2  # whoever first takes the table to where all see it
        self.initial = rng.choice([0.0, 0.25])
        for large in self.larges:
            large.begin_with(self.initial)
        self.had_nothing = False  # to go back to, when a rank was lost

    def run_of(self, group: Group | None, *begin: Any, **more: Any) -> Run:
        """Return what a rank trains."""
        run = super().run_of(group, *begin, **more)
        if group is None:
            return run
        call = (run.start - self.first) // self.steps
        run.large = self.larges[group.rank]
        run.reload = lambda look: self._reload(run, call)
        if self.steps_between_checkpoints < math.inf:
            saver: Any = partial(_Saver, self, call, group)
            run.saver = saver(takes_over=False) if group.is_server else None
            run.take_over_saving = saver
        return run

    def _reload(self, run: Run, call: int) -> Resumed | None:
        disk = self.disks[call]
        if disk.saved is None:
            self.had_nothing = True
            return None
        run.large.put(disk.values, disk.counts)
        return disk.saved

    def beginning(self) -> tuple[np.ndarray, np.ndarray, dict[int, dict[str, np.ndarray]]]:
        """Return a table of first values, which the rows are filled with when the first call begins."""
        values, counts, states = super().beginning()
        return values + self.initial, counts, states

    def _share_rows(self, run: Run, group: Group, start: Setup | Entry) -> None:
        """Do what the engine does, and know on which host the memory is: all ranks are one process."""
        large, host = run.large, self.network.hosts[group.rank]
        is_entry = isinstance(start, Entry)
        if is_entry and run.told["rows"]["host"] != host and not large.is_in_use:
            raise CutOffError("This rank cannot open the memory of the others.")
        with mock.patch.object(large, "_move", partial(self._move, group, large._move)):
            SHARE_ROWS(run, group, start)
        run.told["rows"] = {**run.told["rows"], "host": host}

    def _move(self, group: Group, move: Callable[..., None], memory: Any, is_first: bool) -> None:
        """Take the time that a copy takes, in which a rank may die."""
        if is_first and self.network.conditions.has_word:  # else another one may come meanwhile
            if self.dies_moving:
                self.dies_moving = False
                self.network.at(self.network.now + 0.1 * INTERVAL, partial(self.network.kill, group.rank))
            group.wire.work(0.2 * INTERVAL)
        move(memory, is_first)

    def _share(self, large: LargeTable, setup: Any) -> None:
        """Do what `share_rows` does, and where nobody hears of deaths let who is first make the memory."""
        if isinstance(setup, Setup):
            share_rows(large, setup)
            return
        host = self.network.hosts[next(rank for rank, its in enumerate(self.larges) if its is large)]
        is_first = host not in self._memories
        if is_first:
            self._memories[host] = HostMemory.new(large.size, is_sparse=True)
        large.move_to(self._memories[host], is_first)

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        with (
            mock.patch.object(superstep_training, "_share_rows", self._share_rows),
            mock.patch.object(superstep_training, "share_rows", self._share),
            mock.patch.object(FileThread, "do", _do_now),
        ):
            return super().check()

    @property
    def must_end_well(self) -> bool:
        """See `Calls`; and the last checkpoint is there, and who is silent is known to be dead.

        So it would be of a rank that was lost before it had rows of this host, and cannot join: its process
        ends, which nobody is told here.
        """
        ranks = self.network.ranks
        if any(isinstance(sim.error, CutOffError) and str(sim.error).startswith("This ") for sim in ranks):
            return False
        died = any(sim.died is not None for sim in ranks)
        return super().must_end_well and not (
            died and (self.had_nothing or not self.network.conditions.has_word)
        )

    def table_of(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """See `Calls`: the rows of a host are those that it has in the very end."""
        return np.array(run.values).reshape(-1), np.array(run.counts, np.int64).reshape(-1)


class Divided(SharedRows):
    """The same of tables that are divided between hosts: nobody has all rows, and a host's go with it."""

    name = "divided"
    kinds = (*SharedRows.kinds, Kind.SAVE_ROWS, Kind.SAVED_ROWS, Kind.LOAD_ROWS)

    def __init__(self, seed: int, log: bool = False) -> None:
        super().__init__(seed, log)
        network, rng = self.network, random.Random(f"divided {seed}")
        network.conditions.has_word = True
        if len(set(network.hosts)) == 1:
            network.hosts[:] = sorted(rng.randrange(3) for _ in network.hosts)
        for large in self.larges:
            large.is_divided = True
        self._parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}

    def run_of(self, group: Group | None, *begin: Any, **more: Any) -> Run:
        """Return what a rank trains."""
        run = super().run_of(group, *begin, **more)
        run.read_table = self._table
        return run

    def _reload(self, run: Run, call: int) -> Resumed | None:
        saved = self.disks[call].saved
        self.had_nothing = self.had_nothing or saved is None
        return saved

    def _table(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the whole table of a checkpoint."""
        values, counts = np.full((16, 4), np.nan), np.full((16, 4), -1)
        for rows, its_values, its_counts in self._parts[name]:
            self.claim(bool((counts[rows] == -1).all()), f"rows {rows} are in a checkpoint twice")
            values[rows], counts[rows] = its_values, its_counts
        self.claim(bool((counts >= 0).all()), "a checkpoint has not all rows")
        return values, counts

    def _save_rows(self, part: Part, name: str, number: int, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Do what `Part.save_rows` does, without files."""
        large, host = part.run.large, part.group.host_of(part.group.rank)
        rows = part.division.rows_of(host, 0, 16)
        part.group.wire.work(0.2 * INTERVAL * self.slices)
        self._parts.setdefault(name, []).append((rows, large.rows.values[rows], large.rows.counts[rows]))
        return {}

    def _load_rows(self, part: Part, name: str, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Do what `Part.load_rows` does."""
        part.group.wire.work(0.2 * INTERVAL * self.slices)
        put_rows(part.run.large, part.group.host_of(part.group.rank), *self._table(name))
        return {}

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        save, load = (
            lambda part, *asked: self._save_rows(part, *asked),
            lambda part, *asked: self._load_rows(part, *asked),
        )
        with (
            mock.patch.multiple(Part, save_rows=save, load_rows=load),
            mock.patch.object(superstep_training, "open_desk", lambda *_: None),
            mock.patch.object(division, "BLOCK_SHIFT", 0),
        ):
            return super().check()

    @property
    def must_end_well(self) -> bool:
        """See `SharedRows`; and each host has somebody left, with whom its rows are."""
        network = self.network
        alive = {host for host, sim in zip(network.hosts, network.ranks, strict=True) if sim.is_alive}
        return super().must_end_well and alive == set(network.hosts)

    def table_of(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of all hosts, as they are in the very end."""
        values, counts = np.full((16, 4), np.nan), np.zeros((16, 4), np.int64)
        for host in set(run.large.division.holders):
            rows = run.large.division.rows_of(host, 0, 16)
            # Whose setup was ended by a death may have other memory.
            larges = zip(self.larges, self.network.hosts, strict=True)
            large = next(large for large, its in larges if str(its) == host and large.is_in_use)
            values[rows], counts[rows] = large.rows.values[rows], large.rows.counts[rows]
        return values.reshape(-1), counts.reshape(-1)


class _RowsLearner(_Learner):
    """Learns each update at a row of its own, in rows that all ranks share."""

    def __init__(self, story: SameRows, wire: SimWire, rows: Any) -> None:
        self.table, self.totals = rows, Totals()
        self.walkers: list[int] = []
        self.story, self._wire = story, wire

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        self._wire.work(self.story.seconds_of(steps))
        self.learn_now(stream, steps)

    def learn_now(self, stream: Stream, steps: int) -> None:
        """Learn without taking time."""
        for _ in range(steps):
            row = self.story.next_entry(self._wire.rank)
            self.table.values[row] += 0.5 * (1.0 + row)
            self.table.counts[row] += 1
            stream.used += 1
        self.totals.values += steps


class _OwnShare(OwnShare):
    """What the server learns itself: as in a thread, a chunk at a time, each done after some time."""

    def __init__(self, learner: _RowsLearner) -> None:
        self.learner, self.rate = learner, 0.0
        self._chunks: deque[tuple[float, Chunk]] = deque()
        self._ready: list[Done] = []
        self._ends = 0.0

    def give(self, chunk: Chunk) -> None:
        story = self.learner.story
        self._ends = max(self._ends, story.network.now) + story.seconds_of(chunk.steps)
        self._chunks.append((self._ends, chunk))

    @property
    def _under_way(self) -> int:
        return len(self._chunks)

    def take(self) -> list[Done]:
        while self._chunks and self._chunks[0][0] <= self.learner.story.network.now:
            self._make()
            self.rate = 1.0 / self.learner.story.step_seconds
        made, self._ready = self._ready, []
        return made

    def _make(self) -> None:
        _, chunk = self._chunks.popleft()
        self.learner.learn_now(chunk.stream, chunk.steps)
        self._ready.append(Done(chunk, self.learner.totals.take(), 1e-3 * chunk.steps))

    def close(self) -> None:
        if self._chunks:  # the one that is under way comes to its end
            self._make()
        self._chunks.clear()


class _RowsRun(_Run):
    """A call of train with such learners."""

    def __post_init__(self) -> None:
        super().__post_init__()
        learns_here = self.story.server_learns
        self.source.simulator = SimpleNamespace(legal=None) if learns_here else None

    def learner(self, rates: Rates, n_states: int | None = None, is_alone: bool = False) -> Any:
        return _RowsLearner(self.story, self.wire, self.rows)


class SameRows(Calls):
    """Calls in which all ranks of a host learn in the same rows: a loss costs no row, and steps are exact.

    What a rank had learned and not reported when it was lost stays in the rows, and is learned again.
    """

    name = "same-rows"
    placement = "sharded"

    def __init__(self, seed: int, log: bool = False) -> None:
        super().__init__(seed, log)
        self.network.hosts[:] = [0] * self.network.size
        self.server_learns = random.Random(f"own share {seed}").random() < 0.7
        self._memories: dict[int, _Memory] = {}  # by call
        self._runs: dict[int, tuple[int, Run]] = {}  # by rank: the call that it makes

    def random_settings(self, rng: random.Random) -> Settings:
        """Return those that the protocol depends on."""
        kept = super().random_settings(rng)
        return replace(kept, compression_threshold=0.0, prefetch_factor=2, sync_frequency="auto")

    def with_more(self, settings: Settings, seed: int) -> Settings:
        """See `Calls`: there is nothing to compress, and nobody is behind."""
        return settings

    def run_of(self, group: Group, *begin: Any, **more: Any) -> Run:
        """Return what a rank trains."""
        run = _RowsRun(self.settings, _Source(self, group.wire), *begin, **more)
        self._runs[group.rank] = (run.start // self.steps, run)
        return run

    def _share(self, start: Any, size: int) -> _Memory:
        """Return the memory of a call, which has what it begins with since the first rank asked for it."""
        call, run = self._runs[start.rank]
        if call not in self._memories:
            self._memories[call] = memory = _Memory(size, call)
            rows = LineTable(TableShape(ENTRIES, 1), run.values.dtype, None, memory.bytes)
            rows.load(run.values, run.counts)
        return self._memories[call]

    def check(self) -> list[str]:
        """Let it happen, and return what was wrong."""
        with (
            mock.patch.object(sharded_training, "share", self._share),
            mock.patch.object(sharded_training, "opened_later", lambda told, _: self._memories[told["host"]]),
            mock.patch.object(HostRows, "begin_with", lambda *_: None),
            mock.patch.object(sharded_server, "OwnShare", _OwnShare),
        ):
            return super().check()

    def tables_of(self, records: Any) -> list[int]:
        """Return none: the server learns, too, and reports come between pushes."""
        return []

    @property
    def tables_must_agree(self) -> bool:
        """Whether nobody may still have learned when others had their tables."""
        return not (any(sim.was_stopped for sim in self.network.ranks) or any(self.lives))

    def _check_table(self, values: np.ndarray, counts: np.ndarray) -> None:
        entries = np.arange(SHARED, ENTRIES)
        own, steps = counts[SHARED:], self.calls * self.steps
        made = int(own.sum())
        self.claim(made >= steps, f"{made} updates in the table, fewer than {steps}")
        network = self.network
        may_be_lost = network.faults or network.conditions.longest + LONGEST_STEP > 0.6 * SILENCE
        self.claim(made == steps or bool(may_be_lost), f"{made} updates in the table, not {steps}")
        self.claim(int(own.max()) <= 1, f"entries {entries[own > 1][:5]} were learned more than once")
        right = np.where(own == 1, 0.5 * (1.0 + entries), 0.0)
        self.claim(np.array_equal(values[SHARED:], right), "entries have wrong values")
        self._check_kept(counts)
