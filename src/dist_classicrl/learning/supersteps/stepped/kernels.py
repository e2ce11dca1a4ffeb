"""What owners of rows do for environments that are stepped elsewhere: jitted, over the records of all ranks.

An environment stays with the rank that steps it. That rank *asks* the owner of its state for an action, then
*questions* the owner of the state that the step led to for a target, and tells the target with its next
asking to the owner of the entry, who moves it before anybody chooses again.

What is drawn, and in which order entries are moved, is as in `dist_classicrl.learning.supersteps.kernels`:
where environments do the same in both, so do the tables, to the bit.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, stub
from dist_classicrl._random import mix
from dist_classicrl.learning.behavior import choose, choose_masked
from dist_classicrl.learning.loops import on_line
from dist_classicrl.learning.rules.kernel import Learned, Transition, learn, on_action
from dist_classicrl.learning.supersteps.crew import MEMORY, REWARD
from dist_classicrl.learning.supersteps.letters import keep, lets_wait, recall
from dist_classicrl.learning.supersteps.one_walker import (
    FINE,
    WRONG_RECORD,
    WRONG_RULE,
    counter_at,
    entry_name,
    find_target,
    moment,
    move_entry,
    move_state,
)
from dist_classicrl.learning.supersteps.partition import owner_of, row_of
from dist_classicrl.learning.supersteps.sums import add_exactly
from dist_classicrl.tables.rows import actions_of

# Words of what is asked: who, in which state, and `CHOOSES` with a bit for each legal action, or else the
# entry to be moved among those of the state, and its target.
WHO, STATE, ENTRY, DATA = range(4)
CHOOSES = -1

# Words of a question, which has the reward where any record has it: the legal actions of the next state
# follow, then what the rule remembers.
# Of a rule that lets steps wait it is the last word but one, which is the place of the step.
WHAT = 3
TERMINATED, TRUNCATED, ACTION_SHIFT = 1, 2, 2


@jit_inline
def _is_here(partition, rank, n_states, walkers, record):
    """Return whether a record is of an environment of the run, and for this rank."""
    is_walker = np.uint64(record[WHO]) < np.uint64(walkers)
    is_state = np.uint64(record[STATE]) <= np.uint64(n_states - 1)
    return is_walker and is_state and owner_of(partition, record[STATE]) == rank


@jit_inline
def _allow(record, first, allowed):
    """Unpack the legal actions of a record; return whether all are."""
    n_legal = 0
    for action in range(allowed.shape[1]):
        is_legal = (record[first + (action >> 6)] >> (action & 63)) & 1 == 1
        allowed[0, action] = is_legal
        n_legal += is_legal
    return n_legal == allowed.shape[1]


# A row of letters: how many, then of each the place and the action in one, and the target.


@jit_inline
def _write_letters(table, letters, reals):
    """Write what a rule has updated into a row of letters; return whether that can be."""
    if table.n[0] > table.places.size:
        return False
    letters[:] = 0
    letters[0] = table.n[0]
    for i in range(table.n[0]):
        place, action = table.places[i], table.actions[i]
        if not (0 <= place < table.waits and 0 <= action <= table.n_actions):
            return False
        letters[1 + 2 * i] = place * (table.n_actions + 1) + action
        reals[2 + 2 * i] = table.targets[i]
    return True


@stub
def act(rule, asking, now, row, action, first, record, reals, letters, letter_reals):
    """Learn what waited for an action, as a row of letters; return whether that can be."""


@overloads(act, inline=True)
def _overload_act(rule, asking, now, row, action, first, record, reals, letters, letter_reals):
    def impl(rule, asking, now, row, action, first, record, reals, letters, letter_reals):
        return True

    def by_letters(rule, asking, now, row, action, first, record, reals, letters, letter_reals):
        asking.table.n[0] = 0
        recall(asking, first, record, reals)
        on_action(rule, asking, now, row, action, Learned(0, 0.0))
        keep(asking, first, record, reals)
        return _write_letters(asking.table, letters, letter_reals)

    return by_letters if lets_wait(rule) else impl


@stub
def take_target(rule, first, asking, now, step, record, reals, targets, letters, at):
    """Learn a step as a row of `targets`, or as letters there; see `find_target`."""


@overloads(take_target, inline=True)
def _overload_take_target(rule, first, asking, now, step, record, reals, targets, letters, at):
    def impl(rule, first, asking, now, step, record, reals, targets, letters, at):
        return find_target(rule, first, asking, now, step, record, reals, targets, at)

    def by_letters(rule, first, asking, now, step, record, reals, targets, letters, at):
        place = record[record.size - 1]
        asking.table.n[0] = 0
        recall(asking, first, record, reals)
        here = Transition(
            place, step.action, step.reward, step.next_state, step.terminated, step.truncated, 0
        )
        learn(rule, asking, now, here, Learned(0, 0.0))
        keep(asking, first, record, reals)
        return _write_letters(asking.table, letters[at], targets[at])

    return by_letters if lets_wait(rule) else impl


@jit
def choose_for(
    rule, partition, context, asking, place, stretch, done, records, reals, remembered, chosen, chosen_reals
):
    """Choose the actions that are asked for, by the table of this rank, into the first column of `chosen`.

    `place` are rank, states, and environments of the run. Letters follow, where there are any, by what stands
    in the records from word `remembered` on. Return `FINE`, or what is wrong.
    """
    allowed = asking.masks
    rank, n_states, walkers = place
    for i in range(records.shape[0]):
        record = records[i]
        if not _is_here(partition, rank, n_states, walkers, record):
            return WRONG_RECORD
        row, identity = row_of(partition, record[STATE]), record[WHO]
        random = mix(counter_at(stretch, done, identity))
        epsilon = on_line(stretch.epsilon, done + identity)
        if _allow(record, DATA, allowed):
            action = choose(context.behavior, rule, context, row, epsilon, random)
        else:
            action = choose_masked(context.behavior, rule, context, row, allowed, 0, epsilon, random)
        chosen[i, 0] = action
        now, letters = moment(stretch, done + identity, random), chosen[i, 1:]
        if not act(
            rule, asking, now, row, action, remembered, record, reals[i], letters, chosen_reals[i, 1:]
        ):
            return WRONG_RULE
    return FINE


@jit
def answer_for(rule, partition, asking, place, stretch, done, records, reals, remembered, targets, letters):
    """Compute the targets that are asked for, a row of `targets` each; `asking` has masks for one state.

    `letters` is another view of them.

    What the rule remembers is in the records from word `remembered` on, and written there.
    """
    rank, n_states, walkers = place
    for i in range(records.shape[0]):
        record = records[i]
        if not _is_here(partition, rank, n_states, walkers, record):
            return WRONG_RECORD
        _allow(record, MEMORY, asking.masks)
        what, row = record[WHAT], row_of(partition, record[STATE])
        if np.uint64(what >> ACTION_SHIFT) >= np.uint64(asking.table.n_actions):
            return WRONG_RECORD
        is_over, is_cut = what & TERMINATED != 0, what & TRUNCATED != 0
        step = Transition(row, what >> ACTION_SHIFT, reals[i, REWARD], row, is_over, is_cut, 0)
        number = done + record[WHO]
        now = moment(stretch, number, mix(counter_at(stretch, done, record[WHO])))
        if not take_target(rule, remembered, asking, now, step, record, reals[i], targets, letters, i):
            return WRONG_RULE
    return FINE


@jit
def settle_for(partition, context, place, stretch, done, records, reals, errors, has_states):
    """Move the entries of the records, which are in the order of identities, towards their targets.

    `has_states`: the number of actions stands for all that are legal in the state.
    """
    table = context.table
    rank, n_states, walkers = place
    n_actions = actions_of(table)
    for i in range(records.shape[0]):
        record = records[i]
        is_entry = np.uint64(record[ENTRY]) < np.uint64(n_actions * table.n_tables + has_states)
        if not (is_entry and _is_here(partition, rank, n_states, walkers, record)):
            return WRONG_RECORD
        now = moment(stretch, done + record[WHO], np.uint64(0))
        if has_states and record[ENTRY] == n_actions:
            first = record[STATE] * n_actions
            move_state(context, now, row_of(partition, record[STATE]), reals[i, DATA], first, errors)
            continue
        number, action = divmod(record[ENTRY], n_actions)
        row = row_of(partition, record[STATE]) + number * table.n_states
        name = entry_name(record[STATE] * n_actions + action, number, n_states * n_actions)
        move_entry(context, now, row, action, reals[i, DATA], name, errors)
    return FINE


@jit
def add_all(parts, values, infinite):
    """Add `values` exactly to `parts`; one that is no finite number is put into `infinite`."""
    for value in values:
        if abs(value) < np.inf:
            add_exactly(parts, value)
        else:
            infinite[0] = value
