"""The server of supersteps where each host has its share of the table, and nobody all of it.

Rows stay on their host as long as a rank of it learns. When a host is lost, its rows are: all others read
theirs from the last checkpoint of the call, with those of the host that is gone among them, and make the same
steps again. A checkpoint is written by all hosts at once, each its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.checkpoint.arrays import ArrayEntry
from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.engines.roles.messages import Leave
from dist_classicrl.engines.roles.ordered import Broken
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.supersteps.division import Division
from dist_classicrl.engines.supersteps.host_lines import HostLines
from dist_classicrl.engines.supersteps.messages import AskRows, Begin, LoadRows, PutRows, SavedRows, SaveRows
from dist_classicrl.engines.supersteps.rows_server import RowsServer, unreadable
from dist_classicrl.engines.supersteps.server import SuperstepClient
from dist_classicrl.errors import RankLostError


@dataclass
class DividedServer(RowsServer):
    """Serves one call of `train` whose table is divided between hosts."""

    owners_count = True

    def __post_init__(self) -> None:
        self._saved: dict[int, SavedRows] = {}
        #: The checkpoint whose rows all hosts have to read before they go on; "": none.
        self._to_load = ""
        super().__post_init__()
        if self.saver is not None:
            self.saver.write_parts = self._write_parts

    @property
    def _division(self) -> Division:
        division = self.part.division
        assert division is not None  # else another server serves
        return division

    def take_in(self, peer: Peer[SuperstepClient], message: np.ndarray) -> None:
        """See `SuperstepServer`."""
        match decode(message):
            case SavedRows() as saved:
                if saved.attempt == self._attempt:
                    self._saved[peer.rank] = saved
            case _:
                super().take_in(peer, message)

    def has_lost(self, rank: int) -> int:
        """Go back where its host has nobody left, and so its rows are gone."""
        host = self.group.host_of(rank)
        if host in self._division.holders and host not in self._hosts_but(rank):
            self._is_at_cut = False
        return super().has_lost(rank)

    def _hosts_but(self, rank: int) -> set[str]:
        """Return the hosts of all who learn without this rank."""
        others = {self.group.rank, *(peer.rank for peer in self.peers.learners)} - {rank}
        return {self.group.host_of(other) for other in others}

    # What is not done: nobody else needs the rows

    def _gather_rows(self) -> None:
        pass

    def _spread(self) -> None:
        self._is_spread = True

    def tell_end(self, peer: Peer[SuperstepClient], message: np.ndarray) -> None:
        """See `RowsServer`: it needs no rows, but has to know which host has them."""
        self._tell_owners(peer)
        peer.channel.send(message)

    def _tell_owners(self, peer: Peer[SuperstepClient]) -> None:
        part = self.part
        if part.players:
            refresh = self.table.refresh(-1)
            begin = Begin(self._attempt, part.players, self.cut, refresh, part.owners_now, {})
            peer.channel.send(encode(begin))

    # Who owns what

    @property
    def _must_begin_first(self) -> bool:
        """See `SuperstepServer`; so it is, too, where hosts have to read their rows yet."""
        return super()._must_begin_first or bool(self._to_load)

    def _begin(self) -> None:
        if not self._is_at_cut:
            self._go_back()
        if self._division.give_away(self._hosts_but(-1)) and not self._to_load:
            raise self._lost()
        super()._begin()
        if self._to_load:
            self._have_loaded(self._to_load)
            self._to_load = ""

    def _go_back(self) -> None:
        super()._go_back()
        large, saved = self.part.run.large, self._gone_back_to
        assert large is not None and saved is not None  # else that has raised
        large.waiting, self._to_load = None, saved.checkpoint.rpartition("/")[2]

    def _lost(self) -> RankLostError:
        gone = sorted(set(self._division.holders) - self._hosts_but(-1))
        return RankLostError(
            f"The host {', '.join(gone) or 'of a rank'} was lost, and with it the rows of the table that it "
            "alone had. Start the job again: with checkpoint_dir= it goes on from the last checkpoint."
        )

    def _have_loaded(self, name: str) -> None:
        """Let all hosts read their rows; `Broken` if one is lost, CheckpointUnreadableError if one cannot."""
        what = f"the rows of its host from the checkpoint {name}"
        others = self._others(self.part.players)
        self._saved = {}
        for peer in others.values():
            peer.channel.send(encode(LoadRows(self._attempt, name)))
        try:
            self.part.load_rows(name, self.keep_alive)
        except OSError as error:
            raise unreadable(self.group.rank, what, error) from error
        self._await_saved(others, Broken())
        for peer in others.values():
            if why := self._saved[peer.rank].error:
                raise unreadable(peer.rank, what, why)

    def _let_leave(self, peer: Peer[SuperstepClient], leave: Leave) -> None:
        """See `RowsServer`: what its host alone has goes to the others first.

        It waits for the next `Begin` where there is to be one: who came since the last has no part yet, and
        of rows that have moved since then nobody knows where they are.
        """
        host, left = self.group.host_of(peer.rank), self._hosts_but(peer.rank)
        if host in self._division.holders and host not in left and self._is_at_cut:
            if self._must_begin:
                self._leaves.append((peer, leave))
                return
            self._move_out(peer, host, left)
            if not self.peers.has(peer):  # lost, when it had told all
                return
        super()._let_leave(peer, leave)

    def _move_out(self, leaving: Peer[SuperstepClient], host: str, left: set[str]) -> None:
        """Let the hosts that are left have the rows of another one, which `leaving` tells."""
        division, rows = self._division, HostLines(self.part)
        own, others = self.group.host_of(self.group.rank), self._others(self.part.players)
        first_slots = [slot for slot, holder in enumerate(division.holders) if holder == host]
        theirs = [(first, last, division.rows_of(host, first, last)) for first, last in division.slices()]
        division.give_away(left)
        for first, last, moved in theirs:
            if not moved.size:
                continue
            # The leaving rank still holds them under the old division.
            self._some = {}
            leaving.channel.send(encode(AskRows(self._attempt, first, last)))
            if not self._hear({leaving.rank: leaving}, self._some):
                raise _lost_on_the_way()
            lines = self._some[leaving.rank].lines.reshape(moved.size, -1)
            slots = division.slots_of(moved)
            for holder in sorted({division.holders[slot] for slot in first_slots}):
                is_theirs = np.array([each == holder for each in division.holders])[slots]
                if holder == own:
                    rows.put(moved[is_theirs], lines[is_theirs].reshape(-1))
                elif is_theirs.any():
                    peer = others[holder]
                    self._got.clear()
                    told = np.ascontiguousarray(lines[is_theirs]).reshape(-1)
                    peer.channel.send(encode(PutRows(self._attempt, first, moved[is_theirs], told)))
                    if not self._hear({(peer.rank, first): peer}, self._got):
                        raise _lost_on_the_way()

    # Checkpoints

    def _write_parts(self, name: str) -> dict[str, ArrayEntry]:
        """Let all hosts write the rows that they have, and return the entries of what they wrote.

        OSError where one could not, or is lost.
        """
        there = self._others(self.part.players)
        others = {host: peer for host, peer in there.items() if host in self._division.holders}
        gone = {*self._division.holders} - {self.group.host_of(self.group.rank), *others}
        if gone:
            raise OSError(f"nobody is there who has the rows of {', '.join(sorted(gone))}")
        self._saved = {}
        for number, peer in enumerate(others.values(), 1):
            peer.channel.send(encode(SaveRows(self._attempt, name, number)))
        lost = OSError("a rank was lost that wrote rows of its host")
        try:
            entries = self.part.save_rows(name, 0, self.keep_alive)
        except OSError as error:
            self._await_saved(others, lost)  # else they would seem to answer the next call
            raise OSError(f"rank {self.group.rank}: {error}") from error
        self._await_saved(others, lost)
        for peer in others.values():
            saved = self._saved[peer.rank]
            if saved.error:
                raise OSError(f"rank {peer.rank}: {saved.error}")
            entries |= {key: ArrayEntry.of(entry) for key, entry in saved.entries.items()}
        return entries

    def _await_saved(self, others: dict[str, Peer[SuperstepClient]], lost: Exception) -> None:
        if not self._hear({peer.rank: peer for peer in others.values()}, self._saved):
            raise lost

    def finish(self, result: dict[str, Any]) -> None:
        """See `Serving`: all rows have to be there then, and all ranks have to know which host has them."""
        if not self._is_at_cut:
            raise self._lost()
        for rank, peer in self.peers.present.items():
            if rank not in self.part.players:  # it waits for another one's place, or has just come
                self._tell_owners(peer)
        super().finish(result)


def _lost_on_the_way() -> RankLostError:
    return RankLostError(
        "A host was lost while rows of the table moved from a host that leaves. Start the job again: with "
        "checkpoint_dir= it goes on from the last checkpoint."
    )
