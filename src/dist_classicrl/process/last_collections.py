"""What numba has made is left to the system when Python ends, instead of being freed piece by piece."""

from __future__ import annotations

import gc
import io
import sys

_OF_COMPILERS = ("builtins", "llvmlite", "numba")  # generators, and what machine code is freed with
_WITHOUT_OUTPUT = (io.BufferedReader, io.BytesIO, io.FileIO, io.StringIO)  # that would be lost


def spare() -> None:
    """Let Python's last looks for garbage pass over all objects; numba makes some 150,000.

    What is in no circle is freed all the same. What is in one could end something only then, such as a file
    to be written: where there is anything of that kind, whoever has it, all goes its usual way.
    """
    if "numba" in sys.modules and not _has_something_to_end():
        gc.freeze()


def _has_something_to_end() -> bool:
    kinds = {kind for kind in set(map(type, gc.get_objects())) if _may_end_something(kind)}
    standard = {id(stream) for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__)}
    standard |= {id(getattr(stream, "buffer", None)) for stream in (sys.__stdout__, sys.__stderr__)}
    return any(type(thing) in kinds and id(thing) not in standard for thing in gc.get_objects())


def _may_end_something(kind: type) -> bool:
    is_of_compilers = str(kind.__module__).partition(".")[0] in _OF_COMPILERS
    if is_of_compilers or kind in _WITHOUT_OUTPUT:
        return False
    return any("__del__" in vars(base) for base in kind.__mro__)
