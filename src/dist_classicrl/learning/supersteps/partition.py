"""Which rank owns which states, and where an owner has their rows: jitted functions, picked by a class.

A rank's rows are its states in their order. Where those are not one range, a bit for each state tells which
are its own, and so many bits before a state's are set as its row says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import as_called_by_kernels, is_compiled, jit, jit_for, jit_inline, overloads
from dist_classicrl._random import SHIFT_32, mix, stream_key
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.supersteps.numbering import number_of, numbering, set_numbers

_KEY = stream_key(0, "partition")


class All(NamedTuple):
    """One rank owns everything."""


class Range(NamedTuple):
    """Each owns a range of states, of the same length but for the last."""

    size: int
    first: int  # of its own


class Spread(NamedTuple):
    """The owner of a state is a hash of it."""

    ranks: int
    words: np.ndarray  # uint64: its own states, a bit each
    before: np.ndarray  # int64: how many there are before each word


class Assigned(NamedTuple):
    """The owner of a state is what a function of the user's says; each function has a class of its own."""

    ranks: int
    words: np.ndarray
    before: np.ndarray


_FUNCTIONS: dict[type, Any] = {}
_CLASSES: dict[Any, type] = {}


def owner_of(partition, state):
    """Return the rank that owns `state`. Jitted code only."""
    raise NotImplementedError("owner_of is for jitted code")


def row_of(partition, state):
    """Return the row of a state that is this rank's own. Jitted code only."""
    raise NotImplementedError("row_of is for jitted code")


def _class_of(partition: Any) -> Any:
    return getattr(partition, "instance_class", None)


@overloads(owner_of, inline=True)
def _overload_owner_of(partition, state):
    kind = _class_of(partition)
    if kind is All:
        return lambda partition, state: np.int64(0)
    if kind is Range:
        return lambda partition, state: state // partition.size
    if kind is Spread:
        return lambda partition, state: _hashed(state, partition.ranks)
    if kind not in _FUNCTIONS:
        return None
    function = as_called_by_kernels(_FUNCTIONS[kind], False)
    return lambda partition, state: np.int64(function(state))


@overloads(row_of, inline=True)
def _overload_row_of(partition, state):
    kind = _class_of(partition)
    if kind is All:
        return lambda partition, state: state
    if kind is Range:
        return lambda partition, state: state - partition.first
    return lambda partition, state: number_of(partition.words, partition.before, state)


@jit_inline
def _hashed(state, ranks):
    high = mix(np.uint64(state) ^ _KEY) >> SHIFT_32
    return np.int64((high * np.uint64(ranks)) >> SHIFT_32)


@jit
def _own(partition, rank, ranks, n_states, words):
    """Set the bits of the states of `rank`; return the first state that has no owner, and -1 if all have."""
    for state in range(n_states):
        owner = owner_of(partition, np.int64(state))
        if not 0 <= owner < ranks:
            return state
        if owner == rank:
            set_numbers(words, state)
    return -1


def check_partition(partition: Any) -> None:
    """Raise SettingsError unless states can be divided so."""
    is_function = callable(partition) and is_compiled(partition)
    if not (is_function or (isinstance(partition, str) and partition in ("hash", "range"))):
        raise SettingsError(
            'partition must be "hash", "range", or a function compiled with numba.njit that returns the rank '
            f"which owns a state; got {partition!r}."
        )


@dataclass(frozen=True, eq=False)
class Owned:
    """The states of one rank: what kernels are called with, and the states by their rows, or None for all."""

    arrays: Any
    states: np.ndarray | None


def owned_by(partition: Any, n_states: int, rank: int, ranks: int, is_alone: bool = False) -> Owned:
    """Return what `rank` owns of so many states.

    `partition` is "hash", which divides them evenly, "range", or a jitted function that returns the owner of
    a state. SettingsError if it is something else, or what it returns is no rank. `is_alone`: there never is
    another rank.
    """
    check_partition(partition)
    is_function = not isinstance(partition, str)
    if is_alone and not is_function:
        return Owned(All(), None)
    if partition == "range":
        size = -(-n_states // ranks)
        first = min(rank * size, n_states)
        return Owned(Range(size, first), np.arange(first, min(first + size, n_states)))
    words = np.zeros(-(-n_states // 64), np.uint64)
    kind: Any = _class_for(partition) if is_function else Spread
    arrays = kind(ranks, words, np.zeros(words.size, np.int64))
    own = jit_for(_own, type(arrays))
    wrong = own(arrays, rank, ranks, n_states, words)
    if wrong >= 0:
        raise SettingsError(
            f"partition gives state {wrong} to {partition(wrong)!r}, which is no rank: with {ranks} of them "
            f"it must return whole numbers from 0 to {ranks - 1}, for each of the {n_states} states."
        )
    numbering(words, arrays.before)
    return Owned(arrays, np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")))


def _class_for(function: Callable[..., Any]) -> Any:
    """Return the class by which kernels find a user's function; they are not kept on disk with it."""
    if function not in _CLASSES:
        kind = type("Assigned", (Assigned,), {"__slots__": (), "__module__": "partitions"})
        _CLASSES[function], _FUNCTIONS[kind] = kind, function
    return _CLASSES[function]
