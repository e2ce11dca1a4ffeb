"""Rows that the ranks of a host share, in the form in which workers and servers hold their tables.

All learn in the same rows, so there are no maps to send: pushes tell what was done, refreshes that it was
counted, and whatever asks for maps is given none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.map_table import MapTable
from dist_classicrl.tables.maps import PackedMap, Refresh, index_dtype
from dist_classicrl.tables.shared import ServedTable
from dist_classicrl.tables.snapshot import TableSnapshot


class HostRows(LineTable):
    """A table in shared memory, as a worker's own: what it learns is there for all at once."""

    def small(self, n_states: int) -> HostRows:
        """Return a table like this one for so many states, which nobody else has: to compile with."""
        shape = replace(self.shape, n_states=n_states)
        legal = None if self._legal is None else np.zeros((n_states, shape.n_actions), bool)
        return HostRows(shape, self.values.dtype, legal)

    @property
    def base(self) -> np.ndarray:
        """What is looked at to tell whether values still move, and talking is worth more: nothing."""
        return np.zeros(1)

    @property
    def n_touched(self) -> np.ndarray:
        """How many entries wait to be sent: none."""
        return self.arrays.n_touched

    @property
    def touched(self) -> np.ndarray:
        """Which ones: none."""
        return np.zeros(0, np.int64)

    @property
    def updates(self) -> np.ndarray:
        """How often entries were updated since they were sent: of none of them it is known."""
        return np.zeros(0, np.int64)

    @property
    def visits(self) -> np.ndarray:
        """Visits of the entries of `base`."""
        return np.zeros(1, np.int64)

    @property
    def waiting(self) -> int:
        """How many entries have something that was not sent: none."""
        return 0

    def begin_with(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Let the table be what `values` and `counts`, flat, say, before anybody learns."""
        super().load(values, counts)

    def load(self, values: np.ndarray, counts: np.ndarray, exact: np.ndarray | None = None) -> None:
        """Do nothing: what all have learned is there."""

    def pack(
        self,
        carry: Carry = SEND_ALL,
        flush: bool = True,
        key: int | np.uint64 = 0,
        in_order: bool = False,
    ) -> PackedMap:
        """Return no maps."""
        return PackedMap.empty(0, index_dtype(self.shape.size), with_replays=False)

    def forget(self, stays: np.ndarray) -> None:
        """Do nothing: what was learned stays."""

    def rebase(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Do nothing: the rows are as new as can be."""

    def preview(self, refresh: Refresh, pending: list[PackedMap]) -> None:
        """Do nothing, likewise."""


if TYPE_CHECKING:

    def _checked(rows: HostRows) -> MapTable:
        """Let the type checker see that these rows take every call that a worker's table gets."""
        return rows


class Board(ServedTable):
    """What a server of shared rows keeps: which pushes were counted. The rows need no server."""

    def __init__(
        self,
        rows: LineTable,
        values: np.ndarray,
        counts: np.ndarray,
        version: int = 0,
        applied: dict[int, int] | None = None,
    ) -> None:
        super().__init__(values, counts, version, applied)
        self._rows = rows
        self._settled = -1  # the version

    def settle(self) -> None:
        """Write the rows to `values` and `counts`, if anything was counted since that was done."""
        if self._settled != self.version:
            self._rows.settle(self.values, self.counts)
            self._settled = self.version

    def snapshot(self) -> TableSnapshot:
        """Return what copies the rows."""
        if np.may_share_memory(self._rows.values, self.values):
            return RowsAsTheyAre(self.values, self.counts)
        return RowsSnapshot(self._rows, self.values, self.counts)


class RowsAsTheyAre(TableSnapshot):
    """No copy, since there is no memory for one: who writes the rows to disk copies a slice at a time."""

    def __init__(self, values: np.ndarray, counts: np.ndarray) -> None:
        super().__init__(values, counts)
        self.values, self.counts = values, counts

    def _copy(self, size: int) -> None:
        self.copying = False


class RowsSnapshot(TableSnapshot):
    """Copies rows in which others learn meanwhile: each row as it was when its slice was copied."""

    def __init__(self, rows: LineTable, values: np.ndarray, counts: np.ndarray) -> None:
        super().__init__(values, counts)
        self._rows = rows

    def _copy(self, size: int) -> None:
        shape = self._rows.shape
        first = self._frontier // shape.n_actions
        last = min(first + max(1, size // shape.n_actions), shape.n_rows)
        lost = self._rows.write(first, last, self.values, self.counts)
        if lost >= 0:
            raise self._rows.diverged(lost)
        self._frontier = last * shape.n_actions
        self.copying = last < shape.n_rows
