"""Learning in compiled environments with tables that no cache holds: many walkers take turns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._steps import NEVER
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.simulate import CAME
from dist_classicrl.environments.state_keys import words_of
from dist_classicrl.environments.trial import run_game, try_out
from dist_classicrl.learning.compiled import infinite_return, stuck_states, stuck_there
from dist_classicrl.learning.learner import Problem, Stream, Totals
from dist_classicrl.learning.loops import NO_STEPS, Stretch
from dist_classicrl.learning.memory import RuleMemory, crew_state, put_crew
from dist_classicrl.learning.rules import compiling
from dist_classicrl.learning.state import State, check_arrays
from dist_classicrl.learning.walkers import Walkers, walk
from dist_classicrl.tables.line_table import LineTable

WALKERS = 32
"""So many hide what memory takes: with 16 a core makes a tenth fewer steps, with 64 no more."""

_FEW = 64
_STEPS_PER_WALKER = 1000

FROM_ENTRIES = 1 << 14
"""Entries from which a table is learned so, on every machine: so that a seed gives the same table on all.

With as many it is 1.5 to 1.8 times as fast as one walker with 4 or 8 actions, and 2.6 times with 100; with a
million 6 to 10 times, with a quarter of it neither wins (`benchmarks/large_tables.py --from-entries`).
"""


def suits(problem: Problem) -> bool:
    """Whether a problem is learned faster like this: alone, compiled, and in a table that no cache holds."""
    source = problem.source
    if source.simulator is None or problem.settings.replay_ratio > 0.0:
        return False
    is_large = source.n_states * source.n_actions >= FROM_ENTRIES
    return problem.rows is not None or (problem.is_alone and is_large)


class InterleavedLearner:
    """Learns in a compiled environment with `WALKERS` episodes at a time. See `Learner`.

    To the engine all of them are one walker. What it learns depends on the stream and on how it is cut into
    calls only where one is cut within a turn, which is `quantum` steps.
    """

    quantum = WALKERS
    mode = "interleaved"

    def __init__(self, problem: Problem) -> None:
        simulator = problem.source.simulator
        assert simulator is not None  # see `suits`
        #: A `LineTable`; one that is alone is asked to load, settle and tell what is exact, nothing else.
        self.table: Any = self._make_table(problem)
        #: How many learn in the table.
        self.ranks = 1
        self.totals = Totals()
        self._problem = problem
        self._simulator = simulator
        self._loop = jit_for(walk, type(simulator.tables), problem.rule.parameters)
        self._stuck = stuck_states(simulator)
        self._crews: dict[int, tuple[Walkers, RuleMemory]] = {}

    def _make_table(self, problem: Problem) -> LineTable:
        return problem.rows or LineTable(problem.shape, problem.dtype, problem.legal)

    @property
    def _n_states(self) -> int:
        return self.table.shape.n_states

    def _is_whole(self) -> bool:
        return self._n_states == self._simulator.n_states

    def _simulation(self) -> Any:
        """Return what the loop simulates."""
        return self._simulator.tables

    @property
    def walkers(self) -> list[int]:
        """See `Learner`."""
        return list(self._crews)

    def add(self, number: int, source: Source, seed: int) -> None:
        """See `Learner`; a compiled environment draws from the streams alone, so `seed` is not used."""
        if not self._crews:
            if self._is_whole():  # else there is only compiled
                try_out(self._simulator)
            with compiling(self._problem.rule):
                self._call(*self._crew(number), NO_STEPS)
        self._crews[number] = self._crew(number)

    def _crew(self, number: int) -> tuple[Walkers, RuleMemory]:
        problem, simulator = self._problem, self._simulator
        whole = [np.zeros(WALKERS, np.int64) for _ in range(4)]
        crew = Walkers(
            states=np.full(WALKERS, -1),
            elapsed=whole[0],
            collected=np.zeros(WALKERS),
            memory=np.zeros((WALKERS, simulator.memory_size + words_of(simulator.keys)), np.int64),
            actions=whole[1],
            next_states=whole[2],
            rewards=np.zeros(WALKERS),
            terminated=np.zeros(WALKERS, bool),
            time_limit=simulator.max_episode_steps or NEVER,
            came=np.full(CAME, -1),
            made=np.zeros(1, np.int64),
            reward_that_came=np.zeros(1),
        )
        return crew, RuleMemory(
            problem.rule, problem.parameters, self.table, WALKERS, problem.behavior, number
        )

    def _call(self, crew: Walkers, memory: RuleMemory, stretch: Stretch) -> None:
        problem = self._problem
        rates, discount = problem.rates, problem.settings.discount_factor
        run_game(
            self._simulator,
            crew.came,
            crew.reward_that_came,
            self._loop,
            problem.parameters,
            self._simulation(),
            crew,
            memory.context(self.table, rates.table, discount),
            stretch,
            self.totals.values,
        )

    def learn(self, walker: int, stream: Stream, steps: int) -> None:
        """See `Learner`."""
        crew, memory = self._crews[walker]
        moving = self._part(crew, stream.start + stream.used)
        for stretch in stream.stretches(steps, self._problem.rates):
            self._call(moving, memory, stretch)
        if self._stuck is not None:
            stuck_there(self._stuck, self.table.of_states(self._stuck), -np.inf)
        for collected in crew.collected.tolist():
            if not math.isfinite(collected):
                raise infinite_return(collected)

    def _part(self, crew: Walkers, done: int) -> Walkers:
        """Return those of the walkers that move after `done` steps of all.

        At a time there are 64 in all, or a thousandth of the steps done: more would learn from a table that
        does not know yet what the first of them found out.
        """
        size = max(1, max(_FEW, done // _STEPS_PER_WALKER) // self.ranks)
        if size >= WALKERS:
            return crew
        arrays: Any = {
            name: each[:size]
            for name, each in crew._asdict().items()
            if isinstance(each, np.ndarray) and name not in ("came", "reward_that_came")
        }
        return crew._replace(**arrays)

    def state(self, walker: int) -> State:
        """See `Learner`."""
        return crew_state(*self._crews[walker])

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`."""
        check_arrays(state, self.state(walker), {})
        put_crew(*self._crews[walker], state, self._n_states, self._stuck)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
