"""What supersteps are made of: sums in any order, sets of numbers, who owns what."""

import math

import numba
import numpy as np
import pytest

from dist_classicrl._jit import jit, jit_for
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.supersteps.numbering import number_of, numbering, set_numbers
from dist_classicrl.learning.supersteps.owners import check_partition, find_own, owned_by
from dist_classicrl.learning.supersteps.partition import owner_of, row_of
from dist_classicrl.learning.supersteps.sums import PARTS, add_exactly, carried, sum_of


@jit
def add_all(parts, numbers):
    for i in range(numbers.size):
        add_exactly(parts, numbers[i])


def parts_of(numbers):
    parts = np.zeros(PARTS, np.int64)
    add_all(parts, np.asarray(numbers, float))
    return parts


@pytest.mark.parametrize("spread", [0, 5, 300])
def test_sums_are_exact_in_any_order_and_division(spread):
    rng = np.random.default_rng(spread)
    numbers = rng.normal(size=5000) * 10.0 ** rng.uniform(-spread, spread, 5000)
    exact = math.fsum(numbers)
    assert sum_of(parts_of(numbers)) == exact
    assert sum_of(parts_of(rng.permutation(numbers))) == exact
    assert sum_of(parts_of(numbers[:77]) + parts_of(numbers[77:])) == exact


def test_sums_of_the_least_and_the_largest_numbers():
    least, largest = 5e-324, np.finfo(float).max
    for numbers in ([least] * 3, [largest, -largest, least], [2.0**-1022, least], [-0.0], [largest, -least]):
        assert sum_of(parts_of(numbers)) == math.fsum(numbers)
    assert sum_of(parts_of([largest, largest])) == math.inf
    assert sum_of(parts_of([-largest, -largest])) == -math.inf


def test_parts_that_are_carried_have_the_same_sum():
    for sign in (1, -1):
        parts = sign * parts_of(np.full(10_000, 0.1))
        exact = sum_of(parts)
        carried(parts)
        assert sum_of(parts) == exact and np.abs(parts).max() < 2**32


@jit
def put(words, numbers):
    for i in range(numbers.size):
        set_numbers(words, numbers[i])


@jit
def numbers_of(words, before, numbers, found):
    for i in range(numbers.size):
        found[i] = number_of(words, before, numbers[i])


def test_sets_tell_how_many_numbers_are_before_one():
    rng = np.random.default_rng(0)
    numbers = np.flatnonzero(rng.random(1000) < 0.4)
    words, before = np.zeros(16, np.uint64), np.zeros(16, np.int64)
    put(words, rng.permutation(numbers))
    numbering(words, before)
    found = np.empty(numbers.size, np.int64)
    numbers_of(words, before, numbers, found)
    np.testing.assert_array_equal(found, np.arange(numbers.size))


@numba.njit
def thirds(state):
    return state * state % 3


@jit
def ask(partition, states, owners, rows, rank):
    for i in range(states.size):
        owners[i] = owner_of(partition, states[i])
        rows[i] = row_of(partition, states[i]) if owners[i] == rank else -1


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["hash", "range", thirds])
@pytest.mark.parametrize(("n_states", "ranks"), [(1, 3), (64, 3), (1000, 3), (10, 8)])
def test_each_state_has_one_owner_and_a_row_of_its_own(partition, n_states, ranks):
    states = np.arange(n_states)
    seen = []
    for rank in range(ranks):
        owned = owned_by(partition, n_states, rank, ranks)
        owners, rows = np.empty(n_states, np.int64), np.empty(n_states, np.int64)
        kernel = ask if partition != thirds else numba.njit(ask.py_func)
        kernel(owned.arrays, states, owners, rows, rank)
        np.testing.assert_array_equal(np.flatnonzero(owners == rank), owned.states)
        np.testing.assert_array_equal(rows[owned.states], np.arange(owned.states.size))
        seen.append(owners.copy())
        in_place = owned_by(partition, n_states, rank, ranks, in_place=True)
        kernel(in_place.arrays, states, owners, rows, rank)
        np.testing.assert_array_equal(owners, seen[-1])
        np.testing.assert_array_equal(rows[owned.states], owned.states)
        is_own = np.empty(n_states, bool)
        jit_for(find_own, type(in_place.arrays))(in_place.arrays, states, rank, is_own)
        np.testing.assert_array_equal(is_own, owners == rank)
    assert all((owners == seen[0]).all() for owners in seen)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_state_that_is_given_to_no_rank_is_told(in_place):
    with pytest.raises(
        SettingsError, match=r"partition gives state 1 to 1, .* from 0 to 0, for each of the 10"
    ):
        owned_by(thirds, 10, 0, 1, in_place=in_place)


OWNERS = np.zeros(7, np.int64)


@numba.njit
def from_an_array(state):
    return OWNERS[state]


def test_a_partition_that_reads_beyond_its_array_is_refused():
    with pytest.raises(SettingsError, match="each of the 10 states: from_an_array raised IndexError"):
        owned_by(from_an_array, 10, 0, 1)
    assert owned_by(from_an_array, 7, 0, 1).states.size == 7


@numba.njit
def with_another(state, other):
    return other


@numba.njit
def two_at_once(state):
    return state, 0


@numba.njit
def in_parts(state):
    return state * 0.01


@numba.njit
def nothing(state):
    pass


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (with_another, "with_another cannot be compiled for that. Numba says why"),
        (two_at_once, r"a whole number: two_at_once returns Tuple\(int64"),
        (in_parts, "a whole number: in_parts returns float64"),
        (nothing, "a whole number: nothing returns none"),
    ],
)
def test_a_partition_of_another_form_is_refused(function, told):
    with pytest.raises(SettingsError, match=f"state of the type int64, and return the rank.*{told}"):
        check_partition(function)
    with pytest.raises(SettingsError, match=told):
        owned_by(function, 10, 0, 2)
    with pytest.raises(SettingsError, match="state of the type uint64"):
        owned_by(function, 0, 0, 2, keys=np.dtype(np.uint64))


def test_a_hash_divides_evenly():
    sizes = [owned_by("hash", 100_000, rank, 16).states.size for rank in range(16)]
    assert sum(sizes) == 100_000 and max(sizes) < 1.05 * np.mean(sizes)
