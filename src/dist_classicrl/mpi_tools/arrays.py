"""What the parts take for an array, and which ones those that hand them to MPI as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.checks import check_shown
from dist_classicrl.errors import SettingsError

_NAMES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_TYPES = frozenset(np.dtype(name) for name in _NAMES)
# How libraries give a NumPy array, by a method that their own have.
_HINTS = {"detach": ".detach().cpu().numpy()", "get": ".get()"}


def type_of_sum(dtype: np.dtype) -> np.dtype:
    """Return the type in which MPI adds up numbers of a type, of which the sum is cast to that type again.

    Sums wrap round, as NumPy's do. Open MPI's of 8 and 16 bits do so in a plain loop only, and stop at the
    type's largest and least number in vector code, so both in one array: these are added up in 32 bits.
    """
    return dtype if dtype.kind == "f" or dtype.itemsize >= 4 else np.dtype(np.int32)


def as_array(name: str, array: Any) -> np.ndarray:
    """Return an array_like as an array; SettingsError for what NumPy makes none of, or hides numbers."""
    check_shown(name, array)
    try:
        return np.asarray(array)
    except Exception as error:  # what is ragged, on a card, or keeps gradients: of many kinds
        hints = (
            f"; give what its {hint} returns" for method, hint in _HINTS.items() if hasattr(array, method)
        )
        raise SettingsError(
            f"{name} must be an array of numbers, got {type(array).__name__}, of which NumPy makes none "
            f"({str(error).strip().removesuffix('.')}){next(hints, '')}"
        ) from None


def as_numbers(name: str, array: Any) -> np.ndarray:
    """Return an array_like of numbers that MPI can add up, as an array; SettingsError for others."""
    made = as_array(name, array)
    if made.dtype not in _TYPES:
        allowed = "whole numbers of 8 to 64 bits, float32 or float64"
        raise SettingsError(f"{name} must be an array of {allowed}, got one of type {made.dtype}")
    return made
