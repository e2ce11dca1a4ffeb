"""What a compiled game gives as the keys of its states, found out before it is played."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError

from dist_classicrl._jit import result_type
from dist_classicrl._words import why_not_compiled
from dist_classicrl.errors import ModelError

_SIGNED, _UNSIGNED = np.dtype(np.int64), np.dtype(np.uint64)


def key_type(name: str, data: Any, reset: Any, step: Any, legal: Any = None) -> np.dtype:
    """Return what a game takes as a key: uint64 where a function of it gives that, else int64.

    ModelError where `reset` or `step` gives anything else, or `legal` no bool.
    """
    kind, memory, random = data_type(name, data), types.int64[::1], types.uint64
    first = _returned(name, "reset", reset, (kind, memory, random))
    _check_key(name, "reset", first)
    for taken in (types.uint64,) if first == types.uint64 else (types.int64, types.uint64):
        given = _returned(name, "step", step, (kind, memory, taken, types.int64, random))
        parts: Any = given if isinstance(given, types.BaseTuple) else ()
        if len(parts) != 3:
            raise ModelError(
                f"{name}: step returns {given}. It must return three values: the next key, the reward, and "
                "whether the episode has terminated."
            )
        key = parts[0]
        _check_key(name, "step", key)
        if key != types.uint64 or taken == types.uint64:
            break
    if legal is not None:
        allowed = _returned(name, "legal", legal, (kind, taken, types.int64))
        if not isinstance(allowed, (types.Boolean, types.Integer)):
            raise ModelError(f"{name}: legal returns {allowed}. It must return whether the action is legal.")
    return _UNSIGNED if taken == types.uint64 else _SIGNED


def data_type(name: str, data: Any) -> Any:
    """Return the numba type of what functions are given as `data`; ModelError where there is none."""
    for field, value in zip(data._fields, data, strict=True):
        try:
            numba.typeof(value)
        except (ValueError, TypeError, NumbaError) as error:
            raise ModelError(
                f"{name}: data.{field} is {type(value).__name__}, which compiled code cannot read. data "
                f"holds arrays of numbers, numbers, and tuples of such. {why_not_compiled(error)}"
            ) from error
    return numba.typeof(data)


def _returned(name: str, role: str, function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        return result_type(function, arguments)
    except (NumbaError, NotImplementedError, TypeError) as error:
        raise ModelError(
            f"{name}: {role} cannot be compiled for arguments of the types {arguments[1:]}. "
            f"{why_not_compiled(error)}"
        ) from error


def _check_key(name: str, role: str, given: Any) -> None:
    if isinstance(given, types.Integer):
        return
    raise ModelError(
        f"{name}: {role} gives states of the type {given}, and a key is an int64 or uint64. Note that numba "
        "makes a float of a uint64 and an int64: write np.uint64(...) around each number beside a uint64, or "
        "np.int64(...) around the key."
    )
