"""What a server knows of each of its workers, and which states it may be in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Generic, TypeVar

from dist_classicrl.comm.transport import Channel
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.phi_accrual import Arrivals

Client = TypeVar("Client")


@dataclass
class RoundClient:
    """What the server knows of one worker where all learn in rounds."""

    is_new: bool  # it has no table of this server's


class PeerState(IntEnum):
    """Where a worker stands with its server."""

    EXPECTED = auto()  # a replacement that has not said a word
    UNTRIED = auto()  # a replacement that has pushed nothing
    UNTRIED_SUSPECT = auto()  # and is silent for longer than its jitter explains
    LEARNING = auto()
    SUSPECT = auto()  # it learned, and is silent for longer than its jitter explains
    WAITING = auto()  # it learns no more, and waits for the end
    WAITING_SUSPECT = auto()
    LEFT = auto()  # in good order
    LOST = auto()


class PeerEvent(IntEnum):
    """What may happen to a worker."""

    SPOKE = auto()  # its first word
    PUSHED = auto()
    DOUBTED = auto()
    CLEARED = auto()  # it is heard again
    RETIRED = auto()  # it says that it learns no more
    LEFT = auto()  # it says that it goes
    LOST = auto()


TRANSITIONS: dict[tuple[PeerState, PeerEvent], PeerState] = {
    (PeerState.EXPECTED, PeerEvent.SPOKE): PeerState.UNTRIED,
    (PeerState.EXPECTED, PeerEvent.LOST): PeerState.LOST,
    (PeerState.UNTRIED, PeerEvent.PUSHED): PeerState.LEARNING,
    (PeerState.UNTRIED, PeerEvent.DOUBTED): PeerState.UNTRIED_SUSPECT,
    (PeerState.UNTRIED, PeerEvent.RETIRED): PeerState.WAITING,
    (PeerState.UNTRIED, PeerEvent.LEFT): PeerState.LEFT,
    (PeerState.UNTRIED, PeerEvent.LOST): PeerState.LOST,
    (PeerState.UNTRIED_SUSPECT, PeerEvent.PUSHED): PeerState.SUSPECT,
    (PeerState.UNTRIED_SUSPECT, PeerEvent.CLEARED): PeerState.UNTRIED,
    (PeerState.UNTRIED_SUSPECT, PeerEvent.RETIRED): PeerState.WAITING_SUSPECT,
    (PeerState.UNTRIED_SUSPECT, PeerEvent.LEFT): PeerState.LEFT,
    (PeerState.UNTRIED_SUSPECT, PeerEvent.LOST): PeerState.LOST,
    (PeerState.LEARNING, PeerEvent.PUSHED): PeerState.LEARNING,
    (PeerState.LEARNING, PeerEvent.DOUBTED): PeerState.SUSPECT,
    (PeerState.LEARNING, PeerEvent.RETIRED): PeerState.WAITING,
    (PeerState.LEARNING, PeerEvent.LEFT): PeerState.LEFT,
    (PeerState.LEARNING, PeerEvent.LOST): PeerState.LOST,
    (PeerState.SUSPECT, PeerEvent.PUSHED): PeerState.SUSPECT,  # it is cleared when silence is judged next
    (PeerState.SUSPECT, PeerEvent.CLEARED): PeerState.LEARNING,
    (PeerState.SUSPECT, PeerEvent.RETIRED): PeerState.WAITING_SUSPECT,
    (PeerState.SUSPECT, PeerEvent.LEFT): PeerState.LEFT,
    (PeerState.SUSPECT, PeerEvent.LOST): PeerState.LOST,
    (PeerState.WAITING, PeerEvent.DOUBTED): PeerState.WAITING_SUSPECT,
    (PeerState.WAITING, PeerEvent.LEFT): PeerState.LEFT,
    (PeerState.WAITING, PeerEvent.LOST): PeerState.LOST,
    (PeerState.WAITING_SUSPECT, PeerEvent.CLEARED): PeerState.WAITING,
    (PeerState.WAITING_SUSPECT, PeerEvent.LEFT): PeerState.LEFT,
    (PeerState.WAITING_SUSPECT, PeerEvent.LOST): PeerState.LOST,
}
"""Where each event leads; any other is a worker that breaks the protocol."""

UNTRIED = frozenset({PeerState.UNTRIED, PeerState.UNTRIED_SUSPECT})
LEARNERS = UNTRIED | {PeerState.LEARNING, PeerState.SUSPECT}
SUSPECTS = frozenset({PeerState.UNTRIED_SUSPECT, PeerState.SUSPECT, PeerState.WAITING_SUSPECT})
PRESENT = LEARNERS | {PeerState.WAITING, PeerState.WAITING_SUSPECT}
"""Who is heard, and has to hear of the end."""


@dataclass(eq=False)
class Peer(Generic[Client]):
    """A worker, from when the server counts on it."""

    rank: int
    channel: Channel
    client: Client  # what the engine knows of its work
    arrivals: Arrivals
    progressed_at: float  # when its main loop was last known to have come further
    progress: int = -1  # how far that was
    state: PeerState = PeerState.LEARNING

    @property
    def learns(self) -> bool:
        """Whether the server counts on its work."""
        return self.state in LEARNERS

    @property
    def is_suspect(self) -> bool:
        """Whether it may be lost."""
        return self.state in SUSPECTS

    @property
    def is_untried(self) -> bool:
        """Whether it is a replacement that has done nothing yet."""
        return self.state in UNTRIED


class Peers(Generic[Client]):
    """All workers that a server has to do with."""

    def __init__(self) -> None:
        #: Those that are there, by rank. It is replaced, and never changed: another thread may go through it.
        self.present: dict[int, Peer[Client]] = {}
        self.learners: list[Peer[Client]] = []  # those of them that learn
        self._all: dict[int, Peer[Client]] = {}

    def __iter__(self) -> Iterator[Peer[Client]]:
        return iter(tuple(self._all.values()))

    @property
    def expected(self) -> list[Peer[Client]]:
        """Replacements that have not said a word yet."""
        return [peer for peer in self if peer.state is PeerState.EXPECTED]

    def has(self, peer: Peer[Client]) -> bool:
        """Whether a worker is there, and was not lost meanwhile, be its rank back since then or not."""
        return self.present.get(peer.rank) is peer

    def add(self, peer: Peer[Client]) -> None:
        """Count on a worker; whoever had its rank is there no more."""
        before = self._all.pop(peer.rank, None)
        if before is not None:
            before.channel.close()
        self._all[peer.rank] = peer
        self._sort()

    def note(self, peer: Peer[Client], event: PeerEvent) -> None:
        """Take note of what happened to a worker. One that is lost is forgotten, and its channel closed.

        A `ProtocolError` is raised if that cannot happen to it.
        """
        after = TRANSITIONS.get((peer.state, event))
        if after is None:
            raise ProtocolError(
                f"Worker {peer.rank}, which is {peer.state.name}, cannot have {event.name}: one of its "
                "messages is not due. Do all ranks run the same version?"
            )
        if after is peer.state:
            return
        peer.state = after
        if after is PeerState.LOST:
            peer.channel.close()
            del self._all[peer.rank]
        self._sort()

    def _sort(self) -> None:
        self.present = {rank: peer for rank, peer in self._all.items() if peer.state in PRESENT}
        self.learners = [peer for peer in self.present.values() if peer.learns]
