"""A table of rows of which others own some: what is learned about those is put into an outbox.

A learning rule reads the next state's row here and calls `update` for the entry that it acted on, which lies
elsewhere. What `update` would have moved that entry towards stands in the outbox then, for its owner. A rule
that lets steps wait may call it for any of them, once, more often or not at all: that makes `Letters`. What
takes a step size of the rule's own, or is shared, nobody could do for it: that is put there as too much.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit_inline
from dist_classicrl.tables.lines import LineArrays, lines_with
from dist_classicrl.tables.rows import ROW_FUNCTIONS


class Outbox(lines_with("target", "put")):  # type: ignore[misc]
    """`LineArrays` that are only read, and where a target goes.

    `target`, float64 of shape (1,), has the target, and `put`, int64 of shape (3,), its row, its action and
    how many were put there.
    """

    __slots__ = ()

    @classmethod
    def of(cls, arrays: LineArrays) -> Outbox:
        """Return the outbox of these rows."""
        return cls(*arrays, np.zeros(1), np.zeros(3, np.int64))


@jit_inline
def _count(table, row, action, counts_as, touched):
    return touched


@jit_inline
def _put(table, row, action, target):
    table.target[0] = target
    table.put[0], table.put[1] = row, action
    table.put[2] += 1
    return True


@jit_inline
def _put_moved(table, row, action, target, step_size):
    table.put[2] += 2


@jit_inline
def _put_amount(table, row, action, amount):
    table.put[2] += 2


ROW_FUNCTIONS[Outbox] = ROW_FUNCTIONS[LineArrays]._replace(
    count=_count, learn_target=_put_moved, add_amount=_put_amount, send=_put
)


class Letters(lines_with("waits", "places", "actions", "targets", "n")):  # type: ignore[misc]
    """`LineArrays` that are only read, and letters to the owners of entries: which one, and its target.

    A rule knows the states of steps that wait by their places, from 0 to ``waits - 1``, and calls `update`
    with those for rows. A letter to all actions of a state has the number of actions for its action. `places`
    and `actions`, int64, and `targets`, float64, have room for the most that a step may write, and `n`, int64
    of shape (1,), says how many were written, and more than that where some had no room.
    """

    __slots__ = ()

    @classmethod
    def of(cls, arrays: LineArrays, waits: int) -> Letters:
        """Return room for the letters of a step, of which there is one for each that waits, and one more."""
        most = waits + 1
        letters = np.zeros(most, np.int64), np.zeros(most, np.int64), np.zeros(most), np.zeros(1, np.int64)
        return cls(*arrays, waits, *letters)


@jit_inline
def _send(table, row, action, target):
    number = table.n[0]
    if number < table.places.size:
        table.places[number], table.actions[number], table.targets[number] = row, action, target
    table.n[0] = number + 1
    return True


@jit_inline
def _known_value_of(table, row, action):
    # A rule may look at what it moves, which is not here: a place is no row.
    at = row * table.width + action
    return np.float64(table.values[at]) if 0 <= at < table.values.size else 0.0


@jit_inline
def _known_visits_of(table, row, action):
    at = row * table.count_width + table.first_count + action
    return np.int64(table.counts[at]) if 0 <= at < table.counts.size else np.int64(0)


@jit_inline
def _send_moved(table, row, action, target, step_size):
    table.n[0] = table.places.size + 1


@jit_inline
def _send_amount(table, row, action, amount):
    table.n[0] = table.places.size + 1


ROW_FUNCTIONS[Letters] = ROW_FUNCTIONS[LineArrays]._replace(
    value_of=_known_value_of,
    visits_of=_known_visits_of,
    count=_count,
    learn_target=_send_moved,
    add_amount=_send_amount,
    send=_send,
)
