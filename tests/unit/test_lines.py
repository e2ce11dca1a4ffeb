"""Rows of whole cache lines: what the kernels find in them, against NumPy."""

import numpy as np
import pytest

from dist_classicrl._jit import jit
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.rows import any_greedy_action, greedy_action, row_maximum
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
