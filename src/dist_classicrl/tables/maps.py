"""Affine maps and what brings a table up to date, as arrays ready to send."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dist_classicrl.errors import DivergenceError, ProtocolError
from dist_classicrl.tables import kernels

_TINY = 2.0**-900
_ALIKE = "All ranks must learn the same environment, and run the same version of this package."


class PackedMap(NamedTuple):
    """Affine maps of some entries, ready to send: entry e goes from Q to ``weight * Q + shift``.

    Each array has the shape (m,).
    """

    entries: np.ndarray  # int32 or int64: each entry at most once
    weight: np.ndarray  # float64
    shift: np.ndarray  # float64
    visits: np.ndarray  # uint32: real steps that the map stands for; 0 where it was replayed only
    #: uint32: visits that the sender knew of besides, modulo 2**32. What the server counts beyond them came
    #: from others in the meantime.
    known: np.ndarray
    replays: np.ndarray | None  # uint32: replayed updates that it stands for besides; None: there are none

    @classmethod
    def empty(cls, size: int, index_dtype: np.dtype, with_replays: bool) -> PackedMap:
        """Return room for `size` maps."""
        return cls(
            np.empty(size, index_dtype),
            np.empty(size),
            np.empty(size),
            np.empty(size, np.uint32),
            np.empty(size, np.uint32),
            np.empty(size, np.uint32) if with_replays else None,
        )

    @property
    def parts(self) -> list[np.ndarray]:
        """The arrays, in the order of the constructor's arguments, without `replays` where there is none."""
        return [array for array in self if array is not None]

    @classmethod
    def from_parts(cls, parts: list[np.ndarray]) -> PackedMap:
        """Return the maps whose `parts` these are."""
        entries, weight, shift, visits, known = parts[:5]
        return cls(entries, weight, shift, visits, known, parts[5] if len(parts) > 5 else None)

    def first(self, size: int) -> PackedMap:
        """Return the first `size` of the maps; copies, unless those are all."""
        if size == self.size:
            return self
        return PackedMap.from_parts([array[:size].copy() for array in self.parts])

    def joined(self, others: PackedMap) -> PackedMap:
        """Return these maps and maps of other entries."""
        both = zip(self.parts, others.parts, strict=True)
        return PackedMap.from_parts([np.concatenate(pair) for pair in both])

    def sorted(self) -> PackedMap:
        """Return the maps with their entries ascending."""
        order = np.argsort(self.entries)
        return PackedMap.from_parts([array[order] for array in self.parts])

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.entries.size


class PackedSums(NamedTuple):
    """The order-free sums of the maps of some logical workers, ready to send; each array of shape (m,)."""

    entries: np.ndarray  # int32 or int64: each entry at most once
    weight: np.ndarray  # float64: the product of the maps' weights
    targets: np.ndarray  # float64: the sum of k y with y = b / (1 - w); of maps that only add, the sum of b
    updates: np.ndarray  # float64: the sum of k: the updates, replayed ones included
    visits: np.ndarray  # int64

    @classmethod
    def empty(cls, size: int, index_dtype: np.dtype) -> PackedSums:
        """Return room for the sums of `size` entries."""
        return cls(
            np.empty(size, index_dtype),
            np.empty(size),
            np.empty(size),
            np.empty(size),
            np.empty(size, np.int64),
        )


@dataclass(frozen=True)
class Refresh:
    """What a worker needs to bring its base from version `since` of the server's table to `version`.

    A preview has some of it, maybe rounded: the worker learns on that, and its base stays as it is.
    """

    since: int  # -1 where the refresh is the whole table
    version: int
    entries: np.ndarray | None  # int32 or int64, shape (m,): the entries that changed; None: all of them
    values: np.ndarray  # shape (m,): their values, in the server table's type
    counts: np.ndarray  # int64, shape (m,): their visits
    keys: np.ndarray | None = None  # int64: of the states of a whole table, where they are such
    is_preview: bool = False

    def require_fit(self, size: int) -> None:
        """Raise ProtocolError unless this is of a table of that `size`."""
        told = (self.values, self.counts)
        if self.entries is not None:
            require_fit(self.entries, told, size)
        elif any(array.shape != (size,) for array in told):
            raise ProtocolError(
                f"A whole table of {self.values.size} entries came for one of {size}. {_ALIKE}"
            )


def require_fit(entries: np.ndarray, arrays: Iterable[np.ndarray | None], size: int) -> None:
    """Raise ProtocolError unless all are entries of a table of that `size`, and arrays have a value for each.

    For all that other ranks sent: a kernel does not look, and would write to memory that is not the table's.
    """
    for array in arrays:
        if array is not None and array.size != entries.size:
            raise ProtocolError(
                f"{entries.size} entries of a table came with {array.size} values of one kind. {_ALIKE}"
            )
    if kernels.count_outside(entries, size):
        raise ProtocolError(
            f"Entries from {entries.min()} to {entries.max()} came for a table that has 0 to {size - 1}. "
            f"{_ALIKE}"
        )


def rounded(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers as multiples of a power of two, which are whole numbers of so many bits, in their dtype.

    The largest is below twice as many multiples as these can count, so each is off by at most its size over
    ``2**(bits - 1) - 1``. Numbers that are all tiny stay as they are.
    """
    largest = float(np.abs(numbers).max(initial=0.0))
    if not _TINY < largest < np.inf:
        return numbers
    quantum = 2.0 ** math.ceil(math.log2(largest / (2 ** (bits - 1) - 1)))
    # To the next multiple above there may be no number.
    to_whole = np.rint if largest < np.finfo(numbers.dtype).max / 2.0 else np.trunc
    multiples = to_whole(numbers.astype(np.float64) / quantum) * quantum
    return (multiples + 0.0).astype(numbers.dtype)  # no -0.0, which takes more bytes


def diverged(what: str, dtype: np.dtype) -> DivergenceError:
    """Return the error for a value that has grown beyond what a table of this type can hold."""
    or_else = "" if dtype == np.float64 else ", or take dtype='float64'"
    return DivergenceError(
        f"{what}, and a table of {dtype} holds numbers up to {np.finfo(dtype).max:.3g}. Make the rewards "
        f"smaller, in a wrapper for instance, or discount_factor{or_else}. Nothing of it was saved."
    )


def index_dtype(n_entries: int) -> np.dtype:
    """Return the integer type in which entries of a table travel."""
    return np.dtype(np.int32 if n_entries < 2**31 else np.int64)
