"""How a walker chooses its actions: jitted functions, picked by the class of a behavior's parameters.

A behavior is a NamedTuple, as a rule is. `BEHAVIORS` has its functions:
`choose` for states whose legal actions are known from the state, `choose_masked` for those that come with a
mask, `expected_value`, the mean value of the next state under it, and `measure`, by which actions are told
apart in the loops that behaviors share: over the largest, over what is drawn, and over means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, picked_from, stub
from dist_classicrl._random import SHIFT_32, below, unit
from dist_classicrl.learning.rules.kernel import (
    best_value,
    bits,
    is_by_value,
    is_legal,
    mean_value,
    preference,
    rule_function,
    rule_of_type,
    value,
)
from dist_classicrl.rules.behaviors import UCB, Boltzmann, EpsilonGreedy, FixedPolicy
from dist_classicrl.rules.learning_rule import compared_by_class
from dist_classicrl.tables.rows import actions_of, any_greedy_action, greedy_action, visits_of

_ONE_OF_2_32 = 2.0**-32


class Functions(NamedTuple):
    """The jitted functions of a behavior."""

    choose: Callable[..., Any]
    choose_masked: Callable[..., Any]
    expected_value: Callable[..., Any]
    #: The number by which an action is told from others, see `measure`.
    measure: Callable[..., Any]


BEHAVIORS: dict[type, Functions] = {}
"""By the class of a behavior's parameters."""


@picked_from(BEHAVIORS.get)
def choose(behavior, rule, context, state, epsilon, random):
    """Return an action in `state`, drawn with the uint64 `random`."""


@picked_from(BEHAVIORS.get, inline=False)
def choose_masked(behavior, rule, context, state, masks, i, epsilon, random):
    """Return an action in `state` that row `i` of `masks`, bool of shape (B, A), allows."""


@picked_from(BEHAVIORS.get)
def measure(behavior, rule, context, state, action, known):
    """Return the number by which a behavior tells an action from others: a weight, or what is to be largest.

    `known`, float64, is what the behavior knows of all actions of the state.
    """


@stub
def expected_value(behavior, rule, context, now, step, table=0):
    """Return the mean value of the next state in one of the rule's tables, under the behavior.

    Which actions it chooses does not depend on `table`.
    """


def _has_no_preference(rule_type: Any) -> bool:
    rule = rule_of_type(rule_type)
    return rule is None or rule.preference is None


def _has_one_table(rule_type: Any) -> bool:
    rule = rule_of_type(rule_type)
    return rule is None or len(rule.tables) == 1


@overloads(expected_value, inline=True)
def _overload_expected_value(behavior, rule, context, now, step, table=0):
    functions = BEHAVIORS.get(getattr(behavior, "instance_class", type(None)))
    if functions is None:
        return None
    function = functions.expected_value

    def call(behavior, rule, context, now, step, table=0):
        return function(behavior, rule, context, now, step, table)

    return call


@rule_function
def next_action(rule, context, now, step, random):
    """Return the action that the behavior would choose in the next state, which some action is legal in."""
    return choose_legal(rule, context, step.next_state, context.masks, step.i, now.epsilon, random)


@jit
def next_value(rule, context, now, step, random):
    """Return the value of the action that the behavior would choose next; 0 where none is legal."""
    n_actions = actions_of(context.table)
    for action in range(n_actions):
        if is_legal(context.table.legal, context.masks, step.next_state, n_actions, action, step.i):
            return value(context, step.next_state, next_action(rule, context, now, step, random))
    return 0.0


@jit_inline
def choose_legal(rule, context, state, masks, i, epsilon, random):
    """Return an action in `state` that is legal by row `i` of `masks`, by the state where these are None."""
    if masks is None:
        return choose(context.behavior, rule, context, state, epsilon, random)
    return choose_masked(context.behavior, rule, context, state, masks, i, epsilon, random)


# What behaviors are made of


@jit_inline
def draws(chance, random):
    """Return whether the high 32 of the uint64 `random` say yes, which has this chance."""
    return np.float64(np.int64(random >> SHIFT_32)) * _ONE_OF_2_32 < chance


@jit_inline
def any_action(legal, state, n_actions, random):
    """Return one of the actions that are legal in `state`, by the low 32 of the uint64 `random`."""
    if legal is None:
        return below(random, n_actions)
    return np.int64(legal[1][state * n_actions + below(random, legal[0][state])])


@stub
def known_best(rule, context, state):
    """Return the best action in `state`, or -1 where that has to be looked for."""


@overloads(known_best, inline=True)
def _overload_known_best(rule, context, state):
    if _has_no_preference(rule):
        return lambda rule, context, state: greedy_action(context.table, state)

    def by_preference(rule, context, state):
        if is_by_value(rule, context, state):
            return np.int64(greedy_action(context.table, state))
        top, best, is_tie = preference(rule, context, state, 0), np.int64(0), False
        for action in range(1, actions_of(context.table)):
            worth = preference(rule, context, state, action)
            is_above = worth > top
            is_tie = (is_tie | (worth == top)) & (not is_above)
            best = action if is_above else best
            top = worth if is_above else top
        return np.int64(-1) if is_tie else best

    return by_preference


@stub
def find_best(rule, context, state, random):
    """Return one of the best actions in `state`, each with the same chance."""


@overloads(find_best)
def _overload_find_best(rule, context, state, random):
    if _has_no_preference(rule):
        return lambda rule, context, state, random: any_greedy_action(context.table, state, random)

    def by_preference(rule, context, state, random):
        return _largest(EpsilonGreedy(), rule, context, state, None, 0, 0.0, random)

    return by_preference


@jit_inline
def _allows(masks, i, action):
    return True if masks is None else masks[i, action]


@jit_inline
def _largest(behavior, rule, context, state, masks, i, known, random):
    """Return one of the allowed actions of the largest `measure`, each with the same chance."""
    n_actions = actions_of(context.table)
    top, first, n_best = -np.inf, 0, 0
    for action in range(n_actions):
        if _allows(masks, i, action):
            worth = measure(behavior, rule, context, state, action, known)
            n_best = 1 if worth > top else n_best + (worth == top)
            first = action if worth > top else first
            top = max(top, worth)
    pick = below(random, n_best)
    for action in range(n_actions):
        if _allows(masks, i, action):
            if measure(behavior, rule, context, state, action, known) == top:
                if pick == 0:
                    return action
                pick -= 1
    return first  # another writer has changed the row meanwhile


@jit_inline
def _drawn(behavior, rule, context, state, masks, i, known, random):
    """Return an allowed action, each with a chance in proportion to its `measure`; evenly where all are 0."""
    n_actions = actions_of(context.table)
    total, n_allowed = 0.0, 0
    for action in range(n_actions):
        if _allows(masks, i, action):
            total += measure(behavior, rule, context, state, action, known)
            n_allowed += 1
    left = unit(random) * (total if total > 0.0 else n_allowed)
    found = 0
    for action in range(n_actions):
        if _allows(masks, i, action):
            weight = measure(behavior, rule, context, state, action, known) if total > 0.0 else 1.0
            if weight > 0.0:
                found = action
                left -= weight
                if left < 0.0:
                    return action
    return found  # rounding left a little


@jit_inline
def _mean_by_measure(behavior, rule, context, step, table, known):
    """Return the mean value of the next state, weighed likewise; 0 where no action is legal."""
    state, n_actions = step.next_state, actions_of(context.table)
    row = state + table * context.table.n_states
    total = weights = rest = 0.0
    n_legal = 0
    for action in range(n_actions):
        if is_legal(context.table.legal, context.masks, state, n_actions, action, step.i):
            weight = measure(behavior, rule, context, state, action, known)
            worth = value(context, row, action)
            weights += weight
            total += weight * worth
            rest += worth
            n_legal += 1
    if weights > 0.0:
        return total / weights
    return rest / n_legal if n_legal > 0 else 0.0


# Epsilon-greedy


@rule_function
def _choose(behavior, rule, context, state, epsilon, random):
    explores = draws(epsilon, random)
    action = known_best(rule, context, state)
    other = any_action(context.table.legal, state, actions_of(context.table), random)
    if action < 0 and not explores:
        action = find_best(rule, context, state, random)
    return other if explores else action


@jit_inline
def _any_allowed(masks, i, n_actions, random):
    count = 0
    for action in range(n_actions):
        count += masks[i, action]
    pick = below(random, count)
    for action in range(n_actions):
        if masks[i, action]:
            if pick == 0:
                return action
            pick -= 1
    return 0


@jit
def _choose_masked(behavior, rule, context, state, masks, i, epsilon, random):
    if draws(epsilon, random):
        return _any_allowed(masks, i, actions_of(context.table), random)
    return _largest(behavior, rule, context, state, masks, i, 0.0, random)


@rule_function
def _measure_preference(behavior, rule, context, state, action, known):
    return preference(rule, context, state, action)


class _Greedy(NamedTuple):
    """Epsilon-greedy's behavior where it does not explore: evenly among the best actions."""


@rule_function
def _measure_greedy(behavior, rule, context, state, action, top):
    return 1.0 if _worth(rule, context, state, action) == top else 0.0


@stub
def _greedy_value(rule, context, step, table):
    """Return the next state's mean value in a table, over its best actions; 0 where none is legal."""


@overloads(_greedy_value, inline=True)
def _overload_greedy_value(rule, context, step, table):
    if _has_no_preference(rule):
        if _has_one_table(rule):
            return lambda rule, context, step, table: best_value(context, step, table)
        return lambda rule, context, step, table: (
            best_value(context, step) if table == 0 else _value_of_best(rule, context, step, table)
        )
    return lambda rule, context, step, table: _value_of_best(rule, context, step, table)


@jit
def _value_of_best(rule, context, step, table):
    top = _best_worth(rule, context, step.next_state, context.masks, step.i)
    return 0.0 if top == -np.inf else _mean_by_measure(_Greedy(), rule, context, step, table, top)


@rule_function
def _expected_value(behavior, rule, context, now, step, table):
    greedy = _greedy_value(rule, context, step, table)
    return greedy + now.epsilon * (mean_value(context, step, table) - greedy)


BEHAVIORS[EpsilonGreedy] = Functions(_choose, _choose_masked, _expected_value, _measure_preference)
BEHAVIORS[_Greedy] = BEHAVIORS[EpsilonGreedy]._replace(measure=_measure_greedy)


@compared_by_class
class Ladder(NamedTuple):
    """Epsilon-greedy with a power of epsilon: a rung of `EpsilonLadder`."""

    power: float


@rule_function
def _choose_on_rung(behavior, rule, context, state, epsilon, random):
    return _choose(behavior, rule, context, state, epsilon**behavior.power, random)


@jit
def _choose_masked_on_rung(behavior, rule, context, state, masks, i, epsilon, random):
    return _choose_masked(behavior, rule, context, state, masks, i, epsilon**behavior.power, random)


@rule_function
def _expected_value_on_rung(behavior, rule, context, now, step, table):
    greedy = _greedy_value(rule, context, step, table)
    return greedy + now.epsilon**behavior.power * (mean_value(context, step, table) - greedy)


BEHAVIORS[Ladder] = Functions(
    _choose_on_rung, _choose_masked_on_rung, _expected_value_on_rung, _measure_preference
)


def rung(number: int) -> float:
    """Return van der Corput's number from 0 to 1: 0, 1/2, 1/4, 3/4, 1/8 and so on, for 0, 1, 2, .."""
    place, found = 0.5, 0.0
    while number:
        found += place * (number & 1)
        number, place = number >> 1, place / 2.0
    return found


# Chances that a state's values tell: the exploration rate is the temperature


@stub
def _worth(rule, context, state, action):
    """Return by which value an action is compared: of a preference of several tables its share of a table.

    Such a preference is a sum, and so temperatures and bounds are those of the tables' mean.
    """


@overloads(_worth, inline=True)
def _overload_worth(rule, context, state, action):
    if _has_no_preference(rule):  # the value in the first table
        return lambda rule, context, state, action: preference(rule, context, state, action)
    return lambda rule, context, state, action: (
        preference(rule, context, state, action) / context.table.n_tables
    )


@jit_inline
def _best_worth(rule, context, state, masks, i):
    top = -np.inf
    for action in range(actions_of(context.table)):
        if _allows(masks, i, action):
            top = max(top, _worth(rule, context, state, action))
    return top


class _Warm(NamedTuple):
    """Boltzmann's behavior at a moment."""

    temperature: float


@rule_function
def _measure_heat(behavior, rule, context, state, action, top):
    return math.exp((_worth(rule, context, state, action) - top) / behavior.temperature)


@jit
def _by_temperature(behavior, rule, context, state, masks, i, temperature, random):
    top = _best_worth(rule, context, state, masks, i)
    return _drawn(_Warm(temperature), rule, context, state, masks, i, top, random)


@rule_function
def _choose_by_temperature(behavior, rule, context, state, epsilon, random):
    return _by_temperature(behavior, rule, context, state, None, 0, epsilon, random)


@rule_function
def _choose_masked_by_temperature(behavior, rule, context, state, masks, i, epsilon, random):
    return _by_temperature(behavior, rule, context, state, masks, i, epsilon, random)


@jit
def _value_by_temperature(behavior, rule, context, now, step, table):
    top = _best_worth(rule, context, step.next_state, context.masks, step.i)
    if top == -np.inf:
        return 0.0
    return _mean_by_measure(_Warm(now.epsilon), rule, context, step, table, top)


_BY_TEMPERATURE = Functions(
    _choose_by_temperature, _choose_masked_by_temperature, _value_by_temperature, _measure_heat
)
BEHAVIORS[Boltzmann] = BEHAVIORS[_Warm] = _BY_TEMPERATURE


# Upper confidence bounds


@jit_inline
def _visits(context, state, action):
    n = np.int64(0)
    for table in range(context.table.n_tables):
        n += np.int64(visits_of(context.table, state + table * context.table.n_states, action))
    return n


@rule_function
def _measure_bound(behavior, rule, context, state, action, log_visits):
    """Return the upper bound of an action's value; infinite where it was never tried, -inf if illegal."""
    worth = _worth(rule, context, state, action)
    if worth == -np.inf:
        return worth
    n = _visits(context, state, action)
    return worth + behavior.exploration * math.sqrt(log_visits / n) if n > 0 else np.inf


@jit
def _by_bound(behavior, rule, context, state, masks, i, random):
    visits = np.int64(0)
    for action in range(actions_of(context.table)):
        visits += _visits(context, state, action)
    return _largest(behavior, rule, context, state, masks, i, math.log(max(visits, 1)), random)


@rule_function
def _choose_by_bound(behavior, rule, context, state, epsilon, random):
    return _by_bound(behavior, rule, context, state, None, 0, random)


@rule_function
def _choose_masked_by_bound(behavior, rule, context, state, masks, i, epsilon, random):
    return _by_bound(behavior, rule, context, state, masks, i, random)


@jit
def _value_by_bound(behavior, rule, context, now, step, table):
    state = step.next_state
    if _best_worth(rule, context, state, context.masks, step.i) == -np.inf:
        return 0.0
    action = _by_bound(behavior, rule, context, state, context.masks, step.i, bits(now, 0))
    return value(context, state + table * context.table.n_states, action)


BEHAVIORS[UCB] = Functions(_choose_by_bound, _choose_masked_by_bound, _value_by_bound, _measure_bound)


# A policy that stays as it is


@rule_function
def _measure_chance(behavior, rule, context, state, action, known):
    return behavior.probabilities[state, action]


@jit
def _by_policy(behavior, rule, context, state, masks, i, random):
    return _drawn(behavior, rule, context, state, masks, i, 0.0, random)


@rule_function
def _choose_by_policy(behavior, rule, context, state, epsilon, random):
    return _by_policy(behavior, rule, context, state, None, 0, random)


@rule_function
def _choose_masked_by_policy(behavior, rule, context, state, masks, i, epsilon, random):
    return _by_policy(behavior, rule, context, state, masks, i, random)


@jit
def _value_by_policy(behavior, rule, context, now, step, table):
    return _mean_by_measure(behavior, rule, context, step, table, 0.0)


BEHAVIORS[FixedPolicy] = Functions(
    _choose_by_policy, _choose_masked_by_policy, _value_by_policy, _measure_chance
)
