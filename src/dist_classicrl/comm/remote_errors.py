"""Exceptions that cross ranks.

They are `Failed` on the way, `RemoteRankError` on arrival, and stand once in the job's output.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakSet

from dist_classicrl._words import exit_called
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.comm.transport import Channel
from dist_classicrl.errors import CutOffError, ExitCalledError, RemoteRankError, StateLimitError
from dist_classicrl.process import exit as process_exit
from dist_classicrl.process.signals import is_meant
from dist_classicrl.process.stop import INTERRUPTED

_GRACE_SECONDS = 10.0
# In which a launcher forwards the traceback before it writes, into the same lines, that the job was aborted.
_FORWARD_SECONDS = 0.1
# Statuses that say something of this package: done, stopped in order, with or without a checkpoint.
_TAKEN = (0, os.EX_IOERR, os.EX_TEMPFAIL, INTERRUPTED, process_exit.DONE_BUT_HANGING)
_OF_HYDRA = "MPI_LOCALRANKID"  # what the mpirun of MPICH and its kin, and no other, tells its ranks


@message(Kind.FAILED)
@dataclass(frozen=True)
class Failed:
    """An exception was raised on a rank; the fields but for the last are those of `RemoteRankError`."""

    rank: int
    host: str
    summary: str
    remote_traceback: str
    is_cut_off: bool
    kept: int = -1  # of a `StateLimitError` that ends the run in order: the steps of all that are kept

    @classmethod
    def of(cls, error: BaseException, rank: int) -> Failed:
        """Return `error` as a message of `rank`; a `RemoteRankError` as what it was where it was raised."""
        error = without_exit(error)
        if isinstance(error, RemoteRankError):
            return cls(**error.to_dict())
        return cls(
            rank,
            socket.gethostname(),
            _in_a_line(error),
            "".join(traceback.format_exception(type(error), error, error.__traceback__)),
            isinstance(error, CutOffError),
            error.steps if isinstance(error, StateLimitError) and error.steps is not None else -1,
        )

    def error(self) -> RemoteRankError | StateLimitError:
        """Return what is raised on the other ranks."""
        if self.kept >= 0:
            full = StateLimitError(
                f"{self.summary.partition(': ')[2]} Rank {self.rank} alone has what was learned until the "
                "next call of train, which tells it to all."
            )
            full.steps = self.kept
            mark_as_told_elsewhere(full)
            return full
        return RemoteRankError(self.rank, self.host, self.summary, self.remote_traceback, self.is_cut_off)


def without_exit(error: BaseException, is_alone: bool = False) -> BaseException:
    """Return a SystemExit as the error that it is where other ranks go on, and anything else as it is.

    `is_alone`: there are none, but who started this process takes its exit status for the training's.

    One that ends this process on purpose stays what it is, see `signals.is_meant`.
    """
    if not isinstance(error, SystemExit) or is_meant(error):
        return error
    code = error.code
    status = code & 0xFF if isinstance(code, int) else 1
    called, where = exit_called(error)
    what = "this process trained, which ends the training"
    if not is_alone:
        what = "several ranks trained, which ends the training on all of them"
    instead = ExitCalledError(
        f"{called} was called{where} while {what} as an exception does. To end it in order, let a callback's "
        "_on_step return False.",
        1 if status in _TAKEN else status,
    )
    instead.__cause__ = error
    return instead.with_traceback(error.__traceback__)


def raise_remote(channel: Channel, failed: Failed) -> NoReturn:
    """Raise what came on `channel`."""
    channel.peer_failed = True
    raise failed.error()


def mark_as_told_elsewhere(error: BaseException) -> None:
    """Note that another rank raises the same and prints it, if nobody handles it."""
    error._told_elsewhere = True  # type: ignore[attr-defined]


_installed = False
_watched: WeakSet[threading.Thread] = WeakSet()


def end_job_on_unhandled_errors() -> None:
    """Let an exception that nobody handles end the whole MPI job with its traceback.

    Otherwise it would leave ranks waiting. The rank that raised it prints it and aborts. Ranks that got it as
    `RemoteRankError`, or raise the same, give it time to. This holds for the main thread and for each thread
    that called this function; another thread of the program may die of an exception, as in any program.
    """
    global _installed
    _watched.add(threading.current_thread())
    if _installed:
        return
    _installed = True
    previous, previous_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _end_job(error, lambda: previous(kind, error, trace))

    def hook_in_thread(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value
        # SystemExit ends a thread without a word, as it ends the main thread without this hook.
        if error is None or isinstance(error, SystemExit) or arguments.thread not in _watched:
            previous_in_thread(arguments)
        else:
            _end_job(error, lambda: previous_in_thread(arguments))

    sys.excepthook = hook
    threading.excepthook = hook_in_thread


def _end_job(error: BaseException, show: Callable[[], Any]) -> None:
    if process_exit.is_cut_off(error) and _has_other_ranks():
        show()
        process_exit.end_alone()
    told = isinstance(error, RemoteRankError) or getattr(error, "_told_elsewhere", False)
    if told and _has_other_ranks():
        time.sleep(_GRACE_SECONDS)
    code = 1
    if isinstance(error, ExitCalledError):
        code = error.code
        sys.stderr.write(f"{_in_a_line(error)}\n")
    else:
        show()
    if _has_other_ranks():
        from mpi4py import MPI

        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_FORWARD_SECONDS)
        # Known already where the script's main thread has raised it.
        process_exit.announce(code, _in_a_line(error))
        process_exit.limit_seconds()
        MPI.COMM_WORLD.Abort(code)
        os._exit(code)
    elif _OF_HYDRA in os.environ and not process_exit.mpi_has_begun():
        _abort_by_pmi(code)


def _abort_by_pmi(code: int) -> None:
    """End the whole job with a status, before MPI has begun on this rank of MPICH's mpirun or its kin.

    Theirs, unlike Open MPI's, does not end a job whose rank ends before that: the others would wait in
    MPI_Init for ever. It is told what MPI_Abort would tell it, in the words of PMI.
    """
    with suppress(KeyError, ValueError, OSError):
        pmi = int(os.environ["PMI_FD"])
        if stat.S_ISSOCK(os.fstat(pmi).st_mode):  # not what a child of a rank has under that number
            time.sleep(_FORWARD_SECONDS)
            os.write(pmi, f"cmd=abort exitcode={code}\n".encode())


def _in_a_line(error: BaseException) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()


def _has_other_ranks() -> bool:
    return process_exit.mpi_runs() and sys.modules["mpi4py.MPI"].COMM_WORLD.Get_size() > 1
