"""How a worker is asked to leave a training that goes on without it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any


class LeaveWatch:
    """Takes the request to leave, from a call or, while it is entered, from a signal.

    Attributes
    ----------
    why : str or None
        What asked for it; None: nothing did.
    """

    def __init__(self) -> None:
        self.why: str | None = None
        self._signals: Sequence[int] = ()
        self._before: dict[int, Any] = {}

    def ask(self, why: str) -> None:
        """Ask this rank to leave."""
        self.why = self.why or why

    def listening_to(self, signals: Sequence[int]) -> LeaveWatch:
        """Return this watch, to be entered, which hears `signals` then."""
        self._signals = signals
        return self

    def __enter__(self) -> LeaveWatch:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # set from C, Python could not put it back
                signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.ask(signal.Signals(number).name)
