"""A table in which all of a state lies together, for tables that no cache holds.

A row takes whole cache lines: the values of its actions, then how often each was learned. Nothing is kept
that can be computed from that, and updates are not kept as maps: several may write to one such table at once
by plain stores, each of them a convex combination. What is lost then is an update now and then, and never
stability.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, prefetch
from dist_classicrl._memory import LINE, zeros
from dist_classicrl._random import below
from dist_classicrl.tables.rows import ONE_REPLAY, ROW_FUNCTIONS, UNROLLED_ACTIONS, RowFunctions, actions_of
from dist_classicrl.tables.shape import TableShape

MOST_VISITS = np.uint32(0xFFFFFFFF)
"""Counts stay there."""


class LineArrays(NamedTuple):
    """A table as the kernels see it.

    Row r has its values at ``values[r * width + action]``, and its counts at ``counts[r * count_width +
    first_count + action]``: two views of one memory.

    Attributes
    ----------
    values : ndarray(float64 or float32, ndim=1)
        -inf where an action is illegal.
    counts : ndarray(uint32, ndim=1)
    width, count_width : int
        Of a row, in values and in counts.
    first_count : int
        Where in a row counts begin.
    legal, row_shape, n_states, n_tables
        As in `dist_classicrl.tables.rows.TableArrays`.
    n_actions : int
    """

    values: np.ndarray
    counts: np.ndarray
    width: int
    count_width: int
    first_count: int
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int
    n_actions: int


def row_bytes(n_actions: int, dtype: np.dtype) -> int:
    """Return the bytes of a row of such a table."""
    return -(-n_actions * (dtype.itemsize + 4) // LINE) * LINE


class LineTable:
    """The arrays of `LineArrays` for a table of this shape, all zero.

    `legal`, bool of shape (n_states, n_actions), has the legal actions where they depend on the state.
    """

    def __init__(self, shape: TableShape, dtype: np.dtype, legal: np.ndarray | None = None) -> None:
        width = row_bytes(shape.n_actions, dtype)
        memory = zeros(shape.n_rows * width, np.uint8)
        first_count = shape.n_actions * dtype.itemsize // 4
        self.shape = shape
        self.arrays = LineArrays(
            memory.view(dtype),
            memory.view(np.uint32),
            width // dtype.itemsize,
            width // 4,
            first_count,
            None if legal is None else legal_lists(legal),
            (0,) * shape.n_actions if shape.n_actions <= UNROLLED_ACTIONS else None,
            shape.n_states,
            shape.n_tables,
            shape.n_actions,
        )
        #: Of each row its values and its counts, shape (rows, A).
        self.values = self.arrays.values.reshape(shape.n_rows, -1)[:, : shape.n_actions]
        last_count = first_count + shape.n_actions
        self.counts = self.arrays.counts.reshape(shape.n_rows, -1)[:, first_count:last_count]
        self._legal = legal

    def load(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Start from a whole table: `values` and visit `counts`, flat."""
        np.copyto(self.values, values.reshape(self.values.shape), casting="same_kind")
        self.counts[:] = np.minimum(counts, MOST_VISITS).reshape(self.counts.shape)
        if self._legal is not None:
            self.shape.tables(self.values)[:, ~self._legal] = -np.inf

    def write_to(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Write the whole table to `values` and `counts`, flat; 0 where an action is illegal."""
        whole = values.reshape(self.values.shape)
        whole[:] = self.values
        counts.reshape(self.counts.shape)[:] = self.counts
        if self._legal is not None:
            self.shape.tables(whole)[:, ~self._legal] = 0.0


@jit_inline
def prefetch_row(table, state):
    """Ask for what is known of a state, so that it is there when it is read."""
    for number in range(table.n_tables):
        at = (state + number * table.n_states) * table.width
        for word in range(0, table.width, 64 // table.values.itemsize):
            prefetch(table.values, np.uint64(at + word))


@jit_inline
def _actions_of(table):
    return _actions(table.row_shape, table.n_actions)


@jit_inline
def _actions(row_shape, n_actions):
    return n_actions if row_shape is None else len(row_shape)


@jit_inline
def _value_of(table, row, action):
    return np.float64(table.values[np.uint64(row * table.width + action)])


@jit_inline
def _count_at(table, row, action):
    return np.uint64(row * table.count_width + table.first_count + action)


@jit_inline
def _row_maximum(table, row):
    first = row * table.width
    top = table.values[np.uint64(first)]
    for action in range(1, actions_of(table)):
        value = table.values[np.uint64(first + action)]
        top = value if value > top else top
    return np.float64(top) if top > -np.inf else 0.0


@jit_inline
def _greedy_action(table, row):
    first = row * table.width
    top = table.values[np.uint64(first)]
    where = 0
    tie = False
    for action in range(1, actions_of(table)):
        value = table.values[np.uint64(first + action)]
        above = value > top
        tie = (tie | (value == top)) & (not above)
        where = action if above else where
        top = value if above else top
    return np.int64(-1 if tie else where)


@jit
def _any_greedy_action(table, row, random):
    top, n_best = -np.inf, 0
    for action in range(actions_of(table)):
        value = _value_of(table, row, action)
        n_best = 1 if value > top else n_best + (value == top)
        top = max(top, value)
    pick = below(random, n_best)
    for action in range(actions_of(table)):
        if _value_of(table, row, action) == top:
            if pick == 0:
                return action
            pick -= 1
    return 0  # another writer has changed the row meanwhile


@jit_inline
def _visits_of(table, row, action):
    return np.int64(table.counts[_count_at(table, row, action)])


@jit_inline
def _count(table, row, action, counts_as, touched):
    at = _count_at(table, row, action)
    known = table.counts[at]
    is_visit = counts_as != ONE_REPLAY
    table.counts[at] = known + np.uint32(is_visit and known < MOST_VISITS)
    return touched


@jit_inline
def _learn_target(table, row, action, target, step_size):
    at = np.uint64(row * table.width + action)
    old = np.float64(table.values[at])
    table.values[at] = old + step_size * (target - old)


@jit_inline
def _add_amount(table, row, action, amount):
    at = np.uint64(row * table.width + action)
    table.values[at] += amount


ROW_FUNCTIONS[LineArrays] = RowFunctions(
    _actions_of,
    _value_of,
    _row_maximum,
    _greedy_action,
    _any_greedy_action,
    _visits_of,
    _count,
    _learn_target,
    _add_amount,
)
