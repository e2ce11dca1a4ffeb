"""Whether anybody still reads what a process writes: `head` and `less` may have ended."""

from __future__ import annotations

import errno
import os
import select
import stat
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
    _let_go_nowhere(number)
    return True


def silence_if_full(stream: TextIO | None) -> bool:
    """Return whether there is no room for what `stream` holds; it then goes nowhere.

    One that holds nothing back, as with PYTHONUNBUFFERED, is asked for room by the end of a line.
    """
    if stream is None:
        return False
    try:
        if getattr(stream, "write_through", False):
            stream.write("\n")
        stream.flush()
    except OSError as error:
        if error.errno in NO_ROOM:
            _let_go_nowhere(stream.fileno())
            return True
    except ValueError:  # it is closed
        pass
    return False


def _let_go_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _is_unread(number: int) -> bool:
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # there is none
        return False
