"""The one way this package compiles a function, so that every kernel is cached and compiled alike."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from dist_classicrl._files import others_may_write
from dist_classicrl._hints import rank_of_environment

# A launcher gives its ranks a terminal. There numba's colours, where colorama is installed, end in an escape
# sequence on standard output when the process ends.
if rank_of_environment() is not None:
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

import numba
import numba.extending
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature

logger = logging.getLogger(__name__)
_progress = logging.getLogger("dist_classicrl.progress")

_PACKAGE = Path(__file__).parent
_ANEW = (
    "Every process compiles anew. Let NUMBA_CACHE_DIR name a folder of your own (mkdir -m 700) with room for "
    "some MB."
)

COMPILING = "compiling what this run needs for the first time: some 10 s, kept for later runs"
"""What is said of a wait that only the first run of its kind has."""

_LOCK_SECONDS = 2.0  # a file takes some milliseconds


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` with numba, keeping the machine code on disk for the next process.

    `fastmath` stays off: it reorders sums and drops the NaN checks that the kernels rely on.
    The GIL is released, so that a thread can write a checkpoint or send a heartbeat meanwhile.
    It works on arrays that it is given: without memory of its own it has no references to count, which numba
    would do in the middle of loops over arrays in NamedTuples.
    """
    return _compiled(function, _nrt=False)


def jit_allocating(function: Callable[..., Any]) -> Any:
    """Compile like `jit` a function that makes arrays."""
    return _compiled(function)


def jit_inline(function: Callable[..., Any]) -> Any:
    """Compile like `jit`, and always into the caller.

    For small functions that a hot loop calls: a call with ten arrays costs more than a step of learning.
    They have no entry for callers in Python, which takes longer to compile than most of them do. Whoever
    calls one from Python all the same gets it compiled once more, for this process.
    """
    compiled = _compiled(function, forceinline=True, _nrt=False, no_cpython_wrapper=True)
    if isinstance(compiled, CPUDispatcher):  # else numba is told not to compile
        compiled.__class__ = _Inlined
    return compiled


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
    options: Any = {"_nrt": False, "forceinline": inline}
    return numba.extending.overload(stub, jit_options=options)


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
        return stub

    return decorate


@numba.extending.intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an element; `index`, a uint64, need not lie within the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        kind = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        # To be read, and kept in all caches: of data, not of instructions.
        builder.call(function, [place, *(ir.Constant(int32, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


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


def class_of_its_own(kind: type) -> Any:
    """Return a class derived of a NamedTuple, by which jitted code can tell its tuples from all others.

    Its name is no other's: numba looks compiled code up by the names of classes and the types of their
    fields. Of two classes with one name only the tuples of the first are found, those of the other are
    typed anew in each call, for up to a millisecond. Machine code for it is not kept on disk.
    """
    name = f"{kind.__name__}{next(_numbers)}"
    return type(name, (kind,), {"__slots__": (), "__module__": "made_by_dist_classicrl"})


_numbers = count(1)


def is_compiled(function: Any) -> bool:
    """Whether a function is a jitted one, or numba is told not to compile."""
    return hasattr(function, "py_func") or bool(getattr(numba.config, "DISABLE_JIT", False))


def jit_for(kernel: Any, *parts: type) -> Any:
    """Return a kernel for NamedTuples of these classes, by which numba picks what the kernel calls.

    It is the kernel itself where all of them belong to this package. Numba cannot see when functions from
    elsewhere change, so with those it is compiled in each process, and not kept on disk.
    """
    if all(map(_is_of_package, parts)):
        return kernel
    if (kernel, parts) not in _of_this_process:
        options: dict[str, Any] = {**_OPTIONS, "_nrt": False}
        _of_this_process[kernel, parts] = numba.njit(**options)(kernel.py_func)
    return _of_this_process[kernel, parts]


_of_this_process: dict[Any, Any] = {}

# Nobody calls these functions by a pointer, for which numba would compile an entry of its own.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


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
    options |= {**_OPTIONS, "boundscheck": False}
    if function.__module__.split(".")[0] != __name__.split(".")[0]:
        # A user's: numba cannot see when what it calls in other files changes.
        return numba.njit(**options)(function)
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        _warn(f"There is no folder in which compiled code can be kept. {_ANEW}")
        return numba.njit(**options)(function)
    store: Any = getattr(compiled, "_cache", None)
    place = getattr(store, "cache_path", None)
    if place is None:  # numba is told not to compile
        return compiled
    if not _is_ours(Path(place)):
        return numba.njit(**options)(function)
    # Numba takes machine code from disk as long as the function's own file is unchanged. Kernels contain
    # kernels of other files, so the stamp on the machine code has to tell of those too.
    index: Any = getattr(store, "_cache_file", None)
    stamp = getattr(index, "_source_stamp", None)
    if stamp is not None:
        index._source_stamp = (stamp, _kernel_sources())
    _go_on_without(store)
    return compiled


def _go_on_without(store: Any) -> None:
    """Let a full disk, or files that are damaged, cost the time to compile and not the run."""
    load, save = store.load_overload, store.save_overload

    def load_or_compile(signature: Any, *arguments: Any) -> Any:
        found = None
        _load_numba_without_scipy()
        try:
            if not _calls_others(normalize_signature(signature)[0]):
                found = load(signature, *arguments)
            if found is not None and tuple(found.signature.args) != normalize_signature(signature)[0]:
                # Another process has begun the folder anew, and written something else under this number.
                logger.debug("Compiled code in %s is of something else", store.cache_path)
                found = None
        except Exception:  # a damaged pickle may raise anything
            logger.debug("Compiled code in %s cannot be read", store.cache_path, exc_info=True)
            with suppress(OSError):
                store.flush()  # else what is saved now would not be found either
        if found is None:
            _say_that_it_compiles()
        return found

    def save_if_possible(signature: Any, *arguments: Any) -> None:
        if _calls_others(normalize_signature(signature)[0]):
            return
        try:
            with _alone_in(store.cache_path):
                save(signature, *arguments)
        except OSError as error:
            _warn(f"Compiled code cannot be kept in {store.cache_path} ({error.strerror}). {_ANEW}")

    store.load_overload, store.save_overload = load_or_compile, save_if_possible


@cache
def _load_numba_without_scipy() -> None:
    """Let numba's first look at a function not import scipy.linalg, which takes a tenth of a second.

    It asks whether there is one, for `np.cov` in jitted code, and that can be said without importing it. What
    is compiled with linear algebra imports it then, as ever.
    """
    try:
        from numba.np import linalg

        asks_by_import = linalg.ensure_blas
        linalg.ensure_blas = _ask_for_scipy
        try:
            import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = asks_by_import
    except Exception:  # another version of numba may be built in another way
        logger.debug("Numba loads scipy.linalg", exc_info=True)


def _ask_for_scipy() -> None:
    if find_spec("scipy") is None:
        raise ImportError("scipy is required for linear algebra")


def _calls_others(kinds: Any) -> bool:
    """Whether there are NamedTuples from elsewhere among these types, by which numba picks what is called.

    See `jit_for`, which sees what is called from Python, and not what kernels call.
    """
    return any(
        (isinstance(kind, types.NamedTuple | types.NamedUniTuple) and not _is_of_package(kind.instance_class))
        or (isinstance(kind, types.BaseTuple) and _calls_others(kind))
        for kind in kinds
    )


def _is_of_package(part: type) -> bool:
    return part.__module__.split(".")[0] == __name__.split(".")[0]


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Wait until no other process keeps machine code in this folder; without locks, or too long, do not.

    Numba numbers its files: two processes that add one at the same time may take the same number.
    """
    end = monotonic() + _LOCK_SECONDS
    handle = -1
    try:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        while handle >= 0 and monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                sleep(0.002)
            except OSError:  # some network file systems have no locks
                break
        yield
    finally:
        if handle >= 0:
            os.close(handle)


@cache
def _is_ours(place: Path) -> bool:
    """Tell whether nobody else may write where numba keeps machine code, which it reads with pickle.

    Who may write beside the package may change the package, too.
    """
    if place.is_relative_to(_PACKAGE):
        return True
    try:
        above = place.parent
        is_movable = others_may_write(above) and not above.stat().st_mode & stat.S_ISVTX
        is_open = is_movable or others_may_write(place)
        owner = above.stat().st_uid
    except OSError:
        return True  # numba finds no file there either
    if is_open:
        whose = "" if owner == os.geteuid() else f" of user {owner}"
        _warn(
            f"Other users may write to the folder {above}{whose}, where numba keeps compiled code: whoever "
            f"does runs code as you. It is not used. {_ANEW}"
        )
    return not is_open


def has_compiled() -> bool:
    """Whether this process found some machine code that it needs not on disk, and has begun to compile it."""
    return _say_that_it_compiles.cache_info().currsize > 0


@cache
def _say_that_it_compiles() -> None:
    """Say what takes so long, once, and on one rank."""
    if rank_of_environment() in (None, 0):
        _progress.info("%s", COMPILING)


@cache
def _warn(text: str) -> None:
    """Say it once, and on one rank."""
    if rank_of_environment() in (None, 0):
        logger.warning("%s", text)


@cache
def _kernel_sources() -> str:
    """Return a SHA-256 over all files of this package that hold kernels."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        if b"_jit import" in source or path.name == "_jit.py":
            digest.update(source)
    return digest.hexdigest()
