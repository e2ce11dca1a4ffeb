"""Handlers of signals for a while, and the request to leave, which a signal may make."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


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


class LeaveWatch:
    """Takes the request that a worker leaves a training that goes on without it, from a call or a signal."""

    def __init__(self) -> None:
        self.why: str | None = None  # what asked for it; None: nothing did

    def ask(self, why: str) -> None:
        """Ask this rank to leave."""
        self.why = self.why or why

    def listening_to(self, signals: Iterable[int]) -> AbstractContextManager[None]:
        """Return what, while it is entered, lets `signals` ask."""
        return handled(signals, lambda number, frame: self.ask(signal.Signals(number).name))
