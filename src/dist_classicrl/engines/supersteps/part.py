"""What one rank does in supersteps: it owns rows, and exchanges walkers and targets with the other owners."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.supersteps.messages import Cut, Played, Rows
from dist_classicrl.errors import ProtocolError, StateLimitError
from dist_classicrl.learning.learner import Stream
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.supersteps.keyed_share import KeyedShare, in_key_order, share_of
from dist_classicrl.learning.supersteps.share import Share, supersteps, totals_of
from dist_classicrl.membership.group import Group

_TEND_SECONDS = 0.01
_SPINS = 50
"""So often a message is looked for before this process sleeps: a superstep lasts about as long as a sleep."""


def first_cut(run: Run) -> Cut:
    """Return where a call begins, or goes on from a checkpoint."""
    stream = run.alone_stream()
    resumed = run.resumed
    is_same = resumed is not None and resumed.mode == "supersteps" and 0 in resumed.learners
    walkers = resumed.learners[0] if resumed is not None and is_same else {}
    return Cut(stream.start, stream.used, stream.last, walkers)


class Sums:
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

    def __post_init__(self) -> None:
        self.attempt = -1
        #: What ends the run at the end of a superstep, on all ranks alike.
        self.full: StateLimitError | None = None
        self.players: tuple[int, ...] = ()
        self._channels: list[Channel] = []  # to the other players, in their order
        self._came: list[deque[np.ndarray]] = []
        self._tended = 0.0

    def share(self, rank: int, ranks: int) -> Share:
        """Return what is owned by number `rank` of so many."""
        run = self.run
        assert run.walkers is not None  # else another engine trains
        problem = run.problem(self.rates)
        return share_of(problem, run.walkers, run.partition, rank, ranks, is_alone=False)

    def begin(self, attempt: int, players: tuple[int, ...], cut: Cut) -> None:
        """Own what is this rank's among the players, with the run's table as it is now, from `cut` on."""
        self.close()
        run, wire = self.run, self.group.wire
        self.attempt, self.players = attempt, players
        self._own = players.index(self.group.rank)
        self._share = share = self.share(self._own, len(players))
        self.full = None
        if isinstance(share, KeyedShare):
            assert run.keyed is not None
            share.load(run.values, run.counts, run.keyed.keys)
        else:
            share.load(run.values, run.counts)
        if cut.walkers:
            self._share.restore(cut.walkers)
        self.stream = Stream(stream_key(run.seed, "alone", cut.start), cut.start, cut.used, last=cut.last)
        tag = self.group.tag_between_workers(attempt)
        self._channels = [wire.channel(rank, tag) for rank in players if rank != self.group.rank]
        self._came = [deque() for _ in self._channels]

    def close(self) -> None:
        """Exchange nothing more."""
        for channel in self._channels:
            channel.close()
        self._channels = []

    def play(self, until: int, tend: Callable[[], None]) -> Played:
        """Make supersteps up to step `until` of the stream; `tend` is called every 10 ms.

        What that raises ends it, somewhere in the middle: then there has to be another `begin`.
        """
        share, begun = self._share, time.perf_counter()
        moved = n_bytes = 0
        learning = 0.0
        for stretch, done, size in supersteps(self.stream, self.rates, share.walkers, until):
            before = time.perf_counter()
            records, offsets = share.depart(stretch, done, size)
            learning += time.perf_counter() - before
            asked = self._exchange(self._of_others(records, offsets), tend)
            before = time.perf_counter()
            inbox = np.concatenate([self._records(part) for part in asked]) if asked else records
            answers = share.answer(stretch, done, inbox)
            learning += time.perf_counter() - before
            ends = np.cumsum([part.size // inbox.shape[1] for part in asked])
            told = self._exchange(np.split(answers, ends[:-1]) if asked else [], tend)
            before = time.perf_counter()
            share.settle(stretch, done, self._replies(told, len(records), answers))
            learning += time.perf_counter() - before
            moved += share.moved
            n_bytes += records.nbytes + answers.nbytes
            if isinstance(share, KeyedShare) and share.most is not None:
                own = np.array([share.n_known])
                known = self._exchange([own for _ in self._channels], tend)
                if share.is_over(int(np.concatenate([own, *known]).sum())):
                    self.full = share.table.full(share.most)
                    self.stream.used += size  # as the loop does, which ends here
                    break
        share.check()
        seconds = time.perf_counter() - begun
        return Played(self.attempt, self.stream.used, moved, share.counted(), learning, seconds, n_bytes)

    def rows(self) -> Rows:
        """Return its rows, and the state of its walkers."""
        share = self._share
        keys = share.keys.view(np.int64) if isinstance(share, KeyedShare) else None
        return Rows(self.attempt, *share.rows(), share.state(), keys)

    def gather(self, rows: list[Rows]) -> None:
        """Write the rows of all players, in their order, into the run's table."""
        run = self.run
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

    def _of_others(self, records: np.ndarray, offsets: np.ndarray) -> list[np.ndarray]:
        ranks = range(len(self.players))
        return [records[offsets[rank] : offsets[rank + 1]] for rank in ranks if rank != self._own]

    def _records(self, part: np.ndarray) -> np.ndarray:
        words = self._share.words
        if part.dtype != np.int64 or part.size % words:
            raise _wrong(part)
        return part.reshape(-1, words)

    def _replies(self, told: list[np.ndarray], n: int, model: np.ndarray) -> np.ndarray:
        if not told:
            return model
        width = model.shape[1]
        if any(part.dtype != np.float64 for part in told) or sum(part.size for part in told) != n * width:
            raise _wrong(told[0])
        return np.concatenate(told).reshape(n, width)

    def _exchange(self, parts: list[np.ndarray], tend: Callable[[], None]) -> list[np.ndarray]:
        """Send a part to each of the other players, and return theirs, in their order."""
        for channel, part in zip(self._channels, parts, strict=True):
            channel.send(envelope.encode(Kind.WALKERS, part))
        wire = self.group.wire
        backoff = Backoff(wire.sleep)
        tries = 0
        while missing := [
            channel for channel, came in zip(self._channels, self._came, strict=True) if not came
        ]:
            arrived = wire.receive(missing)
            for channel, message in arrived:
                self._came[self._channels.index(channel)].append(message)
            self._tend(tend)
            tries = 0 if arrived else tries + 1
            if tries > _SPINS:
                backoff.wait()
        self._tend(tend)
        return [self._opened(came.popleft()) for came in self._came]

    def _tend(self, tend: Callable[[], None]) -> None:
        now = self.group.wire.now()
        if now - self._tended > _TEND_SECONDS:
            self._tended = now
            tend()
            for channel in self._channels:
                channel.reap()

    def _opened(self, message: np.ndarray) -> np.ndarray:
        kind, parts = envelope.decode(message)
        if kind is not Kind.WALKERS or len(parts) != 1:
            raise ProtocolError(f"{kind.name} came from another owner of rows, where walkers belong.")
        return parts[0]


def _wrong(part: np.ndarray) -> ProtocolError:
    return ProtocolError(
        f"{part.size} numbers of type {part.dtype} came from another owner of rows, which is no answer to "
        "what it was sent. Do all ranks run the same version?"
    )
