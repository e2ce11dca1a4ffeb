"""What is done with files in a thread, and given up where it hangs, with their disk or that disk's server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from dist_classicrl._words import error_told

T = TypeVar("T")

_LOOK_SECONDS = 0.05


class GivenUp(BaseException):
    """Nobody waits for what is being done any more: no trouble of a file, which others would take it for."""


class Job:
    """Something that a thread writes or reads, piece by piece."""

    def __init__(self) -> None:
        self.begun = self._moved = time.monotonic()
        self.is_wanted = True

    def look(self) -> None:
        """Take note that a piece of it begins; GivenUp if it need not."""
        if not self.is_wanted:
            raise GivenUp
        self._moved = time.monotonic()

    @property
    def stalled_for(self) -> float:
        """For how many seconds no piece has begun."""
        return time.monotonic() - self._moved


class FileThread:
    """Does one thing at a time, and gives it up where it hangs; `done` to it is "written", say.

    What was given up goes no further than the piece that it hangs in. Nothing else is begun before it has
    noticed, and the end of the process does not wait for it.
    """

    def __init__(self, done: str) -> None:
        self._done = done
        self._job = Job()
        self._result: Future[Any] | None = None

    def do(
        self, work: Callable[[Callable[[], None]], T], patience: float, meanwhile: Callable[[], None]
    ) -> T:
        """Return what `work` returns, which is given what to call before each piece.

        `meanwhile` is called every 50 ms; what it raises comes through, and gives the work up as well.
        OSError, whatever the work raises, and where nothing of it, or of what was given up before, goes on
        for `patience` seconds.
        """
        self._wait(patience, meanwhile)
        self._job = job = Job()
        self._result = result = Future[T]()

        def run() -> None:
            try:
                result.set_result(work(job.look))
            except Exception as error:  # remote stores raise errors of many kinds
                result.set_exception(OSError(error_told(error)))
            except BaseException as error:  # whatever it is, who waits must hear of it
                result.set_exception(error)

        try:
            threading.Thread(target=run, name="rows", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads
            result.set_exception(OSError(str(error)))
        try:
            self._wait(patience, meanwhile)
        finally:
            job.is_wanted = False
        return result.result()

    def _wait(self, patience: float, meanwhile: Callable[[], None]) -> None:
        """Wait until what was begun last has ended."""
        while self._result is not None and not wait([self._result], _LOOK_SECONDS).done:
            if (seconds := self._job.stalled_for) > patience:
                raise OSError(
                    f"nothing was {self._done} for {seconds:.0f} s: its disk, or the server of it, hangs"
                )
            meanwhile()
