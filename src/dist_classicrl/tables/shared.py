"""The server's table: applies pushes, each once, and tells workers what changed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from dist_classicrl.compression import Carry
from dist_classicrl.errors import ProtocolError
from dist_classicrl.tables import kernels
from dist_classicrl.tables.maps import PackedMap, Refresh, diverged, index_dtype, require_fit, rounded
from dist_classicrl.tables.merging import AFFINE, Merging
from dist_classicrl.tables.snapshot import TableSnapshot


class ServedTable:
    """A table as its server has it: its version is the number of pushes (or rounds) applied.

    This one is of rows that ranks have elsewhere: nothing is changed here, and nobody is told more than the
    version.

    `values`, float64 or float32, and `counts`, int64, have the shape (S * A,). `applied` has the last push of
    each sender that they contain. Pushes are put into it as `merging` says.
    """

    merging: Merging = AFFINE

    def __init__(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        version: int = 0,
        applied: dict[int, int] | None = None,
    ) -> None:
        self.values = values
        self.counts = counts
        self.version = version
        self.limit = float(np.finfo(values.dtype).max)
        self.applied = {} if applied is None else applied
        #: Whether the entries of refreshes ascend.
        self.in_order = False

    def apply(self, sender: int, sequence: int, packed: PackedMap, staleness: int = 0) -> bool:
        """Apply push number `sequence` of `sender`, counted from 1. Return whether it was new.

        The sender did not know of `staleness` versions that others made. Where merging refuses a push for
        that, its maps are dropped: the sender's next refresh has the entries as they are here.

        ProtocolError where a push before it never came, or it is of another table; DivergenceError where it
        takes a value beyond what the table can hold, which then stays as it was.
        """
        last = self.applied.get(sender, 0)
        if sequence <= last:
            return False
        self.apply_composed([(sender, sequence, sequence)], packed, staleness)
        return True

    def apply_composed(
        self, ranges: Sequence[tuple[int, int, int]], packed: PackedMap, staleness: int = 0
    ) -> None:
        """Apply what pushes of several senders come to: of each, its rank, and the first and the last number.

        It raises what `apply` does, and also where one of these is in the table already.
        """
        for sender, first, _ in ranges:
            last = self.applied.get(sender, 0)
            if first != last + 1:
                raise ProtocolError(
                    f"Push {first} of worker {sender} came after push {last}: one is missing. The transport "
                    "must keep the order of a sender's messages, as MPI does for one communicator and tag."
                )
        require_fit(packed.entries, packed, self.values.size)
        is_refused = self.merging.refuses(staleness)
        lost = -1 if is_refused else self.apply_maps(self.merging.weighted(packed, staleness))
        if lost >= 0:
            named = ", ".join(f"push {last} of rank {sender}" for sender, _, last in ranges)
            raise diverged(
                f"P{named[1:]} would make entry {lost} of the table infinite",
                self.values.dtype,
            )
        for sender, _, last in ranges:
            self.applied[sender] = last
        # The log must not keep the whole message, of which they are a part.
        self.changed(packed.entries.copy())

    def follow(self, refresh: Refresh) -> None:
        """Be what another server's table is, by a `refresh` of it that this one is old or new enough for."""
        refresh.require_fit(self.values.size)
        self.version = refresh.version - 1
        if refresh.entries is None:
            self.values[:], self.counts[:] = refresh.values, refresh.counts
            self.overwritten()
        else:
            self.values[refresh.entries], self.counts[refresh.entries] = refresh.values, refresh.counts
            self.changed(refresh.entries.copy())

    def apply_maps(self, packed: PackedMap) -> int:
        """Apply maps; return the first entry that they would take beyond what the table can hold, or -1."""
        return -1

    def settle(self) -> None:
        """Bring `values` and `counts` up to date: they always are."""

    def snapshot(self) -> TableSnapshot:
        """Return what copies the table while it changes, once it is told to `watch` that."""
        return TableSnapshot(self.values, self.counts)

    def watch(self, snapshot: TableSnapshot | None) -> None:
        """Tell `snapshot`, which copies this table, of every change from now on; None: nobody."""

    def overwritten(self) -> None:
        """Take note that the table was changed by other means than pushes."""
        self.version += 1

    def changed(self, entries: np.ndarray) -> None:
        """Take note that a push or a round has changed `entries`."""
        self.version += 1

    def refresh(self, since: int) -> Refresh:
        """Return what brings a base of version `since` (-1: none) to now."""
        nothing = np.zeros(0, np.int64)
        return Refresh(since, self.version, None if since < 0 else nothing, np.zeros(0), nothing)

    def preview(self, since: int, told: np.ndarray, carry: Carry) -> Refresh | None:
        """Return what matters most to a base of version `since` that was told the values `told`, or None."""
        return None


class SharedTable(ServedTable):
    """A table that is changed here by what ranks push, and told to them.

    Which entries changed is remembered as the entries of the last pushes, up to as many as would make a
    sparse refresh larger than the whole table.

    `values` and `counts` are owned and changed from now on.
    """

    def __init__(
        self,
        values: np.ndarray,
        counts: np.ndarray,
        version: int = 0,
        applied: dict[int, int] | None = None,
    ) -> None:
        super().__init__(values, counts, version, applied)
        self._log: deque[tuple[int, np.ndarray]] = deque()
        self._logged = 0
        self._log_starts_after = version
        size = values.size
        self.index_dtype = index_dtype(size)
        entry_bytes = values.itemsize + counts.itemsize
        self._sparse_limit = size * entry_bytes // (entry_bytes + self.index_dtype.itemsize)
        self._stamps = kernels.Stamps(size)
        self._scratch = np.empty(size, self.index_dtype)
        self._cache: dict[int, Refresh] = {}
        self._snapshot: TableSnapshot | None = None

    def watch(self, snapshot: TableSnapshot | None) -> None:
        """See `ServedTable`."""
        self._snapshot = snapshot

    def apply_maps(self, packed: PackedMap) -> int:
        """See `ServedTable`."""
        return int(
            kernels.apply_maps(packed, self.values, self.counts, self.limit, self.merging.is_order_free)
        )

    def overwritten(self) -> None:
        """See `ServedTable`."""
        super().overwritten()
        self._cache.clear()
        self._log.clear()
        self._logged = 0
        self._log_starts_after = self.version
        if self._snapshot is not None and self._snapshot.copying:
            self._snapshot.begin()

    def changed(self, entries: np.ndarray) -> None:
        """See `ServedTable`."""
        super().changed(entries)
        self._cache.clear()
        if self._snapshot is not None:
            self._snapshot.changed(entries)
        if entries.size:  # with compression, pushes without maps are common
            self._log.append((self.version, entries))
            self._logged += entries.size
        while self._log and self._logged > 2 * self._sparse_limit:
            version, oldest = self._log.popleft()
            self._logged -= oldest.size
            self._log_starts_after = version

    def refresh(self, since: int) -> Refresh:
        """See `ServedTable`: it is sparse or whole, whichever is smaller.

        One is packed for all who ask alike; its arrays are not changed afterwards.
        """
        found = self._cache.get(since)
        if found is None:
            entries = self._changed_since(since)
            found = self._whole() if entries is None else self._sparse(since, entries)
            self._cache[since] = found
        return found

    def preview(self, since: int, told: np.ndarray, carry: Carry) -> Refresh | None:
        """Return a preview for a base of version `since` that was told the values `told`, which it then has.

        It has the values that differ most, of as many of the entries that differ as `carry` says, rounded as
        that says; what rounding takes goes with a later one. None: nothing differs by as much as is told.
        """
        changed = self._changed_since(since)
        entries = np.flatnonzero(self.values != told) if changed is None else changed
        moved = np.abs(self.values[entries] - told[entries])
        entries, moved = entries[moved > 0.0], moved[moved > 0.0]
        if not entries.size:
            return None
        most = math.ceil(carry.share * entries.size)
        if most < entries.size:
            entries = entries[np.argpartition(moved, entries.size - most)[entries.size - most :]]
        entries = np.sort(entries).astype(self.index_dtype)
        values = self.values[entries]
        if carry.bits:
            values = rounded(values, carry.bits)
            is_news = values != told[entries]
            entries, values = entries[is_news], values[is_news]
            if not entries.size:
                return None
        told[entries] = values
        return Refresh(since, self.version, entries, values, self.counts[entries], is_preview=True)

    def _changed_since(self, since: int) -> np.ndarray | None:
        if since < self._log_starts_after or (since < 0):
            return None
        stamp, now = self._stamps.next_pass()
        size = 0
        for version, entries in reversed(self._log):
            if version <= since:
                break
            size = kernels.collect_new(entries, stamp, now, self._scratch, size)
            if size > self._sparse_limit:
                return None
        found = self._scratch[:size].copy()
        if self.in_order:
            found.sort()
        return found

    def _sparse(self, since: int, entries: np.ndarray) -> Refresh:
        values = np.empty(entries.size, self.values.dtype)
        counts = np.empty(entries.size, np.int64)
        kernels.gather(entries, self.values, self.counts, values, counts)
        return Refresh(since, self.version, entries, values, counts)

    def _whole(self) -> Refresh:
        whole = self._cache.get(-1)
        if whole is None:
            whole = Refresh(-1, self.version, None, self.values.copy(), self.counts.copy())
            self._cache[-1] = whole
        return whole
