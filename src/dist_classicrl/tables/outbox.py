"""A table of rows of which others own some: what is learned about those is put into an outbox.

A learning rule reads the next state's row here and calls `update` for the entry that it acted on, which lies
elsewhere. What `update` would have moved that entry towards stands in the outbox then, for its owner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit_inline
from dist_classicrl.tables.lines import LineArrays
from dist_classicrl.tables.rows import ROW_FUNCTIONS


class Outbox(NamedTuple):
    """`LineArrays` that are only read, and where a target goes.

    `target`, float64 of shape (1,), has the target, and `put`, int64 of shape (2,), for which of the rule's
    tables it is and how many were put there.
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
    target: np.ndarray
    put: np.ndarray

    @classmethod
    def of(cls, arrays: LineArrays) -> Outbox:
        """Return the outbox of these rows."""
        return cls(*arrays, np.zeros(1), np.zeros(2, np.int64))


@jit_inline
def _count(table, row, action, counts_as, touched):
    return touched


@jit_inline
def _learn_target(table, row, action, target, step_size):
    table.target[0] = target
    table.put[0] = row // table.n_states
    table.put[1] += 1


@jit_inline
def _add_amount(table, row, action, amount):
    table.put[1] += 2  # nothing that is shared has an owner: refused as what is no single target


ROW_FUNCTIONS[Outbox] = ROW_FUNCTIONS[LineArrays]._replace(
    count=_count, learn_target=_learn_target, add_amount=_add_amount
)
