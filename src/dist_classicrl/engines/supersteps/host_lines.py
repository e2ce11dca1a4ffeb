"""Rows of a table that each host has once, on their way between hosts: a slice at a time, as they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dist_classicrl.engines.supersteps.division import slices_of
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.errors import ProtocolError
from dist_classicrl.learning.supersteps.row_share import RowShare


@dataclass(frozen=True)
class HostLines:
    """The table of this rank's host; `part` says whose its rows are."""

    part: Part

    @property
    def _lines(self) -> np.ndarray:
        large = self.part.run.large
        assert large is not None  # else there are no such rows
        lines: np.ndarray = large.memory.reshape(large.rows.shape.n_rows, -1)
        return lines

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return int(self._lines.shape[1])

    def slices(self) -> Iterator[tuple[int, int]]:
        """See `slices_of`."""
        return slices_of(*self._lines.shape)

    def of_host(self, host: str, first: int, last: int) -> np.ndarray:
        """Return the numbers of those rows from `first` to before `last` that ranks of `host` own."""
        if self.part.division is not None:
            return self.part.division.rows_of(host, first, last)
        part, share = self.part, self.part.own_share
        assert isinstance(share, RowShare)  # since the table is there once
        rows = np.arange(first, last)
        states = rows % share.table.shape.n_states
        is_there = np.zeros(rows.size, bool)
        for number, rank in enumerate(part.players):
            if part.group.host_of(rank) == host:
                is_there |= share.are_of(number, states)
        return rows[is_there]

    def told(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return what stands in these rows, uint8, flat."""
        return np.ascontiguousarray(self._lines[rows]).reshape(-1)

    def put(self, rows: np.ndarray | slice, told: np.ndarray) -> None:
        """Let it stand in these rows."""
        lines = self._lines
        n = len(rows) if isinstance(rows, np.ndarray) else rows.stop - rows.start
        if told.size != n * lines.shape[1]:
            raise ProtocolError(
                f"{told.size} bytes came for {n} rows of {lines.shape[1]} bytes. Do all ranks run the same "
                "version, with the same partition?"
            )
        lines[rows] = told.reshape(n, lines.shape[1])
