"""Finite models as alias tables: what a pair may lead to, in slots that take one cache line or less.

A. J. Walker, "An efficient method for generating discrete random variables with general distributions", ACM
Transactions on Mathematical Software 3 (1977); M. D. Vose, "A linear algorithm for generating random numbers
with a given distribution", IEEE Transactions on Software Engineering 17 (1991).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from dist_classicrl._jit import at_once, is_on_card, jit, jit_inline, picked, prefetch, stub
from dist_classicrl._memory import zeros
from dist_classicrl._random import SHIFT_32, below

WORDS, WORDS_OF_COMPACT = 8, 4
"""Of four bytes, in a slot."""


class ModelTables(NamedTuple):
    """A finite model in the form of Walker's alias method (1977), as Vose (1991) builds it.

    A pair has `width` slots, or those from `first[pair]` to `first[pair + 1]` where padding would cost too
    much: as many as it has outcomes, but one for two. A slot yields outcome 0 if 32 random bits are at most
    its threshold, else outcome 1. So probabilities are met within 2**-32. A next state is stored doubled,
    plus 1 where the outcome terminates.

    All of a slot lies in 32 bytes, half a cache line, which three arrays show:
    slot j has its threshold at ``thresholds[8 * j]``, the next states of its two outcomes at
    ``outcomes[8 * j + 1]`` and the next, their rewards at ``rewards[4 * j + 2]`` and the next. Where float32
    holds the rewards of a large model, and all outcomes of a pair have the same, it is 16 bytes: the
    threshold at ``thresholds[4 * j]``, next states after it, and the reward at ``rewards[4 * j + 3]``.

    An episode begins in ``start_states[2 * j]`` or the next, by the threshold of start slot j. Without start
    slots each of the `start_states[1]` states from `start_states[0]` on has the same chance.

    Of a part of a model the pairs are those of its states, in their order; next states are numbered as in the
    whole.
    """

    first: np.ndarray | None
    width: int
    thresholds: np.ndarray  # uint32
    outcomes: np.ndarray  # int32, of the same memory
    rewards: np.ndarray  # float64, or float32 where slots are compact, likewise
    start_threshold: np.ndarray
    start_states: np.ndarray

    def slot(self, number: int) -> tuple[int, list[int], list[float]]:
        """Return the threshold of a slot, and the stored next states and the rewards of its outcomes."""
        words = slot_words(self.rewards)
        at = words * number
        rewards = self.rewards[4 * number + 2 :][:2]
        if words == WORDS_OF_COMPACT:
            rewards = rewards[[1, 1]]
        return int(self.thresholds[at]), self.outcomes[at + 1 :][:2].tolist(), rewards.tolist()


@jit_inline
def _words(rewards):
    return WORDS


@jit_inline
def _words_of_compact(rewards):
    return WORDS_OF_COMPACT


@picked(lambda rewards: _words if rewards.dtype == types.float64 else _words_of_compact)
def slot_words(rewards):
    """Return the words of a slot, by the array of its rewards."""
    return WORDS if rewards.dtype == np.float64 else WORDS_OF_COMPACT


@jit_inline
def _reward(rewards, slot, other):
    return rewards[np.uint64(4 * slot + 2) + other]


@jit_inline
def _reward_of_compact(rewards, slot, other):
    return np.float64(rewards[np.uint64(4 * slot + 3)])


@picked(lambda rewards: _reward if rewards.dtype == types.float64 else _reward_of_compact)
@stub
def _slot_reward(rewards, slot, other):
    """Return the reward of a slot's outcome, or of the `other` one."""


def begin_model(simulation, memory, random):
    """Do what `dist_classicrl.environments.simulate.begin` does for a model."""
    return drawn_start(simulation.start_threshold, simulation.start_states, random)


@jit_inline
def drawn_start(start_threshold, start_states, random):
    """Return a first state, see `ModelTables`."""
    if start_threshold.size == 0:
        return start_states[0] + below(random, start_states[1])
    slot = np.uint64(below(random, start_threshold.size))
    other = np.uint32(random >> SHIFT_32) > start_threshold[slot]
    return start_states[np.uint64(2) * slot + np.uint64(other)]


@jit_inline
def _outcome(simulation, slot, random):
    if is_on_card():
        return outcome_at_once(simulation, slot, random)
    at = np.uint64(slot_words(simulation.rewards) * slot)  # unsigned: no check for counting from the end
    other = np.uint64(np.uint32(random >> SHIFT_32) > simulation.thresholds[at])
    target = np.int64(simulation.outcomes[at + np.uint64(1) + other])
    return target >> 1, _slot_reward(simulation.rewards, slot, other), (target & 1) == 1


@jit_inline
def outcome_at_once(simulation, slot, random):
    """Return what comes of a slot, which is read at once: a card takes as long for each of its numbers.

    On a core one that is not needed would be read for nothing.
    """
    at = np.uint64(slot_words(simulation.rewards) * slot)
    threshold, one, two, last = at_once(simulation.outcomes, at)
    other = np.uint32(random >> SHIFT_32) > np.uint32(threshold)
    target = np.int64(two if other else one)
    return target >> 1, _reward_at_once(simulation.rewards, slot, other, last), (target & 1) == 1


@jit_inline
def _reward_beside(rewards, slot, other, last):
    one, two = at_once(rewards, np.uint64(4 * slot + 2))
    return two if other else one


@jit_inline
def _reward_of_bits(rewards, slot, other, last):
    return np.float64(np.int32(last).view(np.float32))


@picked(lambda rewards: _reward_beside if rewards.dtype == types.float64 else _reward_of_bits)
@stub
def _reward_at_once(rewards, slot, other, last):
    """Return the reward of a slot's outcome, or of the `other` one; `last` is its fourth word."""


@jit_inline
def _slot(simulation, state, action, random, n_actions):
    pair = state * n_actions + action
    return _drawn_slot(simulation.first, simulation.width, pair, random)


@jit_inline
def _drawn_slot(first, width, pair, random):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    if first is None:
        return pair * width + below(random, width)
    return first[pair] + below(random, first[pair + 1] - first[pair])


def advance_model(simulation, memory, state, action, random, n_actions):
    """Do what `dist_classicrl.environments.simulate.advance` does for a model."""
    return _outcome(simulation, _slot(simulation, state, action, random, n_actions), random)


def prefetch_model(simulation, state, action, random, n_actions):
    """Do what `dist_classicrl.environments.simulate.prefetch_outcome` does for a model."""
    slot = _slot(simulation, state, action, random, n_actions)
    prefetch(simulation.outcomes, np.uint64(slot_words(simulation.rewards) * slot))


class Slots(NamedTuple):
    """Where slots are packed into, see `ModelTables`."""

    words: int
    thresholds: np.ndarray
    outcomes: np.ndarray
    rewards: np.ndarray

    @classmethod
    def new(cls, number: int, is_compact: bool) -> Slots:
        """Return memory for so many slots."""
        words = WORDS_OF_COMPACT if is_compact else WORDS
        memory = zeros(words * number, np.int32)
        rewards = memory.view(np.float32 if is_compact else np.float64)
        return cls(words, memory.view(np.uint32), memory, rewards)


class Work(NamedTuple):
    """The outcomes of a pair, gathered to be packed, and what `alias` makes of them."""

    prob: np.ndarray  # float64, as `reward`
    target: np.ndarray  # int64: next states, stored as in `ModelTables`
    reward: np.ndarray
    share: np.ndarray  # float64
    small: np.ndarray  # int32, as `large`
    large: np.ndarray
    one: np.ndarray  # int32, as `other`: of each slot, the numbers of its outcomes
    other: np.ndarray
    threshold: np.ndarray  # uint32: of each slot

    @classmethod
    def new(cls, size: int) -> Work:
        """Return what pairs of at most `size` outcomes, and slots, need."""
        real = [np.zeros(size) for _ in range(3)]
        whole = [np.zeros(size, np.int32) for _ in range(4)]
        threshold = np.zeros(size, np.uint32)
        return cls._make((real[0], np.zeros(size, np.int64), *real[1:], *whole, threshold))


@jit_inline
def alias(work, size, slots):
    """Divide `size` outcomes with the chances `work.prob` among slots that have the same chance each."""
    one, other, threshold = work.one, work.other, work.threshold
    if slots < size:  # one slot holds both of two outcomes
        cut = np.int64(min(work.prob[0], 1.0) * 4294967296.0)
        one[0], other[0] = cut == 0, 1
        threshold[0] = np.uint32(cut - 1 if cut > 0 else 0)
        return
    share, small, large = work.share, work.small, work.large
    n_small = n_large = 0
    for i in range(slots):
        share[i] = work.prob[i] * slots if i < size else 0.0
        one[i] = other[i] = min(i, size - 1)
        threshold[i] = np.uint32(0xFFFFFFFF)
        if share[i] < 1.0:
            small[n_small] = i
            n_small += 1
        elif share[i] > 1.0:
            large[n_large] = i
            n_large += 1
    while n_small > 0 and n_large > 0:
        n_small -= 1
        i, j = small[n_small], large[n_large - 1]
        other[i] = j
        cut = np.int64(share[i] * 4294967296.0)
        if cut == 0:
            one[i] = j
        else:
            threshold[i] = np.uint32(cut - 1)
        share[j] -= 1.0 - share[i]
        if share[j] < 1.0:
            n_large -= 1
            small[n_small] = j
            n_small += 1
    # The shares of what is left add up to its number, and none is above 1: all are 1 but for rounding.


@jit_inline
def store(work, slots, into, number):
    """Write what `alias` has made as the slots from `number` on."""
    for i in range(slots):
        at = into.words * (number + i)
        into.thresholds[at] = work.threshold[i]
        into.outcomes[at + 1] = work.target[work.one[i]]
        into.outcomes[at + 2] = work.target[work.other[i]]
        at = 4 * (number + i) + 3
        if into.words == WORDS:
            into.rewards[at - 1] = work.reward[work.one[i]]
            into.rewards[at] = work.reward[work.other[i]]
        else:
            into.rewards[at] = work.reward[work.one[i]]


@jit_inline
def slots_for(size):
    """Return how many slots a pair of `size` outcomes needs."""
    return 1 if size == 2 else size


@jit_inline
def fits_compact(work, size):
    """Return whether one float32 holds the rewards of all outcomes."""
    for i in range(size):
        if work.reward[i] != work.reward[0] or np.float64(np.float32(work.reward[i])) != work.reward[i]:
            return False
    return True


@jit
def alias_once(work: Work, size: int, slots: int) -> None:
    """Call `alias`."""
    alias(work, size, slots)


def python_of(kernel: Any) -> Any:
    """Return a kernel as plain Python, which does a few slots sooner than they are compiled."""
    return getattr(kernel, "py_func", kernel)
