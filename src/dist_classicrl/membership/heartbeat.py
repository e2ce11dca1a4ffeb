"""A thread that says that this process is there, however long its main loop is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType

import numpy as np

from dist_classicrl.comm import messages
from dist_classicrl.comm.messages import Kind
from dist_classicrl.comm.transport import Channel

_LOOKS = 4


def beat_message(progress: int, view: tuple[int, int]) -> np.ndarray:
    """Return a sign of life: how far the sender's main loop is, and the key of the view that it knows."""
    return messages.encode(Kind.BEAT, np.array([progress, *view], np.int64))


def say_beat(channels: Iterable[Channel], message: np.ndarray, interval: float, now: float) -> None:
    """Send `message` on those channels on which nothing was sent for `interval` seconds.

    A peer that does not take what was sent gets nothing more.
    """
    for channel in channels:
        if now - channel.last_sent >= interval and channel.reap():
            channel.send(message)


class Heartbeat:
    """Sends a sign of life on each of some channels on which nothing was sent for `interval` seconds.

    It carries the main loop's progress, so that a loop that hangs does not pass for one that works.

    Parameters
    ----------
    interval : float
        In seconds.
    now : callable
        The time, as the channels have it.
    channels : callable
        Returns the channels, at any time and in any thread.
    message : callable
        Returns what to send.
    """

    def __init__(
        self,
        interval: float,
        now: Callable[[], float],
        channels: Callable[[], Iterable[Channel]],
        message: Callable[[], np.ndarray],
    ) -> None:
        self._interval = interval
        self._now = now
        self._channels = channels
        self._message = message
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dist_classicrl heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval / _LOOKS):
            say_beat(self._channels(), self._message(), self._interval, self._now())
