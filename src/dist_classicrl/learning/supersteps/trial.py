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

_EPISODES = 24
_LONGEST = 4  # steps of each


@jit
def _learn(rule: Any, context: Any, now: Any, step: Any) -> None:
    learn(rule, context, now, step, Learned(0, 0.0))


def try_rule(problem: Problem, max_episode_steps: int | None) -> None:
    """Let the rule learn steps between two states, each once more as if it had begun where it ended.

    SettingsError if another target, or another of its tables, comes of that, or other numbers that it
    remembers. An episode has a few steps, and no more than any of the problem.
    """
    rule, shape = problem.rule, problem.shape
    if rule.name in BUILT_IN or rule.waits is not None:
        return
    random = np.random.default_rng(0)
    table = LineTable(replace(shape, n_states=2), problem.dtype)
    rows = table.shape.tables(table.values).shape
    table.shape.tables(table.values)[:] = random.normal(size=rows)
    table.shape.tables(table.counts)[:] = random.integers(1, 100, rows)
    outbox, behavior = Outbox.of(table.arrays), problem.behavior
    if isinstance(behavior, FixedPolicy):
        behavior = FixedPolicy(np.full((2, shape.n_actions), 1.0 / shape.n_actions))
    n_whole, n_real = rule.remembered(problem.parameters)
    rates = problem.rates.table, problem.settings.discount_factor
    kernel = jit_for(_learn, rule.parameters)
    longest = min(max_episode_steps or _LONGEST, _LONGEST)
    for episode in range(_EPISODES):
        memory: Any = np.zeros((1, n_whole), np.int64), np.zeros((1, n_real))
        for number in range(longest):
            at, is_last = number % 2, number == longest - 1
            action, reward = int(random.integers(shape.n_actions)), float(random.integers(2))
            ends = is_last and episode % 2 == 0, is_last and episode % 2 == 1
            step = Transition(at, action, reward, 1 - at, *ends, 0)
            now = Now(0.5, 0.5, np.uint64(random.integers(1 << 62)), 0, 1)
            found = []
            for state in (at, at, 1 - at):
                kept = [numbers.copy() for numbers in memory]
                more = np.zeros((1, 0)), np.zeros(0)
                context = Context(outbox, *rates, behavior, None, kept[0], kept[1], *more)
                outbox.put[:] = 0
                with compiling(rule):
                    kernel(problem.parameters, context, now, step._replace(state=state))
                row, _, number_put = outbox.put
                if number_put != 1 or row % 2 != state:
                    return  # which is told where walkers travel
                found.append((*kept, outbox.target.copy(), outbox.put - (state, 0, 0)))
            for other, why in ((found[1], _DRAWS), (found[2], _LOOKS)):
                if not all(map(_are_same, found[0], other)):
                    raise SettingsError(f"The rule {rule.name!r} declares can_travel=True, but its {why}")
            memory = kept


def _are_same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)


_LOOKS = (
    "learn looks at the state that was acted in: its target changes with that state's values, visits or "
    "number, which are elsewhere. Let learn make the target of the reward, the next state's values and what "
    "the walker remembers, let on_target do the rest where the entry is, or leave can_travel out."
)
_DRAWS = (
    "learn draws at random by something other than the step's own bits: called twice for one step it makes "
    "two targets. Draw by dist_classicrl.learning.rules.kernel.bits(now, number)."
)
