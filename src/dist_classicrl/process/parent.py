"""Whether this process was started to replace a lost rank, and by whom."""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
from typing import Any

REPLACEMENT_VARIABLE = "DIST_CLASSICRL_REPLACES"
"""Environment variable that makes a process a replacement; its value is what the server has to say."""

_PARENT_SECONDS = 60.0  # in which a replacement has to find who started it


@functools.cache
def replacement_mark() -> str | None:
    """Return what the server had to say to this process, its replacement; None if it is none.

    The environment variable is taken away, so that what this process starts does not hear it.
    """
    return os.environ.pop(REPLACEMENT_VARIABLE, None)


@functools.cache
def find_parent() -> Any | None:
    """Return the intercommunicator to the server that started this process, or None if none did.

    MPI is started only in a replacement. To be called early there: until then the server waits, and sees
    neither this process nor its death. A process that finds nobody within a minute is ended.
    """
    if replacement_mark() is None:
        return None
    faulthandler.dump_traceback_later(_PARENT_SECONDS, exit=True, file=sys.__stderr__ or 2)
    try:
        from mpi4py import MPI

        parent = MPI.Comm.Get_parent()
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None if parent == MPI.COMM_NULL else parent
