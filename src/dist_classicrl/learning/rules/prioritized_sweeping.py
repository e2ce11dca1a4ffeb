"""Prioritized sweeping: Moore and Atkeson (1993); Sutton and Barto (2018), section 8.4."""

from __future__ import annotations

from typing import NamedTuple

from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules import learned_model
from dist_classicrl.learning.rules.kernel import Learned, move, rule_function, unvisited, value
from dist_classicrl.learning.rules.truths import optimal_values
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import actions_of


class PrioritizedSweeping(NamedTuple):
    """Expected updates of a learned model, where they change most.

    After each step the value of its pair becomes the mean target of all outcomes that came there, and so do
    those of `planning_steps` pairs of the highest priority, which is by how much their values would change;
    who leads to a state whose value changed gets a new one. Nothing falls with visits: ``learning_rate``
    plays no part. Each worker has a model of its own, of what it met itself; on several ranks, whose values
    of a pair replace each other's, it takes longer than alone until all are right.

    Attributes
    ----------
    planning_steps : int
        From 0 to 1,048,576 for each step.
    threshold : float
        At least 0: a pair whose value would change by less does not wait.
    successors : int
        Different outcomes that are kept for each pair; another one takes the place of the rarest.
    """

    planning_steps: int = 10
    threshold: float = 1e-4
    successors: int = 8


@rule_function
def _look_back(rule, context, state):
    """Let those wait that lead to a state whose values changed."""
    outcome = learned_model.first_before(context, rule.successors, state)
    while outcome >= 0:
        _look_at(rule, context, outcome // rule.successors)
        outcome = learned_model.next_before(context, rule.successors, outcome)


@rule_function
def _look_at(rule, context, pair):
    state, action = divmod(pair, actions_of(context.table))
    target = learned_model.mean_target(context, pair, rule.successors)
    change = abs(target - value(context, state, action))
    if change > rule.threshold:
        learned_model.queue_up(context, pair, change)


@rule_function
def learn(rule, context, now, step, learned):
    """Take note of a step's outcome, and do the updates that change most."""
    pair = learned_model.take_note(context, step, rule.successors, True)
    target = learned_model.mean_target(context, pair, rule.successors)
    error = abs(target - value(context, step.state, step.action))
    learned = move(context, now, pair, target, 1.0, learned)
    learned = Learned(learned.touched, learned.error + error)
    if error > rule.threshold:
        _look_back(rule, context, step.state)
    planned = unvisited(now)
    for _ in range(rule.planning_steps):
        pair = learned_model.take_first(context)
        if pair < 0:
            break
        target = learned_model.mean_target(context, pair, rule.successors)
        learned = move(context, planned, pair, target, 1.0, learned)
        _look_back(rule, context, pair // actions_of(context.table))
    return learned


def idle(parameters: PrioritizedSweeping) -> dict[str, str]:
    """See `LearningRule`."""
    found = {"learning_rate": "lets a value become the mean target of all outcomes that came"}
    return found if parameters.planning_steps else {**found, "threshold": learned_model.NO_PLANNING}


def check(parameters: PrioritizedSweeping) -> None:
    """Raise SettingsError unless the hyper-parameters are allowed."""
    learned_model.check_numbers("PrioritizedSweeping", parameters)
    if not parameters.threshold >= 0.0:
        raise SettingsError(
            f"PrioritizedSweeping: threshold must be at least 0, got {parameters.threshold:g}."
        )


RULE = register(
    LearningRule(
        name="prioritized_sweeping",
        parameters=PrioritizedSweeping,
        learn=learn,
        truth=optimal_values,
        check=check,
        idle=idle,
        check_source=lambda parameters, source: learned_model.check_source(
            "PrioritizedSweeping", parameters.successors, True, source
        ),
        **learned_model.declared(queue=True),
    )
)
