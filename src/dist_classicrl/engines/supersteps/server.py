"""The server where all learn in supersteps: it owns rows, too, and says what is done when.

A rank that is lost takes rows with it: the others go back to the last table that all have told, divide it
anew, and make the same steps again, in orders as short as they were: what has come meanwhile is looked at
between these.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn

import numpy as np

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.engines.outcome import Learned
from dist_classicrl.engines.roles.cores import with_cores
from dist_classicrl.engines.roles.ordered import Broken, LearningServer
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.saving import Position, Saver
from dist_classicrl.engines.supersteps.messages import Begin, Cut, Keep, Play, Played, Rows, TellRows
from dist_classicrl.engines.supersteps.part import Part, WalkerCounts
from dist_classicrl.engines.supersteps.table import GatheredTable
from dist_classicrl.engines.supersteps.who_plays import WhoPlays
from dist_classicrl.errors import ProtocolError, StateLimitError
from dist_classicrl.learning.state import stack_states
from dist_classicrl.learning.supersteps.crew import joined, totals_of
from dist_classicrl.process.stop import Stop

_FIRST_STEPS = 4096
_PLAY_SECONDS = 0.1


@dataclass
class SuperstepClient:
    """What the server knows of a worker: the version of the table that it could go on with, -1: none."""

    version: int


@dataclass
class SuperstepServer(LearningServer[SuperstepClient, Part]):
    """Serves one call of `train`, and owns `part` of the rows; the table is that of `cut`."""

    can_rescue = False
    owners_count: ClassVar[bool] = False  # where what is saved, or the end, is of rows whose owners all know
    why_more = (
        "More of the states that are visited are its own. A function as partition= can divide them more "
        "evenly."
    )

    table: GatheredTable
    cut: Cut = field(kw_only=True)

    def __post_init__(self) -> None:
        self._first = self.part.run.alone_stream().used  # steps of the stream before `start`
        self._used = self.cut.used  # what all have made
        self._is_closed = False
        self._played: dict[int, Played] = {}
        self._rows: dict[int, Rows] = {}
        self._sums = WalkerCounts(self.tally, self.cut)
        self._rate = 0.0
        self._who = WhoPlays(self.part.can_be_alone, self.part.run.walkers or 1)
        self._kept_at = self.group.wire.now()
        self.table.gather = self._settle
        self.part.run.lend(self._settle)
        super().__post_init__()

    # What an engine does

    def run(self) -> Stop | None:
        """Order supersteps until all steps are made."""
        while True:
            self.members.check_earlier_losses()
            try:
                if self._must_begin_first:
                    self._begin()
                stop = self._look() if self._used < self._last else None
                if stop is not None or self._used >= self._last:  # a callback may just have ended it
                    self._collect()
                    return stop
                self._advance()
                if self.part.full is not None:
                    self._collect()
                    self._end_full(self.part.full)
            except Broken:
                continue
            self.report_progress()

    @property
    def _last(self) -> int:
        """The step of the stream at which to end: where it was reported last, if the end is wanted since."""
        if self.reporter.wants_end:
            return self._first + self.tally.reported.steps - self.tally.earlier_steps
        return self.cut.last

    def _end_full(self, full: StateLimitError) -> NoReturn:
        if self.saver is not None:
            values, counts = self.table.values, self.table.counts
            self.saver.rescue(values, counts, self.position, self.keep_alive)
        raise full

    @property
    def made(self) -> int:
        """Steps that all have made of those that are to be made."""
        return self._used - self._first

    @property
    def position(self) -> Position:
        """How far the run is, with the table that all have told last."""
        cut, keyed = self.cut, self.part.run.keyed
        return Position(
            self.start + cut.used - self._first,
            self.tally.to_dict(self.seconds),
            "supersteps",
            stream={"start": cut.start, "used": cut.used},
            version=self.table.version,
            learners=stack_states([cut.walkers]) if cut.walkers else {},
            states={} if keyed is None else keyed.arrays(),
        )

    @property
    def learning(self) -> int:
        """How many ranks learn."""
        return len(self.who_learns())

    def waiting(self, ranks: Collection[int]) -> Collection[int]:
        """See `Service`: who only waits until messages pay is one of those who learn."""
        return set(ranks).difference(self._with_cores())

    def _with_cores(self) -> list[int]:
        """Return who could own rows now, this rank first."""
        ranks = [self.group.rank, *(peer.rank for peer in self.peers.learners)]
        return with_cores(self.told, self.group, ranks)

    def new_client(self, is_first: bool) -> SuperstepClient:
        """Return what there is to know of a worker."""
        return SuperstepClient(self.table.version if is_first and self.knows_all else -1)

    def take_in(self, peer: Peer[SuperstepClient], message: np.ndarray) -> None:
        """Take in what a worker has done, its rows, or what any may send."""
        match decode(message):
            case (Played() | Rows()) as told:
                if not self._is_due(peer, told.attempt):
                    return
                if isinstance(told, Played):
                    self._played[peer.rank] = told
                else:
                    self._rows[peer.rank] = told
            case told:
                self.take_in_common(peer, told)

    # Supersteps

    def _steps_at_once(self) -> int:
        """Return how many steps to order: what takes 0.1 s, or up to the next report or checkpoint."""
        first = _FIRST_STEPS if self.part.run.source.simulator is not None else 1  # which may take seconds
        steps = max(1, int(self._rate * _PLAY_SECONDS)) if self._rate > 0.0 else first
        until = self.reporter.next_step - self.tally.steps
        if self.saver is not None:
            until = min(until, self.saver.next_step - self.start - self.made)
        return int(max(1, min(steps, until)))

    def _look(self) -> Stop | None:
        """Save, if it is time, and tell all the table; return why to stop here, if there is a reason.

        `Broken` if a rank is lost meanwhile: it is called again, where the others have gone back to.
        """
        saver, here = self.saver, self.start + self.made
        if saver is not None:
            stop = saver.look(here)
            if stop is not None:
                return stop
            if self.made and saver.is_due(here):
                self._collect()
                saver.begin(here)
                self.report_progress(now=True)
                self._save(saver)
        if self.group.wire.now() > self._kept_at + self._seconds_between_copies():
            self._collect()
            self._keep()
        return None

    def _save(self, saver: Saver) -> None:
        """Save the table of the last cut."""
        if self.part.run.keyed is not None:  # there may be other arrays now
            self._snapshot = self.table.snapshot()
        self._snapshot.copy_now()
        saver.save(self._snapshot.values, self._snapshot.counts, self.position)

    def _seconds_between_copies(self) -> float:
        return self.seconds_between_copies(1 + len(self.peers.present))

    def _keep(self) -> None:
        """Tell all the table, so that each of them could go on from it."""
        self._kept_at = self.group.wire.now()
        message = encode(Keep(self.cut, self.table.refresh(-1)))
        for peer in self.peers.present.values():
            peer.channel.send(message)
            peer.client.version = self.table.version
            self.tally.bytes_pulled += message.size

    @property
    def _must_begin_first(self) -> bool:
        """Whether nothing can be done before `_begin` has brought all to the last cut."""
        return self._is_broken

    def _advance(self) -> None:
        """Let all make some supersteps, divided anew if need be; `Broken` if one is lost that owns rows."""
        if self._must_begin:
            self._collect(divides=True)
        self._play(min(self._used + self._steps_at_once(), self._last))

    def _begin(self) -> None:
        """Divide the table of the last cut among all who are there, or who are to play."""
        self.part.close()
        self._attempt = self.group.next_attempt(self._attempt)
        if self._is_broken and self.cut.tally is not None:
            self.tally.go_back_to(self.cut.tally.to_dict())
        self._is_broken = self._must_begin = False
        self._who.begin()
        self._used = self.cut.used
        playing = [self.group.rank] if self._who.is_alone else self._with_cores()
        players = tuple(sorted(playing))
        others = [self.peers.present[rank] for rank in playing[1:]]
        owners, rows = self.part.owners(players), self.part.new_rows()
        ready: dict[int, np.ndarray] = {}
        for peer in others:
            since = peer.client.version
            if since not in ready:
                refresh = self.table.refresh(since)
                ready[since] = encode(Begin(self._attempt, players, self.cut, refresh, owners, rows))
            peer.client.version = self.table.version
            peer.channel.send(ready[since])
            self.tally.bytes_pulled += ready[since].size
        self.part.begin(self._attempt, players, self.cut, owners, rows)
        self._laggards.begin()

    def _play(self, until: int) -> None:
        begin, others = self.group.wire.now(), len(self._with_cores()) > 1
        self._played = {}
        self._order(encode(Play(self._attempt, until)))
        self._played[self.group.rank] = self.part.play(until, self._tend)
        self._await(self._played, len(self.part.players))
        before, self._used = self._used, self.part.stream.used
        if any(played.used != self._used for played in self._played.values()):
            raise ProtocolError("The ranks ended their supersteps at different steps.")
        seconds = max(self.group.wire.now() - begin, 1e-9)
        steps, stream = self._used - before, self.part.stream
        self._rate = steps / seconds
        if others and self._who.note(steps, seconds, stream.start + stream.used, begin + seconds):
            self._must_begin, self._rate = True, 0.0
        self._count()

    def _count(self) -> None:
        tally = self.tally
        tally.steps = tally.earlier_steps + self.made
        self._sums.enter(totals_of(np.sum([played.counted for played in self._played.values()], axis=0)))
        for rank, played in self._played.items():
            spent = Learned(learning_seconds=played.learning_seconds, worker_seconds=played.worker_seconds)
            tally.pushes += 1
            tally.bytes_pushed += played.bytes_sent
            tally.learning_seconds += played.learning_seconds
            tally.worker_seconds += played.worker_seconds
            self.reporter.count(rank, played.moved, spent, n_bytes=played.bytes_sent)
            self._laggards.count(rank, played.moved, played.learning_seconds)
        self._laggards.judge()

    def _collect(self, divides: bool = False) -> None:
        """Bring the table to what all have made; `Broken` if one is lost that owns rows.

        If it `divides`, the rows are divided anew after that if need be.
        """
        if self._must_begin_first:
            raise Broken
        if self.cut.used != self._used:
            self._gather()
        if self._must_begin and (divides or self.owners_count):
            self._begin()

    def _settle(self) -> None:
        """Do likewise whoever is lost, for callbacks, which are told of these steps and of no others.

        Once this is closed the table stays as it was told last.
        """
        until = self._used
        while self.cut.used != until and not self._is_closed:
            try:
                if self._must_begin_first:
                    self._begin()
                if self._used < until:
                    self._play(until)
                self._collect()
            except Broken:
                continue

    def _gather(self) -> None:
        self._rows = {}
        own = self.part.rows()
        self._order(encode(TellRows(self._attempt)))
        self._rows[self.group.rank] = own
        self._await(self._rows, len(self.part.players))
        rows = [self._rows[rank] for rank in self.part.players]
        self.part.gather(rows)
        self.table.overwritten()
        walkers = joined(told.walkers for told in rows)
        self.cut = replace(self.cut, used=self._used, walkers=walkers, tally=self.tally.so_far(self.seconds))

    def close(self, linger: float) -> None:
        """See `Serving`."""
        self._is_closed = True
        self.part.end()
        super().close(linger)
