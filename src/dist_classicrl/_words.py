"""Words for messages: numbers of things, and what somebody probably meant."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

START_AGAIN = (
    "Start the job again, best with `python -m dist_classicrl launch`: it goes on from the last checkpoint."
)
"""What is to be done about a run that ended before it was through."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def counted(number: float, noun: str, form: str = ",") -> str:
    """Return how many there are, such as "1 worker" or "1,024 workers", with the number in this `form`."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def name_of(data: str | Mapping[str, Any]) -> str:
    """Return the name of a kind that a setting chooses: the setting itself, or what its plain data says."""
    return data if isinstance(data, str) else str(data["name"])


def why_not_compiled(error: BaseException) -> str:
    """Return what Numba says of code that it cannot compile, without the colors that are for a terminal."""
    return f"Numba says why: {_COLOR.sub('', str(error))}"


def error_told(error: BaseException) -> str:
    """Return the class of an error and what it says, whatever asking it for that raises."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception as other:
        return f"{kind}, whose text cannot be told: asking it for that raised {type(other).__name__}"


def exit_called(error: SystemExit) -> tuple[str, str]:
    """Return how `sys.exit` was called, and where: " in FUNCTION, FILE:LINE,", or "" if nobody knows.

    Where a library has put a function of its own in its place, as wandb does, it is who called that.
    """
    called = f"sys.exit({'' if error.code is None else repr(error.code)})"
    hook = getattr(sys.exit, "__code__", None)
    frames = list(traceback.walk_tb(error.__traceback__))
    within = next((n for n, (frame, _) in enumerate(frames) if frame.f_code is hook), len(frames))
    if within == 0:
        return called, ""
    frame, line = frames[within - 1]
    return called, f" in {frame.f_code.co_name}, {frame.f_code.co_filename}:{line},"


def shown_name(path: str | os.PathLike[str]) -> str:
    r"""Return what a file or folder is called in titles and on pages, where all has to be Unicode.

    Names may be any bytes: one that is no UTF-8 stands there as ``\xe9``.
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_alone(ranks: Iterable[int]) -> bool:
    """Return whether these are the ranks of a process that learned alone, of which no message speaks."""
    return list(ranks) == [0]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that names what was probably meant by `word`, with a blank in front; or nothing."""
    match = closest(word, known)
    return "" if match is None else f" Did you mean {match!r}?"


def closest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return what is most like `word`, of what is like it at least so much, from 0 to 1."""
    matches = get_close_matches(word, list(known), n=1, cutoff=likeness) if isinstance(word, str) else []
    return matches[0] if matches else None
