"""What goes on in a folder, for a screen of another process than the one that works there."""

from __future__ import annotations

import time
from pathlib import Path

from dist_classicrl.cli.live.run_view import RunView
from dist_classicrl.cli.live.screen import View
from dist_classicrl.cli.live.study_view import StudyView
from dist_classicrl.cli.run_folder import RunFolder, known_runs, short_path
from dist_classicrl.errors import SettingsError
from dist_classicrl.sweep.study import Study

_POLL_SECONDS = 0.5
_HINT = "Ctrl-C leaves; what is shown goes on"


def _has_study(folder: Path) -> bool:
    return (folder / "study.json").exists()


def view_of(folder: Path) -> View:
    """Return what shows the run or the study in a folder; SettingsError if there is neither."""
    if _has_study(folder):
        return StudyView(folder, _HINT)
    run = RunFolder(folder)
    if not run.exists() and not run.metrics.exists():
        raise SettingsError(f"{folder} is the folder of no run and of no study.{known_runs(folder)}")
    name = str(run.read_config().get("environment", ""))
    return RunView(folder, f"{name}  {short_path(folder)}".strip(), _HINT)


def wait_until_done(folder: Path) -> None:
    """Return when the run or the study in a folder is done."""
    study = Study(folder) if _has_study(folder) else None
    while not study.is_made if study else RunFolder(folder).ended() is None:
        time.sleep(_POLL_SECONDS)
