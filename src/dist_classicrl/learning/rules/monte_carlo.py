"""Monte Carlo control: Sutton and Barto (2018), sections 5.3 and 5.4."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl._jit import jit
from dist_classicrl.learning.behavior import next_value
from dist_classicrl.learning.rules import returns
from dist_classicrl.learning.rules.kernel import bits, rule_function, update, value
from dist_classicrl.learning.rules.truths import behavior_values
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import actions_of


class MonteCarlo(NamedTuple):
    """Q(s, a) moves towards all that was collected from there to the end of the episode.

    All visits count, or the first one of each episode. An episode is learned when it ends, the newest step
    first; one that is truncated, or longer than `longest`, goes on with the value of the action that is
    chosen then. It converges to what SARSA converges to: for a behavior as an array to the values of that.

    Attributes
    ----------
    longest : int
        Steps, from 1 to 65,536, after which an episode is learned in any case; a walker keeps 32 bytes for
        each.
    first_visit : bool
        Whether the first visit of an episode alone counts. It compares all steps of an episode. Of one that
        is longer than `longest` each part is learned by itself, and a pair's first visit in each counts.
    """

    longest: int = 1000
    first_visit: bool = False


@jit
def _learn_episode(rule, context, now, bootstrap, learned):
    n = rule.longest
    target = 0.0
    for k in range(returns.waiting(context, now) - 1, -1, -1):
        target, entry = returns.target_back(context, now, n, k, bootstrap, target)
        if not (rule.first_visit and returns.has_earlier(context, now, n, k)):
            row, action = divmod(entry, actions_of(context.table))
            learned = update(context, now, row, action, target, learned)
    returns.forget(context, now)
    return learned


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    """Go on with the action that was chosen; learn the episode so far if it is as long as it may be."""
    count = returns.waiting(context, now)
    if count > 0:
        returns.follow(context, now, rule.longest, 0.0, 1.0)
    if count == rule.longest:
        learned = _learn_episode(rule, context, now, value(context, state, action), learned)
    return learned


@rule_function
def learn(rule, context, now, step, learned):
    """Keep a step; learn the episode where it ends."""
    returns.keep(context, now, rule.longest, step)
    if step.terminated or step.truncated:
        bootstrap = 0.0
        if step.truncated:
            bootstrap = next_value(rule, context, now, step, bits(now, 0))
        learned = _learn_episode(rule, context, now, bootstrap, learned)
    return learned


RULE = register(
    LearningRule(
        name="monte_carlo",
        parameters=MonteCarlo,
        learn=learn,
        on_action=learn_waiting,
        truth=behavior_values,
        **returns.declared("longest", can_travel=False),
    )
)
