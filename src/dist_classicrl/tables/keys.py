"""An open-addressing table: from the 64-bit keys of states to the rows that they have, in order of arrival.

Slot i has its key at ``slots[2 * i]`` and the row plus 1 at ``slots[2 * i + 1]``, 0 where it is empty: both
in one cache line. A key that is taken elsewhere is looked for in the slots that follow.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline, prefetch
from dist_classicrl._memory import zeros
from dist_classicrl._random import mix

_FEWEST_SLOTS = 1 << 10
_ONE, _TWO = np.uint64(1), np.uint64(2)
_AHEAD = 16


@jit_inline
def fits(slots, n):
    """Return whether `n` keys fill the slots to no more than 70 %."""
    return 20 * n <= 7 * slots.size


@jit_inline
def prefetch_slot(slots, key):
    """Ask for the slot in which a key is looked for first."""
    prefetch(slots, _TWO * (mix(np.uint64(key)) & np.uint64(slots.size // 2 - 1)))


@jit_inline
def slot_of(slots, key):
    """Return where the slot of a key begins: the one that has it, or else the empty one where it belongs."""
    last = np.uint64(slots.size // 2 - 1)
    at = mix(np.uint64(key)) & last
    while slots[_TWO * at + _ONE] != 0 and slots[_TWO * at] != key:
        at = (at + _ONE) & last
    return _TWO * at


@jit_inline
def row_at(slots, at):
    """Return the row that the slot at `at` has, or -1."""
    return slots[at + _ONE] - 1


@jit_inline
def enter(slots, at, key, row):
    """Let the empty slot at `at` have a key and its row."""
    slots[at] = key
    slots[at + _ONE] = row + 1


@jit
def enter_all(slots, keys):
    """Enter `keys`, int64, in order, into empty slots; return the first that comes twice, or -1."""
    for row in range(keys.size):
        if row + _AHEAD < keys.size:
            prefetch_slot(slots, keys[row + _AHEAD])
        at = slot_of(slots, keys[row])
        if row_at(slots, at) >= 0:
            return row
        enter(slots, at, keys[row], row)
    return -1


@jit
def find_rows(slots, keys, rows):
    """Fill `rows` with the row of each of the int64 `keys`, -1 where it has none."""
    for i in range(keys.size):
        rows[i] = row_at(slots, slot_of(slots, keys[i]))


def empty_slots(n: int) -> np.ndarray:
    """Return slots with room for `n` keys."""
    slots = _FEWEST_SLOTS
    while 10 * n > 7 * slots:
        slots *= 2
    return zeros(2 * slots, np.int64)


def slots_of(keys: np.ndarray) -> np.ndarray:
    """Return slots that have these keys, int64 or uint64; ValueError where one comes twice."""
    slots = empty_slots(keys.size)
    twice = enter_all(slots, keys.view(np.int64))
    if twice >= 0:
        raise ValueError(f"its key {keys[twice]} is there twice")
    return slots
