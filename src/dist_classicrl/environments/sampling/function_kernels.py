"""Compiled loops over a model that a function gives, made for each function anew."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np

from dist_classicrl._jit import as_called_by_kernels, jit_closure, jit_inline
from dist_classicrl._random import unit
from dist_classicrl.environments.model_checks import PROBABILITY_TOLERANCE, ROUNDING_TOLERANCE
from dist_classicrl.environments.sampling.alias import alias, drawn_start, fits_compact, slots_for, store

#: What may be wrong with an outcome: the first number of `fault`, which has, too, the state, the action, the
#: number of the outcome, and what came.
SOUND, CHANCE, STATE, REWARD, SUM = range(5)
FAULT_SIZE = 5


class Simulated(NamedTuple):
    """What is simulated without tables."""

    data: Any
    start_threshold: np.ndarray  # as in `ModelTables`
    start_states: np.ndarray


class Place(NamedTuple):
    """Whose outcomes are asked for."""

    data: Any
    mask: np.ndarray  # bool (S, A), empty where a function or nothing tells what is legal
    states: np.ndarray  # as in `Rows`
    first_state: int
    n_states: int
    n_actions: int


class Kernels(NamedTuple):
    """The loops; but for the last three they take a `Place`, the first row, and the one after the last."""

    survey: Any
    count: Any
    pack: Any
    outcomes: Any
    allow: Any
    lowest: Any
    improve: Any
    evaluate: Any
    values: Any
    reach: Any
    reset: Any
    step: Any


@jit_inline
def _state_of(place, i):
    return place.states[i] if place.states.size else place.first_state + i


@jit_inline
def _allowed_by_mask(place, state, action):
    return place.mask.size == 0 or place.mask[state, action]


@lru_cache(maxsize=64)
def kernels_of(
    data: type, transition: Any, n_outcomes: int, legal: Any = None, start: Any = None, check: bool = False
) -> Kernels:
    """Return the loops of these functions; to `check`, their indices into arrays are looked at.

    Each class of `data` has its own: numba's dispatch takes NamedTuples of the same types for the same.
    """
    called = as_called_by_kernels(transition, check)
    # Called, it takes half as long again: an outcome is four values, which a call passes through memory.
    outcome_of = numba.jit(**{**called.targetoptions, "forceinline": True})(called.py_func)
    may = None if legal is None else as_called_by_kernels(legal, check)
    start_of = None if start is None else as_called_by_kernels(start, check)
    allowed = _allowed(may)
    gather = _gather(outcome_of, n_outcomes)
    value_of = _value_of(outcome_of, n_outcomes)
    loops = (*_packing(allowed, gather), *_sweeps(allowed, value_of), _reach(allowed, outcome_of, n_outcomes))
    return Kernels._make((*loops, *_game(outcome_of, n_outcomes, start_of)))


def _allowed(may: Any) -> Any:
    if may is None:
        return _allowed_by_mask
    return jit_closure(inline=True)(lambda place, state, action: bool(may(place.data, state, action)))


def _gather(transition: Any, n_outcomes: int) -> Any:
    @jit_closure(inline=True)
    def gather(place, state, action, work, fault):
        """Write the outcomes of a pair into `work`; return their number, 0 where one is wrong."""
        size, total = 0, 0.0
        fault[1], fault[2] = state, action
        for number in range(n_outcomes):
            fault[3] = number
            chance, next_state, reward, terminated = transition(place.data, state, action, number)
            if chance == 0:
                continue
            if not 0 < chance < np.inf:
                fault[0], fault[4] = CHANCE, chance
                return 0
            if np.int64(next_state) < 0 or np.int64(next_state) >= place.n_states:
                fault[0], fault[4] = STATE, np.int64(next_state)
                return 0
            if not abs(reward) < np.inf:
                fault[0], fault[4] = REWARD, reward
                return 0
            work.prob[size] = chance
            work.target[size] = 2 * np.int64(next_state) + bool(terminated)
            work.reward[size] = reward + 0.0
            total += chance
            size += 1
        if not abs(total - 1.0) <= PROBABILITY_TOLERANCE:
            fault[0], fault[4] = SUM, total
            return 0
        if abs(total - 1.0) > ROUNDING_TOLERANCE:
            for i in range(size):
                work.prob[i] /= total
        return size

    return gather


def _packing(allowed: Any, gather: Any) -> tuple[Any, ...]:
    @jit_closure()
    def survey(place, low, high, work, fault, found):
        """Do what `Source.survey` does, and note whether an outcome terminates; stop at one that is wrong."""
        for i in range(low, high):
            state = _state_of(place, i)
            for action in range(place.n_actions):
                fault[1], fault[2], fault[3] = state, action, 0
                if allowed(place, state, action):
                    size = gather(place, state, action, work, fault)
                    if size == 0:
                        return
                    slots = slots_for(size)
                    found[0] = max(found[0], slots)
                    found[1] += slots
                    if not fits_compact(work, size):
                        found[2] = 1
                    found[3] = max(found[3], size)
                    for number in range(size):
                        found[4] |= work.target[number] & 1

    @jit_closure()
    def count(place, low, high, work, fault, sizes, is_of_slots):
        """Write how many outcomes, or slots, pair i of the rows has at `sizes[i + 1]`."""
        for i in range(low, high):
            state = _state_of(place, i)
            for action in range(place.n_actions):
                if allowed(place, state, action):
                    size = gather(place, state, action, work, fault)
                    if size == 0:
                        return
                    sizes[i * place.n_actions + action + 1] = slots_for(size) if is_of_slots else size

    @jit_closure()
    def pack(place, low, high, work, fault, first, width, into):
        """Do what `Source.pack` does."""
        for i in range(low, high):
            state = _state_of(place, i)
            for action in range(place.n_actions):
                if allowed(place, state, action):
                    size = gather(place, state, action, work, fault)
                    pair = i * place.n_actions + action
                    number, slots = pair * width, width
                    if first.size:
                        number, slots = first[pair], first[pair + 1] - first[pair]
                    alias(work, size, slots)
                    store(work, slots, into, number)

    @jit_closure()
    def outcomes(place, low, high, work, fault, pointer, prob, follow, reward, terminated):
        """Write the outcomes as a `TabularMDP` has them."""
        for i in range(low, high):
            state = _state_of(place, i)
            for action in range(place.n_actions):
                at = pointer[i * place.n_actions + action]
                if pointer[i * place.n_actions + action + 1] > at:
                    for o in range(gather(place, state, action, work, fault)):
                        prob[at + o], reward[at + o] = work.prob[o], work.reward[o]
                        follow[at + o], terminated[at + o] = work.target[o] >> 1, work.target[o] & 1

    @jit_closure()
    def allow(place, low, high, legal):
        """Write into `legal`, bool (rows, A), what is."""
        for i in range(low, high):
            state = _state_of(place, i)
            for action in range(place.n_actions):
                legal[i, action] = allowed(place, state, action)

    return survey, count, pack, outcomes, allow


def _value_of(transition: Any, n_outcomes: int) -> Any:
    @jit_closure(inline=True)
    def value_of(data, state, action, discount, v):
        """Return the value of a pair when states are worth `v`, whose last entry is the worth of an end."""
        value = total = 0.0
        for number in range(n_outcomes):
            chance, next_state, reward, terminated = transition(data, state, action, number)
            if chance > 0:
                total += chance
                value += chance * (reward + discount * v[v.size - 1 if terminated else np.int64(next_state)])
        return value / total if abs(total - 1.0) > ROUNDING_TOLERANCE else value

    return value_of


def _sweeps(allowed: Any, value_of: Any) -> tuple[Any, ...]:
    @jit_closure()
    def lowest(place, low, high, v):
        """Return the lowest mean reward of a pair. `v` is 0 everywhere, as long as in the other sweeps."""
        least = np.inf
        for state in range(low, high):
            for action in range(place.n_actions):
                if allowed(place, state, action):
                    least = min(least, value_of(place.data, state, action, 0.0, v))
        return least

    @jit_closure()
    def improve(place, low, high, discount, v, new, policy):
        """Write the values and actions that are best when states are worth `v`; return the largest change.

        `new` may be `v`.
        """
        change = 0.0
        for state in range(low, high):
            best = -np.inf
            for action in range(place.n_actions):
                if allowed(place, state, action):
                    value = value_of(place.data, state, action, discount, v)
                    if value > best:
                        best = value
                        policy[state] = action
            if best == -np.inf:
                best = 0.0
            change = max(change, abs(best - v[state]))
            new[state] = best
        return change

    @jit_closure()
    def evaluate(place, low, high, discount, v, new, policy, weights):
        """Write what a policy is worth when states are worth `v`; return the largest change.

        `policy` has an action for each state, -1 where none is legal, or is empty: then `weights` has
        probabilities, shape (S, A).
        """
        change = 0.0
        for state in range(low, high):
            value = 0.0
            if policy.size:
                if policy[state] >= 0:
                    value = value_of(place.data, state, policy[state], discount, v)
            else:
                for action in range(place.n_actions):
                    if weights[state, action] > 0.0:
                        value += weights[state, action] * value_of(place.data, state, action, discount, v)
            change = max(change, abs(value - v[state]))
            new[state] = value
        return change

    @jit_closure()
    def values(place, low, high, discount, v, q):
        """Write the value of each legal pair, shape (S, A)."""
        for state in range(low, high):
            for action in range(place.n_actions):
                if allowed(place, state, action):
                    q[state, action] = value_of(place.data, state, action, discount, v)

    return lowest, improve, evaluate, values


def _reach(allowed: Any, transition: Any, n_outcomes: int) -> Any:
    @jit_closure()
    def reach(place, waiting, size, reached):
        """Mark in `reached`, bool (S,), what can be come to without an end from the states marked there.

        They are the first `size` in `waiting`, int64 (S,), the room for states whose outcomes are not known.
        """
        while size > 0:
            size -= 1
            state = waiting[size]
            for action in range(place.n_actions):
                if allowed(place, state, action):
                    for number in range(n_outcomes):
                        chance, next_state, _, terminated = transition(place.data, state, action, number)
                        if chance > 0 and not terminated and not reached[np.int64(next_state)]:
                            reached[np.int64(next_state)] = True
                            waiting[size] = np.int64(next_state)
                            size += 1

    return reach


def _game(transition: Any, n_outcomes: int, start: Any) -> tuple[Any, Any]:
    @jit_closure()
    def step(simulated, memory, state, action, random):
        """Draw one of the outcomes, as `CompiledSimulator.game` wants it."""
        left = unit(random)
        came, reward_that_came, ends = np.int64(-1), 0.0, False
        for number in range(n_outcomes):
            chance, next_state, reward, terminated = transition(simulated.data, state, action, number)
            if chance > 0:  # the last of them takes what rounding leaves
                came, reward_that_came, ends = np.int64(next_state), np.float64(reward), bool(terminated)
                if left < chance:
                    break
                left -= chance
        return came, reward_that_came, ends

    if start is None:

        @jit_closure()
        def reset(simulated, memory, random):
            return drawn_start(simulated.start_threshold, simulated.start_states, random)

    else:

        @jit_closure()
        def reset(simulated, memory, random):
            return np.int64(start(simulated.data, random))

    return reset, step
