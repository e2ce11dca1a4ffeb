"""Functions that do the same have one identity, and whatever changes what they do changes it."""

import itertools
from pathlib import Path

import numba
import numpy as np
import pytest

from dist_classicrl._jit.identity import identity_of

FUNCTION = """
import math
from enum import IntEnum
from typing import NamedTuple
import numba
import numpy as np

BASE = 1
WEIGHTS = np.array([1.0, 2.0])

class Kind(IntEnum):
    GOOD = 1

class Point(NamedTuple):
    x: int

@numba.njit
def inner(x):
    return x + BASE

def made(scale):
    @numba.njit
    def function(state, shift=0.5):
        point = Point(state)
        if state == Kind.GOOD:
            return 0.0
        return inner(point.x) * scale + math.sin(shift) + WEIGHTS[0] + np.float64(state) + 2

    return function

function = made(3)
"""


def identity(source, name="function"):
    namespace = {"__name__": "a_users"}
    exec(compile(source, "a_users.py", "exec"), namespace)
    return identity_of(namespace[name])


CHANGES = [
    ("+ 2", "+ 3"),
    ("+ 2", "+ 2.0"),
    ("+ 2", "- 2"),
    ("shift=0.5", "shift=0.25"),
    ("shift=0.5", "shift=-0.0"),
    ("shift=0.5", "shift=0.0"),
    ("made(3)", "made(4)"),
    ("made(3)", "made(True)"),
    ("BASE = 1", "BASE = 2"),
    ("BASE = 1", "BASE = np.int32(1)"),
    ("x + BASE", "x - BASE"),
    ("[1.0, 2.0]", "[1.0, 3.0]"),
    ("np.array([1.0, 2.0])", "np.array([1.0, 2.0], np.float32)"),
    ("np.array([1.0, 2.0])", "np.array([1.0, 0.0, 2.0])[::2]"),
    ("GOOD = 1", "GOOD = 2"),
    ("    x: int", "    x: int\n    y: int = 0"),
    ("math.sin", "math.cos"),
    ("np.float64(state)", "np.float32(state)"),
    ("@numba.njit\ndef inner", "@numba.njit(fastmath=True)\ndef inner"),
    ("@numba.njit\ndef inner", "@numba.njit(inline='always')\ndef inner"),
    ("@numba.njit\ndef inner", "@numba.njit(locals={'x': numba.int8})\ndef inner"),
]


def test_whatever_a_function_does_otherwise_shows():
    sources = [FUNCTION, *(FUNCTION.replace(*change) for change in CHANGES)]
    identities = [identity(source) for source in sources]
    assert None not in identities
    for (i, one), (j, other) in itertools.combinations(enumerate(identities), 2):
        assert one != other, (CHANGES[i - 1] if i else "the first", CHANGES[j - 1])


def test_machine_code_that_may_do_something_else_gives_none(tmp_path):
    """Numba compiles a helper once, with what it uses then."""
    helper, path = "@numba.njit\ndef inner", tmp_path / "a_users.py"
    assert identity(FUNCTION.replace(helper, "@numba.njit('int64(int64)')\ndef inner")) is None
    path.write_text(FUNCTION.replace(helper, "@numba.njit(cache=True)\ndef inner"))
    on_disk = {"__name__": "a_users"}
    exec(compile(path.read_text(), str(path), "exec"), on_disk)
    assert identity_of(on_disk["function"]) is None
    by_hand = {"__name__": "a_users"}
    exec(FUNCTION, by_hand)
    assert by_hand["inner"](1) == 2
    assert identity_of(by_hand["function"]) is None
    known = {"__name__": "a_users"}
    exec(FUNCTION, known)
    first = identity_of(known["function"])
    assert known["function"](1) == 0.0 and identity_of(known["function"]) == first is not None
    known["BASE"] = 2  # which the machine code does not hear of
    assert identity_of(known["function"]) is None
    known["BASE"] = 1
    assert identity_of(known["function"]) == first


def test_what_plays_no_part_does_not_show():
    same = [
        FUNCTION,
        "# a comment\n\n" + FUNCTION,
        FUNCTION.replace("BASE = 1", "BASE = 1\nOTHER = 5"),
        FUNCTION.replace("BASE = 1", "OTHER = object()\nBASE = 1"),
    ]
    assert len({identity(source) for source in same}) == 1


def test_functions_that_call_each_other_have_one():
    calls = """
import numba
@numba.njit
def even(n):
    return True if n == 0 else odd(n - 1)
@numba.njit
def odd(n):
    return {} if n == 0 else even(n - 1)
"""
    first, again = (identity(calls.format("False"), "even") for _ in range(2))
    assert first == again is not None
    assert identity(calls.format("True"), "even") != first


def overloaded(x):
    """Stand for what `numba.extending.overload` has elsewhere."""


@pytest.mark.parametrize(
    "unknown",
    [
        "[1, 2]",
        "object()",
        "Path('.')",
        "np.zeros(1 << 20)",
        "np.array([None])",
        "np.random.default_rng(1)",
        "[].append",
        "np",
        "overloaded",
        "numba.vectorize(['float64(float64)'])(lambda x: x)",
        "numba.vectorize(lambda x: x)",
    ],
)
def test_what_cannot_be_told_by_looking_has_none(unknown):
    used = eval(unknown, {"np": np, "Path": Path, "numba": numba, "overloaded": overloaded})
    assert identity_of(numba.njit(lambda x: (x, used))) is None


def test_what_is_imported_within_has_none():
    def imports(x):
        import json

        return json.dumps(x)

    assert identity_of(imports) is None
