"""How a worker is asked to leave a training that goes on without it."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dist_classicrl.process.signals import handled, signal_name
from dist_classicrl.process.stop import Guard, Listener, is_for_parent, is_guarded

logger = logging.getLogger(__name__)


class LeaveWatch(Listener):
    """Takes the request to leave, from a call or from a signal.

    Attributes
    ----------
    why : str or None
        What asked for it; None: nothing did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.why: str | None = None
        self._is_alone = False

    def ask(self, why: str) -> None:
        """Ask this rank to leave."""
        self.why = self.why or why

    @contextmanager
    def listening_to(self, signals: Sequence[int], is_alone: bool = False) -> Iterator[None]:
        """Let `signals` ask while this is entered, and one that came since the last training with such.

        Those for which the program has no handler of its own stay guarded afterwards, as stop signals do, see
        `StopWatch`. A process that `is_alone` has nobody to leave, and says so; a second signal ends it.
        """
        self.renew()
        self._is_alone = is_alone
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                if is_guarded(number, signal.getsignal(number)):
                    _guard.watch(number)
        with handled([each for each in signals if not (is_alone and is_for_parent(each))], self.hear):
            if signals:
                self.first_signal = self.first_signal or _guard.first_signal
                if (left := _guard.take()) is not None:
                    self._take(left)
            try:
                yield
            finally:
                if is_alone and signals:
                    _guard.first_signal = self.first_signal

    def _note(self, number: int, now: float) -> None:
        self._take(signal_name(number))

    def _take(self, name: str) -> None:
        self.ask(name)
        if self._is_alone:
            # Not the logger from here: its lock may be held by what a signal has interrupted.
            _thread.start_new_thread(_say_that_it_goes_on, (name,))

    def _end_at_once(self, number: int) -> None:
        if self._is_alone:
            super()._end_at_once(number)
        else:  # who leaves does that in order
            self._take(signal_name(number))


def _say_that_it_goes_on(name: str) -> None:
    logger.warning(
        "%s asks this process to leave, but it trains alone, and goes on. A second %s ends it at once. With "
        "checkpoint_dir= a stop signal ends it in order.",
        name,
        name,
    )


_guard = Guard(signal_name)
