"""A rank's share of a table that is there once for the ranks of a host: it writes its own rows, in place."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl.learning.learner import Problem
from dist_classicrl.learning.supersteps.copies import GROUP_BITS
from dist_classicrl.learning.supersteps.in_place import MOST_TABLES
from dist_classicrl.learning.supersteps.owners import find_own, first_infinite_own, owned_by
from dist_classicrl.learning.supersteps.partition import All, Held
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.tables import lines
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.lines import MOST_VISITS


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

    @property
    def _is_in_place(self) -> bool:
        return self._boxes is not None and can_be_in_place(self._problem)

    def _are_here(self, states: np.ndarray) -> np.ndarray:
        if not self._is_in_place:
            return self._is_own(states)
        here: np.ndarray = (np.arange(states.size) >> GROUP_BITS) % self.ranks == self._rank
        return here


def can_be_in_place(problem: Problem) -> bool:
    """Whether ranks that share the rows can leave walkers where they are."""
    is_counted = problem.source.keys is None and problem.shape.n_tables <= MOST_TABLES
    return problem.rule.is_one_step and is_counted


class HostShare(RowShare):
    """What `RowShare` is where each rank has a table besides: `load` and `rows` are of its own rows."""

    @cached_property
    def _own_states(self) -> np.ndarray:
        return np.flatnonzero(self._is_own(np.arange(self._whole.n_states)))

    def load(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Start from a whole table: `values` and visit `counts`, flat; of which this writes its own rows."""
        own, shape = self._own_states, self._whole
        shape.tables(self.table.values)[:, own] = self._rows_of(values)[:, own]
        shape.tables(self.table.counts)[:, own] = np.minimum(self._rows_of(counts)[:, own], MOST_VISITS)
        if self._problem.legal is not None:
            rows = shape.tables(self.table.values)
            for table in range(shape.n_tables):
                rows[table, own] = np.where(self._problem.legal[own], rows[table, own], -np.inf)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return values and visit counts of its own rows, flat; DivergenceError if they cannot be."""
        own, shape, legal = self._own_states, self._whole, self._problem.legal
        values = shape.tables(self.table.values)[:, own]
        if legal is not None:
            values = np.where(legal[own], values, 0.0).astype(values.dtype, copy=False)
        if not (is_finite := np.isfinite(values)).all():
            table, row, action = np.argwhere(~is_finite)[0]
            state = table * shape.n_states + own[row]
            raise self.table.diverged(int(state * shape.n_actions + action))
        counts = shape.tables(self.table.counts)[:, own]
        return values.ravel(), counts.astype(np.int64).ravel()

    def place(self, rows: np.ndarray, whole: np.ndarray) -> None:
        """Write values or counts of its rows to their places in those of the whole table, both flat."""
        own, n_tables, n_actions = self._own_states, self._whole.n_tables, self._whole.n_actions
        self._rows_of(whole)[:, own] = rows.reshape(n_tables, own.size, n_actions)
