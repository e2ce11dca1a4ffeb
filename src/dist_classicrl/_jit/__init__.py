"""The one way this package compiles a function, so that every kernel is cached and compiled alike."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from itertools import count
from types import ModuleType
from typing import Any, NoReturn

from dist_classicrl._hints import rank_of_environment

# A launcher gives its ranks a terminal. There numba's colours, where colorama is installed, end in an escape
# sequence on standard output when the process ends.
if rank_of_environment() is not None:
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

import numba
import numba.extending
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typing.templates import builtin_registry

from dist_classicrl._jit.compiler import KernelCompiler
from dist_classicrl._jit.identity import identity_of
from dist_classicrl._jit.machine_code import OF_USERS, kept
from dist_classicrl.errors import SettingsError

# Nobody calls these functions by a pointer, for which numba would compile an entry of its own.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "boundscheck": False,
    "pipeline_class": KernelCompiler,
}
_INLINE: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True}


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba, keeping the machine code on disk for the next process.

    `fastmath` stays off: it reorders sums and drops the NaN checks that the kernels rely on.
    The GIL is released, so that a thread can write a checkpoint or send a heartbeat meanwhile.
    It works on arrays that it is given: without memory of its own it has no references to count, which numba
    would do in the middle of loops over arrays in NamedTuples.
    """
    return _compiled(function, _nrt=False)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Compile like `jit`, and always into the caller.

    For small functions that a hot loop calls: a call with ten arrays costs more than a step of learning.
    They have no entry for callers in Python, which takes longer to compile than most of them do. Whoever
    calls one from Python all the same gets it compiled once more, for this process.
    """
    compiled = _compiled(function, _nrt=False, **_INLINE)
    if isinstance(compiled, CPUDispatcher):  # else numba is told not to compile
        compiled.__class__ = _Inlined
    return compiled


def jit_closure(inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a function of this package that is closed over users' functions.

    It is compiled as by `jit`, and kept on disk under what all of these do, see `identity_of`; or as by
    `jit_inline`, with whoever calls it.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        options = {**_OPTIONS, "_nrt": False}
        if inline:
            return numba.njit(**options, **_INLINE)(function)
        identity = identity_of(function)
        if identity is None:
            return numba.njit(**options)(function)

        def may_keep(kinds: tuple[Any, ...]) -> bool:
            return all(map(_is_as_named, classes_in(kinds))) and identity_of(function) == identity

        return kept(function, options, may_keep, OF_USERS + identity[:_NAME_LENGTH])

    return decorate


class _Inlined(CPUDispatcher):
    """A compiled function that only compiled code can call."""

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python."""
        return _callable_from_python(self)(*arguments)


@cache
def _callable_from_python(function: Any) -> Any:
    return numba.jit(**{**function.targetoptions, "no_cpython_wrapper": False})(function.py_func)


def overloads(stub: Callable[..., Any], inline: bool = False) -> Any:
    """Return the decorator of a function that picks the code of `stub` by the types of its arguments.

    `inline`: always into the caller, see `jit_inline`.
    """
    options: Any = {
        "_nrt": False,
        "no_cfunc_wrapper": True,
        "forceinline": inline,
        "pipeline_class": KernelCompiler,
    }
    return numba.extending.overload(stub, jit_options=options)


def stub(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for a function of jitted code alone, see `overloads`: from Python it is refused."""

    @wraps(function)
    def refuse(*arguments: Any, **named: Any) -> NoReturn:
        check_compiles()
        raise NotImplementedError(f"{function.__name__} is for jitted code")

    return refuse


def picked(function_of: Callable[[Any], Any], inline: bool = True) -> Any:
    """Return the decorator of a stub, for which jitted code calls another function.

    `function_of` returns that by the numba type of the first argument; None: there is none for this type.
    """

    def decorate(stub: Callable[..., Any]) -> Callable[..., Any]:
        # Without types, as the lambda: numba wants both to have the same signature.
        def pick(*arguments):  # type: ignore[no-untyped-def]
            function = function_of(arguments[0])
            if function is None:
                return None
            return lambda *arguments: function(*arguments)

        overloads(stub, inline)(pick)
        _call_it_directly(stub, function_of)
        return stub

    return decorate


def picked_from(of_class: Callable[[Any], Any], default: Any = None, inline: bool = True) -> Any:
    """Return the decorator of a stub, for which jitted code calls the function that has its name.

    `of_class` returns what has such functions, by the class of the first argument, a NamedTuple; None: there
    are none for it. `default` is called where it has None by that name.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        def function_of(kind: Any) -> Any:
            functions = of_class(getattr(kind, "instance_class", type(None)))
            return None if functions is None else getattr(functions, name) or default

        found: Callable[..., Any] = picked(function_of, inline)(stub(function))
        return found

    return decorate


def check_compiles() -> None:
    """Raise SettingsError where numba is told to compile nothing."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise SettingsError(
            "NUMBA_DISABLE_JIT is set, so that nothing is compiled, and tables are learned and played by "
            "compiled code alone. Unset it before Python starts: unset NUMBA_DISABLE_JIT."
        )


def _call_it_directly(stub: Callable[..., Any], function_of: Callable[[Any], Any]) -> None:
    """Let jitted code call what is picked without the lambda between, which is compiled for each caller."""
    kind: Any = next(kind for what, kind in reversed(builtin_registry.globals) if what is stub)
    template = kind.templates[0]
    through_lambda = template._get_impl

    def get_impl(self: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        function = function_of(arguments[0]) if arguments and not named else None
        if isinstance(function, CPUDispatcher) and self.context is cpu_target.typing_context:
            return function, arguments
        return through_lambda(self, arguments, named)

    template._get_impl = get_impl


def _prefetch(is_written: bool) -> Any:
    def function(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            kind = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
            # Kept in all caches: of data, not of instructions.
            how = [ir.Constant(int32, number) for number in (int(is_written), 3, 1)]
            builder.call(function, [place, *how])
            return context.get_dummy_value()

        return types.void(array, types.uint64), generate

    return function


@numba.extending.intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an element; `index`, a uint64, need not lie within the array."""
    return _prefetch(False)(typing_context, array, index)


@numba.extending.intrinsic
def prefetch_to_write(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for it likewise, and that no other core has it: who writes what others have waits for them."""
    return _prefetch(True)(typing_context, array, index)


@numba.extending.intrinsic
def natural(typing_context: Any, number: Any) -> Any:
    """Return an int64 that is 0 or more, as an index that cannot count from the end: nobody looks again."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bit = ir.IntType(1)
        kind = ir.FunctionType(ir.VoidType(), [bit])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.assume")
        builder.call(function, [builder.icmp_signed(">=", arguments[0], ir.Constant(ir.IntType(64), 0))])
        return arguments[0]

    return types.int64(types.int64), generate


def is_for_card(context: Any) -> bool:
    """Whether numba lowers for a card in this context."""
    return type(context).__name__ == "CUDATargetContext"


@numba.extending.intrinsic
def is_on_card(typing_context: Any) -> Any:
    """Return whether this is compiled for a card: what is there for the other kind of machine is left out."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(is_for_card(context)))

    return types.boolean(), generate


def vector_of(context: Any, builder: Any, kind: Any, arguments: Any, n: int, align: int) -> Any:
    """Return `n` elements as a vector, of an array of this type from an index on: the first two arguments.

    They begin at a multiple of `align` bytes.
    """
    array = context.make_array(kind)(context, builder, arguments[0])
    place = builder.gep(array.data, [arguments[1]])
    vector = ir.VectorType(context.get_value_type(kind.dtype), n)
    block = builder.load(builder.bitcast(place, vector.as_pointer()))
    block.align = align
    return block


@numba.extending.intrinsic
def at_once(typing_context: Any, array: Any, index: Any) -> Any:
    """Return the 16 bytes from the uint64 `index` on, which begin at a multiple of that, as a tuple.

    A card loads them at once.
    """
    n = 16 // (array.dtype.bitwidth // 8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = vector_of(context, builder, array, arguments, n, 16)
        found = [builder.extract_element(block, ir.Constant(ir.IntType(32), i)) for i in range(n)]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(array.dtype, n)(array, types.uint64), generate


@cache
def as_called_by_kernels(function: Any, check: bool) -> Any:
    """Return a user's jitted function as one that may make arrays, also where a `jit` function calls it.

    Else numba compiles it by the caller's rules. To `check`, each of its own indices into an array that is
    outside of it raises IndexError.
    """
    if "_nrt" in function.targetoptions and not check:
        return function
    if check and hasattr(function, "with_checks"):  # made of others, whose indices are what matters
        return function.with_checks
    options = {"_nrt": True, **function.targetoptions}
    if check:
        options["boundscheck"] = True
    return numba.jit(**options)(function.py_func)


def result_type(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the numba type of what a user's jitted function returns for arguments of these types.

    NumbaError or TypeError where it cannot be called with them.
    """
    called = as_called_by_kernels(function, False)
    called.compile(arguments)
    return called.overloads[arguments].signature.return_type


def class_of_its_own(kind: type, *functions: Any) -> Any:
    """Return a class derived of a NamedTuple, by which jitted code can tell its tuples from all others.

    Its name is no other's: numba looks compiled code up by the names of classes and the types of their
    fields. Of two classes with one name only the tuples of the first are found, those of the other are
    typed anew in each call, for up to a millisecond.

    With `functions`, and what else kernels are made of for its tuples, it is named after what these do, in
    all processes alike: functions that do the same have one class, and machine code for it is kept on disk.
    Without, or where `identity_of` cannot tell what they do, each process compiles for it.
    """
    identity = identity_of(kind, *functions) if functions else None
    name = f"{kind.__name__}_{next(_numbers) if identity is None else identity[:_NAME_LENGTH]}"
    if (found := getattr(_made, name, None)) is not None:
        return found
    made: Any = type(name, (kind,), {"__slots__": (), "__module__": _made.__name__})
    setattr(_made, name, made)  # where pickled types are looked for
    if identity is not None:
        _functions_of[made] = identity, (kind, *functions)
    return made


_NAME_LENGTH = 24
_numbers = count(1)
_made = sys.modules.setdefault("made_by_dist_classicrl", ModuleType("made_by_dist_classicrl"))
_functions_of: dict[type, tuple[str, tuple[Any, ...]]] = {}


def _is_as_named(kind: type) -> bool:
    """Whether a class is of this package, or named after what its functions do, which do that still.

    What they use from around them may have another value by now.
    """
    if is_of_package(kind):
        return True
    identity, functions = _functions_of.get(kind, ("", ()))
    return bool(identity) and identity_of(*functions) == identity


def classes_in(kinds: Any) -> Iterator[type]:
    """Give the classes of all NamedTuples among these types, by which numba picks what is called."""
    for kind in kinds:
        if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
            yield kind.instance_class
        if isinstance(kind, types.BaseTuple):
            yield from classes_in(kind)
        elif isinstance(getattr(kind, "value", None), types.Type):  # of a `Bound`
            yield from classes_in((kind.value,))


def is_compiled(function: Any) -> bool:
    """Whether a function is a jitted one, or numba is told not to compile."""
    return hasattr(function, "py_func") or bool(getattr(numba.config, "DISABLE_JIT", False))


def jit_for(kernel: Any, *parts: type) -> Any:
    """Return a kernel for NamedTuples of these classes, by which numba picks what the kernel calls.

    It is the kernel itself where all of them belong to this package. Numba cannot see when functions from
    elsewhere change: machine code with those is kept on disk if their classes are named after what they do,
    see `class_of_its_own`, and else made in each process.
    """
    others = [part for part in parts if not is_of_package(part)]
    if not others:
        return kernel
    if (kernel, parts) not in _of_users:
        options = {**_OPTIONS, "_nrt": False}
        if all(part in _functions_of for part in others):
            name = hashlib.sha256(" ".join(part.__name__ for part in others).encode()).hexdigest()
            made = kept(
                kernel.py_func,
                options,
                lambda kinds: all(map(_is_as_named, classes_in(kinds))),
                OF_USERS + name[:_NAME_LENGTH],
            )
        else:
            made = numba.njit(**options)(kernel.py_func)
        _of_users[kernel, parts] = made
    return _of_users[kernel, parts]


_of_users: dict[Any, Any] = {}


def is_of_package(part: Any) -> bool:
    """Whether a class or function is of this package, and not made of a user's."""
    module: str = part.__module__ or ""  # of a function that exec has made there may be none
    return module.split(".")[0] == __name__.split(".")[0]


def compiled_for(kernel: Any, *arguments: Any) -> Any:
    """Return a kernel compiled for the types of these arguments: call it with such arguments only.

    Numba looks at the types of the arguments of each call, which takes some microseconds where these are
    NamedTuples of arrays: as long as some environments need for a step.
    """
    if not hasattr(kernel, "get_overload"):  # numba is told not to compile
        return kernel
    types = tuple(map(numba.typeof, arguments))
    kernel.compile(types)
    return kernel.get_overload(types)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    options |= _OPTIONS
    if not is_of_package(function):
        return numba.njit(**options)(function)
    return kept(function, options, lambda kinds: all(map(is_of_package, classes_in(kinds))))
