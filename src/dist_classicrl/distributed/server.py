"""The parameter server of asynchronous training.

It applies pushes, hands out leases and refreshes, and sleeps in between.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.distributed import messages
from dist_classicrl.distributed.failures import failure_text, raise_remote
from dist_classicrl.distributed.leases import LeaseBook
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.report import ProgressClock, Tally
from dist_classicrl.distributed.saving import Position, Saver
from dist_classicrl.distributed.stopping import Stop
from dist_classicrl.distributed.transport import Backoff, Channel, receive
from dist_classicrl.errors import ProtocolError, RankTimeoutError, RemoteRankError, TrainingStopped
from dist_classicrl.updates.local import PackedMap, Refresh
from dist_classicrl.updates.shared import SharedTable
from dist_classicrl.updates.snapshot import TableSnapshot

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
_SHORTEST_SLEEP = 5e-5
_LONGEST_SLEEP = 4e-3
_LONGEST_CALM_SLEEP = 2e-2
_END_SECONDS = 0.5
_HANGING_SECONDS = 0.5
_CALM_DUTY = 0.02
_BUSY_DUTY = 0.5
EPOCH = 1
LAST_PUSH = 8
"""The flag of a push after which its worker sends no other."""

_COPY_SECONDS = 2e-3
_LAST_PUSH_SECONDS = 2.0
_BYE_SECONDS = 1.0


def beat_seconds(timeout: float) -> float:
    """Return after how long a silence a rank says that it is still there."""
    return min(BEAT_SECONDS, timeout / 4.0)


def report_progress(clock: ProgressClock, seconds: float, channels: list[Channel]) -> None:
    """Call the `progress` callback if it is time, `seconds` after the beginning.

    Nothing is received while it runs, so that time counts as nobody's silence.
    """
    begin = time.monotonic()
    clock.tick(seconds)
    spent = time.monotonic() - begin
    for channel in channels:
        channel.last_heard += spent


def reply_message(applied: int, refresh: Refresh | None, lease: tuple[int, int, int]) -> np.ndarray:
    """Return a receipt for push `applied`, with a refresh and a lease if there are any.

    The refresh includes the push. A lease of 0, 0, 0 is none.
    """
    head = [EPOCH, applied, *lease]
    if refresh is None:
        return messages.encode(Kind.REPLY, np.array([*head, 0, 0, 0], np.int64))
    numbers = np.array([*head, 1 if refresh.entries is None else 2, refresh.since, refresh.version], np.int64)
    return messages.encode(Kind.REPLY, numbers, *refresh.parts)


@dataclass
class _Peer:
    """What the server knows of one worker."""

    channel: Channel
    version: int = -1
    quantum: int = 1
    interval_seconds: float = 0.0
    urgent: bool = True
    wants_refresh: bool = True
    starved: bool = True
    owes_reply: bool = True
    has_stopped: bool = False


class Server:
    """Serves one call of `train`.

    Parameters
    ----------
    channels : list of Channel
        To the workers.
    table : SharedTable
    leases : LeaseBook
    tally : Tally
    clock : ProgressClock
    timeout : float
        Seconds of a worker's silence after which the run ends with `RankTimeoutError`.
    saver : Saver, optional
        Where the run is saved.
    """

    def __init__(
        self,
        channels: list[Channel],
        table: SharedTable,
        leases: LeaseBook,
        tally: Tally,
        clock: ProgressClock,
        timeout: float,
        saver: Saver | None = None,
    ) -> None:
        self._channels = channels
        self._peers = {channel.peer: _Peer(channel) for channel in channels}
        self._table = table
        self._leases = leases
        self._tally = tally
        self._clock = clock
        self._timeout = timeout
        self._saver = saver
        self._snapshot = TableSnapshot(table.values, table.counts)
        self._begin = time.monotonic()
        self._beat = self._begin

    @property
    def seconds(self) -> float:
        """Seconds since serving began."""
        return time.monotonic() - self._begin

    @property
    def position(self) -> Position:
        """How far the run is, for a checkpoint of the table as it is now."""
        return Position(
            self._leases.start + self._leases.done,
            self._tally.to_dict(self.seconds),
            "async",
            version=self._table.version,
            applied={str(rank): sequence for rank, sequence in self._table.applied.items()},
        )

    def run(self) -> Stop | None:
        """Serve until all steps have been made, or until the run is to stop: return why, in that case.

        When it returns, all that the workers had learned is in the table, except what a worker held that did
        not answer within two seconds.

        Raises
        ------
        RemoteRankError
            If a worker failed.
        RankTimeoutError
            If one was silent for too long.
        CheckpointFencedError
            If another server has taken over the checkpoints.
        """
        self._begin = time.monotonic()
        for peer in self._peers.values():
            peer.channel.last_heard = self._begin
        while not self._leases.finished:
            woken = time.monotonic()
            # What each worker said up to here is received before anybody's silence is judged.
            for channel, message in receive(self._channels):
                self._take_in(channel.peer, message)
            for rank, peer in self._peers.items():
                if peer.owes_reply:
                    self._reply(rank, peer)
            self._keep_in_touch(woken)
            report_progress(self._clock, self.seconds, self._channels)
            if self._saver is not None:
                if (stop := self._saver.look()) is not None:
                    self._take_in_last_pushes()
                    return None if self._leases.finished else stop
                self._save(self._saver)
            if not self._leases.finished:
                self._sleep(time.monotonic() - woken)
        return None

    def _save(self, saver: Saver) -> None:
        """Begin a checkpoint if it is time, or copy some more of the table for the one that has begun."""
        snapshot = self._snapshot
        if not snapshot.copying:
            steps = self._leases.start + self._leases.done
            if not saver.is_due(steps):
                return
            saver.begin(steps)
            snapshot.begin()
            self._table.watch(snapshot)
        if snapshot.advance(_COPY_SECONDS):
            self._table.watch(None)
            saver.save(snapshot.values, snapshot.counts, self.position)

    def _take_in_last_pushes(self) -> None:
        """Ask the workers for what they have not pushed, and wait for it, but not for long."""
        self._table.watch(None)
        for channel in self._channels:
            channel.send(messages.encode(Kind.STOP))
        deadline = time.monotonic() + _LAST_PUSH_SECONDS
        backoff = Backoff()
        while not all(peer.has_stopped for peer in self._peers.values()) and time.monotonic() < deadline:
            arrived = receive(self._channels)
            for channel, message in arrived:
                self._take_in(channel.peer, message)
            if not arrived:
                backoff.wait()

    def _take_in(self, rank: int, message: np.ndarray) -> None:
        kind, parts = messages.decode(message)
        if kind is Kind.FAILED:
            raise_remote(self._peers[rank].channel, parts)
        if kind is Kind.PUSH:
            self._push(rank, self._peers[rank], message.size, parts)
        elif kind is Kind.STOP:
            take_in_stop(self._saver, parts)
        elif kind is not Kind.BEAT:
            raise ProtocolError(f"Worker {rank} sent {kind.name} where a push belongs.")

    def _push(self, rank: int, peer: _Peer, size: int, parts: list[np.ndarray]) -> None:
        numbers, reals = parts[0].tolist(), parts[1]
        sequence, flags, peer.quantum = numbers[1], numbers[2], numbers[3]
        peer.starved, peer.urgent, peer.wants_refresh = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        peer.has_stopped = bool(flags & LAST_PUSH)
        peer.interval_seconds = float(reals[3])
        packed = PackedMap.from_parts(parts[2:])
        self._table.apply(rank, sequence, packed)
        self._leases.report(rank, list(zip(numbers[5::2], numbers[6::2], strict=True)))
        tally = self._tally
        tally.steps = tally.earlier_steps + self._leases.done
        tally.pushes += 1
        tally.bytes_pushed += size
        tally.bytes_saved += numbers[4]
        tally.add_episodes(reals)
        tally.learning_seconds += float(reals[4])
        tally.worker_seconds += float(reals[5])
        peer.owes_reply = True

    def _reply(self, rank: int, peer: _Peer) -> None:
        lease = self._leases.grant(rank, peer.quantum, peer.interval_seconds)
        granted = (0, 0, 0) if lease is None else (lease.id, lease.start, lease.steps)
        refresh = None
        if peer.wants_refresh and peer.version < self._table.version:
            refresh = self._table.refresh(peer.version)
            peer.version = refresh.version
        self._send(peer, reply_message(self._table.applied.get(rank, 0), refresh, granted))
        peer.owes_reply = False
        peer.starved = peer.starved and lease is None

    def _send(self, peer: _Peer, message: np.ndarray) -> None:
        peer.channel.send(message)
        self._tally.bytes_pulled += message.size

    def _keep_in_touch(self, now: float) -> None:
        if now - self._beat > beat_seconds(self._timeout):
            self._beat = now
            for peer in self._peers.values():
                self._send(peer, messages.encode(Kind.BEAT))
        for rank, peer in self._peers.items():
            if now - peer.channel.last_heard > self._timeout:
                raise RankTimeoutError(
                    f"Worker rank {rank} gave no sign of life for {self._timeout:g} s. If one step of its "
                    "environment can take that long, raise timeout=; else look for what hangs there."
                )

    def _sleep(self, worked: float) -> None:
        """Sleep for the shortest interval between pushes, half of it in a hurry."""
        peers = self._peers.values()
        hurry = any(peer.urgent or peer.starved for peer in peers)
        duty = _BUSY_DUTY if hurry else _CALM_DUTY
        wanted = min((peer.interval_seconds for peer in peers if peer.interval_seconds), default=0.0)
        if hurry:
            wanted *= 0.5
        # Towards the end leases are short, and who waits for one must not wait long.
        short = self._leases.seconds_left < _END_SECONDS or self._snapshot.copying
        longest = _LONGEST_SLEEP if short else _LONGEST_CALM_SLEEP
        time.sleep(max(_SHORTEST_SLEEP, min(max(wanted, worked * (1.0 / duty - 1.0)), longest)))


def finish(channels: list[Channel], table: SharedTable, result: dict[str, Any], timeout: float) -> None:
    """Send the whole table and `result` on all `channels`, and wait until each peer has said goodbye."""
    whole = table.refresh(-1)
    head = np.array([EPOCH, whole.version], np.int64)
    message = messages.encode(Kind.DONE, head, whole.values, whole.counts, messages.text(result))
    late = _take_leave(channels, message, timeout)
    if late:
        raise RankTimeoutError(
            f"Rank {late[0].peer} did not take the final table within {timeout:g} s. If that can take "
            "longer, raise timeout=; else look for what hangs there."
        )


def tell_stopped(channels: list[Channel], stop: Stop, error: TrainingStopped) -> None:
    """Send word on all `channels` that the run has stopped, with what `error` says of it.

    A worker that is in a long step of its environment, or hangs, does not hear it. It is not waited for for
    long: when this process ends, it ends the job, since all that can be saved is on disk.
    """
    text = messages.text({"stop": stop.to_dict(), "checkpoint": error.checkpoint, "steps": error.steps})
    try:
        late = _take_leave(channels, messages.encode(Kind.STOPPED, text), _BYE_SECONDS)
    except RemoteRankError as trouble:
        logger.warning("A rank did not stop in order: %s", trouble)
        return
    if late:
        logger.warning(
            "Rank %s did not stop within %g s: it is in a long step of its environment, or hangs. What it "
            "had not pushed is not in the checkpoint, and it is ended with this process.",
            ", ".join(str(channel.peer) for channel in late),
            _LAST_PUSH_SECONDS + _BYE_SECONDS,
        )
        atexit.register(_end_job, late, stop.code)


def _end_job(late: list[Channel], code: int) -> None:
    """End the job with `code` unless the peers of these channels have said goodbye meanwhile."""
    deadline = time.monotonic() + _BYE_SECONDS
    while any(not channel.has_word() for channel in late):
        if time.monotonic() > deadline:
            sys.stdout.flush()
            sys.stderr.flush()
            late[0].abort(code)
        time.sleep(1e-2)


def take_in_stop(saver: Saver | None, parts: list[np.ndarray]) -> None:
    """Take in that a worker was asked to stop, where the run can: it is saved."""
    if saver is not None:
        saver.ask_to_stop(Stop.from_dict(messages.from_text(parts[0])))


def keep_alive(channels: list[Channel], timeout: float) -> None:
    """Say that this rank is there to those to whom it was silent for long, and let go what was sent."""
    now = time.monotonic()
    for channel in channels:
        if now - channel.last_sent > beat_seconds(timeout):
            channel.send(messages.encode(Kind.BEAT))
        channel.reap()


def _take_leave(channels: list[Channel], message: np.ndarray, seconds: float) -> list[Channel]:
    """Send a last `message` on all `channels`, and wait until each peer has said goodbye.

    Return those that have not done so within `seconds`.
    """
    for channel in channels:
        channel.send(message)
    waiting = list(channels)
    deadline = time.monotonic() + seconds
    backoff = Backoff()
    while True:
        waiting = [channel for channel in waiting if not _said_goodbye(channel)]
        if not waiting or time.monotonic() > deadline:
            return waiting
        backoff.wait()


def _said_goodbye(channel: Channel) -> bool:
    while (answer := channel.poll()) is not None:
        kind, parts = messages.decode(answer)
        if kind is Kind.FAILED:
            raise_remote(channel, parts)
        if kind is Kind.BYE:
            return True
    channel.reap()
    return False


def fail(channels: list[Channel], error: BaseException, rank: int, timeout: float) -> None:
    """Send word of this rank's `error` on `channels`, without waiting for anybody for long.

    What comes meanwhile is dropped: a peer whose own messages cannot go might never look for this one. A peer
    that has failed itself needs no word, and may have left. One that was silent for `timeout` seconds hangs.
    """
    message = messages.encode(Kind.FAILED, failure_text(error, rank))
    waiting = [channel for channel in channels if not channel.peer_failed]
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
            and now - begin < (BEAT_SECONDS if now - channel.last_heard < timeout else _HANGING_SECONDS)
        ]
        time.sleep(1e-3)


def wait_for_rescue(channel: Channel, seconds: float) -> None:
    """Wait until the server, which knows of an error of this rank, says that it has saved what it had.

    Who raised the error is about to end the job.
    """
    deadline = time.monotonic() + seconds
    while not channel.peer_failed and time.monotonic() < deadline:
        _drop_messages(channel)
        time.sleep(1e-3)


def tell_rescued(channels: list[Channel]) -> None:
    """Say to the ranks that have failed that nothing is left to wait for."""
    for channel in channels:
        if channel.peer_failed:
            channel.send(messages.encode(Kind.BYE))


_LAST_KINDS = (Kind.FAILED, Kind.BYE, Kind.DONE, Kind.STOPPED)


def _drop_messages(channel: Channel) -> None:
    try:
        while (message := channel.poll()) is not None:
            kind, _ = messages.decode(message)
            channel.peer_failed = channel.peer_failed or kind in _LAST_KINDS
    except ProtocolError:
        channel.peer_failed = True
