"""Arrays in a zip archive, as `numpy.savez` writes them: nothing is unpacked before its size is known."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import numpy as np

from dist_classicrl.checkpoint.arrays import DTYPES, fill
from dist_classicrl.environments.stepped.spaces import MAX_TABLE_BYTES

# Of zlib: half of the time of level 6, which numpy.savez_compressed takes, for files larger by a tenth.
_LEVEL = 1


@dataclass(frozen=True)
class Member:
    """An array of an archive, before it is unpacked."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    bytes: int  # of its numbers


class ArrayArchive:
    """The arrays in an open file; whatever its methods raise says what is wrong with it."""

    def __init__(self, file: BinaryIO) -> None:
        self._archive = zipfile.ZipFile(file)
        self.names = [name[:-4] for name in self._archive.namelist() if name.endswith(".npy")]

    def member(self, name: str) -> Member:
        """Return what an array is said to be; ValueError if it is not of plain numbers, or too large."""
        with self._archive.open(f"{name}.npy") as stream:
            member, head = _member(name, stream)
        size = self._archive.getinfo(f"{name}.npy").file_size
        if size != head + member.bytes:
            raise ValueError(
                f"{name} is said to be {member.dtype} of shape {member.shape}, and has {size - head} bytes"
            )
        return member

    def read(self, member: Member) -> tuple[np.ndarray, str]:
        """Return an array, and the checksum by which a model file knows it."""
        array = np.empty(member.shape, member.dtype)
        digest = _begun_digest(array)
        with self._archive.open(f"{member.name}.npy") as stream:
            _member(member.name, stream)
            fill(stream, array.reshape(-1).view(np.uint8).data, digest)
            if stream.read(1):  # asked for at the end, too: there zipfile compares its own checksum
                raise ValueError(f"{member.name} does not end where it should")
        return array, digest.hexdigest()


def write_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of plain numbers as `numpy.savez_compressed` does; the same bytes for the same arrays."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def digest_of(array: np.ndarray) -> str:
    """Return the checksum by which a model file knows an array, which is contiguous."""
    digest = _begun_digest(array)
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _begun_digest(array: np.ndarray) -> Any:
    return hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())


def _member(name: str, stream: IO[bytes]) -> tuple[Member, int]:
    """Return what the head of an array's file says, and how many bytes it has."""
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"{name} is an .npy file of version {version}, this library reads (1, 0)")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.str not in DTYPES:
        raise ValueError(f"{name} is {dtype.str}, this library reads {', '.join(DTYPES)}")
    if is_fortran and len(shape) > 1:
        raise ValueError(f"{name} is in Fortran's order, this library reads C's")
    size = dtype.itemsize
    for length in shape:
        size *= length
        if not 0 <= length <= MAX_TABLE_BYTES or size > MAX_TABLE_BYTES:
            raise ValueError(f"{name} has the shape {shape}, allowed are {MAX_TABLE_BYTES:,} bytes")
    return Member(name, dtype, shape, size), stream.tell()
