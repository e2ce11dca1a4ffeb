"""Which arrays the parts take that hand them to MPI as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.errors import SettingsError

_NAMES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_TYPES = frozenset(np.dtype(name) for name in _NAMES)


def as_numbers(name: str, array: Any) -> np.ndarray:
    """Return an array_like of numbers that MPI can add up, as an array; SettingsError for others."""
    try:
        made = np.asarray(array)
    except ValueError as error:  # rows of several lengths
        raise SettingsError(f"{name} must be an array of numbers, got something else ({error})") from None
    if made.dtype not in _TYPES:
        allowed = "whole numbers of 8 to 64 bits, float32 or float64"
        raise SettingsError(f"{name} must be an array of {allowed}, got one of type {made.dtype}")
    return made
