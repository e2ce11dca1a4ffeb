"""Learning on a card in one table for all walkers: a large one, of which there are no copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.learning.card import kernels, launching, plan
from dist_classicrl.learning.card.cards import is_of_card
from dist_classicrl.learning.card.held import HeldMaps, HeldRows
from dist_classicrl.learning.card.learner import CardLearner
from dist_classicrl.learning.card.plan import (
    MOST_MOMENTS,
    Round,
    Shape,
    Units,
    blocks_of,
    bytes_with_one_table,
)
from dist_classicrl.learning.card.steps import FAULTS, MADE, TOO_LARGE, CardWalkers, Moments, OneTable, Parts
from dist_classicrl.learning.compiled import stuck_states
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.learning.state import State
from dist_classicrl.tables.line_table import LineTable

_SUMS, _COLUMNS = 1024, 5
"""So many threads add up what all walkers counted, see `steps.add_up`."""


class _Sums(NamedTuple):
    """What the walkers counted, see `steps.add_up`."""

    totals: np.ndarray  # float64, shape (N, 5)


class _Moving(NamedTuple):
    """A crew on the card."""

    number: int
    simulation: Any
    parts: Parts
    memory: Any  # what its rule remembers
    walkers: CardWalkers


class _Steps(NamedTuple):
    """Launches the kernels of steps, see `kernels.WalkKernels`."""

    shape: Shape
    walk: launching.Launcher
    add: launching.Launcher
    move: launching.Launcher

    def make(self, number: int, moving: int, is_again: bool) -> None:
        """Make a step with all that move; `is_again`: they have moved, and the table has not."""
        grid = blocks_of(moving, self.shape), self.shape.threads
        (self.add if is_again else self.walk)(grid, number)
        self.move(grid, number)


class InOneTable(CardLearner):
    """Learns step by step: all walkers find targets in the table as it is, then its entries move.

    Of a process alone the rows, and the walkers, stay on the card between calls.
    """

    _first_bound = 2.0**10

    def __init__(self, problem: Problem) -> None:
        simulator, card = problem.source.simulator, problem.card
        assert simulator is not None and card is not None  # see `kinds`
        held: HeldRows | HeldMaps
        if problem.is_alone:
            rows = problem.rows or LineTable(problem.shape, problem.dtype, problem.legal)
            held = HeldRows(rows, self.memory, stuck_states(simulator), partial(launching.used, card))
        else:
            held = HeldMaps(problem.table, self.memory)
        shape = plan.ONE_TABLE_IN_SIMULATOR if card.is_simulated else plan.ONE_TABLE_ON_CARD
        super().__init__(problem, held.seen, shape)
        self._held = held
        self._kernels: Any = self._make_kernels()
        self._scratch: Any = None  # on the card: what walkers write besides the table
        self._sums: Any = None
        self._moving: _Moving | None = None

    def _make_kernels(self) -> Any:
        return kernels.walk_kernels()

    def _bytes(self, per_walker: int, constant: int) -> int:
        entries, walkers = self.table.shape.size, self.shape.walkers
        constant += 8 * (self._n_sums * _COLUMNS + FAULTS)
        return bytes_with_one_table(entries, self._held.bytes, walkers, self._letters, per_walker, constant)

    @property
    def _n_sums(self) -> int:
        return min(_SUMS, self.shape.walkers)

    def _compile(self, number: int) -> None:
        table, moving = self._table(), self._crew_there(number)
        moment = self._moment(Stream(np.uint64(0), 0), 0, Round(0, 0), self._units())
        steps = self._steps(moving, table, self._moments([moment]))
        steps.make(0, 0, is_again=False)
        steps.make(0, 0, is_again=True)
        self._take_sums(moving)

    def _units(self) -> Units:
        return Units.for_bound(self._bound, self.shape.walkers * self._letters)

    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """See `CardLearner`.

        A step in which a target is beyond the bound changes no entry, nor do those after it; its targets are
        added up once more, in larger units, and all goes on from there.
        """
        table, moving = self._table(), self._crew_there(number)
        made, is_again = 0, False
        steps: _Steps | None = None
        try:
            while made < len(rounds):
                self.memory.write(table.faults, np.zeros(FAULTS, np.int64))
                units = self._units()
                moments = [self._moment(stream, *one, units) for one in self._from(stream, rounds, made)]
                there = self._moments(moments)
                steps = self._steps(moving, table, there) if steps is None else steps
                for number, moment in enumerate(moments):
                    steps.make(number, moment.moving, is_again)
                    is_again = False
                faults = self.memory.get(table.faults)
                self._raise_for(faults, moving.walkers)
                made += int(faults[MADE])
                if faults[TOO_LARGE]:
                    self._widen()
                    is_again = True
        except BaseException as error:
            if not is_of_card(error):  # else what is there cannot be had
                self._held.has_changed()
            raise
        self._held.has_changed()
        return self._take_sums(moving)

    def _from(self, stream: Stream, rounds: list[Round], made: int) -> Iterator[tuple[int, Round]]:
        """Give the next rounds, each of one step, with the steps of the stream before it."""
        used = stream.used + sum(one.moving for one in rounds[:made])
        for one in rounds[made : made + MOST_MOMENTS]:
            yield used, one
            used += one.moving

    def _steps(self, moving: _Moving, table: OneTable, there: Moments) -> _Steps:
        """Return what makes steps, each as the moment of its number says that is `there`."""
        walk = self._problem.parameters, moving.simulation, moving.walkers, moving.parts, table, there
        return _Steps(
            self.shape,
            launching.launcher(self._kernels.walk, *walk),
            launching.launcher(self._kernels.add, table, there),
            launching.launcher(self._kernels.move, table, there),
        )

    def _table(self) -> OneTable:
        """Return the table on the card, as it is here, and what walkers write besides it."""
        entries, walkers = self.table.shape.size, self.shape.walkers
        if self._scratch is None:
            zeros, letters = self.memory.zeros, walkers * self._letters
            self._scratch = (
                zeros(entries, np.int64),
                zeros(entries, np.int32),
                zeros(letters, np.int64),
                zeros(letters, np.float64),
                zeros(walkers, np.int64),
                zeros(FAULTS, np.int64),
            )
        return OneTable(*self._held.there(), self._step_sizes_for(1), *self._scratch)

    def _crew_there(self, number: int) -> _Moving:
        """Return a crew on the card, where there is one at a time."""
        if self._moving is None or self._moving.number != number:
            self._bring_crew()
            crew, memory = self._crews[number]
            walkers = self.memory.put(crew)
            self._moving = _Moving(number, *self._parts(memory), walkers)
        return self._moving

    def _bring_crew(self) -> None:
        """Bring the crew on the card to where it is kept."""
        if self._moving is not None:
            self._take_crew(self._crews[self._moving.number], self._moving.walkers, self._moving.memory)

    def _take_sums(self, moving: _Moving) -> np.ndarray:
        """Count what the walkers have counted; return numbers as `_play` does."""
        if self._sums is None:
            self._sums = _Sums(self.memory.put(np.zeros((self._n_sums, _COLUMNS))))
        grid = blocks_of(self._n_sums, self.shape), self.shape.threads
        self._kernels.add_up[grid](moving.walkers, self._sums)
        sums = self.memory.get(self._sums.totals)
        self.totals.values += sums[:, :4].sum(axis=0)
        return np.asarray(sums[:, 4])

    def state(self, walker: int) -> State:
        """See `Learner`."""
        if self._moving is not None and self._moving.number == walker:
            with launching.used(self.card):
                self._bring_crew()
        return super().state(walker)

    def restore(self, walker: int, state: State) -> None:
        """See `Learner`."""
        super().restore(walker, state)
        if self._moving is not None and self._moving.number == walker:
            self._moving = None

    def close(self) -> None:
        """Give the card's memory back."""
        super().close()
        self._held.close()
        self._moving = self._scratch = self._sums = None
