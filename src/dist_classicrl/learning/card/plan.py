"""How a problem is laid out on a card: blocks and threads, where copies of the table lie, and what it takes.

Nothing of it depends on which card it is, so that a seed makes the same table on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dist_classicrl.errors import DeviceMemoryError
from dist_classicrl.learning import loops
from dist_classicrl.learning.card.cards import Card, free_memory

LARGEST_COPY = 1 << 14
"""Entries that a table may have of which each block has a copy; all walkers learn in a larger one together.

With 3,000 entries copies made 9 G steps/s on an H200, where blocks looked for hits in all of a copy after
each step, and where all write to the same rows it is a tenth of that, since they meet there. Now they go by
letters alone, of which larger copies have no more. That those of so many entries are as quick is an
estimate."""

MAP_BYTES = 4 * 8
"""Of an entry of which maps are taken: its value, visits, weight and shift."""

MOST_MOMENTS = 1024
MOMENT_BYTES = 11 * 8
"""So many rounds are told to the card at once, each in so many bytes."""

_SUMS_BITS = 62
_FEW = 64
_STEPS_PER_ROUND = 20
"""A round has at most one step for so many steps made: a block does not know what others find out in it."""


class Shape(NamedTuple):
    """The most that is under way at once."""

    blocks: int
    threads: int  # of a block, each of which has a walker
    interval: int  # steps of a walker between two merges of the blocks; 1 where they have no copies

    @property
    def walkers(self) -> int:
        """How many episodes."""
        return self.blocks * self.threads


ON_CARD = Shape(256, 512, 128)
IN_SIMULATOR = Shape(2, 8, 8)
"""Python threads: enough to show that blocks and barriers do what they should."""

ONE_TABLE_ON_CARD = Shape(4096, 256, 1)
"""Where there are no copies: so many walkers take longer for a step than Python does to ask for the next."""

ONE_TABLE_IN_SIMULATOR = Shape(2, 8, 1)

ROWS_ON_CARD = Shape(512, 64, 32)
"""Where all write to the same rows. Four times as many make half as many steps: a multiprocessor's own cache
keeps no line then from one access of a step to the next, and more visits are lost. What it keeps of a row
grows no older than those steps."""

ROWS_IN_SIMULATOR = Shape(2, 8, 8)


class Round(NamedTuple):
    """A round: so many walkers make so many steps each."""

    moving: int
    steps: int


def next_round(start: int, used: int, left: int, shape: Shape) -> Round:
    """Return the round that begins `used` steps after global step `start`, with `left` to be made.

    As all are powers of two that go into `used`, training may be cut at each multiple of
    ``shape.walkers * shape.interval``, and no round is cut by that.
    """
    done = start + used
    most = min(shape.walkers, max(_FEW, done // loops.STEPS_PER_WALKER), left)
    moving = 1
    while 2 * moving <= most and used % (2 * moving) == 0:
        moving *= 2
    most = min(left, max(moving, done // _STEPS_PER_ROUND))
    steps = 1
    while 2 * steps <= shape.interval and 2 * steps * moving <= most and used % (2 * steps * moving) == 0:
        steps *= 2
    return Round(moving, steps)


def halves(used: int, rounds: list[Round]) -> list[tuple[int, list[Round]]]:
    """Return the first and the second half of rounds, each with the steps of the stream before it.

    One by itself is returned as it is.
    """
    if len(rounds) == 1:
        return [(used, rounds)]
    first, second = rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]
    return [(used, first), (used + sum(one.moving * one.steps for one in first), second)]


def blocks_of(moving: int, shape: Shape) -> int:
    """Return on how many blocks so many walkers are."""
    return max(1, -(-moving // shape.threads))


_SMALLEST_KEPT = 2.0**-40
"""What a step of a block leaves of a value at least: with much less the root of weights would be lost. Of 256
blocks the root of that is 0.9."""


def of_blocks(step_sizes: np.ndarray, blocks: int) -> np.ndarray:
    """Return the step sizes of each of so many blocks that learn in copies, B, for those of one learner.

    They are 1 - (1 - a)^B, about B a, and the merged weight of all is the B-th root of the product of theirs.
    So all of them together move an entry by a for each visit, as one learner does that makes their steps,
    whether few of them come to it in a round or all; but with 256 blocks by a tenth at most, and one of them
    alone by a quarter in a round (`steps.SMALLEST_OF_BLOCK`). And where all come to it often, what is merged
    is the mean of B learners, whose variance, which grows with the step size, is again that of the one.
    """
    if blocks == 1:
        return step_sizes
    return 1.0 - np.maximum((1.0 - step_sizes) ** blocks, _SMALLEST_KEPT)


@dataclass(frozen=True)
class Units:
    """Targets as whole numbers: of at most `bound`, with so many walkers that sums have room.

    Attributes
    ----------
    bound : float
        A power of two.
    scale : float
        Whole numbers per 1.
    """

    bound: float
    scale: float

    @classmethod
    def for_bound(cls, bound: float, most: int) -> Units:
        """Return those in which the sum of `most` targets of this bound has room."""
        return cls(bound, 2.0 ** (_SUMS_BITS - (most - 1).bit_length()) / bound)


def has_copies(entries: int, rows: Any = None) -> bool:
    """Whether each block has a copy of a table of so many entries; `rows` that are given are not copied."""
    return rows is None and entries <= LARGEST_COPY


def bytes_with_copies(
    entries: int, itemsize: int, in_shared: bool, shape: Shape, crew: int, constant: int
) -> int:
    """Return what a problem takes of a card's memory where blocks have copies.

    `crew` are the bytes of all episodes under way, of which there is a copy, and `constant` those of the
    model and of step sizes.
    """
    table = entries * MAP_BYTES
    maps = shape.blocks * entries * (8 + 8 + 4)
    copies = 0 if in_shared else shape.blocks * entries * (8 + 3 * itemsize + 8)
    return table + maps + copies + 2 * crew + constant


def bytes_of_stacks(letters: int, threads: int) -> int:
    """Return what the driver keeps for the letters of a step that wait in each thread's own memory.

    It does so for all `threads` that a card can have under way, however many there are. What a compiler puts
    there besides is 32 bytes at most.
    """
    return threads * (letters * (4 + 8) + 32)


def bytes_with_one_table(entries: int, walkers: int, letters: int, crew: int, constant: int) -> int:
    """Return likewise what it takes where all learn in one table of which maps are taken."""
    table = entries * (MAP_BYTES + 8 + 4)
    return table + walkers * (letters * (8 + 8) + 8) + crew + constant


def bytes_of_arrays(value: Any) -> int:
    """Return the bytes of an array, or of all in a tuple; of those that are the same memory, once."""
    return sum({memory_of(array): array.nbytes for array in _arrays_in(value)}.values())


def memory_of(array: np.ndarray) -> tuple[int, int, bool]:
    """Return where the memory of an array is, how many bytes it has, and whether they lie together."""
    return array.ctypes.data, array.nbytes, array.flags.c_contiguous


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, tuple):
        for each in value:
            yield from _arrays_in(each)
    elif isinstance(value, np.ndarray):
        yield value


def check_memory(needed: int, card: Card, what: str) -> None:
    """Raise DeviceMemoryError where a card has not so many bytes that nobody uses."""
    free = free_memory(card)
    if needed > free:
        raise DeviceMemoryError(
            f"{what} needs {needed / 2**30:.2f} GiB of a card's memory, and {card} has {free / 2**30:.2f} "
            f"GiB that nobody uses: {(needed - free) / 2**30:.2f} GiB too few. End what else uses the card, "
            'take a larger one (CUDA_VISIBLE_DEVICES), or write device="cpu".'
        )
