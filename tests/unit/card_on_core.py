"""The rounds of a card, compiled for a core: the same numbers in the same order, one thread after the other.

A card's kernels are compared with it, and its errors are those of a card: the number of walkers, of blocks
and of steps between merges is what they depend on.
"""

import numpy as np

from dist_classicrl._jit import _OPTIONS, classes_in, is_of_package
from dist_classicrl._jit.machine_code import kept
from dist_classicrl.learning.card.steps import (
    HALTED,
    add_up,
    as_whole,
    end_step,
    episode_of,
    find_targets,
    give_map,
    is_sound,
    keep_episode,
    make_step,
    merge_blocks,
    merge_step,
    moment_of,
    move_entry,
    take_copy,
    walk_rows,
)
from dist_classicrl.learning.card.table import Seen


def jit(function):
    """Compile a function as those of the package are, whose machine code is kept on disk."""
    return kept(
        function, {**_OPTIONS, "_nrt": False}, lambda kinds: all(map(is_of_package, classes_in(kinds)))
    )


@jit
def play_round(
    rule, simulation, walkers, parts, arrays, copies, moments, number, blocks, threads, letters, targets, n
):
    """Do what a card's kernel of the same name does with so many blocks of so many threads.

    `copies` has room for one block: sums, values, shares, shifts, fresh visits and hits, of shape (entries,)
    each. `letters`, `targets` and `n` are those of a walker.
    """
    moment = moment_of(moments, number)
    sums, values, share, shift, fresh, hits = copies
    entries = arrays.values.size
    seen = Seen(values, arrays.known, fresh)
    for block in range(blocks):
        for entry in range(entries):
            take_copy(arrays, entry, values, share, shift, fresh)
            sums[entry], hits[entry] = 0, 0
        for i in range(moment.steps):
            for thread in range(threads):
                w = block * threads + thread
                if w < moment.moving:
                    written, after = make_step(
                        rule,
                        simulation,
                        walkers,
                        w,
                        episode_of(walkers, w),
                        parts,
                        seen,
                        moment,
                        i,
                        letters,
                        targets,
                        n,
                        arrays.faults,
                    )
                    keep_episode(walkers, w, after)
                    for letter in range(written):
                        entry = letters[letter]
                        sums[entry] += as_whole(targets[letter], moment, arrays.faults)
                        hits[entry] += 1
            for entry in range(entries):
                k, total = np.int64(hits[entry]), sums[entry]
                if k > 0:
                    sums[entry], hits[entry] = 0, 0
                    merge_step(parts, moment, i, entry, arrays.known, values, share, shift, fresh, k, total)
        for entry in range(entries):
            give_map(arrays, block, entry, share, shift, fresh)
    for entry in range(entries):
        merge_blocks(arrays, blocks, parts.step_sizes is not None, entry)


@jit
def walk(rule, simulation, walkers, parts, table, moments, number):
    """Do what a card's kernel of the same name does, as the functions below."""
    moment = moment_of(moments, number)
    if table.faults[HALTED] == 0:
        for w in range(moment.moving):
            find_targets(rule, simulation, walkers, w, parts, table, moment)
        add(table, moments, number)


@jit
def add(table, moments, number):
    """Add the letters of a step up for their entries."""
    moment = moment_of(moments, number)
    most = table.entries.size // table.written.size
    for w in range(moment.moving):
        for at in range(w * most, w * most + table.written[w]):
            entry = table.entries[at]
            table.sums[entry] += as_whole(table.targets[at], moment, table.faults)
            table.hits[entry] += 1


@jit
def move(table, moments, number):
    """Move the entries to which there are letters."""
    moment = moment_of(moments, number)
    most = table.entries.size // table.written.size
    for w in range(moment.moving):
        for at in range(w * most, w * most + table.written[w]):
            entry = table.entries[at]
            k = np.int64(table.hits[entry])
            table.hits[entry] = 0
            if k > 0:
                move_entry(table, moment, entry, k if is_sound(table.faults) else 0)
    if moment.moving > 0:
        end_step(table.faults)


@jit
def walk_in_rows(rule, simulation, walkers, parts, rows, moments, number):
    """Let each walker make all its steps in the same rows, after those before it.

    On a card they make them at once.
    """
    moment = moment_of(moments, number)
    for w in range(moment.moving):
        walk_rows(rule, simulation, walkers, w, parts, rows, moment)


@jit
def add_up_all(walkers, sums, moving):
    """Add up what all walkers counted."""
    for n in range(sums.totals.shape[0]):
        add_up(walkers, n, sums.totals, moving)
