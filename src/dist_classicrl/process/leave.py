"""How a worker is asked to leave a training that goes on without it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType

from dist_classicrl.process.signals import handled, hear_in_child


class LeaveWatch:
    """Takes the request to leave, from a call or from a signal.

    Attributes
    ----------
    why : str or None
        What asked for it; None: nothing did.
    """

    def __init__(self) -> None:
        self.why: str | None = None
        self._process = os.getpid()

    def ask(self, why: str) -> None:
        """Ask this rank to leave."""
        self.why = self.why or why

    def listening_to(self, signals: Sequence[int]) -> AbstractContextManager[None]:
        """Return what, while it is entered, lets `signals` ask."""
        self._process = os.getpid()
        return handled(signals, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            hear_in_child(number)
            return
        self.ask(signal.Signals(number).name)
