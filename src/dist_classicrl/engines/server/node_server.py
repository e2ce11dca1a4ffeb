"""The server of a node: it composes its workers' maps for the one above, and hands its refreshes on.

Its workers' bases are versions of the one table at the root, and they keep their maps until those include
them. So nothing is lost with this rank: the root gives its workers another way, and they send again what did
not arrive.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.messages import kind_of
from dist_classicrl.comm.transport import Channel
from dist_classicrl.engines.server.messages import Composed, ComposedPart, Handover, PassedOn, Push, Route
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.group import Group
from dist_classicrl.tables.composition import Composition
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.merging import AFFINE, Merging
from dist_classicrl.tables.shared import SharedTable

_PATIENCE_INTERVALS = 2.0
_LONGEST_PATIENCE = 0.25


@dataclass
class _Below:
    """What is known of a rank below."""

    channel: Channel
    version: int = -1  # of its base; -1: not known
    is_at_work: bool = False  # it has something to do, so it will send more by itself
    wants_refresh: bool = True


@dataclass(frozen=True)
class _Waiting:
    """What came from a rank below, as push or composed map `number`, and has not gone on."""

    rank: int
    number: int
    packed: PackedMap
    parts: tuple[ComposedPart, ...]


class NodeServer:
    """Serves the ranks that `route` says, by what comes from `parent`; its base is `values` and `counts`.

    These, flat like the table, are of `version`, and are owned and changed from now on.
    """

    def __init__(
        self,
        group: Group,
        codec: Codec,
        route: Route,
        parent: Channel,
        values: np.ndarray,
        counts: np.ndarray,
        version: int,
        merging: Merging = AFFINE,
        max_staleness: int | None = None,
    ) -> None:
        self._wire = group.wire
        self._codec = codec
        self._route = route.number
        self._parent = parent
        self._table = SharedTable(values, counts, version)
        self._handover: Handover | None = None  # of the table's version
        self._composition = Composition(values.size, merging)
        self._max_staleness = max_staleness
        self._root_version = -1  # as far as it was told
        tag = group.tag_between_workers(route.number)
        self._below = {rank: _Below(group.wire.channel(rank, tag)) for rank in route.below}
        self._waiting: list[_Waiting] = []
        self._waits_since = 0.0
        self._sent = 0  # composed maps
        self._answered = 0
        self._contents: deque[tuple[int, dict[int, int]]] = deque()  # of those without an answer: who, which
        self._hurries = False

    def close(self) -> None:
        """Close all channels to those below."""
        for below in self._below.values():
            below.channel.close()

    def hurry(self) -> None:
        """Keep nothing waiting any more: the run comes to its end."""
        self._hurries = True

    def turn(self) -> bool:
        """Take in what came from below, and pass on what is due. Return whether anything happened."""
        now = self._wire.now()
        arrived = self._wire.receive([below.channel for below in self._below.values()])
        for channel, message in arrived:
            if not self._waiting:
                self._waits_since = now
            self._take_in(channel.peer, self._codec.decode(message)[0])
        for below in self._below.values():
            below.channel.reap()
        is_due = bool(self._waiting) and self._is_due(now)
        if is_due:
            self._send()
        return is_due or bool(arrived)

    def _take_in(self, rank: int, told: object) -> None:
        match told:
            case Push(pushed=pushed):
                entry = _Waiting(rank, pushed.sequence, pushed.packed, (ComposedPart.of(rank, told),))
            case Composed():
                entry = _Waiting(rank, told.number, told.packed, told.parts)
            case _:
                raise ProtocolError(f"Rank {rank} sent {kind_of(told).name} where a push belongs.")
        below = self._below[rank]
        below.is_at_work = not all(part.wishes.is_starved for part in entry.parts)
        below.wants_refresh = any(part.wishes.refresh for part in entry.parts)
        self._waiting.append(entry)

    def _is_due(self, now: float) -> bool:
        """Whether all who are at work have sent something, or one of them has waited for long."""
        if self._hurries:
            return True
        if self._answered < self._sent:
            return False
        parts = [part for entry in self._waiting for part in entry.parts]
        if any(part.wishes.is_starved for part in parts):
            return True
        interval = max(part.wishes.interval_seconds for part in parts)
        if now - self._waits_since >= min(_PATIENCE_INTERVALS * interval, _LONGEST_PATIENCE):
            return True
        at_work = {rank for rank, below in self._below.items() if below.is_at_work}
        return at_work <= {entry.rank for entry in self._waiting}

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        parts: dict[int, ComposedPart] = {}
        for part in (part for entry in waiting for part in entry.parts):
            parts[part.rank] = parts[part.rank].then(part) if part.rank in parts else part
        self._sent += 1
        self._contents.append((self._sent, {entry.rank: entry.number for entry in waiting}))
        packed = self._composition.of([entry.packed for entry in waiting])
        composed = Composed(self._route, self._sent, packed, tuple(parts.values()))
        self._parent.send(self._codec.encode(composed)[0])

    def passed_on(self, told: PassedOn) -> None:
        """Answer those below whose maps have arrived, by the server's answer."""
        self._answered = max(self._answered, told.number)
        self._root_version = max(self._root_version, told.version)
        if told.refresh is not None and told.refresh.version > self._table.version:
            self._table.follow(told.refresh)
            self._handover = told.handover
        numbers: dict[int, int] = {}
        while self._contents and self._contents[0][0] <= told.number:
            numbers.update(self._contents.popleft()[1])
        # At first nobody below has anything on its way, and may have no base.
        for rank in numbers or (self._below if told.number == 0 else ()):
            self._answer(self._below[rank], numbers.get(rank, 0))

    def _answer(self, below: _Below, number: int) -> None:
        refresh: Refresh | None = None
        handover = self._handover
        behind = self._table.version - below.version
        is_due = below.wants_refresh or (self._max_staleness is not None and behind > self._max_staleness)
        if handover is not None and is_due and behind > 0:
            refresh = self._table.refresh(below.version)
            below.version = refresh.version
        if number or refresh is not None:
            answer = PassedOn(number, refresh, None if refresh is None else handover, self._root_version)
            below.channel.send(self._codec.encode(answer)[0])
