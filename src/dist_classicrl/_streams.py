"""Whether what a process writes arrives: `head` may have ended, a disk be full, a stream be closed."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from collections.abc import Iterable
from typing import TextIO

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the system's errors where a disk, or what a user may have of it, is full."""


def is_output_closed(descriptors: Iterable[int] = (1, 2)) -> bool:
    """Return whether one of these is a pipe that nobody reads any longer."""
    return any(_is_pipe(number) and _is_unread(number) for number in descriptors)


def silence_if_unread(stream: TextIO | None) -> bool:
    """Return whether nobody reads `stream` any more, as after ``| head``; it then goes nowhere.

    None, which Python has in place of a stream that was closed before it began, as after ``>&-``: it never
    went anywhere.
    """
    if stream is None:
        return False
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # it is none of the system's, or closed
        return False
    if not _is_unread(number):
        return False
    let_go_nowhere(number)
    return True


def is_unwritable(stream: TextIO | None) -> bool:
    """Return whether what `stream` holds cannot be written, for another reason than that nobody reads it.

    One that holds nothing back, as with PYTHONUNBUFFERED, is asked by the end of a line.
    """
    if stream is None:
        return False
    try:
        if getattr(stream, "write_through", False):
            stream.write("\n")
        stream.flush()
    except BrokenPipeError:
        return False
    except OSError:
        return True
    except ValueError:  # it is closed
        pass
    return False


def open_closed_output() -> None:
    """Where standard output was closed before Python began, as by ``>&-``, let writing to it be an error.

    Python has no stream then, and drops what is written. No file that is opened later takes its place.
    """
    if sys.stdout is not None or _is_open(1):
        return
    let_go_nowhere(1, os.O_RDONLY)
    sys.stdout = open(1, "w", closefd=False)


def let_go_nowhere(number: int, mode: int = os.O_WRONLY) -> None:
    """Put what takes anything in the place of a stream; with `os.O_RDONLY`, what takes nothing."""
    nowhere = os.open(os.devnull, mode)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _is_unread(number: int) -> bool:
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # there is none
        return False
