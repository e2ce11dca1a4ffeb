"""Learning in compiled environments: one jitted loop acts, simulates and learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._steps import NEVER
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.errors import ActionMaskError, DivergenceError
from dist_classicrl.learning import loops
from dist_classicrl.learning.learner import Problem, Stream, Totals, check_sums
from dist_classicrl.learning.loops import NO_SHARES, NO_STEPS, Shares, StackedWalkers, Stretch, Walker
from dist_classicrl.learning.memory import RuleMemory
from dist_classicrl.learning.quotas import Quotas
from dist_classicrl.learning.replay import ReplayMemory
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.state import State, check_arrays, check_position, check_replay, stack_states
from dist_classicrl.rules.behaviors import EpsilonLadder
from dist_classicrl.tables.round_merge import PartSums


@dataclass
class _Episode:
    """A walker and all that belongs to it."""

    walker: Walker
    memory: RuleMemory
    replay: ReplayMemory | None


@dataclass
class _Together:
    """All walkers of a learner in common arrays, of which those of each episode are views."""

    walkers: StackedWalkers
    memory: RuleMemory
    rows: dict[int, int]  # by the number of a walker
    came: np.ndarray  # what was wrong with one of them, as in `Walker`
    reward: np.ndarray  # float64, shape (1,): likewise

    @classmethod
    def of(cls, episodes: dict[int, _Episode]) -> _Together:
        numbers = sorted(episodes)
        every = [episodes[number] for number in numbers]
        arrays = {name: np.stack([getattr(one.walker, name) for one in every]) for name in _WRITTEN}
        walkers = StackedWalkers(time_limit=every[0].walker.time_limit, **arrays)
        for row, one in enumerate(every):
            one.walker = one.walker._replace(**{name: getattr(walkers, name)[row] for name in _WRITTEN})
        memory = RuleMemory.together([one.memory for one in every])
        return cls(
            walkers, memory, {number: row for row, number in enumerate(numbers)}, np.full(3, -1), np.zeros(1)
        )

    def first_row(self, numbers: Sequence[int]) -> int:
        """Return the row of the first of these walkers, if the others follow it; else -1."""
        first, last = self.rows[numbers[0]], self.rows[numbers[-1]]
        is_run = last - first == numbers[-1] - numbers[0] == len(numbers) - 1
        return first if is_run else -1


_WRITTEN = ("memory", "position", "collected", "came")


class CompiledLearner:
    """Learns in a compiled environment; each walker plays one episode after the other. See `Learner`."""

    quantum = 1

    def __init__(self, problem: Problem) -> None:
        simulator = problem.source.simulator
        if simulator is None:
            raise TypeError(f"{problem.source.name} is not compiled")
        self.table = problem.lean_table
        self.totals = Totals()
        self._settings = problem.settings
        self._rates = problem.rates
        self._simulator = simulator
        self._rule, self._parameters = problem.rule, problem.parameters
        self._behavior = problem.behavior
        self._loop = jit_for(loops.learn_steps, type(simulator.tables), problem.rule.parameters)
        self._episodes: dict[int, _Episode] = {}
        self._stuck = stuck_states(simulator)
        self._apart = jit_for(loops.learn_apart, type(simulator.tables), problem.rule.parameters)
        self._together: _Together | None = None
        #: Whether `learn_apart` can be called: walkers act alike, and nothing is looked at between two.
        self.learns_apart = not (
            problem.is_alone
            or problem.settings.async_updates
            or isinstance(problem.behavior, EpsilonLadder)
            or problem.rule.modeled(problem.parameters, *problem.shape.of_table) > 0
            or problem.settings.replay_ratio > 0.0
            or (self._stuck is not None and self._stuck.size)
        )

    @property
    def walkers(self) -> list[int]:
        """See `Learner`."""
        return list(self._episodes)

    def add(self, number: int, source: Source, seed: int) -> None:
        """See `Learner`; a compiled environment draws from the streams alone, so `seed` is not used."""
        simulator = self._simulator
        walker = Walker(
            0,
            np.zeros(simulator.memory_size, np.int64),
            np.array([-1, 0], np.int64),
            np.zeros(1),
            simulator.max_episode_steps or NEVER,
            np.full(3, -1),
        )
        memory = RuleMemory(self._rule, self._parameters, self.table, 1, self._behavior, number)
        episode = _Episode(walker, memory, ReplayMemory.for_settings(self._settings))
        if not self._episodes:
            if self.table.n_states == simulator.n_states:  # else there is only compiled
                try_out(simulator)
            # In the middle of an episode: none may begin in a table of one state, which is only compiled.
            nowhere = walker._replace(memory=walker.memory.copy(), position=np.zeros(2, np.int64))
            nobody = _Episode(nowhere, memory, episode.replay)
            with compiling(self._rule):
                self._call(nobody, NO_STEPS)
                if self.learns_apart:
                    together = _Together.of({0: nobody})
                    sums = PartSums(self.table.q.size)
                    self._call_apart(together, 0, NO_SHARES, 0, sums, np.zeros((0, 4)))
        self._episodes[number] = episode
        self._together = None

    def _call(self, episode: _Episode, stretch: Stretch) -> None:
        context = episode.memory.context(self.table, self._rates.table, self._settings.discount_factor)
        replay = None if episode.replay is None else episode.replay.in_context(context)
        walker = episode.walker
        run_game(
            self._simulator,
            walker.came,
            walker.collected,
            self._loop,
            self._parameters,
            self._simulator.tables,
            walker,
            context,
            replay,
            stretch,
            self.totals.values,
        )

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        episode = self._episodes[walker]
        for stretch in stream.stretches(steps, self._rates):
            self._call(episode, stretch)
        if self._stuck is not None and self._stuck.size:
            stuck_there(self._stuck, self.table.of_states(self._stuck), -np.inf)
        if not math.isfinite(collected := episode.walker.collected[0]):
            raise infinite_return(collected)

    def learn_apart(self, quotas: Quotas, until: int, sums: PartSums, totals: np.ndarray) -> bool:
        """Let walkers do their quotas from the base of the table, and add what each learned to `sums`.

        The table is the base afterwards. It is what `learn` and `PartSums.fold` do for one after the other:
        for those that `sums` does not have yet, to before the one at place `until`. What each would have
        added to `Totals` is written to its row of `totals`, float64 of shape (workers, 4).

        Return False, and do nothing, where rates are on several lines, or walkers are in no common arrays.
        """
        together = self._in_common_arrays()
        row = together.first_row(quotas.workers)
        step_size, epsilon, end = self._rates.at(quotas.start)
        if row < 0 or quotas.end > end:
            return False
        first = quotas.workers.start
        shares = Shares(first, quotas.share, quotas.more, quotas.key, step_size, epsilon)
        self._call_apart(together, row, shares, until, sums, totals)
        return True

    def states(self, walkers: Sequence[int]) -> State:
        """Return the stacked state of some walkers, see `stack_states`."""
        together = self._in_common_arrays() if self.learns_apart else None
        first = -1 if together is None else together.first_row(walkers)
        if together is None or first < 0:
            return stack_states([self.state(walker) for walker in walkers])
        rows = slice(first, first + len(walkers))
        arrays = together.walkers
        return {
            "position": np.concatenate([arrays.position[rows], arrays.memory[rows]], axis=1),
            "running": arrays.collected[rows].copy(),
            **{name: array[rows, np.newaxis] for name, array in together.memory.state().items()},
        }

    def _in_common_arrays(self) -> _Together:
        if self._together is None:
            self._together = _Together.of(self._episodes)
        return self._together

    def _call_apart(
        self, together: _Together, row: int, shares: Shares, until: int, sums: PartSums, totals: np.ndarray
    ) -> None:
        table, simulator = self.table, self._simulator
        context = together.memory.context(table, self._rates.table, self._settings.discount_factor)
        came, reward, base = together.came, together.reward, table.start
        while True:
            run_game(
                simulator,
                came,
                reward,
                self._apart,
                self._parameters,
                simulator.tables,
                together.walkers,
                row,
                context,
                shares,
                until,
                base,
                table.limit,
                sums.arrays,
                totals,
                came,
                reward,
            )
            if not sums.needs_room:
                break
            sums.make_room()
        if sums.lost >= 0:
            raise table.diverged_in_round(sums.lost)
        if sums.is_unsound:
            for each in totals:
                check_sums(each)
            collected = together.walkers.collected
            raise infinite_return(collected[~np.isfinite(collected)][0])

    def state(self, walker: int) -> State:
        """See `Learner`."""
        episode = self._episodes[walker]
        state = {
            "position": np.concatenate([episode.walker.position, episode.walker.memory]),
            "running": episode.walker.collected.copy(),
            **episode.memory.state(),
        }
        return state if episode.replay is None else {**state, **episode.replay.state()}

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`. What a game keeps in its memory is known to the game alone and not checked.

        Where the environment was stepped before, no place in it is known: an episode begins.
        """
        episode = self._episodes[walker]
        new = self.state(walker)
        if "position" not in state:
            state = {**new, **state}
        check_arrays(state, new, {})
        position, running = state["position"], state["running"]
        limit = episode.walker.time_limit
        check_position(position[np.newaxis], running, self.table.n_states, limit, self._stuck)
        if episode.replay is not None:
            check_replay(state, self.table)
        episode.memory.restore(state)
        if episode.replay is not None:
            episode.replay.restore(state)
        episode.walker.position[:] = position[:2]
        episode.walker.memory[:] = position[2:]
        episode.walker.collected[:] = running

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def stuck_states(simulator: CompiledSimulator) -> np.ndarray | None:
    """Return the states in which no action is legal; None where all are everywhere.

    Where a game has ended there need be none: acting there is what must not happen.
    """
    return None if simulator.legal is None else np.flatnonzero(~simulator.legal.any(axis=1))


def stuck_there(states: np.ndarray, now: np.ndarray, before: Any = 0) -> None:
    """Raise ActionMaskError if something was done in one of the `stuck_states`.

    Something was where what a table has of them, of shape (tables, states, A), is not what it was `before`.
    """
    acted = np.asarray((now != before).any(axis=(0, 2)))
    if acted.any():
        raise ActionMaskError(
            f"The compiled environment came to state {states[acted][0]}, where its mask forbids every "
            "action. Allow one there, or let the step that leads there terminate the episode."
        )


def infinite_return(collected: float) -> DivergenceError:
    """Return the error for an episode whose return is no finite number."""
    return DivergenceError(
        f"The undiscounted return of an episode in the compiled environment came to {collected}: rewards are "
        "so large that their sum is beyond all numbers. Make them smaller."
    )
