"""Work that has an end: after some time, or with a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from dist_classicrl.distributed.signals import handled


class Ended(Exception):
    """The time is over, or a signal has come; the message says which."""


@contextmanager
def ended_after(seconds: float, signals: Iterable[str | int]) -> Iterator[None]:
    """Let the work in this block end after so many seconds, or with one of the signals, or Ctrl-C.

    In a thread of its own, where Python hears no signals, it goes on to its end.

    Parameters
    ----------
    seconds : float
    signals : iterable of str or int
        By their names or numbers.

    Raises
    ------
    Ended
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = {signal.Signals[each] if isinstance(each, str) else each for each in signals}

    def end(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise Ended(f"it took {seconds:g} s" if number == signal.SIGALRM else f"ended by {name}")

    with handled({*numbers, signal.SIGINT, signal.SIGALRM}, end):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
