"""Rows of whole cache lines: what the kernels find in them, against NumPy."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dist_classicrl._jit import jit
from dist_classicrl.learning import behavior
from dist_classicrl.tables import lines
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.rows import add_amount, any_greedy_action, greedy_action, row_maximum
from dist_classicrl.tables.shape import TableShape


@jit
def search(table, random, maxima, greedy, chosen):
    for row in range(maxima.size):
        maxima[row] = row_maximum(table, row)
        greedy[row] = greedy_action(table, row)
        chosen[row] = any_greedy_action(table, row, random)


def searched(table):
    n_rows = len(table.values)
    maxima, greedy, chosen = np.zeros(n_rows), np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    search(table.arrays, np.uint64(2**31), maxima, greedy, chosen)
    return maxima, greedy, chosen


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_actions", [1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 100])
def test_the_best_of_a_row_is_found(n_actions, dtype):
    table = LineTable(TableShape(500, n_actions), np.dtype(dtype))
    table.counts[:] = 2**32 - 1  # as a float it is NaN
    rng = np.random.default_rng(n_actions)
    table.values[:] = rng.integers(-3 * n_actions, 0, table.values.shape)  # equal ones here and there
    forbidden = rng.random(table.values.shape) < 0.3
    forbidden[np.arange(500), rng.integers(0, n_actions, 500)] = False
    table.values[forbidden] = -np.inf
    table.values[:n_actions] = -5.0  # of these rows the diagonal is best, so that it is found in each place
    table.values[np.arange(n_actions), np.arange(n_actions)] = -4.0
    maxima, greedy, chosen = searched(table)
    np.testing.assert_array_equal(maxima, table.values.max(axis=1))
    is_best = table.values == table.values.max(axis=1, keepdims=True)
    only = is_best.sum(axis=1) == 1
    assert n_actions == 1 or n_actions < only.sum() < 500
    np.testing.assert_array_equal(greedy, np.where(only, table.values.argmax(axis=1), -1))
    assert is_best[np.arange(500), chosen].all()


@pytest.mark.slow
@pytest.mark.parametrize("n_actions", [8, 40])
def test_rows_without_numbers_to_compare_do_no_harm(n_actions):
    """Nothing can be collected where no action is legal; NaN is told later, by `settle`."""
    table = LineTable(TableShape(2, n_actions), np.dtype(np.float64))
    table.values[0] = -np.inf
    table.values[1] = np.nan
    maxima, greedy, _ = searched(table)
    assert maxima[0] == 0.0 and greedy[0] == -1
    assert -1 <= greedy[1] < n_actions


@jit
def place_of(table, row, top):
    first = np.uint64(row * table.width)
    return lines._only_place(table.values, first, table.row_shape, table.n_actions, top)


@pytest.mark.slow
@pytest.mark.parametrize("n_actions", [3, 40])
def test_where_the_maximum_was_changed_meanwhile_by_another_writer_no_place_is_found(n_actions):
    table = LineTable(TableShape(2, n_actions), np.dtype(np.float64))
    table.values[:] = np.arange(n_actions)
    assert place_of(table.arrays, 1, float(n_actions)) == -1  # not one that may be illegal
    assert place_of(table.arrays, 1, 2.0) == 2


def test_where_the_maximum_was_changed_meanwhile_a_legal_action_is_taken(monkeypatch):
    """The first one is illegal: a target for it would make it NaN."""
    reads = iter([-np.inf, 5.0, 3.0, -np.inf, 4.0, 3.0])
    monkeypatch.setattr(lines, "_value_of", lambda table, row, action: next(reads))
    monkeypatch.setattr(lines, "actions_of", lambda table: 3)
    assert lines._any_greedy_action.py_func(None, 0, np.uint64(0)) == 1
    assert next(reads, None) is None


def test_the_same_holds_where_actions_are_compared_by_a_measure(monkeypatch):
    reads = iter([5.0, 3.0, 4.0, 3.0])
    monkeypatch.setattr(behavior, "measure", lambda *arguments: next(reads))
    monkeypatch.setattr(behavior, "actions_of", lambda table: 3)
    context, masks = SimpleNamespace(table=None), np.array([[False, True, True]])
    assert behavior._largest.py_func(None, None, context, 0, masks, 0, 0.0, np.uint64(0)) == 1
    assert next(reads, None) is None


def test_a_table_is_written_to_memory_that_nothing_was_written_to():
    """Whatever stands there, counts beyond those of lines too, is no part of it."""
    table = LineTable(TableShape(3, 2), np.dtype(np.float64))
    table.load(np.arange(6.0), np.arange(6))
    values, counts = np.full(6, np.nan), np.full(6, 2**62)
    table.settle(values, counts)
    assert values.tolist() == counts.tolist() == [0, 1, 2, 3, 4, 5]


@jit
def add_often(table, times):
    for _ in range(times):
        add_amount(table, 0, 1, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_several_add_at_once_to_a_number_is_all_there(dtype):
    table = LineTable(TableShape(2, 3), np.dtype(dtype))
    add_often(table.arrays, 0)  # compiles
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add_often, [table.arrays] * 2, [4_000_000] * 2))
    assert table.values[0].tolist() == [0.0, 8_000_000.0, 0.0] and not table.values[1].any()
