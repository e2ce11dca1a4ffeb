"""Learning rules as a user would write them, in a file of their own, outside the package."""

from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.behavior import expected_value, next_action
from dist_classicrl.learning.rules.kernel import (
    add,
    best_action,
    best_value,
    bits,
    entry_of,
    move,
    rule_function,
    shared_entry,
    step_size,
    update,
    value,
)
from dist_classicrl.rules import LearningRule, Range, Shared
from dist_classicrl.rules.registry import register, unregister


class ExpectedSarsa(NamedTuple):
    """Sutton and Barto (2018), equation 6.9."""


@rule_function
def learn_expected(rule, context, now, step, learned):
    target = step.reward
    if not step.terminated:
        target += context.discount * expected_value(context.behavior, rule, context, now, step)
    return update(context, now, step.state, step.action, target, learned)


def best_soft_values(model, parameters, settings):
    """Return the values of the policy that is epsilon-greedy in its own values, by iterating its equation."""
    q = np.zeros((model.n_states, model.n_actions))
    epsilon = settings.epsilon.at(0)
    for _ in range(20_000):
        v = (1.0 - epsilon) * q.max(axis=1) + epsilon * q.mean(axis=1)
        new = backed_up(model, v, settings.discount_factor)
        if np.abs(new - q).max() < 1e-13:
            return new
        q = new
    raise AssertionError("no fixed point")


def backed_up(model, v, discount):
    """Return the expected reward and discounted value of the next state of each pair."""
    sums = np.zeros(model.n_states * model.n_actions)
    pairs = np.repeat(np.arange(sums.size), np.diff(model.outcome_ptr))
    goes_on = ~model.outcome_terminated
    values = model.outcome_reward + discount * goes_on * v[model.outcome_next]
    np.add.at(sums, pairs, model.outcome_prob * values)
    return sums.reshape(model.n_states, model.n_actions)


EXPECTED_SARSA = LearningRule(
    "own_expected_sarsa", ExpectedSarsa, learn_expected, best_soft_values, can_replay=True
)


class DoubleQ(NamedTuple):
    """Van Hasselt (2010): two tables, of which each values what the other one chooses."""


@rule_function
def learn_double(rule, context, now, step, learned):
    mine = np.int64(bits(now, 0) & np.uint64(1))
    target = step.reward
    if not step.terminated:
        action = best_action(context, step, bits(now, 1), mine)
        target += context.discount * value(
            context, step.next_state + (1 - mine) * context.table.n_states, action
        )
    return update(context, now, step.state + mine * context.table.n_states, step.action, target, learned)


@rule_function
def sum_of_both(rule, context, state, action):
    return value(context, state, action) + value(context, state + context.table.n_states, action)


DOUBLE_Q = LearningRule(
    "own_double_q",
    DoubleQ,
    learn_double,
    lambda model, parameters, settings: model.solve(settings.discount_factor).q,
    preference=sum_of_both,
    tables=("first", "second"),
)


class NStepSarsa(NamedTuple):
    """Sutton and Barto (2018), section 7.2: n rewards, and the value of the action that is chosen then."""

    n: int = 3


# A walker remembers: how many steps wait, the place of the oldest, their entries; and their rewards.
WAITING, OLDEST, ENTRIES = 0, 1, 2


@rule_function
def learn_oldest(rule, context, now, bootstrap, learned):
    """Learn the oldest step that waits, from what was collected since and `bootstrap` after that."""
    whole, real, w = context.whole, context.real, now.walker
    waiting, oldest = whole[w, WAITING], whole[w, OLDEST]
    target = bootstrap
    for k in range(waiting - 1, -1, -1):
        target = real[w, (oldest + k) % rule.n] + context.discount * target
    entry = whole[w, ENTRIES + oldest]
    n_actions = entry_of(context, 1, 0)
    whole[w, WAITING], whole[w, OLDEST] = waiting - 1, (oldest + 1) % rule.n
    return update(context, now, entry // n_actions, entry % n_actions, target, learned)


@rule_function
def learn_waiting(rule, context, now, state, action, learned):
    if context.whole[now.walker, WAITING] == rule.n:
        learned = learn_oldest(rule, context, now, value(context, state, action), learned)
    return learned


@rule_function
def keep_step(rule, context, now, step, learned):
    whole, real, w = context.whole, context.real, now.walker
    place = (whole[w, OLDEST] + whole[w, WAITING]) % rule.n
    whole[w, ENTRIES + place] = entry_of(context, step.state, step.action)
    real[w, place] = step.reward
    whole[w, WAITING] += 1
    if step.terminated or step.truncated:
        bootstrap = 0.0
        if step.truncated:
            action = next_action(rule, context, now, step, bits(now, 0))
            bootstrap = value(context, step.next_state, action)
        while whole[w, WAITING] > 0:
            learned = learn_oldest(rule, context, now, bootstrap, learned)
    return learned


def check_n(parameters):
    if not isinstance(parameters.n, int) or parameters.n < 1:
        raise SettingsError(f"NStepSarsa: n must be a whole number of at least 1, got {parameters.n!r}.")


N_STEP_SARSA = LearningRule(
    "own_n_step_sarsa",
    NStepSarsa,
    keep_step,
    best_soft_values,
    on_action=learn_waiting,
    memory=lambda parameters: (ENTRIES + parameters.n, parameters.n),
    whole_ranges=lambda parameters, states, actions: (
        Range("the steps that wait", 0, parameters.n),
        Range("the place of the oldest", 0, parameters.n - 1),
        Range("their entries", 0, states * actions - 1, parameters.n),
    ),
    check=check_n,
    defaults={"epsilon": 0.2},
)


class Differential(NamedTuple):
    """Wan, Naik and Sutton (2021): values are relative to a mean reward, which all workers share."""

    eta: float = 1.0


@rule_function
def learn_differential(rule, context, now, step, learned):
    gain = shared_entry(context, 0)
    mean_reward = value(context, context.table.n_tables * context.table.n_states, 0)  # where `gain` stands
    next_value = best_value(context, step)
    alpha = rule.eta * step_size(context, now, step.state, step.action)
    # Both from the same error: the scalar's own equation is r - x + max q' - q, so x moves towards the rest.
    old = value(context, step.state, step.action)
    learned = update(context, now, step.state, step.action, step.reward - mean_reward + next_value, learned)
    learned = move(context, now, gain, step.reward + next_value - old, alpha, learned)
    return add(context, now, gain + 1, 1.0, learned)


def relative_values(model, parameters, settings):
    """Return relative value iteration's differential values; they are known up to a constant."""
    q = np.zeros((model.n_states, model.n_actions))
    for _ in range(20_000):
        new = backed_up(model, q.max(axis=1), 1.0)
        new -= new.max(axis=1)[0]
        if np.abs(new - q).max() < 1e-12:
            return new
        q = new
    raise AssertionError("no fixed point")


DIFFERENTIAL = LearningRule(
    "own_differential",
    Differential,
    learn_differential,
    relative_values,
    shared=(Shared("mean_reward", "affine"), Shared("steps", "sum"), Shared("unused", "owner", 3)),
)

RULES = (EXPECTED_SARSA, DOUBLE_Q, N_STEP_SARSA, DIFFERENTIAL)


@contextmanager
def registered():
    """Let `algorithm` be one of `RULES`."""
    for rule in RULES:
        register(rule)
    try:
        yield
    finally:
        for rule in RULES:
            unregister(rule)
