"""A rule of one's own that declares `can_travel` is tried out: it must not look at the state acted in.

Where rows have owners `learn` is called with the next state's row as that of both, and the target that comes
of it goes to wherever the acted state is. So what comes of it may hang on neither that state's values and
visits nor on its number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dist_classicrl._jit import jit, jit_for
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.learner import Problem
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.rules.kernel import Context, Learned, Now, Transition, learn
from dist_classicrl.rules.behaviors import FixedPolicy
from dist_classicrl.rules.registry import BUILT_IN
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.outbox import Outbox

_STEPS = 64
_MOST_STATES = 1 << 16  # of a table that is nearly all zeros, and takes no memory there


@jit
def _learn(rule: Any, context: Any, now: Any, step: Any) -> None:
    learn(rule, context, now, step, Learned(0, 0.0))


def try_rule(problem: Problem) -> None:
    """Let the rule learn steps between two states, each once more as if it had begun where it ended.

    SettingsError if another target comes of that, or other numbers that it remembers.
    """
    rule, shape = problem.rule, problem.shape
    if rule.name in BUILT_IN or rule.waits is not None:
        return
    random = np.random.default_rng(0)
    n_states, rows = max(2, min(shape.n_states, _MOST_STATES)), (shape.n_tables, 2, shape.n_actions)
    table = LineTable(replace(shape, n_states=n_states), problem.dtype)
    table.shape.tables(table.values)[:, :2] = random.normal(size=rows)
    table.shape.tables(table.counts)[:, :2] = random.integers(1, 100, rows)
    outbox, behavior = Outbox.of(table.arrays), problem.behavior
    if isinstance(behavior, FixedPolicy):
        behavior = FixedPolicy(np.full((n_states, shape.n_actions), 1.0 / shape.n_actions))
    n_whole, n_real = rule.remembered(problem.parameters)
    memory: Any = np.zeros((1, n_whole), np.int64), np.zeros((1, n_real))
    rates = problem.rates.table, problem.settings.discount_factor
    kernel = jit_for(_learn, rule.parameters)
    for number in range(_STEPS):
        at, ends = number % 2, int(random.integers(8))
        action, reward = int(random.integers(shape.n_actions)), random.normal()
        step = Transition(at, action, reward, 1 - at, ends == 0, ends == 1, 0)
        now = Now(0.5, 0.5, np.uint64(random.integers(1 << 62)), 0, 1)
        found = []
        for state in (1 - at, at):
            kept = [numbers.copy() for numbers in memory]
            context = Context(outbox, *rates, behavior, None, kept[0], kept[1], np.zeros((1, 0)), np.zeros(0))
            outbox.put[:] = 0
            with compiling(rule):
                kernel(problem.parameters, context, now, step._replace(state=state))
            if outbox.put[2] != 1:
                return  # which is told where walkers travel
            found.append((*kept, outbox.target.copy()))
        if not all(np.array_equal(one, other, equal_nan=True) for one, other in zip(*found, strict=True)):
            raise SettingsError(
                f"The rule {rule.name!r} declares can_travel=True, but its learn looks at the state that was "
                "acted in: its target changes with that state's values, visits or number, which are "
                "elsewhere. Let learn make the target of the reward, the next state's values and what the "
                "walker remembers, let on_target do the rest where the entry is, or leave can_travel out."
            )
        memory = kept
