"""Rows that every rank can read: which states have such, and where a walker can act because of that.

A walker acts where the row of its state can be read: with the owner of the state, or, where all have copies
of its row, wherever it is. See `dist_classicrl.learning.supersteps.by_messages.hot_rows`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, stub
from dist_classicrl._random import mix
from dist_classicrl.learning.supersteps.partition import All, ByKey, class_of, owner_of, row_of
from dist_classicrl.tables.keys import prefetch_slot
from dist_classicrl.tables.lines import prefetch_values

GROUP_BITS = 5
"""So many bits of an identity are passed over: the walkers of a rank are groups that follow each other."""


class Copies(NamedTuple):
    """The states whose rows all ranks can read, in slots that a hash tells. Arrays are written."""

    states: np.ndarray  # int64, shape (a power of two,): -1 where there is none; or none at all
    rows: np.ndarray  # int64: where this rank has the row; its own, if it owns the state
    owners: np.ndarray  # int64: who owns it


def new_copies(slots: int) -> Copies:
    """Return room for fewer than so many states, a power of two; 0: there never are any."""
    return Copies(np.full(slots, -1), np.zeros(slots, np.int64), np.zeros(slots, np.int64))


@jit_inline
def slot_of(copies, state):
    """Return the slot of a state; -1: its row is its owner's alone."""
    if copies.states.size == 0:
        return np.int64(-1)
    mask = np.uint64(copies.states.size - 1)
    at = mix(np.uint64(state)) & mask
    while copies.states[at] != state:
        if copies.states[at] < 0:
            return np.int64(-1)
        at = (at + np.uint64(1)) & mask
    return np.int64(at)


@jit
def fill(copies, states, rows, owners):
    """Let these be the states that all ranks can read."""
    copies.states[:] = -1
    mask = np.uint64(copies.states.size - 1)
    for i in range(states.size):
        at = mix(np.uint64(states[i])) & mask
        while copies.states[at] >= 0:
            at = (at + np.uint64(1)) & mask
        copies.states[at], copies.rows[at], copies.owners[at] = states[i], rows[i], owners[i]


@jit_inline
def rank_of(identity, ranks):
    """Return which of so many ranks moves a walker where each can move any."""
    return (identity >> GROUP_BITS) % ranks


@stub
def begins_at(partition, crew, identity, state):
    """Return the rank at which a walker begins in `state`: so that as many do at each."""


@stub
def goes_to(partition, crew, state):
    """Return the rank at which a walker of this one acts in `state`."""


@stub
def row_here(partition, crew, state):
    """Return the row of a state that `goes_to` lets act here."""


@stub
def row_ahead(partition, crew, table, state):
    """Ask for the row of such a state; return it, or -1 where `find_rows` has to."""


@overloads(begins_at, inline=True)
def _overload_begins_at(partition, crew, identity, state):
    if class_of(partition) in (All, ByKey):
        return lambda partition, crew, identity, state: owner_of(partition, state)

    def impl(partition, crew, identity, state):
        if slot_of(crew.copies, state) >= 0:
            return rank_of(identity, crew.n_out.size)
        return np.int64(owner_of(partition, state))

    return impl


@overloads(goes_to, inline=True)
def _overload_goes_to(partition, crew, state):
    if class_of(partition) in (All, ByKey):
        return lambda partition, crew, state: owner_of(partition, state)

    def impl(partition, crew, state):
        owner = owner_of(partition, state)
        return crew.rank if owner != crew.rank and slot_of(crew.copies, state) >= 0 else owner

    return impl


@overloads(row_here, inline=True)
def _overload_row_here(partition, crew, state):
    if class_of(partition) in (All, ByKey):
        return lambda partition, crew, state: row_of(partition, state)

    def impl(partition, crew, state):
        if crew.copies.states.size > 0 and owner_of(partition, state) != crew.rank:
            return crew.copies.rows[slot_of(crew.copies, state)]
        return np.int64(row_of(partition, state))

    return impl


@overloads(row_ahead, inline=True)
def _overload_row_ahead(partition, crew, table, state):
    def impl(partition, crew, table, state):
        row = row_here(partition, crew, state)
        prefetch_values(table, row)
        return row

    def by_key(partition, crew, table, state):
        prefetch_slot(partition.game.slots, state)
        return np.int64(-1)

    return by_key if class_of(partition) is ByKey else impl
