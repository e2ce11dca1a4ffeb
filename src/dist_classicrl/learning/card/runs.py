"""Many trainings of one problem at once on a card, a run in each thread: what a study over seeds needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.checks import checked_whole
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import DeviceError, DivergenceError, SettingsError
from dist_classicrl.learning.card.cards import Card, cards
from dist_classicrl.learning.card.choosing import why_not_simulated
from dist_classicrl.learning.card.one_run import Lines, RunArrays, RunParts
from dist_classicrl.learning.card.plan import bytes_of_arrays, check_memory
from dist_classicrl.learning.compiled import NEVER, infinite_return
from dist_classicrl.learning.interleaved import FROM_ENTRIES
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rates import Rates
from dist_classicrl.schedules import in_call
from dist_classicrl.settings import Settings

_THREADS = 64


@dataclass(frozen=True, eq=False)
class Runs:
    """What R trainings came to.

    Attributes
    ----------
    q_tables : ndarray(float64), shape (R, S, A)
    visits : ndarray(int64), shape (R, S, A)
    episodes : ndarray(int64), shape (R,)
        That ended.
    mean_returns : ndarray(float64), shape (R,)
        Of those episodes, undiscounted, under the exploring policy; NaN where none ended.
    """

    q_tables: np.ndarray
    visits: np.ndarray
    episodes: np.ndarray
    mean_returns: np.ndarray


def learn_runs(
    env: Any, seeds: Sequence[int], steps: int, settings: Settings | None = None, card: Card | None = None
) -> Runs:
    """Train once for each seed, all at once on a card, a run in each thread.

    The tables are to the bit those of ``DistAsyncQLearning(seed=seed, ...).train(env, total_steps=steps)``
    in one process on a core, with ``dtype="float64"``. They are as large as a core learns with one walker,
    below 16,384 entries.

    Parameters
    ----------
    env : TabularMDP, CompiledSimulator, str or gymnasium.Env
        What is compiled code, or known to be the same process.
    seeds : sequence of int
    steps : int
        Of each run.
    settings : Settings, optional
        All but `seed` and `device`, which are not looked at; by default those of an agent.
    card : Card, optional
        By default the first one.

    Raises
    ------
    MissingExtraError, DeviceError, DeviceMemoryError
        Without a card that works, or where the runs cannot be there, with the reason.
    SettingsError, EnvError, DivergenceError
        As `train` does.
    """
    settings = Settings() if settings is None else settings
    steps = checked_whole("steps", steps, 1)
    if not len(seeds):
        raise SettingsError("seeds must name one run at least, got none.")
    schedules = {name: in_call(each, 0, steps, 0) for name, each in settings.schedules.items()}
    settings = replace(settings, **Settings.of_schedules(schedules))
    source = resolve(env, 1, settings.use_action_mask)
    why = why_not_simulated(source, settings)
    if why is None and source.n_states * source.n_actions >= FROM_ENTRIES:
        why = f"a core learns tables of {FROM_ENTRIES:,} entries and more in another order"
    if why is None and settings.dtype != "float64":
        why = f'dtype="{settings.dtype}": runs are float64, as a core\'s are. Write dtype="float64"'
    if why is not None:
        raise DeviceError(f"Many runs at once cannot be had on a card: {why}.")
    rates = Rates(settings, 1)
    problem = problem_of(source, settings, rates, is_alone=True, card=cards()[0] if card is None else card)
    return _learned(problem, [int(seed) for seed in seeds], steps)


def _learned(problem: Problem, seeds: list[int], steps: int) -> Runs:
    from dist_classicrl.learning.card import kernels  # needs numba-cuda

    simulator, card = problem.source.simulator, problem.card
    assert simulator is not None and card is not None  # see `learn_runs`
    try_out(simulator)
    table = problem.table
    if problem.settings.initial_value != 0.0:
        table.load(np.full(table.q.size, problem.settings.initial_value), np.zeros(table.q.size, np.int64))
    memory = RuleMemory(problem.rule, problem.parameters, table, 1, problem.behavior)
    context = memory.context(table, problem.rates.table, problem.settings.discount_factor)
    runs = _arrays(problem, context, seeds)
    lines = _lines(problem.rates, steps)
    parts = RunParts(
        context.step_sizes,
        context.discount,
        context.behavior,
        table.arrays.legal,
        table.arrays.row_shape,
        table.n_states,
        table.shape.n_tables,
        simulator.max_episode_steps or NEVER,
    )
    there = (simulator.tables, runs, parts, lines)
    check_memory(bytes_of_arrays(there), card, f"{len(seeds):,} runs with {table.q.size:,} entries each")
    with kernels.used(card), kernels.compiling(problem):
        simulation, runs_there, parts_there, lines_there = kernels.on_card(there)
        kernel = kernels.runs_kernel()
        grid = -(-len(seeds) // _THREADS), min(_THREADS, len(seeds))
        kernel[grid](problem.parameters, simulation, runs_there, parts_there, lines_there)
        found = RunArrays(*(kernels.from_card(array) for array in runs_there))
    return _checked(problem, found)


def _arrays(problem: Problem, context: Any, seeds: list[int]) -> RunArrays:
    """Return the arrays of runs that have not begun."""
    table, size, simulator = problem.table, len(seeds), problem.source.simulator
    assert simulator is not None

    def each(array: np.ndarray) -> np.ndarray:
        return np.repeat(array[np.newaxis], size, axis=0)

    return RunArrays(
        each(table.q),
        each(table.best),
        each(table.greedy),
        each(table.weight),
        each(table.shift),
        each(table.updates),
        each(table.visits),
        each(table.touched),
        each(table.n_touched),
        np.zeros((size, simulator.memory_size), np.int64),
        each(np.array([-1, 0])),
        np.zeros((size, 1)),
        np.full((size, 3), -1),
        each(context.whole),
        each(context.real),
        each(context.owned),
        each(context.model),
        np.zeros((size, 4)),
        np.array([stream_key(seed, "alone", 0) for seed in seeds], np.uint64),
        np.zeros(size, np.int64),
    )


def _lines(rates: Rates, steps: int) -> Lines:
    """Return the stretches of a training of so many steps from its beginning."""
    stretches = list(Stream(np.uint64(0), 0).stretches(steps, rates))
    rows = [
        (one.offset, one.steps, one.step_size.value, one.step_size.slope)
        + (one.epsilon.value, one.epsilon.slope, one.step_size.at, one.epsilon.at)
        for one in stretches
    ]
    kinds = (np.int64, np.int64, *(np.float64,) * 4, np.int64, np.int64)
    columns = zip(*rows, strict=True)
    return Lines(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _checked(problem: Problem, found: RunArrays) -> Runs:
    """Return what runs came to, or raise what one of them would have raised on a core."""
    simulator, shape = problem.source.simulator, problem.shape
    assert simulator is not None
    if found.faults.any():
        first = int(np.argmax(found.faults))
        run_game(simulator, found.came[first], found.collected[first], lambda: True)
    if not np.isfinite(found.collected).all():
        raise infinite_return(found.collected[~np.isfinite(found.collected)][0])
    q = found.q.copy()
    if problem.table.illegal is not None:
        q[:, problem.table.illegal] = 0.0
    if not np.isfinite(q).all():
        run, entry = np.argwhere(~np.isfinite(q))[0]
        raise DivergenceError(
            f"{shape.name_of(int(entry))} is {q[run, entry]} in the run of seed number {run}."
        )
    rows = (shape.n_rows, shape.n_actions)
    visits = found.visits + found.updates
    episodes, returns = found.totals[:, 0], found.totals[:, 1]
    with np.errstate(invalid="ignore"):
        means = np.where(episodes > 0, returns / np.maximum(episodes, 1), np.nan)
    return Runs(
        np.stack([shape.q_table(each.reshape(rows)) for each in q]),
        np.stack([shape.visits(each.reshape(rows)) for each in visits]),
        episodes.astype(np.int64),
        means,
    )
