"""The folder of a run: what lies where in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl._files import read_regular, whole_file
from dist_classicrl._words import nearest
from dist_classicrl.checks import is_real
from dist_classicrl.cli import config

if TYPE_CHECKING:
    from dist_classicrl.agent.result import TrainingResult

GREEDY = "greedy"  # what the result has besides the fields of `TrainingResult`
ROOT = Path("runs")  # where folders of runs lie by default


@dataclass(frozen=True)
class RunFolder:
    """The places in the folder of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings; `train --config` takes them."""
        return self.path / "config.toml"

    @property
    def for_ranks(self) -> Path:
        """The settings for ranks that this process starts; only until they have ended."""
        return self.path / f".asked-{os.getpid()}.toml"

    @property
    def metrics(self) -> Path:
        """What was measured while it went on, a JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """What a stopped run goes on from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The agent at the end, as `save_model` writes it."""
        return self.path / "model.npz"

    @property
    def result(self) -> Path:
        """The `TrainingResult` as JSON, with what the greedy policy was worth then."""
        return self.path / "result.json"

    @property
    def logs(self) -> Path:
        """A file of log lines for each rank that said something."""
        return self.path / "logs"

    @property
    def status(self) -> Path:
        """How far the run is now; only while a command shows it."""
        return self.path / ".status.json"

    def exists(self) -> bool:
        """Return whether a run has begun here."""
        return self.config.exists()

    def is_of_run(self) -> bool:
        """Return whether a run has begun here, and not something else that has a `config.toml`.

        The file may have been edited where a run has left more than that.
        """
        if any(each.exists() for each in (self.metrics, self.checkpoints, self.model, self.result)):
            return self.exists()
        try:
            return config.is_of_run(self.config)
        except OSError:
            return False

    def place_of_checkpoints(self) -> str | Path:
        """Return the folder or URL of the checkpoints of the run that has begun here."""
        chosen: str | None = self.read_config().get("checkpoint_dir")
        return chosen or self.checkpoints

    def has_record(self) -> bool:
        """Return whether a run here has left anything but its settings."""
        if self.metrics.exists() and self.metrics.stat().st_size > 0:
            return True
        return self.read_result() is not None or steps_saved(self.place_of_checkpoints()) is not None

    def forget(self, made: Sequence[Path], with_logs: bool) -> None:
        """Remove what a run that never began has left here; nothing of one that has begun.

        Of the folders that are empty then, those in `made` go, too, of which each lies in the next.
        """
        if self.exists() or self.has_record():
            return
        left = [*self.checkpoints.glob("agent-*/fence-*.json")]  # of checkpoints that were never written
        left += self.logs.glob("rank-*.log") if with_logs else []
        inner = [*self.checkpoints.glob("agent-*"), self.checkpoints, self.logs]
        with suppress(OSError):  # somebody else uses it
            for file in left:
                file.unlink(missing_ok=True)
            for folder in inner:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
            for folder in made:
                folder.rmdir()

    def read_config(self) -> dict[str, Any]:
        """Return the configuration of the run; nothing where there is none. SettingsError if it is wrong."""
        return config.read_of_run(self.config) if self.config.exists() else {}

    def write_result(self, result: Mapping[str, Any], greedy: Mapping[str, Any] | None = None) -> None:
        """Write down the result of the run; `greedy` is what its greedy policy is worth, if that is known."""
        with whole_file(self.result) as file:
            file.write((json.dumps({**result, GREEDY: greedy}, indent=1) + "\n").encode())

    def read_result(self) -> dict[str, Any] | None:
        """Return the result of the run; None where it has not ended, or goes on."""
        try:
            data = json.loads(read_regular(self.result))
        except (OSError, ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None

    def ended(self) -> tuple[TrainingResult, dict[str, Any] | None] | None:
        """Return the result of the run, and what its greedy policy is worth, if that is known.

        None where the run has not ended, or somebody has edited the file; of the policy, in that part of it.
        """
        from dist_classicrl.agent.result import TrainingResult

        found = self.read_result() or {}
        greedy = found.pop(GREEDY, None)  # runs of earlier versions have none
        if not TrainingResult.is_described_by(found):
            return None
        return TrainingResult.from_dict(found), greedy if _is_in_short(greedy) else None


def _is_in_short(data: Any) -> bool:
    """Whether `data`, which was read from a file, is what `EvaluationResult.in_short` returns."""
    return (
        isinstance(data, dict)
        and all(is_real(data.get(name)) for name in ("mean_return", "std_return", "mean_length"))
        and type(data.get("episodes")) is int
        and "hint" in data
        and (data["hint"] is None or isinstance(data["hint"], str))
    )


def steps_saved(place: str | Path) -> int | None:
    """Return the steps in the newest checkpoint of a run in a folder or at a URL; None if there is none."""
    from dist_classicrl.checkpoint.folder import CheckpointFolder

    if "://" not in str(place) and not Path(place).is_dir():
        return None
    newest = CheckpointFolder(place, "agent-0").newest()
    return None if newest is None else newest.steps


def folder_of(name: str) -> Path:
    """Return the folder in which a run in the environment `name` lies if no other is asked for."""
    return ROOT / re.sub(r"[^\w.-]+", "-", name)


def runs_below(place: str | os.PathLike[str]) -> list[RunFolder]:
    """Return the folders of runs that lie in `place`, by name; none where it is that of a run itself."""
    above = Path(place)
    if not above.is_dir() or RunFolder(above).exists():
        return []
    return [folder for folder in folders_in(above) if folder.is_of_run()]


def folders_in(place: Path) -> list[RunFolder]:
    """Return the folders in `place` that may be those of runs, by name; no hidden ones, which are others'."""
    paths = (path for path in sorted(place.iterdir()) if not path.name.startswith("."))
    return [RunFolder(path) for path in paths if path.is_dir()]


def folder_around(run: str | os.PathLike[str]) -> Path:
    """Return the folder of a run that was named by it or by a file in it."""
    path = Path(run)
    return path.parent if path.is_file() else path


def other_folder(path: Path) -> Path:
    """Return a folder beside `path` that is not there yet, for a run of its own."""
    own = Path(os.path.abspath(path))  # "." and ".." are no names
    others = (own.with_name(f"{own.name}-{number}") for number in count(2))
    return Path(short_path(next(other for other in others if not other.exists())))


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the current folder where it lies in that."""
    text = os.fspath(path)
    return os.path.relpath(text) if os.path.abspath(text).startswith(os.getcwd() + os.sep) else text


def known_runs(place: Path) -> str:
    """Return what to write instead of `place`, with a blank in front: a run beside it, or where runs are."""
    known = sorted({str(each.path) for above in (place.parent, ROOT) for each in runs_below(above)})
    if not known:
        return " Train first, for instance by `dist-classicrl train FrozenLake-v1`."
    return nearest(str(place), known) or f" There are {', '.join(known[:10])}."
