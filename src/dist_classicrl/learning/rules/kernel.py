"""What a learning rule's jitted functions are called with, and what they are made of.

The training loops call `learn` and `on_action`, where rows have owners `on_target` (see `target_found`), and
where a rule compares actions in its own way `preference` and `is_by_value`. Numba picks the rule's functions
by the class of its hyper-parameters, as `environments.simulate` picks simulations: one loop serves all rules,
and the choice costs nothing while it runs. They are compiled with `rule_function`::

    learn(rule, context, now, step, learned) -> learned
    on_action(rule, context, now, state, action, learned) -> learned
    on_target(rule, context, now, row, action, target, learned) -> learned
    preference(rule, context, state, action) -> float
    is_by_value(rule, context, state) -> bool

`rule` has the hyper-parameters, `context` the arrays, `now` and `step` are numbers. Every change of the table
goes through `update`, `move` or `add`, which give `learned` back: it keeps count, and is passed on and
returned. They make the affine maps on which merging, recovery and reproducible rounds rest, so a rule knows
nothing of ranks.

Hyper-parameters are numbers that may change from run to run without a new compilation. All tables of a rule
estimate action values, since `q_table` is their mean; what else is learned, such as the values of states, is
`Shared`. What a walker remembers of an episode is to be forgotten where one ends, `step.terminated or
step.truncated`. In `on_action` a rule sees which action was chosen: whether it is a greedy one, for instance.
`learning.behavior` has what depends on how actions are chosen: `expected_value`, `next_action` and
`next_value`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline, picked_from
from dist_classicrl._random import GAMMA, below, mix
from dist_classicrl.rules import LearningRule, registry
from dist_classicrl.tables.rows import (
    ONE_REPLAY,
    actions_of,
    add_amount,
    any_greedy_action,
    count,
    greedy_action,
    learn_row,
    learn_target,
    row_maximum,
    send,
    step_size_at,
    value_of,
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
    "is_by_value",
    "learn",
    "mean_value",
    "move",
    "on_action",
    "on_target",
    "preference",
    "rule_function",
    "shared_entry",
    "step_size",
    "target_found",
    "unvisited",
    "update",
    "update_row",
    "value",
    "value_ahead",
]


def rule_function(function: Callable[..., Any]) -> Any:
    """Compile a function of a rule's, which becomes a part of the training loop."""
    return jit_inline(function)


class Context(NamedTuple):
    """What stays the same while a loop runs.

    Attributes
    ----------
    table : NamedTuple
        Values, in a table of one of the kinds that `dist_classicrl.tables.rows.ROW_FUNCTIONS` knows: table t
        of the rule has state s in row ``t * table.n_states + s``.
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
    model : ndarray(float64), shape (M,)
        What the worker knows of the environment, zeros at first, by `LearningRule.model`.
    """

    table: Any
    step_sizes: np.ndarray | None
    discount: float
    behavior: Any
    masks: np.ndarray | None
    whole: np.ndarray
    real: np.ndarray
    owned: np.ndarray
    model: np.ndarray


class Now(NamedTuple):
    """The moment of one step.

    Attributes
    ----------
    step_size : float
        Where it does not depend on visits.
    epsilon : float
        The chance of a uniformly random action; of `Boltzmann` the temperature.
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
    return registry.of_class(getattr(rule_type, "instance_class", None))


@rule_function
def _learn_nothing(rule, context, now, state, action, learned):
    return learned


@rule_function
def _value(rule, context, state, action):
    return value(context, state, action)


@rule_function
def _is_unknown(rule, context, state):
    return False


@picked_from(registry.of_class)
def learn(rule, context, now, step, learned):
    """Learn from a transition."""


@picked_from(registry.of_class, _learn_nothing)
def on_action(rule, context, now, state, action, learned):
    """Learn what waited for the next action."""


@rule_function
def _update(rule, context, now, row, action, target, learned):
    return update(context, now, row, action, target, learned)


@picked_from(registry.of_class, _update)
def on_target(rule, context, now, row, action, target, learned):
    """Learn from the target of an entry, where the entry is."""


@picked_from(registry.of_class, _value)
def preference(rule, context, state, action):
    """Return the number by which `action` is compared with others in `state`."""


@picked_from(registry.of_class, _is_unknown)
def is_by_value(rule, context, state):
    """Return whether `preference` is surely the value in the first table, for all actions of `state`."""


# What rules are made of


@jit_inline
def entry_of(context, row, action):
    """Return the entry of `action` in `row`."""
    return row * actions_of(context.table) + action


@jit_inline
def value(context, row, action):
    """Return the value of `action` in `row`."""
    return value_of(context.table, row, action)


@jit_inline
def best_value(context, step, table=0):
    """Return the largest value of the next state's legal actions in one of the rule's tables.

    0 where none is legal: an episode was truncated there, and nothing more can be collected.
    """
    return _best(context.table, context.masks, step.next_state + table * context.table.n_states, step.i)


@jit_inline
def _best(table, masks, row, i):
    if masks is None:
        return row_maximum(table, row)
    top = -np.inf
    for action in range(actions_of(table)):
        if masks[i, action]:
            top = max(top, value_of(table, row, action))
    return 0.0 if top == -np.inf else top


@jit_inline
def value_ahead(context, step, action, table=0):
    """Return the value of `action` in the next state in one of the tables; 0 where it is not legal there."""
    return _value_ahead(
        context.table, context.masks, step.next_state + table * context.table.n_states, action, step.i
    )


@jit_inline
def _value_ahead(table, masks, row, action, i):
    if masks is None:
        worth = value_of(table, row, action)
        return worth if worth > -np.inf else 0.0
    return value_of(table, row, action) if masks[i, action] else 0.0


@jit_inline
def mean_value(context, step, table=0):
    """Return the mean value of the next state's legal actions in one of the tables, 0 where none is legal."""
    return _mean(context.table, context.masks, step.next_state, table, step.i)


@jit_inline
def _mean(table, masks, state, number, i):
    n_actions = actions_of(table)
    row = state + number * table.n_states
    total = 0.0
    n_legal = 0
    for action in range(n_actions):
        if is_legal(table.legal, masks, state, n_actions, action, i):
            total += value_of(table, row, action)
            n_legal += 1
    return total / n_legal if n_legal > 0 else 0.0


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
    """Return 64 random bits of this step's own, others for each `number` from 0 on.

    What `learn` draws by a number is what `on_target` draws by it for the target of that step.
    """
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
    """Move the value of `action` in `row` towards `target` by the step size that is due: a visit.

    Where the entry is somewhere else, its owner does.
    """
    table = context.table
    if send(table, row, action, target):
        return learned
    alpha = step_size(context, now, row, action)
    # Counted first: behind what is written a card would read the value once more.
    touched = count(table, row, action, now.counts_as, learned.touched)
    error = abs(target - value_of(table, row, action))
    learn_target(table, row, action, target, alpha)
    return Learned(touched, learned.error + error if now.counts_as == 1 else learned.error)


@jit_inline
def update_row(context, now, row, action, target, learned):
    """Move the values of all legal actions of `row` towards `target`, a visit of each.

    Of all actions where the legal ones are known of the next state alone, by `Context.masks`.
    By the step size that is due for `action`, one of them; it tells the error that is reported, too. Where
    the row is somewhere else, its owner does.
    """
    table = context.table
    if send(table, row, actions_of(table), target):
        return learned
    alpha = step_size(context, now, row, action)
    worth = value_of(table, row, action)
    error = abs(target - worth)
    touched = learn_row(table, row, target, alpha, now.counts_as, learned.touched)
    if worth == -np.inf:  # nothing is legal there: who looks for that sees the visit, and no number
        touched = count(table, row, action, now.counts_as, touched)
        learn_target(table, row, action, target, alpha)
    return Learned(touched, learned.error + error if now.counts_as == 1 else learned.error)


@jit_inline
def step_size(context, now, row, action):
    """Return the step size that `update` takes for `action` in `row`."""
    return _step_size(context.table, context.step_sizes, row, action, now)


@jit_inline
def best_action(context, step, random, table=0):
    """Return one of the next state's best legal actions by one of the tables; 0 where none is legal."""
    return _best_action(context.table, context.masks, step.next_state, table, step.i, random)


@jit_inline
def _best_action(table, masks, state, number, i, random):
    if masks is None:
        row = state + number * table.n_states
        action = greedy_action(table, row)
        return any_greedy_action(table, row, random) if action < 0 else action
    return _best_allowed(table, masks, state, number, i, random)


@jit
def _best_allowed(table, masks, state, number, i, random):
    n_actions = actions_of(table)
    row = state + number * table.n_states
    top, n_best = -np.inf, 0
    for action in range(n_actions):
        if masks[i, action]:
            worth = value_of(table, row, action)
            n_best = 1 if worth > top else n_best + (worth == top)
            top = max(top, worth)
    pick = below(random, n_best)
    for action in range(n_actions):
        if masks[i, action] and value_of(table, row, action) == top:
            if pick == 0:
                return action
            pick -= 1
    return 0


@jit_inline
def _step_size(table, step_sizes, row, action, now):
    if step_sizes is None:
        return now.step_size
    return step_size_at(table, step_sizes, row, action, now.counts_as & 1)


@jit_inline
def move(context, now, entry, target, step_size, learned):
    """Move `entry`, also one that is shared, towards `target` by a step size of the rule's own.

    It is a visit as well, unless `now` is `unvisited`, but adds nothing to the errors that are reported.
    """
    table = context.table
    row, action = divmod(entry, actions_of(table))
    touched = count(table, row, action, now.counts_as, learned.touched)
    learn_target(table, row, action, target, step_size)
    return Learned(touched, learned.error)


@jit_inline
def target_found(rule, context, now, step, target, learned):
    """Learn from the target of a step by the rule's `on_target`: here, or where the owner of the entry is.

    So a rule may look at the entry, and move numbers that are shared with merge "affine", although the values
    of the next state are somewhere else.
    """
    if send(context.table, step.state, step.action, target):
        return learned
    return on_target(rule, context, now, step.state, step.action, target, learned)


@jit_inline
def add(context, now, entry, amount, learned):
    """Add `amount` to `entry`, which is shared with merge "sum"."""
    table = context.table
    row, action = divmod(entry, actions_of(table))
    touched = count(table, row, action, now.counts_as, learned.touched)
    add_amount(table, row, action, amount)
    return Learned(touched, learned.error)
