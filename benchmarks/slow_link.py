"""A slow link between ranks that are on one host: what comes over it is held back, in this process.

A message that has come is handed on when a link of so many bits per second would have carried it, behind all
that came before it, and a delay later. The rank that serves has one such link for all that comes in. What it
sends goes out over one as well, of which each of the others has an even share.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_classicrl.comm import transport
from dist_classicrl.membership.group import Group

_RECEIVE, _POLL = transport.Wire.receive, transport.Channel.poll
_MOST_KEPT = 1_000_000


class SlowLink:
    """Holds back what comes, from `install` on."""

    def __init__(self, bits_per_second: float, delay: float) -> None:
        self._seconds_per_byte = 8.0 / bits_per_second
        self._delay = delay
        self._free = 0.0  # when the link has carried all that came so far
        self._held: deque[tuple[float, Any, np.ndarray]] = deque(maxlen=_MOST_KEPT)

    @classmethod
    def install(cls, bits_per_second: float, delay: float, rank: int, ranks: int) -> None:
        """Put this rank behind a link, and let each rank count as a host of its own."""
        link = cls(bits_per_second if rank == 0 else bits_per_second / max(1, ranks - 1), delay)
        transport.Wire.receive = lambda wire, channels: link.receive(wire, channels)  # type: ignore[method-assign]
        transport.Channel.poll = lambda channel: link.poll(channel)  # type: ignore[method-assign]
        Group.host_of = lambda group, rank: f"host{rank}"  # type: ignore[method-assign]

    def _take(self, arrived: Sequence[tuple[Any, np.ndarray]]) -> None:
        now = time.monotonic()
        for channel, message in arrived:
            self._free = max(self._free, now) + message.size * self._seconds_per_byte
            self._held.append((self._free + self._delay, channel, message))

    def _due(self, channels: Sequence[Any]) -> list[tuple[Any, np.ndarray]]:
        now, wanted = time.monotonic(), {id(channel) for channel in channels}
        due = [(c, message) for at, c, message in self._held if at <= now and id(c) in wanted]
        kept = [each for each in self._held if each[0] > now or id(each[1]) not in wanted]
        self._held = deque(kept, maxlen=_MOST_KEPT)
        return due

    def receive(self, wire: Any, channels: Sequence[Any]) -> list[tuple[Any, np.ndarray]]:
        """Return what the link has carried by now on any of the channels."""
        self._take(_RECEIVE(wire, channels))
        return self._due(channels)

    def poll(self, channel: Any) -> np.ndarray | None:
        """Return likewise the next message of one channel, if there is one."""
        while (message := _POLL(channel)) is not None:
            self._take([(channel, message)])
        now = time.monotonic()
        for place, (at, held, message) in enumerate(self._held):
            if held is channel:
                if at > now:
                    return None
                del self._held[place]
                return message
        return None
