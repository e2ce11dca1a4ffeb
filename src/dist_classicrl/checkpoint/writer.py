"""Checkpoints written by a thread, while training goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.errors import CheckpointFencedError

logger = logging.getLogger(__name__)


class Writer:
    """Writes checkpoints to a claimed folder, one at a time, in a thread that starts with the first.

    A checkpoint that cannot be written is no reason to stop training: it is logged, once per row of failures,
    and the next one is tried. Only somebody else's claim is raised, by `check`.

    Parameters
    ----------
    folder : CheckpointFolder
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._job: tuple[Mapping[str, np.ndarray], dict[str, Any], str] | None = None
        self._closed = False
        self._last: str | None = None
        self._failed = False
        self._fenced: CheckpointFencedError | None = None
        self._durations: deque[float] = deque(maxlen=10)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written; its arrays must be left alone until it is."""
        return self._job is not None

    @property
    def last(self) -> str | None:
        """Where the last checkpoint is that was written and verified; None if there is none yet."""
        return self._last

    @property
    def seconds(self) -> float:
        """How long the longest of the last ten writes took; 0 if there was none."""
        with self._changed:
            return max(self._durations, default=0.0)

    @property
    def failed(self) -> bool:
        """Whether the most recent attempt failed."""
        return self._failed

    def check(self) -> None:
        """Raise the CheckpointFencedError that the thread met, if it did."""
        if self._fenced is not None:
            raise self._fenced

    def submit(self, arrays: Mapping[str, np.ndarray], body: dict[str, Any], run: str) -> None:
        """Hand over a checkpoint; the arguments are those of `CheckpointFolder.write`.

        Raises
        ------
        ValueError
            If the writer is busy, or closed.
        """
        with self._changed:
            if self._closed:
                raise ValueError("the writer is closed")
            if self._job is not None:
                raise ValueError("the writer is busy; submit when it no longer is")
            self._job = (arrays, body, run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until the writer is idle, for at most `timeout` seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._job is None, max(timeout, 0.0))

    def write_now(
        self, arrays: Mapping[str, np.ndarray], body: dict[str, Any], run: str, timeout: float
    ) -> str | None:
        """Write a checkpoint within `timeout` seconds and return where it is; None if that did not succeed.

        A write that is running comes first. After None, the arrays must be left alone while `busy`.
        """
        deadline = time.monotonic() + timeout
        if not self.wait(timeout):
            return None
        self.submit(arrays, body, run)
        if not self.wait(deadline - time.monotonic()) or self._failed:
            return None
        return self._last

    def close(self, timeout: float = 10.0) -> None:
        """End the thread once it is idle, and wait for that for at most `timeout` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closed)
                if self._job is None:
                    return
                job = self._job
            try:
                self._write(*job)
            finally:
                with self._changed:
                    self._job = None
                    self._changed.notify_all()
            del job  # the caller's arrays

    def _write(self, arrays: Mapping[str, np.ndarray], body: dict[str, Any], run: str) -> None:
        started = time.monotonic()
        try:
            name = self._folder.write(arrays, body, run)
        except CheckpointFencedError as error:
            self._failed, self._fenced = True, error
        except Exception as error:  # a full disk, a lost connection: backends raise errors of many kinds
            if not self._failed:
                logger.warning(
                    "No checkpoint could be written to %s (%s: %s). Training goes on, and the next one is "
                    "tried. The last good checkpoint of this process is %s.",
                    self._folder.url,
                    type(error).__name__,
                    error,
                    self._last or "none",
                )
            self._failed = True
        else:
            if self._failed:
                logger.warning("Checkpoints can be written to %s again.", self._folder.url)
            self._last, self._failed = self._folder.url_of(name), False
            with self._changed:
                self._durations.append(time.monotonic() - started)
