"""n-step SARSA: Sutton and Barto (2018), section 7.2."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.rules import returns
from dist_classicrl.learning.rules.kernel import rule_function, value
from dist_classicrl.learning.rules.truths import behavior_values
from dist_classicrl.rules import LearningRule, register


class NStepSarsa(NamedTuple):
    """Q(s, a) moves towards n discounted rewards and the value of the action that is played then.

    Equation 7.4; with n = 1 it is SARSA. Where an episode ends sooner, the return ends there; where it is
    truncated, with the value of an action drawn there. It converges to what SARSA converges to.

    Attributes
    ----------
    n : int
        Steps, from 1 to 65,536; a walker keeps 32 bytes for each.
    """

    n: int = 4


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    """Go on with the action that was chosen; learn the oldest step if there are n."""
    count = returns.waiting(context, now)
    if count > 0:
        returns.follow(context, now, rule.n, 0.0, 1.0)
    if count == rule.n:
        learned = returns.learn_oldest(context, now, rule.n, value(context, state, action), learned)
    return learned


RULE = register(
    LearningRule(
        name="n_step_sarsa",
        parameters=NStepSarsa,
        learn=returns.learn_to_next_action,
        on_action=learn_waiting,
        truth=behavior_values,
        **returns.declared(),
    )
)
