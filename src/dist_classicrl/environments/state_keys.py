"""States that are keys: one number of 64 bits each, or a pair of them, which makes 128.

To users a wide key is a whole number below 2**128, and arrays of such have the dtype `WIDE` here, an element
a key. To kernels it is a pair of uint64, the high one first, and arrays of such are uint64, two words a key.
A key of 64 bits, whatever its type, is an int64 to them, as the number of a state is. By these types numba
picks the code, so that each kernel serves both kinds and none pays for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from dist_classicrl._jit import jit_inline, overloads, stub
from dist_classicrl._random import mix

WIDE = np.dtype([("high", np.uint64), ("low", np.uint64)])
PAIR = types.UniTuple(types.uint64, 2)
_WORD_BITS = 64
_LOW_WORD = (1 << _WORD_BITS) - 1
_ONE, _TWO = np.uint64(1), np.uint64(2)


def is_wide(kind: np.dtype | None) -> bool:
    """Whether keys of this type have 128 bits; None: states are no keys."""
    return kind is not None and kind == WIDE


def words_of(kind: np.dtype | None) -> int:
    """Return how many numbers of 64 bits a key of this type is; 0 where states are no keys."""
    return 0 if kind is None else kind.itemsize // 8


def name_of_kind(kind: np.dtype) -> str:
    """Return what keys are of that have this type."""
    return "128 bits" if is_wide(kind) else str(kind)


def bounds_of(kind: np.dtype) -> tuple[int, int]:
    """Return the smallest key of this type, and the largest."""
    if is_wide(kind):
        return 0, (1 << 2 * _WORD_BITS) - 1
    bounds = np.iinfo(kind)
    return int(bounds.min), int(bounds.max)


def as_words(keys: np.ndarray) -> np.ndarray:
    """Return keys, shape (n,), as kernels take them: int64 (n,), or uint64 (2 * n,). A view."""
    return keys.view(np.uint64 if is_wide(keys.dtype) else np.int64)


def as_stored(keys: np.ndarray) -> np.ndarray:
    """Return keys as files have them: int64 or uint64 (n,), or uint64 (n, 2), high before low. A view."""
    return keys.view(np.uint64).reshape(-1, 2) if is_wide(keys.dtype) else keys


def from_stored(array: np.ndarray) -> np.ndarray:
    """Return the keys, shape (n,), of which `as_stored` made an array."""
    return array if array.ndim == 1 else np.ascontiguousarray(array).view(WIDE).reshape(-1)


def as_number(key: Any) -> int:
    """Return one key of an array as a whole number."""
    return int(key) if key.dtype.names is None else int(key["high"]) << _WORD_BITS | int(key["low"])


def as_numbers(keys: np.ndarray) -> list[int]:
    """Return keys as whole numbers."""
    if not is_wide(keys.dtype):
        whole: list[int] = keys.tolist()
        return whole
    return [high << _WORD_BITS | low for high, low in keys.tolist()]


def from_numbers(numbers: Sequence[int], kind: np.dtype) -> np.ndarray:
    """Return whole numbers, each one of `bounds_of` the type, as keys of it."""
    if is_wide(kind):
        return np.array([(int(n) >> _WORD_BITS, int(n) & _LOW_WORD) for n in numbers], kind)
    return np.array(numbers, kind)


def order_of(keys: np.ndarray, is_in_runs: bool = False) -> np.ndarray:
    """Return the order in which keys ascend, of which no two are equal.

    `is_in_runs`: long parts of them do.
    """
    if is_wide(keys.dtype):
        return np.lexsort((keys["low"], keys["high"]))
    return np.argsort(keys, kind="stable" if is_in_runs else None)


def ascending(keys: np.ndarray) -> np.ndarray:
    """Return keys in that order."""
    return keys[order_of(keys)] if is_wide(keys.dtype) else np.sort(keys)


# In kernels


def _is_pair(state: Any) -> bool:
    return isinstance(state, types.BaseTuple)


def has_pairs(states: Any) -> bool:
    """Return whether an array of this numba type has wide keys."""
    return bool(states.dtype == types.uint64)


@stub
def held(state):
    """Return a state that a game gave as it is held: int64, or a pair of uint64."""


@stub
def folded(state):
    """Return a uint64 that differs, but for chance, where keys do; 64 bits as they are.

    Pairs with high 0 give the low one. To hash and to name by, never in place of a key.
    """


@stub
def numbered(state):
    """Return the number of a state, or the `folded` key, as int64."""


@stub
def are_same(state, other):
    """Return whether two states are the same one."""


@stub
def is_below(state, n_states):
    """Return whether a state is one of so many; 0: any key is."""


@stub
def n_states_in(states):
    """Return how many states an array has."""


@stub
def state_at(states, i):
    """Return the i-th state of an array, for `i` of 0 or more."""


@stub
def put_state_at(states, i, state):
    """Let that be another one."""


@stub
def first_word_of(states, i):
    """Return where in an array of words the i-th state begins, for `i` of 0 or more."""


@stub
def put_words(words, at, state):
    """Write a state into an array of int64, from `at` on."""


@jit_inline
def pair_in(words, at):
    """Return the pair that `put_words` wrote."""
    return np.uint64(words[at]), np.uint64(words[at + 1])


@overloads(held, inline=True)
def _overload_held(state):
    if _is_pair(state):
        return lambda state: (np.uint64(state[0]), np.uint64(state[1]))
    return lambda state: np.int64(state)


@overloads(folded, inline=True)
def _overload_folded(state):
    if _is_pair(state):
        return lambda state: state[1] ^ mix(state[0])
    return lambda state: np.uint64(state)


@overloads(numbered, inline=True)
def _overload_numbered(state):
    if _is_pair(state):
        return lambda state: np.int64(folded(state))
    return lambda state: state


@overloads(are_same, inline=True)
def _overload_are_same(state, other):
    if _is_pair(state):
        return lambda state, other: state[0] == other[0] and state[1] == other[1]
    return lambda state, other: state == other


@overloads(is_below, inline=True)
def _overload_is_below(state, n_states):
    if _is_pair(state):
        return lambda state, n_states: True
    # Unsigned, what is below 0 is large, also where there are no numbers: all keys are states.
    return lambda state, n_states: np.uint64(state) <= np.uint64(n_states - 1)


@overloads(n_states_in, inline=True)
def _overload_n_states_in(states):
    if has_pairs(states):
        return lambda states: states.size // 2
    return lambda states: states.size


@overloads(first_word_of, inline=True)
def _overload_first_word_of(states, i):
    return (lambda states, i: _TWO * np.uint64(i)) if has_pairs(states) else lambda states, i: i


@overloads(state_at, inline=True)
def _overload_state_at(states, i):
    def pair(states, i):
        at = first_word_of(states, i)
        return states[at], states[at + _ONE]

    return pair if has_pairs(states) else lambda states, i: states[i]


@overloads(put_state_at, inline=True)
def _overload_put_state_at(states, i, state):
    def pair(states, i, state):
        at = first_word_of(states, i)
        states[at], states[at + _ONE] = state

    def impl(states, i, state):
        states[i] = state

    return pair if has_pairs(states) else impl


@overloads(put_words, inline=True)
def _overload_put_words(words, at, state):
    def pair(words, at, state):
        words[at], words[at + 1] = np.int64(state[0]), np.int64(state[1])

    def impl(words, at, state):
        words[at] = state

    return pair if _is_pair(state) else impl
