"""The server of supersteps where the table is there once for the ranks of a host, who write rows in place.

Nobody has another table to go back to. When a rank is lost in the middle of a superstep, all others stop, the
rows are read from the last checkpoint of the call, and the same steps are made again. Where there are several
hosts, rows that another host owns are as they were when they were last told here: one rank of each host tells
the server's where the whole table is needed, and hears it before rows get other owners, and at the end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.remote_errors import Failed
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.engines.roles.messages import Leave
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.run import Resumed
from dist_classicrl.engines.saving import Saver
from dist_classicrl.engines.supersteps.host_lines import HostLines
from dist_classicrl.engines.supersteps.messages import AskRows, GotRows, Halt, Halted, SomeRows
from dist_classicrl.engines.supersteps.part import WalkerCounts, cut_at
from dist_classicrl.engines.supersteps.server import SuperstepClient, SuperstepServer
from dist_classicrl.errors import CheckpointUnreadableError, RankLostError
from dist_classicrl.membership.heartbeat import Beat
from dist_classicrl.process.stop import Stop


@dataclass
class RowsServer(SuperstepServer):
    """Serves one call of `train` whose table is in memory that the ranks of each host share.

    In place of a server that was lost, which may have been in the middle of a superstep, it begins with
    `make_ready`.
    """

    def __post_init__(self) -> None:
        #: Whether the rows are those of the last cut.
        self._is_at_cut = self.knows_all
        #: Whether each host has all rows of the last cut.
        self._is_spread = self.knows_all
        self._some: dict[int, SomeRows] = {}
        self._got: set[tuple[int, int]] = set()  # ranks with the first row of what they have got
        self._halted: set[int] = set()
        self._leaves: list[tuple[Peer[SuperstepClient], Leave]] = []
        self._gone_back_to: Resumed | None = None
        super().__post_init__()

    def make_ready(self) -> None:
        """See `Serving`: go back to the last checkpoint, unless nothing was made.

        If so, nothing is made before all have begun: who lost this rank in the setup would begin with that.
        """
        if not self._is_at_cut:
            self._go_back()
            return
        due, message = dict(self.peers.present), encode(Halt(self._attempt))
        for peer in due.values():
            peer.channel.send(message)
        while not self._hear(due, self._halted):
            due = {rank: peer for rank, peer in due.items() if self.peers.has(peer)}

    def has_lost(self, rank: int) -> int:
        """Divide the rows anew, without it, after going back where anything was made since the last cut."""
        if self._is_at_cut:
            self._must_begin = True
            return 0
        return super().has_lost(rank)

    def has_admitted(self, rank: int) -> None:
        """See `SuperstepServer`: its host may have had nobody who was told of the rows."""
        self._is_spread = False
        super().has_admitted(rank)

    def take_in(self, peer: Peer[SuperstepClient], message: np.ndarray) -> None:
        """See `SuperstepServer`. Who leaves is let go between two supersteps, so that its rows are whole."""
        match decode(message):
            case Halted(attempt):
                if attempt == self._attempt:
                    self._halted.add(peer.rank)
            case SomeRows() as some:
                if some.attempt == self._attempt:
                    self._some[peer.rank] = some
            case GotRows(attempt, first):
                if attempt == self._attempt:
                    self._got.add((peer.rank, first))
            case Leave() as leave:
                self._leaves.append((peer, leave))
            case _:
                super().take_in(peer, message)

    # Supersteps

    def _look(self) -> Stop | None:
        if self._leaves:
            self._collect()
            leaves, self._leaves = self._leaves, []
            for peer, leave in leaves:
                if self.peers.present.get(peer.rank) is peer:
                    self._let_leave(peer, leave)
        return super()._look()

    def _let_leave(self, peer: Peer[SuperstepClient], leave: Leave) -> None:
        self.members.let_go(peer, leave)

    def _save(self, saver: Saver) -> None:
        """See `SuperstepServer`: there is no memory for a copy, so all wait until it is written."""
        saver.save_and_wait(self.table.values, self.table.counts, self.position, self.keep_alive)

    def _seconds_between_copies(self) -> float:
        return math.inf

    def _begin(self) -> None:
        if not self._is_at_cut:
            self._go_back()
        self._spread()
        super()._begin()

    def _play(self, until: int) -> None:
        self._is_at_cut = self._is_spread = False
        super()._play(until)

    def _gather(self) -> None:
        super()._gather()
        self._gather_rows()
        self._is_at_cut = True

    def finish(self, result: dict[str, Any]) -> None:
        """See `Serving`: all hosts have the whole table then."""
        self._spread()
        super().finish(result)

    def tell_end(self, peer: Peer[SuperstepClient], message: np.ndarray) -> None:
        """See `Serving`: its host may have had nobody who was told of the rows."""
        if self.group.host_of(peer.rank) == self.group.host_of(self.group.rank) or self._tell_rows_to(peer):
            super().tell_end(peer, message)

    def _tell_rows_to(self, peer: Peer[SuperstepClient]) -> bool:
        """Tell all rows to one who came at the end; return False if it is lost. Nobody else is heard."""
        rows, wire, backoff = HostLines(self.part), self.group.wire, Backoff(self.group.wire.sleep)
        begin = wire.now()
        self._got.clear()
        for first, last in rows.slices():
            peer.channel.send(encode(SomeRows(self._attempt, first, rows.told(slice(first, last)))))
            while (peer.rank, first) not in self._got:
                if peer.channel.lost or wire.now() > peer.channel.last_heard + self.group.timing.silence:
                    return False
                while (answer := peer.channel.poll()) is not None:
                    match decode(answer):
                        case GotRows(_, got):
                            self._got.add((peer.rank, got))
                        case Failed() | Beat() as told:
                            self.take_in_common(peer, told)
                self.keep_alive()
                backoff.wait()
        self.excuse(wire.now() - begin)
        return True

    # Rows of other hosts

    def _others(self, ranks: Collection[int]) -> dict[str, Peer[SuperstepClient]]:
        """Return the first of these ranks on each other host, among those that are there."""
        own = self.group.host_of(self.group.rank)
        found: dict[str, Peer[SuperstepClient]] = {}
        for rank in sorted(ranks):
            host, peer = self.group.host_of(rank), self.peers.present.get(rank)
            if peer is not None and host != own:
                found.setdefault(host, peer)
        return found

    def _gather_rows(self) -> None:
        """Take in the rows that other hosts own; `Broken` if one who has them is lost."""
        others, rows = self._others(self.part.players), HostLines(self.part)
        if not others:
            return
        for first, last in rows.slices():
            self._some = {}
            theirs = {peer: rows.of_host(host, first, last) for host, peer in others.items()}
            asked = {peer: there for peer, there in theirs.items() if there.size}
            for peer in asked:
                peer.channel.send(encode(AskRows(self._attempt, first, last)))
            self._await(self._some, len(asked))
            for peer, there in asked.items():
                rows.put(there, self._some[peer.rank].lines)
        self.part.own_share.table.check_finite()

    def _spread(self) -> None:
        """Let all hosts have the whole table as it is at the cut, whoever is lost meanwhile."""
        while not self._is_spread:
            others = self._others(self.peers.present)
            self._is_spread = True  # unless somebody is admitted meanwhile
            if not self._spread_to(list(others.values())):
                self._is_spread = False

    def _spread_to(self, others: list[Peer[SuperstepClient]]) -> bool:
        """Tell all rows to these; return False if one is lost."""
        rows = HostLines(self.part)
        for first, last in rows.slices() if others else ():
            told = encode(SomeRows(self._attempt, first, rows.told(slice(first, last))))
            self._got.clear()
            for peer in others:
                peer.channel.send(told)
            have_it = self._hear({(peer.rank, first): peer for peer in others}, self._got)
            if not have_it or not all(map(self.peers.has, others)):
                return False
        return True

    def _hear(self, due: Mapping[Any, Peer[SuperstepClient]], answers: Container[Any]) -> bool:
        """Look around until all that is due has come; return False if one is lost before from whom it is."""
        backoff = Backoff(self.group.wire.sleep)
        while missing := [peer for answer, peer in due.items() if answer not in answers]:
            if not all(map(self.peers.has, missing)):
                return False
            self._look_around_anyhow()
            backoff.wait()
        return True

    # After a loss

    def _go_back(self) -> None:
        """Bring the rows to the last checkpoint of this call.

        RankLostError if there is none, and CheckpointUnreadableError where it cannot be read.
        """
        self._halt_all()
        run = self.part.run
        try:
            saved = self.part.reload(self.keep_alive)
        except OSError as error:
            raise unreadable(
                self.group.rank, "the table from the last checkpoint of this call", error
            ) from error
        if saved is None:
            raise RankLostError(
                "A rank was lost in the middle of a superstep, while rows of the table that all ranks share "
                "were being written, and there is no checkpoint of this call to go back to: what was learned "
                "is lost. Start the job again. With train(..., checkpoint_dir=..., checkpoint_interval=...) "
                "a loss costs the steps since the last checkpoint, and no more."
            )
        self._gone_back_to = saved
        self.cut = cut_at(run, saved)
        self._used = self.cut.used
        self.tally.go_back_to(saved.tally)
        self._sums = WalkerCounts(self.tally, self.cut)
        self.table.overwritten()
        self._is_at_cut = self._must_begin = True
        self._is_broken = self._is_spread = False

    def _halt_all(self) -> None:
        """Wait until all others have stopped; RankLostError if one may go on that is not heard any more."""
        self.part.close()
        self._attempt = self.group.next_attempt(self._attempt)
        self._halted = set()
        message, asked = encode(Halt(self._attempt)), set[Peer[SuperstepClient]]()
        lost = {rank for rank, _ in self.members.lost_before}
        writers = lost.union(self.peers.present, self.part.players) - {self.group.rank}
        backoff, begin = Backoff(self.group.wire.sleep), self.group.wire.now()
        while missing := self._on_hosts_in_use(writers - self._halted - self.group.dead):
            for peer in self.peers.present.values():
                if peer not in asked:  # who was away and came back, too
                    peer.channel.send(message)
                    asked.add(peer)
            is_there = not missing.isdisjoint(self.peers.present)
            if not is_there and self.group.wire.now() > begin + self.group.timing.silence:
                raise _may_go_on(missing)
            self._look_around_anyhow()
            backoff.wait()

    def _on_hosts_in_use(self, ranks: set[int]) -> set[int]:
        """Return which of these ranks are on a host of one that is there: what others write nobody reads."""
        there = {self.group.host_of(rank) for rank in (self.group.rank, *self.peers.present)}
        return {rank for rank in ranks if self.group.host_of(rank) in there}


def unreadable(rank: int, what: str, why: object) -> CheckpointUnreadableError:
    """Return what ends the run where a rank cannot read what it has to go back to."""
    return CheckpointUnreadableError(
        f"A rank was lost, and rank {rank} cannot read {what}: {why}. The checkpoint may be as good as ever: "
        "see to it that all hosts reach checkpoint_dir=, and start the job again, which goes on from there. "
        "timeout= says for how long nothing may go on."
    )


def _may_go_on(ranks: set[int]) -> RankLostError:
    several = ", ".join(map(str, sorted(ranks)))
    return RankLostError(
        f"Rank {several} was taken for lost in the middle of a superstep, but MPI does not say that it has "
        "died: it may go on to write rows of the table that all ranks share, and what was learned is lost. "
        "Start the job again; it goes on from the last checkpoint, where there is one (checkpoint_dir=). "
        "heartbeat_timeout= says for how long a rank may be silent."
    )
