"""The one way this package compiles a function, so that every kernel is cached and compiled alike."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from dist_classicrl._files import others_may_write
from dist_classicrl._hints import rank_of_environment

# A launcher gives its ranks a terminal. There numba's colours, where colorama is installed, end in an escape
# sequence on standard output when the process ends.
if rank_of_environment() is not None:
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

import numba
import numba.extending

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parent
_ANEW = (
    "Every process compiles anew. Let NUMBA_CACHE_DIR name a folder of your own (mkdir -m 700) with room for "
    "some MB."
)


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
    """
    return _compiled(function, forceinline=True, _nrt=False)


def overloads(stub: Callable[..., Any], inline: bool = False) -> Any:
    """Return the decorator of a function that picks the code of `stub` by the types of its arguments.

    `inline`: always into the caller, see `jit_inline`.
    """
    options: Any = {"_nrt": False, "forceinline": inline}
    return numba.extending.overload(stub, jit_options=options)


@cache
def as_called_by_kernels(function: Any, check: bool) -> Any:
    """Return a user's jitted function as one that may make arrays, also where a `jit` function calls it.

    Else numba compiles it by the caller's rules. To `check`, each of its own indices into an array that is
    outside of it raises IndexError.
    """
    if "_nrt" in function.targetoptions and not check:
        return function
    options = {"_nrt": True, **function.targetoptions}
    if check:
        options["boundscheck"] = True
    return numba.jit(**options)(function.py_func)


def is_compiled(function: Any) -> bool:
    """Whether a function is a jitted one, or numba is told not to compile."""
    return hasattr(function, "py_func") or bool(getattr(numba.config, "DISABLE_JIT", False))


def jit_for(kernel: Any, *parts: type) -> Any:
    """Return a kernel for NamedTuples of these classes, by which numba picks what the kernel calls.

    It is the kernel itself where all of them belong to this package. Numba cannot see when functions from
    elsewhere change, so with those it is compiled in each process, and not kept on disk.
    """
    if all(part.__module__.split(".")[0] == __name__.split(".")[0] for part in parts):
        return kernel
    if (kernel, parts) not in _of_this_process:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
        _of_this_process[kernel, parts] = numba.njit(**options)(kernel.py_func)
    return _of_this_process[kernel, parts]


_of_this_process: dict[Any, Any] = {}


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
    options |= {"nogil": True, "error_model": "numpy", "boundscheck": False}
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

    def load_or_compile(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # a damaged pickle may raise anything
            logger.debug("Compiled code in %s cannot be read", store.cache_path, exc_info=True)
            with suppress(OSError):
                store.flush()  # else what is saved now would not be found either
            return None

    def save_if_possible(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            _warn(f"Compiled code cannot be kept in {store.cache_path} ({error.strerror}). {_ANEW}")

    store.load_overload, store.save_overload = load_or_compile, save_if_possible


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
