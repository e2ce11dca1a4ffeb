"""SARSA(lambda) by truncated lambda-returns: Sutton and Barto (2018), sections 12.3 and 12.7."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.rules import returns
from dist_classicrl.learning.rules.kernel import rule_function, value
from dist_classicrl.learning.rules.truths import behavior_values
from dist_classicrl.rules import LearningRule, register


class SarsaLambda(NamedTuple):
    """Q(s, a) moves towards the lambda-return of the actions that are played, truncated after n steps.

    G_t = r + gamma ((1 - lambda) Q(s', a') + lambda G_t+1), equation 12.19, which after n steps ends with
    r + gamma Q(s', a') (equation 12.9, a forward view: nothing is kept per state). It converges to what SARSA
    converges to.

    Attributes
    ----------
    trace_decay : float
        lambda, from 0 (SARSA) to 1 (n-step SARSA).
    n : int
        Steps, from 1 to 65,536; what lies behind has a weight of ``trace_decay ** n`` less.
    """

    trace_decay: float = 0.9
    n: int = 16


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    """Go on with the action that was chosen; learn the oldest step if there are n."""
    count = returns.waiting(context, now)
    if count > 0:
        worth = value(context, state, action)
        returns.follow(context, now, rule.n, (1.0 - rule.trace_decay) * worth, rule.trace_decay)
        if count == rule.n:
            learned = returns.learn_oldest(context, now, rule.n, worth, learned)
    return learned


RULE = register(
    LearningRule(
        name="sarsa_lambda",
        parameters=SarsaLambda,
        learn=returns.learn_to_next_action,
        on_action=learn_waiting,
        truth=behavior_values,
        idle=returns.idle_alone("trace_decay"),
        **returns.declared(share="trace_decay"),
    )
)
