"""What a compiled game gives as the keys of its states, found out before it is played."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError

from dist_classicrl._jit import result_type
from dist_classicrl._words import why_not_compiled
from dist_classicrl.environments.state_keys import PAIR, WIDE
from dist_classicrl.errors import ModelError

_SIGNED, _UNSIGNED = np.dtype(np.int64), np.dtype(np.uint64)


def key_type(name: str, data: Any, reset: Any, step: Any, legal: Any = None) -> np.dtype:
    """Return what a game takes as a key: `WIDE` where its functions give pairs of whole numbers.

    Else uint64 where one of them gives that, else int64. ModelError where `reset` or `step` gives anything
    else, or not both of them pairs, or `legal` no bool.
    """
    kind, memory, random = data_type(name, data), types.int64[::1], types.uint64
    first = _returned(name, "reset", reset, (kind, memory, random))
    _check_key(name, "reset", first)
    of_first: tuple[Any, ...] = types.int64, types.uint64
    if isinstance(first, types.BaseTuple):
        of_first = (PAIR,)
    elif first == types.uint64:
        of_first = (types.uint64,)
    for taken in of_first:
        given = _returned(name, "step", step, (kind, memory, taken, types.int64, random))
        parts: Any = given if isinstance(given, types.BaseTuple) else ()
        if len(parts) != 3:
            raise ModelError(
                f"{name}: step returns {given}. It must return three values: the next key, the reward, and "
                "whether the episode has terminated."
            )
        key = parts[0]
        _check_key(name, "step", key)
        if isinstance(key, types.BaseTuple) != isinstance(first, types.BaseTuple):
            raise ModelError(
                f"{name}: reset gives states of the type {first}, and step of the type {key}. Both must give "
                "one whole number, or both a pair of them, (high, low)."
            )
        if key != types.uint64 or taken == types.uint64:
            break
    if legal is not None:
        allowed = _returned(name, "legal", legal, (kind, taken, types.int64))
        if not isinstance(allowed, (types.Boolean, types.Integer)):
            raise ModelError(f"{name}: legal returns {allowed}. It must return whether the action is legal.")
    if taken == PAIR:
        return WIDE
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
    parts: Any = given if isinstance(given, types.BaseTuple) and len(given) == 2 else [given]
    if all(isinstance(part, types.Integer) for part in parts):
        return
    raise ModelError(
        f"{name}: {role} gives states of the type {given}, and a key is an int64 or uint64, or where 64 bits "
        "are too few a pair of uint64, (high, low). Note that numba makes a float of a uint64 and an int64: "
        "write np.uint64(...) around each number beside a uint64, or np.int64(...) around the key."
    )
