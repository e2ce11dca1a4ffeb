"""Tables that lie on a card, beside what the engine sees of them here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.learning.card.cards import is_of_card
from dist_classicrl.learning.compiled import stuck_there
from dist_classicrl.tables.line_table import LineTable, size_of
from dist_classicrl.tables.lines import LineArrays
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.rows import VISIT_MASK
from dist_classicrl.tables.shape import TableShape


class Maps(NamedTuple):
    """The first fields of `steps.Arrays` and `steps.OneTable`."""

    values: Any
    known: Any
    weight: Any
    shift: Any


def known_visits(table: LocalTable) -> np.ndarray:
    """Return how often each entry was visited, as far as a table knows."""
    return table.visits + (table.updates & VISIT_MASK) if table.with_maps else table.visits


@contextmanager
def changing(held: HeldTable | HeldRows) -> Iterator[None]:
    """Take note that a table changes on the card meanwhile, also where it ends with an error.

    But for the card's own: after that what is there cannot be had.
    """
    try:
        yield
    except BaseException as error:
        if not is_of_card(error):
            held.has_changed()
        raise
    held.has_changed()


class HeldTable:
    """A table that goes to the card and back with each call, with the maps of what was learned, if there are.

    `table` is what the engine packs and re-bases; `memory` is how arrays go to the card, a `CardMemory`.
    """

    def __init__(self, table: LocalTable, memory: Any) -> None:
        self._table = table
        self._memory = memory
        self._there: Maps | None = None

    def there(self) -> Maps:
        """Return the table on the card, as it is here; without maps nobody looks at theirs."""
        table, memory = self._table, self._memory
        if self._there is None:
            size = table.q.size
            known = memory.new(size, np.int64)
            self._there = Maps(
                memory.new(size, np.float64), known, *memory.put((np.ones(size), np.zeros(size)))
            )
        there = self._there
        memory.write(there.values, table.q)
        memory.write(there.known, known_visits(table))
        if table.with_maps:
            memory.write(there.weight, table.weight)
            memory.write(there.shift, table.shift)
        return there

    def has_changed(self) -> None:
        """Bring the table here to what it is on the card."""
        table, there, memory = self._table, self._there, self._memory
        assert there is not None  # else nobody could have changed it
        memory.read(there.values, table.q)
        if table.with_maps:
            visits = memory.get(there.known) - known_visits(table)
            memory.read(there.weight, table.weight)
            memory.read(there.shift, table.shift)
            new = np.flatnonzero((visits > 0) & (table.updates == 0))
            first = int(table.n_touched[0])
            table.touched[first : first + new.size] = new
            table.n_touched[0] = first + new.size
            table.updates += visits
        else:
            memory.read(there.known, table.visits)
        table.refresh_all_rows()

    def close(self) -> None:
        """Give the card's memory back."""
        self._there = None


class HeldRows:
    """Rows that stay on the card between calls, and come here when somebody asks for them.

    To the engine it is the table of a learner that is alone, see `LineTable`: it is loaded, and settled.
    `stuck` are the states in which no action is legal, see `compiled.stuck_states`. `used` returns what is
    entered while the card is used, see `launching.used`: whoever asks for the rows has not entered it. What
    is copied is their memory as it is, and there is no third place where it is.
    """

    is_elsewhere = True  # so the rows here may be saved while those there are learned

    def __init__(
        self, rows: LineTable, memory: Any, stuck: np.ndarray | None, used: Callable[[], Any]
    ) -> None:
        self.bytes = size_of(rows.shape, rows.values.dtype) + rows.arrays.n_touched.nbytes
        self._rows = rows
        self._memory = memory
        self._stuck = stuck
        self._used = used
        self._there: LineArrays | None = None
        self._is_new, self._has_changed = True, False

    @property
    def shape(self) -> TableShape:
        """What stands in the rows."""
        return self._rows.shape

    @property
    def arrays(self) -> LineArrays:
        """The rows as they are here."""
        return self._rows.arrays

    def there(self) -> LineArrays:
        """Return the rows on the card; what is legal is there already, and not in them."""
        arrays, memory = self._rows.arrays, self._memory
        if self._there is None:
            counts = memory.new(arrays.counts.size, arrays.counts.dtype)
            values = counts.view(arrays.values.dtype)
            n_touched = memory.put(arrays.n_touched)
            self._there = arrays._replace(values=values, counts=counts, n_touched=n_touched, legal=None)
        if self._is_new:
            memory.write(self._there.counts, arrays.counts)
            self._is_new = False
        return self._there

    def has_changed(self) -> None:
        """Take note that what is here is out of date."""
        self._has_changed = True

    def load(self, values: np.ndarray, counts: np.ndarray, exact: np.ndarray | None = None) -> None:
        """See `LineTable`."""
        self._rows.load(values, counts, exact)
        self._is_new, self._has_changed = True, False

    def exact(self) -> None:
        """See `LineTable`."""

    def settle(self, values: np.ndarray, counts: np.ndarray) -> None:
        """See `LineTable`; ActionMaskError where something was done in a state in which nothing is legal."""
        self._bring()
        self._rows.settle(values, counts)

    def _bring(self) -> None:
        if not self._has_changed:
            return
        assert self._there is not None  # else nobody could have changed it
        counts = self.shape.tables(self._rows.counts)
        before = None if self._stuck is None else counts[:, self._stuck]
        with self._used():
            self._memory.read(self._there.counts, self._rows.arrays.counts)
        self._has_changed = False
        if self._stuck is not None:
            stuck_there(self._stuck, counts[:, self._stuck], before)

    def close(self) -> None:
        """Give the card's memory back."""
        self._there = None
        self._is_new = True
