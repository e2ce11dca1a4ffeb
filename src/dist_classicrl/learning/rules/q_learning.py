"""Q-learning: Watkins and Dayan, "Q-learning", Machine Learning 8, 1992."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.rules.kernel import best_value, rule_function, update
from dist_classicrl.learning.rules.truths import optimal_values
from dist_classicrl.rules import LearningRule, register


class QLearning(NamedTuple):
    """Q(s, a) moves towards r + gamma max_a' Q(s', a'), whatever is done in s' (no hyper-parameters)."""


@rule_function
def learn(rule, context, now, step, learned):
    """Learn the reward and, unless s' is terminal, the discounted value of the best action there."""
    target = step.reward
    if not step.terminated:
        target += context.discount * best_value(context, step)
    return update(context, now, step.state, step.action, target, learned)


RULE = register(
    LearningRule(
        name="q_learning",
        parameters=QLearning,
        learn=learn,
        truth=optimal_values,
        can_replay=True,
        can_travel=True,
    )
)
