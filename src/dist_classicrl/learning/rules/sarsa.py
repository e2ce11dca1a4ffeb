"""SARSA: Rummery and Niranjan (1994); Sutton and Barto (2018), section 6.4."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.learning.behavior import next_value
from dist_classicrl.learning.rules.kernel import bits, rule_function, update, value
from dist_classicrl.learning.rules.truths import behavior_values
from dist_classicrl.rules import LearningRule, Range, register


class Sarsa(NamedTuple):
    """Q(s, a) moves towards r + gamma Q(s', a'), a' being the action that is played in s' (equation 6.7).

    It is learned when a' has been chosen; where an episode is truncated, a' is drawn for that alone. It
    converges to the values of the behavior, which follows them: with epsilon-greedy actions to those of the
    best policy that explores with this epsilon. No hyper-parameters.
    """


# What a walker remembers: whether a step waits, its state and action; and its reward.
_WAITS, _STATE, _ACTION = 0, 1, 2


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    """Learn the step before, now that the next action is known."""
    whole, w = context.whole, now.walker
    if whole[w, _WAITS] == 1:
        whole[w, _WAITS] = 0
        target = context.real[w, 0] + context.discount * value(context, state, action)
        learned = update(context, now, whole[w, _STATE], whole[w, _ACTION], target, learned)
    return learned


@rule_function
def learn(rule, context, now, step, learned):
    """Keep a step until the next action is known; learn it at once where an episode ends."""
    if step.terminated or step.truncated:
        target = step.reward
        if step.truncated:
            target += context.discount * next_value(rule, context, now, step, bits(now, 0))
        return update(context, now, step.state, step.action, target, learned)
    whole, w = context.whole, now.walker
    whole[w, _WAITS], whole[w, _STATE], whole[w, _ACTION] = 1, step.state, step.action
    context.real[w, 0] = step.reward
    return learned


RULE = register(
    LearningRule(
        name="sarsa",
        parameters=Sarsa,
        learn=learn,
        on_action=learn_waiting,
        truth=behavior_values,
        memory=lambda parameters: (3, 1),
        waits=lambda parameters: 1,
        can_travel=True,
        whole_ranges=lambda parameters, states, actions: (
            Range("whether a step waits", 0, 1),
            Range("its state", 0, states - 1),
            Range("its action", 0, actions - 1),
        ),
    )
)
