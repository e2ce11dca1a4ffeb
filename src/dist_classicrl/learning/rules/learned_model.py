"""A model of the environment that a worker learns for itself: how often each outcome of a pair came.

It is kept as one array of float64, whose first numbers count, and behind which stand, by the pair or the
outcome, what the names here say. A pair keeps `successors` different outcomes, a next state and whether the
episode ended; another one takes the place of the rarest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, below, mix
from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.reachability import most_different
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules.kernel import is_legal
from dist_classicrl.rules import Range
from dist_classicrl.tables.rows import actions_of, row_maximum, value_of

N_PAIRS, TIME, N_WAITING = 0, 1, 2  # of the first numbers: pairs that were tried, steps, pairs in the queue
_FIRST = 4
_MOST_COUNTED = 1 << 53  # up to here a float64 counts

MOST_NUMBERS = 1 << 28
MOST_SUCCESSORS = 1 << 12
_COMPARED = 1 << 24  # outcomes of a model, which takes some seconds

# Of each pair: which was tried as the n-th, how many outcomes, when last, whether a mask allowed it.
_TRIED, _KNOWN, _LAST, _ALLOWED = 0, 1, 2, 3
# With priorities: the queue, a heap of pairs; where a pair is in it, from 1 on; and its priority.
_QUEUE, _WHERE, _PRIORITY = 4, 5, 6
_OF_PAIR, _OF_PAIR_WITH_QUEUE = 4, 7
# Of each outcome: next state doubled, plus 1 where it terminated; how often; the mean reward; and the next
# outcome that leads to the same state, from 1 on. The first one of each state stands behind all.
_TARGET, _COUNT, _REWARD, _NEXT = 0, 1, 2, 3
_OF_OUTCOME, _OF_OUTCOME_WITH_QUEUE = 3, 4


def size(successors: int, n_states: int, n_actions: int, queue: bool) -> int:
    """Return how many numbers a model has."""
    return sum(one.count for one in ranges(successors, n_states, n_actions, queue))


def ranges(successors: int, n_states: int, n_actions: int, queue: bool) -> tuple[Range, ...]:
    """Return what each number of a model may be, in their order."""
    pairs, none = n_states * n_actions, 0
    outcomes, most = pairs * successors, _MOST_COUNTED
    of_pair = [
        Range("the pairs that were tried", 0, pairs - 1, pairs),
        Range("how many outcomes a pair has", 0, successors, pairs),
        Range("when a pair was last tried", 0, most, pairs),
        Range("whether a pair is allowed", 0, 1, pairs),
        Range("the queue", 0, pairs - 1, pairs),
        Range("the places in the queue", 0, pairs, pairs),
        Range("the priorities", 0, math.inf, pairs, False),
    ]
    of_outcome = [
        Range("where outcomes lead", 0, 2 * n_states - 1, outcomes),
        Range("how often outcomes came", 0, most, outcomes),
        Range("the rewards", -math.inf, math.inf, outcomes, False),
        Range("the outcomes of the same state", 0, outcomes, outcomes),
    ]
    return (
        Range("how many pairs were tried", 0, pairs),
        Range("the steps", 0, most),
        Range("how many pairs wait", 0, pairs if queue else none),
        Range("what is not used", 0, none),
        *of_pair[: _OF_PAIR_WITH_QUEUE if queue else _OF_PAIR],
        *of_outcome[: _OF_OUTCOME_WITH_QUEUE if queue else _OF_OUTCOME],
        *([Range("the first outcome of a state", 0, outcomes, n_states)] if queue else []),
    )


def contradiction(model: np.ndarray, successors: int, n_states: int, n_actions: int, queue: bool) -> str:
    """Return which numbers of a model, all in their ranges, contradict each other; "" where none do."""
    pairs = n_states * n_actions
    rows = _OF_PAIR_WITH_QUEUE if queue else _OF_PAIR
    behind = _FIRST + rows * pairs
    of_pair = model[_FIRST:behind].reshape(rows, pairs)
    heads = model[model.size - n_states :] if queue else model[:0]
    of_outcome = model[behind : model.size - heads.size].reshape(-1, pairs, successors)
    known = of_pair[_KNOWN]
    is_known = np.arange(successors) < known[:, np.newaxis]
    tried = np.sort(of_pair[_TRIED, : int(model[N_PAIRS])])
    if not np.array_equal(tried, np.flatnonzero(known)):
        return "has outcomes of other pairs than were tried"
    if (of_outcome[_COUNT][is_known] < 1.0).any():
        return "has an outcome that never came"
    if (of_pair[_LAST] > model[TIME]).any():
        return "has a pair that was tried after the last step"
    if not queue:
        return ""
    return _wrong_queue(of_pair, int(model[N_WAITING])) or _wrong_lists(of_outcome, is_known, heads)


def _wrong_queue(of_pair: np.ndarray, n_waiting: int) -> str:
    """Return why pairs do not wait in the order of their priorities, or ""."""
    queue = of_pair[_QUEUE, :n_waiting].astype(np.int64)
    places = np.zeros(of_pair.shape[1])
    places[queue] = np.arange(1, n_waiting + 1)
    priorities = of_pair[_PRIORITY, queue]
    above = (np.arange(1, n_waiting) - 1) // 2
    if not np.array_equal(places, of_pair[_WHERE]) or (of_pair[_KNOWN, queue] == 0.0).any():
        return "has other pairs in the queue than wait"
    return "has a queue in another order" if (priorities[1:] > priorities[above]).any() else ""


def _wrong_lists(of_outcome: np.ndarray, is_known: np.ndarray, heads: np.ndarray) -> str:
    """Return why the outcomes that lead to a state are not the list that begins at `heads`, or ""."""
    targets = of_outcome[_TARGET].reshape(-1).astype(np.int64)
    listed = np.flatnonzero(is_known.reshape(-1) & (targets % 2 == 0))
    links = np.concatenate([heads, of_outcome[_NEXT].reshape(-1)[listed]]).astype(np.int64) - 1
    states = np.concatenate([np.arange(heads.size), targets[listed] >> 1])
    is_link = links >= 0
    after = links[is_link]
    is_once = np.array_equal(np.sort(after), listed)
    if not is_once or (targets[after] >> 1 != states[is_link]).any():
        return "has outcomes in other lists than those of their states"
    # Each is behind one other: they come from the heads unless some go round, whose ancestors never end.
    before = np.full(targets.size, -1)
    before[after] = np.concatenate([np.full(heads.size, -1), listed])[is_link]
    for _ in range(listed.size.bit_length()):
        goes_on = before >= 0
        before[goes_on] = before[before[goes_on]]
    return "has a list of outcomes without an end" if (before >= 0).any() else ""


NO_PLANNING = "plans nothing with planning_steps=0"
"""Why a hyper-parameter of planning plays no part."""


def declared(queue: bool) -> dict[str, Any]:
    """Return what a rule with a model of so many `successors` declares of it, for `LearningRule`."""
    return {
        "model": lambda parameters, states, actions: size(parameters.successors, states, actions, queue),
        "model_ranges": lambda parameters, states, actions: ranges(
            parameters.successors, states, actions, queue
        ),
        "check_model": lambda parameters, states, actions, model: contradiction(
            model, parameters.successors, states, actions, queue
        ),
        "note_masks": note_masks,
    }


def note_masks(model: np.ndarray, n_states: int, states: np.ndarray, masks: np.ndarray) -> None:
    """Keep which actions are allowed in some states."""
    n_pairs = n_states * masks.shape[1]
    allowed = model[_FIRST + _ALLOWED * n_pairs :][:n_pairs]
    allowed.reshape(n_states, -1)[states] = masks


def check_source(name: str, successors: int, queue: bool, source: Source) -> None:
    """Raise SettingsError where a model would be too large, or keep too few outcomes of a known one."""
    if source.keys is not None:
        raise SettingsError(
            f"{name} keeps a model with a row for each state, and {source.name} has keys as states. Take a "
            f'rule such as "q_learning", or {source.way_to_numbers}.'
        )
    numbers = size(successors, source.n_states, source.n_actions, queue)
    if numbers > MOST_NUMBERS:
        raise SettingsError(
            f"{name} would keep {numbers / 2**27:.3g} GiB of what it knows of {source.name} on each worker, "
            f"and at most {MOST_NUMBERS / 2**27:g} are allowed. Make successors={successors} smaller, or "
            'take a rule such as "q_learning".'
        )
    model = None if source.simulator is None else source.simulator.model
    most = _most_successors(model, successors)
    if most > successors:
        raise SettingsError(
            f"{name}: successors={successors} are fewer outcomes than a pair of {source.name} has, {most}. "
            f"Write successors={most}."
        )


def _most_successors(model: Any, enough: int) -> int:
    """Return how many different outcomes a pair of a model has at most, or a number up to `enough`.

    Of a model with very many outcomes, which would take minutes to compare, those alike count as well.
    """
    if isinstance(model, FunctionMDP):
        most, pairs = model.most_outcomes, model.n_states * model.n_actions
        return most if most <= enough or most * pairs > _COMPARED else model.most_successors
    if isinstance(model, TabularMDP):
        most = int(np.diff(model.outcome_ptr).max(initial=0))
        if most <= enough or model.outcome_next.size > _COMPARED:
            return most
        return most_different(model.outcome_ptr, 2 * model.outcome_next + model.outcome_terminated)
    return 0


def check_numbers(name: str, parameters: Any) -> None:
    """Raise SettingsError unless planning steps and successors are allowed."""
    if not 0 <= parameters.planning_steps <= 1 << 20:
        raise SettingsError(
            f"{name}: planning_steps must be a whole number from 0 to {1 << 20:,}, got "
            f"{parameters.planning_steps}."
        )
    if not 1 <= parameters.successors <= MOST_SUCCESSORS:
        raise SettingsError(
            f"{name}: successors must be a whole number from 1 to {MOST_SUCCESSORS:,}, got "
            f"{parameters.successors}."
        )


@jit_inline
def _pairs(context):
    return context.table.n_states * actions_of(context.table)


@jit_inline
def _of_pair(context, what, pair):
    return _FIRST + what * _pairs(context) + pair


@jit_inline
def of_pair(context, what, pair):
    """Return a number of a pair."""
    return context.model[_of_pair(context, what, pair)]


@jit_inline
def _of_outcome(context, successors, queue, what, pair, k):
    n_pairs = _pairs(context)
    first = _FIRST + n_pairs * (_OF_PAIR_WITH_QUEUE if queue else _OF_PAIR)
    return first + (what * n_pairs + pair) * successors + k


@jit_inline
def _first_to(context, successors, state):
    """Return where the first outcome stands that leads to a state."""
    n_pairs = _pairs(context)
    return _FIRST + n_pairs * (_OF_PAIR_WITH_QUEUE + successors * _OF_OUTCOME_WITH_QUEUE) + state


@jit
def keep_allowed(context, masks, step):
    """Keep which actions the mask of the next state allows, where one came with it."""
    if masks is not None:
        n_actions = actions_of(context.table)
        for action in range(n_actions):
            at = _of_pair(context, _ALLOWED, step.next_state * n_actions + action)
            context.model[at] = 1.0 if masks[step.i, action] else 0.0


@jit
def take_note(context, step, successors, queue):
    """Count the outcome of a step, and return its pair."""
    model = context.model
    pair = step.state * actions_of(context.table) + step.action
    keep_allowed(context, context.masks, step)
    model[_of_pair(context, _ALLOWED, pair)] = 1.0
    model[TIME] += 1.0
    model[_of_pair(context, _LAST, pair)] = model[TIME]
    known = np.int64(of_pair(context, _KNOWN, pair))
    if known == 0:
        model[_of_pair(context, _TRIED, np.int64(model[N_PAIRS]))] = pair
        model[N_PAIRS] += 1.0
    target = step.next_state * 2 + (1 if step.terminated else 0)
    place, rarest = -1, 0
    for k in range(known):
        if model[_of_outcome(context, successors, queue, _TARGET, pair, k)] == target:
            place = k
        counts = _of_outcome(context, successors, queue, _COUNT, pair, 0)
        if model[counts + k] < model[counts + rarest]:
            rarest = k
    if place < 0:
        place = known if known < successors else rarest
        if queue:
            _lead_to(context, pair, place, known == successors, target, successors)
        model[_of_pair(context, _KNOWN, pair)] = min(known + 1, successors)
        model[_of_outcome(context, successors, queue, _TARGET, pair, place)] = target
        model[_of_outcome(context, successors, queue, _COUNT, pair, place)] = 0.0
        model[_of_outcome(context, successors, queue, _REWARD, pair, place)] = 0.0
    at = _of_outcome(context, successors, queue, _COUNT, pair, place)
    model[at] += 1.0
    rewards = _of_outcome(context, successors, queue, _REWARD, pair, place)
    model[rewards] += (step.reward - model[rewards]) / model[at]
    return pair


@jit
def _lead_to(context, pair, place, is_taken, target, successors):
    """Enter an outcome into the list of those that lead to its state, and take it out of another one."""
    model = context.model
    name = pair * successors + place
    first_next = _of_outcome(context, successors, True, _NEXT, 0, 0)
    if is_taken:
        old = np.int64(model[_of_outcome(context, successors, True, _TARGET, pair, place)])
        at = _first_to(context, successors, old >> 1)
        while (old & 1) == 0 and model[at] != 0.0:
            if model[at] == name + 1:
                model[at] = model[first_next + name]
                break
            at = first_next + np.int64(model[at]) - 1
    model[first_next + name] = 0.0
    if (target & 1) == 0:  # nothing is learned of what lies behind an end
        first = _first_to(context, successors, target >> 1)
        model[first_next + name] = model[first]
        model[first] = name + 1


@jit_inline
def best_of(context, state):
    """Return the largest value of a state's actions that are legal, as far as is known."""
    return _best_of(context, context.masks, state)


@jit_inline
def _best_of(context, masks, state):
    if masks is None:
        return row_maximum(context.table, state)
    n_actions, top = actions_of(context.table), -np.inf
    for action in range(n_actions):
        if of_pair(context, _ALLOWED, state * n_actions + action) > 0.0:
            top = max(top, value_of(context.table, state, action))
    return 0.0 if top == -np.inf else top


@jit_inline
def is_allowed(context, state, action):
    """Return whether an action is legal, as far as is known."""
    return _is_allowed(context, context.masks, state, action)


@jit_inline
def _is_allowed(context, masks, state, action):
    n_actions = actions_of(context.table)
    if masks is None:
        return is_legal(context.table.legal, None, state, n_actions, action, 0)
    return of_pair(context, _ALLOWED, state * n_actions + action) > 0.0


@jit_inline
def _target(context, target, reward):
    """Return reward and discounted value of an outcome."""
    if (target & 1) == 1:
        return reward
    return reward + context.discount * best_of(context, target >> 1)


@jit
def drawn_target(context, pair, successors, random):
    """Return the target of an outcome of a pair, drawn as often as it came."""
    model = context.model
    known = np.int64(of_pair(context, _KNOWN, pair))
    counts = _of_outcome(context, successors, False, _COUNT, pair, 0)
    total = 0.0
    for k in range(known):
        total += model[counts + k]
    left = below(random, np.int64(total))
    place = known - 1
    for k in range(known):
        left -= np.int64(model[counts + k])
        if left < 0:
            place = k
            break
    target = np.int64(model[_of_outcome(context, successors, False, _TARGET, pair, place)])
    return _target(context, target, model[_of_outcome(context, successors, False, _REWARD, pair, place)])


@jit
def mean_target(context, pair, successors):
    """Return the mean target of a pair that was tried, in a model with a queue."""
    model = context.model
    total = times = 0.0
    for k in range(np.int64(of_pair(context, _KNOWN, pair))):
        count = model[_of_outcome(context, successors, True, _COUNT, pair, k)]
        target = np.int64(model[_of_outcome(context, successors, True, _TARGET, pair, k)])
        reward = model[_of_outcome(context, successors, True, _REWARD, pair, k)]
        total += count * _target(context, target, reward)
        times += count
    return total / times


@jit
def tried_pair(context, random):
    """Return one of the pairs that were tried, each with the same chance."""
    n = below(random, np.int64(context.model[N_PAIRS]))
    return np.int64(of_pair(context, _TRIED, n))


@jit
def any_pair(context, random):
    """Return a pair of a state that was acted in, of all actions that are legal there."""
    n_actions = actions_of(context.table)
    state = tried_pair(context, random) // n_actions
    n_legal = 0
    for action in range(n_actions):
        n_legal += is_allowed(context, state, action)
    pick = below(mix(random + GAMMA), n_legal)
    for action in range(n_actions):
        if is_allowed(context, state, action):
            if pick == 0:
                return state * n_actions + action
            pick -= 1
    return state * n_actions


@jit_inline
def was_tried(context, pair):
    """Return whether a pair was tried."""
    return of_pair(context, _KNOWN, pair) > 0.0


@jit_inline
def waited(context, pair):
    """Return for how many steps a pair was not tried."""
    return context.model[TIME] - of_pair(context, _LAST, pair)


# A queue of pairs by priority: a binary heap


@jit_inline
def _put(context, place, pair):
    context.model[_of_pair(context, _QUEUE, place)] = pair
    context.model[_of_pair(context, _WHERE, pair)] = place + 1


@jit_inline
def _at(context, place):
    return np.int64(of_pair(context, _QUEUE, place))


@jit
def queue_up(context, pair, priority):
    """Let a pair wait with this priority, or with that which it has if that is larger."""
    model = context.model
    place = np.int64(of_pair(context, _WHERE, pair)) - 1
    if place >= 0 and of_pair(context, _PRIORITY, pair) >= priority:
        return
    if place < 0:
        place = np.int64(model[N_WAITING])
        model[N_WAITING] += 1.0
    model[_of_pair(context, _PRIORITY, pair)] = priority
    while place > 0:
        above = (place - 1) // 2
        other = _at(context, above)
        if of_pair(context, _PRIORITY, other) >= priority:
            break
        _put(context, place, other)
        place = above
    _put(context, place, pair)


@jit
def take_first(context):
    """Return the pair of the highest priority, which waits no longer; -1 where none waits."""
    model = context.model
    n = np.int64(model[N_WAITING])
    if n == 0:
        return np.int64(-1)
    first, last = _at(context, 0), _at(context, n - 1)
    model[_of_pair(context, _WHERE, first)] = 0.0
    n -= 1
    model[N_WAITING] = n
    if n > 0:
        priority = of_pair(context, _PRIORITY, last)
        place = np.int64(0)
        while True:
            below_it = 2 * place + 1
            if below_it >= n:
                break
            if below_it + 1 < n:
                left = of_pair(context, _PRIORITY, _at(context, below_it))
                if of_pair(context, _PRIORITY, _at(context, below_it + 1)) > left:
                    below_it += 1
            other = _at(context, below_it)
            if of_pair(context, _PRIORITY, other) <= priority:
                break
            _put(context, place, other)
            place = below_it
        _put(context, place, last)
    return first


@jit_inline
def first_before(context, successors, state):
    """Return the first outcome that leads to a state, or -1; its pair is that divided by `successors`."""
    return np.int64(context.model[_first_to(context, successors, state)]) - 1


@jit_inline
def next_before(context, successors, outcome):
    """Return the outcome after this one that leads to the same state, or -1."""
    return np.int64(context.model[_of_outcome(context, successors, True, _NEXT, 0, 0) + outcome]) - 1
