"""How long ago a signal came: Python handles one when the call that it is in returns, maybe much later."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

_SO_TIMESTAMPNS = 35  # of Linux, which Python does not name
_STAMP = struct.Struct("ll")  # seconds and nanoseconds of the system's clock


class Arrivals:
    """Signals by the time at which they came, between `begin` and `end` in the main thread.

    Each puts a byte into a socket as it comes, and the kernel the time with it. Where another program part is
    woken by signals, such as an event loop, or the system notes no times, none is known.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._came: dict[int, float] = {}  # when each signal did the last time, unless that was asked for

    def begin(self) -> None:
        """Note signals from now on; it may be called again before `end`."""
        self._begun += 1
        if self._begun > 1 or sys.platform != "linux":
            return
        try:
            reader, writer = self._sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for each in self._sockets:
                each.setblocking(False)
            reader.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            if (before := _wake(writer.fileno())) != -1:
                _wake(before)
                self._close()
        except (OSError, ValueError):  # no more files, no times, or who was woken takes no signals by now
            self._close()

    def end(self) -> None:
        """Note signals no longer, if as many as began have ended."""
        self._begun -= 1
        if self._begun == 0 and self._sockets is not None:
            own = self._sockets[1].fileno()
            with suppress(OSError, ValueError):
                if (found := _wake(-1)) not in (own, -1):
                    _wake(found)
            self._close()

    def age(self, number: int) -> float:
        """Return how many seconds ago the last of these signals came, and forget it; 0.0: not known."""
        while self._sockets is not None:
            try:
                heard, extra, _, _ = self._sockets[0].recvmsg(1, socket.CMSG_SPACE(_STAMP.size))
            except OSError:  # there are no more
                break
            if heard and extra:
                seconds, nanoseconds = _STAMP.unpack_from(extra[0][2])
                self._came[heard[0]] = seconds + 1e-9 * nanoseconds
        now = time.time()
        return max(0.0, now - self._came.pop(number, now))

    def forget(self) -> None:
        """In a process that was forked from the one that notes them: note none, as it shares the socket."""
        if self._sockets is not None:
            with suppress(ValueError):  # not in the main thread
                _wake(-1)
            self._close()

    def _close(self) -> None:
        sockets, self._sockets = self._sockets, None
        self._came.clear()
        for each in sockets or ():
            each.close()


def _wake(descriptor: int) -> int:
    """Let signals write there, and return where they did; Python cannot tell whether that was to warn."""
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


arrivals = Arrivals()
os.register_at_fork(after_in_child=arrivals.forget)
