"""A table as a walker on a card sees it: values that stay as they are in a step, and letters to entries.

A walker does not write to the table. What its rule would move, and towards what, stands in letters of its
own, which are added up for the entries by all walkers that read the same values, those of a block with a copy
or all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import below
from dist_classicrl.tables.lines import LineArrays
from dist_classicrl.tables.rows import ROW_FUNCTIONS, RowFunctions, actions_of, is_here, learn_each_of_row


class Seen(NamedTuple):
    """What walkers read in a step.

    Attributes
    ----------
    values : ndarray(float64 or float32), shape (entries,)
        -inf where an action is illegal.
    known : ndarray(int64), shape (entries,)
        Visits; of copies those that all blocks knew of when they last merged.
    fresh : ndarray(int32), shape (entries,), or None
        Visits of this block since then.
    """

    values: np.ndarray
    known: np.ndarray
    fresh: np.ndarray | None


class CardTable(NamedTuple):
    """What all read, and the letters of one walker.

    Attributes
    ----------
    seen : Seen
    legal, row_shape, n_states, n_tables
        As in `dist_classicrl.tables.rows.TableArrays`.
    n_actions : int
    entries : ndarray(int64), shape (most,)
    targets : ndarray(float64), shape (most,)
    n : ndarray(int64), shape (1,)
        How many letters were written, and more than `most` where some had no room.
    """

    seen: Seen
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int
    n_actions: int
    entries: np.ndarray
    targets: np.ndarray
    n: np.ndarray


@jit_inline
def _value_of(table, row, action):
    return np.float64(table.seen.values[row * actions_of(table) + action])


@jit_inline
def _row_maximum(table, row):
    n_actions = actions_of(table)
    first = row * n_actions
    top = np.float64(table.seen.values[first])
    for action in range(1, n_actions):
        value = np.float64(table.seen.values[first + action])
        top = value if value > top else top
    return top if top > -np.inf else 0.0


@jit_inline
def _greedy_action(table, row):
    n_actions = actions_of(table)
    first = row * n_actions
    top, best, is_tie = table.seen.values[first], np.int64(0), False
    for action in range(1, n_actions):
        value = table.seen.values[first + action]
        is_above = value > top
        is_tie = (is_tie | (value == top)) & (not is_above)
        best = np.int64(action) if is_above else best
        top = value if is_above else top
    return np.int64(-1) if is_tie else best


@jit
def _any_greedy_action(table, row, random):
    n_actions = actions_of(table)
    first = row * n_actions
    top = table.seen.values[first]
    count = 0
    for action in range(n_actions):
        value = table.seen.values[first + action]
        count = 1 if value > top else count + (value == top)
        top = value if value > top else top
    pick = below(random, count)
    found, seen = 0, 0
    for action in range(n_actions):
        is_best = table.seen.values[first + action] == top
        found = action if is_best and seen == pick else found
        seen += is_best
    return found


@jit_inline
def _visits_of(table, row, action):
    entry = row * actions_of(table) + action
    return table.seen.known[entry] + _since(table.seen.fresh, entry)


@jit_inline
def _since(fresh, entry):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    return np.int64(0) if fresh is None else np.int64(fresh[entry])


@jit_inline
def _count(table, row, action, counts_as, touched):
    return touched


@jit_inline
def _write(table, row, action, target, step_size):
    number = table.n[0]
    if number < table.entries.size:
        table.entries[number] = row * actions_of(table) + action
        table.targets[number] = target
    table.n[0] = number + 1


@jit_inline
def _add_amount(table, row, action, amount):
    table.n[0] = table.entries.size + 1  # a sum is no target: refused as what has no room


ROW_FUNCTIONS[CardTable] = RowFunctions(
    actions_of=ROW_FUNCTIONS[LineArrays].actions_of,
    value_of=_value_of,
    row_maximum=_row_maximum,
    greedy_action=_greedy_action,
    any_greedy_action=_any_greedy_action,
    visits_of=_visits_of,
    count=_count,
    learn_target=_write,
    learn_row=learn_each_of_row,
    add_amount=_add_amount,
    send=is_here,
)
