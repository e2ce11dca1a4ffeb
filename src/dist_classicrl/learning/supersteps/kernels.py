"""One rank's part of a superstep, in three passes over its walkers: jitted, over arrays that a `Crew` has.

`depart`: the owner of a walker's state chooses the action and simulates it; the walker goes to the owner of
its next state, who is asked for a target. `answer`: that owner computes the target, by the rule, and keeps
the walker. `settle`: the owner of the entry moves it, in the order of the walkers' identities, once all
targets of the superstep are there. What stays with a rank does not leave it: `depart` answers it at once.

Everything that is drawn is drawn by the global step, which is where the superstep begins and the identity. So
what is learned does not depend on who owns what.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit, jit_inline, natural, overloads, stub
from dist_classicrl._random import mix
from dist_classicrl.environments.keyed import as_key
from dist_classicrl.environments.simulate import prefetch_outcome
from dist_classicrl.environments.state_keys import is_below, numbered, put_state_at, state_at
from dist_classicrl.learning.behavior import choose
from dist_classicrl.learning.loops import TWICE_GAMMA, on_line
from dist_classicrl.learning.rules.kernel import Transition
from dist_classicrl.learning.supersteps.copies import begins_at, goes_to, row_ahead, row_here
from dist_classicrl.learning.supersteps.crew import (
    ACTION_BITS,
    ASKED,
    BEGUN,
    BLOCK,
    COLLECTED,
    ELAPSED_BITS,
    MADE,
    MEMORY,
    MOST_ELAPSED,
    MOVED,
    REWARD,
    WHO,
)
from dist_classicrl.learning.supersteps.letters import (
    NUMBER_BITS,
    TARGET,
    WHOLE_STATE,
    act,
    learn_as_letters,
    lets_wait,
    sort_mail,
)
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
    move_state,
    simulate,
)
from dist_classicrl.learning.supersteps.partition import (
    STATE_SHIFT,
    WHERE,
    find_rows,
    has_room,
    is_over,
    look_for,
    meet,
    n_known,
    put_state,
    row_of,
    state_in,
)
from dist_classicrl.learning.supersteps.shared import learn_there, learns_there, move_numbers
from dist_classicrl.tables.lines import prefetch_counts, prefetch_values
from dist_classicrl.tables.rows import actions_of

ACTION_MASK = (1 << ACTION_BITS) - 1

# What a record asks for: a walker that comes may ask for a target, or only come, and a target may be all.
MOVES, COMES, ASKS = 0, 1, 2


@jit
def steps_at_once(start, used, walkers, per_walker):
    """Return how many walkers move in the superstep that begins `used` steps after global step `start`.

    Each makes a step. They are one for each `per_walker` steps made so far, and one at least: more would
    learn from a table that does not know yet what the first of them found out. As all are powers of two that
    go into `used`, training may be cut at each multiple of the most, and none is cut by that.
    """
    most = max(1, (start + used) // per_walker)
    size = 1
    while size < walkers and 2 * size <= most and used % (2 * size) == 0:
        size *= 2
    return size


@stub
def take_target(rule, partition, crew, asking, now, identity, elapsed, step, record, reals, targets, at):
    """Learn a step, the `elapsed`-th of its episode, as a row of `targets` or letters; see `find_target`."""


@overloads(take_target, inline=True)
def _overload_take_target(
    rule, partition, crew, asking, now, identity, elapsed, step, record, reals, targets, at
):
    def impl(rule, partition, crew, asking, now, identity, elapsed, step, record, reals, targets, at):
        return find_target(rule, crew.post.remembered, asking, now, step, record, reals, targets, at)

    def by_letters(rule, partition, crew, asking, now, identity, elapsed, step, record, reals, targets, at):
        return learn_as_letters(
            rule, partition, crew.post, asking, now, identity, elapsed, step, record, reals
        )

    return by_letters if lets_wait(rule) else impl


@jit_inline
def send(partition, crew, record, identity, elapsed, state, low, collected, to):
    """Copy a record to those for rank `to`; return its place among them."""
    number = crew.n_out[to]
    crew.n_out[to] = number + 1
    at = crew.out_starts[to] + number
    sent = crew.out[at]
    for word in range(MEMORY, record.size):
        sent[word] = record[word]
    sent[WHO] = (identity << ELAPSED_BITS) | elapsed
    put_state(partition, crew.out, at, state, low)
    sent[REWARD] = record[REWARD]
    crew.out_reals[at, COLLECTED] = collected
    return number


@jit_inline
def _ask(crew, k, rank, place):
    """Take note that the target of the k-th that moves is asked for."""
    asked = crew.asked[crew.sizes[ASKED]]
    asked[0], asked[1], asked[2] = k, rank, place
    crew.sizes[ASKED] += 1


@jit
def _begin_walkers(simulation, partition, crew, stretch, done, size):
    """Begin those of the first `size` walkers that have not begun; all ranks do, and keep their own."""
    for identity in range(crew.sizes[BEGUN], size):
        record = crew.records[identity]
        record[:] = 0
        state, is_state = begin_episode(simulation, crew, record, mix(~counter_at(stretch, done, identity)))
        if not is_state:
            return WRONG_GAME
        if begins_at(partition, crew, identity, state) == crew.rank:
            record[WHO] = identity << ELAPSED_BITS
            put_state(partition, crew.records, identity, state, 0)
            come_or_go(crew, identity)
    crew.sizes[BEGUN] = max(crew.sizes[BEGUN], size)
    return FINE


@jit_inline
def _find_walkers(partition, crew, table, first, last):
    """Find the rows of some walkers and ask for them."""
    for i in range(first, last):
        k = natural(i)
        look_for(
            partition, crew.records, natural(crew.numbers[natural(min(k + BLOCK, crew.sizes[MOVED] - 1))])
        )
        row = row_here(partition, crew, state_in(partition, crew.records, natural(crew.numbers[k])))
        crew.rows[k] = row
        prefetch_values(table, row)


@jit
def depart(rule, simulation, partition, crew, context, asking, stretch, done, size):
    """Let the walkers of the first `size` identities act: `done` steps of the stretch have been made.

    `asking` is the context with an `Outbox`. Return `FINE`, or what is wrong.
    """
    table, records, reals = context.table, crew.records, crew.reals
    n_actions = actions_of(table)
    crew.n_out[:] = 0
    crew.post.n[0] = 0
    if crew.sizes[BEGUN] < size:
        wrong = _begin_walkers(simulation, partition, crew, stretch, done, size)
        if wrong != FINE:
            return wrong
    n_moving = gather(crew, size)
    crew.sizes[MOVED], crew.sizes[ASKED] = n_moving, 0
    _find_walkers(partition, crew, table, np.int64(0), min(BLOCK, n_moving))
    for first in range(0, n_moving, BLOCK):
        last = min(first + BLOCK, n_moving)
        draw(crew, stretch, done, first, last)
        for i in range(first, last):
            k = natural(i)
            j, identity = natural(k - first), natural(crew.numbers[k])
            state = state_in(partition, records, identity)
            random = crew.draws[0, j]
            epsilon = on_line(stretch.epsilon, done + identity)
            action = choose(context.behavior, rule, context, crew.rows[k], epsilon, random)
            crew.actions[k] = action
            crew.pairs[k] = numbered(state) * n_actions + action
            record, elapsed = records[identity], records[identity, WHO] & MOST_ELAPSED
            now = moment(stretch, done + identity, random)
            if not act(
                rule,
                partition,
                crew.post,
                asking,
                now,
                identity,
                crew.rows[k],
                action,
                state,
                elapsed,
                record,
                reals[identity],
            ):
                return WRONG_RULE
            prefetch_outcome(simulation, as_key(simulation, state), action, crew.draws[1, j], n_actions)
        _find_walkers(partition, crew, table, last, min(last + BLOCK, n_moving))
        n_here = np.int64(0)
        for i in range(first, last):
            k = natural(i)
            j, identity, action = natural(k - first), natural(crew.numbers[k]), crew.actions[k]
            record, state = records[identity], state_in(partition, records, identity)
            if not simulate(simulation, crew, j, record, state, action, crew.draws[1, j], n_actions):
                return WRONG_GAME
            reached = state_at(crew.next_states, j)
            owner = crew.rank if crew.terminated[j] else goes_to(partition, crew, reached)
            crew.owners[j] = owner
            # No branch, which nobody could foresee: from both ends.
            crew.order[natural(n_here)] = crew.order[natural(BLOCK - 1 - j + n_here)] = j
            n_here += owner == crew.rank
        for i in range(n_here):
            j = natural(crew.order[natural(i)])
            # What no rule asks for where an episode has come to its end is the same on all ranks.
            row = crew.rows[natural(first + j)]
            if not crew.terminated[j]:
                row = row_ahead(partition, crew, table, state_at(crew.next_states, j))
            crew.next_rows[j] = row
        find_rows(partition, table, crew.next_states, crew.next_rows, crew.order, n_here)
        for i in range(last - first):
            j = natural(crew.order[natural(i if i < n_here else BLOCK - (last - first) + i)])
            k = natural(first + j)
            identity = natural(crew.numbers[k])
            record, real = records[identity], reals[identity]
            elapsed = record[WHO] & MOST_ELAPSED
            at = counter_at(stretch, done, identity)
            action, next_state = crew.actions[k], state_at(crew.next_states, j)
            reward, terminated, owner = crew.rewards[j], crew.terminated[j], crew.owners[j]
            elapsed = min(elapsed + 1, MOST_ELAPSED)
            collected = real[COLLECTED] + reward
            has_ended = terminated or elapsed >= crew.time_limit
            truncated = has_ended and not terminated
            real[REWARD] = reward
            if i < n_here:
                row = crew.next_rows[j]
                step = Transition(row, action, reward, row, terminated, truncated, 0)
                now = moment(stretch, done + identity, crew.draws[0, j])
                if not take_target(
                    rule,
                    partition,
                    crew,
                    asking,
                    now,
                    identity,
                    elapsed,
                    step,
                    record,
                    real,
                    crew.targets,
                    k,
                ):
                    return WRONG_RULE
            if has_ended:
                if owner != crew.rank:
                    low = (action << 2) | ASKS
                    place = send(partition, crew, record, identity, elapsed, next_state, low, 0.0, owner)
                    _ask(crew, k, owner, place)
                count_end(crew, elapsed, collected)
                collected = 0.0
                elapsed = 0
                if truncated:
                    record[MEMORY + crew.memory_size :] = 0
                next_state, is_state = begin_episode(simulation, crew, record, mix(at + TWICE_GAMMA))
                if not is_state:
                    return WRONG_GAME
                to = begins_at(partition, crew, identity, next_state)
                asks = COMES
            else:
                to = owner
                asks = MOVES
            if to == crew.rank:
                if has_ended:
                    meet(partition, next_state)
                record[WHO] = (identity << ELAPSED_BITS) | elapsed
                put_state(partition, records, identity, next_state, 0)
                real[COLLECTED] = collected
            else:
                low = (action << 2) | asks
                place = send(partition, crew, record, identity, elapsed, next_state, low, collected, to)
                come_or_go(crew, identity)
                if asks == MOVES:
                    _ask(crew, k, to, place)
    return FINE


@jit
def answer(rule, partition, crew, asking, stretch, done, inbox, inbox_reals, starts, counts, replies):
    """Compute the targets that others ask for, a row of `replies` for each record, and take in who comes.

    The records of rank r are `counts[r]` from ``starts[r]`` on. Where steps wait there are letters instead of
    replies.
    """
    table = asking.table
    for rank in range(starts.size):
        for first in range(starts[rank], starts[rank] + counts[rank], BLOCK):
            last = min(first + BLOCK, starts[rank] + counts[rank])
            for i in range(first, last):
                state, identity = state_in(partition, inbox, i), inbox[i, WHO] >> ELAPSED_BITS
                is_state = is_below(state, crew.n_states)
                is_state = is_state and goes_to(partition, crew, state) == crew.rank
                is_action = (inbox[i, WHERE] >> 2) & ACTION_MASK < table.n_actions
                if not (is_state and is_action and 0 <= identity < crew.rows.size):
                    return WRONG_RECORD
                j = i - first
                crew.order[j] = j
                put_state_at(crew.next_states, j, state)
                crew.next_rows[j] = row_ahead(partition, crew, table, state)
            find_rows(partition, table, crew.next_states, crew.next_rows, crew.order, last - first)
            for i in range(first, last):
                where = inbox[i, WHERE]
                asks = where & 3
                identity = inbox[i, WHO] >> ELAPSED_BITS
                if asks == COMES:
                    _take_in(crew, inbox, i, identity)
                    continue
                row = crew.next_rows[i - first]
                action = (where >> 2) & ACTION_MASK
                step = Transition(row, action, inbox_reals[i, REWARD], row, False, asks == ASKS, 0)
                now = moment(stretch, done + identity, mix(counter_at(stretch, done, identity)))
                elapsed = inbox[i, WHO] & MOST_ELAPSED
                if not take_target(
                    rule,
                    partition,
                    crew,
                    asking,
                    now,
                    identity,
                    elapsed,
                    step,
                    inbox[i],
                    inbox_reals[i],
                    replies,
                    i,
                ):
                    return WRONG_RULE
                if asks == MOVES:
                    _take_in(crew, inbox, i, identity)
    return FINE


@jit_inline
def _take_in(crew, inbox, i, identity):
    """Let the walker of a record be here."""
    for word in range(inbox.shape[1]):
        crew.records[identity, word] = inbox[i, word]
    crew.records[identity, WHERE] = (inbox[i, WHERE] >> STATE_SHIFT) << STATE_SHIFT
    crew.here[np.uint64(identity >> 6)] |= np.int64(1) << (identity & 63)


@jit
def settle(crew, context, stretch, done, replies, starts):
    """Move the entries of all that moved towards their targets.

    `replies` are those to what was sent, those to rank r's from ``starts[r]`` on.
    """
    table = context.table
    n_actions = actions_of(table)
    n_moved = crew.sizes[MOVED]
    take_replies(crew, replies, starts)
    for i in range(n_moved):
        k, ahead = natural(i), natural(min(i + BLOCK // 2, n_moved - 1))
        prefetch_values(table, crew.rows[ahead])
        prefetch_counts(table, crew.rows[ahead], crew.actions[ahead])
        number = np.int64(crew.targets[k, 1]) if crew.targets.shape[1] > 1 else 0
        name = entry_name(crew.pairs[k], number, crew.n_states * n_actions)
        row = crew.rows[k] + number * table.n_states
        now = moment(stretch, done + crew.numbers[k], np.uint64(0))
        move_entry(context, now, row, crew.actions[k], crew.targets[k, 0], name, crew.errors)


@jit
def take_replies(crew, replies, starts):
    """Take the targets that were asked for."""
    for i in range(crew.sizes[ASKED]):
        asked = crew.asked[i]
        for j in range(crew.targets.shape[1]):
            crew.targets[asked[0], j] = replies[starts[asked[1]] + asked[2], j]


@jit
def settle_there(rule, crew, context, stretch, done, replies, starts):
    """Do what `settle` does by a rule that has `on_target`: `context` has a `Summed` table.

    The moment is the one that `learn` saw, with the same random numbers.
    """
    take_replies(crew, replies, starts)
    for k in range(crew.sizes[MOVED]):
        identity = crew.numbers[k]
        now = moment(stretch, done + identity, mix(counter_at(stretch, done, identity)))
        row, action, name = crew.rows[k], crew.actions[k], np.uint64(crew.pairs[k])
        learn_there(rule, context, now, row, action, crew.targets[k, 0], name, crew.errors)


@jit
def read_letters(partition, crew, context, stretch, done, size, inbox, starts, counts):
    """Move the entries that letters are about towards their targets, where `size` walkers moved.

    Those of rank r's are ``counts[r]`` from ``starts[r]`` on. Return `FINE`, or what is wrong.
    """
    n_actions, mail, reals = actions_of(context.table), crew.post.mail, crew.post.mail_reals
    n = sort_mail(partition, crew, n_actions, size, inbox, starts, counts)
    if n < 0:
        return WRONG_RECORD
    for i in range(n):
        state, where = state_in(partition, mail, i), mail[i, WHERE]
        row, target, first = row_of(partition, state), reals[i, TARGET], numbered(state) * n_actions
        now = moment(stretch, done + (mail[i, WHO] >> NUMBER_BITS), np.uint64(0))
        if where & 3 == WHOLE_STATE:
            move_state(context, now, row, target, first, crew.errors)
        else:
            action = (where >> 2) & ACTION_MASK
            move_entry(context, now, row, action, target, np.uint64(first + action), crew.errors)
    return FINE


@stub
def _settle_alone(rule, partition, crew, context, stretch, done, size):
    """Learn from what this rank alone has found out; return `FINE`, or what is wrong."""


@overloads(_settle_alone, inline=True)
def _overload_settle_alone(rule, partition, crew, context, stretch, done, size):
    def impl(rule, partition, crew, context, stretch, done, size):
        settle(crew, context, stretch, done, crew.targets, crew.n_out)
        return FINE

    def from_letters(rule, partition, crew, context, stretch, done, size):
        letters, nobody = crew.post.letters, crew.n_out
        return read_letters(partition, crew, context, stretch, done, size, letters, nobody, nobody)

    def with_shared(rule, partition, crew, context, stretch, done, size):
        settle_there(rule, crew, context, stretch, done, crew.targets, crew.n_out)
        move_numbers(context.table, context.table.sums)
        return FINE

    if learns_there(rule):
        return with_shared
    return from_letters if lets_wait(rule) else impl


@jit
def learn_alone(
    rule, simulation, partition, crew, context, asking, stretch, start, walkers, per_walker, least
):
    """Make supersteps of a stretch, at least so many steps, where one rank owns everything: nothing is sent.

    `start` is the global step at which the stream of the stretch began. `crew.sizes` says how many were made.
    """
    done = np.int64(0)  # for 0 itself numba would compile all of this once more
    crew.sizes[MADE] = 0
    while done < stretch.steps and done < least and has_room(partition, walkers):
        size = min(steps_at_once(start, stretch.offset + done, walkers, per_walker), stretch.steps - done)
        wrong = depart(rule, simulation, partition, crew, context, asking, stretch, done, size)
        if wrong != FINE:
            return wrong
        wrong = _settle_alone(rule, partition, crew, context, stretch, done, size)
        if wrong != FINE:
            return wrong
        done += size
        crew.sizes[MADE] = done
        if is_over(partition, n_known(partition)):
            break
    return FINE
