"""Whether the program behind a pipe, such as `head` or `less`, has ended."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterable


def is_output_closed(descriptors: Iterable[int] = (1, 2)) -> bool:
    """Return whether one of these is a pipe that nobody reads any longer."""
    return any(_is_closed_pipe(descriptor) for descriptor in descriptors)


def _is_closed_pipe(descriptor: int) -> bool:
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
    except OSError:  # there is none
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
