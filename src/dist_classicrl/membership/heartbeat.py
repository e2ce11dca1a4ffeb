"""A thread that says that this process is there, however long its main loop is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


@contextmanager
def heartbeat(
    channels: Callable[[], Iterable[Channel]],
    beat: Callable[[], Beat],
    interval: float,
    now: Callable[[], float],
) -> Iterator[None]:
    """While this is entered, let a thread send what `beat` returns, as `say_beat` does.

    It carries the main loop's progress, so that a loop that hangs does not pass for one that works. `now` is
    the time as the channels have it; `channels` and `beat` can be called at any time, in any thread.
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(interval / _CHECKS_PER_INTERVAL):
            say_beat(channels(), beat(), interval, now())

    thread = threading.Thread(target=run, name="dist_classicrl heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
