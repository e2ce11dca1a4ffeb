"""Arrays as ``.npy`` files: written in pieces, read straight into their memory, trusted only by checksum."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, TypeGuard

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 23  # after each piece the thread waits for the interpreter lock: few and large ones
MAPPED_FROM = 1 << 28
"""Bytes from which an array on a local file system is read when it is needed, after it was checked."""

_MAGIC = b"\x93NUMPY\x01\x00"
_MAX_DIMENSIONS = 32
DTYPES = ("<f8", "<f4", "<i8", "<u8", "<i4", "<u4", "|u1", "|b1")
"""What an array may hold: plain numbers."""


@dataclass(frozen=True)
class ArrayEntry:
    """What the manifest says about one array: its file's size and checksum, its type and shape."""

    bytes: int
    sha256: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, data: Any) -> ArrayEntry:
        """Return the entry that `data` of a manifest describes; ValueError if it describes none."""
        if not isinstance(data, dict):
            raise ValueError("its entry is no object")
        size, sha256 = data.get("bytes"), data.get("sha256")
        dtype, shape = data.get("dtype"), data.get("shape")
        if not _whole(size) or not isinstance(sha256, str):
            raise ValueError("its size or checksum is missing")
        if dtype not in DTYPES:
            raise ValueError(f"its type is {dtype!a}, allowed are {', '.join(DTYPES)}")
        if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_whole, shape)):
            raise ValueError(f"its shape is {shape!a}")
        return cls(size, sha256, dtype, tuple(shape))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data for JSON."""
        return {**vars(self), "shape": list(self.shape)}


class InSlices:
    """An array too large for a whole copy: it is copied a slice at a time when it is written, as `dtype`.

    ValueError, at the slice where they are, if there are floating-point numbers that are not finite.
    """

    def __init__(self, array: np.ndarray, dtype: npt.DTypeLike | None = None) -> None:
        self._array = array
        self.dtype = np.dtype(dtype)
        self.shape = array.shape

    def slices(self) -> Iterator[np.ndarray]:
        """Yield it, in C order."""
        rows = max(1, _CHUNK // max(1, self.dtype.itemsize * math.prod(self.shape[1:])))
        for first in range(0, self.shape[0], rows):
            copied = np.array(self._array[first : first + rows], self.dtype, order="C")
            if not np.isfinite(copied).all():
                raise ValueError("the table holds values that are not finite")
            yield copied


class ArrayFile:
    """The bytes of an array's file, counted and hashed as they are taken."""

    def __init__(self, array: np.ndarray | InSlices) -> None:
        # A copy only where it is not in C order.
        self._array = array if isinstance(array, InSlices) else np.asarray(array, order="C")
        if self._array.dtype.str not in DTYPES:
            raise ValueError(
                f"arrays of checkpoints hold plain numbers ({', '.join(DTYPES)}), got {self._array.dtype.str}"
            )
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def chunks(self, look: Callable[[], None] = lambda: None) -> Iterator[bytes | memoryview]:
        """Yield the file piece by piece, and call `look` before each; once per object."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header,
            {"shape": self._array.shape, "fortran_order": False, "descr": self._array.dtype.str},
        )
        look()
        yield self._count(header.getvalue())
        if isinstance(self._array, InSlices):
            for part in self._array.slices():
                look()
                yield self._count(_memory(part))
            return
        memory = _memory(self._array)
        for start in range(0, len(memory), _CHUNK):
            look()
            yield self._count(memory[start : start + _CHUNK])

    def entry(self) -> ArrayEntry:
        """Return what the manifest has to say about the pieces taken so far."""
        return ArrayEntry(self._bytes, self._sha256.hexdigest(), self._array.dtype.str, self._array.shape)

    def _count(self, chunk: bytes | memoryview) -> bytes | memoryview:
        self._sha256.update(chunk)
        self._bytes += len(chunk)
        return chunk


def verify(file: BinaryIO, entry: ArrayEntry, look: Callable[[], None] = lambda: None) -> None:
    """Raise ValueError unless `file` holds exactly the bytes that `entry` was made from.

    `look` is called before each piece that is read.
    """
    _check_size(file, entry)
    sha256 = hashlib.sha256()
    memory = memoryview(bytearray(min(_CHUNK, entry.bytes)))
    for position in range(0, entry.bytes, _CHUNK):
        look()
        fill(file, memory[: entry.bytes - position], sha256)
    _check_sum(sha256, entry)


def read(file: BinaryIO, entry: ArrayEntry, look: Callable[[], None] = lambda: None) -> np.ndarray:
    """Return the array in `file`; ValueError unless the file is exactly what `entry` describes.

    `look` is called before each piece that is read.
    """
    start, header = _head_of(file, entry)
    sha256 = hashlib.sha256(start + header)
    if entry.bytes >= MAPPED_FROM and isinstance(file, io.BufferedReader):
        array: np.ndarray = np.memmap(file, entry.dtype, "r", file.tell(), entry.shape)
        verify(file, entry, look)
    else:
        array = np.empty(entry.shape, entry.dtype)
        fill(file, _memory(array), sha256, look)
        _check_sum(sha256, entry)
    try:
        described = np.lib.format.read_array_header_1_0(io.BytesIO(start[-2:] + header))
    except Exception as error:  # NumPy's parser raises errors of many kinds
        raise ValueError(f"its header cannot be read ({error})") from error
    if described != (entry.shape, False, np.dtype(entry.dtype)):
        raise ValueError("its header and the manifest contradict each other")
    return array


def _head_of(file: BinaryIO, entry: ArrayEntry) -> tuple[bytearray, bytearray]:
    """Return what stands in front of the numbers, and read so far; ValueError if that cannot be."""
    _check_size(file, entry)
    start = bytearray(len(_MAGIC) + 2)
    if entry.bytes < len(start):
        raise ValueError("it is too short for an array")
    fill(file, memoryview(start))
    if not start.startswith(_MAGIC):
        raise ValueError("it is no .npy file of version 1.0")
    header = bytearray(int.from_bytes(start[-2:], "little"))
    # All sizes must agree before any memory is allocated: a manifest may claim anything.
    if len(start) + len(header) + math.prod(entry.shape) * np.dtype(entry.dtype).itemsize != entry.bytes:
        raise ValueError("its size does not fit its shape")
    fill(file, memoryview(header))
    return start, header


def begin_of(file: BinaryIO, entry: ArrayEntry) -> int:
    """Return where in a file the numbers begin, which `entry` describes and somebody has verified."""
    start, header = _head_of(file, entry)
    return len(start) + len(header)


def _memory(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_size(file: BinaryIO, entry: ArrayEntry) -> None:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size != entry.bytes:
        raise ValueError(f"it has {size} bytes instead of {entry.bytes}")


def _check_sum(sha256: Any, entry: ArrayEntry) -> None:
    if sha256.hexdigest() != entry.sha256:
        raise ValueError("its checksum does not match")


def fill(
    file: IO[bytes], memory: memoryview, digest: Any = None, look: Callable[[], None] = lambda: None
) -> None:
    """Read until `memory` is full, and let a checksum take in what was read; `look` before each piece."""
    position = 0
    while position < len(memory):
        look()
        piece = memory[position : position + _CHUNK]
        count = file.readinto(piece)  # type: ignore[attr-defined]
        if not count:
            raise ValueError("it ends too early")
        if digest is not None:
            digest.update(piece[:count])
        position += count
