"""Handlers of signals for a while, and signals that have to wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_name(number: int) -> str:
    """Return what a person calls a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def handled(
    signals: Iterable[int], hear: Callable[[int, FrameType | None], None], even_ignored: bool = True
) -> Iterator[None]:
    """Let `hear` handle `signals` while this is entered; in another thread than the main one, nothing.

    `even_ignored`: also those that the process ignores, and those whose handler was set from C, which Python
    cannot put back.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            handler = signal.getsignal(number)
            if even_ignored or handler not in (None, signal.SIG_IGN):
                before[number] = signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def postponed() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait for the end of this block, where their handlers may raise.

    An exception that a handler raises while a process is being started would lose the process: it runs, and
    nobody knows its id. In another thread than the main one, which hears no signals, nothing has to wait.
    """
    heard: list[int] = []
    raising = {number for number in _ENDING if callable(signal.getsignal(number))}
    try:
        with handled(raising, lambda number, frame: heard.append(number)):
            yield
    finally:
        for number in heard:
            signal.raise_signal(number)
