"""Prediction, the values of the states under a policy: TD(0), n-step TD and TD(lambda).

Sutton (1988); Sutton and Barto (2018), equations 6.2, 7.2 and 12.9.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl.learning.rules import returns
from dist_classicrl.learning.rules.kernel import is_legal, rule_function, update_row, value
from dist_classicrl.learning.rules.truths import behavior_policy
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import actions_of


class TD(NamedTuple):
    """V(s) moves towards what the behavior collects, by the lambda-return truncated after n steps.

    G_t = r + gamma ((1 - lambda) V(s') + lambda G_t+1), which after n steps ends with r + gamma V(s'). With
    n = 1 it is TD(0), with ``trace_decay=1`` n-step TD. The policy is given as ``behavior=``, an array of
    shape (states, actions). What is learned is a value for each state: in ``q_table`` all legal actions of a
    state have it, up to what compression leaves behind or writers take from each other, and each of them
    counts a visit of the state. Where an environment is stepped and tells masks, all actions have and count
    it, illegal ones, too: give `predict` the mask there. Differences of values say nothing of actions: the
    other behaviors choose evenly among the legal ones, but for "ucb", which does so in the long run.

    Attributes
    ----------
    n : int
        Steps, from 1 to 65,536.
    trace_decay : float
        lambda, from 0 to 1.
    """

    n: int = 1
    trace_decay: float = 1.0


@jit
def _learn_steps(rule, context, now, step, v, learned):
    """Keep a step; learn the state of the oldest if there are n, and those of all where an episode ends."""
    returns.keep(context, now, rule.n, step)
    n_actions = actions_of(context.table)
    if step.terminated or step.truncated:
        target = 0.0
        for k in range(returns.waiting(context, now) - 1, -1, -1):
            target, entry = returns.target_back(context, now, rule.n, k, v, target)
            row, action = divmod(entry, n_actions)
            learned = update_row(context, now, row, action, target, learned)
        returns.forget(context, now)
        return learned
    returns.follow(context, now, rule.n, (1.0 - rule.trace_decay) * v, rule.trace_decay)
    if returns.waiting(context, now) == rule.n:
        target, entry = returns.target_of_oldest(context, now, rule.n, v)
        row, action = divmod(entry, n_actions)
        learned = update_row(context, now, row, action, target, learned)
    return learned


@rule_function
def preference(rule, context, state, action):
    """Compare no actions: where their values differ that is noise, as of rounding."""
    return 0.0 if value(context, state, action) > -np.inf else -np.inf


@jit_inline
def _value_ahead(context, step):
    """Return the next state's value, that of its first legal action; 0 where none is legal.

    The largest one would be biased upwards where they differ, and a mean rounded where they do not.
    """
    n_actions = actions_of(context.table)
    for action in range(n_actions):
        if is_legal(context.table.legal, context.masks, step.next_state, n_actions, action, step.i):
            return value(context, step.next_state, action)
    return 0.0


@rule_function
def learn(rule, context, now, step, learned):
    """Learn a step at once where it is one alone, and else with those that wait."""
    v = 0.0 if step.terminated else _value_ahead(context, step)
    if rule.n > 1:
        return _learn_steps(rule, context, now, step, v, learned)
    return update_row(context, now, step.state, step.action, step.reward + context.discount * v, learned)


def truth(model, parameters, settings):
    """Return the values of the states under the behavior, for each legal action, shape (S, A)."""
    v = model.policy_value(behavior_policy(model, settings), settings.discount_factor)
    return np.where(model.legal_pairs(), v[:, None], 0.0)


def idle(parameters: TD) -> dict[str, str]:
    """See `LearningRule`."""
    return {"epsilon": "compares no actions", **returns.idle_alone("trace_decay")(parameters)}


RULE = register(
    LearningRule(
        name="td",
        parameters=TD,
        learn=learn,
        truth=truth,
        preference=preference,
        idle=idle,
        **returns.declared(share="trace_decay", learns_at_once=True),
    )
)
