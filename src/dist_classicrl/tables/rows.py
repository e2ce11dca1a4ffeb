"""The arrays of a worker's table, and what learning does with one entry or row of a table.

How that is done depends on the kind of table, the class of a tuple, by `ROW_FUNCTIONS`. There are
`TableArrays` here, `LineArrays` (`tables.lines`), and what rules see where what they move is elsewhere or
added up first: `Outbox` and `Letters` (`tables.outbox`), `Summed` (`learning.supersteps.shared`) and
`CardTable` (`learning.card.table`).

An entry is ``row * A + action``. The rows of a table that a rule has first are the states; a rule with
several tables has S rows for each, one table after the other, and what it shares besides stands in the rows
behind them.

Row searches are unrolled where the number of actions is part of a type: `TableArrays.row_shape` is a tuple of
A zeros, or None to read A from the arrays. It makes the training loop 1.05 to 1.4 times as fast, and costs a
compilation per number of actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from dist_classicrl._jit import jit, jit_inline, picked_from
from dist_classicrl._random import below

VISIT_MASK = (1 << 32) - 1
ONE_REPLAY = 1 << 32
UNROLLED_ACTIONS = 16
"""Up to this many actions, `row_shape` is worth its compilation."""

_SMALLEST_WEIGHT = 1e-290
_EXACT_BITS = 13


class TableArrays(NamedTuple):
    """A worker's table as the kernels see it; R rows of A entries.

    Attributes
    ----------
    q : ndarray(float64), shape (R * A,)
        The values that are learned on; -inf where an action is illegal in a compiled environment.
    best : ndarray(float64), shape (R,)
    greedy : ndarray(int32), shape (R,)
        The maximum of each row and where it is, -1 where several are equal. In a compiled environment
        ``best`` is 0 where no action is legal: nothing can be collected there. Whoever changes ``q`` keeps
        both up to date, so that the next action does not wait for a search.
    weight, shift : None or ndarray(float64), shape (R * A,)
        The affine map that the updates since the last push make. None, as the next and `touched`, where
        nobody asks for maps.
    updates : None or ndarray(int64), shape (R * A,)
        Visits in the low 32 bits, replayed updates in the high 32; not 0 means touched.
    visits : ndarray(int64), shape (R * A,)
        The visits known besides those, the clock of per-visit step sizes.
    touched : None or ndarray(int64), shape (R * A + 1,)
    n_touched : ndarray(int64), shape (1,)
        The touched entries, in the order of their first touch.
    legal : None or (ndarray(int32), shape (S,), ndarray(int32), shape (S * A,))
        Number of legal actions of each state, and these actions at the front of each row; None: all are.
    row_shape : None or tuple of A ints
    n_states, n_tables : int
        S, the rows of one table, and how many tables there are.
    """

    q: np.ndarray
    best: np.ndarray
    greedy: np.ndarray
    weight: np.ndarray | None
    shift: np.ndarray | None
    updates: np.ndarray | None
    visits: np.ndarray
    touched: np.ndarray | None
    n_touched: np.ndarray
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int


def legal_lists(legal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `TableArrays.legal` of the legal actions, bool of shape (S, A)."""
    order = np.argsort(~legal, axis=1, kind="stable").astype(np.int32)
    return legal.sum(axis=1).astype(np.int32), np.ascontiguousarray(order).ravel()


@intrinsic
def _leading_zeros(typing_context, value):
    """Count the leading zero bits of an int64."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, True))

    return types.int64(types.int64), generate


@jit_inline
def visit_bucket(visits):
    """Return the slot of `PerVisit.table` for `visits` >= 1: exact below 8192, then 4096 slots per octave."""
    octave = max(64 - _EXACT_BITS - _leading_zeros(np.int64(visits)), 0)
    return (octave << (_EXACT_BITS - 1)) + (visits >> octave)


class RowFunctions(NamedTuple):
    """The jitted functions of a kind of table, which the functions of these names call."""

    actions_of: Callable[..., Any]
    value_of: Callable[..., Any]
    row_maximum: Callable[..., Any]
    greedy_action: Callable[..., Any]
    any_greedy_action: Callable[..., Any]
    visits_of: Callable[..., Any]
    count: Callable[..., Any]
    learn_target: Callable[..., Any]
    learn_row: Callable[..., Any]
    add_amount: Callable[..., Any]
    send: Callable[..., Any]


ROW_FUNCTIONS: dict[type, RowFunctions] = {}
"""By the class of a table."""


@picked_from(ROW_FUNCTIONS.get)
def actions_of(table):
    """Return A."""


@picked_from(ROW_FUNCTIONS.get)
def value_of(table, row, action):
    """Return the value of `action` in `row`, float64; -inf where it is illegal in a compiled environment."""


@picked_from(ROW_FUNCTIONS.get)
def row_maximum(table, row):
    """Return the largest value in `row`; 0 where no action is legal in a compiled environment."""


@picked_from(ROW_FUNCTIONS.get)
def greedy_action(table, row):
    """Return the action of the largest value in `row`, or -1 where several are equal."""


@picked_from(ROW_FUNCTIONS.get, inline=False)
def any_greedy_action(table, row, random):
    """Return one of the actions of the largest value in `row`, each with the same chance."""


@picked_from(ROW_FUNCTIONS.get)
def visits_of(table, row, action):
    """Return the visits of `action` in `row`, as far as they are known."""


@picked_from(ROW_FUNCTIONS.get)
def count(table, row, action, counts_as, touched):
    """Count an update, a visit or `ONE_REPLAY`, and return the new number of touched entries."""


@picked_from(ROW_FUNCTIONS.get)
def learn_target(table, row, action, target, step_size):
    """Move the value of `action` in `row` by `step_size` towards `target`."""


@picked_from(ROW_FUNCTIONS.get)
def learn_row(table, row, target, step_size, counts_as, touched):
    """Do what `count` and `learn_target` do for each legal action of a row; return what `count` does."""


@picked_from(ROW_FUNCTIONS.get)
def add_amount(table, row, action, amount):
    """Add `amount` to an entry that is shared with merge "sum"."""


@picked_from(ROW_FUNCTIONS.get)
def send(table, row, action, target):
    """Let the owner of an entry learn from a target; return False where that is here.

    The number of actions stands for all actions of a state that wait: see `tables.outbox.Letters`.
    """


@jit_inline
def is_here(table, row, action, target):
    """Do what `send` does where all rows are here: nothing."""
    return False


@jit_inline
def step_size_at(table, step_sizes, row, action, extra):
    """Return the step size of an entry by its visits, and `extra` more."""
    known = visits_of(table, row, action) + extra
    # Unsigned, an index needs no check for counting from the end.
    return step_sizes[np.uint64(visit_bucket(max(known, 1)))]


@jit_inline
def learn_each_of_row(table, row, target, step_size, counts_as, touched):
    """Do that by `count` and `learn_target`, in any kind of table."""
    for action in range(actions_of(table)):
        if value_of(table, row, action) > -np.inf:
            touched = count(table, row, action, counts_as, touched)
            learn_target(table, row, action, target, step_size)
    return touched


# Tables whose updates may be kept as maps


@jit_inline
def _actions_of(table):
    return _actions(table.row_shape, table.q.size, table.best.size)


@jit_inline
def _actions(row_shape, size, rows):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    return size // rows if row_shape is None else len(row_shape)


@jit_inline
def _entry(table, row, action):
    return np.uint64(row * actions_of(table) + action)


@jit_inline
def _value_of(table, row, action):
    return table.q[_entry(table, row, action)]


@jit_inline
def _row_maximum(table, row):
    return table.best[np.uint64(row)]


@jit_inline
def _greedy_action(table, row):
    return np.int64(table.greedy[np.uint64(row)])


@jit_inline
def _any_greedy_action(table, row, random):
    n_actions = actions_of(table)
    return pick_among_best(table.q, table.best[np.uint64(row)], row * n_actions, n_actions, random)


@jit_inline
def _visits_of(table, row, action):
    return _all_visits(table.visits, table.updates, _entry(table, row, action))


@jit_inline
def _all_visits(visits, updates, at):
    return visits[at] if updates is None else visits[at] + (updates[at] & VISIT_MASK)


@jit_inline
def _count(table, row, action, counts_as, touched):
    return _count_entry(table, table.updates, row * actions_of(table) + action, counts_as, touched)


@jit_inline
def _count_entry(table, updates, entry, counts_as, touched):
    at = np.uint64(entry)
    if updates is None:
        table.visits[at] += counts_as & VISIT_MASK
        return touched
    table.touched[np.uint64(touched)] = entry
    known = updates[at]
    updates[at] = known + counts_as
    return touched + (known == 0)


@jit_inline
def compose(weight, shift, at, keep, moved):
    """Compose the map (keep, moved) after that of an entry, if there is one."""
    if weight is not None:
        kept = weight[at] * keep
        weight[at] = kept if kept > _SMALLEST_WEIGHT else 0.0  # denormals are a hundred times slower
        shift[at] = keep * shift[at] + moved


@jit_inline
def refresh_row(q, best, greedy, row, n_actions):
    """Set `best` and `greedy` of `row` from its values."""
    # Signed indices on purpose: with unsigned ones the row is loaded as a vector right behind the store of
    # one of its entries, for which a processor has to wait. That costs small problems a tenth of their speed.
    first = row * n_actions
    top = q[first]
    where = 0
    tie = False
    for action in range(1, n_actions):
        value = q[first + action]
        above = value > top
        tie = (tie | (value == top)) & (not above)
        where = action if above else where
        top = value if above else top
    best[np.uint64(row)] = top
    greedy[np.uint64(row)] = -1 if tie else where


@jit
def pick_among_best(q, top, first, n_actions, random):
    """Return one of the actions of value `top` in the row that begins at `first`, all equally likely."""
    count = 0
    for action in range(n_actions):
        count += q[np.uint64(first + action)] == top
    pick = below(random, count)
    # Without branches, which no processor could foretell.
    found, seen = 0, 0
    for action in range(n_actions):
        is_best = q[np.uint64(first + action)] == top
        found = action if is_best and seen == pick else found
        seen += is_best
    return found


@jit_inline
def _learn_target(table, row, action, target, step_size):
    """Compose the map; the row's maximum follows."""
    q, best, greedy = table.q, table.best, table.greedy
    at = _entry(table, row, action)
    old = q[at]
    new = old + step_size * (target - old)
    q[at] = new
    compose(table.weight, table.shift, at, 1.0 - step_size, step_size * target)
    top = best[np.uint64(row)]
    if new != old and (old == top or new >= top):
        refresh_row(q, best, greedy, row, actions_of(table))


@jit_inline
def _learn_row(table, row, target, step_size, counts_as, touched):
    """Compose the maps; the row's maximum follows, which is known where all values are the same."""
    q = table.q
    n_actions = actions_of(table)
    first, keep, moved = row * n_actions, 1.0 - step_size, step_size * target
    for action in range(n_actions):
        if _can_be_played(table.legal, q[np.uint64(first + action)]):
            touched = _count_entry(table, table.updates, first + action, counts_as, touched)
    old = q[np.uint64(first)]
    top = old + step_size * (target - old)
    is_same = n_actions > 1
    for action in range(n_actions):
        at = np.uint64(first + action)
        old = q[at]
        if _can_be_played(table.legal, old):
            new = old + step_size * (target - old)
            q[at] = new
            is_same &= new == top
            compose(table.weight, table.shift, at, keep, moved)
        else:
            is_same = False
    if is_same:
        table.best[np.uint64(row)], table.greedy[np.uint64(row)] = top, -1
    else:
        refresh_row(q, table.best, table.greedy, row, n_actions)
    return touched


@jit_inline
def _can_be_played(legal, value):
    return True if legal is None else value > -np.inf


@jit_inline
def _add_amount(table, row, action, amount):
    at = _entry(table, row, action)
    table.q[at] += amount
    compose(table.weight, table.shift, at, 1.0, amount)


ROW_FUNCTIONS[TableArrays] = RowFunctions(
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
