"""Sets of whole numbers, a bit each, that tell of each number in them how many there are before it."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from dist_classicrl._jit import jit, jit_inline

_SIX, _LOW = np.uint64(6), np.uint64(63)
_ONE = np.uint64(1)


@intrinsic
def _ones_in(typing_context, bits):
    """Count the bits of a uint64 that are set."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


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
        total += np.int64(_ones_in(words[i]))


@jit_inline
def number_of(words, before, number):
    """Return how many numbers of the set are before `number`."""
    at = np.uint64(number)
    below = words[at >> _SIX] & ((_ONE << (at & _LOW)) - _ONE)
    return before[at >> _SIX] + np.int64(_ones_in(below))
