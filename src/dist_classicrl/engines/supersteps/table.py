"""The table of a server of supersteps: as it was when the owners of rows last told theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dist_classicrl.engines.run import Run
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.shared import SharedTable
from dist_classicrl.tables.snapshot import TableSnapshot


class GatheredTable(SharedTable):
    """A run's whole table, which `gather` brings up to date."""

    def __init__(self, run: Run, version: int = 0) -> None:
        self._run = run
        self.values, self.counts = run.values, run.counts
        self.version = version
        self.applied = {}
        self.gather: Callable[[], None] = lambda: None

    def apply_maps(self, packed: PackedMap) -> int:
        """Raise TypeError: nobody sends maps."""
        raise TypeError("Owners of rows send no maps.")

    def overwritten(self) -> None:
        """Take note that rows have come from all owners: it is what the run has now."""
        self.values, self.counts = self._run.values, self._run.counts
        self.version += 1

    def changed(self, entries: np.ndarray) -> None:
        """Take note likewise."""
        self.version += 1

    def watch(self, snapshot: TableSnapshot | None) -> None:
        """Do nothing: the table does not change while a snapshot is taken."""

    def refresh(self, since: int) -> Refresh:
        """Return what brings a base of version `since` to now: nothing, or else the whole table."""
        if since == self.version:
            nothing = np.zeros(0, np.int64)
            return Refresh(since, self.version, nothing, np.zeros(0), nothing)
        keyed = self._run.keyed
        keys = None if keyed is None else keyed.keys.view(np.int64)
        return Refresh(-1, self.version, None, self.values, self.counts, keys)

    def settle(self) -> None:
        """Bring `values` and `counts` up to date."""
        self.gather()


class RowsInPlace(GatheredTable):
    """A run's whole table where all ranks have its rows: there is nothing of it to tell, but the version."""

    def refresh(self, since: int) -> Refresh:
        """See `GatheredTable`."""
        nothing = np.zeros(0, np.int64)
        return Refresh(since, self.version, None if since < 0 else nothing, np.zeros(0), nothing)
