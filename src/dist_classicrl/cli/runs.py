"""The folder of a run: what lies where, and how a trained agent is read from it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl.cli import config
from dist_classicrl.cli.config import ENVIRONMENT, ENVIRONMENT_ARGUMENTS
from dist_classicrl.errors import CheckpointError, SettingsError

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning

ROOT = Path("runs")
"""Where folders of runs lie by default."""


@dataclass(frozen=True)
class RunFolder:
    """The places in the folder of a run.

    Attributes
    ----------
    path : Path
    """

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings; `train --config` takes them."""
        return self.path / "config.toml"

    @property
    def asked(self) -> Path:
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
        """The `TrainingResult` as JSON."""
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

    def place_of_checkpoints(self) -> str | Path:
        """Return the folder or URL of the checkpoints of the run that has begun here."""
        chosen: str | None = self.read_config().get("checkpoint_dir")
        return chosen or self.checkpoints

    def has_record(self) -> bool:
        """Return whether a run here has left anything but its settings."""
        measured = self.metrics.exists() and self.metrics.stat().st_size > 0
        return (
            measured or self.read_result() is not None or steps_saved(self.place_of_checkpoints()) is not None
        )

    def read_config(self) -> dict[str, Any]:
        """Return the configuration of the run; nothing where there is none."""
        return config.read(self.config) if self.config.exists() else {}

    def read_result(self) -> dict[str, Any] | None:
        """Return the result of the run; None where it has not ended, or goes on."""
        try:
            data = json.loads(self.result.read_text())
        except (OSError, ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None


@dataclass(frozen=True)
class Loaded:
    """A trained agent, with what is known of where it was trained.

    Attributes
    ----------
    agent : DistAsyncQLearning
    env : str or None
        The environment's name, as it was typed; None for a model file outside of a run's folder.
    env_arguments : dict
        Keyword arguments for what makes the environment.
    folder : RunFolder or None
        None for a model file outside of a run's folder.
    source : Path
        The file or folder that the agent was read from.
    """

    agent: DistAsyncQLearning
    env: str | None
    folder: RunFolder | None
    source: Path
    env_arguments: dict[str, Any] = field(default_factory=dict)

    def make_env(self, name: str | None = None, arguments: Mapping[str, Any] | None = None) -> Any:
        """Return the environment in a form that `evaluate` takes.

        Parameters
        ----------
        name : str, optional
            Another environment than the one that was trained in.
        arguments : mapping, optional
            Keyword arguments for what makes it, besides those of the run if the name is the run's.

        Raises
        ------
        SettingsError
            If neither the run nor `name` tells which environment it is.
        """
        from dist_classicrl.cli import environment

        chosen = name or self.env
        if chosen is None:
            raise SettingsError(
                f"{self.source} does not tell which environment was trained in. Name it, for instance as "
                "--env FrozenLake-v1, or give the folder of a run."
            )
        own = self.env_arguments if chosen == self.env else {}
        return environment.make(chosen, {**own, **(arguments or {})})


def steps_saved(place: str | Path) -> int | None:
    """Return the steps in the newest checkpoint of a run in a folder or at a URL; None if there is none.

    Raises
    ------
    CheckpointError
        If the checkpoints cannot be listed.
    """
    from dist_classicrl.checkpoint.folder import CheckpointFolder

    if "://" not in str(place) and not Path(place).is_dir():
        return None
    return CheckpointFolder(place, "agent-0").newest_steps()


def folder_of(name: str) -> Path:
    """Return the folder in which a run in the environment `name` lies if no other is asked for."""
    return ROOT / re.sub(r"[^\w.-]+", "-", name)


def other_folder(path: Path) -> Path:
    """Return a folder beside `path` that is not there yet, for a run of its own."""
    number = 2
    while (other := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return other


def load(path: str | os.PathLike[str]) -> Loaded:
    """Return the agent of a run's folder, or of a model file.

    Parameters
    ----------
    path : str or path
        A folder of a run: its final model, or else its newest checkpoint. Or a model file; or a folder of
        checkpoints, which may be a URL.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    CheckpointError
        If the run has neither a model nor a checkpoint yet.
    """
    from dist_classicrl.agent.agent import DistAsyncQLearning

    text = os.fspath(path)
    place = Path(text)
    if "://" in text:
        return Loaded(DistAsyncQLearning.load_model(text), None, None, place)
    if not place.exists():
        raise FileNotFoundError(f"There is no {text!r}.{_known_runs(place)}")
    inner = place.is_file() or not (place / "config.toml").exists()
    folder = RunFolder(place.parent if inner else place)
    source = place if inner else _newest(folder)
    agent = DistAsyncQLearning.load_model(source)
    saved = folder.read_config()
    return Loaded(
        agent,
        saved.get(ENVIRONMENT),
        folder if saved else None,
        Path(source),
        saved.get(ENVIRONMENT_ARGUMENTS, {}),
    )


def _newest(folder: RunFolder) -> str | Path:
    """Return what holds the newest state of the agent: the model is removed when a run is made longer."""
    if folder.model.exists():
        return folder.model
    place = folder.place_of_checkpoints()
    if "://" not in str(place) and not Path(place).exists():
        raise CheckpointError(
            f"The run in {folder.path} has neither a model nor a checkpoint yet. Wait for its first "
            "checkpoint, or type its command again."
        )
    return place


def _known_runs(place: Path) -> str:
    """Return a sentence that names the runs beside `place`, with a blank in front; or nothing."""
    from dist_classicrl.cli.errors import nearest

    above = place.parent if place.parent.is_dir() else ROOT
    known = sorted(str(each.parent) for each in above.glob("*/config.toml"))
    if not known:
        return " Train first, for instance by `dist-classicrl train FrozenLake-v1`."
    return nearest(str(place), known) or f" There are {', '.join(known[:10])}."
