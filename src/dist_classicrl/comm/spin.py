"""Waiting for MPI without sleeping, as measuring needs it, but not for ever."""

from __future__ import annotations

import os
import time
from typing import Any

from dist_classicrl.comm.collectives import finish
from dist_classicrl.comm.rooted import RootedCollectives
from dist_classicrl.errors import RankLostError

_TESTS_AT_ONCE = 100
_REMEDY = "Measure over the ranks that are left, such as comm.Shrink()."


def spin(comm: Any, rooted: RootedCollectives, request: Any, what: str, *in_use: Any) -> None:
    """Wait until an operation on `comm` is complete, for as long as `rooted` waits.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    rooted : RootedCollectives
    request : mpi4py.MPI.Request
    what : str
        What all ranks are to do for it.
    *in_use : object
        What MPI reads and writes until then.

    Raises
    ------
    RankTimeoutError, RankLostError
        See `finish`.
    """
    from mpi4py import MPI

    deadline = time.perf_counter() + rooted.seconds
    tests = 0
    try:
        while not request.Test():
            tests += 1
            if tests > _TESTS_AT_ONCE:
                os.sched_yield()  # whoever is waited for may need this core
                if time.perf_counter() > deadline:
                    break
        else:
            return
    except MPI.Exception as error:
        raise RankLostError(f"A rank died before all did {what} ({error}). {_REMEDY}") from error
    finish(comm, request, 0.0, f"all ranks to do {what}", _REMEDY, *in_use)
