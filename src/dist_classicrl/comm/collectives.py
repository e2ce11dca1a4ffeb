"""The few collective operations with which the ranks of a communicator begin, each with a deadline.

MPI has no deadline for them, and after a death they may wait for ever.
"""

from __future__ import annotations

from typing import Any

from dist_classicrl.comm.transport import wait_until
from dist_classicrl.errors import RankLostError, SettingsError


def duplicate(comm: Any, seconds: float, what: str, remedy: str) -> Any:
    """Return a duplicate of `comm` that gives errors back. Collective; errors as of `finish`."""
    from mpi4py import MPI

    try:
        own, request = comm.Idup()
    except MPI.Exception as error:
        raise _death(what, remedy) from error
    finish(comm, request, seconds, what, remedy, own)
    own.Set_errhandler(MPI.ERRORS_RETURN)
    return own


def own_communicator(comm: Any, seconds: float, name: str, between_groups: bool = False) -> Any:
    """Return a duplicate of `comm` for the object `name`, which every rank constructs, within `seconds`.

    `between_groups`: whether it may be an intercommunicator.

    Raises
    ------
    SettingsError
        If `comm` is no such communicator.
    RankTimeoutError, RankLostError
        If not all ranks construct theirs.
    """
    from mpi4py import MPI

    allowed, word = (
        (MPI.Comm, "a communicator") if between_groups else (MPI.Intracomm, "an intracommunicator")
    )
    if not isinstance(comm, allowed) or comm == MPI.COMM_NULL:
        raise SettingsError(f"comm must be {word} of mpi4py, such as mpi4py.MPI.COMM_WORLD, got {comm!r}.")
    what = f"all ranks to construct their {name}; every rank of the communicator has to"
    return duplicate(comm, seconds, what, "Construct it over the ranks that are left, such as comm.Shrink().")


def finish(comm: Any, request: Any, seconds: float, what: str, remedy: str, *in_use: Any) -> None:
    """Wait until a collective operation on `comm` is complete.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    request : mpi4py.MPI.Request
    seconds : float
        How long to wait.
    what : str
        What is waited for, and by whom it is to be done.
    remedy : str
        What to do if a rank has died.
    *in_use : object
        What MPI reads and writes until then.

    Raises
    ------
    RankTimeoutError
        After `seconds`.
    RankLostError
        If MPI says that a rank has died.
    """
    from mpi4py import MPI

    try:
        wait_until(lambda: request.Test() or _has_deaths(comm), seconds, what)
        if _has_deaths(comm):
            raise _death(what, remedy)
    except BaseException as error:
        _given_up.append((request, *in_use))
        if isinstance(error, MPI.Exception):
            raise _death(what, remedy) from error
        raise


# MPI may still write to what belongs to operations that were given up, so that lives as long as the process.
_given_up: list[Any] = []


def _death(what: str, remedy: str) -> RankLostError:
    return RankLostError(f"A rank died while this one waited for {what}. {remedy}")


def _has_deaths(comm: Any) -> bool:
    """Whether MPI says that a rank has died; False where it cannot say."""
    try:
        return comm.Get_failed().Get_size() > 0
    except (AttributeError, NotImplementedError):
        return False
