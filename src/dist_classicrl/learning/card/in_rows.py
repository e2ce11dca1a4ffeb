"""Learning on a card in rows in which all walkers write: a large table of a process alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dist_classicrl.learning.card import kernels, launching, plan
from dist_classicrl.learning.card.held import HeldRows, changing
from dist_classicrl.learning.card.learner import STEPPING, CardLearner, Moving
from dist_classicrl.learning.card.plan import MOST_MOMENTS, Round, Units, blocks_of
from dist_classicrl.learning.card.steps import FAULTS, AllRows, Moments
from dist_classicrl.learning.compiled import stuck_states
from dist_classicrl.learning.learner import Problem, Stream
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.lines import LineArrays

_NO_UNITS = Units(0.0, 1.0)
"""No targets are added up here."""


class InRows(CardLearner):
    """Learns as ranks do that share rows: each walker writes to the table, by plain stores.

    Each of them is a convex combination of the value that was read and a target. Where two write to an entry
    at once, the sample of one of them, and its visit, is lost. The rows, and the walkers, stay on the card
    between calls.
    """

    mode = "card rows"  # with other numbers of walkers than where there are copies
    _first_bound = 1.0

    def __init__(self, problem: Problem) -> None:
        simulator, card = problem.source.simulator, problem.card
        assert simulator is not None and card is not None  # see `kinds`
        rows = problem.rows or LineTable(problem.shape, problem.dtype, problem.legal)
        self._held = HeldRows(rows, self.memory, stuck_states(simulator), partial(launching.used, card))
        super().__init__(
            problem, self._held, plan.ROWS_IN_SIMULATOR if card.is_simulated else plan.ROWS_ON_CARD
        )
        self._kernel: Any = self._make_kernel()
        self._faults: Any = None  # on the card

    def _make_kernel(self) -> Any:
        return kernels.rows_kernel()

    def _bytes(self, crew: int, constant: int) -> int:
        return self._held.bytes + crew + constant

    def _compile(self, number: int) -> None:
        self._play(number, Stream(np.uint64(0), 0), [Round(0, 0)])

    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """See `CardLearner`."""
        moving, memory = self._crew_there(number), self.memory
        if self._faults is None:
            self._faults = memory.zeros(FAULTS, np.int64)
        else:
            memory.write(self._faults, np.zeros(FAULTS, np.int64))
        used = stream.used
        with changing(self._held):
            for first in range(0, len(rounds), MOST_MOMENTS):
                moments = []
                for one in rounds[first : first + MOST_MOMENTS]:
                    moments.append(self._moment(stream, used, one, _NO_UNITS))
                    used += one.moving * one.steps
                there, rows = self._moments(moments), self._held.there()
                if STEPPING not in self._launchers:
                    self._launchers[STEPPING] = self._launcher(moving, rows, there)
                for at, moment in enumerate(moments):
                    self._launchers[STEPPING]((blocks_of(moment.moving, self.shape), self.shape.threads), at)
            self._raise_for(memory.get(self._faults), moving.walkers)
        return self._take_sums(moving)

    def _launcher(self, moving: Moving, rows: LineArrays, there: Moments) -> launching.Launcher:
        parts = moving.parts._replace(step_sizes=self._step_sizes_for(1))
        all_rows = AllRows(rows._replace(legal=parts.legal), self._faults)
        given = moving.simulation, moving.walkers, parts, all_rows, there
        return launching.launcher(self._kernel, self._problem.parameters, *given)

    def close(self) -> None:
        """Give the card's memory back."""
        super().close()
        self._held.close()
        self._faults = None
