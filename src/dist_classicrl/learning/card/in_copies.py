"""Learning on a card in a small table: each block of walkers has a copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.learning.card import kernels, launching, plan
from dist_classicrl.learning.card.held import known_visits, take_maps
from dist_classicrl.learning.card.learner import CardLearner, Crew
from dist_classicrl.learning.card.plan import (
    MOST_MOMENTS,
    SHARED_BYTES,
    Round,
    Units,
    blocks_of,
    bytes_with_copies,
)
from dist_classicrl.learning.card.steps import TOO_LARGE, Arrays
from dist_classicrl.learning.learner import Problem, Stream

_FAULTS = 3


class Copies(NamedTuple):
    """The copies of the blocks where shared memory has no room for them."""

    sums: np.ndarray  # int64, shape (B * E,)
    reals: np.ndarray  # float64 or float32, shape (B * 3 * E,)
    whole: np.ndarray  # int32, shape (B * 2 * E,)


class InCopies(CardLearner):
    """Learns in rounds: blocks in copies, whose maps are then merged. The table goes there and back."""

    _first_bound = 2.0**20

    def __init__(self, problem: Problem) -> None:
        is_simulated = problem.card is not None and problem.card.is_simulated
        super().__init__(problem, problem.table, plan.IN_SIMULATOR if is_simulated else plan.ON_CARD)
        self._itemsize = problem.dtype.itemsize
        self._copy_bytes = kernels.bytes_of_copy(self.table.q.size, self._itemsize)
        self._in_shared = self._copy_bytes <= SHARED_BYTES
        self._round = self._make_round()
        self._merge = kernels.merge_kernel()
        self._rooms: dict[str, Any] = {}

    def _make_round(self) -> Any:
        """Return the kernel that plays its rounds."""
        return kernels.round_kernel(self._letters, self._itemsize, self._in_shared)

    def _compile(self, number: int) -> None:
        self._try(self._crews[number], Stream(np.uint64(0), 0), [Round(1, 0)], Units.for_bound(1.0, 1))

    def _bytes(self, per_walker: int, constant: int) -> int:
        return bytes_with_copies(
            self.table.q.size, self._itemsize, self._in_shared, self.shape, per_walker, constant
        )

    def _play(self, number: int, stream: Stream, rounds: list[Round]) -> np.ndarray:
        """See `CardLearner`: where a target is beyond the bound, all is played again in larger units."""
        crew = self._crews[number]
        while True:
            units = Units.for_bound(self._bound, self.shape.threads * self._letters)
            walkers, arrays, memory = self._try(crew, stream, rounds, units)
            faults = self.memory.get(arrays.faults)
            self._raise_for(faults, walkers)
            if not faults[TOO_LARGE]:
                break
            self._widen()
        self._take_crew(crew, walkers, memory)
        take_maps(self.memory, self.table, arrays, self.memory.get(arrays.updates))
        self.totals.values += self.memory.get(walkers.totals).sum(axis=1)
        return crew[0].collected

    def _try(self, crew: Crew, stream: Stream, rounds: list[Round], units: Units) -> tuple[Any, Any, Any]:
        """Play rounds on the card; return the walkers, the table, and what the rule remembers, from there."""
        problem, table = self._problem, self.table
        blocks = max(blocks_of(one.moving, self.shape) for one in rounds)
        walkers = self.memory.put(crew[0])
        arrays, copies = self._arrays(blocks), self._copies(blocks)
        simulation, parts, memory = self._parts(crew[1])
        bytes_shared = self._copy_bytes if self._in_shared else 0
        tile, lanes = kernels.merge_shape()
        merging = -(-table.q.size // tile), tile * lanes
        merge = launching.launcher(self._merge, arrays)
        playing: dict[int, launching.Launcher] = {}  # by the blocks that move: their clock is another
        used = stream.used
        for first in range(0, len(rounds), MOST_MOMENTS):
            now = rounds[first : first + MOST_MOMENTS]
            moments = []
            for one in now:
                moments.append(self._moment(stream, used, one, units))
                used += one.moving * one.steps
            there = self._moments(moments)
            for number, one in enumerate(now):
                moving = blocks_of(one.moving, self.shape)
                if moving not in playing:
                    own = parts._replace(step_sizes=self._step_sizes_for(moving))
                    playing[moving] = launching.launcher(
                        self._round, problem.parameters, simulation, walkers, own, arrays, copies, there
                    )
                playing[moving]((moving, self.shape.threads, 0, bytes_shared), number)
                merge(merging, moving)
        return walkers, arrays, memory

    def _arrays(self, blocks: int) -> Any:
        """Return the table on the card, with room for the maps of so many blocks, which a round fills."""
        table = self.table
        size, none = table.q.size, np.zeros(0)
        arrays = self.memory.put(
            Arrays(
                table.q,
                known_visits(table),
                table.weight,
                table.shift,
                np.zeros(size, np.int64),
                none,
                none,
                none,
                np.zeros(_FAULTS, np.int64),
            )
        )
        return arrays._replace(
            block_weight=self._room("weight", blocks * size, np.float64),
            block_shift=self._room("shift", blocks * size, np.float64),
            block_updates=self._room("updates", blocks * size, np.int32),
        )

    def _copies(self, blocks: int) -> Any:
        """Return room on the card for the copies of so many blocks, which a round fills."""
        size = 0 if self._in_shared else blocks * self.table.q.size
        return Copies(
            self._room("sums", size, np.int64),
            self._room("reals", 3 * size, np.float64 if self._itemsize == 8 else np.float32),
            self._room("whole", 2 * size, np.int32),
        )

    def _room(self, name: str, size: int, kind: Any) -> Any:
        """Return an array on the card of this size or larger, which is kept for the next call."""
        if name not in self._rooms or self._rooms[name].size < size:
            self._rooms[name] = self.memory.new(size, kind)
        return self._rooms[name]

    def close(self) -> None:
        """Give the card's memory back."""
        super().close()
        self._rooms.clear()
