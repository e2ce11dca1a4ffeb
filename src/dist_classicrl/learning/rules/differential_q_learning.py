"""Wan, Naik and Sutton, "Learning and Planning in Average-Reward Markov Decision Processes", ICML 2021."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import EnvError, SettingsError
from dist_classicrl.learning.rules.kernel import (
    best_value,
    move,
    rule_function,
    shared_entry,
    step_size,
    target_found,
    update,
    value,
)
from dist_classicrl.learning.rules.truths import relative_values
from dist_classicrl.rules import LearningRule, Shared, register


class DifferentialQLearning(NamedTuple):
    """For problems without an end: values are relative to the mean reward, which is learned, too.

    With d = r - g + max_a' Q(s', a') - Q(s, a), Q(s, a) grows by alpha d and g by min(1, eta alpha) d
    (equations 5 and 6, but for the bound of 1). g is one number that all ranks share, and converges to the
    largest mean reward; Q to the solution of the optimality equation, but for a constant. ``discount_factor``
    plays no part in what is learned, only in exact values and scores. A known model whose episodes terminate
    is refused; where an environment that is not known ends, what lies behind is worth 0.

    Attributes
    ----------
    eta : float
        Above 0.
    """

    eta: float = 1.0


@rule_function
def learn_there(rule, context, now, row, action, target, learned):
    """Move the value and the mean reward by the same error; the target is without that."""
    gain = shared_entry(context, 0)
    mean_reward = value(context, context.table.n_tables * context.table.n_states, 0)  # where `gain` stands
    # Of the table alone: g has no step size of its own, and a large one would move it beyond its target.
    alpha = min(1.0, rule.eta * step_size(context, now, row, action))
    old = value(context, row, action)
    learned = update(context, now, row, action, target - mean_reward, learned)
    # As a target of g, which makes it an affine update: r + max q' - q is where its own error is 0.
    return move(context, now, gain, target - old, alpha, learned)


@rule_function
def learn(rule, context, now, step, learned):
    """Learn r + max q' where the entry is; r alone where an episode terminates."""
    worth = 0.0 if step.terminated else best_value(context, step)
    return target_found(rule, context, now, step, step.reward + worth, learned)


def check(parameters: DifferentialQLearning) -> None:
    """Raise SettingsError unless eta is allowed."""
    if not parameters.eta > 0.0:
        raise SettingsError(
            f"DifferentialQLearning: eta must be above 0, got {parameters.eta:g}. Write for instance eta=1."
        )


def check_source(parameters: Any, source: Source) -> None:
    """Raise EnvError if episodes of a known model end: a mean reward per step is of what goes on for ever."""
    model = None if source.simulator is None else source.simulator.model
    if isinstance(model, FunctionMDP):
        if model.terminates:
            raise EnvError(
                f"{source.name} has outcomes that terminate, and differential_q_learning is for problems "
                'that go on for ever. Take a rule such as "q_learning"; or, where no episode comes to these '
                "outcomes, write TabularMDP.from_function(..., tables=True), of which that is known."
            )
        return
    if not isinstance(model, TabularMDP):
        return
    acts = np.repeat(model.reachable_pairs().reshape(-1), np.diff(model.outcome_ptr))
    if (model.outcome_terminated & acts).any():
        raise EnvError(
            f"{source.name} has episodes that terminate, and differential_q_learning is for problems that go "
            'on for ever: nothing is collected behind an end. Take a rule such as "q_learning", or let the '
            "step that ends an episode lead to a state where the next one starts."
        )


RULE = register(
    LearningRule(
        name="differential_q_learning",
        parameters=DifferentialQLearning,
        learn=learn,
        on_target=learn_there,
        can_travel=True,
        truth=lambda model, parameters, settings: relative_values(model)[0],
        shared=(Shared("mean_reward", "affine"),),
        check=check,
        check_source=check_source,
    )
)
