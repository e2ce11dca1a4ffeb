"""The table of a server of supersteps: as it was when the owners of rows last told theirs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dist_classicrl.engines.run import Run
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.shared import ServedTable


class GatheredTable(ServedTable):
    """A run's whole table, which `gather` brings up to date."""

    def __init__(self, run: Run, version: int = 0) -> None:
        super().__init__(run.values, run.counts, version)
        self._run = run
        self.gather: Callable[[], None] = lambda: None

    def overwritten(self) -> None:
        """Take note that rows have come from all owners: it is what the run has now."""
        self.values, self.counts = self._run.values, self._run.counts
        super().overwritten()

    def refresh(self, since: int) -> Refresh:
        """Return what brings a base of version `since` to now: nothing, or else the whole table."""
        if since == self.version:
            return super().refresh(since)
        keyed = self._run.keyed
        keys = None if keyed is None else keyed.keys.view(np.int64)
        return Refresh(-1, self.version, None, self.values, self.counts, keys)

    def apply_maps(self, packed: PackedMap) -> int:
        """Raise TypeError: nobody sends maps."""
        raise TypeError("Owners of rows send no maps.")

    def settle(self) -> None:
        """Bring `values` and `counts` up to date."""
        self.gather()


class RowsInPlace(GatheredTable):
    """A run's whole table where all ranks have its rows: there is nothing of it to tell, but the version."""

    refresh = ServedTable.refresh
