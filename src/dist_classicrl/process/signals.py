"""Handlers of signals for a while, and signals that have to wait."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from dist_classicrl.errors import SweepStopped, TrainingStopped, WorkerLeft

_ENDING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def is_meant(error: BaseException) -> bool:
    """Whether this ends the process on purpose: it is this package's, or of a signal's handler."""
    if isinstance(error, (SweepStopped, TrainingStopped, WorkerLeft)):
        return True
    handlers = [getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()]
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


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
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                handler = signal.getsignal(number)
                if even_ignored or handler not in (None, signal.SIG_IGN):
                    before[number] = handler
                    signal.signal(number, hear)
        yield
    finally:
        _put_back(before)


def _put_back(handlers: dict[int, Any]) -> None:
    """Set these handlers, all of them even if one is called at once and raises an exception."""
    if handlers:
        number, handler = handlers.popitem()
        try:
            if handler is not None:
                with suppress(OSError):  # a signal that nobody can handle
                    signal.signal(number, handler)
        finally:
            _put_back(handlers)


@contextmanager
def postponed() -> Iterator[None]:
    """Let signals that end a program wait for the end of this block, where their handlers may raise.

    An exception that a handler raises while a process is being started would lose the process: it runs, and
    nobody knows its id. In another thread than the main one, which hears no signals, nothing has to wait.
    """
    heard: list[int] = []
    raising = {number for number in _ENDING if callable(signal.getsignal(number))}
    try:
        with handled(raising, lambda number, frame: heard.append(number)):
            yield
    finally:
        _raise_all(heard)


def _raise_all(signals: list[int]) -> None:
    """Raise these signals in turn, all of them even if the handler of one raises an exception."""
    if signals:
        try:
            signal.raise_signal(signals[0])
        finally:
            _raise_all(signals[1:])


def hear_in_child(number: int) -> None:
    """Hear a signal in a process that was forked meanwhile, such as one that steps an environment.

    What goes to all processes of a job or a terminal is the parent's to answer, which still needs this one.
    SIGTERM is how a parent ends it.
    """
    if number == signal.SIGTERM:
        end_by_default(number)


def end_by_default(number: int) -> None:
    """Let a signal do to this process what it does where nobody handles it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
