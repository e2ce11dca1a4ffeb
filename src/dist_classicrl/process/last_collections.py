"""What numba has made is left to the system when Python ends, instead of being freed piece by piece."""

from __future__ import annotations

import gc
import io
import sys
from importlib.machinery import ExtensionFileLoader
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

_OF_COMPILERS = ("llvmlite", "numba")  # what machine code is freed with, and their generators
_WITHOUT_OUTPUT = (io.BufferedReader, io.BytesIO, io.FileIO, io.StringIO)  # that would be lost
_FRAMES = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
#: Native code of which nothing is written as it is freed. Of any other, Python cannot tell.
_HARMLESS = {
    *("_cffi_backend", "_cyutility", "llvmlite", "mpi4py", "numba", "numpy", "scipy", "yaml", "zstandard"),
    *sys.stdlib_module_names,
}


def spare() -> None:
    """Let Python's last looks for garbage pass over all objects; numba makes some 150,000.

    What is in no circle is freed all the same. What is in one could end something only then, such as a file
    to be written: where there may be anything of that kind, whoever has it, all goes its usual way.
    """
    try:
        is_spared = "numba" in sys.modules and not _has_other_native_code() and not _has_something_to_end()
    except Exception:  # classes of the program may do anything when they are looked at
        return
    if is_spared:
        gc.freeze()


def _has_other_native_code() -> bool:
    for name, module in list(sys.modules.items()):
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if isinstance(loader, ExtensionFileLoader) and name.partition(".")[0] not in _HARMLESS:
            return True
    return False


def _has_something_to_end() -> bool:
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if _may_end_something(kind)}
    standard = {id(stream) for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__)}
    standard |= {id(getattr(stream, "buffer", None)) for stream in (sys.__stdout__, sys.__stderr__)}
    return any(type(thing) in kinds and id(thing) not in standard and _is_open(thing) for thing in things)


def _may_end_something(kind: type) -> bool:
    if kind in _WITHOUT_OUTPUT or _is_of_compilers(kind.__module__):
        return False
    return any("__del__" in vars(base) for base in kind.__mro__)


def _is_open(thing: Any) -> bool:
    """Whether there is something left to end: a generator or coroutine may have come to its end."""
    if type(thing) not in _FRAMES:
        return True
    frame = getattr(thing, _FRAMES[type(thing)])
    return frame is not None and not _is_of_compilers(frame.f_globals.get("__name__"))


def _is_of_compilers(module: object) -> bool:
    return str(module).partition(".")[0] in _OF_COMPILERS
