"""What stands where in the arrays of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TableShape:
    """What stands in the arrays of a table.

    First the states of each of the rule's tables, one table after the other, then what the rule shares
    besides, in rows of its own.
    """

    n_states: int  # S
    n_actions: int  # A
    n_tables: int = 1
    n_shared: int = 0  # numbers that are shared

    @property
    def n_rows(self) -> int:
        """Rows of A entries."""
        return self.n_tables * self.n_states + -(-self.n_shared // self.n_actions)

    @property
    def size(self) -> int:
        """Entries."""
        return self.n_rows * self.n_actions

    @property
    def of_table(self) -> tuple[int, int]:
        """States and actions."""
        return self.n_states, self.n_actions

    @property
    def is_one_table(self) -> bool:
        """Whether there is nothing but one table."""
        return self.n_tables == 1 and self.n_shared == 0

    def tables(self, rows: np.ndarray) -> np.ndarray:
        """Return the tables that stand in `rows`, shape (rows, A), as a view of shape (tables, S, A)."""
        return rows[: self.n_tables * self.n_states].reshape(self.n_tables, self.n_states, self.n_actions)

    def shared(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers that are shared, a copy, shape (n_shared,)."""
        return rows[self.n_tables * self.n_states :].reshape(-1)[: self.n_shared].copy()

    def name_of(self, entry: int) -> str:
        """Return what an entry is, to begin a sentence."""
        row, action = divmod(entry, self.n_actions)
        if row >= self.n_tables * self.n_states:
            return "A number that the learning rule shares"
        return f"The value of action {action} in state {row % self.n_states}"

    def q_table(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of the tables, shape (S, A): `values` as they are, or else read-only."""
        if self.is_one_table:
            return values
        return _read_only(self.mean_of(self.tables(values)))

    def mean_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the mean over the tables of rows of all of them, shape (tables, ..., A), in their type."""
        # Divided first: the sum of large numbers may be infinite.
        mean: np.ndarray = (rows / rows.dtype.type(self.n_tables)).sum(axis=0)
        return mean

    def mean_of_equal(self, value: float, dtype: np.dtype) -> float:
        """Return what `mean_of` makes of tables that have the same value: with three, not always that."""
        # Two actions: NumPy adds up a single column in another order.
        return float(self.mean_of(np.full((self.n_tables, 2), value, dtype))[0])

    def visits(self, counts: np.ndarray) -> np.ndarray:
        """Return the visits to all tables, shape (S, A): `counts` as they are, or else read-only."""
        return counts if self.is_one_table else _read_only(self.tables(counts).sum(axis=0, dtype=np.int64))

    def to_arrays(self, values: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Return by name what files hold of `values` and `counts`, each of shape (rows, A)."""
        arrays = {"q_table": self.q_table(values), "visits": self.visits(counts)}
        return arrays if self.is_one_table else {**arrays, "tables": values, "table_visits": counts}

    def bytes_of_arrays(self, dtype: np.dtype) -> int:
        """Return the bytes of what `to_arrays` returns of values of this type."""
        entry = dtype.itemsize + np.dtype(np.int64).itemsize
        means = 0 if self.is_one_table else self.n_states * self.n_actions
        return (self.size + means) * entry

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return `values` and `counts` from what `to_arrays` returned; None if it was for another shape."""
        names = ("q_table", "visits") if self.is_one_table else ("tables", "table_visits")
        found = [arrays[name] for name in names if name in arrays]
        if len(found) == 2 and all(array.shape == (self.n_rows, self.n_actions) for array in found):
            return found[0], found[1]
        return None


OTHER_ARRAYS = ("tables", "table_visits")
"""What `TableShape.to_arrays` has besides `q_table` and `visits` where there is more than one table."""


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
