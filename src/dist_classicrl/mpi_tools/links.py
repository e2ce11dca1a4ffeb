"""Channels on which nothing piles up at a rank that does not listen: each end says what it has taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dist_classicrl.comm.collectives import give_back
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import Bye, decode, encode, message
from dist_classicrl.comm.transport import Channel, Wire


@message(Kind.TAKEN)
@dataclass(frozen=True)
class Taken:
    """So many more messages of the receiver were taken."""

    count: int


class Link:
    """A channel to one rank that carries no more than it takes."""

    most_untaken: int
    """How many messages may wait there: one that is stopped would else fill up the memory of its peers."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.rank = channel.peer
        self.has_left = False  # the rank has said goodbye
        self._untaken = 0  # messages that were sent to it
        self._taken = 0  # messages of it that it was not told of
        self._is_over = False  # this rank has said goodbye, after which it must not say anything

    @property
    def is_present(self) -> bool:
        """Whether the rank may still say something."""
        return not self.has_left and self.channel.lost is None

    @property
    def has_room(self) -> bool:
        """Whether another message may go."""
        return not self._is_over and self._untaken < self.most_untaken and self.channel.reap()

    def send(self, content: object) -> None:
        """Send a message, for which there has to be room."""
        encoded = encode(content)  # before it counts: what cannot be sent is never taken, either
        self._untaken += 1
        self.channel.send(encoded)

    def say_goodbye(self) -> None:
        """Send the last message, whether or not there is room."""
        self._is_over = True
        self.channel.send(encode(Bye()))

    def take_in(self, content: object) -> bool:
        """Take in a message, and return whether it is one that was sent with `send`."""
        match content:
            case Taken(count=count):
                self._untaken -= count
            case Bye():
                self.has_left = True
            case _:
                self._taken += 1
                return True
        return False

    def acknowledge(self) -> None:
        """Tell the rank what was taken, if it takes that."""
        if self._taken and not self._is_over and self.channel.reap():
            self.channel.send(encode(Taken(self._taken)))
            self._taken = 0


AnyLink = TypeVar("AnyLink", bound=Link)


def receive(wire: Wire, links: Sequence[AnyLink]) -> list[tuple[AnyLink, Any]]:
    """Return what has come on `links`, each message with its link, and acknowledge it. Never waits."""
    by_channel = {link.channel: link for link in links}
    taken = []
    while arrived := wire.receive(list(by_channel)):
        for channel, received in arrived:
            content = decode(received)
            if by_channel[channel].take_in(content):
                taken.append((by_channel[channel], content))
    for link in links:
        link.acknowledge()
    return taken


def close(wire: Wire, comm: Any, links: Sequence[Link], seconds: float = 0.0) -> None:
    """Give back `comm`, which `wire` and all `links` are over; this rank has said goodbye on each of them."""

    def left() -> list[Channel]:
        receive(wire, links)
        return [link.channel for link in links if link.has_left]

    give_back(comm, [link.channel for link in links], left, seconds)
