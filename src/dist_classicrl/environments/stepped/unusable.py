"""Whether an exception came of what an environment returned, and not from the environment itself."""

from __future__ import annotations

import os
import re
import traceback
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, async_vector_env

from dist_classicrl._words import error_told
from dist_classicrl.environments.stepped.base import RESET, STEP
from dist_classicrl.errors import EnvError

OF_VALUES = (TypeError, ValueError, AttributeError, LookupError, OverflowError, AssertionError)
"""What code raises that is given values which it cannot use."""

_FILES = (__file__, *(part.__file__ for part in (gymnasium.vector, gymnasium.wrappers, gymnasium.utils, np)))
_FOLDERS = tuple(os.path.join(os.path.dirname(str(file)), "") for file in _FILES)
_PYTHON = os.path.join(os.path.dirname(os.__file__), "")
_PACKAGES = ("site-packages", "dist-packages")  # where those of others lie
_FILE = re.compile(r'^ *File "(.+)", line \d+', re.MULTILINE)  # in the text of a traceback


def not_usable(error: Exception, e: int | None) -> EnvError | None:
    """Return the error for an `error` that came of what an environment gave to Gymnasium's code around it.

    None for one that came from the environment, whose own code is then on the way to it, or from here. `e` is
    the number of the environment, None for one of those in a vector environment.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [frame.f_code.co_filename for frame in frames]
    around = [each for each in map(_self_of, frames) if isinstance(each, (gymnasium.Wrapper, VectorEnv))]
    if files[-1] == async_vector_env.__file__ and "trace" in frames[-1].f_locals:
        e = frames[-1].f_locals["index"]  # what a process of its own raised, and where
        files += _FILE.findall(frames[-1].f_locals["trace"])
    if not around or not all(map(_is_passing, files)):
        return None
    whose = "An environment" if e is None else f"Environment {e}"
    return EnvError(
        f"{whose} gave what {type(around[-1]).__name__} around it cannot use "
        f"({error_told(error)}). step(action) must return the tuple ({STEP}): an observation in "
        f"the space that it declares, a number, two of True and False, and a dict; reset(*, seed=None, "
        f"options=None) the tuple ({RESET}). Correct the environment "
        "(gymnasium.utils.env_checker.check_env finds such things)."
    )


def _self_of(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def _is_passing(file: str) -> bool:
    """Whether a file is of code around environments: of Gymnasium, of what it uses, or from here."""
    is_of_python = file.startswith(_PYTHON) and not any(part in file for part in _PACKAGES)
    return file.startswith(_FOLDERS) or file == gymnasium.core.__file__ or is_of_python
