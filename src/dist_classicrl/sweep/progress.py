"""How far a sweep is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dist_classicrl.checks import is_flag, is_whole, takes_one
from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.plan import Plan


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Attributes
    ----------
    done, failed, total : int
        Runs that ended well, those that raised an error, and all; with early stopping those of all rungs.
    steps_per_second : float
        Of all runs that ended since this call began, in all processes.
    seconds, seconds_left : float
        Since this call began, and until it ends, as it looks; NaN before a run has ended.
    """

    done: int
    failed: int
    total: int
    steps_per_second: float
    seconds: float
    seconds_left: float


def check_call(processes: Any, progress: Any, retry_failed: Any) -> None:
    """Raise `StudyError` unless these are arguments of `Sweep.run`."""
    if processes is not None and not (is_whole(processes) and processes >= 1):
        raise StudyError(f"processes must be a whole number of 1 or more, got {processes!r}.")
    if progress is not None and not (callable(progress) and takes_one(progress)):
        raise StudyError(
            f"progress must be a function that takes a SweepProgress, or None, got {progress!r}."
        )
    if not is_flag(retry_failed):
        raise StudyError(f"retry_failed must be True or False, got {retry_failed!r}.")


class ShownSweep:
    """Tells a function how far a sweep is, about once a second."""

    def __init__(
        self, progress: Callable[[SweepProgress], Any] | None, plan: Plan, total: int, folder: StudyFolder
    ) -> None:
        self._progress, self._plan, self._total, self._folder = progress, plan, total, folder
        self._began = self._then = time.monotonic()
        self._seen = len(folder.records())  # of which some may be of seeds that this process was not told of
        self._before = self._made = plan.n_made(folder.records_read)
        self._failed = self._count_failed()
        self._withdrawn = folder.withdrawn
        self._steps = 0  # of the runs that ended since

    def tick(self, at_end: bool = False) -> None:
        """Tell it, if it is time."""
        now = time.monotonic()
        if self._progress is None or now - self._then < 1.0 and not at_end:
            return
        self._then = now
        records = self._folder.records()
        for record in islice(records.values(), self._seen, None):
            if self._plan.number_of(record["run"]) is not None:
                self._made += 1
                self._steps += record.get("steps", 0)
                self._failed += record["error"] is not None
        if self._folder.withdrawn != self._withdrawn:  # somebody makes failed runs once more
            self._withdrawn, self._failed = self._folder.withdrawn, self._count_failed()
            self._made = self._plan.n_made(records)
            self._before = min(self._before, self._made)
        self._seen = len(records)
        fresh, passed = self._made - self._before, max(now - self._began, 1e-9)
        # An asynchronous halving makes some more than are planned.
        total = max(self._total, self._made)
        left = (total - self._made) * passed / fresh if fresh else float("nan")
        self._progress(
            SweepProgress(
                self._made - self._failed,
                self._failed,
                total,
                self._steps / passed,
                passed,
                0.0 if at_end else left,
            )
        )

    def _count_failed(self) -> int:
        failed = {key: one for key, one in self._folder.records_read.items() if one["error"] is not None}
        return self._plan.n_made(failed)
