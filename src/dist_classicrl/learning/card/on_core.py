"""The rounds of a card, compiled for a core: the same numbers in the same order, one thread after the other.

Tests compare a card's kernels with it, and its errors are those of a card: the number of walkers, of blocks
and of steps between merges is what they depend on.
"""

from __future__ import annotations

import numpy as np

from dist_classicrl._jit import jit
from dist_classicrl.learning.card.steps import (
    as_whole,
    give_map,
    make_step,
    merge_blocks,
    merge_step,
    take_copy,
)


@jit
def play_round(
    rule, simulation, walkers, parts, arrays, copies, moment, blocks, threads, letters, targets, n
):
    """Do what a card's kernel of the same name does with so many blocks of so many threads.

    `copies` has room for one block: sums, values, weights, shifts, fresh visits and hits, of shape (entries,)
    each. `letters`, `targets` and `n` are those of a walker.
    """
    sums, values, weight, shift, fresh, hits = copies
    entries = arrays.values.size
    for block in range(blocks):
        for entry in range(entries):
            take_copy(arrays, entry, values, weight, shift, fresh, sums, hits)
        for i in range(moment.steps):
            for thread in range(threads):
                w = block * threads + thread
                if w < moment.moving:
                    written = make_step(
                        rule,
                        simulation,
                        walkers,
                        w,
                        parts,
                        values,
                        arrays.known,
                        fresh,
                        moment,
                        i,
                        letters,
                        targets,
                        n,
                        arrays.faults,
                    )
                    for number in range(written):
                        entry = letters[number]
                        sums[entry] += as_whole(targets[number], moment, arrays.faults)
                        hits[entry] += 1
            for entry in range(entries):
                merge_step(parts, moment, i, entry, arrays.known, values, weight, shift, fresh, sums, hits)
        for entry in range(entries):
            give_map(arrays, block, entry, weight, shift, fresh)
    for entry in range(entries):
        merge_blocks(arrays, blocks, entry)


def room_for_copy(entries: int, itemsize: int) -> tuple[np.ndarray, ...]:
    """Return `copies` of `play_round`, for values of so many bytes."""
    real = np.float64 if itemsize == 8 else np.float32
    return (
        np.zeros(entries, np.int64),
        *(np.zeros(entries, real) for _ in range(3)),
        np.zeros(entries, np.int32),
        np.zeros(entries, np.int32),
    )
