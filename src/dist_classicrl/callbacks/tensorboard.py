"""Progress of a run for TensorBoard, without TensorFlow."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from dist_classicrl.callbacks.files import refuse_or_warn
from dist_classicrl.callbacks.scalars import ScalarsCallback
from dist_classicrl.checks import checked_path, importing, require_package

logger = logging.getLogger(__name__)


class TensorBoardCallback(ScalarsCallback):
    """Writes the numbers of each report as scalars, at `num_timesteps`, and what callbacks `record`.

    Names are those of Stable-Baselines3 where it has them: ``rollout/ep_rew_mean`` and
    ``rollout/ep_len_mean`` over the episodes of the last reports, as few reports as have 100 episodes at
    least, ``rollout/exploration_rate``, ``time/fps``, ``time/time_elapsed``,
    ``train/learning_rate``; besides ``rollout/episodes``, ``train/td_error`` and, under ``workers/``, number,
    communication_fraction, staleness, pushes, bytes_pushed, bytes_pulled and bytes_saved of each report.

    A run that goes on from a checkpoint writes another file to the same folder and tells TensorBoard to pass
    over what older ones say of later steps.

    Parameters
    ----------
    log_dir : str or path
        Made if it is missing; best one for each run.
    verbose : int
        1: the folder is logged.

    Raises
    ------
    MissingExtraError
        If the package tensorboard is not installed, or, when the training begins, cannot be imported.
    """

    def __init__(self, log_dir: str | os.PathLike[str], verbose: int = 0) -> None:
        super().__init__(verbose)
        require_package("tensorboard", "TensorBoardCallback", "tensorboard")
        self.log_dir = checked_path("log_dir", log_dir)
        self._writer: Any = None

    def _on_training_start(self) -> None:
        with importing("tensorboard", "TensorBoardCallback"):
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._close()
        try:
            self._writer = EventFileWriter(self.log_dir)
        except OSError as error:
            what = f"TensorBoard's files cannot be written to {self.log_dir}"
            refuse_or_warn(error, what, "TensorBoardCallback", self.num_timesteps)
            return
        if self.verbose > 0:
            logger.info("TensorBoard's files of this run are written to %s.", self.log_dir)
        # Whatever is there of steps from this one on was lost with the process that wrote it.
        begins = Event(
            wall_time=time.time(),
            step=self.reported_timesteps + 1,
            session_log=SessionLog(status=SessionLog.START),
        )
        self._write(begins)

    def _write_scalars(self, step: int, scalars: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            logger.warning("TensorBoard's files cannot be closed: %s.", error)

    def _write(self, event: Any) -> None:
        if self._writer is None:
            return
        try:
            self._writer.add_event(event)
            self._writer.flush()
        except OSError as error:
            logger.warning("TensorBoard's files cannot be written any more: %s.", error)
            self._writer = None
