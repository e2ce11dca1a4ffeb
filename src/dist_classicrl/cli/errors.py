"""The exit status of a command that ended with an error, and what is shown of that."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback

import click

from dist_classicrl import errors as named
from dist_classicrl._hints import rank_of_environment
from dist_classicrl._streams import NO_ROOM, is_unwritable, let_go_nowhere, silence_if_unread
from dist_classicrl.errors import (
    DeviceError,
    DistClassicRLError,
    LauncherError,
    NotTrainedError,
    RemoteRankError,
    SingletonError,
    StateLimitError,
)
from dist_classicrl.process.stop import INTERRUPTED as INTERRUPTED

DONE = 0
USAGE = 2
REQUEUE = os.EX_TEMPFAIL  # 75
INTERNAL = os.EX_SOFTWARE  # 70

EXIT_STATUS = (
    f"Exit status: {DONE} done; {USAGE} something in the command, its files or the environment is wrong, and "
    f"the message says what to write instead; {REQUEUE} a signal or a time limit has stopped the work in "
    f"order, and the same command goes on with it; {os.EX_IOERR} the same, but nothing could be saved, so "
    f"that it would begin anew; {INTERRUPTED} stopped by Ctrl-C, and it goes on; {INTERNAL} anything else, "
    "with a traceback."
)

_OF_USER = (ValueError, DeviceError, LauncherError, NotTrainedError, SingletonError, StateLimitError)
_OF_FILES = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_FIRST_WORD_SECONDS = 3.0

_MAKE_ROOM = "Make room, or write it elsewhere."
_REPORT = (
    "This is a defect of dist-classicrl or of what it ran. To report it, send the command, the lines above "
    "and what `dist-classicrl doctor` says."
)


def is_users(error: BaseException) -> bool:
    """Return whether an error says what the user has to change."""
    return isinstance(error, DistClassicRLError) and isinstance(error, _OF_USER)


def _is_users_elsewhere(error: RemoteRankError) -> bool:
    """Return whether an error on another rank says what the user has to change."""
    name = error.summary.partition(":")[0].rpartition(".")[2]
    own = getattr(named, name, None)
    is_own = isinstance(own, type) and issubclass(own, DistClassicRLError) and issubclass(own, _OF_USER)
    return is_own or name in {each.__name__ for each in _OF_FILES}


def _is_of_file(error: BaseException) -> bool:
    """Return whether an error is one of the system about a file that it names, or says itself which."""
    return isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.filename is not None)


def _is_of_full_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in NO_ROOM


def _is_of_output(error: BaseException) -> bool:
    """Return whether an error is that standard output cannot be written."""
    return isinstance(error, OSError) and error.filename is None and is_unwritable(sys.stdout)


def _is_of_lost_folder(error: BaseException) -> bool:
    """Return whether an error comes of the removal of the working directory."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None or error.errno is None:
        return False  # our own have no number
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _sentence(error: BaseException) -> str:
    if _is_of_lost_folder(error):
        return "The working directory has been removed. Change to a directory that is there, and try again."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError) and _is_of_output(error):
        let_go_nowhere(sys.stdout.fileno())  # else Python tries once more as it ends
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        remedy = _MAKE_ROOM if _is_of_full_disk(error) else "Let it go to a file, with > FILE."
        return f"Standard output cannot be written: {why}. {remedy}"
    if isinstance(error, OSError) and _is_of_full_disk(error):
        return f"A file cannot be written: {error.strerror}. {_MAKE_ROOM}"
    return str(error)


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ended with `error`."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, (click.exceptions.Abort, KeyboardInterrupt)):
        return INTERRUPTED
    if isinstance(error, click.ClickException) or is_users(error):
        return USAGE
    if _is_of_file(error) or _is_of_full_disk(error) or _is_of_output(error):
        return USAGE
    if isinstance(error, RemoteRankError) and _is_users_elsewhere(error):
        return USAGE
    return INTERNAL


def show(error: BaseException) -> int:
    """Write `error` to standard error, as far as there is something to say, and return the exit status.

    What is wrong with a command is wrong on all ranks that it was started on. Rank 0 says it first, and the
    launcher ends the others when rank 0 ends. Once MPI has begun, ranks tell each other what is wrong.
    """
    status = exit_status(error)
    if isinstance(error, RemoteRankError) and status == USAGE:
        return status  # the rank on which it happened says so
    if (rank_of_environment() or 0) > 0 and not is_of_job():
        time.sleep(_FIRST_WORD_SECONDS)
    if isinstance(error, click.exceptions.Exit):
        return status
    if isinstance(error, click.ClickException):
        error.show()
    elif status == USAGE:
        click.echo(f"Error: {_sentence(error)}", err=True)
    elif status == INTERRUPTED:
        click.echo("Interrupted.", err=True)
    else:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        click.echo(_REPORT, err=True)
    return status


def is_of_unread_output(error: BaseException) -> bool:
    """Return whether a command has ended because nobody reads what it says any more, as after ``| head``."""
    # click has an exit status of its own for a broken pipe.
    is_of_click = type(error) is SystemExit and error.code == 1
    return (is_of_click or isinstance(error, BrokenPipeError)) and silence_if_unread(sys.stdout)


def is_of_job() -> bool:
    """Return whether this process is a rank of a job in which MPI has begun.

    A defect is then not for the command line to handle: the ranks of a job end together.
    """
    return "mpi4py.MPI" in sys.modules and rank_of_environment() is not None
