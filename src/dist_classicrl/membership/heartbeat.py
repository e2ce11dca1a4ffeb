"""A thread that says that this process is there, however long its main loop is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode, message
from dist_classicrl.comm.transport import Channel

_CHECKS_PER_INTERVAL = 4


@message(Kind.BEAT)
@dataclass(frozen=True)
class Beat:
    """A sign of life."""

    progress: int  # how far the sender's main loop is
    view: tuple[int, int]  # the key of the view that it knows


def say_beat(channels: Iterable[Channel], beat: Beat, interval: float, now: float) -> None:
    """Send `beat` on those channels on which nothing was sent for `interval` seconds.

    A peer that does not take what was sent gets nothing more.
    """
    for channel in channels:
        if now - channel.last_sent >= interval and channel.reap():
            channel.send(encode(beat))


class Heartbeat:
    """Sends a sign of life on each of some channels on which nothing was sent for `interval` seconds.

    It carries the main loop's progress, so that a loop that hangs does not pass for one that works. `now` is
    the time as the channels have it; `channels` and `beat` can be called at any time, in any thread.
    """

    def __init__(
        self,
        interval: float,
        now: Callable[[], float],
        channels: Callable[[], Iterable[Channel]],
        beat: Callable[[], Beat],
    ) -> None:
        self._interval = interval
        self._now = now
        self._channels = channels
        self._beat = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dist_classicrl heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval / _CHECKS_PER_INTERVAL):
            say_beat(self._channels(), self._beat(), self._interval, self._now())
