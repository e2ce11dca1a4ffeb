"""Rows that a rank writes to a checkpoint in a thread, while its main loop says that it is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.05


class _GivenUp(Exception):
    """Nobody waits for what is being written any more."""


@dataclass(eq=False)
class _Job:
    moved: float = field(default_factory=time.monotonic)  # when a piece was last begun
    is_wanted: bool = True

    def look(self) -> None:
        """Take note that it goes on; _GivenUp if it need not."""
        if not self.is_wanted:
            raise _GivenUp
        self.moved = time.monotonic()


class RowWriter:
    """Writes one thing at a time, and gives it up where it hangs, with its disk or that disk's server.

    What was given up reads its rows no further than the piece that it hangs in. Nothing else is begun before
    it has noticed, and the end of the process does not wait for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def write(
        self, work: Callable[[Callable[[], None]], T], patience: float, meanwhile: Callable[[], None]
    ) -> T:
        """Return what `work` returns, which is given what to call before each piece.

        `meanwhile` is called every 50 ms; what it raises comes through, and gives the work up as well.
        OSError, whatever the work raises, and where nothing goes on for `patience` seconds, or with what was
        given up before.
        """
        if self._thread is not None and self._thread.is_alive():
            raise OSError("an earlier checkpoint is still being written: its disk may hang")
        job, result = _Job(), Future[T]()

        def run() -> None:
            try:
                result.set_result(work(job.look))
            except Exception as error:  # remote stores raise errors of many kinds
                result.set_exception(OSError(f"{type(error).__name__}: {error}"))
            except BaseException as error:  # whatever it is, who waits must hear of it
                result.set_exception(error)

        self._thread = threading.Thread(target=run, name="rows", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no more threads
            raise OSError(str(error)) from error
        try:
            while not wait([result], _LOOK_SECONDS).done:
                if time.monotonic() > job.moved + patience:
                    raise OSError(
                        f"nothing was written for {patience:.0f} s: its disk, or the server of it, hangs"
                    )
                meanwhile()
        finally:
            job.is_wanted = False
        return result.result()
