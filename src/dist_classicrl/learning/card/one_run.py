"""A training as one of many that run at once, slice by slice: jitted, for a card and for a core alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl.learning.loops import Line, Stretch, Walker, learn_steps
from dist_classicrl.learning.rules.kernel import Context
from dist_classicrl.tables.kernels import settle_maps
from dist_classicrl.tables.rows import TableArrays

BAD_GAME, DIVERGED, ENDED = 1, 2, 3
"""Why a run goes no further: its game gave what it must not, a value is not finite, or the host says so."""

_LARGEST = float(np.finfo(np.float64).max)


class RunArrays(NamedTuple):
    """The tables and walkers of R runs; each array has the first axis R.

    Those of tables are as in `TableArrays`, those of walkers as in `loops.Walker` and `Context`. `values` and
    `counts` are what an agent has of the table, as of the last report.
    """

    values: np.ndarray
    counts: np.ndarray
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
    faults: np.ndarray  # int64, shape (R,): 0, or why it makes no more steps
    lost: np.ndarray  # int64, shape (R,): the entry that is no finite number
    group: np.ndarray  # int64, shape (R,): by which of the lines, step sizes and discounts, as the next one
    discounts: np.ndarray  # float64, shape (R,)


class RunParts(NamedTuple):
    """What all runs have in common."""

    step_sizes: np.ndarray | None  # by visits, of each of G groups
    behavior: Any
    legal: tuple[np.ndarray, np.ndarray] | None
    row_shape: tuple[int, ...] | None
    n_states: int
    n_tables: int
    time_limit: int


class Lines(NamedTuple):
    """The stretches of a slice of a training, on each of which rates are lines: arrays of shape (G, L).

    G groups of runs have rates of their own. Those with fewer stretches than L have some without steps.
    """

    offset: np.ndarray  # int64, as `steps` and the last two
    steps: np.ndarray
    step_size: np.ndarray  # float64, as the slopes
    step_slope: np.ndarray
    epsilon: np.ndarray
    epsilon_slope: np.ndarray
    step_at: np.ndarray
    epsilon_at: np.ndarray


@jit_inline
def _step_sizes_of(step_sizes, group):
    # What may be None is an argument of a function of its own: only there numba leaves out the other branch.
    return None if step_sizes is None else step_sizes[group]


@jit
def learn_run(rule, simulation, runs, r, parts, lines, settles):
    """Make the steps of a slice of run `r`, as one core does that learns alone; `settles`: and report."""
    if runs.faults[r] != 0:
        return
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
    group = runs.group[r]
    context = Context(
        table,
        _step_sizes_of(parts.step_sizes, group),
        runs.discounts[r],
        parts.behavior,
        None,
        runs.whole[r],
        runs.real[r],
        runs.owned[r],
        runs.model[r],
    )
    walker = Walker(0, runs.memory[r], runs.position[r], runs.collected[r], parts.time_limit, runs.came[r])
    for i in range(lines.steps.shape[1]):
        if lines.steps[group, i] == 0:
            break
        step_size = Line(lines.step_size[group, i], lines.step_slope[group, i], lines.step_at[group, i])
        epsilon = Line(lines.epsilon[group, i], lines.epsilon_slope[group, i], lines.epsilon_at[group, i])
        stretch = Stretch(runs.keys[r], lines.offset[group, i], lines.steps[group, i], step_size, epsilon)
        if learn_steps(rule, simulation, walker, context, None, stretch, runs.totals[r]):
            runs.faults[r] = BAD_GAME
            return
    if settles:
        lost = settle_maps(table, _LARGEST, runs.values[r], runs.counts[r])
        if lost >= 0:
            runs.faults[r] = DIVERGED
            runs.lost[r] = lost
