"""A table in which all of a state lies together, for tables that no cache holds.

A row takes whole cache lines: the values of its actions, then how often each was learned. Nothing is kept
that can be computed from that, and updates are not kept as maps: several may write to one such table at once
by plain stores, each of them a convex combination. What is lost then is an update now and then, and never
stability. Additions to numbers that rules share are atomic.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from dist_classicrl._jit import jit, jit_inline, overloads, prefetch, prefetch_to_write, stub
from dist_classicrl._memory import LINE
from dist_classicrl._random import SHIFT_32, below, mix
from dist_classicrl.tables.blocks import largest, lowest_bit, number_of_bits, places_of
from dist_classicrl.tables.rows import (
    ONE_REPLAY,
    ROW_FUNCTIONS,
    UNROLLED_ACTIONS,
    RowFunctions,
    actions_of,
    count,
    is_here,
)

MOST_VISITS = np.uint32(0xFFFFFFFF)
"""Counts stay there."""

BLOCK = (False,) * UNROLLED_ACTIONS
"""The block in which rows are searched that have no `row_shape`: those have more values."""

_DROPPED = np.uint64((1 << 29) - 1)  # bits of a float64's fraction that a float32 has not


class LineArrays(NamedTuple):
    """A table as the kernels see it.

    Row r has its values at ``values[r * width + action]``, and its counts at ``counts[r * count_width +
    first_count + action]``: two views of one memory.

    Attributes
    ----------
    values : ndarray(float64 or float32, ndim=1)
        -inf where an action is illegal.
    counts : ndarray(uint32, ndim=1)
    width, count_width : int
        Of a row, in values and in counts.
    first_count : int
        Where in a row counts begin.
    n_touched : ndarray(int64), shape (1,)
        0: nobody asks which entries were learned.
    legal, row_shape, n_states, n_tables
        As in `dist_classicrl.tables.rows.TableArrays`.
    n_actions : int
    """

    values: np.ndarray
    counts: np.ndarray
    width: int
    count_width: int
    first_count: int
    n_touched: np.ndarray
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int
    n_actions: int


def lines_with(*fields: str) -> Any:
    """Return a class with the fields of `LineArrays`, and some behind these, to derive a kind of table of."""
    return namedtuple("LinesWith", (*LineArrays._fields, *fields))


@jit
def first_infinite(table, legal, first, last):
    """Return the first entry of some rows that is no finite number, or -1.

    They are those from `first` to before `last`; `legal` is None or bool of shape (S, A).
    """
    n_actions = actions_of(table)
    for row in range(first, last):
        total = 0.0
        for action in range(n_actions):
            total += abs(_value_of(table, row, action))
        if not total < np.inf:
            for action in range(n_actions):
                if not abs(_value_of(table, row, action)) < np.inf and _is_legal(table, legal, row, action):
                    return row * n_actions + action
    return -1


@jit_inline
def _is_legal(table, legal, row, action):
    return True if legal is None else _in_tables(table, legal, row, action)


@jit_inline
def _in_tables(table, legal, row, action):
    return row >= table.n_states * table.n_tables or legal[row % table.n_states, action]


@jit
def write(table, legal, first, last, values, counts):
    """Write the same rows to their places in `values` and `counts`, flat; 0 where an action is illegal."""
    n_actions = actions_of(table)
    for row in range(first, last):
        for action in range(n_actions):
            at = row * n_actions + action
            value = table.values[np.uint64(row * table.width + action)]
            values[at] = value if _is_legal(table, legal, row, action) else 0.0
            counts[at] = table.counts[_count_at(table, row, action)]


@stub
def prefetch_values(table, state):
    """Ask for the values of a state, so that they are there when they are read."""


@overloads(prefetch_values, inline=True)
def _overload_prefetch_values(table, state):
    in_line = 8 * LINE // table.types[LineArrays._fields.index("values")].dtype.bitwidth

    def prefetch_all(table, state):
        for number in range(table.n_tables):
            at = (state + number * table.n_states) * table.width
            for value in range(0, table.n_actions, in_line):
                prefetch(table.values, np.uint64(at + value))

    return prefetch_all


@jit_inline
def prefetch_counts(table, state, action):
    """Ask for the counts of an action, which may lie in another line than its values."""
    if table.count_width > LINE // 4:
        for number in range(table.n_tables):
            prefetch(table.counts, _count_at(table, state + number * table.n_states, action))


@jit_inline
def prefetch_entry(table, row, action):
    """Ask for the value and the count of an entry, so that they are there when they are written."""
    prefetch_to_write(table.values, np.uint64(row * table.width + action))
    if table.count_width > LINE // 4:
        prefetch_to_write(table.counts, _count_at(table, row, action))


@jit_inline
def _actions_of(table):
    return _actions(table.row_shape, table.n_actions)


@jit_inline
def _actions(row_shape, n_actions):
    return n_actions if row_shape is None else len(row_shape)


@jit_inline
def _value_of(table, row, action):
    return np.float64(table.values[np.uint64(row * table.width + action)])


@jit_inline
def _count_at(table, row, action):
    return np.uint64(row * table.count_width + table.first_count + action)


@jit_inline
def _row_maximum(table, row):
    top = _top(table.values, np.uint64(row * table.width), table.row_shape, table.n_actions)
    return np.float64(top) if top > -np.inf else 0.0


@jit_inline
def _top(values, first, row_shape, n_actions):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    if row_shape is not None:
        return largest(values, first, row_shape)
    top = largest(values, first, BLOCK)
    # The last block has values that another one had, too.
    for block in range(1, _n_blocks(n_actions)):
        other = largest(values, first + np.uint64(_begin(block, n_actions)), BLOCK)
        top = other if other > top else top
    return top


@jit_inline
def _n_blocks(n_actions):
    return (n_actions + len(BLOCK) - 1) // len(BLOCK)


@jit_inline
def _begin(block, n_actions):
    """Return where a block begins: the last one ends with the row, and shares values with that before."""
    return min(block * len(BLOCK), n_actions - len(BLOCK))


@jit_inline
def _greedy_action(table, row):
    first = np.uint64(row * table.width)
    top = _top(table.values, first, table.row_shape, table.n_actions)
    return _only_place(table.values, first, table.row_shape, table.n_actions, top)


@jit_inline
def _only_place(values, first, row_shape, n_actions, top):
    if row_shape is not None:
        places = places_of(values, first, row_shape, top)
        # There is none where another writer has changed the row meanwhile, or where there is NaN.
        return lowest_bit(places) if number_of_bits(places) == 1 else np.int64(-1)
    where = np.int64(0)
    n_found = 0
    for block in range(_n_blocks(n_actions)):
        begin = _begin(block, n_actions)
        places = places_of(values, first + np.uint64(begin), BLOCK, top)
        places &= np.int64(-1) << np.int64(block * len(BLOCK) - begin)  # without what the last block had
        n_found += number_of_bits(places)
        where = begin + lowest_bit(places) if places != 0 else where
    return where if n_found == 1 else np.int64(-1)


@jit
def _any_greedy_action(table, row, random):
    top, first, n_best = -np.inf, 0, 0
    for action in range(actions_of(table)):
        value = _value_of(table, row, action)
        n_best = 1 if value > top else n_best + (value == top)
        first = action if value > top else first
        top = max(top, value)
    pick = below(random, n_best)
    for action in range(actions_of(table)):
        if _value_of(table, row, action) == top:
            if pick == 0:
                return action
            pick -= 1
    return first  # another writer has changed the row meanwhile, but not what is legal


@jit_inline
def _visits_of(table, row, action):
    return np.int64(table.counts[_count_at(table, row, action)])


@jit_inline
def _count(table, row, action, counts_as, touched):
    at = _count_at(table, row, action)
    known = table.counts[at]
    is_visit = counts_as != ONE_REPLAY
    table.counts[at] = known + np.uint32(is_visit and known < MOST_VISITS)
    return touched


@stub
def stored_as(values, value, name, visits):
    """Return `value` as the array `values` of a table holds it.

    In float32 it becomes one of the two neighbours, the nearer one with the larger chance, so that the mean
    is right: steps of less than half of their distance, as late visits make them, would be lost otherwise.
    The draw is one of the value, the entry's uint64 `name` and its count: where these are the same, so is the
    result.
    """


@overloads(stored_as, inline=True)
def _overload_stored_as(values, value, name, visits):
    if values.dtype != types.float32:
        return lambda values, value, name, visits: value

    def rounded(values, value, name, visits):
        bits = np.float64(value).view(np.uint64)
        drawn = mix(bits ^ (name << SHIFT_32) ^ np.uint64(visits)) & _DROPPED
        return np.float32(np.uint64((bits + drawn) & ~_DROPPED).view(np.float64))

    return rounded


@jit_inline
def _stored(table, row, action, value):
    place = _count_at(table, row, action)
    return stored_as(table.values, value, place, table.counts[place])


@jit_inline
def _learn_target(table, row, action, target, step_size):
    at = np.uint64(row * table.width + action)
    old = np.float64(table.values[at])
    table.values[at] = _stored(table, row, action, old + step_size * (target - old))


@jit_inline
def learn_target_as(table, row, action, target, step_size, name):
    """Do what `learn_target` does; what is drawn in float32 is drawn by the entry's uint64 `name`.

    So it is the same wherever the row lies.
    """
    at = np.uint64(row * table.width + action)
    old = np.float64(table.values[at])
    visits = table.counts[_count_at(table, row, action)]
    table.values[at] = stored_as(table.values, old + step_size * (target - old), name, visits)


@jit_inline
def _learn_row(table, row, target, step_size, counts_as, touched):
    """Learn the entries of a row, in float32 by one draw: those that are equal stay so."""
    name = _count_at(table, row, 0)
    for action in range(actions_of(table)):
        if _value_of(table, row, action) > -np.inf:
            touched = count(table, row, action, counts_as, touched)
            learn_target_as(table, row, action, target, step_size, name)
    return touched


@intrinsic
def _replaced(typing_context, values, index, known, value):
    """Set an element of a float array to `value` if it holds `known`, in one; return whether it did."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        bits = context.get_value_type(types.Integer.from_bitwidth(values.dtype.bitwidth))
        place = builder.bitcast(builder.gep(data, [arguments[1]]), bits.as_pointer())
        expected, new = (builder.bitcast(each, bits) for each in arguments[2:])
        return builder.extract_value(builder.cmpxchg(place, expected, new, "monotonic"), 1)

    return types.boolean(values, types.uint64, values.dtype, values.dtype), generate


@jit_inline
def _add_amount(table, row, action, amount):
    at = np.uint64(row * table.width + action)
    known = table.values[at]
    # No convex combination: an addition that another writer's store covers would be missing for good.
    while not _replaced(table.values, at, known, _stored(table, row, action, np.float64(known) + amount)):
        known = table.values[at]


ROW_FUNCTIONS[LineArrays] = RowFunctions(
    actions_of=_actions_of,
    value_of=_value_of,
    row_maximum=_row_maximum,
    greedy_action=_greedy_action,
    any_greedy_action=_any_greedy_action,
    visits_of=_visits_of,
    count=_count,
    learn_target=_learn_target,
    learn_row=_learn_row,
    add_amount=_add_amount,
    send=is_here,
)
