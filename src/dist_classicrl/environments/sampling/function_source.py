"""What tells functions apart: their source, and that of what they use."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import CodeType, FunctionType
from typing import Any

import numpy as np


def add_values(digest: Any, value: Any) -> None:
    """Add numbers, arrays, and tuples of them, to a hash."""
    if isinstance(value, tuple):
        for part in value:
            add_values(digest, part)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str} {value.shape} ".encode() + value.tobytes())
    else:
        digest.update(f"{value!r} ".encode())


def add_function(digest: Any, function: Any) -> None:
    """Add to a hash what a compiled function does: its code, and the constants and functions that it uses.

    Comments and the way in which lines are broken play no part.
    """
    seen: set[int] = set()

    def add(value: Any) -> None:
        inner = getattr(value, "py_func", value)
        if isinstance(inner, FunctionType):
            if id(inner) in seen:
                return
            seen.add(id(inner))
            digest.update(_code(inner).encode())
            used = inspect.getclosurevars(inner)
            for name, other in sorted({**used.globals, **used.nonlocals}.items()):
                digest.update(f" {name}=".encode())
                add(other)
        elif isinstance(value, (bool, int, float, complex, str, np.generic, np.ndarray, tuple)):
            add_values(digest, value)
        else:  # modules and classes
            digest.update(getattr(value, "__name__", type(value).__name__).encode())

    add(function)


def _code(function: FunctionType) -> str:
    try:
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):  # made by exec, or a lambda within a statement
        code = function.__code__
        constants = [value for value in code.co_consts if not isinstance(value, CodeType)]
        return f"{code.co_code!r} {constants!r} {code.co_names}"
    if not isinstance(written, ast.FunctionDef):
        return ast.unparse(written)
    written.decorator_list = []
    return ast.unparse(written)
