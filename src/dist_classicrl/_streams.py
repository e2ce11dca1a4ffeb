"""Whether anybody still reads what a process writes: `head` and `less` may have ended."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterable
from typing import TextIO


def is_output_closed(descriptors: Iterable[int] = (1, 2)) -> bool:
    """Return whether one of these is a pipe that nobody reads any longer."""
    return any(_is_pipe(number) and _is_unread(number) for number in descriptors)


def silence_if_unread(stream: TextIO) -> bool:
    """Return whether nobody reads `stream` any more, as after ``| head``; it then goes nowhere."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # it is none of the system's, or closed
        return False
    if not _is_unread(number):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
    return True


def _is_unread(number: int) -> bool:
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # there is none
        return False
