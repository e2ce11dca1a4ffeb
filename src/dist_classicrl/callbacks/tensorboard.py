"""Progress of a run for TensorBoard, without TensorFlow."""

from __future__ import annotations

import logging
import math
import os
import time
from importlib.util import find_spec
from typing import Any

from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.callbacks.files import refuse_or_warn
from dist_classicrl.checks import checked_path
from dist_classicrl.errors import MissingExtraError
from dist_classicrl.monitoring.reports import RecentEpisodes

logger = logging.getLogger(__name__)


class TensorBoardCallback(BaseCallback):
    """Writes the numbers of each report as scalars, at `num_timesteps`, and what callbacks `record`.

    Names are those of Stable-Baselines3 where it has them: ``rollout/ep_rew_mean`` and
    ``rollout/ep_len_mean`` over about the last 100 episodes, ``rollout/exploration_rate``, ``time/fps``,
    ``time/time_elapsed``, ``train/learning_rate``; besides ``rollout/episodes``, ``train/td_error`` and,
    under ``workers/``, number, communication_fraction, staleness, pushes, bytes_pushed and bytes_pulled of
    each report.

    A run that goes on from a checkpoint writes another file to the same folder and tells TensorBoard to pass
    over what older ones say of later steps.

    Parameters
    ----------
    log_dir : str or path
        Made if it is missing; best one for each run.
    verbose : int

    Raises
    ------
    MissingExtraError
        If the package tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str], verbose: int = 0) -> None:
        super().__init__(verbose)
        if find_spec("tensorboard") is None:
            raise MissingExtraError(
                "TensorBoardCallback needs the package tensorboard, which is not installed. Write: "
                "pip install tensorboard."
            )
        self.log_dir = checked_path("log_dir", log_dir)
        self._writer: Any = None
        self._recent = RecentEpisodes()
        self._told: dict[str, int] = {}  # the step of what was recorded, and written, last

    def _on_training_start(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._on_close()
        try:
            self._writer = EventFileWriter(self.log_dir)
        except OSError as error:
            what = f"TensorBoard's files cannot be written to {self.log_dir}"
            refuse_or_warn(error, what, "TensorBoardCallback", self.num_timesteps)
            return
        # Whatever is there of steps from this one on was lost with the process that wrote it.
        begins = Event(
            wall_time=time.time(),
            step=self.reported_timesteps + 1,
            session_log=SessionLog(status=SessionLog.START),
        )
        self._write(begins)

    def _on_step(self) -> bool:
        self._write_scalars({self.num_timesteps: self._scalars()})
        return True

    def _on_training_end(self) -> None:
        self._write_scalars({})  # what callbacks after this one recorded at the last report

    def _write_scalars(self, at: dict[int, dict[str, float]]) -> None:
        """Write these numbers by step, and what was recorded since the last time."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, (step, value) in self.recorded.items():
            if self._told.get(name) != step:
                at.setdefault(step, {})[name] = value
                self._told[name] = step
        for step, scalars in sorted(at.items()):
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in scalars.items()
                if not math.isnan(value)
            ]
            self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _on_close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self) -> dict[str, float]:
        progress = self.progress
        assert progress is not None  # it came with the step
        self._recent.add(progress.episodes, progress.mean_return, progress.mean_length)
        return {
            "rollout/ep_rew_mean": self._recent.mean_return,
            "rollout/ep_len_mean": self._recent.mean_length,
            "rollout/episodes": progress.episodes,
            "rollout/exploration_rate": progress.epsilon,
            "time/fps": progress.steps_per_second,
            "time/time_elapsed": progress.seconds,
            "train/learning_rate": progress.learning_rate,
            "train/td_error": progress.td_error,
            "workers/number": progress.workers,
            "workers/communication_fraction": progress.communication_fraction,
            "workers/staleness": progress.staleness,
            "workers/pushes": progress.pushes,
            "workers/bytes_pushed": progress.bytes_pushed,
            "workers/bytes_pulled": progress.bytes_pulled,
        }

    def _write(self, event: Any) -> None:
        if self._writer is None:
            return
        try:
            self._writer.add_event(event)
            self._writer.flush()
        except OSError as error:
            logger.warning("TensorBoard's files cannot be written any more: %s.", error)
            self._writer = None
