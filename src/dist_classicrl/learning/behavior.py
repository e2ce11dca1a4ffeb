"""How a walker chooses its actions: jitted functions, picked by the class of a behavior's parameters.

A behavior is a NamedTuple, as a rule is. `BEHAVIORS` has its functions:
`choose` for states whose legal actions are known from the state, `choose_masked` for those that come with a
mask, and `expected_value`, the mean value of the next state under it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, overloads, picked
from dist_classicrl._random import SHIFT_32, below
from dist_classicrl.learning.rules.kernel import (
    best_value,
    mean_value,
    preference,
    rule_function,
    rule_of_type,
)
from dist_classicrl.tables.rows import actions_of, any_greedy_action, greedy_action

_ONE_OF_2_32 = 2.0**-32


class Functions(NamedTuple):
    """The jitted functions of a behavior."""

    choose: Callable[..., Any]
    choose_masked: Callable[..., Any]
    expected_value: Callable[..., Any]


BEHAVIORS: dict[type, Functions] = {}
"""By the class of a behavior's parameters."""


def _of_behavior(name: str) -> Callable[[Any], Any]:
    """Return what finds the function that a behavior has by this name."""

    def function_of(behavior_type: Any) -> Callable[..., Any] | None:
        functions = BEHAVIORS.get(getattr(behavior_type, "instance_class", type(None)))
        return None if functions is None else getattr(functions, name)

    return function_of


@picked(_of_behavior("choose"))
def choose(behavior, rule, context, state, epsilon, random):
    """Return an action in `state`, drawn with the uint64 `random`."""
    raise NotImplementedError("choose is for jitted code")


@picked(_of_behavior("choose_masked"), inline=False)
def choose_masked(behavior, rule, context, state, masks, i, epsilon, random):
    """Return an action in `state` that row `i` of `masks`, bool of shape (B, A), allows."""
    raise NotImplementedError("choose_masked is for jitted code")


def expected_value(behavior, rule, context, now, step, table=0):
    """Return the mean value of the next state in one of the rule's tables, under the behavior."""
    raise NotImplementedError("expected_value is for jitted code")


def _has_no_preference(rule_type: Any) -> bool:
    rule = rule_of_type(rule_type)
    return rule is None or rule.preference is None


@overloads(expected_value, inline=True)
def _overload_expected_value(behavior, rule, context, now, step, table=0):
    function = _of_behavior("expected_value")(behavior)
    if function is None:
        return None

    def call(behavior, rule, context, now, step, table=0):
        return function(behavior, rule, context, now, step, table)

    return call


@rule_function
def next_action(rule, context, now, step, random):
    """Return the action that the behavior would choose in the next state, which some action is legal in."""
    return choose_legal(rule, context, step.next_state, context.masks, step.i, now.epsilon, random)


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


def known_best(rule, context, state):
    """Return the best action in `state`, or -1 where that has to be looked for."""
    raise NotImplementedError("known_best is for jitted code")


@overloads(known_best, inline=True)
def _overload_known_best(rule, context, state):
    if _has_no_preference(rule):
        return lambda rule, context, state: greedy_action(context.table, state)
    return lambda rule, context, state: np.int64(-1)


def find_best(rule, context, state, random):
    """Return one of the best actions in `state`, each with the same chance."""
    raise NotImplementedError("find_best is for jitted code")


@overloads(find_best)
def _overload_find_best(rule, context, state, random):
    if _has_no_preference(rule):
        return lambda rule, context, state, random: any_greedy_action(context.table, state, random)

    def by_preference(rule, context, state, random):
        n_actions = actions_of(context.table)
        top, count = -np.inf, 0
        for action in range(n_actions):
            worth = preference(rule, context, state, action)
            count = 1 if worth > top else count + (worth == top)
            top = max(top, worth)
        pick = below(random, count)
        for action in range(n_actions):
            if preference(rule, context, state, action) == top:
                if pick == 0:
                    return action
                pick -= 1
        return 0

    return by_preference


# Epsilon-greedy


class EpsilonGreedy(NamedTuple):
    """With chance epsilon a uniformly random legal action, else the best one, ties broken evenly."""


@rule_function
def _choose(behavior, rule, context, state, epsilon, random):
    explores = draws(epsilon, random)
    action = known_best(rule, context, state)
    other = any_action(context.table.legal, state, actions_of(context.table), random)
    if action < 0 and not explores:
        action = find_best(rule, context, state, random)
    return other if explores else action


@jit
def _choose_masked(behavior, rule, context, state, masks, i, epsilon, random):
    explores = draws(epsilon, random)
    n_actions = actions_of(context.table)
    top = -np.inf
    for action in range(n_actions):
        if masks[i, action] and not explores:
            top = max(top, preference(rule, context, state, action))
    count = 0
    for action in range(n_actions):
        count += masks[i, action] and (explores or preference(rule, context, state, action) == top)
    pick = below(random, count)
    for action in range(n_actions):
        if masks[i, action] and (explores or preference(rule, context, state, action) == top):
            if pick == 0:
                return action
            pick -= 1
    return 0


@rule_function
def _expected_value(behavior, rule, context, now, step, table):
    greedy = best_value(context, step, table)
    return greedy + now.epsilon * (mean_value(context, step, table) - greedy)


BEHAVIORS[EpsilonGreedy] = Functions(_choose, _choose_masked, _expected_value)
