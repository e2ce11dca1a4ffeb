"""Merging what the logical workers of a round have learned, wherever they did, to the same bits.

Floating-point sums depend on their order, so that is fixed: the maps of a group of logical workers are added
up in the order of their numbers, and then the groups are in theirs. Groups do not depend on ranks, so a rank
that carries all of one sends its sum, in place of as many maps as the group has workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dist_classicrl._memory import zeros
from dist_classicrl.tables import round_kernels
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import PackedSums, diverged, index_dtype, require_fit
from dist_classicrl.tables.round_kernels import Packing, RoundSums
from dist_classicrl.tables.shared import ServedTable


def group_size(logical_workers: int) -> int:
    """Return how many of so many logical workers a group has: a power of two, the square root or above it."""
    size = 1
    while size * size < logical_workers:
        size *= 2
    return size


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


@lru_cache(maxsize=64)
def counts_of(first: int, end: int, logical_workers: int) -> np.ndarray:
    """Return how many workers each of the `parts_of` these logical workers has, int64; not to be changed."""
    return np.array([len(part) for part in parts_of(first, end, logical_workers)], np.int64)


@dataclass(frozen=True)
class Parts:
    """The sums of the maps of logical workers that follow each other, from number `first` on.

    Each part is the sum of a group, or of one worker: see `parts_of`.
    """

    first: int
    counts: np.ndarray  # int64: how many workers each part has
    ends: np.ndarray  # int64: where in `sums` each part ends
    sums: PackedSums

    @classmethod
    def one(cls, first: int, sums: PackedSums, workers: int = 1) -> Parts:
        """Return a single part, of one logical worker or of a group."""
        return cls(first, np.array([workers]), np.array([sums.entries.size]), sums)

    @property
    def is_whole(self) -> bool:
        """Whether no part ends before the one ahead of it, and the last one ends where all sums do."""
        ends = self.ends.tolist()
        return (
            len(self.counts) == len(ends) > 0
            and [0, *ends] == sorted([0, *ends])
            and {array.size for array in self.sums} == {ends[-1]}
        )

    def named(self, place: int) -> str:
        """Return the number of the logical worker, or those of the group, whose sums have this place."""
        part = int(np.searchsorted(self.ends, place, side="right"))
        end = self.first + int(self.counts[: part + 1].sum())
        first = end - int(self.counts[part])
        return str(first) if first == end - 1 else f"{first} to {end - 1}"


class MapSums:
    """Adds up the maps of logical workers, for a table of so many entries."""

    def __init__(self, size: int) -> None:
        self.index_dtype = index_dtype(size)
        seen = np.empty(size, self.index_dtype)
        self.arrays = RoundSums(zeros(4 * size, float), seen, np.zeros(1, np.int64))

    @property
    def size(self) -> int:
        """How many entries there are sums of."""
        return int(self.arrays.n_seen[0])

    def fold(self, table: LocalTable) -> None:
        """Add all that a table has learned since its base, which it then is again.

        DivergenceError if a value has grown beyond what the server's table can hold.
        """
        lost = table.fold(self.arrays)
        if lost >= 0:
            raise table.diverged_in_round(lost)

    def add_sums(self, sums: PackedSums) -> None:
        """Add what another has added up."""
        round_kernels.add_sums(sums, 0, sums.entries.size, self.arrays)

    def take(self, in_order: bool = False) -> PackedSums:
        """Return the sums, and begin with new ones; `in_order`: entries ascend."""
        if in_order:
            self.arrays.seen[: self.size].sort()
        sums = PackedSums.empty(self.size, self.index_dtype)
        round_kernels.take_sums(self.arrays, sums, 0)
        return sums


class PartSums:
    """Adds up the maps of logical workers that follow each other, and packs each part when it is whole."""

    def __init__(self, size: int) -> None:
        self._sums = MapSums(size)
        self._first, self._counts = 0, np.zeros(0, np.int64)
        #: For kernels.
        self.arrays = self._arrays_for(self._counts, PackedSums.empty(0, self._sums.index_dtype))

    def begin(self, workers: range, logical_workers: int) -> None:
        """Begin with these of so many logical workers; forget what was not taken, maybe for an error."""
        if self._sums.size:
            self._sums.take()
        counts = counts_of(workers.start, workers.stop, logical_workers)
        if counts is not self._counts:
            self._counts = counts
            self.arrays = self._arrays_for(counts, self.arrays.packed)
        self._first = workers.start
        self.arrays.progress[:] = round_kernels.NO_PROGRESS

    def _arrays_for(self, counts: np.ndarray, room: PackedSums) -> Packing:
        stops = np.array([*np.cumsum(counts), -1])
        ends = np.zeros(counts.size, np.int64)
        return Packing(self._sums.arrays, room, stops, ends, np.array(round_kernels.NO_PROGRESS))

    def fold(self, table: LocalTable) -> None:
        """Add what the next worker has learned, see `MapSums.fold`."""
        self._sums.fold(table)
        self.arrays.progress[round_kernels.WORKERS] += 1
        while not round_kernels.pack_part(self.arrays):
            self.make_room()

    @property
    def needs_room(self) -> bool:
        """Whether a part is whole that was not packed: there was no room."""
        workers, parts, *_ = self.arrays.progress.tolist()
        return bool(workers == self.arrays.stops[parts])

    @property
    def lost(self) -> int:
        """An entry whose value was beyond what the server's table can hold, or -1."""
        return int(self.arrays.progress[round_kernels.LOST])

    @property
    def is_unsound(self) -> bool:
        """Whether the totals of a worker are beyond what can be added up."""
        return bool(self.arrays.progress[round_kernels.IS_UNSOUND])

    def make_room(self) -> None:
        """Make room for the part that could not be packed, and a quarter more than that takes."""
        old, parts = self.arrays.packed, self.arrays.progress[round_kernels.PARTS]
        used = int(self.arrays.ends[parts - 1]) if parts else 0
        size = used + self._sums.size
        room = PackedSums.empty(size + size // 4, self._sums.index_dtype)
        for before, now in zip(old, room, strict=True):
            now[:used] = before[:used]
        self.arrays = self.arrays._replace(packed=room)

    def parts(self, in_order: bool = False) -> Parts:
        """Return all parts, in memory that the next ones take; `in_order`: entries ascend in each."""
        ends = self.arrays.ends
        sums = PackedSums(*(array[: ends[-1]] for array in self.arrays.packed))
        if in_order:
            part_of_each = np.repeat(np.arange(ends.size), np.diff(ends, prepend=0))
            order = np.lexsort((sums.entries, part_of_each))
            sums = PackedSums(*(array[order] for array in sums))
        return Parts(self._first, self._counts, ends, sums)


class RoundMerge:
    """Merges the maps of all logical workers of a round into a `ServedTable`.

    The order-free form: W = product of w_i, Q = W Q + (1 - W) (sum of k_i y_i) / (sum of k_i), y_i = b_i / (1
    - w_i).
    """

    def __init__(self, table: ServedTable) -> None:
        self._table = table
        self._group = MapSums(table.values.size)
        self._sums = MapSums(table.values.size)

    def merge(self, parts: Iterable[Parts]) -> float:
        """Apply one round: the parts of all logical workers, by their numbers. Return its N k a.

        That is the mean of -ln W over the visits. ProtocolError where parts are of another table;
        DivergenceError where the round takes a value beyond what the table can hold, which then stays as it
        was.
        """
        table, sums = self._table, self._sums.arrays
        parts = list(parts)
        for some in parts:
            require_fit(some.sums.entries, some.sums, table.values.size)
        n_workers = sum(int(some.counts.sum()) for some in parts)
        size = group_size(n_workers)
        for some in parts:
            round_kernels.add_parts(
                some.sums, some.counts, some.ends, some.first, size, n_workers, self._group.arrays, sums
            )
        entries = sums.seen[: self._sums.size].copy()
        lost, load = round_kernels.merge_finish(sums, table.values, table.counts, table.limit)
        if lost >= 0:
            raise diverged(
                f"The merge of a round would make entry {lost} of the table infinite", table.values.dtype
            )
        table.changed(entries)
        return float(load)
