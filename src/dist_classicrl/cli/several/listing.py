"""The runs in a folder, in short."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dist_classicrl.cli.config import ENVIRONMENT
from dist_classicrl.cli.run_folder import RunFolder, runs_below, steps_saved
from dist_classicrl.errors import CheckpointError, MetricsError, SettingsError


@dataclass(frozen=True)
class ListedRun:
    """What is known of a run; None where nothing is."""

    run: str  # its folder
    environment: str | None
    algorithm: str | None
    steps: int  # that were made, as far as its files tell
    total_steps: int | None  # that were asked for
    has_ended: bool
    mean_return: float | None  # while exploring: of the whole run, or of late where it has not ended
    greedy_return: float | None  # at its end

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)

    def to_row(self) -> list[str]:
        """Return it as a row of a table under `HEADERS`."""
        total = "" if self.total_steps is None or self.has_ended else f" of {self.total_steps:,}"
        returns = ("-" if each is None else f"{each:.4g}" for each in (self.mean_return, self.greedy_return))
        state = "done" if self.has_ended else "not ended"
        return [
            self.run,
            self.environment or "-",
            self.algorithm or "-",
            f"{self.steps:,}{total}",
            state,
            *returns,
        ]


HEADERS = ("run", "environment", "algorithm", "steps", "state", "mean return", "greedy return")


def runs_in(place: Path) -> list[ListedRun]:
    """Return the runs whose folders lie in `place`, by name; none where it is the folder of a run itself."""
    return [_listed(folder) for folder in runs_below(place)]


def _listed(folder: RunFolder) -> ListedRun:
    try:
        settings = folder.read_config()
    except SettingsError:  # somebody has edited it
        settings = {}
    ended = folder.ended()
    if ended is None:
        greedy = None
        steps, mean = _so_far(folder, settings)
    else:
        result, greedy = ended
        steps, mean = result.steps, None if math.isnan(result.mean_return) else result.mean_return
    return ListedRun(
        run=str(folder.path),
        environment=settings.get(ENVIRONMENT),
        algorithm=settings.get("algorithm"),
        steps=steps,
        total_steps=settings.get("total_steps"),
        has_ended=ended is not None,
        mean_return=mean,
        greedy_return=None if greedy is None else greedy["mean_return"],
    )


def _so_far(folder: RunFolder, settings: dict[str, Any]) -> tuple[int, float | None]:
    """Return the steps and the recent return of a run that has not ended."""
    from dist_classicrl.monitoring.reading import read_metrics

    try:
        metrics = read_metrics(folder.path)
        recent = metrics["recent_return"]
        if len(metrics):
            return int(metrics["step"][-1]), None if recent[-1] != recent[-1] else float(recent[-1])
    except MetricsError:
        pass
    try:
        return steps_saved(settings.get("checkpoint_dir") or folder.checkpoints) or 0, None
    except CheckpointError:
        return 0, None
