"""A whole training as one of many that run at once: jitted, for a card and for a core alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.learning.loops import Line, Stretch, Walker, learn_steps
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.tables.rows import TableArrays


class RunArrays(NamedTuple):
    """The tables and walkers of R runs; each array has the first axis R and is written.

    Those of tables are as in `TableArrays`, those of walkers as in `loops.Walker` and `Context`.
    """

    q: np.ndarray
    best: np.ndarray
    greedy: np.ndarray
    weight: np.ndarray
    shift: np.ndarray
    updates: np.ndarray
    visits: np.ndarray
    touched: np.ndarray
    n_touched: np.ndarray
    memory: np.ndarray
    position: np.ndarray
    collected: np.ndarray
    came: np.ndarray
    whole: np.ndarray
    real: np.ndarray
    owned: np.ndarray
    model: np.ndarray
    totals: np.ndarray
    keys: np.ndarray  # uint64, shape (R,): random streams
    faults: np.ndarray  # int64, shape (R,): whether a game gave what it must not


class RunParts(NamedTuple):
    """What all runs have in common."""

    step_sizes: np.ndarray | None
    discount: float
    behavior: Any
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int
    time_limit: int


class Lines(NamedTuple):
    """The stretches of a training, on each of which rates are lines: arrays with one number for each."""

    offset: np.ndarray  # int64, as `steps` and the last two
    steps: np.ndarray
    step_size: np.ndarray  # float64, as the slopes
    step_slope: np.ndarray
    epsilon: np.ndarray
    epsilon_slope: np.ndarray
    step_at: np.ndarray
    epsilon_at: np.ndarray


@jit
def learn_run(rule, simulation, runs, r, parts, lines):
    """Make all steps of run `r`, as one core does that learns alone."""
    table = TableArrays(
        runs.q[r],
        runs.best[r],
        runs.greedy[r],
        runs.weight[r],
        runs.shift[r],
        runs.updates[r],
        runs.visits[r],
        runs.touched[r],
        runs.n_touched[r],
        parts.legal,
        parts.row_shape,
        parts.n_states,
        parts.n_tables,
    )
    context = Context(
        table,
        parts.step_sizes,
        parts.discount,
        parts.behavior,
        None,
        runs.whole[r],
        runs.real[r],
        runs.owned[r],
        runs.model[r],
    )
    walker = Walker(0, runs.memory[r], runs.position[r], runs.collected[r], parts.time_limit, runs.came[r])
    for i in range(lines.steps.size):
        step_size = Line(lines.step_size[i], lines.step_slope[i], lines.step_at[i])
        epsilon = Line(lines.epsilon[i], lines.epsilon_slope[i], lines.epsilon_at[i])
        stretch = Stretch(runs.keys[r], lines.offset[i], lines.steps[i], step_size, epsilon)
        if learn_steps(rule, simulation, walker, context, None, stretch, runs.totals[r]):
            runs.faults[r] = 1
            return
