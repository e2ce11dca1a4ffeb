"""What a function does, told by a hash: machine code made of it is found again by it, and of nothing else."""

from __future__ import annotations

import builtins
import dis
import enum
import hashlib
import random
from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba.core import types
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

_PACKAGE = __name__.split(".")[0]
_KNOWN_BY_NAME = {"builtins", "cmath", "math", "numba", "numpy", "operator"}
"""What these have is what it is called, in one version of Python, numba and numpy."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_LARGEST_ARRAY = 1 << 20
"""Bytes of an array that a function uses; numba does not put larger ones into machine code."""

_NOT_A_USE = {"PUSH_NULL", "CACHE", "NOP", "RESUME", "COPY_FREE_VARS", "EXTENDED_ARG"}


class _UnknownError(Exception):
    """There is something of which nobody can tell what it does by looking at it."""


def identity_of(*values: Any) -> str | None:
    """Return a SHA-256 over all that numba makes of these functions, classes and numbers.

    It has the code of each function, its defaults, options of numba, and whatever it uses from around it:
    numbers, arrays, and other functions with what those use. Functions of this package count by their own
    code and by what they are closed over, since machine code on disk is of one version of the package.

    Returns
    -------
    str or None
        None where a function uses something whose behavior cannot be told from what it is, such as an object
        of another library.
    """
    try:
        digest = _Digest()
        for value in values:
            digest.add(value)
        for function in digest.compiled:
            _check_as_compiled(function)
    except _UnknownError:
        return None
    return digest.sha.hexdigest()


def _check_as_compiled(function: Any) -> None:
    """Raise _UnknownError where machine code that there is of a user's function may do something else.

    Numba compiles it once for a type, with what it used then; what it has on disk may be older still.
    """
    if not isinstance(function._cache, NullCache):
        raise _UnknownError
    digest = _Digest()
    digest.add(function)
    now = digest.sha.digest()
    if function.overloads and _compiled_as.get(function) != now:
        raise _UnknownError
    _compiled_as[function] = now


#: Of users' functions what they did when they were looked at first, or last before they were compiled.
_compiled_as: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()


class _Digest:
    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        #: The users' compiled functions among what was added.
        self.compiled: list[Any] = []
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # what `_seen` has the addresses of

    def _tell(self, *words: Any) -> None:
        for word in words:
            told = word if isinstance(word, bytes) else str(word).encode()
            self.sha.update(b"%d:" % len(told) + told)

    def _is_seen(self, value: Any) -> bool:
        """Whether it was added before, or is being added; functions call each other."""
        if id(value) in self._seen:
            self._tell("seen", self._seen[id(value)])
            return True
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return False

    def add(self, value: Any) -> None:
        """Add a value to the hash."""
        kind = type(value)
        if kind in _PLAIN:
            self._tell(kind.__name__, repr(value))
        elif isinstance(value, np.ndarray | np.generic):
            self._add_array(np.asarray(value), kind.__name__)
        elif isinstance(value, np.dtype):
            self._tell("dtype", np.lib.format.dtype_to_descr(value))
        elif isinstance(value, enum.Enum):
            self.add(kind)
            self._tell(value.name)
        elif isinstance(value, tuple):
            self._tell("tuple", len(value))
            if kind is not tuple:
                self.add(kind)
            for part in value:
                self.add(part)
        elif kind in (dict, set, frozenset):
            self._add_unordered(value)
        elif isinstance(value, Dispatcher):
            self._add_compiled(value)
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.Type):
            self._tell("numba", value)
        else:
            self._add_by_name(value)

    def _add_array(self, array: np.ndarray, kind: str) -> None:
        if array.dtype.hasobject or array.nbytes > _LARGEST_ARRAY:
            raise _UnknownError
        flags = array.flags
        self._tell(kind, np.lib.format.dtype_to_descr(array.dtype), array.shape, array.tobytes())
        self._tell(flags.c_contiguous, flags.f_contiguous, flags.aligned)

    def _add_unordered(self, value: Any) -> None:
        """Add the parts of a dict or set in the order of their hashes."""
        parts = value.items() if isinstance(value, dict) else value
        hashes = [identity_of(part) for part in parts]
        if None in hashes:
            raise _UnknownError
        self._tell(type(value).__name__, *sorted(map(str, hashes)))

    def _add_class(self, kind: type) -> None:
        name = (kind.__module__, kind.__qualname__)
        fields = getattr(kind, "_fields", None)
        if issubclass(kind, enum.Enum):
            self._tell("enum", *name, *(f"{member.name}={member.value!r}" for member in kind))
        elif issubclass(kind, tuple) and fields is not None:  # numba knows it by its fields
            self._tell("NamedTuple", *name, *fields)
        elif _is_known_by_name(kind.__module__, _PACKAGE):
            self._tell("class", *name)
        else:
            raise _UnknownError

    def _add_compiled(self, function: Any) -> None:
        if self._is_seen(function):
            return
        self._tell("compiled", type(function).__name__)
        self._add_unordered({str(key): value for key, value in function.targetoptions.items()})
        self._add_unordered(dict(function.locals))
        self.add(function._compiler.pipeline_class)
        if (function.py_func.__module__ or "").split(".")[0] not in (_PACKAGE, *_KNOWN_BY_NAME):
            self.compiled.append(function)
        if not function._can_compile:  # for the types that were named alone
            self._tell(*map(str, function.nopython_signatures))
        self.add(function.py_func)

    def _add_function(self, function: FunctionType) -> None:
        module = function.__module__ or ""
        if module.split(".")[0] in ("numba", "numpy"):
            self._tell("function", module, function.__qualname__)
            return
        if self._is_seen(function):
            return
        code = function.__code__
        self._tell("function")
        self._add_code(code)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        cells: dict[str, CellType] = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if module.split(".")[0] == _PACKAGE:
            self._tell(module, function.__qualname__)
            for cell in cells.values():
                self.add(_inside(cell))
            return
        for name, attributes, is_closed_over in _uses(code):
            if is_closed_over:
                if name not in cells:  # a variable of its own that functions within it use
                    continue
                used = _inside(cells[name])
            elif name in function.__globals__:
                used = function.__globals__[name]
            else:
                used = getattr(builtins, name, _UnknownError)
            self._tell(name)
            for attribute in attributes:
                if not isinstance(used, ModuleType):
                    break
                self._tell(attribute)
                used = getattr(used, attribute, _UnknownError)
            if isinstance(used, FunctionType) and not _is_known_by_name(used.__module__, _PACKAGE):
                raise _UnknownError  # not compiled: what numba puts in its place is registered elsewhere
            self.add(used)

    def _add_code(self, code: CodeType) -> None:
        # Before Python 3.11 where exceptions lead is a part of the code itself.
        self._tell("code", code.co_code, getattr(code, "co_exceptiontable", b""), code.co_flags)
        self._tell(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self._tell(len(names), *names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant)
            else:
                self.add(constant)

    def _add_by_name(self, value: Any) -> None:
        """Add what is known by its name, as `math.sqrt` and `np.add` are."""
        module = getattr(value, "__module__", None)
        name = getattr(value, "__qualname__", getattr(value, "__name__", None))
        owner = getattr(value, "__self__", None)
        if isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is value:
            self._tell("ufunc", name)
        elif (
            isinstance(value, BuiltinFunctionType)
            and (owner is None or isinstance(owner, ModuleType))
            and _is_known_by_name(module or getattr(owner, "__name__", ""))
        ):
            self._tell("built in", module, name)
        else:
            raise _UnknownError


def unseeded_draws(*functions: Any) -> list[str]:
    """Return by which names of `np.random` or `random` compiled functions draw, or those that they call.

    Numba seeds these by itself. There are none where a function seeds them, with what it was given maybe.
    """
    found, seen, left = [], set(), list(functions)
    while left:
        function = getattr(left.pop(), "py_func", None)
        if function is None or function in seen:
            continue
        seen.add(function)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        try:
            for name, attributes, _ in _uses(function.__code__):
                used = _inside(cells[name]) if name in cells else function.__globals__.get(name)
                for attribute in attributes:
                    if isinstance(used, ModuleType):
                        used, name = getattr(used, attribute, None), f"{name}.{attribute}"
                if used is np.random.seed or used is random.seed:
                    return []
                if isinstance(getattr(used, "__self__", None), np.random.RandomState | random.Random):
                    found.append(name)
                left.append(used)
        except _UnknownError:  # numba will say what it cannot compile
            continue
    return found


def _is_known_by_name(module: str | None, *others: str) -> bool:
    return (module or "").split(".")[0] in {*_KNOWN_BY_NAME, *others}


def _inside(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        raise _UnknownError from None


def _uses(code: CodeType) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the names of what code uses from around it, what is taken of each, and if it is closed over it.

    What is taken of `np` in ``np.random.rand`` is ``["random", "rand"]``.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOT_A_USE]
    for i, step in enumerate(steps):
        if step.opname.startswith("IMPORT"):
            raise _UnknownError
        is_closed_over = step.opname in ("LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF")
        if is_closed_over or step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            attributes = []
            for later in steps[i + 1 :]:
                if later.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                attributes.append(str(later.argval))
            yield str(step.argval), attributes, is_closed_over
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _uses(constant)
