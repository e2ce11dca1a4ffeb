"""The code of environments that a study was begun with: a class that is written anew may keep its name."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from numba.core.dispatcher import Dispatcher

from dist_classicrl._files import whole_file
from dist_classicrl.sweep.kept.reading import read_kept

logger = logging.getLogger(__name__)

Code = Mapping[str, Mapping[str, str]]  # of each environment the parts of its code, and a hash of each

_FILE = "environment_code.json"
_PACKAGE = __name__.split(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
#: Where what wraps a function or class keeps it.
_WRAPPED = {
    MethodType: ("__func__",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.partial: ("func",),
    functools.cached_property: ("func",),
    type(functools.lru_cache(len)): ("__wrapped__",),
}
_OF_GYMNASIUM = (gymnasium.make, gymnasium.make_vec)
_OF_LIBRARIES = {"site-packages", "dist-packages"}  # folders
_TAKES = ("LOAD_ATTR", "LOAD_METHOD")
#: What the body of a class says of it that it does not do.
_ASIDE = {"__doc__", "__firstlineno__", "__qualname__", "__static_attributes__"}


def code_of(environment: Any) -> dict[str, str]:
    """Return the parts of what makes an environment, by name, each with a hash of what it is.

    Parts are functions, methods, and numbers and texts that these use: attributes of classes, defaults,
    variables around them. Classes and functions of a user's are followed, others are not. What may change
    in use plays no part: lists and other objects, and names to which the code itself assigns. Nothing is
    returned where something goes wrong, since no study is to fail for a piece of advice.
    """
    if isinstance(environment, EnvSpec):
        environment = functools.partial(gymnasium.make, environment)
    try:
        first = _Parts(environment, frozenset())
        return _Parts(environment, frozenset(first.assigned_globals)).hashes()
    except Exception:
        logger.debug("The code of %r cannot be looked at.", type(environment), exc_info=True)
        return {}


def keep_code(folder: Path, code: Code) -> None:
    """Write down the code that a study is begun with."""
    with whole_file(folder / _FILE) as file:
        file.write(json.dumps({"python": _python(), "environments": code}, sort_keys=True).encode())


def changed_code(folder: Path, code: Code) -> dict[str, list[str]]:
    """Return of each environment whose code is other than what a study was begun with which parts are.

    Nothing where that is not known, as of studies of earlier versions and of another version of Python.
    """
    try:
        there = json.loads(read_kept(folder / _FILE) or b"")
        if there["python"] != _python():
            return {}
        known = [(name, dict(there["environments"][name]), parts) for name, parts in code.items()]
    except (ValueError, TypeError, KeyError):  # a StudyError, too
        return {}
    changes = {
        name: sorted(each for each in {**old, **new} if old.get(each) != new.get(each))
        for name, old, new in known
        if old and new
    }
    return {name: parts for name, parts in changes.items() if parts}


def _python() -> str:
    """Return what is the same where the same code is compiled to the same bytes."""
    rewriting = any(type(each).__name__ == "AssertionRewritingHook" for each in sys.meta_path)  # of pytest
    version = f"{sys.implementation.name} {importlib.util.MAGIC_NUMBER.hex()} {sys.flags.optimize}"
    return f"{version} rewritten" if rewriting else version


class _Parts:
    """The parts of an environment; what the global variables `known` hold plays none.

    Code that fills these when they are needed first, as by an import, would be other after use.
    """

    def __init__(self, environment: Any, known: frozenset[str]) -> None:
        self.assigned_globals: set[str] = set()
        self._known = known
        self._code: dict[str, list[str]] = defaultdict(list)
        self._data: dict[str, list[str]] = defaultdict(list)
        self._assigned: set[str] = set()
        self._seen: dict[int, Any] = {}  # by address, which nothing else has while it is kept here
        self._left = [("", environment if _is_code(environment) else type(environment))]
        while self._left:
            self._take(*self._left.pop())

    def hashes(self) -> dict[str, str]:
        constant = (name for name in self._data if name.rpartition(".")[2] not in self._assigned)
        for name in constant:
            self._code[name] += self._data[name]
        return {
            name: hashlib.sha256("\n".join(sorted(told)).encode(errors="surrogatepass")).hexdigest()[:16]
            for name, told in self._code.items()
        }

    def _add(self, name: str, value: Any) -> None:
        self._left.append((name, value))

    def _take(self, name: str, value: Any) -> None:
        if isinstance(value, Dispatcher):
            value = value.py_func
        if isinstance(value, FunctionType | type) and not _is_of_user(value):
            self._code[name].append(value.__qualname__)
        elif isinstance(value, FunctionType | type):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                take: Any = self._take_class if isinstance(value, type) else self._take_function
                take(value)
        elif type(value) in _WRAPPED:
            for attribute in _WRAPPED[type(value)]:
                self._add(name, getattr(value, attribute))
            if type(value) is functools.partial and value.func in _OF_GYMNASIUM:
                for entry in _entries(*value.args, **value.keywords):
                    self._add(name, entry)
        else:
            with suppress(_UntoldError):
                self._data[name].append(_told(value))

    def _take_class(self, kind: type) -> None:
        for base in kind.__bases__:
            self._add(kind.__name__, base)
        for name, value in vars(kind).items():
            if not name.startswith("__") or _is_code(value):
                self._add(f"{kind.__name__}.{name}", value)

    def _take_function(self, function: FunctionType) -> None:
        name = function.__qualname__.rpartition("<locals>.")[2]
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # nothing yet
                self._add(variable, cell.cell_contents)
        self._code[name].append(_code_told(function.__code__))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(name, value)
        for each in _all_code(function.__code__):
            steps = list(dis.get_instructions(each))
            for i, step in enumerate(steps):
                if step.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
                    self._assigned.add(step.argval)
                    if step.opname == "STORE_GLOBAL":
                        self.assigned_globals.add(step.argval)
                elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
                    self._take_global(step.argval, function.__globals__[step.argval], steps[i + 1 :])

    def _take_global(self, variable: str, value: Any, steps: list[dis.Instruction]) -> None:
        """Add a variable around a function, or what the next steps take of it, if it is a module."""
        if variable in self._known:
            return
        for step in steps:
            if not issubclass(type(value), ModuleType) or step.opname not in _TAKES:
                break
            value = vars(value).get(step.argval)  # asks no code of the module's
            variable = f"{variable}.{step.argval}"
        if not variable.rpartition(".")[2].startswith("__"):  # such as __file__
            self._add(variable, value)


class _UntoldError(Exception):
    """There is something that may change in use."""


def _entries(id: str | EnvSpec, *_: Any, **__: Any) -> Iterator[Any]:
    """Yield what Gymnasium makes environments of an id by."""
    spec = gymnasium.spec(id.rpartition(":")[2]) if isinstance(id, str) else id
    for entry in (spec.entry_point, spec.vector_entry_point):
        if entry is not None:
            yield load_env_creator(entry) if isinstance(entry, str) else entry


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type | Dispatcher) or type(value) in _WRAPPED


def _is_of_user(value: Any) -> bool:
    """Whether a function or class belongs to no library."""
    package = str(value.__module__).split(".")[0]
    if package == "__main__":
        return True
    if package in sys.stdlib_module_names or package == _PACKAGE:
        return False
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    return file is None or not _OF_LIBRARIES & set(Path(file).parts)


def _told(value: Any) -> str:
    """Return plain data as a text that is the same in every process."""
    if isinstance(value, CodeType):
        return _code_told(value)
    if type(value) is tuple:
        return f"({','.join(map(_told, value))})"
    if type(value) is slice:
        return f"slice {_told((value.start, value.stop, value.step))}"
    if type(value) is frozenset:
        return f"{{{','.join(sorted(map(_told, value)))}}}"
    if type(value) not in _PLAIN:
        raise _UntoldError
    return f"{type(value).__name__} {value:x}" if type(value) is int else f"{type(value).__name__} {value!r}"


def _code_told(code: CodeType) -> str:
    """Return what code does, without docstrings and where it stands."""
    steps = list(dis.get_instructions(code))
    told = [str(code.co_flags), _told(getattr(code, "co_exceptiontable", b""))]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if any(each is not None and _is_aside(each) for each in (step, following)):
            continue
        if step.opcode in dis.hasconst and step.arg is not None:
            told.append(f"{step.opname} {_told(code.co_consts[step.arg])}")
        else:
            told.append(f"{step.opname} {step.argrepr or step.arg}")
    return "\n".join(told)


def _is_aside(step: dis.Instruction) -> bool:
    return step.opname == "STORE_NAME" and step.argval in _ASIDE


def _all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _all_code(value)
