"""Arrays of numbers in fewer bytes, to the bit: what most numbers of a message do not need is left out.

- Whole numbers go as differences to the one before, where they ascend as sorted entries do, or to the least
  of them, in as many bytes as the largest of these needs.
- Real numbers that are all small multiples of one power of two, as rounded ones are, go as those multiples.
- Real numbers of which few differ, as the weights of maps with one step size, go as places in a list of them.
- Other real numbers go as they are, or all first bytes first, then all second ones, where a compressor
  follows: high bytes resemble each other more than the bytes of one number do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from dist_classicrl.comm.envelope import Kind, damaged, decode
from dist_classicrl.comm.messages import message

_LEAST_SIZE = 32  # numbers: shorter arrays go as they are
_SAMPLE = 64
_MOST_LISTED = 256
_TYPES = tuple(np.dtype(name) for name in ("int64", "int32", "uint32", "float64"))
_BYTES = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32"))
_SIGNED: dict[int, np.dtype] = {1: np.dtype(np.int8), 2: np.dtype(np.int16)}


class Form(IntEnum):
    """How an array of a message goes."""

    PLAIN = 0  # as it is
    OFFSETS = 1  # from the least
    STEPS = 2  # from one to the next
    MULTIPLES = 3  # of a power of two
    PLACES = 4  # in a list
    COLUMNS = 5  # byte by byte


@message(Kind.COMPACT)
class Compact(NamedTuple):
    """Another message. Each of its arrays has five of the numbers in `told`: see `_Told`."""

    kind: int
    told: tuple[int, ...]
    arrays: tuple[np.ndarray, ...]


class _Told(NamedTuple):
    form: int
    dtype: int  # of `_TYPES`; -1 where the array goes as it is
    size: int
    base: int  # the least, the first, or the exponent
    width: int  # bytes of one number, or how many numbers are listed


_PLAIN = _Told(Form.PLAIN, -1, 0, 0, 0)


def shorten(encoded: np.ndarray, columns: bool) -> Compact:
    """Return an encoded message with its arrays in their shortest forms; `columns`: a compressor follows."""
    kind, parts = decode(encoded)
    shortened = [_shorten(part, columns) for part in parts]
    told = tuple(number for each, _ in shortened for number in each)
    return Compact(int(kind), told, tuple(array for _, array in shortened))


def lengthen(compact: Compact) -> tuple[Kind, list[np.ndarray]]:
    """Return the kind and the parts of the message; ProtocolError if it is none that `shorten` made."""
    told, arrays = compact.told, compact.arrays
    name = Kind.COMPACT.name
    if len(told) != len(_Told._fields) * len(arrays):
        raise damaged(name, f"it describes other arrays than its {len(arrays)}")
    if compact.kind not in set(Kind):
        raise damaged(name, f"it claims to hold a message of kind {compact.kind}")
    each = len(_Told._fields)
    parts = []
    for i, array in enumerate(arrays):
        try:
            parts.append(_lengthen(_Told(*told[each * i : each * (i + 1)]), array))
        except (ValueError, IndexError, OverflowError) as error:
            raise damaged(name, f"an array is not what it says: {error}") from error
    return Kind(compact.kind), parts


def _shorten(part: np.ndarray, columns: bool) -> tuple[_Told, np.ndarray]:
    if part.size < _LEAST_SIZE or part.dtype not in _TYPES:
        return _PLAIN, part
    if part.dtype.kind == "f":
        return _multiples(part) or _places(part) or (_columns(part) if columns else (_PLAIN, part))
    return _whole(part)


def _whole(part: np.ndarray) -> tuple[_Told, np.ndarray]:
    numbers = part.astype(np.int64, copy=False)
    least, most = int(numbers.min()), int(numbers.max())
    spread = most - least
    if spread >= 2**32:
        return _PLAIN, part
    code, size = _TYPES.index(part.dtype), part.size
    steps = np.diff(numbers)
    longest = int(steps.max())
    if steps.min() >= 0 and (longest < 2**8 or (longest < 2**16 <= spread)):
        dtype = _dtype_for(longest)
        told = _Told(Form.STEPS, code, size, int(numbers[0]), dtype.itemsize)
        return told, steps.astype(dtype).view(np.uint8)
    dtype = _dtype_for(spread)
    if dtype.itemsize >= part.itemsize:
        return _PLAIN, part
    told = _Told(Form.OFFSETS, code, size, least, dtype.itemsize)
    return told, (numbers - least).astype(dtype).view(np.uint8)


def _dtype_for(most: int) -> np.dtype:
    return next(dtype for dtype in _BYTES if most <= np.iinfo(dtype).max)


def _multiples(part: np.ndarray) -> tuple[_Told, np.ndarray] | None:
    largest = float(np.abs(part).max())
    if not 0.0 < largest < np.inf:
        return None
    for width, signed in _SIGNED.items():
        bits = 8 * width
        # A power of two, by which the largest is just below 2**(bits - 1).
        exponent = int(np.frexp(largest)[1]) - bits + 1
        if _is_multiple(part[:_SAMPLE], exponent) and _is_multiple(part, exponent):
            told = _Told(Form.MULTIPLES, _TYPES.index(part.dtype), part.size, exponent, width)
            return told, np.ldexp(part, -exponent).astype(signed).view(np.uint8)
    return None


def _is_multiple(part: np.ndarray, exponent: int) -> bool:
    numbers = np.ldexp(part, -exponent)
    return bool(
        (numbers == np.rint(numbers)).all()
        and (np.ldexp(numbers, exponent) == part).all()
        and not np.signbit(part[part == 0.0]).any()
    )


def _places(part: np.ndarray) -> tuple[_Told, np.ndarray] | None:
    bits = part.view(np.int64)  # so that no number equals another one that is not the same
    if np.unique(bits[:: max(1, bits.size // _SAMPLE)]).size > _SAMPLE // 2:
        return None
    listed, places = np.unique(bits, return_inverse=True)
    if listed.size > min(_MOST_LISTED, part.size // 2):
        return None
    told = _Told(Form.PLACES, _TYPES.index(part.dtype), part.size, 0, listed.size)
    return told, np.concatenate([listed.view(np.uint8), places.astype(np.uint8)])


def _columns(part: np.ndarray) -> tuple[_Told, np.ndarray]:
    told = _Told(Form.COLUMNS, _TYPES.index(part.dtype), part.size, 0, part.itemsize)
    return told, part.view(np.uint8).reshape(-1, part.itemsize).T.reshape(-1)


def _lengthen(told: _Told, array: np.ndarray) -> np.ndarray:
    if told.form == Form.PLAIN:
        return array
    if not 0 <= told.dtype < len(_TYPES) or array.dtype != np.uint8 or told.size < 1:
        raise ValueError(f"{told} of {array.dtype}")
    dtype = _TYPES[told.dtype]
    if (dtype.kind == "f") == (told.form in (Form.OFFSETS, Form.STEPS)):
        raise ValueError(f"{told} of {dtype}")
    match told.form:
        case Form.OFFSETS:
            return (_narrow(array, told, told.size).astype(np.int64) + told.base).astype(dtype)
        case Form.STEPS:
            steps = _narrow(array, told, told.size - 1)  # before memory is taken for so many
            numbers = np.empty(told.size, np.int64)
            numbers[0] = told.base
            np.cumsum(steps, out=numbers[1:])
            numbers[1:] += told.base
            return numbers.astype(dtype)
        case Form.MULTIPLES if told.width in _SIGNED and abs(told.base) < 2**12:
            return np.ldexp(_sized(array.view(_SIGNED[told.width]), told.size).astype(dtype), told.base)
        case Form.PLACES if told.width >= 1:
            listed = array[: 8 * told.width].view(np.float64)
            return listed[_sized(array[8 * told.width :], told.size)].astype(dtype)
        case Form.COLUMNS:
            rows = _sized(array, told.size * dtype.itemsize).reshape(dtype.itemsize, told.size)
            return np.ascontiguousarray(rows.T).reshape(-1).view(dtype)
    raise ValueError(f"it has the form {told.form} with {told.base} and {told.width}")


def _narrow(array: np.ndarray, told: _Told, size: int) -> np.ndarray:
    dtype = next((dtype for dtype in _BYTES if dtype.itemsize == told.width), None)
    if dtype is None:
        raise ValueError(f"numbers of {told.width} bytes")
    return _sized(array.view(dtype), size)


def _sized(array: np.ndarray, size: int) -> np.ndarray:
    if array.size != size:
        raise ValueError(f"{array.size} numbers where {size} belong")
    return array
