"""How a process ends whose job has lost ranks.

MPI_Finalize waits for every rank, and after a death it may wait for ever or crash. What the training knows
of losses is noted here; what follows from it is done when the interpreter ends, after all that the script
itself had to do then.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dist_classicrl._hints import local_rank_of_environment, promised_size, rank_of_environment
from dist_classicrl._words import error_told
from dist_classicrl.errors import (
    CutOffError,
    ExitCalledError,
    RankLostError,
    RankTimeoutError,
    RemoteRankError,
)
from dist_classicrl.process.exit_record import LAUNCH_VARIABLE, Ending, ExitRecord
from dist_classicrl.process.leftovers import end_leftovers
from dist_classicrl.process.stop import INTERRUPTED

DONE_BUT_HANGING = 79
"""Exit status with which a job is aborted that has done its work, where a rank hangs: with ULFM, Open MPI
does not end a job that is aborted with status 0."""

BEAT_SECONDS = 5.0
_ABORT_SECONDS = 10.0
_HEAD_SECONDS = 30.0  # other ranks may first take down all that was compiled, on cores that all share
_OTHERS_SECONDS = 600.0
_LIBRARY_OF_ULFM = "libmpi.so.40"
_FLAG_OF_ULFM = "OMPI_MCA_mpi_ft_enable"
_TRUE = ("1", "t", "true", "enabled", "yes", "y")


@dataclass
class _Process:
    """What is known of this process's end."""

    pid: int
    heads: dict[int, bool] = field(default_factory=dict)  # by part of the job: whether this rank heads it
    has_losses: bool = False
    is_aside: bool = False
    is_managed: bool = False
    abort: Callable[[int], None] | None = None
    await_others: Callable[[float], None] | None = None
    say_ended: Callable[[], None] | None = None
    part: int = 0  # of the job, of which these three are
    # Where `program` runs the script: only then is the exit status known.
    ending: Ending | None = None
    record: ExitRecord | None = None


_process = _Process(os.getpid())


def note_part(part: int) -> None:
    """Note that a part of the job has begun: ranks that train together, named by the lowest of them.

    The work of the job is done when that of each part is. The part of rank 0 is there without a note.
    """
    if _process.record is not None and part:
        with contextlib.suppress(OSError):  # the first beat has told, on each host
            _process.record.note_part(part)


def note_head(is_head: bool, part: int = 0) -> None:
    """Note whether this rank is in charge of a part of the job, so that its clean end is that of the work.

    Without a note rank 0 is, of its own part.
    """
    _process.heads[part] = is_head


def note_losses() -> None:
    """Note that a rank of the job has died: this process must not wait for it when it ends."""
    _process.has_losses = True


def note_hanging(
    abort: Callable[[int], None] | None,
    await_others: Callable[[float], None] | None = None,
    say_ended: Callable[[], None] | None = None,
    part: int = 0,
) -> None:
    """Note that a rank of a part of the job is alive, but may never end, or with None that there is none.

    When the part's head ends, it calls `await_others`, which waits for so many seconds at most until the
    other ranks have ended, and then `abort`, which ends the job with a status. Any other rank calls
    `say_ended` when it ends, to tell the head.
    """
    _process.abort, _process.await_others, _process.say_ended = abort, await_others, say_ended
    _process.part = part


def note_aside() -> None:
    """Note that the job goes on without this rank, however this rank ends."""
    _process.is_aside, _process.heads = True, {0: False}


def has_deaths(comm: Any) -> bool:
    """Whether MPI says that a rank of a communicator has died; False where it cannot say."""
    try:
        failed = comm.Get_failed()
    except (AttributeError, NotImplementedError):
        return False
    are_there: bool = failed.Get_size() > 0
    failed.Free()
    return are_there


def announce(code: int, reason: str) -> None:
    """Write down that this rank is about to end the job in order, with this exit status, as by an abort.

    Its launcher then does not take that for a death. Only the first word counts.
    """
    _settle(code, "error" if code else "code", reason)


def fault_tolerant(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether this process was started with the extension of MPI that survives deaths (ULFM)."""
    return (os.environ if environ is None else environ).get(_FLAG_OF_ULFM, "").lower() in _TRUE


def survival_advice(environ: Mapping[str, str] | None = None) -> str | None:
    """Return what it would take for this job to survive a death, or None if it does, or has one rank."""
    environ = os.environ if environ is None else environ
    n_ranks = promised_size(environ)
    if n_ranks < 2 or fault_tolerant(environ) or environ.get(LAUNCH_VARIABLE):
        return None
    return (
        "If a rank dies, MPI ends this job as a whole. Started as `python -m dist_classicrl launch "
        f"-n {n_ranks} script.py ...`, it goes on without the dead rank where MPI can, and else from its "
        "last checkpoint."
    )


def manage(record: ExitRecord | None, replacement: bool) -> None:
    """Take charge of this process's end, for `program`: it says how the script ends, in `script_ended`.

    The launcher reads in `record` what becomes of the ranks; a `replacement` was started by a running job.
    """
    _process.record, _process.is_managed = record, True
    if replacement:
        note_aside()
    if record is not None:
        _beat(record)
        threading.Thread(target=_keep_beating, args=(record,), name="launch beat", daemon=True).start()


def script_ended(error: BaseException | None) -> int:
    """Note how the script ended: by this exception, or by none. Return the exit status."""
    code, kind = _verdict(error)
    if kind == "lost":
        note_losses()
    reason = "" if error is None or type(error) is SystemExit else error_told(error).splitlines()[0]
    _settle(code, kind, reason)
    return code


def _verdict(error: BaseException | None) -> tuple[int, str]:
    """Return the exit status of a script that ended like this, as Python has it, and the kind of ending."""
    if error is None:
        return 0, "code"
    if isinstance(error, SystemExit):
        code = error.code
        return (0 if code is None else code & 0xFF if isinstance(code, int) else 1), "code"
    if isinstance(error, ExitCalledError):
        return error.code, "error"
    code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if _says_that_ranks_are_lost(error):
        return code, "lost"
    return code, "told" if isinstance(error, RemoteRankError) else "error"


def _says_that_ranks_are_lost(error: BaseException) -> bool:
    """Tell whether an exception, or what it came from, is what one sees of the death of others."""
    mpi = sys.modules.get("mpi4py.MPI")
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_PROC_ABORTED", "ERR_REVOKED", "ERR_OTHER")
    classes = {getattr(mpi, name) for name in (*names, "ERR_INTERN", "ERR_UNKNOWN") if hasattr(mpi, name)}
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if is_cut_off(each) or isinstance(each, (RankLostError, RankTimeoutError)):
            return True
        if mpi is not None and isinstance(each, mpi.Exception) and each.Get_error_class() in classes:
            return True
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return False


def is_cut_off(error: BaseException) -> bool:
    """Whether an exception says that others may go on without this rank."""
    return isinstance(error, CutOffError) or (isinstance(error, RemoteRankError) and error.is_cut_off)


def _settle(code: int, kind: str, reason: str) -> None:
    if not _process.is_managed or _process.ending is not None:
        return
    kind = "left" if _process.is_aside else kind
    rank = rank_of_environment() or 0
    ending = Ending(rank, code, kind, reason, bool(_headed()), not mpi_has_begun())
    _process.ending = ending
    if _process.record is not None:
        with contextlib.suppress(OSError):  # the first beat has told, on each host
            _process.record.add(ending)


def _headed() -> list[int]:
    """Return the parts of the job that this rank is in charge of."""
    heads = _process.heads or {0: (rank_of_environment() or 0) == 0}
    return [part for part, is_head in heads.items() if is_head]


def mpi_runs() -> bool:
    """Whether MPI was started in this process and is not over."""
    return mpi_has_begun() and not sys.modules["mpi4py.MPI"].Is_finalized()


def mpi_has_begun() -> bool:
    """Whether MPI was started in this process, be it over or not."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and bool(mpi.Is_initialized())


def _end() -> None:
    """End this process as what was noted asks for; the last of the functions that `atexit` calls."""
    if os.getpid() != _process.pid:
        return
    end_leftovers()
    ending, headed = _process.ending, _headed()
    head = _process.part in headed
    if _process.record is not None and ending is not None and ending.code == 0:
        try:
            for part in headed:
                _process.record.complete(part)
        except OSError as trouble:
            _warn(_process.record, trouble)
    if not mpi_runs():
        return
    if not head and _process.say_ended is not None:
        _process.say_ended()
    if head and _process.abort is not None:
        _flush()
        if _process.await_others is not None:
            _process.await_others(_OTHERS_SECONDS)
        _process.abort((0 if ending is None else ending.code) or DONE_BUT_HANGING)
    # MPI_Finalize waits for those too who died in a part of the job that this rank does not train with.
    survives = fault_tolerant()
    if _process.has_losses or (survives and has_deaths(sys.modules["mpi4py.MPI"].COMM_WORLD)):
        if survives and (ending is not None or not headed):
            _flush()
            code = _likely_code() if ending is None else ending.code
            os._exit(_quiet_code(code) if ending is not None and ending.kind in ("lost", "left") else code)
        if survives:
            _finalize_without_others()
        limit_seconds(_HEAD_SECONDS if headed else _OTHERS_SECONDS)


def _finalize_without_others() -> None:
    """Let Open MPI's MPI_Finalize leave out its fence, to which all are to come: some are gone without it.

    Where they go as it begins, it may wait there for ever. It still waits for ranks that live in other ways.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError):  # another system or MPI has no such name
        library = ctypes.CDLL(_LIBRARY_OF_ULFM, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        ctypes.c_bool.in_dll(library, "ompi_async_mpi_finalize").value = True


def end_alone() -> NoReturn:
    """End this process, which failed, while the others may go on.

    Without ULFM the launcher would end them with it, so it waits for them in MPI_Finalize.
    """
    _flush()
    if not fault_tolerant():
        limit_seconds(_OTHERS_SECONDS)
        sys.modules["mpi4py.MPI"].Finalize()
    os._exit(_quiet_code(1))


def _quiet_code(code: int) -> int:
    """Return the exit status with which a rank ends that the others go on without.

    With ULFM, Open MPI ends the whole job where a rank ends with another status than 0.
    """
    return 0 if fault_tolerant() else code


def _likely_code() -> int:
    """Return the exit status of a script of which is only known whether it failed.

    Python does not tell the status of a SystemExit. But where that is not 0, the head has it too.
    """
    return 1 if hasattr(sys, "last_type") else 0


def limit_seconds(seconds: float = _ABORT_SECONDS) -> None:
    """Let SIGALRM end this process after `seconds`, whatever it waits for."""
    if threading.current_thread() is threading.main_thread():  # Python allows no other to set handlers
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or none at all
            stream.flush()


def _keep_beating(record: ExitRecord) -> None:
    """Beat until the script ends: a process that waits in MPI_Finalize is no sign of life of the job."""
    pause = threading.Event()
    while _process.ending is None:
        pause.wait(BEAT_SECONDS)
        _beat(record, quietly=True)


def _beat(record: ExitRecord, quietly: bool = False) -> None:
    try:
        record.beat()
    except OSError as trouble:
        if not quietly and local_rank_of_environment() in (None, 0):
            _warn(record, trouble)


def _warn(record: ExitRecord, trouble: OSError) -> None:
    sys.stderr.write(
        f"dist_classicrl: {socket.gethostname()} cannot write to the launcher's folder {record.folder} "
        f"({trouble}), so the launcher cannot tell whether the work is done. Give `launch --state-dir` a "
        "folder that all hosts share.\n"
    )


# Registered when the package's training is loaded, before a script's own functions: those are called first.
atexit.register(_end)
