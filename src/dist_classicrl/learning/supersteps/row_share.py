"""A rank's share of a table that is there once for the ranks of a host: it writes its own rows, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl.learning.supersteps.partition import All, Held, find_own, first_infinite_own, owned_by
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.tables import lines
from dist_classicrl.tables.line_table import LineTable


class RowShare(Share):
    """What `Share` is, of a problem with `rows`: those of all ranks, each of which writes its own alone."""

    def _own(self, partition: Any) -> LineTable:
        rows = self._problem.rows
        assert rows is not None  # else it is another share
        n_states = self._whole.n_states
        self._owned = owned_by(partition, n_states, self._rank, self.ranks, self._is_alone, in_place=True)
        return rows

    @property
    def _kind_of_partition(self) -> type:
        partition = self._partition
        return type(partition.slots if isinstance(partition, Held) else partition)

    def load(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Do nothing: the rows are the run's table."""

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two empty arrays: the rows are where all ranks have them.

        Each rank looks through as many of them, whose ever they are, and of a table that is divided between
        hosts through its own: DivergenceError if they cannot be.
        """
        table, n_rows = self.table, self.table.shape.n_rows
        if isinstance(self._partition, Held):
            find = jit_for(first_infinite_own, self._kind_of_partition)
            lost = find(self._partition, self._rank, table.arrays, n_rows)
        else:
            first, last = (n_rows * number // self.ranks for number in (self._rank, self._rank + 1))
            lost = lines.first_infinite(table.arrays, None, first, last)
        if lost >= 0:
            raise table.diverged(lost)
        return np.empty(0, table.values.dtype), np.empty(0, np.int64)

    def place(self, rows: np.ndarray, whole: np.ndarray) -> None:
        """Do nothing: they are there."""

    def are_of(self, rank: int, states: np.ndarray) -> np.ndarray:
        """Return which of these states number `rank` of all owns, bool."""
        is_own = np.ones(states.size, bool)
        if not isinstance(self._partition, All):
            find = jit_for(find_own, self._kind_of_partition)
            find(self._partition, np.ascontiguousarray(states), rank, is_own)
        return is_own

    def _is_own(self, states: np.ndarray) -> np.ndarray:
        return self.are_of(self._rank, states)
