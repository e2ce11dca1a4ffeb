"""Sets of whole numbers, a bit each, that tell of each number in them how many there are before it."""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl.tables.blocks import number_of_bits

_SIX, _LOW = np.uint64(6), np.uint64(63)
_ONE = np.uint64(1)


@jit_inline
def set_numbers(words, number):
    """Put `number` into the set."""
    at = np.uint64(number)
    words[at >> _SIX] |= _ONE << (at & _LOW)


@jit
def numbering(words, before):
    """Fill `before`: how many numbers there are before each word."""
    total = np.int64(0)
    for i in range(words.size):
        before[i] = total
        total += number_of_bits(np.int64(words[i]))


@jit_inline
def number_of(words, before, number):
    """Return how many numbers of the set are before `number`."""
    at = np.uint64(number)
    below = words[at >> _SIX] & ((_ONE << (at & _LOW)) - _ONE)
    return before[at >> _SIX] + number_of_bits(np.int64(below))
