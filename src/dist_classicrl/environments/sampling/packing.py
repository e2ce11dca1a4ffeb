"""Packing models, or the part of one that a rank holds, into `ModelTables`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.environments.finite_model import ArrayModel
from dist_classicrl.environments.sampling.alias import (
    WORDS,
    ModelTables,
    Slots,
    Work,
    alias,
    alias_once,
    python_of,
    slots_for,
    store,
)
from dist_classicrl.environments.sampling.ranges import Rows, in_ranges
from dist_classicrl.errors import ModelError

MOST_STATES = (1 << 30) - 1
_PADDING_LIMIT = 4
_FEW_SLOTS = 5_000
_FEW_IN_PYTHON = 1_500  # some 5 us each; to compile what does it takes half a second, to load that 10 ms
_COMPACT_FROM = 1 << 20  # slots; below, caches hold them as they are, and kernels need not be compiled anew
_RANGE_FROM = 1 << 16  # start states


class Source(Protocol):
    """What gives the outcomes of pairs, in threads, for rows from `low` to `high` - 1 at a time."""

    n_actions: int

    def survey(self, rows: Rows, low: int, high: int) -> np.ndarray:
        """Return the most slots of a pair, all slots, 1 where rewards need float64, the most outcomes."""

    def count(self, rows: Rows, low: int, high: int, work: Work, first: np.ndarray) -> None:
        """Write the number of slots of pair i of the rows at `first[i + 1]`."""

    def pack(
        self, rows: Rows, low: int, high: int, work: Work, first: np.ndarray, width: int, into: Slots
    ) -> None:
        """Write the slots of the rows. `first` is empty where each pair has `width` of them."""


def pack(source: Source, rows: Rows, starts: tuple[np.ndarray, np.ndarray]) -> ModelTables:
    """Return the tables of these rows; memory is needed for them and little else."""
    found = np.array(in_ranges(lambda low, high: source.survey(rows, low, high), rows.n))
    width, most = int(found[:, 0].max()), int(found[:, 3].max())
    pairs, slots = rows.n * source.n_actions, int(found[:, 1].sum())
    first = np.zeros(0, np.int64)
    if _is_padded(pairs, width, slots):
        slots = pairs * width
    else:
        first = np.zeros(pairs + 1, np.int64)
        in_ranges(lambda low, high: source.count(rows, low, high, Work.new(most), first), rows.n)
        np.cumsum(first, out=first)
    into = Slots.new(slots, slots >= _COMPACT_FROM and not found[:, 2].any())
    size = max(width, most)
    in_ranges(lambda low, high: source.pack(rows, low, high, Work.new(size), first, width, into), rows.n)
    return _tables(first, width, into, starts)


def _is_padded(pairs: int, width: int, slots: int) -> bool:
    return pairs * width <= _PADDING_LIMIT * max(1, slots)


def _tables(first: np.ndarray, width: int, into: Slots, starts: tuple[np.ndarray, np.ndarray]) -> ModelTables:
    bounds = first if first.size else None
    return ModelTables(bounds, width, into.thresholds, into.outcomes, into.rewards, *starts)


def compile_model(model: ArrayModel, states: range | np.ndarray | None = None) -> ModelTables:
    """Return `model` as the tables that the kernels sample from, or the part of it that has these states.

    A part has the pairs of its states in their order: pair ``i * n_actions + action`` is one of state
    ``states[i]``. ModelError from 2**30 states on.
    """
    check_n_states(model.n_states)
    rows, starts = Rows(states, model.n_states), start_slots(model.start_prob)
    if _is_quicker_in_python(model, rows):
        return _pack_few(model, rows, starts)
    return pack(ArraySource(model), rows, starts)


def _is_quicker_in_python(model: ArrayModel, rows: Rows) -> bool:
    if rows.n * model.n_actions > _FEW_SLOTS or model.outcome_prob.size > _FEW_SLOTS:
        return False
    sizes = np.diff(model.outcome_ptr)
    is_loaded = bool(getattr(_pack, "signatures", ()))
    return int(sizes[sizes > 1].sum()) <= (0 if is_loaded else _FEW_IN_PYTHON)


def check_n_states(n_states: int) -> None:
    """Refuse numbers of states that slots cannot hold."""
    if n_states > MOST_STATES:
        raise ModelError(f"A compiled model can have at most {MOST_STATES} states, got {n_states}.")


def start_slots(prob: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `start_threshold` and `start_states` of `ModelTables`."""
    starts = np.flatnonzero(prob > 0.0)
    if starts.size >= _RANGE_FROM and starts[-1] - starts[0] + 1 == starts.size:
        if (prob[starts[0] : starts[-1] + 1] == prob[starts[0]]).all():
            return even_starts(int(starts[0]), starts.size)
    work = Work.new(starts.size)
    work.prob[:] = prob[starts]
    fill = python_of(alias) if starts.size <= _FEW_SLOTS else alias_once
    fill(work, starts.size, max(starts.size, 1))
    states = np.empty(2 * starts.size, np.int64)
    states[::2], states[1::2] = starts[work.one], starts[work.other]
    return work.threshold, states


def even_starts(first: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what `start_slots` does for so many states that have the same chance."""
    return np.zeros(0, np.uint32), np.array([first, number])


def _pack_few(model: ArrayModel, rows: Rows, starts: tuple[np.ndarray, np.ndarray]) -> ModelTables:
    states = rows.states if rows.states.size else np.arange(rows.first, rows.first + rows.n)
    pairs = (states[:, np.newaxis] * model.n_actions + np.arange(model.n_actions)).ravel()
    begins, sizes = model.outcome_ptr[pairs], model.outcome_ptr[pairs + 1] - model.outcome_ptr[pairs]
    slots = np.where(sizes == 2, 1, sizes)
    width, all_slots = int(slots.max(initial=0)), int(slots.sum())
    padded = _is_padded(pairs.size, width, all_slots)
    first = np.zeros(0, np.int64) if padded else np.concatenate([[0], np.cumsum(slots)])
    into = Slots.new(pairs.size * width if padded else all_slots, False)
    work = Work.new(int(max(width, sizes.max(initial=0))))
    number = np.arange(pairs.size) * width if padded else first[:-1]
    _fill_sure(model, begins[sizes == 1], number[sizes == 1], width if padded else 1, into)
    to_slots, write = python_of(alias), python_of(store)
    for pair in np.flatnonzero(sizes > 1).tolist():
        begin, size, n = int(begins[pair]), int(sizes[pair]), width if padded else int(slots[pair])
        outcomes = slice(begin, begin + size)
        work.prob[:size], work.reward[:size] = model.outcome_prob[outcomes], model.outcome_reward[outcomes]
        work.target[:size] = 2 * model.outcome_next[outcomes] + model.outcome_terminated[outcomes]
        to_slots(work, size, n)
        write(work, n, into, int(number[pair]))
    return _tables(first, width, into, starts)


def _fill_sure(model: ArrayModel, outcome: np.ndarray, number: np.ndarray, n: int, into: Slots) -> None:
    """Write what `alias` and `store` do for pairs with one outcome each: it, in all their `n` slots."""
    slot = number[:, np.newaxis] + np.arange(n)
    into.thresholds.reshape(-1, WORDS)[slot, 0] = 0xFFFFFFFF
    target = 2 * model.outcome_next[outcome] + model.outcome_terminated[outcome]
    into.outcomes.reshape(-1, WORDS)[slot, 1:3] = target[:, np.newaxis, np.newaxis]
    into.rewards.reshape(-1, WORDS // 2)[slot, 2:] = model.outcome_reward[outcome][:, np.newaxis, np.newaxis]


class Outcomes(NamedTuple):
    """The outcomes of a `TabularMDP`."""

    pointer: np.ndarray
    prob: np.ndarray
    follow: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


@jit
def _survey(outcomes, states, first_state, low, high, n_actions, found):
    for i in range(low, high):
        state = states[i] if states.size else first_state + i
        for pair in range(state * n_actions, (state + 1) * n_actions):
            begin, end = outcomes.pointer[pair], outcomes.pointer[pair + 1]
            slots = slots_for(end - begin)
            found[0] = max(found[0], slots)
            found[1] += slots
            found[3] = max(found[3], end - begin)
            if found[2] == 0:
                for o in range(begin, end):
                    reward = outcomes.reward[o]
                    if reward != outcomes.reward[begin] or np.float64(np.float32(reward)) != reward:
                        found[2] = 1


@jit
def _count(outcomes, states, first_state, low, high, n_actions, first):
    for i in range(low, high):
        state = states[i] if states.size else first_state + i
        for action in range(n_actions):
            pair = state * n_actions + action
            first[i * n_actions + action + 1] = slots_for(outcomes.pointer[pair + 1] - outcomes.pointer[pair])


@jit
def _pack(outcomes, states, first_state, low, high, n_actions, work, first, width, into):
    for i in range(low, high):
        state = states[i] if states.size else first_state + i
        for action in range(n_actions):
            begin = outcomes.pointer[state * n_actions + action]
            size = outcomes.pointer[state * n_actions + action + 1] - begin
            for o in range(size):
                work.prob[o] = outcomes.prob[begin + o]
                work.target[o] = 2 * outcomes.follow[begin + o] + outcomes.terminated[begin + o]
                work.reward[o] = outcomes.reward[begin + o]
            pair = i * n_actions + action
            number, slots = pair * width, width
            if first.size:
                number, slots = first[pair], first[pair + 1] - first[pair]
            if size > 0:
                alias(work, size, slots)
                store(work, slots, into, number)


class ArraySource:
    """The outcomes of a `TabularMDP` as a `Source`."""

    def __init__(self, model: ArrayModel) -> None:
        self._outcomes = Outcomes(
            model.outcome_ptr,
            model.outcome_prob,
            model.outcome_next,
            model.outcome_reward,
            model.outcome_terminated,
        )
        self.n_actions = model.n_actions

    def survey(self, rows: Rows, low: int, high: int) -> np.ndarray:
        """See `Source`."""
        found = np.zeros(4, np.int64)
        _survey(self._outcomes, rows.states, rows.first, low, high, self.n_actions, found)
        return found

    def count(self, rows: Rows, low: int, high: int, work: Work, first: np.ndarray) -> None:
        """See `Source`."""
        _count(self._outcomes, rows.states, rows.first, low, high, self.n_actions, first)

    def pack(
        self, rows: Rows, low: int, high: int, work: Work, first: np.ndarray, width: int, into: Slots
    ) -> None:
        """See `Source`."""
        n_actions = self.n_actions
        _pack(self._outcomes, rows.states, rows.first, low, high, n_actions, work, first, width, into)
