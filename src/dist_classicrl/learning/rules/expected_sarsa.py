"""Expected SARSA: van Seijen, van Hasselt, Whiteson and Wiering (2009)."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.behavior import expected_value
from dist_classicrl.learning.rules.kernel import rule_function, update
from dist_classicrl.learning.rules.truths import behavior_values
from dist_classicrl.rules import LearningRule, register


class ExpectedSarsa(NamedTuple):
    """Q(s, a) moves towards r + gamma sum_a' pi(a' | s') Q(s', a'), pi being the behavior.

    Sutton and Barto (2018), equation 6.9. It converges to what SARSA converges to, with less variance. No
    hyper-parameters.
    """


@rule_function
def learn(rule, context, now, step, learned):
    """Learn the reward and, unless s' is terminal, the discounted mean value of the behavior there."""
    target = step.reward
    if not step.terminated:
        target += context.discount * expected_value(context.behavior, rule, context, now, step)
    return update(context, now, step.state, step.action, target, learned)


RULE = register(
    LearningRule(
        name="expected_sarsa",
        parameters=ExpectedSarsa,
        learn=learn,
        truth=behavior_values,
        can_replay=True,
        can_travel=True,
    )
)
