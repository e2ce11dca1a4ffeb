"""What engines have in common whose server learns as all others do, and orders what all do next.

A rank that is lost breaks what is under way: the server lets the others begin anew, without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from dist_classicrl.comm.transport import Backoff
from dist_classicrl.engines.laggards import Laggards
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.participants import Roles
from dist_classicrl.engines.roles.peers import Client, Peer
from dist_classicrl.engines.roles.server_base import Serving
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.errors import ProtocolError


class PlayedPart(Protocol):
    """What a rank does of what all do together."""

    players: tuple[int, ...]
    """Who takes part."""

    def close(self) -> None:
        """Exchange nothing more."""


Order = TypeVar("Order")
P = TypeVar("P", bound=PlayedPart)
W = TypeVar("W", bound="OrderedWorker[Any, Any]")
S = TypeVar("S", bound="LearningServer[Any, Any]")


class Broken(Exception):
    """A rank was lost that takes part."""


class Superseded(Exception):
    """Something else is to be done than what is being done."""


@dataclass(eq=False)
class OrderedWorker(Working, Generic[P, Order]):
    """Does with its `part` what a server orders, one order after another."""

    part: P

    def __post_init__(self) -> None:
        super().__post_init__()
        self._orders: deque[Order] = deque()

    def give_up_server(self) -> None:
        """See `Working`."""
        super().give_up_server()
        self.part.close()
        self._orders.clear()

    def run(self) -> Final | None:
        """Do what the server orders."""
        backoff = Backoff(self.group.wire.sleep)
        while self.final is None and not self.was_released:
            self._tend_idle()
            if self._orders:
                try:
                    self._obey(self._orders.popleft())
                except Superseded:
                    self.part.close()
                backoff.reset()
            else:
                backoff.wait()
        if self.final is not None:
            self.await_release()
        return self.final

    def close(self, linger: float) -> None:
        """See `Working`."""
        self.part.close()
        super().close(linger)

    @abstractmethod
    def _obey(self, order: Order) -> None:
        """Do what the server has ordered; `_tend` is to be called meanwhile."""

    @abstractmethod
    def _take_in(self) -> None:
        """Take in what the server has sent: orders, and what any server may send."""

    def _tend_idle(self) -> None:
        now = self.wake()
        self._take_in()
        self.pass_on_stop()
        self.channel.reap()
        self._leave_if_asked()
        self.look_around(now)

    def _tend(self) -> None:
        """Look for what cannot wait for the end of what was ordered; `Superseded` if there is any."""
        self._tend_idle()
        if self.final is not None or self.was_released or self._orders:
            raise Superseded


@dataclass
class LearningServer(Serving[Client], Generic[Client, P]):
    """Orders what all do in one call of `train`, and does its own `part` of it."""

    learns_here = True

    why_more: ClassVar[str]
    """Why a rank may have more to do than the others, and what to do about it."""

    part: P = field(kw_only=True)
    start: int = field(kw_only=True)  # first global step of what is to be made
    knows_all: bool = field(kw_only=True)  # whether the others have the table with which this rank begins

    def __post_init__(self) -> None:
        self._attempt = self.group.first_attempt
        self._must_begin = True
        self._is_broken = False
        self._laggards = Laggards(self.group.wire.now, self.group.host_of, self.why_more)
        self._snapshot = self.table.snapshot()
        super().__post_init__()

    def has_made(self, alone: LearningOn) -> None:
        """Do nothing: this rank learns as the others do, and never instead of them."""

    def has_lost(self, rank: int) -> int:
        """Begin anew, without it, if it takes part."""
        self._is_broken = self._is_broken or rank in self.part.players
        return 0

    def has_admitted(self, rank: int) -> None:
        """Let the rank take part as soon as all can begin anew."""
        self._must_begin = True

    def close(self, linger: float) -> None:
        """See `Serving`."""
        self.part.close()
        super().close(linger)

    def _is_due(self, peer: Peer[Client], attempt: int) -> bool:
        """Whether what a rank tells is of this attempt; ProtocolError if it cannot be of that one."""
        if attempt < self._attempt:
            return False
        if attempt > self._attempt or peer.rank not in self.part.players:
            raise ProtocolError(
                f"Rank {peer.rank} told of attempt {attempt} in attempt {self._attempt}, in which it has no "
                "part."
            )
        self.members.note_push(peer)
        return True

    def _order(self, message: np.ndarray) -> None:
        """Send an order to all others that take part."""
        for peer in self.peers.learners:
            if peer.rank in self.part.players:
                peer.channel.send(message)

    def _tend(self) -> None:
        """Look around; `Broken` if the others have to begin anew."""
        self._look_around_anyhow()
        if self._is_broken:
            raise Broken

    def _await(self, told: Collection[int], players: int) -> None:
        """Look around until so many players have told; `Broken` as in `_tend`."""
        backoff = Backoff(self.group.wire.sleep)
        while len(told) < players:
            before = len(told)
            self._tend()
            if len(told) > before:
                backoff.reset()
            backoff.wait()

    def _look_around_anyhow(self) -> None:
        woken = self.wake()
        self.receive()  # before anybody's silence is judged
        self.look_around(woken)


class OrderedRoles(Roles[W, S]):
    """What a rank may be in such an engine."""

    def learner_alone(self, server: S) -> LearningOn:
        """Raise RuntimeError: the server learns itself, and goes on with those who are left."""
        raise RuntimeError("A server that learns as the others do is never left without a rank that learns.")
