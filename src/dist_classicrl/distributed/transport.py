"""One peer's messages over MPI point-to-point.

They are sent in pieces with Isend, and received through one posted Irecv.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl.distributed import messages
from dist_classicrl.errors import RankTimeoutError

TAG = 71
PIECE_BYTES = 1 << 18
_FIRST_SLEEP = 2e-5
_LONGEST_SLEEP = 2e-3
_CANCEL_SECONDS = 1.0  # a receive is cancelled at once unless the peer stopped in the middle of sending


class Backoff:
    """Sleeps that double from 20 microseconds to 2 milliseconds while nothing happens."""

    def __init__(self) -> None:
        self._sleep = _FIRST_SLEEP

    def wait(self) -> None:
        """Sleep once."""
        time.sleep(self._sleep)
        self._sleep = min(2.0 * self._sleep, _LONGEST_SLEEP)

    def reset(self) -> None:
        """Start over: something happened."""
        self._sleep = _FIRST_SLEEP


def wait_until(ready: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait politely until `ready()`.

    Raises
    ------
    RankTimeoutError
        After `seconds`; `what` says in the message what was waited for.
    """
    backoff = Backoff()
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise RankTimeoutError(
                f"Waited {seconds:g} s for {what}. If that can take longer, raise timeout=; else look for a "
                "rank that hangs."
            )
        backoff.wait()


class Channel:
    """Messages to and from one rank, in order.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Used by this library alone.
    peer : int
        Rank in `comm`.
    piece_bytes : int
        A longer message goes in pieces of this size, so that the posted buffer stays small.

    Attributes
    ----------
    peer_failed : bool
        Whether the peer said so: it takes nothing any more.
    """

    def __init__(self, comm: Any, peer: int, piece_bytes: int = PIECE_BYTES) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self.peer = peer
        self.peer_failed = False
        self._piece = piece_bytes
        self._buffer = np.empty(piece_bytes, np.uint8)
        self._status = MPI.Status()
        self._sending: deque[tuple[list[Any], np.ndarray]] = deque()
        self._partial: np.ndarray | None = None
        self._filled = 0
        self.last_heard = self.last_sent = time.monotonic()
        self._request: Any = None
        self._post()

    def _post(self) -> None:
        self._request = self._comm.Irecv([self._buffer, self._mpi.BYTE], self.peer, TAG)

    def send(self, message: np.ndarray) -> None:
        """Start to send; the buffer is kept until it has gone."""
        self.reap()
        requests = [
            self._comm.Isend([message[start : start + self._piece], self._mpi.BYTE], self.peer, TAG)
            for start in range(0, message.size, self._piece)
        ]
        self.last_sent = time.monotonic()
        self._sending.append((requests, message))

    def reap(self) -> bool:
        """Let go of what has been sent. Return whether nothing is left."""
        while self._sending and self._mpi.Request.Testall(self._sending[0][0]):
            self._sending.popleft()
        return not self._sending

    def poll(self) -> np.ndarray | None:
        """Return the next whole message, or None if none is there yet. Never waits."""
        while self._request is not None and self._request.Test(self._status):
            message = self._received(self._status)
            if message is not None:
                return message
        return None

    def _received(self, status: Any) -> np.ndarray | None:
        """Take the piece that has come, and post the next receive. Return the message that it completes."""
        self.last_heard = time.monotonic()
        message = self._add(self._buffer[: status.Get_count(self._mpi.BYTE)])
        self._post()
        return message

    def _add(self, piece: np.ndarray) -> np.ndarray | None:
        if self._partial is None:
            total = messages.total_bytes(piece)
            if total == piece.size:
                return piece.copy()
            self._partial = np.empty(total, np.uint8)
            self._filled = 0
        self._partial[self._filled : self._filled + piece.size] = piece
        self._filled += piece.size
        if self._filled < self._partial.size:
            return None
        message, self._partial = self._partial, None
        return message

    def has_word(self) -> bool:
        """Whether the peer of this channel, which is closed, has sent something that nobody took."""
        return bool(self._comm.Iprobe(self.peer, TAG))

    def abort(self, code: int) -> None:
        """End all ranks with exit status `code`, this one too."""
        self._comm.Abort(code)

    def close(self, linger: float = 0.0) -> None:
        """Take back the posted receive, and give what was sent up to `linger` seconds to go.

        A peer that hangs can hold up both. Then they are left to MPI, with their memory, and nobody waits.
        """
        if self._request is not None:
            self._request.Cancel()
        now = time.monotonic()
        while not self._settled() and time.monotonic() < now + max(linger, _CANCEL_SECONDS):
            if self._request is None and time.monotonic() >= now + linger:
                break
            time.sleep(1e-3)
        _left_to_mpi[:] = [channel for channel in (*_left_to_mpi, self) if not channel._settled()]

    def _settled(self) -> bool:
        if self._request is not None and self._request.Test():
            self._request = None
        return self.reap() and self._request is None


def receive(channels: list[Channel]) -> list[tuple[Channel, np.ndarray]]:
    """Return the whole messages that have come on any of `channels`. Never waits.

    The MPI library is asked once for all of them: where ranks outnumber cores, a call that finds nothing
    gives the core away.
    """
    from mpi4py import MPI

    arrived = []
    unfinished = True
    while unfinished:
        unfinished = False
        statuses = [channel._status for channel in channels]
        places = MPI.Request.Testsome([channel._request for channel in channels], statuses) or ()
        for place, status in zip(places, statuses, strict=False):
            channel = channels[place]
            message = channel._received(status)
            if message is not None:
                arrived.append((channel, message))
            unfinished = unfinished or channel._partial is not None
    return arrived


# Channels that were closed while MPI may still read or write their buffers.
_left_to_mpi: list[Channel] = []
