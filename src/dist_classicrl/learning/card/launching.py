"""How kernels are compiled for a card and launched, exactly as a core adds and multiplies, and what fails."""

from __future__ import annotations

import ctypes
import gc
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial, partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite.ir import FunctionType, VoidType
from numba import types

from dist_classicrl.errors import DeviceError, DistClassicRLError
from dist_classicrl.learning.card.cards import (
    USUAL_SHARED_BYTES,
    Card,
    is_of_card,
    is_simulated,
    numba_cuda,
    trouble,
)
from dist_classicrl.learning.learner import Problem

cuda: Any = numba_cuda()


class NoneArguments:
    """Lets a kernel be called with NamedTuples in which something is None: numba-cuda knows no such value.

    A None takes the place of a pointer, which nobody reads.
    """

    @staticmethod
    def prepare_args(kind: Any, value: Any, **rest: Any) -> tuple[Any, Any]:
        """Return the type and the value that stand for an argument."""
        return (types.uint64, 0) if isinstance(kind, types.NoneType) else (kind, value)


_MARK = "// raises "


class _Here(threading.local):
    """What a thread asks for."""

    is_exact = False


_HERE = _Here()
_WATCHING = threading.Lock()


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Let kernels that this thread compiles meanwhile round each product and each sum, as a core does.

    NVVM would else contract a product and a sum to one instruction that rounds once. And where a function
    raises, numba-cuda would let that thread leave its kernel, and nobody would hear of it: such a kernel is
    not compiled, unless NVVM finds that nobody comes there.
    """
    if not is_simulated():
        with _WATCHING:
            _watch()
    before, _HERE.is_exact = _HERE.is_exact, True
    try:
        yield
    finally:
        _HERE.is_exact = before


@cache
def _watch() -> None:
    """Come between numba-cuda and NVVM from now on, as it has no options for what is asked for.

    It hands what it has to `nvvm.compile_ir`, and calls these methods where a function raises or asserts.
    What was compiled before, for kernels of others, has no marks, and is compiled anew where it is called.
    """
    nvvm: Any = import_module("numba.cuda.cudadrv.nvvm")
    lower: Any = import_module("numba.cuda.lowering").Lower
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    with import_module("numba.cuda.core.compiler_lock").global_compiler_lock:
        nvvm.compile_ir = partial(_exactly, nvvm.compile_ir)
        for name, lowered in ("lower_static_raise", _marked), ("lower_dynamic_raise", _marked_with_values):
            setattr(lower, name, partialmethod(lowered, getattr(lower, name)))
        for each in gc.get_objects():
            if issubclass(type(each), dispatcher.CUDADispatcher) and each._can_compile:
                for kinds, compiled in list(each.overloads.items()):
                    if not isinstance(compiled, dispatcher._Kernel):
                        del each.overloads[kinds]


class _RaisesError(Exception):
    """A function in a kernel may raise something."""


def _exactly(compile_ir: Any, code: Any, **options: Any) -> bytes:
    """Compile for a card exactly, and raise where a mark is left: a thread may come there.

    For who did not ask for that it is compiled as always, without marks.
    """
    if not _HERE.is_exact:
        parts = [code] if isinstance(code, str) else code
        return compile_ir([re.sub(rf'.*asm sideeffect "{_MARK}.*\n', "", each) for each in parts], **options)
    text: bytes = compile_ir(code, **{"fma": False, **options})
    if found := set(re.findall(_MARK.encode() + rb"([0-9a-f]+)", text)):
        raise _RaisesError(" and ".join(sorted(bytes.fromhex(each.decode()).decode() for each in found)))
    return text


def _marked(lower: Any, usual: Any, inst: Any) -> None:
    """Compile what raises, with a mark that stays in a kernel's text; what numba itself raises has none."""
    own = [Path(import_module(name).__file__ or "").parent for name in ("numba", "numba_cuda")]
    if not any(map(Path(inst.loc.filename).is_relative_to, own)):
        line = f"{Path(inst.loc.filename).name}, line {inst.loc.line}"
        told = f"{lower.func_ir.func_id.func_name} ({line}) raises {getattr(inst.exc_class, '__name__', '')}"
        nothing = FunctionType(VoidType(), [])
        lower.builder.asm(nothing, _MARK + told.encode().hex(), "", [], side_effect=True)
    usual(lower, inst)


def _marked_with_values(lower: Any, usual: Any, inst: Any) -> None:
    """Compile likewise what raises with values, which numba-cuda cannot, without them."""
    if _HERE.is_exact:
        _marked(lower, lambda *_: lower.return_exception(inst.exc_class, loc=lower.loc), inst)
    else:
        usual(lower, inst)


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
        # These are no matter of what is compiled: see `used`.
        if is_of_card(error) or isinstance(error, DistClassicRLError | MemoryError):
            raise
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], np.ufunc):
            raise _not_known(problem, error.args[0].__name__) from error
        # Of many kinds: numba-cuda does not expect all that a core takes.
        raise _not_compiled(problem, error) from error


def _not_known(problem: Problem, name: str) -> DeviceError:
    """Return the error for a function of NumPy's that numba-cuda does not have."""
    instead = f"math.{name}" if hasattr(math, name) else "functions of math, or operators,"
    return DeviceError(
        f"{problem.source.name} with the rule {problem.rule.name!r} cannot be compiled for a card, although "
        f"it can for a core: a function calls np.{name}, which numba-cuda does not know. Write {instead} in "
        'place of it, or device="cpu".'
    )


def _not_compiled(problem: Problem, error: Exception) -> DeviceError:
    """Return the error for functions that numba-cuda cannot compile, or data that it cannot take."""
    told = str(error) if isinstance(error, _RaisesError) else f"{type(error).__name__}: {error}"
    return DeviceError(
        f"{problem.source.name} with the rule {problem.rule.name!r} cannot be compiled for a card, although "
        "it can for a core: kernels make no arrays, call no Python, raise and catch nothing, draw by the "
        "bits that they are given, and have arrays, numbers and flags for data. Change the function or the "
        f'data that is meant, or write device="cpu". numba-cuda says: {told}'
    )


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


def made(make: Any, *given: Any, most_registers: int | None = None) -> Any:
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


class TypedOnce:
    """A kernel whose arguments always have the types of its first call: later ones do not look at them.

    That takes milliseconds where they are NamedTuples of arrays on a card, longer than a million steps. Its
    blocks may be given so many bytes of shared memory.
    """

    def __init__(self, kernel: Any, shared_bytes: int = USUAL_SHARED_BYTES) -> None:
        self._kernel = kernel
        self._shared_bytes = shared_bytes
        self._is_typed = is_simulated()  # where nothing is compiled

    def __getitem__(self, grid: Any) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: Any, *arguments: Any) -> None:
        self._typed(*arguments)[grid](*arguments)

    def _typed(self, *arguments: Any) -> Any:
        if not self._is_typed:
            self._kernel, self._is_typed = self._kernel.specialize(*arguments), True
            if self._shared_bytes > USUAL_SHARED_BYTES:
                _let_share(self._kernel, self._shared_bytes)
        return self._kernel

    def with_arguments(self, *arguments: Any) -> Launcher:
        """Return what launches it with these arguments and a whole number, given a grid and that number.

        The arguments are made ready for the driver once: of dozens of arrays that takes longer than a step.
        """
        kernel = self._typed(*arguments, 0)
        ready = None if is_simulated() else _made_ready(kernel, arguments)
        return _launcher(self, arguments) if ready is None else ready


def _let_share(kernel: Any, shared_bytes: int) -> None:
    """Let blocks of a compiled kernel be given so much shared memory, for which a card wants to be asked.

    numba-cuda has no option for that.
    """
    kinds = import_module("cuda.bindings.driver").CUfunction_attribute
    kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver: Any = import_module("numba.cuda.cudadrv.driver").driver
    for compiled in kernel.overloads.values():
        function = compiled._codelibrary.get_cufunc()
        driver.cuKernelSetAttribute(kind, shared_bytes, function.handle, function.device.id)


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
