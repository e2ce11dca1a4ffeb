"""Learning on a card in one table for all walkers, of which maps are taken and there are no copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.learning.card import kernels, launching, plan
from dist_classicrl.learning.card.held import HeldTable, changing
from dist_classicrl.learning.card.learner import STEPPING, CardLearner, Moving
from dist_classicrl.learning.card.plan import (
    MOST_MOMENTS,
    Round,
    Shape,
    Units,
    blocks_of,
    bytes_with_one_table,
)
from dist_classicrl.learning.card.steps import FAULTS, MADE, TOO_LARGE, Moments, OneTable
from dist_classicrl.learning.learner import Problem, Stream


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

    Maps are taken of it, and it goes there and back with each call.
    """

    _first_bound = 2.0**10

    def __init__(self, problem: Problem) -> None:
        is_simulated = problem.card is not None and problem.card.is_simulated
        shape = plan.ONE_TABLE_IN_SIMULATOR if is_simulated else plan.ONE_TABLE_ON_CARD
        super().__init__(problem, problem.table, shape)
        self._held = HeldTable(self.table, self.memory)
        self._kernels: Any = self._make_kernels()
        self._scratch: Any = None  # on the card: what walkers write besides the table

    def _make_kernels(self) -> Any:
        return kernels.walk_kernels()

    def _bytes(self, crew: int, constant: int) -> int:
        entries, walkers = self.table.q.size, self.shape.walkers
        return bytes_with_one_table(entries, walkers, self._letters, crew, constant)

    def _compile(self, number: int) -> None:
        moving, table = self._crew_there(number), self._table()
        moment = self._moment(Stream(np.uint64(0), 0), 0, Round(0, 0), self._units(number))
        steps = self._steps(moving, table, self._moments([moment]))
        steps.make(0, 0, is_again=False)
        steps.make(0, 0, is_again=True)
        self._take_sums(moving)

    def _units(self, number: int) -> Units:
        return Units.for_bound(self._bounds[number], self.shape.walkers * self._letters)

    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """See `CardLearner`.

        A step in which a target is beyond the bound changes no entry, nor do those after it; its targets are
        added up once more, in larger units, and all goes on from there.
        """
        moving, table = self._crew_there(number), self._table()
        made, is_again = 0, False
        with changing(self._held):
            while made < len(rounds):
                self.memory.write(table.faults, np.zeros(FAULTS, np.int64))
                units = self._units(number)
                moments = [self._moment(stream, *one, units) for one in self._from(stream, rounds, made)]
                there = self._moments(moments)
                if STEPPING not in self._launchers:
                    self._launchers[STEPPING] = self._steps(moving, table, there)
                for at, moment in enumerate(moments):
                    self._launchers[STEPPING].make(at, moment.moving, is_again)
                    is_again = False
                faults = self.memory.get(table.faults)
                self._raise_for(faults, moving.walkers)
                made += int(faults[MADE])
                if faults[TOO_LARGE]:
                    self._widen(number)
                    is_again = True
        return self._take_sums(moving)

    def _from(self, stream: Stream, rounds: list[Round], made: int) -> Iterator[tuple[int, Round]]:
        """Give the next rounds, each of one step, with the steps of the stream before it."""
        used = stream.used + sum(one.moving for one in rounds[:made])
        for one in rounds[made : made + MOST_MOMENTS]:
            yield used, one
            used += one.moving

    def _steps(self, moving: Moving, table: OneTable, there: Moments) -> _Steps:
        """Return what makes steps, each as the moment of its number says that is `there`."""
        parts = moving.parts._replace(step_sizes=table.step_sizes)
        walk = self._problem.parameters, moving.simulation, moving.walkers, parts, table, there
        return _Steps(
            self.shape,
            launching.launcher(self._kernels.walk, *walk),
            launching.launcher(self._kernels.add, table, there),
            launching.launcher(self._kernels.move, table, there),
        )

    def _table(self) -> OneTable:
        """Return the table on the card, as it is here, and what walkers write besides it."""
        entries, walkers = self.table.q.size, self.shape.walkers
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

    def close(self) -> None:
        """Give the card's memory back."""
        super().close()
        self._held.close()
        self._scratch = None
