"""Learning on a card in a small table: each block of walkers has a copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.learning.card import kernels, launching, plan
from dist_classicrl.learning.card.held import HeldTable
from dist_classicrl.learning.card.learner import CardLearner, Moving
from dist_classicrl.learning.card.plan import (
    MOST_MOMENTS,
    Round,
    Units,
    blocks_of,
    bytes_of_arrays,
    bytes_of_stacks,
    bytes_with_copies,
    halves,
)
from dist_classicrl.learning.card.steps import FAULTS, Arrays, Moments
from dist_classicrl.learning.learner import Problem, Stream


class Copies(NamedTuple):
    """The copies of the blocks where shared memory has no room for them."""

    sums: np.ndarray  # int64, shape (B * E,)
    reals: np.ndarray  # float64 or float32, shape (B * 3 * E,)
    whole: np.ndarray  # int32, shape (B * 2 * E,)


class InCopies(CardLearner):
    """Learns in rounds: blocks in copies, whose maps are then merged. The table goes there and back.

    The walkers stay on the card between calls.
    """

    _first_bound = 2.0**20

    def __init__(self, problem: Problem) -> None:
        is_simulated = problem.card is not None and problem.card.is_simulated
        super().__init__(problem, problem.lean_table, plan.IN_SIMULATOR if is_simulated else plan.ON_CARD)
        self._itemsize = problem.dtype.itemsize
        copy = kernels.bytes_of_copy(self.table.q.size, self._itemsize)
        self._shared_bytes = copy if copy <= self.card.shared_bytes else 0
        self._round = self._make_round()
        self._merge = kernels.merge_kernel()
        self._held = HeldTable(self.table, self.memory)
        #: On the card: the arrays of a crew, and what they were before it moved.
        self._crew_arrays: list[Any] = []
        self._before: list[Any] = []
        self._remembered: Moving | None = None  # whose they are
        self._room: tuple[list[Any], Copies] | None = None  # on the card: see `_there`

    def _make_round(self) -> Any:
        """Return the kernel that plays its rounds.

        A copy that has no more entries than a block has threads is looked through at once.
        """
        in_shared, by_letters = self._shared_bytes > 0, self.table.q.size > self.shape.threads
        return kernels.round_kernel(
            self._letters, self._itemsize, in_shared, by_letters, self.card.shared_bytes
        )

    def _compile(self, number: int) -> None:
        moving = self._crew_there(number)
        self._try(0, moving, Stream(np.uint64(0), 0), [Round(1, 0)], Units.for_bound(1.0, 1))
        self._take_sums(moving)

    def _bytes(self, crew: int, constant: int) -> int:
        # Each number of blocks has a clock of its own.
        constant += (self.shape.blocks.bit_length() - 1) * bytes_of_arrays(self._problem.rates.table)
        constant += bytes_of_stacks(self._letters, self.card.threads)
        return bytes_with_copies(
            self.table.q.size, self._itemsize, self._shared_bytes > 0, self.shape, crew, constant
        )

    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """See `CardLearner`."""
        moving = self._crew_there(number)
        self._play_from(stream.used, moving, stream, rounds)
        return self._take_sums(moving)

    def _play_from(self, used: int, moving: Moving, stream: Stream, rounds: list[Round]) -> None:
        """Play rounds that begin `used` steps after the stream does.

        Where a target is beyond the bound, the first and the second half of them are played by themselves,
        and a round that is alone in larger units: so these begin there, wherever calls are cut.
        """
        self._remember(moving)
        units = Units.for_bound(self._bounds[moving.number], self.shape.threads * self._letters)
        faults = self._try(used, moving, stream, rounds, units)
        if not faults.any():
            self._held.has_changed()
            return
        parts = halves(used, rounds)
        try:
            self._raise_for(faults, moving.walkers)
            if len(parts) == 1:
                self._widen(moving.number)
        finally:
            self._put_back()
        for begin, part in parts:
            self._play_from(begin, moving, stream, part)

    def _remember(self, moving: Moving) -> None:
        """Copy a crew on the card, so that it can be put back."""
        if self._remembered is not moving:
            arrays = [array for array in (*moving.walkers[:-1], *moving.memory) if array.size]
            self._crew_arrays = [array.reshape(-1) for array in arrays]
            self._before = [self.memory.new(array.size, array.dtype) for array in arrays]
            self._remembered = moving
        for kept, array in zip(self._before, self._crew_arrays, strict=True):
            self.memory.write(kept, array)

    def _forget_crew(self) -> None:
        super()._forget_crew()
        self._crew_arrays, self._before, self._remembered = [], [], None

    def _put_back(self) -> None:
        for kept, array in zip(self._before, self._crew_arrays, strict=True):
            self.memory.write(array, kept)

    def _try(
        self, used: int, moving: Moving, stream: Stream, rounds: list[Round], units: Units
    ) -> np.ndarray:
        """Play rounds on the card, from the table as it is here on; return what is wrong with them."""
        arrays, copies = self._there()
        tile, lanes = kernels.merge_shape()
        merging = -(-self.table.q.size // tile), tile * lanes
        for first in range(0, len(rounds), MOST_MOMENTS):
            now = rounds[first : first + MOST_MOMENTS]
            moments = []
            for one in now:
                moments.append(self._moment(stream, used, one, units))
                used += one.moving * one.steps
            there = self._moments(moments)
            for number, one in enumerate(now):
                blocks = blocks_of(one.moving, self.shape)
                if blocks not in self._launchers:
                    self._launchers[blocks] = self._launchers_of(blocks, moving, arrays, copies, there)
                play, merge = self._launchers[blocks]
                play((blocks, self.shape.threads, 0, self._shared_bytes), number)
                merge(merging, blocks)
        return np.asarray(self.memory.get(arrays.faults))

    def _launchers_of(
        self, blocks: int, moving: Moving, arrays: Arrays, copies: Copies, there: Moments
    ) -> tuple[launching.Launcher, launching.Launcher]:
        """Return what plays a round where so many blocks move, and what merges them."""
        sizes = self._step_sizes_for(1), self._step_sizes_for(blocks)
        parts = moving.parts._replace(step_sizes=sizes[0], block_sizes=sizes[1])
        given = moving.simulation, moving.walkers, parts, arrays, copies, there
        play = launching.launcher(self._round, self._problem.parameters, *given)
        return play, launching.launcher(self._merge, arrays, parts.step_sizes is not None)

    def _there(self) -> tuple[Arrays, Copies]:
        """Return the table on the card, with room for the maps, and the copies, of all blocks."""
        memory = self.memory
        if self._room is None:
            size = self.shape.blocks * self.table.q.size
            copied = 0 if self._shared_bytes else size
            copies = Copies(
                memory.new(copied, np.int64),
                memory.new(3 * copied, np.float64 if self._itemsize == 8 else np.float32),
                memory.new(2 * copied, np.int32),
            )
            kinds = (size, np.float64), (size, np.float64), (size, np.int32), (FAULTS, np.int64)
            self._room = [memory.new(*kind) for kind in kinds], copies
        maps, copies = self._room
        memory.write(maps[-1], np.zeros(FAULTS, np.int64))
        return Arrays(*self._held.there(), *maps), copies

    def close(self) -> None:
        """Give the card's memory back."""
        super().close()
        self._held.close()
        self._room = None
