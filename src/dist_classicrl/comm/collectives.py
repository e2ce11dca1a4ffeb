"""Operations of MPI with a deadline: MPI has none, and may wait for ever after a death."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dist_classicrl.comm.transport import Backoff, Channel, leave_to_mpi, wait_until
from dist_classicrl.errors import RankLostError, SettingsError
from dist_classicrl.process.exit import has_deaths

_TESTS_AT_ONCE = 100
_NAME_BYTES = 64
_PATIENCE_SECONDS = 1.0
_DEATHS = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_PROC_ABORTED", "ERR_REVOKED")
_MAY_BE_FULL = (
    "If it has no communicators left, of which it has a limited number, use one that is there again: for "
    "each that is given to this library a duplicate is kept."
)
_OVER_THE_OTHERS = "over the ranks that are left, such as comm.Shrink()."


def duplicate(comm: Any, seconds: float, what: str, remedy: str) -> Any:
    """Return a duplicate of `comm` that gives errors back. Collective; errors as of `finish`."""
    from mpi4py import MPI

    try:
        own, request = comm.Idup()
    except MPI.Exception as error:
        raise _failure(error, what, remedy) from error
    finish(comm, request, seconds, what, remedy, own)
    own.Set_errhandler(MPI.ERRORS_RETURN)
    return own


def checked_communicator(comm: Any, between_groups: bool = False) -> Any:
    """Return `comm` if it is an intracommunicator, or one `between_groups`; SettingsError if not."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
        word = "a communicator" if between_groups else "an intracommunicator"
        raise SettingsError(f"comm must be {word} of mpi4py, such as mpi4py.MPI.COMM_WORLD, got {comm!r}.")
    check_mpi_runs()
    return comm if between_groups else within_one_group(comm)


def check_mpi_runs() -> None:
    """Raise a SettingsError where MPI has not been started, or is over: asked anything, it ends the job."""
    from mpi4py import MPI

    if not MPI.Is_initialized():
        raise SettingsError(
            "MPI has not been started in this process: mpi4py.rc.initialize is False. Call "
            "mpi4py.MPI.Init_thread() first, or leave mpi4py.rc.initialize as it is."
        )
    if MPI.Is_finalized():
        raise SettingsError(
            "MPI is over in this process, after MPI.Finalize(): nothing can be sent to other ranks, nor "
            "asked about them. Do what takes other ranks before that; Python calls MPI.Finalize() by itself "
            "at the end."
        )


def is_of_mpi(comm: Any) -> bool:
    """Whether this is a communicator of mpi4py, which is not loaded to tell that."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(comm, mpi.Comm)


def within_one_group(comm: Any) -> Any:
    """Return a communicator that has ranks; SettingsError for one between groups, where it tells."""
    if is_of_mpi(comm):
        check_mpi_runs()
    is_inter = getattr(comm, "Is_inter", None)
    if callable(is_inter) and is_inter():
        raise SettingsError(
            "comm must be an intracommunicator of mpi4py, such as mpi4py.MPI.COMM_WORLD, got the "
            f"intercommunicator {comm!r}. Its Merge() makes an intracommunicator of both its groups."
        )
    return comm


def own_communicator(comm: Any, seconds: float, name: str, between_groups: bool = False) -> Any:
    """Return a duplicate of `comm` for the object `name`, which every rank constructs, within `seconds`.

    `between_groups`: whether it may be an intercommunicator. Errors are those of `finish`, and a
    `SettingsError` if `comm` is no such communicator, or other ranks construct something else.
    """
    checked_communicator(comm, between_groups)
    _give_back_more()
    what = f"all ranks to construct their {name}; every rank of the communicator has to"
    remedy = f"Construct it {_OVER_THE_OTHERS}"
    own = duplicate(comm, seconds, what, remedy)
    _compare_names(own, name, seconds, what, remedy)
    return own


def _compare_names(own: Any, name: str, seconds: float, what: str, remedy: str) -> None:
    """Raise a SettingsError, and free `own`, where another rank constructs something else."""
    from mpi4py import MPI

    size = own.Get_remote_size() if own.Is_inter() else own.Get_size()
    given = _token_of(name)
    found = bytearray(len(given) * size)
    try:
        request = own.Iallgather(given, found)
    except MPI.Exception as error:
        raise _failure(error, what, remedy) from error
    finish(own, request, seconds, what, remedy, given, found)
    for rank in range(size):
        other = found[len(given) * rank : len(given) * (rank + 1)]
        if other != given:
            own.Free()
            shown = other[:_NAME_BYTES].decode(errors="replace")
            shown = shown.rstrip() if shown.endswith(" ") else f"{shown}..."
            raise SettingsError(
                f"Rank {rank} constructs its {shown}, where this rank constructs its {name}. Construct the "
                "same in the same order on all ranks."
            )


def _token_of(name: str) -> bytes:
    """Return what a name begins with, to be shown, and a digest of all of it, to be compared."""
    whole = name.encode()
    return whole[:_NAME_BYTES].ljust(_NAME_BYTES) + hashlib.blake2b(whole, digest_size=16).digest()


def finish(
    comm: Any, request: Any, seconds: float, what: str, remedy: str, *in_use: Any, waited: float = 0.0
) -> None:
    """Wait until an operation on `comm` is complete; MPI reads and writes what is `in_use` until then.

    `what` says what is to be done, and by whom: a `RankTimeoutError` names it after so many seconds, and
    counts those that were `waited` before. If MPI says that a rank has died, a `RankLostError` advises the
    `remedy`; also if MPI fails for another reason, which it then tells.
    """
    from mpi4py import MPI

    try:
        wait_until(lambda: request.Test() or has_deaths(comm), seconds, what, waited)
        if has_deaths(comm):
            raise _death(what, remedy)
    except BaseException as error:
        leave_to_mpi(request, *in_use)
        if isinstance(error, MPI.Exception):
            raise _failure(error, what, remedy) from error
        raise


def spin(comm: Any, request: Any, seconds: float, what: str, *in_use: Any) -> None:
    """Wait like `finish`, but without sleeping, for what is short; `what` is to be done by all ranks."""
    from mpi4py import MPI

    remedy = f"Go on {_OVER_THE_OTHERS}"
    deadline = time.perf_counter() + seconds
    try:
        for tests in itertools.count():
            if request.Test():
                return
            if tests >= _TESTS_AT_ONCE:
                os.sched_yield()  # whoever is waited for may need this core
                if time.perf_counter() > deadline:
                    break
    except BaseException as error:
        leave_to_mpi(request, *in_use)
        if isinstance(error, MPI.Exception):
            raise _failure(error, f"all ranks to do {what}", remedy) from error
        raise
    finish(comm, request, 0.0, f"all ranks to do {what}", remedy, *in_use, waited=seconds)


def give_back(
    comm: Any,
    channels: Collection[Channel],
    left: Callable[[], Collection[Channel]],
    seconds: float = _PATIENCE_SECONDS,
) -> None:
    """Free `comm`, of which MPI has a limited number, once nobody sends over it any more.

    This rank has said goodbye on all `channels`, and sends nothing after that. `left` takes in what has
    come, and returns those on which the other ranks have said goodbye. Freed sooner, their messages could
    turn up in another communicator. It waits so many seconds at most; who says goodbye later is noticed when
    the next communicator is made or given back, and where a rank has died nothing is freed.
    """
    _wait_until_over(_Used(comm, channels, left), seconds)


def free_together(comms: Sequence[Any]) -> None:
    """Free communicators once all ranks have come to this; waits like `give_back`.

    The last of `comms` is for this alone.
    """
    from mpi4py import MPI

    try:
        request = comms[-1].Ibarrier()
    except MPI.Exception:
        leave_to_mpi(comms)
    else:
        _wait_until_over(_Together(comms, request))


def _wait_until_over(used: _Used | _Together, seconds: float = _PATIENCE_SECONDS) -> None:
    backoff = Backoff()
    deadline = time.monotonic() + seconds
    while not used.is_over():
        if time.monotonic() > deadline:
            _used.append(used)
            break
        backoff.wait()
    _give_back_more()


@dataclass(frozen=True)
class _Together:
    """Communicators that this rank is through with, and a barrier that opens when all are."""

    comms: Sequence[Any]
    request: Any

    def is_over(self) -> bool:
        """Whether all have come, or one has died."""
        from mpi4py import MPI

        try:
            if not self.request.Test():
                return False
        except MPI.Exception:
            leave_to_mpi(self)
            return True
        for comm in self.comms:
            comm.Free()
        return True


@dataclass(frozen=True)
class _Used:
    """A communicator that this rank is through with."""

    comm: Any
    channels: Collection[Channel]
    left: Callable[[], Collection[Channel]]

    def is_over(self) -> bool:
        """Whether nobody is waited for any more; then it is free, or lost."""
        left = self.left()
        missing = [channel for channel in self.channels if channel not in left]
        if any(channel.lost is None for channel in missing):
            return False
        for channel in self.channels:
            channel.close()
        if not missing:
            self.comm.Free()
        return True


def _give_back_more() -> None:
    _used[:] = [used for used in _used if not used.is_over()]


_used: list[_Used | _Together] = []


def _death(what: str, remedy: str) -> RankLostError:
    return RankLostError(f"A rank died while this one waited for {what}. {remedy}")


def _failure(error: Any, what: str, remedy: str) -> RankLostError:
    """Return what to raise after an `error`, an MPI.Exception: a death only if MPI speaks of one."""
    from mpi4py import MPI

    deaths = [getattr(MPI, name, None) for name in _DEATHS]
    if error.Get_error_class() in deaths:
        return _death(what, remedy)
    said = " ".join(error.Get_error_string().split())
    return RankLostError(
        f"MPI failed while this rank waited for {what}, and names no rank that died: {said}. {_MAY_BE_FULL} "
        f"Otherwise a rank may have died all the same. {remedy}"
    )
