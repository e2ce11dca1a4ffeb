"""Messages between ranks over MPI point-to-point.

They are sent in pieces with Isend, and received through one posted Irecv per peer, whose error is MPI's word
that the peer has died.
"""

from __future__ import annotations

import ctypes
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.errors import ProtocolError, RankTimeoutError
from dist_classicrl.process import exit as process_exit

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 18
SMALL_PIECE_BYTES = 1 << 12
_FIRST_SLEEP = 2e-5
_LONGEST_SLEEP = 2e-3
_EXPECTED_SHARE = 0.01
_CANCEL_SECONDS = 1.0  # a receive is cancelled at once unless the peer stopped in the middle of sending
_LEAST_TAG_LIMIT = 32767
_INTERCOMM_TAG = 1
_PR_SET_TIMERSLACK = 29  # of Linux


class Backoff:
    """Sleeps that double from 20 microseconds to 2 milliseconds while nothing happens.

    The first so many waits are `spins`, which do not sleep.
    """

    def __init__(self, sleep: Callable[[float], None] | None = None, spins: int = 0) -> None:
        self._sleep = time.sleep if sleep is None else sleep
        self._spins = spins
        self._spun, self._seconds, self._slept = 0, _FIRST_SLEEP, 0.0
        self._expected = math.inf

    def expect(self, seconds: float) -> None:
        """Sleep for at most a hundredth of the `seconds` that the wait will take, or has taken, from now on.

        Without that, sleeps that double end a wait up to twice as late. And a message that is not short comes
        in steps: MPI has to be asked at both ends for each, so a sleep in between holds up both.
        """
        self._expected = seconds

    def wait(self) -> None:
        """Sleep once, or spin."""
        if self._spun < self._spins:
            self._spun += 1
            return
        most = max(_FIRST_SLEEP, _EXPECTED_SHARE * max(self._expected, self._slept))
        seconds = min(self._seconds, most)
        self._sleep(seconds)
        self._slept += seconds
        self._seconds = min(2.0 * seconds, _LONGEST_SLEEP)

    def reset(self) -> None:
        """Start over: something happened."""
        self._spun, self._seconds, self._slept = 0, _FIRST_SLEEP, 0.0


def wait_until(ready: Callable[[], bool], seconds: float, what: str, waited: float = 0.0) -> None:
    """Wait politely until `ready()`; after `seconds` raise a `RankTimeoutError`, which says for `what`.

    It says for how long, too, with the seconds that were `waited` before.
    """
    backoff = Backoff()
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise RankTimeoutError(
                f"Waited {waited + seconds:g} s for {what}. If that can take longer, raise timeout=; else "
                "look for a rank that hangs."
            )
        backoff.wait()


def _sleep_as_asked() -> None:
    """Let this thread, and those that it starts, be woken when they asked for it.

    Linux may take 50 microseconds longer, so as to wake several at a time: longer than the shortest sleep.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Wire:
    """What one process sees of the others: who it is, what time it is, and channels to its peers.

    Everything that the protocol does goes through this class and `Channel`, so that it can be run over a
    simulated network just as well. The communicator is used by this library alone.
    """

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.has_threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        _sleep_as_asked()
        limit = comm.Get_attr(MPI.TAG_UB)
        self.tag_limit = _LEAST_TAG_LIMIT if limit is None else int(limit)

    def now(self) -> float:
        """Return the time in seconds, from an arbitrary origin, never going back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        time.sleep(seconds)

    def channel(self, peer: int, tag: int, piece_bytes: int = PIECE_BYTES) -> Channel:
        """Return a new channel to rank `peer`, which has to open one with the same tag and piece size."""
        return Channel(self._comm, peer, tag, piece_bytes)

    def channel_over(self, intercomm: Any) -> Channel:
        """Return a new channel to the one process at the other end of an intercommunicator."""
        return Channel(intercomm, 0, _INTERCOMM_TAG)

    def receive(self, channels: Sequence[Channel]) -> list[tuple[Channel, np.ndarray]]:
        """Return the whole messages that have come on any of `channels`. Never waits.

        The MPI library is asked once for all of them: where ranks outnumber cores, a call that finds nothing
        gives the core away. Channels whose peers have died are found `lost`.
        """
        from mpi4py import MPI

        arrived = []
        for channel in channels:
            if channel._is_inter:
                while (message := channel.poll()) is not None:
                    arrived.append((channel, message))
        unfinished = True
        while unfinished:
            unfinished = False
            # Once each: another thread, which sends, may find a channel lost, which then has no request.
            pairs = [(channel, channel._request) for channel in channels if not channel._is_inter]
            posted = [channel for channel, request in pairs if request is not None]
            requests = [request for _, request in pairs if request is not None]
            statuses = [channel._status for channel in posted]
            try:
                places = MPI.Request.Testsome(requests, statuses) or ()
                ready = [(posted[place], status) for place, status in zip(places, statuses, strict=False)]
            except MPI.Exception as error:
                ready = _sort_out(posted, statuses, error)
                unfinished = True
            for channel, status in ready:
                message = channel._received(status)
                if message is not None:
                    arrived.append((channel, message))
                unfinished = unfinished or channel.unfinished is not None
        return arrived

    def abort(self, code: int) -> None:
        """End all ranks with exit status `code`, this one too."""
        process_exit.limit_seconds()  # where mpirun cannot be reached, MPI_Abort never returns
        self._comm.Abort(code)


@dataclass
class Unfinished:
    """A message of which some pieces have come."""

    message: np.ndarray
    filled: int = 0  # bytes


class Channel:
    """Messages to and from one rank of `comm`, or of the remote group of an intercommunicator, in order.

    Messages of different tags have nothing to do with each other. One that is longer than `piece_bytes` goes
    in pieces of this size, so that the posted buffer stays small.
    """

    def __init__(self, comm: Any, peer: int, tag: int, piece_bytes: int = PIECE_BYTES) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._is_inter = comm.Is_inter()  # its peers' numbers are not those of the others
        self.peer = peer
        #: MPI's word that the peer has died: nothing comes from it any more, what is sent to it is dropped.
        self.lost: str | None = None
        self.peer_failed = False  # as it said itself: it takes nothing any more
        self.late: np.ndarray | None = None  # a message that came while the channel was closed
        #: What has come of the next one. The next channel of the same tag needs it: its rest is on the way.
        self.unfinished: Unfinished | None = None
        self._tag = tag
        self._piece = piece_bytes
        self._buffer = np.empty(piece_bytes, np.uint8)
        self._status = MPI.Status()
        self._sending: deque[tuple[list[Any], np.ndarray]] = deque()
        self._guard = threading.Lock()  # a thread of this process may say that it is there, between messages
        self.last_heard = self.last_sent = time.monotonic()  # of the last message
        self._request: Any = None
        self._post()

    def _post(self) -> None:
        _open.add(self)
        try:
            self._request = self._comm.Irecv([self._buffer, self._mpi.BYTE], self.peer, self._tag)
        except self._mpi.Exception as error:
            self._lose(error)

    def _lose(self, error: Any) -> None:
        """Take note that MPI gave `error` for something that this peer has part in."""
        if self._request is not None:
            if self._request != self._mpi.REQUEST_NULL:  # it is not over
                leave_to_mpi(self._request, self._buffer)
            self._request = None
        if self.lost is None:
            self.lost = error if isinstance(error, str) else error.Get_error_string()
            logger.debug("Rank %d is lost: %s", self.peer, self.lost)

    def send(self, message: np.ndarray) -> None:
        """Start to send; the buffer is kept until it has gone."""
        with self._guard:
            self._reap()
            if self.lost is not None:
                return
            requests: list[Any] = []
            self._sending.append((requests, message))  # stays if only some of its pieces can be sent
            try:
                for start in range(0, message.size, self._piece):
                    piece = [message[start : start + self._piece], self._mpi.BYTE]
                    requests.append(self._comm.Isend(piece, self.peer, self._tag))
            except self._mpi.Exception as error:
                self._lose(error)
                return
            self.last_sent = time.monotonic()

    def reap(self) -> bool:
        """Let go of what has been sent. Return whether nothing is left."""
        with self._guard:
            return self._reap()

    def _reap(self) -> bool:
        try:
            while self._sending and self._mpi.Request.Testall(self._sending[0][0]):
                self._sending.popleft()
        except self._mpi.Exception as error:
            self._lose(error)
        if self.lost is not None:
            _left_to_mpi.extend(message for _, message in self._sending)
            self._sending.clear()
        return not self._sending

    def poll(self) -> np.ndarray | None:
        """Return the next whole message, or None if none is there yet. Never waits."""
        if self.late is not None and self._request is not None:  # it is open again
            late, self.late = self.late, None
            return late
        try:
            while self._request is not None and self._request.Test(self._status):
                message = self._received(self._status)
                if message is not None:
                    return message
        except self._mpi.Exception as error:
            self._lose(error)
        return None

    def _received(self, status: Any) -> np.ndarray | None:
        """Take the piece that has come, and post the next receive. Return the message that it completes."""
        self.last_heard = time.monotonic()
        message = self._add(self._buffer[: status.Get_count(self._mpi.BYTE)])
        self._post()
        return message

    def _add(self, piece: np.ndarray) -> np.ndarray | None:
        begun = self.unfinished
        left = envelope.total_bytes(piece) if begun is None else begun.message.size - begun.filled
        if piece.size != min(self._piece, left):
            raise ProtocolError(
                f"A piece of {piece.size} bytes came from rank {self.peer}, where {left} are left of the "
                "message. Do all ranks run the same version?"
            )
        if begun is None:
            if piece.size == left:
                return piece.copy()
            try:
                begun = self.unfinished = Unfinished(np.empty(left, np.uint8))
            except (MemoryError, ValueError) as error:
                raise ProtocolError(
                    f"A message came from rank {self.peer} that claims to have {left} bytes, for which there "
                    "is no memory. Do all ranks run the same version?"
                ) from error
        begun.message[begun.filled : begun.filled + piece.size] = piece
        begun.filled += piece.size
        if begun.filled < begun.message.size:
            return None
        self.unfinished = None
        return begun.message

    def reopen(self) -> None:
        """Take messages again, after `close`."""
        if self._request is None and self.lost is None:
            self._post()

    def close(self, linger: float = 0.0) -> bool:
        """Take back the posted receive, and give what was sent up to `linger` seconds to go.

        A peer that hangs can hold up both. Then they are left to MPI, with their memory, and nobody waits.
        Return whether nothing was left, nor came meanwhile: another channel may have the tag.
        """
        try:
            if self._request is not None:
                self._request.Cancel()
        except self._mpi.Exception as error:
            self._lose(error)
        now = time.monotonic()
        while not self._settled() and time.monotonic() < now + max(linger, _CANCEL_SECONDS):
            if self._request is None and time.monotonic() >= now + linger:
                break
            time.sleep(1e-3)
        if is_settled := self._settled():
            _open.discard(self)
        return is_settled and self.late is None and self.unfinished is None

    def _settled(self) -> bool:
        try:
            if self._request is not None and self._request.Test(self._status):
                self._request = None
                if not self._status.Is_cancelled():
                    self.late = self._add(self._buffer[: self._status.Get_count(self._mpi.BYTE)])
        except self._mpi.Exception as error:
            self._lose(error)
        return self.reap() and self._request is None


def _sort_out(posted: list[Channel], statuses: list[Any], error: Any) -> list[tuple[Channel, Any]]:
    """Return which receives have completed, with their status, where asking for them gave an error for some.

    A receive that is over has no request any more, and its status, which may stand in any place, says from
    whom it is and whether it failed.
    """
    from mpi4py import MPI

    ready = []
    over = {channel.peer: channel for channel in posted if channel._request == MPI.REQUEST_NULL}
    for status in statuses:
        channel = over.pop(status.Get_source(), None)
        if channel is None:
            continue
        if status.Get_error() == MPI.SUCCESS:
            ready.append((channel, status))
        else:
            channel._lose(MPI.Get_error_string(status.Get_error()))
    for channel in over.values():
        channel._lose(error)
    if not ready and not any(channel.lost for channel in posted):
        # An error that names nobody: each receive has to be asked by itself.
        for channel in posted:
            try:
                if channel._request is not None and channel._request.Test(channel._status):
                    ready.append((channel, channel._status))
            except MPI.Exception as own:
                channel._lose(own)
    return ready


def leave_to_mpi(*in_use: Any) -> None:
    """Keep for good what belongs to operations that were given up."""
    _left_to_mpi.append(in_use)


# What MPI may still read or write must live: channels, unless they were closed in time, messages to the
# dead, and what belongs to operations that were given up.
_open: set[Channel] = set()
_left_to_mpi: list[Any] = []
# Also after Python's end, when MPI is finalized: what it sends from memory that was freed is no message.
for _kept in (_open, _left_to_mpi):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
