"""Metrics of a run as a callback: a line per report in ``metrics.jsonl`` and ``metrics.csv``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.callbacks.files import refuse_or_warn
from dist_classicrl.checks import checked_path
from dist_classicrl.monitoring.files import TakenOverError
from dist_classicrl.monitoring.recording import MetricsWriter, writer_in

logger = logging.getLogger(__name__)


class MetricsCallback(BaseCallback):
    """Records a run in a folder of its own.

    ``metrics.jsonl`` has a JSON object per line: ``{"kind": "progress", "run": ..., "step": ...,
    "time": ..., "recent_return": ...}`` with all of `Progress`, or ``{"kind": "event", "run": ...,
    "step": ..., "time": ..., "event": {...}}`` with one of `TrainingResult.events`, or of the kind
    "checkpoint", whose "detail" says where it is. null stands for NaN. "run" is the agent's `run_id`. "step"
    and "time" count over all calls of `train`, "recent_return" is the mean over the episodes of the last
    reports, as few reports as have 100 episodes at least. ``metrics.csv`` has the numbers of the progress
    lines, and no text such as "run". `dist_classicrl.monitoring.read_metrics` reads the first back.

    A run that goes on from a checkpoint appends to what is there: lines of later steps, whose learning was
    lost, are moved to ``metrics.lost.jsonl``, and half a line at the end is cut off, so there is neither a
    gap nor a double, and the CSV is written anew to match. So does the next call of `train` of the same
    agent. A run that begins at step 0, or another agent, also one that `load_model` returned, renames the
    files of an earlier one to ``metrics.1.jsonl`` and so on.

    Parameters
    ----------
    folder : str or path
        Made if it is missing. Where several hosts may come to serve, all of them should see it.
    verbose : int
        1: the folder is logged.

    Notes
    -----
    Each line is one write to the end of the file, so it survives whatever happens to the process from then
    on, such as ``kill -9``. It is not synchronized with the disk: a power failure may take the last seconds.

    A process that begins to record puts a new file in the old one's place. A server that was replaced and
    does not know it, or the same command started twice, finds that out before it writes its next line, says
    so in the log and records no more. A disk that is full costs a warning; the lines wait and are written
    later.

    Where another rank takes the place of a lost server, it goes on with the table, the steps and the lines of
    which that rank knew, and the next line has what was counted since.
    """

    def __init__(self, folder: str | os.PathLike[str], verbose: int = 0) -> None:
        super().__init__(verbose)
        self.folder = Path(checked_path("folder", folder))
        self._writer: MetricsWriter | None = None
        self._is_failing = False

    def _on_training_start(self) -> None:
        assert self.progress is not None  # it came with the start
        now = self.model.run_id, self.num_timesteps, self.progress, self.reported_timesteps
        self._writer = None
        try:
            self._writer = writer_in(self.folder, *now)
        except OSError as error:
            what = f"Metrics cannot be written to {self.folder}"
            refuse_or_warn(error, what, "MetricsCallback", self.num_timesteps)
            return
        if self.verbose > 0:
            logger.info("Metrics of this run are written to %s.", self.folder)

    def _on_step(self) -> bool:
        progress = self.progress
        assert progress is not None  # it came with the step
        self._write(lambda writer: writer.add_progress(self.num_timesteps, progress))
        return True

    def _on_training_end(self) -> None:
        self._write(MetricsWriter.flush)

    def _on_close(self) -> None:
        if self._writer is not None:
            self._writer.rest()

    def _add_event(self, event: dict[str, Any]) -> None:
        self._write(lambda writer: writer.add_event(event))

    _on_worker_lost = _on_worker_joined = _on_failover = _add_event

    def _on_checkpoint(self, steps: int, name: str) -> None:
        seconds = 0.0 if self.progress is None else self.progress.seconds
        self._add_event(
            {"kind": "checkpoint", "rank": 0, "seconds": seconds, "steps_returned": 0, "detail": name}
        )

    def _write(self, what: Callable[[MetricsWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            what(self._writer)
            self._is_failing = False
        except TakenOverError as taken:
            logger.warning("%s: this one records no more. Is the same run going on twice?", taken)
            self._writer = None
        except OSError as error:
            if not self._is_failing:
                logger.warning("Metrics cannot be written: %s. They wait until they can.", error)
            self._is_failing = True
