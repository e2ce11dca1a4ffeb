"""Dyna-Q and Dyna-Q+: Sutton (1990); Sutton and Barto (2018), sections 8.2 and 8.3."""

from __future__ import annotations

import math
from typing import NamedTuple

from dist_classicrl._random import GAMMA, mix
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules import learned_model
from dist_classicrl.learning.rules.kernel import best_value, bits, rule_function, unvisited, update
from dist_classicrl.learning.rules.truths import optimal_values
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import actions_of


class DynaQ(NamedTuple):
    """Q-learning, which after each step learns some more that a model makes.

    A planning step is of a pair that was tried, with an outcome drawn as often as it came there. With a
    `bonus` it is Dyna-Q+: a planned reward is larger by ``bonus * sqrt(tau)``, where the pair was not tried
    for tau steps, and an action that was never tried leads back to its state, with a reward of 0. A planning
    step is no visit: step sizes that fall with visits are what the last visit left. Each worker has a model
    of its own, of what it met itself, which ranks do not exchange: what they learn of it is merged.

    Attributes
    ----------
    planning_steps : int
        From 0 to 1,048,576 for each step.
    bonus : float
        At least 0: kappa.
    successors : int
        Different outcomes that are kept for each pair; another one takes the place of the rarest.
    """

    planning_steps: int = 10
    bonus: float = 0.0
    successors: int = 8


@rule_function
def learn(rule, context, now, step, learned):
    """Learn a step, keep its outcome, and plan."""
    target = step.reward
    if not step.terminated:
        target += context.discount * best_value(context, step)
    learned = update(context, now, step.state, step.action, target, learned)
    learned_model.take_note(context, step, rule.successors, False)
    n_actions = actions_of(context.table)
    planned = unvisited(now)
    random = bits(now, 0)
    for _ in range(rule.planning_steps):
        random += GAMMA
        drawn = mix(random)
        if rule.bonus > 0.0:
            pair = learned_model.any_pair(context, drawn)
        else:
            pair = learned_model.tried_pair(context, drawn)
        state = pair // n_actions
        if learned_model.was_tried(context, pair):
            target = learned_model.drawn_target(context, pair, rule.successors, mix(drawn))
        else:
            target = context.discount * learned_model.best_of(context, state)
        if rule.bonus > 0.0:
            target += rule.bonus * math.sqrt(learned_model.waited(context, pair))
        learned = update(context, planned, state, pair - state * n_actions, target, learned)
    return learned


def check(parameters: DynaQ) -> None:
    """Raise SettingsError unless the hyper-parameters are allowed."""
    learned_model.check_numbers("DynaQ", parameters)
    if not 0.0 <= parameters.bonus < math.inf:
        raise SettingsError(f"DynaQ: bonus must be at least 0, got {parameters.bonus:g}.")


def truth(model, parameters, settings):
    """Return Q*: with a bonus values stay above it, by what that adds to planned rewards.

    So it is near what they come to only where ``bonus * sqrt(tau)`` is small beside the rewards.
    """
    return optimal_values(model, parameters, settings)


RULE = register(
    LearningRule(
        name="dyna_q",
        parameters=DynaQ,
        learn=learn,
        truth=truth,
        check=check,
        idle=lambda parameters: (
            {}
            if parameters.planning_steps
            else dict.fromkeys(("bonus", "successors"), learned_model.NO_PLANNING)
        ),
        check_source=lambda parameters, source: learned_model.check_source(
            "DynaQ", parameters.successors, False, source
        ),
        **learned_model.declared(queue=False),
    )
)
