"""An open-addressing table: from the keys of states to the rows that they have, in order of arrival.

Of keys of 64 bits slot i has its key at ``slots[2 * i]`` and the row plus 1 at ``slots[2 * i + 1]``, 0 where
it is empty. Of keys of 128 bits `slots` are uint64: the pair is at ``slots[4 * i]``, the row plus 1 behind
it, and one word is not used. So a slot lies in one cache line. A key that is taken elsewhere is looked for in
the slots that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, picked, prefetch
from dist_classicrl._memory import zeros
from dist_classicrl._random import mix
from dist_classicrl.environments.state_keys import (
    are_same,
    as_number,
    as_words,
    folded,
    has_pairs,
    is_wide,
    n_states_in,
    put_state_at,
    state_at,
)

_FEWEST_SLOTS = 1 << 10
_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
_AHEAD = 16


def _words_of_slot(has_wide_keys: bool) -> int:
    return 4 if has_wide_keys else 2


def fits(slots, n):
    """Return whether `n` keys fill the slots to no more than 70 %."""
    return 10 * _words_of_slot(slots.dtype == np.uint64) * n <= 7 * slots.size


@overloads(fits, inline=True)
def _overload_fits(slots, n):
    factor = 10 * _words_of_slot(has_pairs(slots))
    return lambda slots, n: factor * n <= 7 * slots.size


def _by_kind(of_one: Any, of_two: Any) -> Any:
    return lambda slots: of_two if has_pairs(slots) else of_one


@jit_inline
def _prefetch_slot(slots, key):
    prefetch(slots, _TWO * (mix(np.uint64(key)) & np.uint64(slots.size // 2 - 1)))


@jit_inline
def _prefetch_wide_slot(slots, key):
    prefetch(slots, _FOUR * (mix(folded(key)) & np.uint64(slots.size // 4 - 1)))


@picked(_by_kind(_prefetch_slot, _prefetch_wide_slot))
def prefetch_slot(slots, key):
    """Ask for the slot in which a key is looked for first. Jitted code only."""
    raise NotImplementedError("prefetch_slot is for jitted code")


@jit_inline
def _slot_of(slots, key):
    last = np.uint64(slots.size // 2 - 1)
    at = mix(np.uint64(key)) & last
    while slots[_TWO * at + _ONE] != 0 and slots[_TWO * at] != key:
        at = (at + _ONE) & last
    return _TWO * at


@jit_inline
def _wide_slot_of(slots, key):
    last = np.uint64(slots.size // 4 - 1)
    at = mix(folded(key)) & last
    while slots[_FOUR * at + _TWO] != 0 and not are_same(state_at(slots, _TWO * at), key):
        at = (at + _ONE) & last
    return _FOUR * at


@picked(_by_kind(_slot_of, _wide_slot_of))
def slot_of(slots, key):
    """Return where the slot of a key begins: the one that has it, or else the empty one where it belongs.

    Jitted code only.
    """
    raise NotImplementedError("slot_of is for jitted code")


@jit_inline
def _row_at(slots, at):
    return slots[at + _ONE] - 1


@jit_inline
def _row_of_wide_at(slots, at):
    return np.int64(slots[at + _TWO]) - 1


@picked(_by_kind(_row_at, _row_of_wide_at))
def row_at(slots, at):
    """Return the row that the slot at `at` has, or -1. Jitted code only."""
    raise NotImplementedError("row_at is for jitted code")


@jit_inline
def _enter(slots, at, key, row):
    slots[at] = key
    slots[at + _ONE] = row + 1


@jit_inline
def _enter_wide(slots, at, key, row):
    put_state_at(slots, at // _TWO, key)
    slots[at + _TWO] = np.uint64(row + 1)


@picked(_by_kind(_enter, _enter_wide))
def enter(slots, at, key, row):
    """Let the empty slot at `at` have a key and its row. Jitted code only."""
    raise NotImplementedError("enter is for jitted code")


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
    return zeros(_words_of_slot(wide) * slots, np.uint64 if wide else np.int64)


def slots_of(keys: np.ndarray) -> np.ndarray:
    """Return slots that have these keys, of any type; ValueError where one comes twice."""
    slots = empty_slots(keys.size, keys.dtype)
    twice = enter_all(slots, as_words(keys))
    if twice >= 0:
        raise ValueError(f"its key {as_number(keys[twice])} is there twice")
    return slots
