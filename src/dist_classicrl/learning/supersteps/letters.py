"""Targets of steps that wait, in supersteps: they go to the owners of the entries as letters.

A rule that lets steps wait (`dist_classicrl.rules.LearningRule.waits`) learns an entry when its target is
known, which is some steps later, in a state that somebody else may own. A walker carries the states of its
last steps along, each at the place of its step: the steps of the episode before it, modulo so many as may
wait. What the rule updates is written as a letter to the owner of that state. Letters of a superstep are read
when all of them are there, in the order of the walkers' identities, and of each in the order in which its
rule wrote them: first what waited for the action, then what the step led to.

Which code is called is picked by the rule: for others what is here costs nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, stub
from dist_classicrl._memory import zeros
from dist_classicrl.environments.state_keys import is_below
from dist_classicrl.learning.rules.kernel import Learned, Transition, learn, on_action, rule_of_type
from dist_classicrl.learning.supersteps.partition import (
    STATE_SHIFT,
    WHERE,
    owner_of,
    put_state,
    put_waiting,
    state_in,
    waiting_state,
)

# Words of a letter: the walker's identity, and which of its letters it is; the action, and the state as in
# any record, see `put_state`; the target. A state that is a key is the last word of all, or the last two.
WHO, TARGET = 0, 2
LETTER_WORDS = 3
NUMBER_BITS = 40
WHOLE_STATE = 1  # in `WHERE`, below the action: a letter to all actions of the state

_LEARNED = 1 << 32  # what the step led to comes after what waited for the action


class Post(NamedTuple):
    """The letters that a rank writes in a superstep, and all that it reads. Arrays are written.

    A rule without such has none, and room for none.
    """

    waits: int
    remembered: int  # word of a record where what the rule remembers begins
    places: int  # where the states of the last steps begin
    letters: np.ndarray  # int64, shape (most, words)
    reals: np.ndarray  # float64: another view of them
    owners: np.ndarray  # int64: to which rank each goes
    n: np.ndarray  # int64, shape (1,): how many were written
    mail: np.ndarray  # int64, shape (most, words): what is read, in order
    mail_reals: np.ndarray
    first: np.ndarray  # int64, shape (walkers + 1,): where the letters of each walker begin there


def rows_of_letters(walkers: int, waits: int | None) -> int:
    """Return how many letters a superstep has at most."""
    return 0 if waits is None else walkers * (waits + 1)


def new_post(walkers: int, waits: int | None, words: int, remembered: int, places: int) -> Post:
    """Return room for the letters of so many walkers."""
    most = rows_of_letters(walkers, waits)

    def records() -> np.ndarray:
        return zeros(most * words, np.int64, is_sparse=True).reshape(most, words)

    letters, mail = records(), records()
    owners = zeros(most, np.int64, is_sparse=True)
    first = zeros(0 if waits is None else walkers + 1, np.int64, is_sparse=True)
    n = np.zeros(1, np.int64)
    reals = letters.view(np.float64), mail.view(np.float64)
    return Post(waits or 1, remembered, places, letters, reals[0], owners, n, mail, reals[1], first)


def lets_wait(rule_type: Any) -> bool:
    """Return whether a rule of this numba type lets steps wait."""
    rule = rule_of_type(rule_type)
    return rule is not None and rule.waits is not None


@jit_inline
def recall(context, first, record, reals):
    """Let the rule remember what stands in a record from word `first` on."""
    whole = context.whole.shape[1]
    for i in range(whole):
        context.whole[0, i] = record[first + i]
    for i in range(context.real.shape[1]):
        context.real[0, i] = reals[first + whole + i]


@jit_inline
def keep(context, first, record, reals):
    """Write what the rule remembers there."""
    whole = context.whole.shape[1]
    for i in range(whole):
        record[first + i] = context.whole[0, i]
    for i in range(context.real.shape[1]):
        reals[first + whole + i] = context.real[0, i]


@jit_inline
def _write(partition, post, asking, record, identity, number):
    """Write what the rule has updated as letters, counted from `number` on; return whether that can be."""
    table = asking.table
    if table.n[0] > table.places.size:
        return False
    for i in range(table.n[0]):
        at, place, action = post.n[0], table.places[i], table.actions[i]
        if not (0 <= place < post.waits and 0 <= action <= table.n_actions and at < post.owners.size):
            return False
        low = WHOLE_STATE if action == table.n_actions else action << 2
        state = waiting_state(partition, record[post.places :], place)
        post.letters[at, WHO] = (identity << NUMBER_BITS) | (number + i)
        put_state(partition, post.letters, at, state, low)
        post.reals[at, TARGET] = table.targets[i]
        post.owners[at] = owner_of(partition, state)
        post.n[0] = at + 1
    return True


@stub
def act(rule, partition, post, asking, now, identity, row, action, state, elapsed, record, reals):
    """Learn what waited for the action of a walker; return whether that can be.

    `elapsed` steps of its episode have been made, and the next one begins in `state`, whose row is `row`.
    """


@overloads(act, inline=True)
def _overload_act(rule, partition, post, asking, now, identity, row, action, state, elapsed, record, reals):
    def nothing_waits(
        rule, partition, post, asking, now, identity, row, action, state, elapsed, record, reals
    ):
        return True

    def impl(rule, partition, post, asking, now, identity, row, action, state, elapsed, record, reals):
        return _act(rule, partition, post, asking, now, identity, row, action, state, elapsed, record, reals)

    return impl if lets_wait(rule) else nothing_waits


@jit_inline
def _act(rule, partition, post, asking, now, identity, row, action, state, elapsed, record, reals):
    asking.table.n[0] = 0
    recall(asking, post.remembered, record, reals)
    on_action(rule, asking, now, row, action, Learned(0, 0.0))
    keep(asking, post.remembered, record, reals)
    is_fine = _write(partition, post, asking, record, identity, 0)
    # Only now: the place may be that of the step which waited no longer.
    put_waiting(partition, record[post.places :], elapsed % post.waits, state)
    return is_fine


@jit_inline
def learn_as_letters(rule, partition, post, asking, now, identity, elapsed, step, record, reals):
    """Learn a step, the `elapsed`-th of its episode, as letters; return whether that can be."""
    asking.table.n[0] = 0
    recall(asking, post.remembered, record, reals)
    place = (elapsed - 1) % post.waits
    here = Transition(
        place, step.action, step.reward, step.next_state, step.terminated, step.truncated, step.i
    )
    learn(rule, asking, now, here, Learned(0, 0.0))
    keep(asking, post.remembered, record, reals)
    return _write(partition, post, asking, record, identity, _LEARNED)


# Reading


@jit_inline
def _can_be(partition, crew, letters, i, size, n_actions):
    """Return whether a letter is of a walker that moves, and to this rank."""
    state, identity = state_in(partition, letters, i), letters[i, WHO] >> NUMBER_BITS
    is_state = is_below(state, crew.n_states)
    is_action = (letters[i, WHERE] >> 2) & ((1 << (STATE_SHIFT - 2)) - 1) < n_actions
    return is_state and is_action and 0 <= identity < size and owner_of(partition, state) == crew.rank


@jit
def sort_mail(partition, crew, n_actions, size, inbox, starts, counts):
    """Put this rank's own letters and those of the inbox in order; return how many, -1: one cannot be.

    The letters of rank r are ``counts[r]`` from ``starts[r]`` on. `size` walkers move.
    """
    post = crew.post
    first = post.first
    for identity in range(size + 1):
        first[identity] = 0
    n = np.int64(0)
    for rank in range(counts.size + 1):
        # What is its own comes as from one rank more.
        letters = post.letters if rank == counts.size else inbox
        begin = np.int64(0) if rank == counts.size else starts[rank]
        end = begin + (post.n[0] if rank == counts.size else counts[rank])
        for i in range(begin, end):
            if rank == counts.size and post.owners[i] != crew.rank:
                continue
            if not _can_be(partition, crew, letters, i, size, n_actions) or n == post.owners.size:
                return np.int64(-1)
            first[(letters[i, WHO] >> NUMBER_BITS) + 1] += 1
            n += 1
    for identity in range(size):
        first[identity + 1] += first[identity]
    for rank in range(counts.size + 1):
        letters = post.letters if rank == counts.size else inbox
        begin = np.int64(0) if rank == counts.size else starts[rank]
        end = begin + (post.n[0] if rank == counts.size else counts[rank])
        for i in range(begin, end):
            if rank < counts.size or post.owners[i] == crew.rank:
                identity = letters[i, WHO] >> NUMBER_BITS
                _insert(post.mail, letters, i, first[identity])
                first[identity] += 1
    _sort_each(post.mail, n)
    return n


@jit_inline
def _insert(mail, letters, i, at):
    for word in range(mail.shape[1]):
        mail[at, word] = letters[i, word]


@jit_inline
def _sort_each(mail, n):
    """Sort letters that are in the order of identities by their numbers: few are of one walker."""
    for i in range(1, n):
        j = i
        while j > 0 and mail[j - 1, WHO] > mail[j, WHO]:
            for word in range(mail.shape[1]):
                other = mail[j - 1, word]
                mail[j - 1, word] = mail[j, word]
                mail[j, word] = other
            j -= 1
