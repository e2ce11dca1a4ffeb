"""Numbers that a rule shares, in supersteps: no state owns them, and what moves them is added up.

Each rank has them all behind its own rows, and they are the same on all. In a superstep an update of such a
number, towards a target y by a step size a, is a part of two sums over all walkers, of a and of a y, which
are exact, so that neither order nor division shows. When the entries of the superstep have been moved, the
number moves towards the mean target, sum(a y) / sum(a), by sum(a), or by 1 where that is more. With one
walker this is its update; many of them, who all know the number of before, cannot take it beyond what they
aim at.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl.learning.rules.kernel import Learned, on_target, rule_of_type
from dist_classicrl.learning.supersteps.sums import PARTS, add_exactly
from dist_classicrl.tables.lines import MOST_VISITS, LineArrays, learn_target_as, lines_with
from dist_classicrl.tables.rows import ROW_FUNCTIONS, actions_of, learn_each_of_row

WORDS = 2 * PARTS + 1
"""Of the sums of one number: of step sizes, of targets times these, and how many there are."""

_NAME = np.uint64(0x2545F4914F6CDD1D)


class Summed(lines_with("sums", "name")):  # type: ignore[misc]
    """`LineArrays` with numbers behind their rows of which updates are added up, not made.

    `sums`, int64 of shape (numbers, WORDS), has those sums, and `name`, uint64 of shape (1,), what the entry
    that is moved is called on any rank.
    """

    __slots__ = ()

    @classmethod
    def of(cls, arrays: LineArrays, numbers: int) -> Summed:
        """Return these rows, with so many numbers behind."""
        return cls(*arrays, np.zeros((numbers, WORDS), np.int64), np.zeros(1, np.uint64))


_count_in_row = ROW_FUNCTIONS[LineArrays].count


@jit_inline
def _number(table, row, action):
    """Return which of the numbers an entry is; negative: it is none."""
    return (row - table.n_tables * table.n_states) * actions_of(table) + action if _is_one(table, row) else -1


@jit_inline
def _is_one(table, row):
    return row >= table.n_tables * table.n_states


@jit_inline
def _count(table, row, action, counts_as, touched):
    return touched if _is_one(table, row) else _count_in_row(table, row, action, counts_as, touched)


@jit_inline
def _learn_target(table, row, action, target, step_size):
    if not _is_one(table, row):
        learn_target_as(table, row, action, target, step_size, table.name[0])
    elif abs(target) < np.inf:
        sums = table.sums[_number(table, row, action)]
        add_exactly(sums[:PARTS], step_size)
        add_exactly(sums[PARTS : 2 * PARTS], step_size * target)
        sums[2 * PARTS] += 1


ROW_FUNCTIONS[Summed] = ROW_FUNCTIONS[LineArrays]._replace(
    count=_count, learn_target=_learn_target, learn_row=learn_each_of_row
)


def learns_there(rule_type: Any) -> bool:
    """Return whether a rule of this numba type has `on_target`."""
    rule = rule_of_type(rule_type)
    return rule is not None and rule.on_target is not None


@jit_inline
def learn_there(rule, context, now, row, action, target, name, errors):
    """Learn from a target where its entry is, which is called `name` on any rank."""
    context.table.name[0] = name
    learned = on_target(rule, context, now, row, action, target, Learned(0, 0.0))
    if learned.error < np.inf:
        add_exactly(errors, learned.error)


@jit_inline
def _near(parts):
    """Return a sum as a float; parts that are the same give the same one."""
    total = 0.0
    for i in range(PARTS - 1, -1, -1):
        total += math.ldexp(np.float64(parts[i]), 32 * i - 1074)
    return total


@jit
def move_numbers(table, sums):
    """Move the numbers by the sums of all ranks, and set these to zero."""
    for number in range(sums.shape[0]):
        weight = _near(sums[number, :PARTS])
        if weight > 0.0:
            target = _near(sums[number, PARTS : 2 * PARTS]) / weight
            row, action = divmod(number, actions_of(table))
            row += table.n_tables * table.n_states
            name = _NAME + np.uint64(number)
            learn_target_as(table, row, action, target, min(weight, 1.0), name)
            at = np.uint64(row * table.count_width + table.first_count + action)
            known = np.int64(table.counts[at]) + sums[number, 2 * PARTS]
            table.counts[at] = min(known, np.int64(MOST_VISITS))
        sums[number, :] = 0
