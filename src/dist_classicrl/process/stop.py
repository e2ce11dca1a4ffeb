"""Why a training stops before its end: a stop signal, Ctrl-C or a time limit, here or on another rank."""

from __future__ import annotations

import _thread
import atexit
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

from dist_classicrl import durations
from dist_classicrl.errors import TrainingInterrupted, TrainingStopped
from dist_classicrl.process.arrivals import arrivals
from dist_classicrl.process.exit_record import LAUNCH_VARIABLE
from dist_classicrl.process.signals import end_by_default, hear_in_child, signal_name

logger = logging.getLogger(__name__)

_Request = TypeVar("_Request")

INTERRUPTED = 130  # exit status after SIGINT, as shells have it
OF_LAUNCHER = signal.SIGUSR1  # by which a launcher asks its ranks to stop
# A signal that comes this soon after the first is the same request: SLURM and mpirun deliver some twice.
REPEAT_SECONDS = 0.2
_QUIET_SECONDS = 0.5  # a training that has stopped by then has nothing to say of waiting
_LEAST_MARGIN = 0.2  # seconds
_SLURM_MARGIN = 30.0  # seconds at most: SLURM counts in its own rhythm, and the launcher has to end as well
_SLURM_SHARE = 0.1  # and at most this share of the time that was left
_FIRST_STEP_SECONDS = 30.0  # that a time limit waits for the first step at least, see `StopWatch.check_time`


def is_interactive() -> bool:
    """Return whether somebody types to this Python, at a prompt or in a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def is_for_parent(number: int) -> bool:
    """Return whether `multiprocessing` started this process, which is ended by this signal."""
    return number == signal.SIGTERM and multiprocessing.parent_process() is not None


def is_guarded(number: int, handler: Any) -> bool:
    """Return whether this handler of a signal is none of the program's, but the default or a `Guard`'s."""
    is_of_guard = isinstance(getattr(handler, "__self__", None), Guard)
    return number != signal.SIGINT and (handler == signal.SIG_DFL or is_of_guard)


def with_launchers(signals: Iterable[int]) -> set[int]:
    """Return stop signals, and the one by which the launcher of this process, if it has one, asks to stop."""
    return {*signals, OF_LAUNCHER} if os.environ.get(LAUNCH_VARIABLE) else set(signals)


@dataclass(frozen=True)
class Stop:
    """A request to stop, and what asked for it.

    The exit status is `os.EX_TEMPFAIL` (75) after a stop signal or at a time limit, `INTERRUPTED` after
    SIGINT.
    """

    code: int
    reason: str

    def error(self, checkpoint: str | None, steps: int) -> TrainingStopped:
        """Return the exception with which `train` ends, after `steps` steps that are in `checkpoint`."""
        kind = TrainingInterrupted if self.code == INTERRUPTED else TrainingStopped
        return kind(self.code, self.reason, checkpoint, steps)


class Listener:
    """Hears signals: of the first it takes note, a second one ends the process at once.

    Its handler may interrupt any code, so it takes no lock and logs nothing.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.first_signal: float | None = None  # when it came

    def renew(self) -> None:
        """Listen in a process that was forked from the one which listened so far, which heard nothing yet."""
        if self._process != os.getpid():
            self._process, self.first_signal = os.getpid(), None

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if os.getpid() != self._process:
            hear_in_child(number)
            return
        now = time.monotonic() - arrivals.age(number)
        if self.first_signal is None:
            self.first_signal = now
            self._note(number, now)
        elif now - self.first_signal > REPEAT_SECONDS:
            self._end_at_once(number)

    def _note(self, number: int, now: float) -> None:
        raise NotImplementedError

    def _end_at_once(self, number: int) -> None:
        end_by_default(number)


class StopWatch(Listener):
    """Listens for requests to stop: signals while it is entered, time limits, and what other ranks say.

    A first signal only leaves a request, which the training finds in `stop`. A second one ends the process at
    once: SIGINT by KeyboardInterrupt, any other by its default action.

    When the watch is left, handlers go back, but no sooner than `REPEAT_SECONDS` after the first request: the
    same signal, late, must not end a process that has just stopped in order. Stop signals for which the
    program had no handler of its own stay guarded: one that comes between two trainings is left for the next,
    in which other ranks may be waiting already, and one that comes after a stop does not change its exit
    status. There, too, a second one ends the process at once.

    `signals` are stop signals besides SIGINT. The training has to have stopped `time_limit` seconds after its
    first step began, which `begin` says; SLURM ends the job `slurm_left` seconds from now. The reasons of
    requests name this process's `rank`. With None for that it trains alone: where it does not stop soon after
    a signal, it says what it `waits_for`, and that a second one ends it.

    Attributes
    ----------
    waits_for : str
        After what the training will have stopped, for whoever wonders.
    """

    def __init__(
        self, signals: Iterable[int], time_limit: float | None, slurm_left: float | None, rank: int | None = 0
    ) -> None:
        super().__init__()
        self.waits_for = "what is prepared before the first step"
        self._is_alone = rank is None
        self._is_left = False
        self._begun: float | None = None
        self._time_limit = time_limit
        self._slurm_end = None if slurm_left is None else time.monotonic() + slurm_left
        self._slurm_share = 0.0 if slurm_left is None else _SLURM_SHARE * slurm_left
        self._answers = {
            number: Stop(_status(number), signal_name(number))
            if rank is None
            else _answer(number, f"on rank {rank} ({socket.gethostname()})")
            for number in (*signals, signal.SIGINT)
        }
        # Each with its time. Appended to in one step, so that a handler may come in between.
        self._requests: list[tuple[Stop, float]] = []
        self._is_told = False
        self._before: list[dict[int, Any]] = []  # handlers found by each __enter__

    def begin(self) -> None:
        """Count the time limit from now on: what had to be compiled first is no training."""
        self._begun = time.monotonic()

    @property
    def stop(self) -> Stop | None:
        """The first request, or None."""
        return self._requests[0][0] if self._requests else None

    def ask(self, stop: Stop) -> None:
        """Take a request of another rank."""
        if not self._requests:
            self._requests.append((stop, time.monotonic()))

    def untold(self) -> Stop | None:
        """Return the first request, once: to whom it has to be told."""
        if self._is_told or self.stop is None:
            return None
        self._is_told = True
        return self.stop

    @property
    def slurm_left(self) -> float | None:
        """Seconds until SLURM ends the job, as another rank may have found out; None: not known."""
        return None if self._slurm_end is None else self._slurm_end - time.monotonic()

    @slurm_left.setter
    def slurm_left(self, seconds: float) -> None:
        self._slurm_end = time.monotonic() + seconds
        self._slurm_share = _SLURM_SHARE * seconds

    def tell_again(self) -> None:
        """Let `untold` return the request once more: who was told of it is gone."""
        self._is_told = False

    def check_time(self, saving_seconds: float, has_steps: bool = True) -> None:
        """Request a stop where a time limit leaves just enough time to save, which takes `saving_seconds`.

        The limit of the call counts once it `has_steps`: whoever types the same command again comes on. But
        it waits for the first one no longer than as long again, or `_FIRST_STEP_SECONDS` if that is more.
        """
        now = time.monotonic()
        if self._begun is None:  # an engine that does not say when it begins looks here first
            self._begun = now
        elapsed = now - self._begun
        margin = 2.0 * saving_seconds + _LEAST_MARGIN
        if (limit := self._time_limit) is not None and elapsed >= limit - margin:
            if has_steps or elapsed >= limit + max(limit, _FIRST_STEP_SECONDS):
                self.ask(Stop(os.EX_TEMPFAIL, f"the time limit of {durations.shown(limit)}"))
        if self._slurm_end is not None:
            margin += min(_SLURM_MARGIN, self._slurm_share)
            if now >= self._slurm_end - margin:
                self.ask(Stop(os.EX_TEMPFAIL, "SLURM's time limit"))

    def __enter__(self) -> StopWatch:
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in self._answers:
                handler = signal.getsignal(number)
                # None: set from C, Python could not put it back. And who starts a program with SIGINT
                # ignored, as shells do in the background, does not want it to be stopped by Ctrl-C.
                if handler is not None and not (number == signal.SIGINT and handler == signal.SIG_IGN):
                    before[number] = handler
        else:
            logger.debug("This is another thread than the main one, where Python cannot listen for signals.")
        self._before.append(before)
        try:
            if before:
                arrivals.begin()
            for number in before:
                signal.signal(number, self.hear)
        except BaseException:
            if before:
                arrivals.end()
            for number, handler in self._before.pop().items():
                signal.signal(number, handler)
            raise
        # Not sooner: the guard may have heard one until now.
        if (left := _guard.take()) is not None:
            self.ask(left)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        before = self._before.pop()
        self._is_left = not self._before
        try:
            if before and self._requests:
                time.sleep(max(0.0, self._requests[0][1] + REPEAT_SECONDS - time.monotonic()))
        finally:
            if before:
                arrivals.end()
            for number, handler in before.items():
                if is_guarded(number, handler):
                    _guard.watch(number)
                else:
                    signal.signal(number, handler)
            if kind is None and self.stop is not None:  # it came too late for this training
                _guard.leave(self.stop)

    def _note(self, number: int, now: float) -> None:
        self._requests.append((self._answers[number], now))
        if self._is_alone:
            # Not `threading`, nor the logger from here: their locks may be held by what was interrupted.
            _thread.start_new_thread(self._say_what_is_waited_for, (number,))

    def _say_what_is_waited_for(self, number: int) -> None:
        time.sleep(_QUIET_SECONDS)
        if not self._is_left:
            name = signal_name(number)
            logger.warning(
                "%s: training stops after %s. A second %s ends it at once.", name, self.waits_for, name
            )

    def _end_at_once(self, number: int) -> None:
        if number == signal.SIGINT:
            signal.signal(number, next(before[number] for before in self._before if number in before))
            raise KeyboardInterrupt
        super()._end_at_once(number)


class EndingWatch(StopWatch):
    """Listens likewise for work that may end wherever it is: a first signal raises what `error` returns.

    Of SIGINT it hears where Python's own handler is in place.
    """

    def __init__(self, signals: Iterable[int], error: Callable[[Stop], BaseException]) -> None:
        super().__init__(signals, None, None, None)
        self._error = error
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            del self._answers[signal.SIGINT]

    def check(self) -> None:
        """Raise it once more, where other code has caught it, or a training has heard it in its place."""
        if (left := _guard.take()) is not None:  # by a training that was at its end
            self.ask(left)
        if self.stop is not None:
            raise self._error(self.stop)

    def _note(self, number: int, now: float) -> None:
        stop = self._answers[number]
        self._requests.append((stop, now))
        raise self._error(stop)


class Guard(Listener, Generic[_Request]):
    """Listens for signals between the trainings of a process, and from the last one to its end.

    What the first one asks for, by `answer`, is left for the next training. Of two guards the one that was
    last told to watch a signal hears it.
    """

    def __init__(self, answer: Callable[[int], _Request]) -> None:
        super().__init__()
        self._answer = answer
        self._request: tuple[int, _Request] | None = None  # with the process that was asked
        self._numbers: set[int] = set()

    def watch(self, number: int) -> None:
        """Listen for this signal from now on, which stays what it is if it `is_for_parent`."""
        if is_for_parent(number):
            signal.signal(number, signal.SIG_DFL)
            return
        if not self._numbers:
            atexit.register(self._ignore)
        self.renew()
        self._numbers.add(number)
        signal.signal(number, self.hear)

    def leave(self, request: _Request) -> None:
        """Leave a request for the next training."""
        self._request = os.getpid(), request

    def take(self) -> _Request | None:
        """Return the request that was left, which is then no longer."""
        left, self._request, self.first_signal = self._request, None, None
        return None if left is None or left[0] != os.getpid() else left[1]

    def _note(self, number: int, now: float) -> None:
        if self._request is None or self._request[0] != os.getpid():
            self.leave(self._answer(number))

    def _ignore(self) -> None:
        """Let no such signal end the process any more: Python gives up its handlers before MPI is through."""
        for number in self._numbers:
            if signal.getsignal(number) == self.hear:
                signal.signal(number, signal.SIG_IGN)


def _answer(number: int, where: str) -> Stop:
    return Stop(_status(number), f"{signal.Signals(number).name} {where}")


def _status(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else os.EX_TEMPFAIL


_guard = Guard(partial(_answer, where="between two trainings"))
