"""Machine code on disk: whose it is, when it is used again, and who waits for whom to make it."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import logging
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba.core import caching
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaWarning
from numba.core.sigutils import normalize_signature

from dist_classicrl._files import others_may_write
from dist_classicrl._hints import rank_of_environment

logger = logging.getLogger(__name__)
_progress = logging.getLogger("dist_classicrl.progress")

_OWN = Path(__file__).parent
_PACKAGE = _OWN.parent
_ANEW = (
    "Every process compiles anew. Let NUMBA_CACHE_DIR name a folder of your own (mkdir -m 700) with room for "
    "some MB."
)

COMPILING = "compiling what this run needs for the first time: some 10 s, kept for later runs"
"""What is said of a wait that only the first run of its kind has."""

OF_USERS = ".of-"
"""Follows the name of a kernel in names of files with machine code that has users' functions in it."""

_OF_KERNELS = b"_jit import", b"@rule_function", b"@intrinsic"
"""What a file of this package with kernels has, at least one of."""

_MOST_BYTES = 1 << 28  # in one folder, of what is made of users' functions
_LOCK_SECONDS = 2.0  # a file takes some milliseconds
_COMPILE_SECONDS = 120.0
_TURN, _TURN_IN_VAIN = 0o600, 0o700
"""How a file is that is locked by who compiles, and how where nothing could be kept: that needs no room."""

MayKeep = Callable[[tuple[Any, ...]], bool]


def kept(function: Callable[..., Any], options: dict[str, Any], may_keep: MayKeep, suffix: str = "") -> Any:
    """Compile a function of this package, and keep what is made of it for the next process.

    Parameters
    ----------
    function : callable
    options : dict
        Of `numba.njit`.
    may_keep : callable
        Whether what is compiled for these types of arguments is the same in all processes; asked before it is
        looked for on disk, and again before it is put there.
    suffix : str, optional
        Of the names of files, for what is not the function's alone. The oldest of these are removed where all
        take too much.
    """
    try:
        with _folders_tried_once():
            compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        _warn(f"There is no folder in which compiled code can be kept. {_ANEW}")
        return numba.njit(**options)(function)
    store: Any = getattr(compiled, "_cache", None)
    if getattr(store, "cache_path", None) is None:  # numba is told not to compile
        return compiled
    if not _is_ours(Path(store.cache_path)):
        return numba.njit(**options)(function)
    # Numba takes machine code from disk as long as the function's own file is unchanged. Kernels contain
    # kernels of other files, so the stamp on the machine code has to tell of those too.
    stamp = store._cache_file._source_stamp, _kernel_sources(), np.__version__
    name = store._impl.filename_base + suffix
    store._cache_file = _Files(store.cache_path, name, stamp)
    if suffix:  # numba would tell what it is closed over by addresses
        store._py_func = SimpleNamespace(__code__=function.__code__, __closure__=None)
    _Kept(compiled, store, may_keep, Path(store.cache_path) / name, bool(suffix))
    return compiled


@contextmanager
def _folders_tried_once() -> Iterator[None]:
    """Let numba not try again whether it may write to a folder in which it could for another function.

    It makes a file there for each, which is a load on a file system that a thousand ranks share.
    """
    locator: Any = caching._CacheLocator

    def try_once(self: Any) -> None:
        folder = self.get_cache_path()
        if folder not in _writable:
            _TRY_FOLDER(self)
            _writable.add(folder)

    locator.ensure_cache_path = try_once
    try:
        yield
    finally:
        locator.ensure_cache_path = _TRY_FOLDER  # numba's own, also where two threads are at it


_TRY_FOLDER = caching._CacheLocator.ensure_cache_path
_writable: set[str] = set()


class _Files(IndexDataCacheFile):
    """The files of one function: an index, and one for each kind of arguments.

    Numba numbers these anew where the source was changed, and writes the index first: until the file itself
    is written, it is what was there before, or what another process has put there. So each says what it is.
    """

    def save(self, key: Any, data: Any) -> None:
        """Keep `data` under `key`."""
        super().save(key, (self._source_stamp, key, data))

    def load(self, key: Any) -> Any:
        """Return what is kept under `key`, or None."""
        found = super().load(key)
        return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None


class _Kept:
    """Stands between a compiled function and its files.

    A full disk, or files that are damaged, cost the time to compile and not the run. Where several processes
    need the same code at the same time, as the ranks of a job do, one makes it, and the others wait for it.
    Where it could not be kept, all others make it at the same time.
    """

    found_no_room = False  # in this process

    def __init__(self, compiled: Any, store: Any, may_keep: MayKeep, path: Path, may_go: bool) -> None:
        self._compile, self._load, self._save = compiled.compile, store.load_overload, store.save_overload
        self._store, self._may_keep = store, may_keep
        self._path, self._may_go = path, may_go
        #: What is locked while this process compiles; -1: nothing.
        self._turn = -1
        compiled.compile = self._compile_in_turn
        store.load_overload, store.save_overload = self._load_if_there, self._save_if_possible

    def _compile_in_turn(self, signature: Any) -> Any:
        with global_compiler_lock:  # before the turn: threads would wait for each other
            had_it = self._turn >= 0
            try:
                with _no_collections():
                    return self._compile(signature)
            finally:
                if not had_it:
                    self._end_turn()

    def _load_if_there(self, signature: Any, *arguments: Any) -> Any:
        _load_numba_without_scipy()
        if not self._may_keep(normalize_signature(signature)[0]):
            _say_that_it_compiles()
            return None
        found = self._found(signature, arguments)
        if found is None:
            _say_that_it_compiles()
            if self._turn < 0:
                self._wait_for_turn()
                found = self._found(signature, arguments)
        return found

    def _found(self, signature: Any, arguments: tuple[Any, ...]) -> Any:
        store = self._store
        try:
            found = self._load(signature, *arguments)
        except Exception:  # a damaged pickle may raise anything
            logger.debug("Compiled code in %s cannot be read", store.cache_path, exc_info=True)
            with suppress(OSError):
                store.flush()  # else what is saved now would not be found either
            return None
        if found is not None and self._may_go:
            with suppress(OSError):  # when it was used last
                os.utime(self._path.with_name(f"{self._path.name}.nbi"))
        return found

    def _save_if_possible(self, signature: Any, *arguments: Any) -> None:
        if not self._may_keep(normalize_signature(signature)[0]):
            return
        folder = self._store.cache_path
        try:
            with _alone_in(folder), warnings.catch_warnings():
                # Of code that cannot be kept, since it has the address of a large array in it.
                warnings.simplefilter("ignore", NumbaWarning)
                self._save(signature, *arguments)
        except OSError as error:
            self._tell_those_who_wait()
            if not _Kept.found_no_room:  # said once: the cure is the same for all folders
                _Kept.found_no_room = True
                _warn(f"Compiled code cannot be kept in {folder} ({error.strerror}). {_ANEW}")
        except Exception:  # types that belong to a script alone
            self._tell_those_who_wait()
            logger.debug("Compiled code cannot be kept in %s", folder, exc_info=True)
        if self._may_go:
            _remove_oldest(Path(folder))

    def _wait_for_turn(self) -> None:
        """Wait while another process compiles this function; from then on others wait for this one.

        Who takes too long, or is stopped, is waited for no longer. A process that could not keep something
        before does not wait, whatever the folder: most are on one disk.
        """
        if _Kept.found_no_room:
            return
        end = monotonic() + _COMPILE_SECONDS
        with suppress(OSError):
            self._store._impl.locator.ensure_cache_path()
            turn = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _TURN)
            if not _lock_until(turn, end):
                os.close(turn)
                return
            self._turn = turn
            if stat.S_IMODE(os.fstat(turn).st_mode) == _TURN_IN_VAIN:
                self._end_turn()

    def _tell_those_who_wait(self) -> None:
        """Let those who wait for this process's turn to end not wait for each other as well."""
        if self._turn >= 0:
            with suppress(OSError):
                os.fchmod(self._turn, _TURN_IN_VAIN)

    def _end_turn(self) -> None:
        if self._turn >= 0:
            with suppress(OSError):
                os.unlink(f"{self._path}.lock")
                fcntl.flock(self._turn, fcntl.LOCK_UN)
            os.close(self._turn)
            self._turn = -1


@contextmanager
def _no_collections() -> Iterator[None]:
    """Do not look for garbage meanwhile: there is little, and each look takes in all that numba has made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _remove_oldest(folder: Path) -> None:
    """Remove what was made of users' functions and used longest ago, where all of that takes too much."""
    there: dict[str, list[tuple[Path, os.stat_result]]] = {}
    for path in folder.glob(f"*{OF_USERS}*"):
        before, _, after = path.name.partition(OF_USERS)
        with suppress(OSError):
            there.setdefault(before + after.partition(".")[0], []).append((path, path.stat()))
    total = sum(about.st_size for files in there.values() for _, about in files)
    for files in sorted(there.values(), key=lambda files: max(about.st_mtime for _, about in files)):
        if total <= _MOST_BYTES:
            return
        for path, about in files:
            with suppress(OSError):
                path.unlink()
            total -= about.st_size


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
            _lock_until(handle, end)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _lock_until(handle: int, end: float) -> bool:
    """Lock a file or folder for this process; return whether it could be had by then."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() >= end:
                return False
            sleep(0.002)
        except OSError:  # some network file systems have no locks
            return False


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
    """Return a SHA-256 over all files of this package beside, above or below one that holds kernels.

    These may have constants that kernels are compiled with, or the layout of what they read.
    """
    sources = {path: path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py"))}
    rooms = {_room(path) for path, source in sources.items() if any(word in source for word in _OF_KERNELS)}
    digest = hashlib.sha256()
    for path, source in sources.items():
        if path.parent == _OWN or _room(path) in rooms:
            digest.update(source)
    return digest.hexdigest()


def _room(path: Path) -> str:
    """Return the folder of this package in which a file is, however deep; its own are in none."""
    return path.relative_to(_PACKAGE).parts[0] if path.parent != _PACKAGE else ""
