"""A table of `dist_classicrl.tables.lines` in the memory of this process."""

from __future__ import annotations

import numpy as np

from dist_classicrl._memory import LINE, zeros
from dist_classicrl.errors import DivergenceError
from dist_classicrl.tables import lines
from dist_classicrl.tables.lines import MOST_VISITS, LineArrays
from dist_classicrl.tables.maps import diverged
from dist_classicrl.tables.rows import UNROLLED_ACTIONS, legal_lists
from dist_classicrl.tables.shape import TableShape


def row_bytes(n_actions: int, dtype: np.dtype) -> int:
    """Return the bytes of a row of such a table."""
    return -(-n_actions * (dtype.itemsize + 4) // LINE) * LINE


def size_of(shape: TableShape, dtype: np.dtype) -> int:
    """Return the bytes of such a table."""
    return shape.n_rows * row_bytes(shape.n_actions, dtype)


class LineTable:
    """The arrays of `LineArrays` for a table of this shape.

    `legal`, bool of shape (n_states, n_actions), has the legal actions where they depend on the state.
    `memory` are `size_of` bytes, uint8, in which the table is or will be; else it is new and all zero.
    """

    def __init__(
        self,
        shape: TableShape,
        dtype: np.dtype,
        legal: np.ndarray | None = None,
        memory: np.ndarray | None = None,
    ) -> None:
        width = row_bytes(shape.n_actions, dtype)
        is_new = memory is None
        if memory is None:
            memory = zeros(size_of(shape, dtype), np.uint8)
        first_count = shape.n_actions * dtype.itemsize // 4
        self.shape = shape
        self.arrays = LineArrays(
            memory.view(dtype),
            memory.view(np.uint32),
            width // dtype.itemsize,
            width // 4,
            first_count,
            np.zeros(1, np.int64),
            None if legal is None else legal_lists(legal),
            (0,) * shape.n_actions if shape.n_actions <= UNROLLED_ACTIONS else None,
            shape.n_states,
            shape.n_tables,
            shape.n_actions,
        )
        #: Of each row its values and its counts, shape (rows, A).
        self.values = self.arrays.values.reshape(shape.n_rows, self.arrays.width)[:, : shape.n_actions]
        last_count = first_count + shape.n_actions
        counts = self.arrays.counts.reshape(shape.n_rows, self.arrays.count_width)
        self.counts = counts[:, first_count:last_count]
        self._legal = legal
        if is_new:
            self._forbid()

    def _forbid(self) -> None:
        if self._legal is not None:
            self.shape.tables(self.values)[:, ~self._legal] = -np.inf

    def of_states(self, states: np.ndarray) -> np.ndarray:
        """Return the values of some states, shape (tables, states, A); those of illegal actions are -inf.

        Whoever learns such an entry all the same comes to no number.
        """
        return self.shape.tables(self.values)[:, states]

    def load(self, values: np.ndarray, counts: np.ndarray, exact: np.ndarray | None = None) -> None:
        """Start from a whole table: `values` and visit `counts`, flat; `exact` has nothing more to tell.

        They may be this table's own.
        """
        if self._is_own(values):
            return
        np.copyto(self.values, values.reshape(self.values.shape), casting="same_kind")
        self.counts[:] = np.minimum(counts, MOST_VISITS).reshape(self.counts.shape)
        self._forbid()

    def exact(self) -> None:
        """Return what the values are if they are more than `settle` writes: nothing."""

    def settle(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Write the whole table to `values` and `counts`, flat; 0 where an action is illegal.

        They may be this table's own. DivergenceError if a value has grown beyond what the table can hold;
        then nothing is written.
        """
        self.check_finite()
        if not self._is_own(values):
            lines.write(self.arrays, self._legal, 0, self.shape.n_rows, values, counts)

    def _is_own(self, values: np.ndarray) -> bool:
        return np.may_share_memory(values, self.values)

    def check_finite(self) -> None:
        """Raise DivergenceError if a value has grown beyond what the table can hold."""
        lost = lines.first_infinite(self.arrays, self._legal, 0, self.shape.n_rows)
        if lost >= 0:
            raise self.diverged(lost)

    def write(self, first: int, last: int, values: np.ndarray, counts: np.ndarray) -> int:
        """Write the rows from `first` to before `last` as `settle` does.

        Return the first entry of them that is no finite number, or -1.
        """
        lines.write(self.arrays, self._legal, first, last, values, counts)
        return int(lines.first_infinite(self.arrays, self._legal, first, last))

    def diverged(self, entry: int) -> DivergenceError:
        """Return the error for an entry that has grown beyond what the table can hold."""
        value = self.values[divmod(entry, self.shape.n_actions)]
        return diverged(f"{self.shape.name_of(entry)} is {value}", self.values.dtype)
