"""Merging what the logical workers of a round have learned, wherever they did, to the same bits.

Floating-point sums depend on their order, so that is fixed: the maps of a group of logical workers are added
up in the order of their numbers, and then the groups are in theirs. Groups do not depend on ranks, so a rank
that carries all of one sends its sum, in place of as many maps as the group has workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dist_classicrl.tables import kernels
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import PackedSums, diverged, index_dtype
from dist_classicrl.tables.shared import SharedTable


def group_size(logical_workers: int) -> int:
    """Return how many of so many logical workers a group has: a power of two, the square root or above it."""
    size = 1
    while size * size < logical_workers:
        size *= 2
    return size


@dataclass(frozen=True)
class Part:
    """The sums of the maps of `count` logical workers from number `first` on: of a group, or of one."""

    first: int
    count: int
    sums: PackedSums


def parts_of(first: int, end: int, logical_workers: int) -> Iterator[range]:
    """Yield the logical workers that make a `Part` each, of those from `first` to before `end`.

    Whole groups are added up where they are; of others each worker's maps travel.
    """
    size = group_size(logical_workers)
    while first < end:
        stop = min(first + size, logical_workers)
        if first % size or stop > end:
            stop = first + 1
        yield range(first, stop)
        first = stop


class MapSums:
    """Adds up the maps of logical workers, for a table of so many entries."""

    def __init__(self, size: int) -> None:
        self._index_dtype = index_dtype(size)
        self.arrays = kernels.RoundSums(
            np.empty(size),
            np.empty(size),
            np.empty(size),
            np.full(size, -1, np.int64),
            np.empty(size, self._index_dtype),
        )
        #: How many entries there are sums of.
        self.size = 0

    def fold(self, table: LocalTable) -> None:
        """Add all that a table has learned since its base, which it then is again.

        DivergenceError if a value has grown beyond what the server's table can hold.
        """
        self.size, lost = table.fold(self.arrays, self.size)
        if lost >= 0:
            raise table.diverged(int(lost))

    def add_sums(self, sums: PackedSums) -> None:
        """Add what another has added up."""
        self.size = kernels.add_sums(sums, self.arrays, self.size)

    def take(self, in_order: bool = False) -> PackedSums:
        """Return the sums, and begin with new ones; `in_order`: entries ascend."""
        if in_order:
            self.arrays.seen[: self.size].sort()
        sums = PackedSums.empty(self.size, self._index_dtype)
        kernels.take_sums(self.arrays, self.size, sums)
        self.size = 0
        return sums


class RoundMerge:
    """Merges the maps of all logical workers of a round into a `SharedTable`.

    The order-free form: W = product of w_i, Q = W Q + (1 - W) (sum of k_i y_i) / (sum of k_i), y_i = b_i / (1
    - w_i).
    """

    def __init__(self, table: SharedTable) -> None:
        self._table = table
        self._group = MapSums(table.values.size)
        self._sums = MapSums(table.values.size)

    def merge(self, parts: Iterable[Part]) -> float:
        """Apply one round: the parts of all logical workers, by their numbers. Return its N k a.

        That is the mean of -ln W over the visits. DivergenceError where the round takes a value beyond what
        the table can hold, which then stays as it was.
        """
        table = self._table
        parts = list(parts)
        n_workers = sum(part.count for part in parts)
        size = group_size(n_workers)
        for part in parts:
            end = part.first + part.count
            if part.count == 1:
                self._group.add_sums(part.sums)
                if end % size == 0 or end == n_workers:
                    self._sums.add_sums(self._group.take())
            else:
                self._sums.add_sums(part.sums)
        sums = self._sums
        entries = sums.arrays.seen[: sums.size].copy()
        lost, load = kernels.merge_finish(sums.arrays, sums.size, table.values, table.counts, table.limit)
        sums.size = 0
        if lost >= 0:
            raise diverged(
                f"The merge of a round would make entry {lost} of the table infinite", table.values.dtype
            )
        table.changed(entries)
        return float(load)
