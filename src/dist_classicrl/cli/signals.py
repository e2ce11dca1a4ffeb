"""Work that a signal or a time limit ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from dist_classicrl._hints import rank_of_environment
from dist_classicrl.process.signals import handled


def with_terminal(signals: Iterable[int | str]) -> tuple[int | str, ...]:
    """Return stop signals, and the one that tells that the terminal of this process, no rank, is closed.

    A process that was started with nohup goes on.
    """
    hears = rank_of_environment() is None and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return (*signals, signal.SIGHUP) if hears else tuple(signals)


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the work in this block as Ctrl-C does, so that it leaves nothing behind.

    Further ones are ignored meanwhile. One that the process ignores, as under nohup, stays ignored. The
    exit status is what a shell gives to the signal.
    """
    heard: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) == 1:
            raise SystemExit(128 + number)

    with handled({signal.SIGTERM, signal.SIGHUP}, end, even_ignored=False):
        yield


class Ended(BaseException):
    """The time is over, or a signal has come; the message says which.

    No `Exception`: it comes wherever the program just is, and code that makes an error of its own of each
    exception, or lets it pass, must not take it for one of its own.
    """


@contextmanager
def ended_after(seconds: float, signals: Iterable[int]) -> Iterator[None]:
    """Let the work in this block end by `Ended` after so many seconds, or with one of the signals, or Ctrl-C.

    In a thread of its own, where Python hears no signals, it goes on to its end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise Ended(f"it took {seconds:g} s" if number == signal.SIGALRM else f"ended by {name}")

    with handled({*signals, signal.SIGINT, signal.SIGALRM}, end):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
