"""The numbers of a run for programs that show runs: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.monitoring.reports import Gathered, RecentEpisodes

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress


class ScalarsCallback(BaseCallback):
    """Gives the numbers of each report, and what callbacks `record`, to `_write_scalars`."""

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._of: str | None = None  # the `run_id` of what follows
        self._recent = RecentEpisodes()
        self._gathered = Gathered()
        self._told: dict[str, tuple[int, float]] = {}  # what was recorded, and written, last

    def _init_callback(self) -> None:
        if self.model.run_id != self._of:
            self._of = self.model.run_id
            self._recent, self._told = RecentEpisodes(), {}
            self.recorded.clear()  # of a list that was another agent's

    def on_training_start(self, progress: Progress, reported: int | None = None) -> None:
        """Tell that this rank serves from now on."""
        self._gathered = Gathered(progress.steps, progress.seconds)
        super().on_training_start(progress, reported)

    def _write_scalars(self, step: int, scalars: dict[str, float]) -> None:
        """Write these numbers, none of which is NaN, as of `step`; steps never fall within a call."""
        raise NotImplementedError

    def _on_step(self) -> bool:
        assert self.progress is not None  # it came with the step
        self._gathered.add(self.progress)
        # Those without a step wait for the next one with steps: its numbers stand for all since the last.
        gathered = self._gathered.take() if self._gathered.has_steps else None
        self._write_new({} if gathered is None else {self.num_timesteps: self._scalars(gathered)})
        return True

    def _on_close(self) -> None:
        self._write_new({})  # what callbacks recorded after the last report was written
        self._close()

    def _close(self) -> None:
        """Close what is open, if anything is."""

    def _write_new(self, at: dict[int, dict[str, float]]) -> None:
        """Write these numbers by step, and what was recorded since the last time."""
        for name, (step, value) in self.recorded.items():
            if self._told.get(name) != (step, value):
                at.setdefault(step, {})[name] = value
                self._told[name] = step, value
        for step, scalars in sorted(at.items()):
            known = {name: float(value) for name, value in scalars.items() if not math.isnan(value)}
            if known:
                self._write_scalars(step, known)

    def _scalars(self, progress: Progress) -> dict[str, float]:
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
            "workers/bytes_saved": progress.bytes_saved,
        }
