"""Supersteps of ranks that share memory: they exchange records and replies there, without messages.

A rank writes its records for another where that one reads them, says how many there are, and finds the
replies in the same order; or letters, and how many these are. What is written in an attempt at a run is told
by a number that no earlier one had.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dist_classicrl._jit import jit, jit_inline, overloads, stub
from dist_classicrl._memory import LINE
from dist_classicrl.learning.supersteps.crew import MOVED
from dist_classicrl.learning.supersteps.kernels import answer, depart, read_letters, settle, steps_at_once
from dist_classicrl.learning.supersteps.letters import lets_wait
from dist_classicrl.learning.supersteps.one_walker import FINE
from dist_classicrl.learning.supersteps.partition import has_room, is_counted, is_over, n_known

WAITING = -1

# What `Boxes.state` has.
PHASE, DONE, SIZE, SEQUENCE, STEPS, CROSSED = range(6)
LEARNED, BEGUN_AT, ENDED_AT = range(6, 9)  # in cycles of the processor's clock
IS_OVER = 9  # whether there are more states than there may be
_DEPARTS, _AWAITS_RECORDS, _AWAITS_REPLIES = range(3)

_FLAG_WORDS = 4 * LINE // 8
REPLIED = 2 * LINE // 8
_LOOKS_AT_ONCE = 2000
"""After so many the core goes to another process, if one waits for it."""
_LONG_AWAY = 10_000_000
"""Cycles: who did not have the core for longer has other things to see to first."""

_ATTEMPTS = (1 << 31) - 1
"""So many a sequence tells apart."""

_SETS = 2
"""Who has not heard yet that an attempt is over may still read what was written in it."""


class Boxes(NamedTuple):
    """What a rank writes to and reads from: memory that all ranks of a host share. See `boxes_in`."""

    records: np.ndarray  # int64, shape (.., words)
    reals: np.ndarray
    replies: np.ndarray  # float64, shape (.., width): as many; or letters
    letters: np.ndarray  # int64: another view of those
    flags: np.ndarray  # int64: for each pair what was written last, by its sequence, and how much
    out_starts: np.ndarray  # int64, shape (players,): where records for each begin, and their replies
    in_starts: np.ndarray  # and those of each of them for this rank
    out_flags: np.ndarray
    in_flags: np.ndarray
    letters_out: np.ndarray  # int64, shape (players,): where letters to each begin
    letters_in: np.ndarray  # and those of each of them
    counts: np.ndarray  # how many of them there are
    cursors: np.ndarray  # int64, shape (players,): how many of them were read
    state: np.ndarray  # int64, shape (10,)


def bytes_of(ranks: int, walkers: int, words: int, width: int, replies: int) -> int:
    """Return the bytes of the memory that so many ranks share; most are never used, and take no memory.

    For `words`, `width` and `replies` see `dist_classicrl.learning.supersteps.share.record_sizes`.
    """
    return 8 * _SETS * ranks * ranks * (_FLAG_WORDS + walkers * (2 * words + replies * width))


def boxes_in(
    memory: np.ndarray,
    ranks: int,
    walkers: int,
    words: int,
    width: int,
    replies: int,
    own: int,
    players: tuple[int, ...],
    attempt: int,
) -> Boxes:
    """Return what rank `own`, one of the `players`, which are some of all `ranks`, uses in an attempt.

    `memory` are `bytes_of` bytes, uint8, all zero before the first attempt.
    """
    numbers = memory.view(np.int64)
    pairs, capacity = _SETS * ranks * ranks, 2 * walkers
    flags, rest = numbers[: pairs * _FLAG_WORDS], numbers[pairs * _FLAG_WORDS :]
    records, letters = rest[: pairs * capacity * words], rest[pairs * capacity * words :].reshape(-1, width)
    first, others = (attempt % _SETS) * ranks * ranks, np.array(players)
    out, into = first + own * ranks + others, first + others * ranks + own
    state = np.zeros(10, np.int64)
    state[SEQUENCE] = (attempt % _ATTEMPTS + 1) << 32
    return Boxes(
        records.reshape(-1, words),
        records.view(np.float64).reshape(-1, words),
        letters.view(np.float64),
        letters,
        flags,
        out * capacity,
        into * capacity,
        out * _FLAG_WORDS,
        into * _FLAG_WORDS,
        into * replies * walkers,
        out * replies * walkers,
        np.zeros(len(players), np.int64),
        np.zeros(len(players), np.int64),
        state,
    )


@intrinsic
def _load(typing_context, array, index):
    """Return an element of an int64 array; what was written before it was is seen afterwards."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(data, [arguments[1]]), "acquire", 8)

    return types.int64(array, types.uint64), generate


@intrinsic
def _store(typing_context, array, index, value):
    """Set an element of an int64 array; who sees that sees what was written before."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        builder.store_atomic(arguments[2], builder.gep(data, [arguments[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.int64), generate


@intrinsic
def cycles(typing_context):
    """Return the processor's clock."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(64), [])
        function = builder.module.declare_intrinsic("llvm.readcyclecounter", fnty=kind)
        return builder.call(function, [])

    return types.int64(), generate


@intrinsic
def _let_others_run(typing_context):
    """Give the core to another process that waits for one, as POSIX's sched_yield does."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])

    return types.int32(), generate


@jit_inline
def are_there(crew, boxes, flags, word, looks):
    """Look up to so many times whether all others have said the sequence that is under way."""
    sequence = boxes.state[SEQUENCE]
    begin = cycles()
    missing = False
    for rank in range(flags.size):
        if rank != crew.rank:
            place = np.uint64(flags[rank] + word)
            while _load(boxes.flags, place) != sequence:
                looks -= 1
                if looks % _LOOKS_AT_ONCE == 0:
                    away_since = cycles()
                    _let_others_run()
                    looks = 0 if cycles() - away_since > _LONG_AWAY else looks
                if looks <= 0:
                    missing = True
                    break
            if missing:
                break
    boxes.state[LEARNED] -= cycles() - begin
    return not missing


@jit_inline
def tell(crew, boxes, flags, word):
    """Say the sequence that is under way to all others."""
    for rank in range(flags.size):
        if rank != crew.rank:
            _store(boxes.flags, np.uint64(flags[rank] + word), boxes.state[SEQUENCE])


@jit_inline
def _tell_known(partition, crew, boxes):
    """Write how many states this rank knows, beside what it is about to say."""
    if is_counted(partition):
        for rank in range(boxes.in_flags.size):
            if rank != crew.rank:
                boxes.flags[boxes.in_flags[rank] + REPLIED + 1] = n_known(partition)


@jit_inline
def _is_over(partition, crew, boxes):
    """Return whether all ranks together know more states than there may be."""
    if not is_counted(partition):
        return False
    known = n_known(partition)
    for rank in range(boxes.out_flags.size):
        if rank != crew.rank:
            known += boxes.flags[boxes.out_flags[rank] + REPLIED + 1]
    return is_over(partition, known)


@stub
def _reply(rule, crew, boxes):
    """Take note of the replies to others, or write the letters to them."""


@overloads(_reply, inline=True)
def _overload_reply(rule, crew, boxes):
    def impl(rule, crew, boxes):
        for rank in range(boxes.counts.size):
            boxes.state[CROSSED] += boxes.counts[rank] * boxes.replies.shape[1]

    def by_letters(rule, crew, boxes):
        post = crew.post
        for rank in range(boxes.in_flags.size):
            boxes.counts[rank] = 0
        for i in range(post.n[0]):
            rank = post.owners[i]
            if rank != crew.rank:
                at = boxes.letters_out[rank] + boxes.counts[rank]
                for word in range(boxes.letters.shape[1]):
                    boxes.letters[at, word] = post.letters[i, word]
                boxes.counts[rank] += 1
        for rank in range(boxes.in_flags.size):
            if rank != crew.rank:
                boxes.flags[boxes.in_flags[rank] + REPLIED + 2] = boxes.counts[rank]
                boxes.state[CROSSED] += boxes.counts[rank] * boxes.letters.shape[1]

    return by_letters if lets_wait(rule) else impl


@stub
def _settle(rule, partition, crew, boxes, context, stretch, done):
    """Learn from what came back; return `FINE`, or what is wrong."""


@overloads(_settle, inline=True)
def _overload_settle(rule, partition, crew, boxes, context, stretch, done):
    def impl(rule, partition, crew, boxes, context, stretch, done):
        settle(crew, context, stretch, done, boxes.replies, boxes.out_starts)
        return FINE

    def from_letters(rule, partition, crew, boxes, context, stretch, done):
        for rank in range(boxes.counts.size):
            n = 0 if rank == crew.rank else boxes.flags[boxes.out_flags[rank] + REPLIED + 2]
            boxes.counts[rank] = min(max(n, 0), crew.post.owners.size)
        size, letters = boxes.state[SIZE], boxes.letters
        starts, counts = boxes.letters_in, boxes.counts
        return read_letters(partition, crew, context, stretch, done, size, letters, starts, counts)

    return from_letters if lets_wait(rule) else impl


@jit
def play_together(
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
    """Make supersteps of a stretch, at least so many steps, with the other ranks; see `learn_alone`.

    Return `WAITING` where somebody has not said its part after so many `looks`, or states that are keys might
    have no room: called again, with more, it goes on.
    """
    state = boxes.state
    begin = cycles()
    if state[BEGUN_AT] == 0:
        state[BEGUN_AT] = begin
    status = FINE
    while True:
        done = state[DONE]
        if state[PHASE] == _DEPARTS:
            if done >= stretch.steps or done >= least or state[IS_OVER] != 0:
                break
            if not has_room(partition, walkers):
                status = WAITING
                break
            size = min(steps_at_once(start, stretch.offset + done, walkers, per_walker), stretch.steps - done)
            status = depart(rule, simulation, partition, crew, context, asking, stretch, done, size)
            if status != FINE:
                break
            state[SIZE] = size
            state[SEQUENCE] += 1
            state[STEPS] += crew.sizes[MOVED]
            for rank in range(crew.n_out.size):
                boxes.flags[boxes.out_flags[rank] + 1] = crew.n_out[rank]
                state[CROSSED] += crew.n_out[rank] * boxes.records.shape[1]
            tell(crew, boxes, boxes.out_flags, 0)
            state[PHASE] = _AWAITS_RECORDS
        if state[PHASE] == _AWAITS_RECORDS:
            if not are_there(crew, boxes, boxes.in_flags, 0, looks):
                status = WAITING
                break
            for rank in range(boxes.counts.size):
                n = 0 if rank == crew.rank else boxes.flags[boxes.in_flags[rank] + 1]
                boxes.counts[rank] = min(max(n, 0), 2 * crew.rows.size)
            inbox, starts, counts = boxes.records, boxes.in_starts, boxes.counts
            reals, replies = boxes.reals, boxes.replies
            status = answer(
                rule, partition, crew, asking, stretch, done, inbox, reals, starts, counts, replies
            )
            if status != FINE:
                break
            _reply(rule, crew, boxes)
            _tell_known(partition, crew, boxes)
            tell(crew, boxes, boxes.in_flags, REPLIED)
            state[PHASE] = _AWAITS_REPLIES
        if not are_there(crew, boxes, boxes.out_flags, REPLIED, looks):
            status = WAITING
            break
        status = _settle(rule, partition, crew, boxes, context, stretch, done)
        if status != FINE:
            break
        if _is_over(partition, crew, boxes):
            state[IS_OVER] = 1
        state[DONE] = done + state[SIZE]
        state[PHASE] = _DEPARTS
    state[ENDED_AT] = cycles()
    state[LEARNED] += state[ENDED_AT] - begin
    return status
