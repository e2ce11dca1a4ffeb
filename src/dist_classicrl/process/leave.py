"""How a worker is asked to leave a training that goes on without it."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from dist_classicrl.process.signals import handled, hear_in_child, signal_name
from dist_classicrl.process.stop import Guard

logger = logging.getLogger(__name__)


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
        self._is_alone = False

    def ask(self, why: str) -> None:
        """Ask this rank to leave."""
        self.why = self.why or why

    @contextmanager
    def listening_to(self, signals: Sequence[int], is_alone: bool = False) -> Iterator[None]:
        """Let `signals` ask while this is entered, and one that came since the last training.

        Those for which the program has no handler of its own stay guarded afterwards, as stop signals do, see
        `StopWatch`. A process that is `is_alone` has nobody to leave, and says so.
        """
        self._process, self._is_alone = os.getpid(), is_alone
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                if signal.getsignal(number) == signal.SIG_DFL:
                    _guard.watch(number)
        with handled(signals, self._hear):
            if (left := _guard.take()) is not None:
                self._take(left)
            yield

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            hear_in_child(number)
            return
        self._take(signal_name(number))

    def _take(self, name: str) -> None:
        if self._is_alone and self.why is None:
            # Not the logger from here: its lock may be held by what a signal has interrupted.
            _thread.start_new_thread(_say_that_it_goes_on, (name,))
        self.ask(name)


def _say_that_it_goes_on(name: str) -> None:
    logger.warning(
        "%s asks this process to leave, but it trains alone, and goes on. With checkpoint_dir= a stop signal "
        "ends it in order.",
        name,
    )


_guard = Guard(signal_name)
