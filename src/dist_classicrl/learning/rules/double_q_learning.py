"""Double Q-learning: van Hasselt, "Double Q-learning", NeurIPS 2010."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dist_classicrl.learning.rules.kernel import best_action, bits, rule_function, update, value, value_ahead
from dist_classicrl.learning.rules.truths import optimal_values
from dist_classicrl.rules import LearningRule, register


class DoubleQLearning(NamedTuple):
    """Two tables, of which each step moves one, drawn evenly: it chooses in s', and the other one values.

    Q1(s, a) moves towards r + gamma Q2(s', argmax_a' Q1(s', a')), or the other way round (Sutton and Barto,
    2018, equation 6.10): the largest of noisy values is too large, and the value of another estimate for the
    same action is not. Actions are compared by the sum of both, and ``q_table`` is their mean. No
    hyper-parameters.
    """


@rule_function
def learn(rule, context, now, step, learned):
    """Move one of the tables, drawn by the step's own random bits."""
    mine = np.int64(bits(now, 0) & np.uint64(1))
    target = step.reward
    if not step.terminated:
        action = best_action(context, step, bits(now, 1), mine)
        target += context.discount * value_ahead(context, step, action, 1 - mine)
    return update(context, now, step.state + mine * context.table.n_states, step.action, target, learned)


@rule_function
def sum_of_both(rule, context, state, action):
    """Return the sum of both values of an action."""
    return value(context, state, action) + value(context, state + context.table.n_states, action)


RULE = register(
    LearningRule(
        name="double_q_learning",
        parameters=DoubleQLearning,
        learn=learn,
        truth=optimal_values,
        preference=sum_of_both,
        tables=("first", "second"),
        can_replay=True,
        can_travel=True,
    )
)
