"""What is bound is what compiled code is called with."""

import copy
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from dist_classicrl import _jit
from dist_classicrl._jit import compiled_for, jit
from dist_classicrl._jit.bound import Bound, taken


class Empty(NamedTuple):
    """Has no fields."""


class Inner(NamedTuple):
    """Has fields of several types."""

    flag: bool
    nothing: None
    empty: Empty
    pair: tuple[int, int]
    strided: np.ndarray


class Outer(NamedTuple):
    """Has arrays, numbers and a NamedTuple."""

    written: np.ndarray
    inner: Inner
    truths: np.ndarray
    key: np.uint64
    rate: float


def outer(written):
    return Outer(
        written,
        Inner(True, None, Empty(), (3, -(2**40)), np.arange(12.0).reshape(3, 4)[::2, 1:]),
        np.array([[True, False], [False, True]]),
        np.uint64(2**64 - 5),
        0.1,
    )


@jit
def told(value, number, out):
    """Write all that there is to `out`, and `number` to where `written` ends."""
    flag, nothing, empty, pair, strided = value.inner
    out[0] = 1.0 if flag and nothing is None else 0.0
    out[1], out[2] = pair
    out[3], out[4], out[5] = strided[1, 2], strided.shape[0], strided.shape[1]
    out[6] = 10.0 * value.truths[0, 1] + value.truths[1, 1]
    out[7], out[8] = value.key >> np.uint64(60), value.rate
    value.written[-1] = number
    return value.key


@jit
def told_bound(bound, number, out):
    """Do so with a bound one."""
    return told(taken(bound), number, out)


@pytest.mark.slow
def test_a_kernel_has_what_is_bound():
    plain, found = np.zeros(9), np.zeros(9)
    value, other = outer(np.zeros(3, np.int64)), outer(np.zeros(3, np.int64))
    bound = Bound(value)
    assert taken(bound) is value
    kernel = compiled_for(told_bound, bound, 0, found)
    assert kernel(bound, 7, found) == told(other, 7, plain) == 2**64 - 5
    assert found.tolist() == plain.tolist() == [1, 3, -(2**40), 11, 2, 3, 1, 15, 0.1]
    assert value.written.tolist() == [0, 0, 7]  # itself, and not a copy
    copied = copy.deepcopy(bound)
    kernel(copied, 8, found)
    assert (value.written.tolist(), taken(copied).written.tolist()) == ([0, 0, 7], [0, 0, 8])


def test_the_classes_of_what_is_bound_are_seen():
    class Elsewhere(NamedTuple):
        number: int

    class Around(NamedTuple):
        part: Any

    kind = numba.typeof(Bound(Around(Elsewhere(1))))
    assert set(_jit.classes_in((kind,))) == {Elsewhere, Around}
    assert kind == numba.typeof(Bound(Around(Elsewhere(2))))
    assert kind != numba.typeof(Bound(Around(Elsewhere(2.0))))
