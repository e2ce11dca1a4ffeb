"""A barrier that does not need everybody: ranks may have died, hang, or come late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dist_classicrl.checks import WholeNumber, checked_positive
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.comm.transport import Backoff, Wire
from dist_classicrl.errors import RankLostError, RankTimeoutError, SettingsError
from dist_classicrl.mpi_tools.links import Link, close, receive
from dist_classicrl.mpi_tools.part import Part

_TAG = 1
_MESSAGE_BYTES = 256


@message(Kind.CAME)
@dataclass(frozen=True)
class _Came:
    """The sender has come to its barrier of this number, and so to all before it."""

    number: int


class _Peer(Link):
    most_untaken = 1024
    told = 0  # the last barrier that it was told of
    reached = 0  # the last one that it has come to

    @property
    def has_room(self) -> bool:
        """Whether another message may go, also behind some that MPI has not sent yet.

        It sends those in any later call of it, and this rank may not come to a barrier again for long.
        """
        return not self._is_over and self._untaken < self.most_untaken


class QuorumBarrier(Part):
    """A barrier that opens without ranks that have died, hang or are late, once a quorum has come.

    Each rank tells every other one that it has come, point-to-point, so that no single rank is needed. A call
    of `wait` returns as soon as all ranks of which MPI does not say that they died have come; `grace` seconds
    after a quorum has come it returns without the others. Barriers are numbered by the calls: who comes late
    to one finds it open, and does not count for the next until it comes to that.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The messages go over a duplicate. **Every rank constructs the object**, at the same point, and with
        the same arguments.
    quorum : int, optional
        How many ranks have to come, this one included; more than half if left out.
    timeout : float, default=60
        Seconds that the quorum may take to come, here and in each `wait`.
    grace : float, optional
        Seconds to wait for the others when a quorum has come; what is left of `timeout` if left out, and
        never more.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.
    RankTimeoutError, RankLostError
        If not every rank constructs its barrier within `timeout`, or one has died.

    Notes
    -----
    Each rank returns what it has seen, and where ranks are late or die these sets may differ: each contains
    at least the quorum, and any two have a rank in common if that is more than half.

    Deaths are known at once where MPI reports them (``mpirun --with-ft ulfm``); elsewhere a dead rank is one
    that does not come.

    Who is late finds up to 1,024 barriers open: those of which MPI has sent word at once, the others when its
    peers call MPI for anything. Further ones open when these come to their next, or close.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> from dist_classicrl.mpi_tools import QuorumBarrier
    >>> with QuorumBarrier(MPI.COMM_SELF) as barrier:
    ...     barrier.wait()
    frozenset({0})
    """

    def __init__(
        self, comm: Any, quorum: int | None = None, *, timeout: float = 60.0, grace: float | None = None
    ) -> None:
        quorum = None if quorum is None else WholeNumber(1, "None for more than half")("quorum", quorum)
        self._grace = None if grace is None else checked_positive("grace", grace)
        super().__init__(comm, timeout)
        self._wire = Wire(self._comm)
        size = self._wire.size
        self._quorum = size // 2 + 1 if quorum is None else quorum
        others = [rank for rank in range(size) if rank != self._wire.rank]
        self._peers = [_Peer(self._wire.channel(rank, _TAG, _MESSAGE_BYTES)) for rank in others]
        self._number = 0
        if self._quorum > size:
            self.close()
            raise SettingsError(f"quorum must be at most the number of ranks, {size}, got {quorum}.")

    def wait(self) -> frozenset[int]:
        """Come to the next barrier, and wait for the others.

        Returns
        -------
        frozenset of int
            The ranks that have come to it, as far as this one has heard; itself is one of them.

        Raises
        ------
        RankTimeoutError
            If no quorum has come within `timeout`. This rank has come all the same, and may call `wait` for
            the next barrier.
        RankLostError
            At once, if so many ranks have died or closed their barrier that no quorum can come any more.
        SettingsError
            If this barrier is closed.
        """
        self._check_open()
        self._number += 1
        begun = self._wire.now()
        quorum_at: float | None = None
        backoff = Backoff(self._wire.sleep)
        while True:
            if self._listen_and_tell():
                backoff.reset()
            absent = [peer for peer in self._peers if peer.reached < self._number]
            awaited = [peer for peer in absent if peer.is_present]
            came = frozenset(range(self._wire.size)) - {peer.rank for peer in absent}
            now = self._wire.now()
            if len(came) >= self._quorum:
                quorum_at = now if quorum_at is None else quorum_at
                grace = self._seconds if self._grace is None else self._grace
                if not awaited or now > min(begun + self._seconds, quorum_at + grace):
                    return came
            elif len(came) + len(awaited) < self._quorum:
                raise RankLostError(
                    f"{self._missing(absent)} Too many of them have died, or closed their barrier. Go on "
                    "over the ranks that are left, with a quorum that they can make."
                )
            elif now > begun + self._seconds:
                raise RankTimeoutError(
                    f"{self._missing(absent)} That was {self._seconds:g} s. Raise timeout= if they may take "
                    "longer, or lower quorum=; else look for a rank that hangs."
                )
            backoff.wait()

    def _missing(self, absent: list[_Peer]) -> str:
        ranks = ", ".join(str(peer.rank) for peer in absent)
        came = self._wire.size - len(absent)
        return (
            f"{came} of {self._wire.size} ranks came to barrier {self._number}, where {self._quorum} have to "
            f"come; missing: {ranks}."
        )

    def _listen_and_tell(self) -> bool:
        """Take in what has come, and return whether that was anything; tell those who can hear it."""
        news = receive(self._wire, [peer for peer in self._peers if not peer.has_left])
        for peer, came in news:
            peer.reached = came.number
        for peer in self._peers:
            if peer.told < self._number and peer.is_present and peer.has_room:
                peer.told = self._number
                peer.send(_Came(self._number))
        return bool(news)

    def _leave(self) -> None:
        for peer in self._peers:
            if peer.told < self._number:
                peer.send(_Came(self._number))
            peer.say_goodbye()
        close(self._wire, self._comm, self._peers, 1.0)
