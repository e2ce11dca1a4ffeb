"""What the loops of walkers see of a game whose states are keys: rows of a table that grows.

A state is its row, as in any other game, and a walker's key stands behind what the game keeps in its memory.
What a step gives is a key; its slot is asked for, and while that comes the other walkers make their steps. A
key of 128 bits is put into that memory at once, and what the step gives to the loop says nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from dist_classicrl._jit import jit, jit_inline, overloads, stub
from dist_classicrl.environments.keyed import as_key, may_play
from dist_classicrl.environments.simulate import advance, begin, is_wrong, note, prefetch_outcome
from dist_classicrl.environments.state_keys import (
    has_pairs,
    held,
    n_states_in,
    pair_in,
    put_state_at,
    put_words,
    state_at,
)
from dist_classicrl.tables.keys import enter, fits, prefetch_slot, row_at, slot_of
from dist_classicrl.tables.lines import LineArrays, prefetch_values

ROWS, LIMIT, IS_FULL, STUCK, LENDS = range(5)
"""What `KeyedGame.known` counts: rows that are taken, and how many there may be; whether a state came beyond
that; rows of states without a legal action; whether a state that is not known gets a row behind the last."""


class KeyedGame(NamedTuple):
    """A game, and the table in which its keys have rows.

    Attributes
    ----------
    data : NamedTuple
        The game's.
    slots : ndarray(int64 or uint64)
        As `dist_classicrl.tables.keys` describes them.
    keys : ndarray(int64), shape (limit + 1,), or ndarray(uint64), shape (2 * (limit + 1),)
        Of each row.
    known : ndarray(int64), shape (5,)
    table : LineArrays
    """

    data: Any
    slots: np.ndarray
    keys: np.ndarray
    known: np.ndarray
    table: LineArrays


def _is_keyed(simulation: Any) -> bool:
    return getattr(simulation, "instance_class", None) is KeyedGame


def has_wide_keys(simulation: Any) -> bool:
    """Return whether a `KeyedGame`, by its numba type, has keys of 128 bits; of other games it is False."""
    return _is_keyed(simulation) and has_pairs(simulation.types[KeyedGame._fields.index("keys")])


@jit_inline
def _pair_behind(memory):
    return pair_in(memory, memory.size - 2)


# What the loops ask of any game; other games have rows as states, and need nothing.


@stub
def prefetch_next(simulation, table, state):
    """Ask for what is known of the state that a step gave."""


@stub
def number_states(simulation, walkers, first, last):
    """Let the next states of these walkers be rows; return whether there is room."""


@stub
def row_of(simulation, memory, state):
    """Return the row of the state that a step gave, or -1 where there is no room.

    `memory` is that of the walker.
    """


@stub
def row_for(simulation, key):
    """Return the row of a key, a new one where it is not known, or -1 where there is no room."""


@stub
def has_rows(simulation, n):
    """Return whether so many keys more have room."""


@stub
def has_room(simulation, walkers):
    """Return whether all walkers may make a step."""


@stub
def name_of(simulation, row):
    """Return what the game calls the state of a row."""


@overloads(prefetch_next, inline=True)
def _overload_prefetch_next(simulation, table, state):
    if has_wide_keys(simulation):
        return lambda simulation, table, state: None  # `advance` has asked for it
    if _is_keyed(simulation):
        return lambda simulation, table, state: prefetch_slot(simulation.slots, state)
    return lambda simulation, table, state: prefetch_values(table, state)


@stub
def _key_of(simulation, memory, state):
    """Return the key that a step gave."""


@overloads(_key_of, inline=True)
def _overload_key_of(simulation, memory, state):
    if has_wide_keys(simulation):
        return lambda simulation, memory, state: _pair_behind(memory)
    return lambda simulation, memory, state: state


@overloads(number_states, inline=True)
def _overload_number_states(simulation, walkers, first, last):
    if not _is_keyed(simulation):
        return lambda simulation, walkers, first, last: True

    def impl(simulation, walkers, first, last):
        for k in range(first, last):
            if walkers.terminated[k]:
                # Nobody acts there now. Where that is never done, the row behind all others stands for it.
                at = slot_of(simulation.slots, _key_of(simulation, walkers.memory[k], walkers.next_states[k]))
                known = row_at(simulation.slots, at)
                walkers.next_states[k] = known if known >= 0 else simulation.table.n_states - 1
                continue
            row = row_of(simulation, walkers.memory[k], walkers.next_states[k])
            if row < 0:
                return False
            walkers.next_states[k] = row
            prefetch_values(simulation.table, row)
        return True

    return impl


@overloads(row_of, inline=True)
def _overload_row_of(simulation, memory, state):
    if not _is_keyed(simulation):
        return lambda simulation, memory, state: state

    def impl(simulation, memory, state):
        memory[memory.size - 1] = state
        return row_for(simulation, state)

    def by_pair(simulation, memory, state):
        return row_for(simulation, _pair_behind(memory))

    return by_pair if has_wide_keys(simulation) else impl


@overloads(row_for, inline=True)
def _overload_row_for(simulation, key):
    def impl(simulation, key):
        at = slot_of(simulation.slots, key)
        row = row_at(simulation.slots, at)
        return row if row >= 0 else _new_row(simulation, at, key)

    return impl


@overloads(has_rows, inline=True)
def _overload_has_rows(simulation, n):
    def impl(simulation, n):
        wanted = simulation.known[ROWS] + n
        return fits(simulation.slots, wanted) and wanted <= simulation.known[LIMIT]

    return impl


@overloads(has_room, inline=True)
def _overload_has_room(simulation, walkers):
    if not _is_keyed(simulation):
        return lambda simulation, walkers: True
    # A turn meets so many new states at most: where first episodes begin, where steps lead, and others begin.
    return lambda simulation, walkers: fits(
        simulation.slots, simulation.known[ROWS] + 3 * walkers.states.size
    )


@overloads(name_of, inline=True)
def _overload_name_of(simulation, row):
    if _is_keyed(simulation):
        return lambda simulation, row: state_at(simulation.keys, row)
    return lambda simulation, row: row


@stub
def _new_row(simulation, at, key):
    """Give a key that is not known a row, or return -1 where there is no room."""


@overloads(_new_row)
def _overload_new_row(simulation, at, key):
    def impl(simulation, at, key):
        known = simulation.known
        row = known[ROWS]
        if row == known[LIMIT] and known[LENDS]:
            put_state_at(simulation.keys, row, key)
            _forbid(simulation, row, key)
            return row
        if row == known[LIMIT]:
            known[IS_FULL] = 1
            return np.int64(-1)
        enter(simulation.slots, at, key, row)
        put_state_at(simulation.keys, row, key)
        known[ROWS] = row + 1
        known[STUCK] += _forbid(simulation, row, key)
        return row

    return impl


@stub
def _forbid(simulation, row, key):
    """Write what is legal in a state into its rows; return whether nothing is."""


@overloads(_forbid)
def _overload_forbid(simulation, row, key):
    table = simulation.types[KeyedGame._fields.index("table")]
    if table.types[LineArrays._fields.index("legal")] == types.none:
        return lambda simulation, row, key: 0

    def impl(simulation, row, key):
        table = simulation.table
        number, legal = table.legal
        first, found = row * table.n_actions, 0
        for action in range(table.n_actions):
            is_legal = may_play(simulation.data, key, action)
            if is_legal:
                legal[first + found] = action
                found += 1
            for t in range(table.n_tables):
                at = (row + t * table.n_states) * table.width + action
                table.values[at] = 0.0 if is_legal else -np.inf
        number[row] = found
        return 1 if found == 0 else 0

    return impl


# What a simulation is asked


@overloads(begin)
def _overload_begin(simulation, memory, random):
    if not _is_keyed(simulation):
        return None

    def impl(simulation, memory, random):
        key = np.int64(begin(simulation.data, memory[:-1], random))
        return row_of(simulation, memory, key)

    def by_pair(simulation, memory, random):
        key = held(begin(simulation.data, memory[:-2], random))
        put_words(memory, memory.size - 2, key)
        return row_for(simulation, key)

    return by_pair if has_wide_keys(simulation) else impl


@overloads(advance)
def _overload_advance(simulation, memory, state, action, random, n_actions):
    if not _is_keyed(simulation):
        return None

    def impl(simulation, memory, state, action, random, n_actions):
        data = simulation.data
        key, reward, terminated = advance(
            data, memory[:-1], as_key(data, memory[memory.size - 1]), action, random, n_actions
        )
        return np.int64(key), reward, terminated

    def by_pair(simulation, memory, state, action, random, n_actions):
        data, before = simulation.data, _pair_behind(memory)
        given, reward, terminated = advance(data, memory[:-2], before, action, random, n_actions)
        key = held(given)
        put_words(memory, memory.size - 2, key)
        prefetch_slot(simulation.slots, key)
        return np.int64(0), reward, terminated

    return by_pair if has_wide_keys(simulation) else impl


@overloads(is_wrong, inline=True)
def _overload_is_wrong(simulation, state, reward, n_states):
    if not _is_keyed(simulation):
        return None
    return lambda simulation, state, reward, n_states: not (abs(reward) < np.inf)


@overloads(note, inline=True)
def _overload_note(simulation, came, state, action):
    if not _is_keyed(simulation):
        return None

    def impl(simulation, came, state, action):
        note(simulation.data, came, name_of(simulation, max(state, 0)), action)

    return impl


@overloads(prefetch_outcome, inline=True)
def _overload_prefetch_outcome(simulation, state, action, random, n_actions):
    if not _is_keyed(simulation):
        return None
    return lambda simulation, state, action, random, n_actions: None


# The whole table at once


@jit
def enter_keys(simulation, keys):
    """Give `keys`, as `as_words` gives them, rows in their order; return the first that comes twice, or -1.

    There is room.
    """
    for i in range(n_states_in(keys)):
        key = state_at(keys, i)
        at = slot_of(simulation.slots, key)
        if row_at(simulation.slots, at) >= 0:
            return i
        _new_row(simulation, at, key)
    return -1
