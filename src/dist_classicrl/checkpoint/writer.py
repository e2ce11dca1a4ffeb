"""Checkpoints written by a thread, while training goes on."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.checkpoint.fence import Succession
from dist_classicrl.checkpoint.file_thread import GivenUp, Job
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.names import CheckpointName
from dist_classicrl.errors import CheckpointFencedError

logger = logging.getLogger(__name__)

_EXIT_SECONDS = 10.0


_writing: dict[threading.Thread, Job] = {}


@atexit.register
def _finish_writing() -> None:
    """Give what is still being written when the process ends some time to finish."""
    deadline = time.monotonic() + _EXIT_SECONDS
    for thread, job in list(_writing.items()):
        if job.is_wanted:
            thread.join(max(0.0, deadline - time.monotonic()))


class Writer:
    """Writes checkpoints to a folder, one at a time, each in a thread of its own.

    A checkpoint that cannot be written is no reason to stop training: it is logged, once per series of
    failures, and the next one is tried. Only a later claim to the folder is raised, by `check`. A process
    that ends waits for what it has submitted, but not for long. With a `succession` the folder has yet to be
    claimed: that is tried before each checkpoint until it succeeds.
    """

    def __init__(self, folder: CheckpointFolder, succession: Succession | None = None) -> None:
        self._folder = folder
        self._succession = succession  # None: the folder is claimed
        self._changed = threading.Condition()
        self._job: Job | None = None
        self._is_reported = False  # that it is slow
        #: The name of the last checkpoint that was written and verified; None if there is none yet.
        self.last_name: str | None = None
        #: Where that is, for people; "none" also where it was gone as a later one failed.
        self.last_good = "none"
        #: Whether the most recent attempt failed; one that was abandoned does not count.
        self.failed = False
        self._fenced: CheckpointFencedError | None = None
        self._durations: deque[float] = deque(maxlen=10)

    @property
    def url(self) -> str:
        """Where the folder is, for people."""
        return self._folder.url

    @property
    def last(self) -> str | None:
        """Where the last checkpoint is that was written and verified; None if there is none yet."""
        return None if self.last_name is None else self._folder.url_of(self.last_name)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written; its arrays must be left alone until it is."""
        return self._job is not None

    @property
    def needs_arrays(self) -> bool:
        """Whether the arrays of a checkpoint must be left alone: it is being written, and not given up."""
        job = self._job
        return job is not None and job.is_wanted

    @property
    def seconds(self) -> float:
        """How long the longest of the last ten writes took; 0 if there was none."""
        with self._changed:
            return max(self._durations, default=0.0)

    @property
    def stalled_for(self) -> float:
        """For how many seconds nothing of the checkpoint that is being written went on; 0 if there is none.

        While the system brings to disk what was written to a file, which it may do at its end, nothing does.
        """
        job = self._job
        return 0.0 if job is None else job.stalled_for

    def has_any(self, run: str) -> bool:
        """Whether there is a complete checkpoint of this run in the folder, as it is now."""
        return self._folder.has_any(run)

    def check(self) -> None:
        """Raise the CheckpointFencedError that a thread met, if one did, or if this process was forked."""
        self._folder.fence.check_process()
        if self._fenced is not None:
            raise self._fenced

    def try_to_claim(self) -> None:
        """Claim the folder if it has yet to be claimed; what is in the way is noted as of a checkpoint."""
        with self._noting():
            self._claim()

    def _claim(self) -> None:
        if self._succession is not None:
            self._folder.fence.claim(self._succession)
            self._succession = None

    def next_name(self, steps: int, run: str) -> CheckpointName:
        """Return the name of a checkpoint to which others write parts first; CheckpointFencedError."""
        self._claim()
        return self._folder.next_name(steps, run)

    def clear(self, name: CheckpointName) -> None:
        """Remove what was left half written before `name`, as whoever writes it alone does by itself."""
        self._folder.clear(name)

    def fail(self, error: Exception, name: CheckpointName | None) -> None:
        """Take note that others could not write their parts to `name`, and remove those that are there."""
        if name is not None:
            # Backends raise errors of many kinds; what is left the next one removes.
            with suppress(Exception):
                self._folder.discard(name)
        with self._noting():
            self._folder.check_replaced()  # who has taken over removes what is here half written
        self._note_failure(error)

    def submit(
        self,
        arrays: Mapping[str, np.ndarray | array_files.InSlices],
        body: dict[str, Any],
        run: str,
        name: CheckpointName | None = None,
        parts: Mapping[str, array_files.ArrayEntry] | None = None,
    ) -> None:
        """Start to write a checkpoint, see `CheckpointFolder.write`; ValueError if the writer is busy."""
        with self._changed:
            if self._job is not None:
                raise ValueError("the writer is busy; submit when it no longer is")
            self._job = job = Job()
            self._is_reported = False
            write = partial(self._folder.write, arrays, body, run, job.look, name, parts)
            thread = threading.Thread(target=self._work, args=(job, write), name="checkpoints", daemon=True)
            _writing[thread] = job
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads
                del _writing[thread]
                self._job = None
                self._note_failure(error)

    def wait(self, timeout: float) -> bool:
        """Wait until the writer is idle, for at most `timeout` seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._job is None, max(timeout, 0.0))

    def abandon(self) -> None:
        """Give up what is being written: its arrays may change from now on, and it gets no manifest.

        The writer is busy until its thread has noticed.
        """
        if (job := self._job) is not None:
            job.is_wanted = False

    def report_slow(self, seconds: float) -> None:
        """Log, once per checkpoint, that the one being written has taken longer than `seconds`."""
        job = self._job
        if job is None or self._is_reported:
            return
        taken = time.monotonic() - job.begun
        if taken <= seconds:
            return
        self._is_reported = True
        logger.warning(
            "The checkpoint that was begun at %s is still being written to %s, after %.0f s. What was "
            "learned since the last good checkpoint of this process (%s) is not saved. See whether that disk "
            "or its server hangs.",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - taken)),
            self._folder.url,
            taken,
            self.last_good,
        )

    def _work(self, job: Job, write: Callable[[], str]) -> None:
        try:
            self._write(job, write)
        finally:
            del _writing[threading.current_thread()]
            with self._changed:
                self._job = None
                self._changed.notify_all()

    def _write(self, job: Job, write: Callable[[], str]) -> None:
        with self._noting():
            self._claim()
            name = write()
            if self.failed:
                logger.warning("Checkpoints can be written to %s again.", self._folder.url)
            self.last_name, self.failed = name, False
            self.last_good = self._folder.url_of(name)
            with self._changed:
                self._durations.append(time.monotonic() - job.begun)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except GivenUp:
            return
        except CheckpointFencedError as error:
            self.failed, self._fenced = True, error
        except Exception as error:  # a full disk, a lost connection: backends raise errors of many kinds
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        with suppress(Exception):  # a disk that does not say so has it
            if self.last_name is not None and not self._folder.has(self.last_name):
                self.last_good = "none"
        if not self.failed:
            logger.warning(
                "No checkpoint could be written to %s (%s: %s). As long as training goes on, the next one is "
                "tried. The last good checkpoint of this process is %s.",
                self._folder.url,
                type(error).__name__,
                error,
                self.last_good,
            )
        self.failed = True
