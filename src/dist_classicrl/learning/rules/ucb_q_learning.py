"""Q-learning with upper confidence bounds: Jin, Allen-Zhu, Bubeck and Jordan, NeurIPS 2018 (UCB-H)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.rules.kernel import (
    Learned,
    best_value,
    entry_of,
    is_legal,
    move,
    rule_function,
    target_found,
    value,
)
from dist_classicrl.learning.rules.truths import optimal_values
from dist_classicrl.rules import LearningRule, register
from dist_classicrl.tables.rows import actions_of, visits_of


class UCBQLearning(NamedTuple):
    """Q(s, a) moves towards r + gamma V(s') + b_t at the t-th visit, and the best action is played.

    V(s') = min(H, max Q(s', .)), b_t = bonus * sqrt(H^3 / t), and the step size is (H + 1) / (H + t):
    algorithm 1, where rewards are from 0 to 1, all actions that were never tried are worth H (or what
    `initial_value` says, unless that is 0), and `bonus` stands for c sqrt(iota). It is for problems of H
    steps: the state has to tell the step, an episode ends by termination, and the discount factor is 1.
    Elsewhere H must be at least what can be collected, discounted.
    Epsilon is 0 where none is given, and ``learning_rate`` plays no part.

    Attributes
    ----------
    horizon : int
        H, at least 1.
    bonus : float
        At least 0. Theory takes more than 1, practice some hundredths.
    """

    horizon: int = 10
    bonus: float = 0.05


@rule_function
def preference(rule, context, state, action):
    """Return the value of an action, or H where it was never tried and is 0; -inf where it is illegal."""
    worth = value(context, state, action)
    is_known = (worth != 0.0) | (visits_of(context.table, state, action) > 0)
    return worth if is_known else float(rule.horizon)


@rule_function
def is_by_value(rule, context, state):
    """Return whether no action of `state` has the value of one that was never tried."""
    is_known = True
    for action in range(actions_of(context.table)):
        is_known = is_known & (value(context, state, action) != 0.0)
    return is_known


@rule_function
def learn_there(rule, context, now, row, action, target, learned):
    """Learn with the bonus and the step size of this visit."""
    h = float(rule.horizon)
    t = visits_of(context.table, row, action) + 1.0
    target += rule.bonus * math.sqrt(h * h * h / t)
    error = abs(target - value(context, row, action))
    learned = move(context, now, entry_of(context, row, action), target, (h + 1.0) / (h + t), learned)
    return Learned(learned.touched, learned.error + error)


@jit
def _optimistic_value(rule, context, step):
    """Return the largest preference of the next state's legal actions, 0 where none is legal."""
    n_actions, state, top = actions_of(context.table), step.next_state, -np.inf
    for action in range(n_actions):
        if is_legal(context.table.legal, context.masks, state, n_actions, action, step.i):
            top = max(top, preference(rule, context, state, action))
    return top if top > -np.inf else 0.0


@rule_function
def learn(rule, context, now, step, learned):
    """Learn from the best of the next state, where the entry is."""
    h = float(rule.horizon)
    target = step.reward
    if not step.terminated:
        if is_by_value(rule, context, step.next_state):
            top = best_value(context, step)
        else:
            top = _optimistic_value(rule, context, step)
        target += context.discount * min(h, top)
    return target_found(rule, context, now, step, target, learned)


def check(parameters: UCBQLearning) -> None:
    """Raise SettingsError unless the hyper-parameters are allowed."""
    if parameters.horizon < 1:
        raise SettingsError(f"UCBQLearning: horizon must be at least 1, got {parameters.horizon}.")
    if not 0.0 <= parameters.bonus < math.inf:
        raise SettingsError(f"UCBQLearning: bonus must be at least 0, got {parameters.bonus:g}.")


RULE = register(
    LearningRule(
        name="ucb_q_learning",
        parameters=UCBQLearning,
        learn=learn,
        on_target=learn_there,
        can_travel=True,
        preference=preference,
        is_by_value=is_by_value,
        truth=optimal_values,
        defaults={"epsilon": 0.0},
        check=check,
        idle=lambda parameters: {"learning_rate": "takes steps of (H + 1) / (H + t) at the t-th visit"},
    )
)
