"""The kernels of a card: what needs threads, barriers and atomic additions; the rest is in `steps`.

This file is imported when a card is used, since numba-cuda is an extra. Numba picks rules, behaviors and
simulations in them by the classes of NamedTuples, as it does on a core.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
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
    with_carry,
    words_of,
)
from dist_classicrl.learning.card.table import Seen
from dist_classicrl.learning.learner import Problem

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
            if card.is_simulated:  # where NumPy adds halves of numbers up, which is meant to begin anew
                warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
            try:
                yield
            except BaseException as error:
                first = error
                raise
    except BaseException as error:
        # A card that failed fails again when it is left: what came first is told.
        cause = error if first is None else first
        if isinstance(cause, DeviceError) or not is_of_card(cause):
            raise cause from cause.__cause__
        raise trouble(card, cause) from cause


@contextmanager
def compiling(problem: Problem) -> Iterator[None]:
    """Say what cannot be compiled for a card."""
    try:
        if problem.card is not None and not problem.card.is_simulated:
            check_exact()
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
    copy_of_block = cuda.jit(device=True)(in_shared_memory if in_shared else in_device_memory)
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
        sums, values, weight, shift, fresh, hits = copy_of_block(copies, entries)
        seen = Seen(values, arrays.known, fresh, parts.n_actions, parts.n_actions, 0)
        letters = cuda.local.array(most, types.int64)
        targets = cuda.local.array(most, types.float64)
        n = cuda.local.array(1, types.int64)
        block, thread, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        w = block * size + thread
        at = load(walkers, w)
        # Loops over entries are written out: a range with a step would divide in each of them.
        entry = thread
        while entry < entries:
            begin(arrays, entry, values, weight, shift, fresh)
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
            entry = thread
            while entry < entries:
                k = np.int64(hits[entry])
                if k > 0:
                    hits[entry] = 0
                    total = take(sums, entry, entries)
                    merge(parts, moment, i, entry, arrays.known, values, weight, shift, fresh, k, total)
                entry += size
            cuda.syncthreads()
        entry = thread
        while entry < entries:
            tell(arrays, block, entry, weight, shift, fresh)
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

    def merge(arrays: Any, blocks: int) -> None:
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
            apply(arrays, entry, updates, count, weight, targets)

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


def _moment_in() -> Any:
    # Python has no int64 and uint64 of its own: what a compiled function returned would be of other types.
    return moment_of.py_func if is_simulated() and hasattr(moment_of, "py_func") else moment_of


def _device(function: Any) -> Any:
    return cuda.jit(device=True)(function)


_ROUND_REGISTERS = 64
"""Of a thread of a round, so that two blocks of 512 are on a multiprocessor of 65,536 at a time.

All 256 of them play at once then on a card that has 128 of these."""


def _kernel(function: Any, most_registers: int | None = None) -> Any:
    # The simulator knows no extensions, and needs none. What is optimized once more when it is linked would
    # be contracted there, see `exact_arithmetic`.
    if is_simulated():
        return cuda.jit(function)
    options = {} if most_registers is None else {"max_registers": most_registers}
    # As an argument beside the function: numba-cuda 0.30 forgets `lto` where it returns a decorator.
    return cuda.jit(function, extensions=[NoneArguments()], lto=False, **options)


@cache
def _kept(make: Any, *given: Any, most_registers: int | None = None) -> Any:
    return _kernel(make(*given), most_registers)


def _made(make: Any, *given: Any, most_registers: int | None = None) -> Any:
    """Return a kernel of this process, for which it is compiled once for each kind of arguments.

    In the simulator, where it is called with one kind only, see `_called`, it is made anew. Classes of rules,
    behaviors and simulations are what numba tells kinds apart by, and each has functions of its own.
    """
    if is_simulated():
        return _kernel(make(*given))
    return _kept(make, *given, most_registers=most_registers)


def _product_and_sum(x: Any) -> None:
    x[0] = x[1] * x[2] + x[3]


@cache
def check_exact() -> None:
    """Raise DeviceError if kernels would contract products and sums, whatever `exact_arithmetic` asks for.

    It is entered, and a card is used.
    """
    kernel = _kernel(_product_and_sum)
    kernel.compile((types.float64[::1],))
    text = "".join(kernel.inspect_asm().values())
    is_linked_as_it_is = kernel.targetoptions.get("lto") is False
    if "fma" in text or "mul.rn.f64" not in text or not is_linked_as_it_is:
        version = import_module("numba_cuda").__version__
        raise DeviceError(
            f"numba-cuda {version} contracts products and sums although it is asked not to: what is learned "
            'would not be the same on every card. Install the one of this project, pip install ".[gpu]" in a '
            'clone of it, or write device="cpu".'
        )


def round_kernel(most: int, itemsize: int, in_shared: bool) -> TypedOnce:
    """Return the kernel that plays a round: each block learns in its own copy, and tells maps.

    `most` letters may come of a step; values have so many bytes, 8 or 4; copies are in a block's shared
    memory, or in the card's.
    """
    made = _made(python_of_round, most, itemsize, in_shared, most_registers=_ROUND_REGISTERS)
    return TypedOnce(made)


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
    return TypedOnce(_made(python_of_runs))


MERGE_ON_CARD = 8, 32
MERGE_IN_SIMULATOR = 2, 2
"""Entries of a block of the kernel that merges, and threads for each of them."""


def merge_shape() -> tuple[int, int]:
    """Return the entries of a block of the kernel that merges, and its threads for each of them."""
    return MERGE_IN_SIMULATOR if is_simulated() else MERGE_ON_CARD


def merge_kernel() -> TypedOnce:
    """Return the kernel that merges what the blocks learned in a round."""
    return TypedOnce(_made(python_of_merge, *merge_shape()))


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
        self._typed(*arguments)[grid](*arguments)

    def _typed(self, *arguments: Any) -> Any:
        if not self._is_typed:
            self._kernel, self._is_typed = self._kernel.specialize(*arguments), True
        return self._kernel

    def with_arguments(self, *arguments: Any) -> Launcher:
        """Return what launches it with these arguments and a whole number, given a grid and that number.

        The arguments are made ready for the driver once: of dozens of arrays that takes longer than a step.
        """
        kernel = self._typed(*arguments, 0)
        ready = None if is_simulated() else _made_ready(kernel, arguments)
        return _launcher(self, arguments) if ready is None else ready


Launcher = Callable[[Any, int], None]
"""Launches a kernel on a grid, with a whole number as the last of its arguments."""


def launcher(kernel: Any, *arguments: Any) -> Launcher:
    """Return what launches a kernel with these arguments and a whole number, see `TypedOnce`."""
    if isinstance(kernel, TypedOnce):
        return kernel.with_arguments(*arguments)
    return _launcher(kernel, arguments)


def _launcher(kernel: Any, arguments: tuple[Any, ...]) -> Launcher:
    def launch(grid: Any, number: int) -> None:
        kernel[grid](*arguments, number)

    return launch


def _made_ready(kernel: Any, arguments: tuple[Any, ...]) -> Launcher | None:
    """Return what launches a compiled kernel likewise, by names that are numba-cuda's own.

    None where it has them no more, or would copy an argument: then it launches as always.
    """
    stream: Any = None
    values: list[Any] = []
    copied: list[Any] = []
    try:
        (compiled,) = kernel.overloads.values()
        core = import_module("cuda.core")
        start, config_of = core.launch, core.LaunchConfig
        *kinds, last = compiled.argument_types
        for kind, value in zip(kinds, arguments, strict=True):
            compiled._prepare_args(kind, value, 0, copied, values)
        function = compiled._codelibrary.get_cufunc().kernel
    except (AttributeError, ImportError, TypeError, ValueError):
        return None
    if copied or last != types.int64 or getattr(compiled, "cooperative", True):
        return None
    configs: dict[Any, Any] = {}

    def launch(grid: Any, number: int) -> None:
        nonlocal stream
        config = configs.get(grid)
        if config is None:
            usual = kernel[grid]
            stream = usual.stream
            config = config_of(grid=usual.griddim, block=usual.blockdim, shmem_size=usual.sharedmem)
            configs[grid] = config
        start(stream, config, function, *values, ctypes.c_int64(number))

    launch.arguments = arguments  # type: ignore[attr-defined]  # whose memory is to stay
    return launch


class WalkKernels(NamedTuple):
    """The kernels of one table for all walkers; between two all threads have done what they had to do."""

    walk: Any
    add: Any
    move: Any
    add_up: Any


def walk_kernels() -> WalkKernels:
    """Return the kernels of one table for all walkers."""
    makers = (python_of_walk, python_of_add, python_of_move, python_of_sums)
    return WalkKernels(*(TypedOnce(_made(make)) for make in makers))


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
    """Return an array on the card that is all 0; nothing is sent there for that."""
    array = new_on_card(size, kind)
    if size and not is_simulated():
        array.gpu_data.memset(0)
    return array


class CardMemory:
    """How arrays go to a card and come back."""

    put = staticmethod(on_card)
    new = staticmethod(new_on_card)
    zeros = staticmethod(zeros_on_card)
    get = staticmethod(from_card)
    write = staticmethod(write_to_card)
    read = staticmethod(read_from_card)
