"""Tables that are there once for a host, and not once for each rank and each purpose: their rows alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl import _memory
from dist_classicrl.errors import SettingsError
from dist_classicrl.tables.line_table import LineTable, size_of
from dist_classicrl.tables.lines import MOST_VISITS
from dist_classicrl.tables.shape import TableShape

FROM_ENTRIES = 1 << 25
"""Entries from which an agent has its table as rows alone. Smaller ones take little, with copies and all."""

WHOLE_SHARE = 0.25
"""Of the memory that a host has left: a table that takes more is divided between hosts."""

_MOVED_BYTES = 1 << 26
_COPIED_ROWS = 1 << 16


def check_room(needed: int, what: str, remedy: str) -> None:
    """Raise SettingsError if so many bytes cannot be had: touching them later would kill the process."""
    left = _memory.memory_left()
    if left is not None and needed > left:
        gc.collect()  # for what circles of a user's own keep, such as another table
        left = _memory.memory_left()
    if left is not None and needed > left:
        raise SettingsError(
            f"{what} needs {needed / 2**30:.3g} GiB with its visits, and this host has "
            f"{left / 2**30:.3g} GiB left: {(needed - left) / 2**30:.3g} GiB too little. {remedy}"
        )


class LargeTable:
    """An agent's table as a `LineTable`, in memory of this process or in memory that ranks of a host share.

    Memory that nothing was written to is not taken yet.
    """

    def __init__(self, shape: TableShape, dtype: np.dtype) -> None:
        self.size = size_of(shape, dtype)
        #: What the ranks share, a `HostMemory`; None: the rows are this process's own.
        self.shared: Any = None
        self._memory = _memory.zeros(self.size, np.uint8, is_sparse=True)
        #: The rows as they are, which may lack their first values yet.
        self.unfilled = LineTable(shape, dtype, None, self._memory)
        #: Whether each host has its share of the rows, and no others; `division` says which, once known.
        self.is_divided = False
        self.division: Any = None
        #: What all values begin with that nothing else was written to, and whether that is still to be done.
        self.initial, self._is_unfilled = 0.0, False
        #: Values and visits that its owners have to take over, see `put`.
        self.waiting: tuple[Any, Any] | None = None
        #: Whether ranks were told who owns which rows in the memory that they share: all of a host have it.
        self.is_in_use = False
        #: What the rows were before they were divided, until all hosts have theirs.
        self.undivided: np.ndarray | None = None
        #: Answers and asks for rows that other hosts have.
        self.desk: Any = None
        #: Whether a user was given the rows, who may write into them at any time.
        self.is_given = False
        self._has_room = False

    def __getstate__(self) -> tuple[TableShape, np.dtype, float, np.ndarray | None]:
        rows = self.unfilled
        return rows.shape, rows.values.dtype, self.initial, self._memory if self.is_written else None

    def __setstate__(self, copied: tuple[TableShape, np.dtype, float, np.ndarray | None]) -> None:
        shape, dtype, initial, memory = copied
        self.__init__(shape, dtype)  # type: ignore[misc]  # rows that lie in memory of their own
        self.begin_with(initial)
        if memory is not None:
            self._is_unfilled = False
            self.take_room()
            self._memory[:] = memory

    @property
    def is_written(self) -> bool:
        """Whether there may be something in the rows."""
        return (self._has_room or self.is_given) and not self._is_unfilled

    def begin_with(self, initial: float) -> None:
        """Let all values of the rule's tables be `initial`: written where the rows are when they are used."""
        self.initial, self._is_unfilled = initial, initial != 0.0

    @property
    def rows(self) -> LineTable:
        """The rows; SettingsError where this host has not the memory for what they begin with."""
        if self._is_unfilled:
            self.take_room()
            self._fill()
        return self.unfilled

    @property
    def memory(self) -> np.ndarray:
        """The bytes of the `rows`, uint8."""
        self.rows  # noqa: B018
        return self._memory

    def _fill(self) -> None:
        self.unfilled.shape.tables(self.unfilled.values)[:] = self.initial
        self._is_unfilled = False

    def take_room(self, part: int | None = None) -> None:
        """Raise SettingsError, before anything is written, where the host has not as much memory left.

        `part`: so many bytes of the rows are this host's share; None: all are.
        """
        shape = self.unfilled.shape
        if not self._has_room and not (self.is_divided and self.division is not None):
            what = "A" if part is None else f"This host's share, {part / self.size:.3g}, of a"
            check_room(
                self.size if part is None else part,
                f"{what} table of {shape.n_states:,} states and {shape.n_actions:,} actions",
                'Take a smaller table, or dtype="float32", or more hosts.',
            )
        self._has_room = self._has_room or part is None

    def stay_undivided(self) -> None:
        """Be whole again where a call of `train` was to divide it and ended before it did."""
        if self.division is None and self.waiting is None:
            self.is_divided = False

    @property
    def answering_desk(self) -> Any:
        """The desk of a table that is divided; SettingsError where the rows never came to their hosts."""
        if self.desk is None:
            raise SettingsError(
                "A call of train failed while it gave the rows of this table to the hosts, and nobody has "
                "all of them. Call train again."
            )
        return self.desk

    def is_too_large_to_copy(self) -> bool:
        """Whether it takes so much of this host's memory that it is to be divided between hosts."""
        left = _memory.memory_left()
        return self.shared is None and left is not None and self.size > WHOLE_SHARE * left

    def take_part(self, number: int, ranks: int) -> None:
        """Take the memory of one of so many equal parts of shared rows now, which may then lie in huge pages.

        Each rank of a host takes one, so that they lie near to all. Of a table that takes much of what the
        host has, only what is learned takes any.
        """
        left = _memory.memory_left()
        if left is None or self.size <= WHOLE_SHARE * left:
            first, last = (self.size * each // ranks for each in (number, number + 1))
            _memory.take(self.memory[first:last])

    def put(self, values: np.ndarray, counts: np.ndarray, look: Callable[[], None] = lambda: None) -> None:
        """Let the first rows and actions be these, two-dimensional; where it is divided, `waiting`.

        `look` is called before each piece that is copied.
        """
        if self.is_divided:
            self.waiting = values, counts
            return
        self.take_room()
        columns = values.shape[1]
        for first in range(0, len(values), _COPIED_ROWS):
            look()
            part = slice(first, first + _COPIED_ROWS)
            self.rows.values[: len(values)][part, :columns] = values[part]
            self.rows.counts[: len(values)][part, :columns] = np.minimum(counts[part], MOST_VISITS)

    def move_to(self, memory: Any, is_first: bool) -> None:
        """Have the rows in `memory`, a `HostMemory` that is this table's from now on.

        `is_first`: they are copied there, or filled. Else they are there, or will be. What they took is given
        back meanwhile, unless a user may hold it.
        """
        if memory is not self.shared:
            self._move(memory, is_first)
        if is_first and self._is_unfilled:
            self._fill()
        self._is_unfilled = False

    def _move(self, memory: Any, is_first: bool) -> None:
        target, self._has_room = memory.array(in_small_pages=self.is_divided), True
        copies = is_first and not self._is_unfilled
        for first in range(0, 0 if self.is_divided else self.size, _MOVED_BYTES):
            part = slice(first, min(first + _MOVED_BYTES, self.size))
            if copies and self._memory[part].any():
                target[part] = self._memory[part]
            if self.shared is None and not self.is_given:
                _memory.give_back(self._memory, part)
        if self.shared is not None:
            self.shared.close()
        shape, dtype = self.unfilled.shape, self.unfilled.values.dtype
        self.shared, self._memory, self.unfilled = memory, target, LineTable(shape, dtype, None, target)
