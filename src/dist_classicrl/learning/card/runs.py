"""Many trainings of one problem at once on a card, a run in each thread: what a study over seeds needs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl._steps import NEVER
from dist_classicrl.checks import WholeNumber, checked_whole
from dist_classicrl.environments.resolve import Source, resolve, with_exploring_starts
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import DeviceError, DistClassicRLError, SettingsError
from dist_classicrl.learning.behavior_checks import check_behavior
from dist_classicrl.learning.card.cards import Card, cards, free_memory
from dist_classicrl.learning.card.choosing import why_not_simulated
from dist_classicrl.learning.card.one_run import BAD_GAME, DIVERGED, ENDED, Lines, RunArrays, RunParts
from dist_classicrl.learning.card.plan import bytes_of_arrays, check_memory
from dist_classicrl.learning.compiled import infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.interleaved import FROM_ENTRIES
from dist_classicrl.learning.kinds import problem_of
from dist_classicrl.learning.learner import Problem, Stream, are_sound, check_sums
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import check_source
from dist_classicrl.schedules import Constant, PerVisit
from dist_classicrl.schedules.kinds import in_call
from dist_classicrl.settings import Settings
from dist_classicrl.tables.maps import diverged

_THREADS = 64
_SHORTEST_SLICE, _FIRST_SLICE, _LONGEST_SLICE = 1 << 8, 1 << 14, 1 << 20
"""Steps of each run in any launch but the last, in the first one, and in any, after which the host can be
interrupted."""

_LAUNCH_SECONDS = 0.5
"""What a launch takes at most, as far as the one before tells: stop signals wait for it, and a card that
shows a screen ends one that takes some seconds."""

_MEMORY_SHARE = 0.75
"""Of the card's free memory: threads have some of their own, and what was given back may not be free yet."""


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
        As `train` does, of the first run that would.
    """
    settings = Settings() if settings is None else settings
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings must be Settings or None, got {settings!r}. Write Settings(...).")
    steps = checked_whole("steps", steps, 1)
    if not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str) or not len(seeds):
        raise SettingsError(f"seeds must name one run at least, got {seeds!r}. Write range(10) or [0, 1].")
    seeds = [WholeNumber(0, bits=63)("seeds", seed) for seed in seeds]
    with closing(resolve(env, 1, settings.use_action_mask)) as source:
        return _runs(source, seeds, steps, settings, card)


def _runs(source: Source, seeds: Sequence[int], steps: int, settings: Settings, card: Card | None) -> Runs:
    if settings.exploring_starts:
        source = with_exploring_starts(source)
    for name, asked, there in (
        ("state_size", settings.state_size, source.n_states),
        ("action_size", settings.action_size, source.n_actions),
    ):
        if asked is not None and asked != there:
            raise SettingsError(
                f"{name}={asked}, and tables of many runs are as large as {source.name}, which has {there}. "
                f"Leave {name} out."
            )
    if (why := why_not_at_once(source, settings)) is not None:
        raise DeviceError(f"Many runs at once cannot be had on a card: {why}.")
    runs = CardRuns(source, cards()[0] if card is None else card)
    made = list(runs.learn([(settings, seed) for seed in seeds], [steps]))
    for each in made:
        for error in each.errors:
            if error is not None:
                raise error
    totals = np.concatenate([each.totals[-1] for each in made])
    episodes, returns = totals[:, 0], totals[:, 1]
    return Runs(
        np.stack([each.q_table(i) for each in made for i in range(len(each.errors))]),
        np.stack([each.visits(i) for each in made for i in range(len(each.errors))]),
        episodes.astype(np.int64),
        np.where(episodes > 0, returns / np.maximum(episodes, 1), np.nan),
    )


def why_not_at_once(source: Source, settings: Settings) -> str | None:
    """Return why a card cannot make runs of a process alone at once, and what to write instead; None: it can.

    It goes on from "many runs at once cannot be had: ". What a core refuses, too, raises its error.
    """
    check_source(settings, source)
    check_behavior(source, settings, "local")
    if (why := why_not_simulated(source, settings)) is not None:
        return why
    if source.n_states * source.n_actions >= FROM_ENTRIES:
        return f"a core learns tables of {FROM_ENTRIES:,} entries and more in another order"
    if settings.dtype != "float64":
        return f'dtype="{settings.dtype}": runs are float64, as a core\'s are. Write dtype="float64"'
    if not settings.async_updates:
        return "async_updates=False asks for the rounds of logical workers. Write async_updates=True"
    if settings.min_workers:
        return f"min_workers={settings.min_workers} asks for more than one process. Write min_workers=0"
    return None


def kind_of_run(settings: Settings) -> str:
    """Return what is the same for all settings with which runs can be made at once in one environment.

    What may differ are numbers that are not compiled: step sizes, where they are by visits for all or for
    none, exploration, the discount factor, and the value of a new table.
    """
    is_by_visits = isinstance(settings.learning_rate, PerVisit)
    common = replace(
        settings,
        learning_rate=PerVisit(1.0) if is_by_visits else Constant(1.0),
        epsilon=Constant(0.0),
        discount_factor=0.0,
        initial_value=0.0,
        seed=None,
    )
    return json.dumps(common.to_dict(), sort_keys=True)


@dataclass(frozen=True, eq=False)
class Made:
    """What R runs of those that were asked for came to.

    Attributes
    ----------
    totals : ndarray(float64), shape (ends, R, 4)
        What `Totals` counts, at each end from the beginning of the run.
    errors : list of DistClassicRLError or None
        What each would have raised on a core.
    seconds : float
        For all of them, compilation apart.
    """

    problem: Problem
    values: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    errors: list[DistClassicRLError | None]
    seconds: float

    def q_table(self, run: int) -> np.ndarray:
        """Return the table of a run, as an agent has it."""
        shape = self.problem.shape
        return shape.q_table(self.values[run].reshape(shape.n_rows, shape.n_actions))

    def visits(self, run: int) -> np.ndarray:
        """Return the visits of a run, likewise."""
        shape = self.problem.shape
        return shape.visits(self.counts[run].reshape(shape.n_rows, shape.n_actions))


class _Group:
    """Runs with the same settings, which differ in the seed."""

    def __init__(self, source: Source, settings: Settings, steps: int, card: Card) -> None:
        schedules = {name: in_call(each, 0, steps, 0) for name, each in settings.schedules.items()}
        settings = replace(settings, **Settings.of_schedules(schedules))
        self.rates = Rates(settings, 1)
        self.problem = problem_of(source, settings, self.rates, is_alone=True, card=card)
        self.discount = settings.discount_factor
        shape, table = self.problem.shape, self.problem.table
        self.values = np.zeros((shape.n_rows, shape.n_actions))
        shape.tables(self.values)[:] = settings.initial_value
        table.load(self.values.reshape(-1), np.zeros(shape.size, np.int64))
        memory = RuleMemory(self.problem.rule, self.problem.parameters, table, 1, self.problem.behavior)
        self.context = memory.context(table, self.rates.table, self.discount)

    def lines(self, used: int, steps: int) -> list[tuple[float, ...]]:
        """Return the stretches of its steps when it has made `used`, each as `Lines` has it."""
        return [
            (one.offset, one.steps, one.step_size.value, one.step_size.slope)
            + (one.epsilon.value, one.epsilon.slope, one.step_size.at, one.epsilon.at)
            for one in Stream(np.uint64(0), 0, used).stretches(steps, self.rates)
        ]


class CardRuns:
    """Trains many runs of one `kind_of_run` at once, one in each thread of a card.

    `source` is as it is trained in. What was compiled stays for the next calls.
    """

    def __init__(self, source: Source, card: Card) -> None:
        from dist_classicrl.learning.card import kernels  # needs numba-cuda

        simulator = source.simulator
        assert simulator is not None  # see `why_not_at_once`
        self._source, self._simulator, self.card = source, simulator, card
        self._stuck = stuck_states(simulator)
        self._kernel = kernels.runs_kernel()
        self._is_compiled = False

    def learn(self, runs: Sequence[tuple[Settings, int]], ends: Sequence[int]) -> Iterator[Made]:
        """Make runs, each with its settings and seed, and yield what they came to, in their order.

        There are as many at a time as the card has room for. `ends` are the steps at which a process that
        learns alone reports, and the last one; each run is as if it were told there whether it is sound.
        DeviceError, DeviceMemoryError or EnvError if none can be made.
        """
        steps = ends[-1]
        places: dict[int, int] = {}
        numbers = np.array([places.setdefault(id(settings), len(places)) for settings, _ in runs])
        distinct = {id(settings): settings for settings, _ in runs}
        groups = [_Group(self._source, settings, steps, self.card) for settings in distinct.values()]
        try_out(self._simulator)
        first = 0
        while first < len(runs):
            seeds = [seed for _, seed in runs[first:]]
            most = self._room(groups)
            yield self._made(groups, numbers[first : first + most], seeds[:most], ends)
            first += most

    def _room(self, groups: list[_Group]) -> int:
        """Return how many runs there is room for; DeviceMemoryError where there is none for one."""
        one = RunArrays(*self._arrays(groups, np.zeros(1, np.int64), [0]))
        each = bytes_of_arrays(one)
        constant = bytes_of_arrays((self._simulator.tables, self._parts(groups)))
        size = groups[0].problem.table.q.size
        check_memory(each + constant, self.card, f"A run with a table of {size:,} entries")
        return max(1, int(_MEMORY_SHARE * free_memory(self.card) - constant) // each)

    def _made(self, groups: list[_Group], numbers: np.ndarray, seeds: list[int], ends: Sequence[int]) -> Made:
        from dist_classicrl.learning.card import launching, transfer

        problem = groups[0].problem
        with launching.used(self.card):
            simulation, parts = transfer.on_card((self._simulator.tables, self._parts(groups)))
            # One array after the other, since all of them may be a good part of the main memory.
            runs = RunArrays(*map(transfer.on_card, self._arrays(groups, numbers, seeds)))
            grid = -(-len(seeds) // _THREADS), min(_THREADS, len(seeds))

            def launch(lines: Lines, settles: bool) -> None:
                self._kernel[grid](
                    problem.parameters, simulation, runs, parts, transfer.on_card(lines), settles
                )
                transfer.from_card(runs.faults)  # waits

            if not self._is_compiled:
                with launching.compiling(problem):
                    launch(_lines([[] for _ in groups]), False)
                self._is_compiled = True
            began, used, most = time.perf_counter(), 0, _FIRST_SLICE
            errors: list[DistClassicRLError | None] = [None] * len(seeds)
            totals = np.zeros((len(ends), len(seeds), 4))
            for point, end in enumerate(ends):
                while used < end:
                    steps = min(most, end - used)
                    lines = _lines([group.lines(used, steps) for group in groups])
                    used += steps
                    launched = time.perf_counter()
                    launch(lines, used == end)
                    most = _next_slice(most, steps, time.perf_counter() - launched)
                totals[point] = transfer.from_card(runs.totals)
                if self._look(problem, runs, totals[point], errors):
                    ended = np.array([0 if error is None else ENDED for error in errors])
                    runs = runs._replace(faults=transfer.on_card(ended))
                if all(error is not None for error in errors):
                    break
            values, counts = (transfer.from_card(each).copy() for each in (runs.values, runs.counts))
        return Made(problem, values, counts, totals, errors, time.perf_counter() - began)

    def _arrays(self, groups: list[_Group], numbers: np.ndarray, seeds: list[int]) -> Iterator[np.ndarray]:
        """Yield the arrays of runs that have not begun, in the order of `RunArrays`.

        `numbers` are those of their groups.
        """
        size, table = len(seeds), groups[0].problem.table
        context = groups[0].context

        def each(array: np.ndarray) -> np.ndarray:
            return np.repeat(array[np.newaxis], size, axis=0)

        def of_group(arrays: list[np.ndarray]) -> np.ndarray:
            return np.stack(arrays)[numbers]

        yield of_group([group.values.reshape(-1) for group in groups])
        yield each(np.zeros(table.q.size, np.int64))
        for name in ("q", "best", "greedy"):
            yield of_group([getattr(group.problem.table, name) for group in groups])
        for name in ("weight", "shift", "updates", "visits", "touched", "n_touched"):
            yield each(getattr(table, name))
        yield np.zeros((size, self._simulator.memory_size), np.int64)
        yield each(np.array([-1, 0]))
        yield np.zeros((size, 1))
        yield np.full((size, 3), -1)
        for array in (context.whole, context.real, context.owned, context.model):
            yield each(array)
        yield np.zeros((size, 4))
        yield np.array([stream_key(seed, "alone", 0) for seed in seeds], np.uint64)
        yield np.zeros(size, np.int64)
        yield np.zeros(size, np.int64)
        yield numbers
        yield np.array([group.discount for group in groups])[numbers]

    def _parts(self, groups: list[_Group]) -> RunParts:
        table = groups[0].problem.table
        step_sizes = [group.rates.table for group in groups if group.rates.table is not None]
        return RunParts(
            np.stack(step_sizes) if step_sizes else None,
            groups[0].context.behavior,
            table.arrays.legal,
            table.arrays.row_shape,
            table.n_states,
            table.shape.n_tables,
            self._simulator.max_episode_steps or NEVER,
        )

    def _look(
        self, problem: Problem, runs: Any, totals: np.ndarray, errors: list[DistClassicRLError | None]
    ) -> bool:
        """Enter what runs that go no further would have raised on a core; return whether any is new."""
        from dist_classicrl.learning.card.transfer import from_card

        faults, collected = from_card(runs.faults), from_card(runs.collected)
        # Where no action is legal all values are -inf: whoever learns there has diverged.
        is_wrong = (faults != 0) | ~np.isfinite(collected[:, 0]) | ~are_sound(totals)
        new = [run for run in np.flatnonzero(is_wrong) if errors[run] is None]
        if not new:
            return False
        shape = problem.shape
        came, q, lost, updates = (from_card(each) for each in (runs.came, runs.q, runs.lost, runs.updates))
        for run in new:
            try:
                if faults[run] == BAD_GAME:
                    run_game(self._simulator, came[run], collected[run], lambda: True)
                if self._stuck is not None and self._stuck.size:
                    of_rows = shape.tables(updates[run].reshape(shape.n_rows, shape.n_actions))
                    stuck_there(self._stuck, of_rows[:, self._stuck])
                if not np.isfinite(collected[run, 0]):
                    raise infinite_return(collected[run, 0])
                check_sums(totals[run])
                if faults[run] == DIVERGED:
                    entry = int(lost[run])
                    raise diverged(f"{shape.name_of(entry)} is {q[run, entry]}", problem.dtype)
            except DistClassicRLError as error:
                errors[run] = error
        return True


def _next_slice(most: int, steps: int, seconds: float) -> int:
    """Return the most steps of the next launch, where one of `steps`, of `most`, took so many seconds."""
    if seconds > _LAUNCH_SECONDS:
        return max(_SHORTEST_SLICE, int(steps * _LAUNCH_SECONDS / seconds))
    is_short = steps == most and 2.0 * seconds <= _LAUNCH_SECONDS
    return min(2 * most, _LONGEST_SLICE) if is_short else most


def _lines(rows: list[list[tuple[float, ...]]]) -> Lines:
    """Return the stretches of groups of runs as arrays."""
    kinds = (np.int64, np.int64, *(np.float64,) * 4, np.int64, np.int64)
    columns = [np.zeros((len(rows), max(map(len, rows))), kind) for kind in kinds]
    for group, stretches in enumerate(rows):
        for i, stretch in enumerate(stretches):
            for column, number in zip(columns, stretch, strict=True):
                column[group, i] = number
    return Lines(*columns)
