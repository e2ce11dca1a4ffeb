"""Tables in parts: each host that has some rows writes these, and whoever reads them takes what it needs.

Part k has the arrays ``rows_k``, whole numbers of shape (n, 2), the first row and the number of rows of each
stretch, in order; and ``values_k`` and ``counts_k``, what stands in these rows, one stretch after the other.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.checkpoint.arrays import ArrayEntry, ArrayFile, InSlices
from dist_classicrl.checkpoint.storage import Storage

IN_PARTS = {"q_table": "values", "visits": "counts"}
"""What arrays of the whole table are called in parts."""

_PART = re.compile("(rows|values|counts)_([0-9]+)")
_SLICE_ROWS = 1 << 16

Entries = dict[str, ArrayEntry]


class OwnRows(InSlices):
    """What stands in some rows of `array`, a slice of them at a time; see `InSlices`."""

    def __init__(self, array: np.ndarray, stretches: np.ndarray, dtype: npt.DTypeLike | None = None) -> None:
        super().__init__(array, array.dtype if dtype is None else dtype)
        self._stretches = stretches
        self.shape = (int(stretches[:, 1].sum()), array.shape[1])

    def slices(self) -> Iterator[np.ndarray]:
        """Yield them, in order."""
        for rows in rows_in(self._stretches, _SLICE_ROWS):
            copied = np.ascontiguousarray(self._array[rows], self.dtype)
            if not np.isfinite(copied).all():
                raise ValueError("the table holds values that are not finite")
            yield copied


def stretches_of(rows: np.ndarray) -> np.ndarray:
    """Return the stretches of rows that are in order, int64 of shape (n, 2)."""
    if not rows.size:
        return np.zeros((0, 2), np.int64)
    begins = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
    return np.stack([rows[begins], np.diff(np.append(begins, rows.size))], 1).astype(np.int64)


def rows_in(stretches: np.ndarray, at_once: int) -> Iterator[np.ndarray]:
    """Give the rows of stretches in order, int64, so many at once, about."""
    ends = np.cumsum(stretches[:, 1])
    first = 0
    while first < len(stretches):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + at_once, "right")))
        some = stretches[first:last]
        starts = np.repeat(some[:, 0] - (np.cumsum(some[:, 1]) - some[:, 1]), some[:, 1])
        rows = starts + np.arange(starts.size)
        for begin in range(0, rows.size, at_once):
            yield rows[begin : begin + at_once]
        first = last


def write_part(
    storage: Storage,
    folder: str,
    number: int,
    stretches: np.ndarray,
    values: np.ndarray,
    counts: np.ndarray,
    look: Callable[[], None] = lambda: None,
) -> Entries:
    """Write part `number` of a table to a checkpoint's folder, and verify it; return its entries.

    `look` is called before each piece of an array is written, or read back. ValueError where something is not
    finite, or not as it was written. Whatever the storage raises comes through.
    """
    contents: dict[str, Any] = {
        f"rows_{number}": stretches,
        f"values_{number}": OwnRows(values, stretches),
        f"counts_{number}": OwnRows(counts, stretches, np.uint32),
    }
    entries = {}
    for name, content in contents.items():
        file = ArrayFile(content)
        storage.write(f"{folder}/{name}.npy", file.chunks(look))
        entries[name] = file.entry()
    storage.sync(folder)
    for name, entry in entries.items():
        with storage.open(f"{folder}/{name}.npy") as written:
            array_files.verify(written, entry, look)
    return entries


@dataclass(frozen=True)
class _Part:
    """Where some of a table's rows are in a file."""

    stretches: np.ndarray
    before: np.ndarray  # rows in the file before each stretch
    read: Callable[[np.ndarray], np.ndarray]  # what stands in these rows of the file, in order


class PartedArray:
    """An array of shape (rows, columns) whose rows are in files of several parts, read when they are needed.

    It is for reading only, by slices of its rows; `numpy.asarray` reads all of it.
    """

    ndim = 2

    def __init__(self, parts: list[_Part], shape: tuple[int, int], dtype: np.dtype) -> None:
        self._parts, self.shape, self.dtype = parts, shape, dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows, which are in order."""
        found = np.empty((rows.size, self.shape[1]), self.dtype)
        for part in self._parts:
            number = np.searchsorted(part.stretches[:, 0], rows, "right") - 1
            known = number >= 0
            offset = rows[known] - part.stretches[number[known], 0]
            is_there = offset < part.stretches[number[known], 1]
            places = np.flatnonzero(known)[is_there]
            if places.size:
                found[places] = part.read(part.before[number[places]] + offset[is_there])
        return found

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        whole: np.ndarray = np.asarray(self)[index]
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.take(np.arange(len(self))).astype(self.dtype if dtype is None else dtype, copy=False)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return it as it is where it is of this type, else all of it."""
        return self if np.dtype(dtype) == self.dtype and not copy else np.asarray(self, dtype)

    def _bounds(self) -> tuple[Any, Any]:
        parts = (self[first : first + _SLICE_ROWS] for first in range(0, len(self), _SLICE_ROWS))
        bounds = [(part.min(), part.max()) for part in parts]
        return min(least for least, _ in bounds), max(most for _, most in bounds)

    def min(self) -> Any:
        """Return the least number."""
        return self._bounds()[0]

    def max(self) -> Any:
        """Return the largest number."""
        return self._bounds()[1]


def is_part(name: str) -> bool:
    """Whether this is the name of an array of a part."""
    return _PART.fullmatch(name) is not None


def whole_table(
    storage: Storage,
    folder: str,
    entries: Mapping[str, ArrayEntry],
    look: Callable[[], None] = lambda: None,
) -> dict[str, PartedArray]:
    """Return `q_table` and `visits` of a checkpoint in parts, of which the arrays of these `entries` are.

    Nothing but the stretches is read yet, and `look` is called before each piece. ValueError where they are
    no whole table.
    """
    numbers = sorted({int(found[2]) for name in entries if (found := _PART.fullmatch(name))})
    rows = {}
    for number in numbers:
        names = [f"{kind}_{number}" for kind in ("rows", "values", "counts")]
        missing = [name for name in names if name not in entries]
        if missing:
            raise ValueError(f"part {number} lacks {', '.join(missing)}")
        with storage.open(f"{folder}/rows_{number}.npy") as file:
            rows[number] = array_files.read(file, entries[f"rows_{number}"], look)
    n_rows = _check_stretches(rows)
    tables = {}
    for name, kind in IN_PARTS.items():
        parts = []
        for number, stretches in rows.items():
            entry = entries[f"{kind}_{number}"]
            if len(entry.shape) != 2 or entry.shape[0] != stretches[:, 1].sum():
                raise ValueError(f"{kind}_{number} has the shape {entry.shape}")
            path = f"{folder}/{kind}_{number}.npy"
            look()
            before = np.cumsum(stretches[:, 1]) - stretches[:, 1]
            parts.append(_Part(stretches, before, _reader(storage, path, entry)))
        shapes = {entries[f"{kind}_{number}"].shape[1] for number in numbers}
        types = {entries[f"{kind}_{number}"].dtype for number in numbers}
        if len(shapes) != 1 or len(types) != 1:
            raise ValueError(f"its parts have different {kind}")
        dtype = np.dtype(np.int64 if kind == "counts" else types.pop())
        tables[name] = PartedArray(parts, (n_rows, shapes.pop()), dtype)
    return tables


def _check_stretches(parts: Mapping[int, np.ndarray]) -> int:
    """Return how many rows there are; ValueError unless each is in one part."""
    for number, stretches in parts.items():
        if stretches.dtype != np.int64 or stretches.ndim != 2 or stretches.shape[1] != 2:
            raise ValueError(f"rows_{number} is {stretches.dtype} of shape {stretches.shape}")
        if stretches.size and (stretches.min() < 0 or (np.diff(stretches[:, 0]) <= 0).any()):
            raise ValueError(f"rows_{number} is not in order")
    every = np.concatenate(list(parts.values()))
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = every.sum(axis=1)
    if not every.size or every[0, 0] != 0 or (every[1:, 0] != ends[:-1]).any():
        raise ValueError("its parts together are no whole table")
    return int(ends[-1])


def _reader(storage: Storage, path: str, entry: ArrayEntry) -> Callable[[np.ndarray], np.ndarray]:
    """Return what reads rows of a file, which are in order; where it is no local one it is opened anew."""
    with storage.open(path) as file:
        first = array_files.begin_of(file, entry)
        mapped = None
        if isinstance(file, io.BufferedReader) and entry.shape[0]:
            mapped = np.memmap(file, entry.dtype, "r", first, entry.shape)
    width = entry.shape[1] * np.dtype(entry.dtype).itemsize

    def take(rows: np.ndarray) -> np.ndarray:
        found = np.empty((rows.size, entry.shape[1]), entry.dtype)
        filled = 0
        with storage.open(path) as file:
            for begin, n in stretches_of(rows).tolist():
                file.seek(first + begin * width)
                array_files.fill(file, found[filled : filled + n].reshape(-1).view(np.uint8).data)
                filled += n
        return found

    return take if mapped is None else lambda rows: mapped[rows]
