"""What a worker has pushed and not seen in its base yet."""

from __future__ import annotations

from collections import deque

import numpy as np

from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.engines.outcome import NOTHING_LEARNED, Learned
from dist_classicrl.engines.server.messages import Handover, Pushed
from dist_classicrl.errors import ProtocolError
from dist_classicrl.tables.map_table import MapTable
from dist_classicrl.tables.maps import PackedMap, Refresh

KEPT_PER_SLOT = 4


class PushWindow:
    """Numbers a worker's pushes, bounds those in flight, and keeps each until the worker's base includes it.

    `size` may be on their way without a receipt; `table` was loaded with a base of `version` in `term`.
    """

    def __init__(self, table: MapTable, size: int, version: int, term: int = 0) -> None:
        self._table = table
        self._size = size
        self.term = term  # of the server whose refreshes come now
        self.base = (term, version)  # of the worker
        self.handover: Handover | None = None  # what came with the refresh that made the base, if one did
        self.last_sequence = 0  # number of the last push
        self._received = 0
        self._counts: np.ndarray | None = None  # visits of the base, while the table is beyond it
        self._kept: deque[Pushed] = deque()

    @property
    def version(self) -> int:
        """Version of the base within its term."""
        return self.base[1]

    @property
    def version_of_term(self) -> int:
        """The same; -1 if that is of an earlier term, whose versions may be ahead of this one's."""
        return self.version if self.base[0] == self.term else -1

    @property
    def received(self) -> int:
        """Number of the last push that has a receipt."""
        return self._received

    @property
    def in_flight(self) -> int:
        """Pushes without a receipt."""
        return self.last_sequence - self._received

    @property
    def has_room(self) -> bool:
        """Whether another push may go out: not too many are in flight, or kept for want of a refresh."""
        return self.in_flight < self._size and len(self._kept) < KEPT_PER_SLOT * self._size

    @property
    def needs_refresh(self) -> bool:
        """Whether the next push must ask for a refresh, lest too many be kept and none could ask any more."""
        return len(self._kept) + self._size + 1 >= KEPT_PER_SLOT * self._size

    @property
    def kept(self) -> list[Pushed]:
        """What was pushed and the base does not include, oldest first."""
        return list(self._kept)

    @property
    def pending(self) -> list[PackedMap]:
        """The maps of `kept`."""
        return [pushed.packed for pushed in self._kept]

    def push(
        self,
        carry: Carry = SEND_ALL,
        flush: bool = True,
        key: int | np.uint64 = 0,
        steps: int = 0,
        learned: Learned = NOTHING_LEARNED,
        in_order: bool = False,
    ) -> Pushed:
        """Pack the current maps as the next push, numbered from 1. See `LocalTable.pack`, and `Pushed`.

        What cannot be packed has no number: the server misses none.
        """
        packed = self._table.pack(carry, flush, key, in_order)
        self.last_sequence += 1
        pushed = Pushed(self.last_sequence, packed, steps, learned)
        self._kept.append(pushed)
        return pushed

    def receipt(self, applied: int) -> None:
        """Hear that the server applied this worker's pushes up to number `applied`."""
        if applied > self.last_sequence:
            raise ProtocolError(
                f"A receipt for push {applied} came, but only {self.last_sequence} were sent."
            )
        self._received = max(self._received, applied)

    def refresh(self, refresh: Refresh, included: int, handover: Handover | None = None) -> bool:
        """Re-base on `refresh`, and return whether it was news.

        Its state includes this worker's pushes up to `included`, and `handover` says what else. A
        `ProtocolError` is raised if the refresh starts from a version that this worker never had.
        """
        self.receipt(included)
        if refresh.is_preview:
            return self._preview(refresh, included)
        key = (self.term, refresh.version)
        if key <= self.base:
            return False
        if refresh.since >= 0 and (self.base[0] != self.term or refresh.since > self.version):
            raise ProtocolError(
                f"A refresh from version {refresh.since} to {refresh.version} came to a base of version "
                f"{self.version}."
            )
        while self._kept and self._kept[0].sequence <= included:
            self._kept.popleft()
        self._table.rebase(refresh, self.pending)
        self.base = key
        self.handover = handover
        self._counts = None
        return True

    def _preview(self, refresh: Refresh, included: int) -> bool:
        if self.base != (self.term, refresh.since):
            raise ProtocolError(
                f"A preview beyond version {refresh.since} came to a base of version {self.version}."
            )
        if self._counts is None:
            self._counts = self.base_counts()  # which cannot be told from the table's visits any more
        missing = [pushed.packed for pushed in self._kept if pushed.sequence > included]
        self._table.preview(refresh, missing)
        return True

    def lag(self, version: int) -> int:
        """Return how many versions up to this one others made that the base does not include.

        0 if the base is of an earlier term. Own pushes count as known as soon as they have a receipt. In a
        tree, where several pushes make one version, it is less than that of some of them.
        """
        if self.version_of_term < 0:
            return 0
        own = sum(pushed.sequence <= self._received for pushed in self._kept)
        return max(0, version - self.version - own)

    def known_version(self, sequence: int) -> int:
        """Return the version that the server has when it gets push `sequence`, if the others push nothing.

        -1 if the base is of an earlier term.
        """
        own = sum(pushed.sequence < sequence for pushed in self._kept)
        version = self.version_of_term
        return version + own if version >= 0 else -1

    def enter(self, term: int) -> None:
        """Follow a new server, which is handed all that is kept: its receipts count."""
        self.term = term

    def base_counts(self) -> np.ndarray:
        """Return the visits that the base contains, int64 of shape (S * A,)."""
        if self._counts is not None:
            return self._counts.copy()
        counts = self._table.visits.copy()
        for pushed in self._kept:
            counts[pushed.packed.entries] -= pushed.packed.visits
        return counts

    def give_up(self, sequence: int, term: int) -> None:
        """Forget all that the base does not include, and go on after this worker's push `sequence`."""
        counts, self._counts = self.base_counts(), None
        self._kept.clear()
        self._table.load(self._table.base.copy(), counts)
        self.last_sequence = self._received = sequence
        self.term = term
