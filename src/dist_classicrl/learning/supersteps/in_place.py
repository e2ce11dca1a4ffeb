"""Supersteps of ranks that share the rows themselves: walkers stay where they are, and targets travel.

Each rank reads any row, and writes those that it owns. All act, simulate and compute their targets from the
rows as they are between two supersteps; then the owner of an entry moves it, in the order of the walkers'
identities. So what is learned is the same as where walkers travel, and no rank has more to do because many of
them are in states that it owns: a target that it takes in costs a small part of a step.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline, natural
from dist_classicrl._random import mix
from dist_classicrl.environments.keyed import as_key
from dist_classicrl.environments.simulate import prefetch_outcome
from dist_classicrl.learning.behavior import choose
from dist_classicrl.learning.loops import TWICE_GAMMA, on_line
from dist_classicrl.learning.rules.kernel import Transition
from dist_classicrl.learning.supersteps.copies import GROUP_BITS, rank_of
from dist_classicrl.learning.supersteps.crew import (
    BEGUN,
    BLOCK,
    COLLECTED,
    ELAPSED_BITS,
    MEMORY,
    MOST_ELAPSED,
    MOVED,
    REWARD,
    WHO,
)
from dist_classicrl.learning.supersteps.kernels import steps_at_once
from dist_classicrl.learning.supersteps.one_walker import (
    FINE,
    WRONG_GAME,
    WRONG_RECORD,
    WRONG_RULE,
    begin_episode,
    come_or_go,
    count_end,
    counter_at,
    draw,
    entry_name,
    find_target,
    gather,
    moment,
    move_entry,
    simulate,
)
from dist_classicrl.learning.supersteps.partition import owner_of, put_state, state_in
from dist_classicrl.learning.supersteps.together import (
    BEGUN_AT,
    CROSSED,
    DONE,
    ENDED_AT,
    LEARNED,
    PHASE,
    REPLIED,
    SEQUENCE,
    SIZE,
    STEPS,
    WAITING,
    are_there,
    cycles,
    tell,
)
from dist_classicrl.tables.lines import prefetch_entry, prefetch_values
from dist_classicrl.tables.rows import actions_of

_DEPARTS, _AWAITS_TARGETS = range(2)

# Words of what is told of a step: the row; the walker, its action, and for which of several tables; the
# target.
ROW, WHAT, TARGET = range(3)
_WHO_BITS, _ACTION_BITS = 32, 8
_NUMBER_MASK, _ACTION_MASK = (1 << _ACTION_BITS) - 1, (1 << (_WHO_BITS - _ACTION_BITS)) - 1
TARGET_WORDS = 3
MOST_TABLES = 1 << _ACTION_BITS

_FIRST_OF_ATTEMPT = 0xFFFFFFFF


@jit_inline
def write_target(told, reals, at, state, identity, action, number, target):
    """Write what is told of a step: `reals` are the same words."""
    told[at, ROW] = state
    told[at, WHAT] = (identity << _WHO_BITS) | (action << _ACTION_BITS) | number
    reals[at, TARGET] = target


@jit_inline
def what_is_told(told, at):
    """Return the walker of a step that was told of, its action, and for which of several tables it is."""
    what = told[at, WHAT]
    return what >> _WHO_BITS, (what >> _ACTION_BITS) & _ACTION_MASK, what & _NUMBER_MASK


@jit
def _begin_own(simulation, partition, crew, stretch, done, size):
    """Begin those of this rank's among the first `size` walkers that have not begun."""
    ranks = crew.n_out.size
    for identity in range(crew.sizes[BEGUN], size):
        if rank_of(identity, ranks) == crew.rank:
            record = crew.records[identity]
            record[:] = 0
            random = mix(~counter_at(stretch, done, identity))
            state, is_state = begin_episode(simulation, crew, record, random)
            if not is_state:
                return WRONG_GAME
            record[WHO] = identity << ELAPSED_BITS
            put_state(partition, crew.records, identity, state, 0)
            come_or_go(crew, identity)
    crew.sizes[BEGUN] = max(crew.sizes[BEGUN], size)
    return FINE


@jit_inline
def _find_owners(partition, crew, first, last):
    for k in range(first, last):
        crew.owners[natural(k - first)] = owner_of(partition, crew.rows[natural(k)])


@jit
def depart_in_place(rule, simulation, partition, crew, context, asking, stretch, done, size):
    """Let this rank's walkers among the first `size` act, and tell the targets to the owners of the entries.

    `done` steps of the stretch have been made. `asking` is the context with an `Outbox`. Return `FINE`, or
    what is wrong.
    """
    table, records, reals = context.table, crew.records, crew.reals
    n_actions = actions_of(table)
    crew.n_out[:] = 0
    if crew.sizes[BEGUN] < size:
        wrong = _begin_own(simulation, partition, crew, stretch, done, size)
        if wrong != FINE:
            return wrong
    n_moving = gather(crew, size)
    crew.sizes[MOVED] = n_moving
    for k in range(min(BLOCK, n_moving)):
        prefetch_values(table, state_in(partition, records, natural(crew.numbers[natural(k)])))
    for first in range(0, n_moving, BLOCK):
        last = min(first + BLOCK, n_moving)
        draw(crew, stretch, done, first, last)
        for i in range(first, last):
            k = natural(i)
            j, identity = natural(k - first), natural(crew.numbers[k])
            state = state_in(partition, records, identity)
            epsilon = on_line(stretch.epsilon, done + identity)
            action = choose(context.behavior, rule, context, state, epsilon, crew.draws[0, j])
            crew.rows[k], crew.actions[k] = state, action
            prefetch_outcome(simulation, as_key(simulation, state), action, crew.draws[1, j], n_actions)
            ahead = natural(crew.numbers[natural(min(k + BLOCK, n_moving - 1))])
            prefetch_values(table, state_in(partition, records, ahead))
        for i in range(first, last):
            k = natural(i)
            j, state, action = natural(k - first), crew.rows[k], crew.actions[k]
            record = records[natural(crew.numbers[k])]
            if not simulate(simulation, crew, j, record, state, action, crew.draws[1, j], n_actions):
                return WRONG_GAME
            # What no rule asks for where an episode has come to its end is the same on all ranks.
            crew.next_rows[j] = state if crew.terminated[j] else crew.next_states[j]
            prefetch_values(table, crew.next_rows[j])
        _find_owners(partition, crew, first, last)
        for i in range(first, last):
            k = natural(i)
            j, identity = natural(k - first), natural(crew.numbers[k])
            state, action = crew.rows[k], crew.actions[k]
            record, real = records[identity], reals[identity]
            at = counter_at(stretch, done, identity)
            reward, terminated, next_row = crew.rewards[j], crew.terminated[j], crew.next_rows[j]
            elapsed = min((record[WHO] & MOST_ELAPSED) + 1, MOST_ELAPSED)
            collected = real[COLLECTED] + reward
            has_ended = terminated or elapsed >= crew.time_limit
            truncated = has_ended and not terminated
            real[REWARD] = reward
            step = Transition(next_row, action, reward, next_row, terminated, truncated, 0)
            now = moment(stretch, done + identity, crew.draws[0, j])
            if not find_target(rule, crew.post.remembered, asking, now, step, record, real, crew.targets, k):
                return WRONG_RULE
            number = np.int64(crew.targets[k, 1]) if crew.targets.shape[1] > 1 else 0
            owner = crew.owners[j]
            place = crew.out_starts[owner] + crew.n_out[owner]
            crew.n_out[owner] += 1
            write_target(crew.out, crew.out_reals, place, state, identity, action, number, crew.targets[k, 0])
            next_state = crew.next_states[j]
            if has_ended:
                count_end(crew, elapsed, collected)
                collected = 0.0
                elapsed = 0
                if truncated:
                    record[MEMORY + crew.memory_size :] = 0
                next_state, is_state = begin_episode(simulation, crew, record, mix(at + TWICE_GAMMA))
                if not is_state:
                    return WRONG_GAME
            record[WHO] = (identity << ELAPSED_BITS) | elapsed
            put_state(partition, records, identity, next_state, 0)
            real[COLLECTED] = collected
    return FINE


@jit
def settle_in_place(crew, boxes, context, stretch, done, size):
    """Move the entries that this rank owns, in the order of the walkers' identities.

    Of what rank r has told there are ``boxes.counts[r]``, in that order. Return `FINE`, or what is wrong.
    """
    table, told, reals = context.table, boxes.records, boxes.reals
    n_actions, counts, cursors = actions_of(table), boxes.counts, boxes.cursors
    cursors[:] = 0
    for group in range((size + (1 << GROUP_BITS) - 1) >> GROUP_BITS):
        rank = group % counts.size
        at, last = natural(boxes.in_starts[rank] + cursors[rank]), boxes.in_starts[rank] + counts[rank]
        while at < last and told[at, WHAT] >> (_WHO_BITS + GROUP_BITS) == group:
            ahead = natural(min(at + BLOCK // 2, last - 1))
            _, action, number = what_is_told(told, ahead)
            prefetch_entry(table, told[ahead, ROW] + number * table.n_states, action)
            state = told[at, ROW]
            identity, action, number = what_is_told(told, at)
            is_entry = np.uint64(state) < np.uint64(crew.n_states) and action < n_actions
            if not (is_entry and number < table.n_tables):
                return WRONG_RECORD
            name = entry_name(state * n_actions + action, number, crew.n_states * n_actions)
            now = moment(stretch, done + identity, np.uint64(0))
            row = state + number * table.n_states
            move_entry(context, now, row, action, reals[at, TARGET], name, crew.errors)
            at = natural(at + 1)
        cursors[rank] = at - boxes.in_starts[rank]
    for rank in range(counts.size):
        if cursors[rank] != counts[rank]:
            return WRONG_RECORD
    return FINE


@jit
def play_in_place(
    rule,
    simulation,
    partition,
    crew,
    boxes,
    context,
    asking,
    stretch,
    start,
    walkers,
    per_walker,
    least,
    looks,
):
    """Do what `dist_classicrl.learning.supersteps.together.play_together` does, with rows that all share.

    Nobody acts before all have settled, and nobody settles before all have told their targets.
    """
    state = boxes.state
    begin = cycles()
    if state[BEGUN_AT] == 0:
        state[BEGUN_AT] = begin
    status = FINE
    while True:
        done = state[DONE]
        if state[PHASE] == _DEPARTS:
            if done >= stretch.steps or done >= least:
                break
            if state[SEQUENCE] & _FIRST_OF_ATTEMPT == 0:  # this rank's rows are there
                tell(crew, boxes, boxes.in_flags, REPLIED)
            if not are_there(crew, boxes, boxes.out_flags, REPLIED, looks):
                status = WAITING
                break
            size = min(steps_at_once(start, stretch.offset + done, walkers, per_walker), stretch.steps - done)
            status = depart_in_place(rule, simulation, partition, crew, context, asking, stretch, done, size)
            if status != FINE:
                break
            state[SIZE] = size
            state[SEQUENCE] += 1
            state[STEPS] += crew.sizes[MOVED]
            for rank in range(crew.n_out.size):
                boxes.flags[boxes.out_flags[rank] + 1] = crew.n_out[rank]
                state[CROSSED] += 3 * crew.n_out[rank] if rank != crew.rank else 0
            tell(crew, boxes, boxes.out_flags, 0)
            state[PHASE] = _AWAITS_TARGETS
        if not are_there(crew, boxes, boxes.in_flags, 0, looks):
            status = WAITING
            break
        for rank in range(boxes.counts.size):
            n = crew.n_out[rank] if rank == crew.rank else boxes.flags[boxes.in_flags[rank] + 1]
            boxes.counts[rank] = min(max(n, 0), walkers)
        status = settle_in_place(crew, boxes, context, stretch, done, state[SIZE])
        if status != FINE:
            break
        tell(crew, boxes, boxes.in_flags, REPLIED)
        state[DONE] = done + state[SIZE]
        state[PHASE] = _DEPARTS
    state[ENDED_AT] = cycles()
    state[LEARNED] += state[ENDED_AT] - begin
    return status
