"""Sums of float64 numbers that come out the same in any order, and however they are divided among ranks.

A number is a whole number times 2**-1074: what is added up are whole numbers, in parts of 32 bits.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit_inline

PARTS = 68
_LOW_32 = 0xFFFFFFFF
_FRACTION = (1 << 52) - 1
_UNIT = 1 << 1074

MOST_ADDED = 1 << 29
"""After so many additions `carried` is to be called."""


@jit_inline
def add_exactly(parts, value):
    """Add a finite float64 to `parts`, ndarray(int64) of shape (PARTS,)."""
    bits = np.float64(value).view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    fraction = bits & _FRACTION
    if exponent > 0:
        fraction |= _FRACTION + 1
        exponent -= 1
    place = np.uint64(exponent >> 5)
    shift = exponent & 31
    low = (fraction & _LOW_32) << shift
    high = (fraction >> 32) << shift
    first, second, third = low & _LOW_32, (low >> 32) + (high & _LOW_32), high >> 32
    if bits < 0:
        first, second, third = -first, -second, -third
    parts[place] += first
    parts[place + np.uint64(1)] += second
    parts[place + np.uint64(2)] += third


def carried(parts: np.ndarray) -> None:
    """Let no part be larger than it must, so that more can be added."""
    whole = _whole(parts)
    sign, whole = (-1, -whole) if whole < 0 else (1, whole)
    for i in range(PARTS):
        parts[i] = sign * (whole & _LOW_32)
        whole >>= 32


def sum_of(parts: np.ndarray) -> float:
    """Return the sum, the float nearest to it; infinite where it is beyond all of them."""
    whole = _whole(parts)
    try:
        return whole / _UNIT
    except OverflowError:
        return float("inf") if whole > 0 else float("-inf")


def _whole(parts: np.ndarray) -> int:
    return sum(part << (32 * i) for i, part in enumerate(parts.tolist()))
