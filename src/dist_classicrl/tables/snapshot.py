"""A copy of the server's table, taken in slices while pushes go on being applied."""

from __future__ import annotations

import time

import numpy as np

from dist_classicrl.tables import kernels

SLICE_ENTRIES = 1 << 16
"""Entries that are copied at a time: 0.1 ms of copying, several times that where memory is used first."""


class TableSnapshot:
    """Copies a table that changes meanwhile: where the copy ends, it equals the table at that moment.

    A frontier moves through the table slice by slice. What changes behind it is copied again, what changes
    ahead of it will be copied anyway.

    It is made of the table's own `values` and `counts`. Its attributes of these names are the copy, empty
    before the first one; the arrays are used again for the next. `copying` says whether a copy has begun and
    is not complete.
    """

    def __init__(self, values: np.ndarray, counts: np.ndarray) -> None:
        self._live = values, counts
        self.values = values[:0].copy()
        self.counts = counts[:0].copy()
        self.copying = False
        self._frontier = 0

    def begin(self) -> None:
        """Begin a new copy: nobody may be reading the last one any more."""
        if self.values.size != self._live[0].size:
            self.values, self.counts = (np.empty_like(array) for array in self._live)
        self._frontier = 0
        self.copying = True

    def advance(self, seconds: float) -> bool:
        """Copy slices until `seconds` have passed, at least one, and return whether the copy is complete."""
        end = time.perf_counter() + seconds
        while self.copying:
            self._copy(SLICE_ENTRIES)
            if time.perf_counter() >= end:
                break
        return not self.copying

    def copy_now(self) -> None:
        """Make a new copy at once."""
        self.begin()
        self._copy(self.values.size)

    def changed(self, entries: np.ndarray) -> None:
        """Hear that the table changed at `entries`: after every change while a copy is being made."""
        if self.copying:
            kernels.copy_below(entries, self._frontier, *self._live, self.values, self.counts)

    def _copy(self, size: int) -> None:
        part = slice(self._frontier, self._frontier + size)
        for live, copy in zip(self._live, (self.values, self.counts), strict=True):
            copy[part] = live[part]
        self._frontier = part.stop
        self.copying = part.stop < self.values.size
