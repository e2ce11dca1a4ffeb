"""A failure detector that works by itself, over any communicator.

Two layers. What MPI says is taken where it says something: with ULFM (`mpirun --with-ft ulfm`), a receive
that is posted for a rank fails when the rank's process dies. Everywhere else, and for ranks that hang, are
stopped or are cut off, there are beats: who is silent for longer than its own jitter explains is suspected,
and who is silent for a fixed time has failed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dist_classicrl.checks import WholeNumber, checked_positive, checked_whole
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.comm.transport import Channel, Wire
from dist_classicrl.errors import SettingsError
from dist_classicrl.membership.phi_accrual import THRESHOLD, Arrivals
from dist_classicrl.mpi_tools.links import Link, close, receive
from dist_classicrl.mpi_tools.part import Part

logger = logging.getLogger(__name__)

State = Literal["healthy", "suspected", "failed", "left"]
"""What a rank is, as far as another one can tell."""

_INTERVALS = 3.0
_TAG = 1
_MESSAGE_BYTES = 256
_CLOSE_SECONDS = 1.0


@message(Kind.ALIVE)
@dataclass(frozen=True)
class _Alive:
    """A beat."""

    progress: int | None


class _Peer(Link):
    """What is known of one other rank."""

    most_untaken = 2

    def __init__(self, channel: Channel, arrivals: Arrivals) -> None:
        super().__init__(channel)
        self.arrivals = arrivals
        self.state: State = "healthy"
        self.reason = ""
        self.progress: int | None = None
        self.has_beaten = False  # since it was last judged


class FailureDetector(Part):
    """Tells which ranks of a communicator are alive.

    Every rank calls `send_heartbeat` in its main loop, and `check_node_health` where it wants to know. No
    method waits for another rank, none needs a thread, and a rank that does not listen holds up nobody.

    A rank is ``"suspected"`` when its silence is no longer explained by how regularly it was heard so far
    (phi-accrual), and ``"failed"`` after `heartbeat_timeout` seconds of silence, or at once where MPI reports
    that its process has died. If a rank that was silent is heard again, it is ``"healthy"`` as before; one
    that MPI reported dead stays ``"failed"``. A rank that closed its detector has ``"left"``.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Its ranks watch each other; those of an intercommunicator watch the other group. The detector sends
        over a duplicate, so that nothing it sends can be received by others. **Every rank of the communicator
        has to construct the detector**, at the same point of the program and with the same settings.
    heartbeat_interval : float, default=30
        Seconds between two beats.
    heartbeat_timeout : float, optional
        Seconds of silence after which a rank has failed; three intervals if left out.
    on_failure, on_suspect, on_recovery : callable, optional
        Called with the rank, from `check_node_health`, each time that a rank comes to be failed or suspected,
        and when one that was either is heard again. A rank that dies without being suspected before is only
        reported as failed. If a callback raises, the others are called by the next check.
    threshold : float, default=8.0
        The phi at which a rank is suspected. Larger is more patient; at 8 a rank that is as regular as a
        clock is suspected after 2.4 intervals.
    timeout : float, default=60
        Seconds that the construction waits for the other ranks to construct theirs.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.
    RankTimeoutError, RankLostError
        If not every rank constructs its detector within `timeout`, or one has died.

    Notes
    -----
    Time in which this rank itself did not call any method is counted as nobody's silence beyond one interval.
    So call either method at least once per interval; a rank that checks less often finds out later.

    By `close` a rank takes leave of the others, which then do not take its silence for a failure. It waits up
    to a second for ranks that are healthy to close theirs, too. After it the methods send nothing, and say
    what was known last.

    How many beats a rank has ahead of one that does not take them is limited to two, whatever time passes.

    A thread of its own may call `send_heartbeat`, so that a long step of the main loop does not look like a
    failure. Let it pass what the main loop has done as `progress`: otherwise a main loop that hangs looks
    like life. All other methods belong to one thread.

    Examples
    --------
    A rank that is alone has nobody to lose:

    >>> from mpi4py import MPI
    >>> from dist_classicrl import FailureDetector
    >>> with FailureDetector(MPI.COMM_SELF, heartbeat_interval=5) as detector:
    ...     for step in range(1000):
    ...         _ = detector.send_heartbeat(progress=step)
    ...         health = detector.check_node_health()
    >>> health
    {0: 'healthy'}
    >>> detector.failed_nodes
    frozenset()

    Several ranks, told of what happens while they work::

        with FailureDetector(MPI.COMM_WORLD, heartbeat_interval=5, on_failure=print) as detector:
            while work:
                work.pop().run()
                detector.send_heartbeat()
                detector.check_node_health()
    """

    def __init__(
        self,
        comm: Any,
        heartbeat_interval: float = 30.0,
        heartbeat_timeout: float | None = None,
        on_failure: Callable[[int], Any] | None = None,
        on_suspect: Callable[[int], Any] | None = None,
        on_recovery: Callable[[int], Any] | None = None,
        *,
        threshold: float = THRESHOLD,
        timeout: float = 60.0,
    ) -> None:
        self._interval = checked_positive("heartbeat_interval", heartbeat_interval)
        self._limit = _INTERVALS * self._interval
        if heartbeat_timeout is not None:
            self._limit = checked_positive("heartbeat_timeout", heartbeat_timeout)
        if self._limit <= self._interval:
            raise SettingsError(
                f"heartbeat_timeout must be longer than heartbeat_interval ({self._interval:g} s), got "
                f"{heartbeat_timeout!r}. Leave it out for three intervals."
            )
        self._threshold = checked_positive("threshold", threshold)
        self._callbacks = {"failed": on_failure, "suspected": on_suspect, "healthy": on_recovery}
        for name, callback in zip(
            ("on_failure", "on_suspect", "on_recovery"), self._callbacks.values(), strict=True
        ):
            if callback is not None and not callable(callback):
                raise SettingsError(
                    f"{name} must be a function that takes a rank, or None, got {callback!r}."
                )
        super().__init__(comm, timeout, between_groups=True)
        self._wire = Wire(self._comm)
        is_inter = self._comm.Is_inter()
        self._own_rank = None if is_inter else self._wire.rank
        now = self._wire.now()
        self._peers = {
            rank: _Peer(self._wire.channel(rank, _TAG, _MESSAGE_BYTES), self._arrivals(now))
            for rank in range(self._comm.Get_remote_size() if is_inter else self._wire.size)
            if rank != self._own_rank
        }
        self._guard = threading.RLock()
        self._news: deque[tuple[State, int]] = deque()
        self._next_beat = now
        self._listened = now

    def send_heartbeat(self, progress: int | None = None) -> bool:
        """Tell all other ranks that this one is alive, if an interval has passed since it last did.

        Parameters
        ----------
        progress : int, optional
            How much this rank has done, at least 0 and below 2**63; the others find it in their `progress`.

        Returns
        -------
        bool
            Whether a beat was due. Call it as often as you like.

        Raises
        ------
        SettingsError
            If `progress` is not what is described here.
        """
        if progress is not None:
            progress = WholeNumber(0, "None", bits=63)("progress", progress)
        with self._guard:
            now = self._wire.now()
            if self._is_closed or now < self._next_beat:
                return False
            self._next_beat = now + self._interval
            self._listen()
            for peer in self._present():
                if peer.has_room:
                    peer.send(_Alive(progress))
        return True

    def check_node_health(self) -> dict[int, State]:
        """Take in what has come, and call the callbacks for what is new.

        Returns
        -------
        dict of int to str
            By rank ``"healthy"``, ``"suspected"``, ``"failed"`` or ``"left"``. This rank itself, which is one
            of them except in an intercommunicator, is healthy.
        """
        with self._guard:
            if not self._is_closed:
                self._listen()
                for peer in self._present():
                    self._judge(peer, self._listened)
        while self._news:
            state, rank = self._news.popleft()
            callback = self._callbacks[state]
            if callback is not None:
                callback(rank)
        states: dict[int, State] = {rank: peer.state for rank, peer in self._peers.items()}
        if self._own_rank is not None:
            states[self._own_rank] = "healthy"
        return dict(sorted(states.items()))

    @property
    def failed_nodes(self) -> frozenset[int]:
        """Ranks that had failed when `check_node_health` was last called."""
        return self._those("failed")

    @property
    def suspected_nodes(self) -> frozenset[int]:
        """Ranks that were suspected when `check_node_health` was last called; not those that have failed."""
        return self._those("suspected")

    @property
    def progress(self) -> dict[int, int]:
        """The last `progress` of each other rank that gave one."""
        return {rank: peer.progress for rank, peer in self._peers.items() if peer.progress is not None}

    def reason(self, rank: int) -> str:
        """Return why `rank` is suspected, has failed or has left; empty for one that is healthy.

        SettingsError if there is no such rank.
        """
        rank = checked_whole("rank", rank, 0)
        if rank == self._own_rank:
            return ""
        if rank not in self._peers:
            most = max([*self._peers, self._own_rank or 0])
            raise SettingsError(f"rank must be one of 0 to {most}, got {rank}.")
        return self._peers[rank].reason

    def _leave(self) -> None:
        with self._guard:
            for peer in self._peers.values():
                peer.say_goodbye()
            deadline = self._wire.now() + _CLOSE_SECONDS
            self._listen()
            while self._are_awaited() and self._wire.now() < deadline:
                self._wire.sleep(1e-3)
                self._listen()
            close(self._wire, self._comm, list(self._peers.values()))

    def _arrivals(self, now: float) -> Arrivals:
        return Arrivals(self._interval, now=now)

    def _present(self) -> list[_Peer]:
        return [peer for peer in self._peers.values() if peer.state != "left"]

    def _are_awaited(self) -> bool:
        return any(peer.state == "healthy" and peer.is_present for peer in self._peers.values())

    def _those(self, state: State) -> frozenset[int]:
        return frozenset(rank for rank, peer in self._peers.items() if peer.state == state)

    def _listen(self) -> None:
        """Take in all that has come, and tell who sent it that it was taken."""
        now = self._wire.now()
        unheard = now - self._listened - self._interval
        self._listened = now
        present = self._present()
        if unheard > 0.0:
            for peer in present:
                peer.arrivals.excuse(unheard)
        for peer, alive in receive(self._wire, present):
            peer.has_beaten = True
            peer.arrivals.heard(now)
            if alive.progress is not None:
                peer.progress = alive.progress
        for peer in present:
            if peer.has_left:
                peer.state, peer.reason = "left", "it has closed its detector"
                logger.debug("Rank %d has closed its failure detector.", peer.rank)

    def _judge(self, peer: _Peer, now: float) -> None:
        """Bring a peer's state up to date."""
        if peer.channel.lost is not None:
            self._enter(peer, "failed", f"MPI reports that it has died: {peer.channel.lost}")
            return
        if peer.has_beaten:
            peer.has_beaten = False
            if peer.state == "failed":
                # So long a silence would make it too patient.
                peer.arrivals = self._arrivals(now)
            self._enter(peer, "healthy", "")
        silence = peer.arrivals.silence(now)
        if silence >= self._limit:
            self._enter(peer, "failed", f"it was silent for {silence:.3g} s")
        elif peer.arrivals.is_suspect(now, self._threshold):
            self._enter(peer, "suspected", f"it was silent for {silence:.3g} s, longer than usual")

    def _enter(self, peer: _Peer, state: State, reason: str) -> None:
        is_new = peer.state != state
        peer.state, peer.reason = state, reason
        if is_new:
            self._news.append((state, peer.rank))
            if state == "healthy":
                logger.warning("Rank %d is heard again.", peer.rank)
            else:
                shown = "has failed" if state == "failed" else "is suspected to have failed"
                logger.warning("Rank %d %s: %s.", peer.rank, shown, reason)
