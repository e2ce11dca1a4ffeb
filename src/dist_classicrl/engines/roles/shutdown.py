"""How ranks part before the end of the steps: a stop, an error."""

from __future__ import annotations

import atexit
import logging
import sys
import time

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import Bye, decode, encode
from dist_classicrl.comm.remote_errors import Failed, raise_remote
from dist_classicrl.comm.transport import SMALL_PIECE_BYTES, Backoff, Channel, Wire
from dist_classicrl.engines.roles.messages import Stopped
from dist_classicrl.errors import ProtocolError, RemoteRankError, TrainingStopped
from dist_classicrl.process.stop import Stop

logger = logging.getLogger(__name__)

LAST_PUSH_SECONDS = 2.0
"""How long a stop waits for what the workers have not pushed."""

_PATIENCE_SECONDS = 5.0
_HANGING_SECONDS = 0.5
_BYE_SECONDS = 1.0
_ENDED_TAG = 2


def tell_stopped(wire: Wire, channels: list[Channel], error: TrainingStopped, waited: float) -> None:
    """Send word on all `channels` that the run has stopped, with what `error` says of it.

    A worker that is in a long step of its environment, or hangs, does not hear it. It is not waited for for
    long, after the `waited` seconds that its last push had: when this process ends, it ends the job, since
    all that can be saved is on disk.
    """
    stop = Stop(int(error.code or 0), error.reason)
    stopped = encode(Stopped(stop, error.checkpoint, error.steps))
    if late := _take_leave(channels, stopped, _BYE_SECONDS):
        logger.warning(
            "Rank %s did not stop within %g s: it is in a long step of its environment, or hangs. What it "
            "had not pushed is not in the checkpoint, and it is ended with this process.",
            ", ".join(str(channel.peer) for channel in late),
            waited + _BYE_SECONDS,
        )
        atexit.register(_end_job, wire, late, stop.code)


def _end_job(wire: Wire, late: list[Channel], code: int) -> None:
    """End the job with `code` unless the peers of these channels have said goodbye meanwhile."""
    deadline = time.monotonic() + _BYE_SECONDS
    for channel in late:
        channel.reopen()
    while late := [channel for channel in late if not _has_ended(channel)]:
        if time.monotonic() > deadline:
            sys.stdout.flush()
            sys.stderr.flush()
            wire.abort(code)
        time.sleep(1e-2)


def _has_ended(channel: Channel) -> bool:
    """Whether the peer said goodbye, or died, or failed, of which a warning is logged."""
    try:
        return _said_goodbye(channel)
    except RemoteRankError as trouble:
        logger.warning("A rank did not stop in order: %s", trouble)
        return True


def say_ended(wire: Wire, head: int) -> None:
    """Tell rank `head`, which ends the job because some rank hangs, that this one has ended its script."""
    channel = wire.channel(head, _ENDED_TAG, SMALL_PIECE_BYTES)
    channel.send(encode(Bye()))
    channel.close(_BYE_SECONDS)


def await_ends(wire: Wire, ranks: list[int], seconds: float) -> None:
    """Wait until `ranks` have ended their scripts, or have died, but no longer than `seconds`."""
    waiting = [wire.channel(rank, _ENDED_TAG, SMALL_PIECE_BYTES) for rank in ranks]
    deadline = wire.now() + seconds
    backoff = Backoff(wire.sleep)
    while waiting and wire.now() < deadline:
        waiting = [channel for channel in waiting if channel.poll() is None and channel.lost is None]
        backoff.wait()


def _take_leave(channels: list[Channel], message: np.ndarray, seconds: float) -> list[Channel]:
    """Send a last `message` on all `channels`, and wait until each peer has said goodbye, or failed.

    Return those that have not done so within `seconds`.
    """
    for channel in channels:
        channel.send(message)
    waiting = list(channels)
    deadline = time.monotonic() + seconds
    backoff = Backoff()
    while True:
        waiting = [channel for channel in waiting if not _has_ended(channel)]
        if not waiting or time.monotonic() > deadline:
            return waiting
        backoff.wait()


def _said_goodbye(channel: Channel) -> bool:
    while (answer := channel.poll()) is not None:
        match decode(answer):
            case Failed() as failed:
                raise_remote(channel, failed)
            case Bye():
                return True
    channel.reap()
    return channel.lost is not None


def fail(channels: list[Channel], error: BaseException, rank: int, timeout: float) -> None:
    """Send word of this rank's `error` on `channels`, without waiting for anybody for long.

    What comes meanwhile is dropped: a peer whose own messages cannot go might never look for this one. A peer
    that has failed itself needs no word, and may have left. One that was silent for `timeout` seconds hangs.
    """
    message = encode(Failed.of(error, rank))
    waiting = [channel for channel in channels if not channel.peer_failed and channel.lost is None]
    for channel in waiting:
        channel.send(message)
    begin = time.monotonic()
    while waiting:
        for channel in waiting:
            _drop_messages(channel)
        now = time.monotonic()
        waiting = [
            channel
            for channel in waiting
            if not channel.reap()
            and not channel.peer_failed
            and channel.lost is None
            and now - begin < (_PATIENCE_SECONDS if now - channel.last_heard < timeout else _HANGING_SECONDS)
        ]
        time.sleep(1e-3)


def wait_for_rescue(channel: Channel, seconds: float) -> None:
    """Wait until the server, which knows of an error of this rank, says that it has saved what it had.

    Who raised the error is about to end the job.
    """
    deadline = time.monotonic() + seconds
    while not channel.peer_failed and channel.lost is None and time.monotonic() < deadline:
        _drop_messages(channel)
        time.sleep(1e-3)


def tell_rescued(channels: list[Channel]) -> None:
    """Say to the ranks that have failed that nothing is left to wait for."""
    for channel in channels:
        if channel.peer_failed:
            channel.send(encode(Bye()))


_LAST_KINDS = (Kind.FAILED, Kind.BYE, Kind.DONE, Kind.STOPPED)


def _drop_messages(channel: Channel) -> None:
    try:
        while (message := channel.poll()) is not None:
            kind, _ = envelope.decode(message)
            channel.peer_failed = channel.peer_failed or kind in _LAST_KINDS
    except ProtocolError:
        channel.peer_failed = True
