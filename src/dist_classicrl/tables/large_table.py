"""Tables that are there once for a host, and not once for each rank and each purpose: their rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl import _memory
from dist_classicrl.errors import SettingsError
from dist_classicrl.tables.line_table import LineTable, size_of
from dist_classicrl.tables.lines import MOST_VISITS
from dist_classicrl.tables.shape import TableShape

FROM_ENTRIES = 1 << 25
"""Entries from which an agent has its table as rows alone. Smaller ones take little, with copies and all."""

_MOVED_BYTES = 1 << 26
_COPIED_ROWS = 1 << 16


def check_room(needed: int, what: str, remedy: str) -> None:
    """Raise SettingsError if so many bytes cannot be had: touching them later would kill the process."""
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
        self.memory = _memory.zeros(self.size, np.uint8, is_sparse=True)
        self.rows = LineTable(shape, dtype, None, self.memory)
        self._has_room = False

    def take_room(self) -> None:
        """Raise SettingsError, before anything is written, where the host has not as much memory left."""
        shape = self.rows.shape
        if not self._has_room:
            check_room(
                self.size,
                f"A table of {shape.n_states:,} states and {shape.n_actions:,} actions",
                'Take a smaller table, or dtype="float32", or more hosts.',
            )
        self._has_room = True

    def put(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Let the first rows and actions be these, two-dimensional."""
        self.take_room()
        columns = values.shape[1]
        for first in range(0, len(values), _COPIED_ROWS):
            part = slice(first, first + _COPIED_ROWS)
            self.rows.values[: len(values)][part, :columns] = values[part]
            self.rows.counts[: len(values)][part, :columns] = np.minimum(counts[part], MOST_VISITS)

    def move_to(self, memory: Any, is_first: bool) -> None:
        """Have the rows in `memory`, a `HostMemory` that is this table's from now on.

        `is_first`: they are copied there, and what they took is given back meanwhile. Else they are there.
        """
        if memory is self.shared:
            return
        target, self._has_room = memory.array(), True
        if is_first:
            for first in range(0, self.size, _MOVED_BYTES):
                part = slice(first, min(first + _MOVED_BYTES, self.size))
                if self.memory[part].any():
                    target[part] = self.memory[part]
                if self.shared is None:
                    _memory.give_back(self.memory, part)
        if self.shared is not None:
            self.shared.close()
        self.shared, self.memory = memory, target
        self.rows = LineTable(self.rows.shape, self.rows.values.dtype, None, target)
