"""What a learning rule's jitted functions are called with, and what they are made of.

The training loops call `learn` and `on_action`, and where a rule compares actions in its own way
`preference`. Numba picks the rule's functions by the class of its hyper-parameters, as
`environments.simulate` picks simulations: one
loop serves all rules, and the choice costs nothing while it runs. They are compiled with `rule_function`::

    learn(rule, context, now, step, learned) -> learned
    on_action(rule, context, now, state, action, learned) -> learned
    preference(rule, context, state, action) -> float

`rule` has the hyper-parameters, `context` the arrays, `now` and `step` are numbers. Every change of the table
goes through `update`, `move` or `add`, which give `learned` back: it keeps count, and is passed on and
returned. They make the affine maps on which merging, recovery and reproducible rounds rest, so a rule knows
nothing of ranks.

Hyper-parameters are numbers that may change from run to run without a new compilation. All tables of a rule
estimate action values, since `q_table` is their mean; what else is learned, such as the values of states, is
`Shared`. What a walker remembers of an episode is to be forgotten where one ends, `step.terminated or
step.truncated`. In `on_action` a rule sees which action was chosen: whether it is a greedy one, for instance.
`learning.behavior` has what depends on how actions are chosen: `expected_value` and `next_action`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl import rules
from dist_classicrl._jit import jit, jit_inline, overloads
from dist_classicrl._random import GAMMA, below, mix
from dist_classicrl.rules import LearningRule
from dist_classicrl.tables.rows import (
    ONE_REPLAY,
    TableArrays,
    actions_of,
    learn_target,
    pick_among_best,
    step_size_at,
)

__all__ = [
    "Context",
    "Learned",
    "Now",
    "Transition",
    "add",
    "best_action",
    "best_value",
    "bits",
    "entry_of",
    "learn",
    "mean_value",
    "move",
    "on_action",
    "preference",
    "rule_function",
    "shared_entry",
    "step_size",
    "unvisited",
    "update",
    "value",
]


def rule_function(function: Callable[..., Any]) -> Any:
    """Compile a function of a rule's, which becomes a part of the training loop."""
    return jit_inline(function)


class Context(NamedTuple):
    """What stays the same while a loop runs.

    Attributes
    ----------
    table : TableArrays
        Values: table t of the rule has state s in row ``t * table.n_states + s``.
    step_sizes : None or ndarray(float64, ndim=1)
        `PerVisit.table`; None where step sizes do not depend on visits.
    discount : float
    behavior : NamedTuple
        How actions are chosen, see `dist_classicrl.learning.behavior`.
    masks : None or ndarray(bool), shape (B, A)
        Legal actions of the next states of a batch of transitions; None where they depend on the state alone.
    whole : ndarray(int64), shape (walkers, W)
    real : ndarray(float64), shape (walkers, F)
        What the rule's walkers carry along, zeros at first: row ``now.walker``.
    owned : ndarray(float64), shape (walkers, K)
        What it shares with merge "owner", one after the other; likewise.
    """

    table: TableArrays
    step_sizes: np.ndarray | None
    discount: float
    behavior: Any
    masks: np.ndarray | None
    whole: np.ndarray
    real: np.ndarray
    owned: np.ndarray


class Now(NamedTuple):
    """The moment of one step.

    Attributes
    ----------
    step_size : float
        Where it does not depend on visits.
    epsilon : float
        The chance of a uniformly random action.
    random : uint64
        Where `bits` begins.
    walker : int
    counts_as : int
        1, or `tables.rows.ONE_REPLAY` for what is no visit: where an old transition is learned again, and
        see `unvisited`.
    """

    step_size: float
    epsilon: float
    random: np.uint64
    walker: int
    counts_as: int


class Transition(NamedTuple):
    """One step of an environment.

    Attributes
    ----------
    state, action : int
    reward : float
    next_state : int
    terminated : bool
        Nothing can be collected from `next_state` on.
    truncated : bool
        The episode ends all the same; the value of `next_state` still counts.
    i : int
        Its place in a batch.
    """

    state: int
    action: int
    reward: float
    next_state: int
    terminated: bool
    truncated: bool
    i: int


class Learned(NamedTuple):
    """How much was learned so far: touched entries, and the sum of absolute errors before updates."""

    touched: int
    error: float


# What the loops call


def rule_of_type(rule_type: Any) -> LearningRule | None:
    """Return the rule whose hyper-parameters have this numba type."""
    return rules.of_class(getattr(rule_type, "instance_class", None))


def picked(function_of: Callable[[Any], Any], inline: bool = True) -> Any:
    """Return the decorator of a stub, for which jitted code calls another function.

    `function_of` returns that by the numba type of the first argument; None: there is none for this type.
    """

    def decorate(stub: Callable[..., Any]) -> Callable[..., Any]:
        def pick(*arguments):  # as the lambda is written: numba wants both to have the same signature
            function = function_of(arguments[0])
            if function is None:
                return None
            return lambda *arguments: function(*arguments)

        overloads(stub, inline)(pick)
        return stub

    return decorate


def _of_rule(name: str, default: Any = None) -> Callable[[Any], Any]:
    """Return what finds the function that a rule has by this name, or else `default`."""

    def function_of(rule_type: Any) -> Any:
        rule = rule_of_type(rule_type)
        return None if rule is None else getattr(rule, name) or default

    return function_of


@rule_function
def _learn_nothing(rule, context, now, state, action, learned):
    return learned


@rule_function
def _value(rule, context, state, action):
    return value(context, state, action)


@picked(_of_rule("learn"))
def learn(rule, context, now, step, learned):
    """Learn from a transition."""
    raise NotImplementedError("learn is for jitted code")


@picked(_of_rule("on_action", _learn_nothing))
def on_action(rule, context, now, state, action, learned):
    """Learn what waited for the next action."""
    raise NotImplementedError("on_action is for jitted code")


@picked(_of_rule("preference", _value))
def preference(rule, context, state, action):
    """Return the number by which `action` is compared with others in `state`."""
    raise NotImplementedError("preference is for jitted code")


# What rules are made of


@jit_inline
def entry_of(context, row, action):
    """Return the entry of `action` in `row`."""
    return row * actions_of(context.table) + action


@jit_inline
def value(context, row, action):
    """Return the value of `action` in `row`."""
    return context.table.q[np.uint64(entry_of(context, row, action))]


@jit_inline
def best_value(context, step, table=0):
    """Return the largest value of the next state's legal actions in one of the rule's tables.

    0 where none is legal: an episode was truncated there, and nothing more can be collected.
    """
    return _best(context.table, context.masks, step.next_state + table * context.table.n_states, step.i)


@jit_inline
def _best(table, masks, row, i):
    if masks is None:
        return table.best[np.uint64(row)]
    n_actions = actions_of(table)
    top = -np.inf
    for action in range(n_actions):
        if masks[i, action]:
            top = max(top, table.q[row * n_actions + action])
    return 0.0 if top == -np.inf else top


@jit_inline
def mean_value(context, step, table=0):
    """Return the mean value of the next state's legal actions in one of the tables, 0 where none is legal."""
    return _mean(context.table, context.masks, step.next_state, table, step.i)


@jit_inline
def _mean(table, masks, state, number, i):
    n_actions = actions_of(table)
    row = (state + number * table.n_states) * n_actions
    total = 0.0
    count = 0
    for action in range(n_actions):
        if is_legal(table.legal, masks, state, n_actions, action, i):
            total += table.q[row + action]
            count += 1
    return total / count if count > 0 else 0.0


@jit_inline
def is_legal(legal, masks, state, n_actions, action, i):
    """Return whether `action` is legal in the next state, by row `i` of the masks or else by the state."""
    if masks is not None:
        return masks[i, action]
    return _is_legal(legal, state, n_actions, action)


@jit_inline
def _is_legal(legal, state, n_actions, action):
    if legal is None:
        return True
    for k in range(legal[0][state]):
        if legal[1][state * n_actions + k] == action:
            return True
    return False


@jit_inline
def bits(now, number):
    """Return 64 random bits of this step's own, others for each `number` from 0 on."""
    return mix(now.random + np.uint64(number) * GAMMA)


@jit_inline
def unvisited(now):
    """Return a moment whose updates are no visits, such as those of traces: they count for no step size."""
    return Now(now.step_size, now.epsilon, now.random, now.walker, ONE_REPLAY)


@jit_inline
def shared_entry(context, number):
    """Return the entry of a number that is shared with merge "affine" or "sum"; they count from 0 on."""
    return context.table.n_tables * context.table.n_states * actions_of(context.table) + number


@jit_inline
def update(context, now, row, action, target, learned):
    """Move the value of `action` in `row` towards `target` by the step size that is due: a visit."""
    entry = entry_of(context, row, action)
    alpha = _step_size(context.table, context.step_sizes, entry, now)
    error = abs(target - context.table.q[np.uint64(entry)])
    touched = _touch(context.table, entry, now.counts_as, learned.touched)
    learn_target(context.table, row, entry, target, alpha)
    return Learned(touched, learned.error + error if now.counts_as == 1 else learned.error)


@jit_inline
def step_size(context, now, row, action):
    """Return the step size that `update` takes for `action` in `row`."""
    return _step_size(context.table, context.step_sizes, entry_of(context, row, action), now)


@jit_inline
def best_action(context, step, random, table=0):
    """Return one of the next state's best legal actions by one of the tables; 0 where none is legal."""
    return _best_action(context.table, context.masks, step.next_state, table, step.i, random)


@jit_inline
def _best_action(table, masks, state, number, i, random):
    if masks is None:
        row = state + number * table.n_states
        action = np.int64(table.greedy[np.uint64(row)])
        if action < 0:
            n_actions = actions_of(table)
            action = pick_among_best(table.q, table.best[np.uint64(row)], row * n_actions, n_actions, random)
        return action
    return _best_allowed(table, masks, state, number, i, random)


@jit
def _best_allowed(table, masks, state, number, i, random):
    n_actions = actions_of(table)
    first = (state + number * table.n_states) * n_actions
    top, count = -np.inf, 0
    for action in range(n_actions):
        if masks[i, action]:
            worth = table.q[first + action]
            count = 1 if worth > top else count + (worth == top)
            top = max(top, worth)
    pick = below(random, count)
    for action in range(n_actions):
        if masks[i, action] and table.q[first + action] == top:
            if pick == 0:
                return action
            pick -= 1
    return 0


@jit_inline
def _step_size(table, step_sizes, entry, now):
    if step_sizes is None:
        return now.step_size
    return step_size_at(table, step_sizes, entry, now.counts_as & 1)


@jit_inline
def move(context, now, entry, target, step_size, learned):
    """Move `entry`, also one that is shared, towards `target` by a step size of the rule's own.

    It is a visit as well, unless `now` is `unvisited`, but adds nothing to the errors that are reported.
    """
    touched = _touch(context.table, entry, now.counts_as, learned.touched)
    learn_target(context.table, entry // actions_of(context.table), entry, target, step_size)
    return Learned(touched, learned.error)


@jit_inline
def add(context, now, entry, amount, learned):
    """Add `amount` to `entry`, which is shared with merge "sum"."""
    touched = _touch(context.table, entry, now.counts_as, learned.touched)
    context.table.q[entry] += amount
    context.table.shift[entry] += amount
    return Learned(touched, learned.error)


@jit_inline
def _touch(table, entry, count, touched):
    """Count an update of `entry`, and return the new number of touched entries."""
    at = np.uint64(entry)
    table.touched[np.uint64(touched)] = entry
    known = table.updates[at]
    table.updates[at] = known + count
    return touched + (known == 0)
