"""The kernels of a card: what needs threads, barriers and atomic additions; the rest is in `steps`.

This file is imported when a card is used, since numba-cuda is an extra. Numba picks rules, behaviors and
simulations in them by the classes of NamedTuples, as it does on a core.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from dist_classicrl._jit import compiled_for
from dist_classicrl.learning.card.cards import is_simulated, numba_cuda
from dist_classicrl.learning.card.launching import TypedOnce, made
from dist_classicrl.learning.card.one_run import learn_run
from dist_classicrl.learning.card.steps import (
    HALTED,
    add_up,
    apply_blocks,
    as_whole,
    end_step,
    episode_of,
    find_targets,
    give_map,
    is_sound,
    keep_episode,
    learned_by,
    make_step,
    merge_step,
    moment_of,
    move_entry,
    of_words,
    take_copy,
    walk_rows,
    with_carry,
    words_of,
)
from dist_classicrl.learning.card.table import Seen

cuda: Any = numba_cuda()
"""By this name the simulator finds it in the kernels of this file."""


def bytes_of_copy(entries: int, itemsize: int) -> int:
    """Return what the copy of a block takes: sums, values, shares and shifts, counts and hits."""
    return entries * (8 + 3 * itemsize + 8)


def python_of_round(most: int, itemsize: int, in_shared: bool, by_letters: bool) -> Any:
    """Return the kernel that plays a round, as plain Python; see `round_kernel`."""
    real = types.float64 if itemsize == 8 else types.float32
    before = 8 // itemsize  # reals as long as one sum

    def in_shared_memory(copies: Any, entries: int) -> Any:
        sums = cuda.shared.array(0, types.uint32)
        reals = cuda.shared.array(0, real)
        whole = cuda.shared.array(0, types.int32)
        first = before * entries
        last = 2 * entries + 3 * entries * itemsize // 4
        return (
            sums[: 2 * entries],
            reals[first : first + entries],
            reals[first + entries : first + 2 * entries],
            reals[first + 2 * entries : first + 3 * entries],
            whole[last : last + entries],
            whole[last + entries : last + 2 * entries],
        )

    def in_device_memory(copies: Any, entries: int) -> Any:
        first = cuda.blockIdx.x * entries
        reals, whole = copies.reals[3 * first :], copies.whole[2 * first :]
        return (
            copies.sums[first : first + entries],
            reals[:entries],
            reals[entries : 2 * entries],
            reals[2 * entries : 3 * entries],
            whole[:entries],
            whole[entries : 2 * entries],
        )

    begin, step, to_whole = _called(take_copy), _called(make_step), _called(as_whole)
    merge, tell, moment_in = _called(merge_step), _called(give_map), _moment_in()
    load, keep = _called(episode_of), _called(keep_episode)
    copy_of_block = _device(in_shared_memory if in_shared else in_device_memory)
    clear, add_to, take = _sums_as_words() if in_shared else _sums()

    def play_round(
        rule: Any,
        simulation: Any,
        walkers: Any,
        parts: Any,
        arrays: Any,
        copies: Any,
        moments: Any,
        number: int,
    ) -> None:
        moment = moment_in(moments, number)
        entries = arrays.values.size
        sums, values, share, shift, fresh, hits = copy_of_block(copies, entries)
        seen = Seen(values, arrays.known, fresh)
        letters = cuda.local.array(most, types.uint32)  # what has no sign takes fewer registers as an index
        targets = cuda.local.array(most, types.float64)
        n = cuda.local.array(1, types.int64)
        block, thread, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        w = block * size + thread
        at, written = load(walkers, w), np.int64(0)
        # Loops over entries are written out: a range with a step would divide in each of them.
        entry = thread
        while entry < entries:
            begin(arrays, entry, values, share, shift, fresh)
            clear(sums, entry, entries)
            hits[entry] = 0
            entry += size
        cuda.syncthreads()
        for i in range(moment.steps):
            if w < moment.moving:
                written, at = step(
                    rule,
                    simulation,
                    walkers,
                    w,
                    at,
                    parts,
                    seen,
                    moment,
                    i,
                    letters,
                    targets,
                    n,
                    arrays.faults,
                )
                for letter in range(written):
                    entry = letters[letter]
                    add_to(sums, entry, entries, to_whole(targets[letter], moment, arrays.faults))
                    cuda.atomic.add(hits, entry, 1)
            cuda.syncthreads()
            if by_letters:  # whoever is first to take the hits of an entry moves it
                while written > 0:
                    written -= 1
                    entry = letters[written]
                    k = np.int64(cuda.atomic.exch(hits, entry, 0))
                    if k > 0:
                        total = take(sums, entry, entries)
                        merge(parts, moment, i, entry, arrays.known, values, share, shift, fresh, k, total)
            else:
                entry = thread
                while entry < entries:
                    k = np.int64(hits[entry])
                    if k > 0:
                        hits[entry] = 0
                        total = take(sums, entry, entries)
                        merge(parts, moment, i, entry, arrays.known, values, share, shift, fresh, k, total)
                    entry += size
            cuda.syncthreads()
        entry = thread
        while entry < entries:
            tell(arrays, block, entry, share, shift, fresh)
            entry += size
        if w < moment.moving:
            keep(walkers, w, at)

    return play_round


def _sums() -> tuple[Any, Any, Any]:
    """Return what clears, adds to and takes one of the sums of a block, each an int64."""

    def clear(sums: Any, entry: int, entries: int) -> None:
        sums[entry] = 0

    def add_to(sums: Any, entry: int, entries: int, whole: int) -> None:
        cuda.atomic.add(sums, entry, whole)

    def take(sums: Any, entry: int, entries: int) -> Any:
        total = sums[entry]
        sums[entry] = 0
        return total

    return _device(clear), _device(add_to), _device(take)


def _sums_as_words() -> tuple[Any, Any, Any]:
    """Return likewise what does so where lower halves of all sums come first, and then the upper ones.

    In shared memory a card adds numbers of 32 bits at once, and those of 64 bits by trying until nobody
    else has been there. The sums are the same: who carries adds the carry.
    """
    split, carried, join = _called(words_of), _called(with_carry), _called(of_words)

    def clear(sums: Any, entry: int, entries: int) -> None:
        sums[entry] = 0
        sums[entries + entry] = 0

    def add_to(sums: Any, entry: int, entries: int, whole: int) -> None:
        low, high = split(whole)
        high = carried(high, low, cuda.atomic.add(sums, entry, low))
        if high != 0:
            cuda.atomic.add(sums, entries + entry, high)

    def take(sums: Any, entry: int, entries: int) -> Any:
        total = join(sums[entry], sums[entries + entry])
        sums[entry] = 0
        sums[entries + entry] = 0
        return total

    return _device(clear), _device(add_to), _device(take)


def python_of_merge(tile: int, lanes: int) -> Any:
    """Return the kernel that merges what the blocks learned in a round, as plain Python.

    Each of its own blocks has `tile` entries, and `lanes` threads for each of them: these look at as many
    blocks of walkers at once, and one of them takes what they found in the order of the blocks.
    """
    look, apply = _called(learned_by), _called(apply_blocks)
    room = tile * lanes

    def merge(arrays: Any, is_rooted: bool, blocks: int) -> None:
        ks = cuda.shared.array(room, types.int64)
        weights = cuda.shared.array(room, types.float64)
        sums = cuda.shared.array(room, types.float64)
        thread, entries = cuda.threadIdx.x, arrays.values.size
        lane = thread // tile
        column = thread - lane * tile
        entry = cuda.blockIdx.x * tile + column
        updates, count, weight, targets = np.int64(0), np.int64(0), 1.0, 0.0
        first = 0
        while first < blocks:
            if entry < entries and first + lane < blocks:
                ks[thread], weights[thread], sums[thread] = look(arrays, first + lane, entry)
            else:
                ks[thread], weights[thread], sums[thread] = 0, 1.0, 0.0
            cuda.syncthreads()
            if lane == 0:
                for other in range(lanes):
                    at = other * tile + column
                    k, one = ks[at], weights[at]
                    updates += k
                    if one < 1.0:
                        count += k
                    weight *= one
                    targets += sums[at]
            cuda.syncthreads()
            first += lanes
        if lane == 0 and entry < entries:
            apply(arrays, entry, blocks, is_rooted, updates, count, weight, targets)

    return merge


def _adder() -> Any:
    """Return what adds the letters of a walker up for their entries."""
    to_whole = _called(as_whole)

    def add_letters(table: Any, moment: Any, w: int, written: int) -> None:
        first = w * (table.entries.size // table.written.size)
        for at in range(first, first + written):
            entry = table.entries[at]
            cuda.atomic.add(table.sums, entry, to_whole(table.targets[at], moment, table.faults))
            cuda.atomic.add(table.hits, entry, 1)

    return _device(add_letters)


def python_of_walk() -> Any:
    """Return the kernel in which all walkers make a step in one table, as plain Python."""
    find, add_letters, moment_in = _called(find_targets), _adder(), _moment_in()

    def walk(
        rule: Any, simulation: Any, walkers: Any, parts: Any, table: Any, moments: Any, number: int
    ) -> None:
        w, moment = cuda.grid(1), moment_in(moments, number)
        if w < moment.moving and table.faults[HALTED] == 0:
            add_letters(table, moment, w, find(rule, simulation, walkers, w, parts, table, moment))

    return walk


def python_of_add() -> Any:
    """Return the kernel that adds the letters of a step up once more, as plain Python."""
    add_letters, moment_in = _adder(), _moment_in()

    def add(table: Any, moments: Any, number: int) -> None:
        w, moment = cuda.grid(1), moment_in(moments, number)
        if w < moment.moving:
            add_letters(table, moment, w, table.written[w])

    return add


def python_of_move() -> Any:
    """Return the kernel that moves the entries to which there are letters, as plain Python.

    Who is first to take the hits of an entry moves it.
    """
    move_one, sound, end = _called(move_entry), _called(is_sound), _called(end_step)
    moment_in = _moment_in()

    def move(table: Any, moments: Any, number: int) -> None:
        w, moment = cuda.grid(1), moment_in(moments, number)
        if w < moment.moving:
            first = w * (table.entries.size // table.written.size)
            goes_on = sound(table.faults)
            for at in range(first, first + table.written[w]):
                entry = table.entries[at]
                k = np.int64(cuda.atomic.exch(table.hits, entry, 0))
                if k > 0:
                    move_one(table, moment, entry, k if goes_on else np.int64(0))
            if w == 0:
                end(table.faults)

    return move


def python_of_rows() -> Any:
    """Return the kernel in which all walkers make the steps of a round in the same rows, as plain Python."""
    walk_on, moment_in = _called(walk_rows), _moment_in()

    def walk_in_rows(
        rule: Any,
        simulation: Any,
        walkers: Any,
        parts: Any,
        rows: Any,
        moments: Any,
        number: int,
    ) -> None:
        w, moment = cuda.grid(1), moment_in(moments, number)
        if w < moment.moving:
            walk_on(rule, simulation, walkers, w, parts, rows, moment)

    return walk_in_rows


def python_of_sums() -> Any:
    """Return the kernel that adds up what all walkers counted, as plain Python."""
    add_own = _called(add_up)

    def add_up_all(walkers: Any, sums: Any, moving: int) -> None:
        n = cuda.grid(1)
        if n < sums.totals.shape[0]:
            add_own(walkers, n, sums.totals, moving)

    return add_up_all


def _called(function: Any) -> Any:
    """Return a jitted function as a kernel calls it: one kernel calls it with one kind of arguments only.

    In the simulator, which calls it from Python, numba would look at the types of all arrays in each call.
    """
    if not is_simulated() or not hasattr(function, "get_overload"):
        return function
    entries: list[Any] = []

    def call(*arguments: Any) -> Any:
        if not entries:
            entries.append(compiled_for(function, *arguments))
        return entries[0](*arguments)

    return call


def _moment_in() -> Any:
    # Python has no int64 and uint64 of its own: what a compiled function returned would be of other types.
    return moment_of.py_func if is_simulated() and hasattr(moment_of, "py_func") else moment_of


def _device(function: Any) -> Any:
    return cuda.jit(device=True)(function)


_ROUND_REGISTERS = 64
"""Of a thread of a round, so that two blocks of 512 are on a multiprocessor of 65,536 at a time.

All 256 of them play at once then on a card that has 128 of these."""

_ROWS_REGISTERS = 64
"""Likewise of a walker in rows. Its rates were measured so."""


def round_kernel(most: int, itemsize: int, in_shared: bool, by_letters: bool, shared_bytes: int) -> TypedOnce:
    """Return the kernel that plays a round: each block learns in its own copy, and tells maps.

    `most` letters may come of a step; values have so many bytes, 8 or 4; copies are in a block's shared
    memory, or in the card's. Which entries are to move a block finds `by_letters`, or looks for in all of its
    copy. `shared_bytes` are the most that a block may have: one kernel serves all tables.
    """
    given = most, itemsize, in_shared, by_letters
    kernel = made(python_of_round, *given, most_registers=_ROUND_REGISTERS)
    return TypedOnce(kernel, shared_bytes)


def python_of_runs() -> Any:
    """Return the kernel that makes the steps of a run in each thread, as plain Python."""
    learn = _called(learn_run)

    def play_runs(rule: Any, simulation: Any, runs: Any, parts: Any, lines: Any, settles: Any) -> None:
        r = cuda.grid(1)
        if r < runs.keys.size:
            learn(rule, simulation, runs, r, parts, lines, settles)

    return play_runs


def runs_kernel() -> TypedOnce:
    """Return the kernel that makes the steps of a run in each thread."""
    return TypedOnce(made(python_of_runs))


MERGE_ON_CARD = 8, 32
MERGE_IN_SIMULATOR = 2, 2
"""Entries of a block of the kernel that merges, and threads for each of them."""


def merge_shape() -> tuple[int, int]:
    """Return the entries of a block of the kernel that merges, and its threads for each of them."""
    return MERGE_IN_SIMULATOR if is_simulated() else MERGE_ON_CARD


def merge_kernel() -> TypedOnce:
    """Return the kernel that merges what the blocks learned in a round."""
    return TypedOnce(made(python_of_merge, *merge_shape()))


class WalkKernels(NamedTuple):
    """The kernels of one table for all walkers; between two all threads have done what they had to do."""

    walk: Any
    add: Any
    move: Any


def walk_kernels() -> WalkKernels:
    """Return the kernels of one table for all walkers."""
    makers = (python_of_walk, python_of_add, python_of_move)
    return WalkKernels(*(TypedOnce(made(make)) for make in makers))


def rows_kernel() -> TypedOnce:
    """Return the kernel in which all walkers make the steps of a round in the same rows."""
    return TypedOnce(made(python_of_rows, most_registers=_ROWS_REGISTERS))


def sums_kernel() -> TypedOnce:
    """Return the kernel that adds up what all walkers counted."""
    return TypedOnce(made(python_of_sums))
