"""The kernels of a card: what needs threads, barriers and atomic additions; the rest is in `steps`.

This file is imported when a card is used, since numba-cuda is an extra. Numba picks rules, behaviors and
simulations in them by the classes of NamedTuples, as it does on a core.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numba import types

from dist_classicrl._jit import compiled_for
from dist_classicrl.errors import DeviceError
from dist_classicrl.learning.card.cards import Card, is_of_card, is_simulated, numba_cuda, trouble
from dist_classicrl.learning.card.one_run import learn_run
from dist_classicrl.learning.card.steps import (
    HALTED,
    add_up,
    as_whole,
    end_step,
    find_targets,
    give_map,
    is_sound,
    make_step,
    merge_blocks,
    merge_step,
    move_entry,
    take_copy,
)
from dist_classicrl.learning.card.table import Seen
from dist_classicrl.learning.learner import Problem

_ZEROS = 1 << 22

cuda: Any = numba_cuda()
"""By this name the simulator finds it in the kernels of this file."""


class NoneArguments:
    """Lets a kernel be called with NamedTuples in which something is None: numba-cuda knows no such value.

    A None takes the place of a pointer, which nobody reads.
    """

    @staticmethod
    def prepare_args(kind: Any, value: Any, **rest: Any) -> tuple[Any, Any]:
        """Return the type and the value that stand for an argument."""
        return (types.uint64, 0) if isinstance(kind, types.NoneType) else (kind, value)


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Let kernels that are compiled meanwhile round each product and each sum, as a core does.

    NVVM would else contract a product and a sum to one instruction that rounds once. numba-cuda has no option
    for that, and hands what it has to `nvvm.compile_ir`.
    """
    if is_simulated():
        yield
        return
    nvvm: Any = import_module("numba.cuda.cudadrv.nvvm")
    usual = nvvm.compile_ir
    nvvm.compile_ir = partial(usual, fma=False)
    try:
        yield
    finally:
        nvvm.compile_ir = usual


@contextmanager
def used(card: Card) -> Iterator[None]:
    """Use a card meanwhile, with exact arithmetic.

    DeviceMemoryError or DeviceError where the card, or what makes code for it, fails.
    """
    first: BaseException | None = None
    try:
        with (
            exact_arithmetic(),
            nullcontext() if card.is_simulated else cuda.gpus[card.number],
            warnings.catch_warnings(),
        ):
            # At first few walkers move, and that is meant.
            warnings.filterwarnings("ignore", ".*Grid size .* low occupancy")
            try:
                yield
            except BaseException as error:
                first = error
                raise
    except BaseException as error:
        # A card that failed fails again when it is left: what came first is told.
        cause = error if first is None else first
        if isinstance(cause, DeviceError) or not is_of_card(cause):
            raise cause
        raise trouble(card, cause) from cause


@contextmanager
def compiling(problem: Problem) -> Iterator[None]:
    """Say what cannot be compiled for a card."""
    try:
        yield
    except Exception as error:
        if is_of_card(error):  # that is no matter of what is compiled: see `used`
            raise
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], np.ufunc):
            raise _not_known(problem, error.args[0].__name__) from error
        # numba-cuda has errors of its own beside numba's.
        if type(error).__module__.startswith("numba"):
            raise _not_compiled(problem, error) from error
        raise


def _not_known(problem: Problem, name: str) -> DeviceError:
    """Return the error for a function of NumPy's that numba-cuda does not have."""
    instead = f"math.{name}" if hasattr(math, name) else "functions of math, or operators,"
    return DeviceError(
        f"{problem.source.name} with the rule {problem.rule.name!r} cannot be compiled for a card, although "
        f"it can for a core: a function calls np.{name}, which numba-cuda does not know. Write {instead} in "
        'place of it, or device="cpu".'
    )


def _not_compiled(problem: Problem, error: Exception) -> DeviceError:
    """Return the error for functions that numba-cuda cannot compile."""
    return DeviceError(
        f"{problem.source.name} with the rule {problem.rule.name!r} cannot be compiled for a card, although "
        "it can for a core: kernels make no arrays, call no Python, and raise nothing. Change the function "
        f'that numba-cuda names, or write device="cpu". It says: {error}'
    )


def bytes_of_copy(entries: int, itemsize: int) -> int:
    """Return what the copy of a block takes: sums, values, weights and shifts, counts and hits."""
    return entries * (8 + 3 * itemsize + 8)


def python_of_round(most: int, itemsize: int, in_shared: bool) -> Any:
    """Return the kernel that plays a round, as plain Python; see `round_kernel`."""
    real = types.float64 if itemsize == 8 else types.float32
    before = 8 // itemsize  # reals as long as one sum

    def in_shared_memory(copies: Any, entries: int) -> Any:
        sums = cuda.shared.array(0, types.int64)
        reals = cuda.shared.array(0, real)
        whole = cuda.shared.array(0, types.int32)
        first = before * entries
        last = 2 * entries + 3 * entries * itemsize // 4
        return (
            sums[:entries],
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
    merge, tell = _called(merge_step), _called(give_map)
    copy_of_block = cuda.jit(device=True)(in_shared_memory if in_shared else in_device_memory)

    def play_round(
        rule: Any, simulation: Any, walkers: Any, parts: Any, arrays: Any, copies: Any, moment: Any
    ) -> None:
        entries = arrays.values.size
        sums, values, weight, shift, fresh, hits = copy_of_block(copies, entries)
        seen = Seen(values, arrays.known, fresh, parts.n_actions, parts.n_actions, 0)
        letters = cuda.local.array(most, types.int64)
        targets = cuda.local.array(most, types.float64)
        n = cuda.local.array(1, types.int64)
        block, thread, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        w = block * size + thread
        for entry in range(thread, entries, size):
            begin(arrays, entry, values, weight, shift, fresh, sums, hits)
        cuda.syncthreads()
        for i in range(moment.steps):
            if w < moment.moving:
                written = step(
                    rule,
                    simulation,
                    walkers,
                    w,
                    parts,
                    seen,
                    moment,
                    i,
                    letters,
                    targets,
                    n,
                    arrays.faults,
                )
                for number in range(written):
                    entry = letters[number]
                    cuda.atomic.add(sums, entry, to_whole(targets[number], moment, arrays.faults))
                    cuda.atomic.add(hits, entry, 1)
            cuda.syncthreads()
            for entry in range(thread, entries, size):
                merge(parts, moment, i, entry, arrays.known, values, weight, shift, fresh, sums, hits)
            cuda.syncthreads()
        for entry in range(thread, entries, size):
            tell(arrays, block, entry, weight, shift, fresh)

    return play_round


def python_of_merge() -> Any:
    """Return the kernel that merges what the blocks learned in a round, as plain Python."""
    apply = _called(merge_blocks)

    def merge(arrays: Any, blocks: int) -> None:
        entry = cuda.grid(1)
        if entry < arrays.values.size:
            apply(arrays, blocks, entry)

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

    return cuda.jit(device=True)(add_letters)


def python_of_walk() -> Any:
    """Return the kernel in which all walkers make a step in one table, as plain Python."""
    find, add_letters = _called(find_targets), _adder()

    def walk(rule: Any, simulation: Any, walkers: Any, parts: Any, table: Any, moment: Any) -> None:
        w = cuda.grid(1)
        if w < moment.moving and table.faults[HALTED] == 0:
            add_letters(table, moment, w, find(rule, simulation, walkers, w, parts, table, moment))

    return walk


def python_of_add() -> Any:
    """Return the kernel that adds the letters of a step up once more, as plain Python."""
    add_letters = _adder()

    def add(table: Any, moment: Any) -> None:
        w = cuda.grid(1)
        if w < moment.moving:
            add_letters(table, moment, w, table.written[w])

    return add


def python_of_move() -> Any:
    """Return the kernel that moves the entries to which there are letters, as plain Python.

    Who is first to take the hits of an entry moves it.
    """
    move_one, sound, end = _called(move_entry), _called(is_sound), _called(end_step)

    def move(table: Any, moment: Any) -> None:
        w = cuda.grid(1)
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


def python_of_sums() -> Any:
    """Return the kernel that adds up what all walkers counted, as plain Python."""
    add_own = _called(add_up)

    def add_up_all(walkers: Any, sums: Any) -> None:
        n = cuda.grid(1)
        if n < sums.totals.shape[0]:
            add_own(walkers, n, sums.totals)

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


def _kernel(function: Any) -> Any:
    # The simulator knows no extensions, and needs none.
    return cuda.jit(function) if is_simulated() else cuda.jit(extensions=[NoneArguments()])(function)


def round_kernel(most: int, itemsize: int, in_shared: bool) -> Any:
    """Return the kernel that plays a round, made anew: each block learns in its own copy, and tells maps.

    `most` letters may come of a step; values have so many bytes, 8 or 4; copies are in a block's shared
    memory, or in the card's.
    """
    return _kernel(python_of_round(most, itemsize, in_shared))


def python_of_runs() -> Any:
    """Return the kernel that makes the steps of a run in each thread, as plain Python."""
    learn = _called(learn_run)

    def play_runs(rule: Any, simulation: Any, runs: Any, parts: Any, lines: Any, settles: Any) -> None:
        r = cuda.grid(1)
        if r < runs.keys.size:
            learn(rule, simulation, runs, r, parts, lines, settles)

    return play_runs


def runs_kernel() -> Any:
    """Return the kernel that makes the steps of a run in each thread."""
    return _kernel(python_of_runs())


def merge_kernel() -> Any:
    """Return the kernel that merges what the blocks learned in a round."""
    return _kernel(python_of_merge())


class TypedOnce:
    """A kernel whose arguments always have the types of its first call: later ones do not look at them.

    That takes milliseconds where they are NamedTuples of arrays on a card, longer than a million steps.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._is_typed = is_simulated()  # where nothing is compiled

    def __getitem__(self, grid: Any) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: Any, *arguments: Any) -> None:
        if not self._is_typed:
            self._kernel, self._is_typed = self._kernel.specialize(*arguments), True
        self._kernel[grid](*arguments)


class WalkKernels(NamedTuple):
    """The kernels of one table for all walkers; between two all threads have done what they had to do."""

    walk: Any
    add: Any
    move: Any
    add_up: Any


def walk_kernels() -> WalkKernels:
    """Return the kernels of one table for all walkers, made anew."""
    makers = (python_of_walk, python_of_add, python_of_move, python_of_sums)
    return WalkKernels(*(TypedOnce(_kernel(make())) for make in makers))


def on_card(value: Any) -> Any:
    """Return a copy of an array on the card, or of a NamedTuple, or a tuple, of such; numbers as they are."""
    if isinstance(value, np.ndarray):
        if is_simulated():
            return value.copy()
        return cuda.to_device(np.ascontiguousarray(value))
    if isinstance(value, tuple):
        every = [on_card(each) for each in value]
        return type(value)(*every) if hasattr(value, "_fields") else tuple(every)
    return value


def new_on_card(size: int, kind: Any) -> Any:
    """Return an array on the card whose numbers nobody has written yet."""
    return np.zeros(size, kind) if is_simulated() else cuda.device_array(size, kind)


def from_card(array: Any) -> np.ndarray:
    """Return an array of the card's in main memory."""
    copy: np.ndarray = array if is_simulated() else array.copy_to_host()
    return copy


def write_to_card(there: Any, here: np.ndarray) -> None:
    """Let an array on the card be one that is here, of the same size and type."""
    if is_simulated():
        there[:] = here
    else:
        there.copy_to_device(here)


def read_from_card(there: Any, here: np.ndarray) -> None:
    """Let an array that is here be one on the card, of the same size and type; nothing else takes memory."""
    if is_simulated():
        here[:] = there
    else:
        there.copy_to_host(here)


def zeros_on_card(size: int, kind: Any) -> Any:
    """Return an array on the card that is all 0; no array as large is made in main memory."""
    array = new_on_card(size, kind)
    zeros = np.zeros(min(size, _ZEROS), kind)
    for first in range(0, size, _ZEROS):
        part = array[first : first + _ZEROS]
        write_to_card(part, zeros[: part.size])
    return array


class CardMemory:
    """How arrays go to a card and come back."""

    put = staticmethod(on_card)
    new = staticmethod(new_on_card)
    zeros = staticmethod(zeros_on_card)
    get = staticmethod(from_card)
    write = staticmethod(write_to_card)
    read = staticmethod(read_from_card)
