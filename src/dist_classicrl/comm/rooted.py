"""Steps that all ranks of a communicator take together, led by rank 0, in which every wait has a deadline.

Point-to-point messages between rank 0 and each other rank; nobody waits for a rank that MPI reports dead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.parts import from_parts
from dist_classicrl.comm.remote_errors import Failed
from dist_classicrl.comm.transport import Backoff, Wire
from dist_classicrl.errors import RankLostError, RankTimeoutError

_TAG = 1
_PIECE_BYTES = 1 << 15
_BEAT_SECONDS = 0.5
_BEATS = 8.0  # of a rank that is at work, in the time in which it would be given up


class RootedCollectives:
    """Channels between rank 0 and every other rank.

    Every rank calls the same operations in the same order, each inside `operation`. What belongs to an
    operation that was given up is not mistaken for part of a later one.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Used by the owner of this object alone.
    seconds : float
        How long to wait for a rank that says nothing.

    Attributes
    ----------
    rank, size : int
    seconds : float
    """

    def __init__(self, comm: Any, seconds: float) -> None:
        self._wire = Wire(comm)
        self.rank: int = self._wire.rank
        self.size: int = self._wire.size
        self.seconds = seconds
        others = range(1, self.size) if self.rank == 0 else (0,)
        self._channels = {rank: self._wire.channel(rank, _TAG, _PIECE_BYTES) for rank in others}
        self._arrived: dict[int, deque[tuple[Kind, list[np.ndarray]]]] = {rank: deque() for rank in others}
        self._turn = 0
        _open.append(self)

    @property
    def others(self) -> list[int]:
        """The ranks at the other ends."""
        return list(self._channels)

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Surround one operation: an exception in it is raised as `RemoteRankError` on the other ranks."""
        self._turn += 1
        try:
            yield
        except BaseException as error:
            for channel in self._channels.values():
                channel.send(encode(Failed.of(error, self.rank), self._turn))
            raise

    def send(self, ranks: Iterable[int], *parts: np.ndarray) -> None:
        """Send one message to each of `ranks`; it is packed once."""
        message = envelope.encode(Kind.TOLD, self._stamp, *parts)
        for rank in ranks:
            self._channels[rank].send(message)

    def beat(self) -> None:
        """Let the others, who may have to wait for long, know that this rank is at work."""
        now = self._wire.now()
        interval = min(_BEAT_SECONDS, self.seconds / _BEATS)
        for channel in self._channels.values():
            if now - channel.last_sent > interval:
                channel.send(envelope.encode(Kind.BEAT, self._stamp))

    def receive(self, ranks: Iterable[int], what: str) -> dict[int, list[np.ndarray]]:
        """Wait for the next message of each of `ranks`, and return their parts.

        Raises
        ------
        RankLostError
            If MPI reports that one has died.
        RankTimeoutError
            If nothing comes from any of them for `seconds`; `what` says what was waited for.
        RemoteRankError
            If this operation has failed on another rank.
        """
        missing = set(ranks)
        found: dict[int, list[np.ndarray]] = {}
        backoff = Backoff(self._wire.sleep)
        deadline = self._wire.now() + self.seconds
        while True:
            if self._listen(missing):
                deadline = self._wire.now() + self.seconds
                backoff.reset()
            for rank in sorted(missing):
                parts = self._next(rank)
                if parts is not None:
                    found[rank] = parts
                    missing.discard(rank)
            if not missing:
                return found
            self._check(missing, deadline, what)
            self.beat()
            backoff.wait()

    def gather(self, data: dict[str, Any], *parts: np.ndarray, what: str) -> list[list[np.ndarray]]:
        """Bring every rank's `data`, as text, and `parts` to rank 0, and return them there by rank."""
        text = envelope.text(data)
        if self.rank:
            self.send([0], text, *parts)
            return []
        found = self.receive(self.others, what)
        return [[text, *parts], *(found[rank] for rank in self.others)]

    def tell(self, data: dict[str, Any] | None, what: str) -> dict[str, Any]:
        """Return what rank 0 gives as `data` on every rank."""
        if self.rank == 0:
            assert data is not None
            self.send(self.others, envelope.text(data))
            return data
        return envelope.from_text(self.receive([0], what)[0][0])

    def close(self, linger: float = 1.0) -> None:
        """Stop listening; what was sent gets up to `linger` seconds to go."""
        for channel in self._channels.values():
            channel.close(linger)
        if self in _open:
            _open.remove(self)

    @property
    def _stamp(self) -> np.ndarray:
        return np.array([self._turn], np.int64)

    def _listen(self, awaited: set[int]) -> bool:
        """Take in what has come, and return whether anything came of those who are waited for."""
        ranks = {channel: rank for rank, channel in self._channels.items()}
        heard = False
        for channel, message in self._wire.receive(list(ranks)):
            kind, parts = envelope.decode(message)
            self._arrived[ranks[channel]].append((kind, parts))
            heard = heard or ranks[channel] in awaited
        return heard

    def _next(self, rank: int) -> list[np.ndarray] | None:
        """Return the next message of this operation from `rank`; drop older ones, and keep newer ones."""
        arrived = self._arrived[rank]
        while arrived:
            kind, (stamp, *parts) = arrived[0]
            if stamp[0] > self._turn:
                return None
            arrived.popleft()
            if stamp[0] < self._turn or kind is Kind.BEAT:
                continue
            if kind is Kind.FAILED:
                raise from_parts(Failed, parts).error()
            return parts
        return None

    def _check(self, missing: set[int], deadline: float, what: str) -> None:
        lost = sorted(rank for rank in missing if self._channels[rank].lost is not None)
        if lost:
            raise RankLostError(
                f"{_named(lost)} died while rank {self.rank} waited for {what}. Go on over the ranks that "
                "are left, such as comm.Shrink()."
            )
        if self._wire.now() > deadline:
            raise RankTimeoutError(
                f"Nothing came from {_named(sorted(missing)).lower()} for {self.seconds:g} s, while rank "
                f"{self.rank} waited for {what}. Every rank has to make the same calls; if one may take that "
                "long, raise timeout=, else look for a rank that hangs."
            )


def _named(ranks: list[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}"


# MPI may still write to the receives of one that nobody closed, so these live as long as the process.
_open: list[RootedCollectives] = []
