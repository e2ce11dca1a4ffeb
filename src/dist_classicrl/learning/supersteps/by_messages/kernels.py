"""What a rank does with targets of entries that others own, and with walkers that cannot stay: jitted.

See `dist_classicrl.learning.supersteps.by_messages.hot_rows`.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.learning.supersteps.copies import begins_at, slot_of
from dist_classicrl.learning.supersteps.crew import (
    ASKED,
    BEGUN,
    COLLECTED,
    ELAPSED_BITS,
    MOST_ELAPSED,
    MOVED,
    WHO,
)
from dist_classicrl.learning.supersteps.in_place import (
    ROW,
    TARGET,
    what_is_told,
    write_target,
)
from dist_classicrl.learning.supersteps.kernels import ACTION_MASK, COMES, send
from dist_classicrl.learning.supersteps.one_walker import come_or_go, gather
from dist_classicrl.learning.supersteps.partition import WHERE, state_in


@jit
def set_apart(crew, n_actions, first_copy, kept, entries, asked, told, reals, to):
    """See `HotRows.set_apart`; return how many entries are asked for, and how many targets are known."""
    copies = crew.copies
    n_entries = n_told = n_asked = n = np.int64(0)
    for i in range(crew.sizes[ASKED]):
        k = crew.asked[i, 0]
        slot = slot_of(copies, crew.pairs[k] // n_actions) if crew.rows[k] >= first_copy else -1
        if slot >= 0 and copies.owners[slot] != crew.rank:
            entries[n_entries, 0], entries[n_entries, 1] = crew.asked[i, 2], copies.states[slot]
            asked[n_entries] = crew.asked[i, 1]
            n_entries += 1
            crew.rows[k] = -1
        else:
            for word in range(crew.asked.shape[1]):
                crew.asked[n_asked, word] = crew.asked[i, word]
            n_asked += 1
    for k in range(crew.sizes[MOVED]):
        if crew.rows[k] < 0:
            continue
        slot = slot_of(copies, crew.pairs[k] // n_actions) if crew.rows[k] >= first_copy else -1
        if slot >= 0 and copies.owners[slot] != crew.rank:
            number = np.int64(crew.targets[k, 1]) if crew.targets.shape[1] > 1 else 0
            identity, action, target = crew.numbers[k], crew.actions[k], crew.targets[k, 0]
            write_target(told, reals, n_told, copies.states[slot], identity, action, number, target)
            to[n_told] = copies.owners[slot]
            n_told += 1
        else:
            crew.numbers[n], crew.rows[n], crew.pairs[n] = crew.numbers[k], crew.rows[k], crew.pairs[k]
            crew.actions[n] = crew.actions[k]
            for j in range(crew.targets.shape[1]):
                crew.targets[n, j] = crew.targets[k, j]
            kept[k] = n
            n += 1
    for i in range(n_asked):
        crew.asked[i, 0] = kept[crew.asked[i, 0]]
    crew.sizes[MOVED], crew.sizes[ASKED] = n, n_asked
    return n_entries, n_told


@jit
def tell(copies, inbox, replies, places, states, told, reals, to, n):
    """See `HotRows.tell`: record ``places[i]`` asks for a target of an entry of ``states[i]``.

    `n` targets are there before; return how many are then, -1: one cannot be.
    """
    for i in range(places.size):
        slot = slot_of(copies, states[i])
        if slot < 0 or n == to.size:
            return np.int64(-1)
        record, reply = inbox[places[i]], replies[places[i]]
        action = (record[WHERE] >> 2) & ACTION_MASK
        number = np.int64(reply[1]) if reply.size > 1 else 0
        write_target(told, reals, n, states[i], record[WHO] >> ELAPSED_BITS, action, number, reply[0])
        to[n] = copies.owners[slot]
        n += 1
    return n


@jit
def take_told(crew, n_actions, n_tables, size, told, reals):
    """Put what was told behind what has moved; return how many these are then, -1: one cannot be."""
    copies, n = crew.copies, crew.sizes[MOVED]
    for i in range(told.shape[0]):
        state = told[i, ROW]
        identity, action, number = what_is_told(told, i)
        slot = slot_of(copies, state)
        is_entry = slot >= 0 and action < n_actions and number < n_tables and n < crew.rows.size
        if not (is_entry and copies.owners[slot] == crew.rank and 0 <= identity < size):
            return np.int64(-1)
        crew.numbers[n], crew.rows[n] = identity, copies.rows[slot]
        crew.actions[n], crew.pairs[n] = action, state * n_actions + action
        crew.targets[n, 0] = reals[i, TARGET]
        if crew.targets.shape[1] > 1:
            crew.targets[n, 1] = number
        n += 1
    crew.sizes[MOVED] = n
    return n


@jit
def move_out(partition, crew):
    """Write records of the walkers that are to be elsewhere since other rows are hot than before.

    Those in states of such rows are dealt out by their identities, and others are with the owners.
    """
    crew.n_out[:] = 0
    for k in range(gather(crew, crew.sizes[BEGUN])):
        identity = crew.numbers[k]
        state = state_in(partition, crew.records, identity)
        to = begins_at(partition, crew, identity, state)
        if to != crew.rank:
            record, collected = crew.records[identity], crew.reals[identity, COLLECTED]
            elapsed = record[WHO] & MOST_ELAPSED
            send(partition, crew, record, identity, elapsed, state, COMES, collected, to)
            come_or_go(crew, identity)
