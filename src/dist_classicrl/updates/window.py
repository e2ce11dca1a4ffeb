"""What a worker has pushed and not seen in its base yet."""

from __future__ import annotations

from collections import deque

import numpy as np

from dist_classicrl.errors import ProtocolError
from dist_classicrl.updates.local import LocalTable, PackedMap, Refresh

_KEPT_PER_SLOT = 4


class PushWindow:
    """Numbers a worker's pushes, bounds those in flight, and keeps each until the worker's base includes it.

    Parameters
    ----------
    table : LocalTable
    size : int
        Pushes that may be on their way without a receipt.
    version : int
        Version of the base that `table` was loaded with.
    """

    def __init__(self, table: LocalTable, size: int, version: int) -> None:
        self._table = table
        self._size = size
        self.version = version
        self.last_sequence = 0
        self._received = 0
        self._kept: deque[tuple[int, PackedMap]] = deque()

    @property
    def in_flight(self) -> int:
        """Pushes without a receipt."""
        return self.last_sequence - self._received

    @property
    def has_room(self) -> bool:
        """Whether another push may go out.

        Neither may too many be in flight, nor too many kept for want of a refresh.
        """
        return self.in_flight < self._size and len(self._kept) < _KEPT_PER_SLOT * self._size

    @property
    def needs_refresh(self) -> bool:
        """Whether the next push must ask for a refresh, lest too many be kept and none could ask any more."""
        return len(self._kept) + self._size + 1 >= _KEPT_PER_SLOT * self._size

    @property
    def pending(self) -> list[PackedMap]:
        """Maps that were pushed and that the base does not include, oldest first."""
        return [packed for _, packed in self._kept]

    def push(
        self, threshold: float = 0.0, flush: bool = True, key: int | np.uint64 = 0
    ) -> tuple[int, PackedMap]:
        """Pack the current maps as the next push, and return its number, from 1, and the maps.

        See `LocalTable.pack`.
        """
        packed = self._table.pack(threshold, flush, key)
        self.last_sequence += 1
        self._kept.append((self.last_sequence, packed))
        return self.last_sequence, packed

    def receipt(self, applied: int) -> None:
        """Hear that the server applied this worker's pushes up to number `applied`."""
        if applied > self.last_sequence:
            raise ProtocolError(
                f"A receipt for push {applied} came, but only {self.last_sequence} were sent."
            )
        self._received = max(self._received, applied)

    def refresh(self, refresh: Refresh, included: int) -> bool:
        """Re-base on `refresh`, and return whether it was news.

        Its state includes this worker's pushes up to `included`.

        Raises
        ------
        ProtocolError
            If the refresh starts from a version that this worker never had.
        """
        self.receipt(included)
        if refresh.version <= self.version:
            return False
        if refresh.since > self.version:
            raise ProtocolError(
                f"A refresh from version {refresh.since} to {refresh.version} came to a base of version "
                f"{self.version}."
            )
        while self._kept and self._kept[0][0] <= included:
            self._kept.popleft()
        self._table.rebase(refresh, self.pending)
        self.version = refresh.version
        return True
