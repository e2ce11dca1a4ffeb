"""An open-addressing table: from the keys of states to the rows that they have, in order of arrival.

Slots are an array of keys, as `dist_classicrl.environments.state_keys` has them for kernels: slot i has its
key in place 2 i of these, and the row plus 1 in the first word of place 2 i + 1, 0 where it is empty. So it
has 16 bytes, or 32 for keys of 128 bits, and lies in one cache line. A key that is taken elsewhere is looked
for in the slots that follow.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, prefetch
from dist_classicrl._memory import zeros
from dist_classicrl._random import mix
from dist_classicrl.environments.state_keys import (
    WIDE,
    are_same,
    as_number,
    as_words,
    first_word_of,
    folded,
    is_wide,
    n_states_in,
    put_state_at,
    state_at,
    words_of,
)

_FEWEST_SLOTS = 1 << 10
_ONE, _TWO = np.uint64(1), np.uint64(2)
_AHEAD = 16


def fits(slots, n):
    """Return whether `n` keys fill the slots to no more than 70 %."""
    return 20 * words_of(WIDE if slots.dtype == np.uint64 else slots.dtype) * n <= 7 * slots.size


@overloads(fits, inline=True)
def _overload_fits(slots, n):
    return lambda slots, n: 20 * n <= 7 * n_states_in(slots)


@jit_inline
def _first_slot_of(slots, key):
    return mix(folded(key)) & np.uint64(n_states_in(slots) // 2 - 1)


@jit_inline
def prefetch_slot(slots, key):
    """Ask for the slot in which a key is looked for first."""
    prefetch(slots, first_word_of(slots, _TWO * _first_slot_of(slots, key)))


@jit_inline
def slot_of(slots, key):
    """Return where the slot of a key begins: the one that has it, or else the empty one where it belongs."""
    last = np.uint64(n_states_in(slots) // 2 - 1)
    at = _first_slot_of(slots, key)
    while row_at(slots, _TWO * at) >= 0 and not are_same(state_at(slots, _TWO * at), key):
        at = (at + _ONE) & last
    return _TWO * at


@jit_inline
def row_at(slots, at):
    """Return the row that the slot at `at` has, or -1."""
    return np.int64(slots[first_word_of(slots, at + _ONE)]) - 1


@jit_inline
def enter(slots, at, key, row):
    """Let the empty slot at `at` have a key and its row."""
    put_state_at(slots, at, key)
    slots[first_word_of(slots, at + _ONE)] = row + 1


@jit
def enter_all(slots, keys):
    """Enter `keys`, as `as_words` gives them, in order, into empty slots; return the first that comes twice.

    Or -1.
    """
    n = n_states_in(keys)
    for row in range(n):
        if row + _AHEAD < n:
            prefetch_slot(slots, state_at(keys, row + _AHEAD))
        key = state_at(keys, row)
        at = slot_of(slots, key)
        if row_at(slots, at) >= 0:
            return row
        enter(slots, at, key, row)
    return -1


@jit
def find_rows(slots, keys, rows):
    """Fill `rows` with the row of each of the `keys`, as `as_words` gives them, -1 where it has none."""
    for i in range(rows.size):
        rows[i] = row_at(slots, slot_of(slots, state_at(keys, i)))


def empty_slots(n: int, kind: np.dtype | None = None) -> np.ndarray:
    """Return slots with room for `n` keys of a type: None is any of 64 bits."""
    slots = _FEWEST_SLOTS
    while 10 * n > 7 * slots:
        slots *= 2
    wide = is_wide(kind)
    return zeros((4 if wide else 2) * slots, np.uint64 if wide else np.int64)


def slots_of(keys: np.ndarray) -> np.ndarray:
    """Return slots that have these keys, of any type; ValueError where one comes twice."""
    slots = empty_slots(keys.size, keys.dtype)
    twice = enter_all(slots, as_words(keys))
    if twice >= 0:
        raise ValueError(f"its key {as_number(keys[twice])} is there twice")
    return slots
