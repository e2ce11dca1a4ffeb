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
_STAMP = struct.Struct("qq")  # seconds and nanoseconds of the system's clock


class Arrivals:
    """Signals by the time at which they came, between `begin` and `end` in the main thread.

    Each puts a byte into a socket as it comes, and the kernel the time with it. Where another program part is
    woken by signals, such as an event loop, or the system notes no times, none is known.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def begin(self) -> None:
        """Note signals from now on; it may be called again before `end`."""
        self._begun += 1
        if self._begun > 1 or sys.platform != "linux":
            return
        with suppress(OSError):  # without either no time is known
            reader, writer = self._sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            reader.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            for each in self._sockets:
                each.setblocking(False)
            before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            if before != -1:
                signal.set_wakeup_fd(before)
                self._close()

    def end(self) -> None:
        """Note signals no longer, if as many as began have ended."""
        self._begun -= 1
        if self._begun == 0 and self._sockets is not None:
            own = self._sockets[1].fileno()
            if (found := signal.set_wakeup_fd(-1)) not in (own, -1):
                signal.set_wakeup_fd(found)
            self._close()

    def age(self, number: int) -> float:
        """Return how many seconds ago the last of these signals came, and forget it; 0.0: not known."""
        last = None
        while self._sockets is not None:
            try:
                heard, extra, _, _ = self._sockets[0].recvmsg(1, socket.CMSG_SPACE(_STAMP.size))
            except OSError:  # there are no more
                break
            if heard[:1] == bytes([number]) and extra:
                seconds, nanoseconds = _STAMP.unpack_from(extra[0][2])
                last = seconds + 1e-9 * nanoseconds
        return 0.0 if last is None else max(0.0, time.time() - last)

    def forget(self) -> None:
        """In a process that was forked from the one that notes them: note none, as it shares the socket."""
        if self._sockets is not None:
            with suppress(ValueError):  # not in the main thread
                signal.set_wakeup_fd(-1)
            self._close()

    def _close(self) -> None:
        sockets, self._sockets = self._sockets, None
        for each in sockets or ():
            each.close()


arrivals = Arrivals()
os.register_at_fork(after_in_child=arrivals.forget)
