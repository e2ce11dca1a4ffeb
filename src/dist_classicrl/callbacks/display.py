"""How a run is shown while it goes on: as lines that grep well, or told to a process that draws a bar."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dist_classicrl._files import whole_file
from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.monitoring.reports import RecentEpisodes

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress

logger = logging.getLogger("dist_classicrl.progress")


def as_line(progress: Progress) -> str:
    """Return a report as one line of ``name=value``."""
    left = time_left(progress)
    values = {
        "steps": progress.steps,
        "total_steps": progress.total_steps,
        "rate": f"{progress.steps_per_second:.4g}",
        "return": f"{progress.mean_return:.4g}",
        "episodes": progress.episodes,
        "td_error": f"{progress.td_error:.3g}",
        "epsilon": f"{progress.epsilon:.3g}",
        "workers": progress.workers,
        "seconds": f"{progress.seconds:.1f}",
        "left": "nan" if left is None else f"{left:.0f}",
    }
    return " ".join(f"{name}={value}" for name, value in values.items())


def time_left(progress: Progress) -> float | None:
    """Return the seconds that the run will still take at the rate of the last report; None: not known."""
    if progress.steps >= progress.total_steps:
        return 0.0
    if progress.steps_per_second <= 0.0:
        return None
    return (progress.total_steps - progress.steps) / progress.steps_per_second


def _log(line: str) -> None:
    logger.info("%s", line)


class Recently:
    """Makes of a report one with the mean return of the last 100 episodes at least, and not of its few."""

    def __init__(self) -> None:
        self._recent = RecentEpisodes()

    def __call__(self, progress: Progress) -> Progress:
        """Take in a report, each once, and return what is to be shown of it."""
        self._recent.add(progress.episodes, progress.mean_return, progress.mean_length)
        return replace(progress, mean_return=self._recent.mean_return)


class LogCallback(BaseCallback):
    """Logs a line about the run at the first report after every `interval` seconds, and at its end.

    `write` may put what `line` makes of a report elsewhere.
    """

    def __init__(
        self,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = _log,
        line: Callable[[Progress], str] = as_line,
    ) -> None:
        super().__init__()
        self._write, self._line = write, line
        self._interval = interval
        self._clock = clock
        self._next = -math.inf
        self._shown = -1
        self._last: Progress | None = None
        self._recently = Recently()

    def _on_training_start(self) -> None:
        self._next = self._clock() + self._interval

    def _on_step(self) -> bool:
        assert self.progress is not None  # it came with the step
        shown = self._recently(self.progress)
        if self._last is None or shown.steps != self._last.steps:
            self._last = shown  # one without a step has no rate
        if self._clock() >= self._next:
            self._next = self._clock() + self._interval
            self._show()
        return True

    def _on_close(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._last is not None and self._last.steps != self._shown:
            self._shown = self._last.steps
            self._write(self._line(self._last))


class StatusCallback(BaseCallback):
    """Writes each report into a small file, for a process that shows it on a terminal."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._is_failing = False
        self._recently = Recently()

    def _on_training_start(self) -> None:
        self._write(has_ended=False)

    def on_step(self, progress: Progress) -> bool:
        """Give a report."""
        return super().on_step(self._recently(progress))

    def _on_step(self) -> bool:
        self._write(has_ended=False)
        return True

    def _on_close(self) -> None:
        self._write(has_ended=True)

    def _write(self, has_ended: bool) -> None:
        if self.progress is None:  # this rank has not served
            return
        data = {"progress": {**self.progress.to_dict(), "events": []}, "has_ended": has_ended}
        try:
            with whole_file(self._path, durable=False) as file:  # it need not survive a crash
                file.write(json.dumps(data).encode())
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                logger.warning("What is shown of the run cannot be brought up to date: %s.", error)
            self._is_failing = True


class StatusFile:
    """Reads what `StatusCallback` writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._progress: Progress | None = None
        self._has_ended = False

    @property
    def progress(self) -> Progress | None:
        """The last report; None before the first one."""
        self._look()
        return self._progress

    @property
    def has_ended(self) -> bool:
        """Whether the training has."""
        self._look()
        return self._has_ended

    def _look(self) -> None:
        from dist_classicrl.engines.progress import Progress

        try:
            found = self._path.stat()
            stamp = found.st_mtime_ns, found.st_ino
            if stamp == self._stamp:
                return
            data = json.loads(self._path.read_text())
            self._progress = Progress.from_dict(data["progress"])
            self._has_ended = bool(data["has_ended"])
            self._stamp = stamp
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return  # not there yet, or of another version
