"""What `train` was asked to do: gathered from the command line and a file, and checked against the folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from dist_classicrl._hints import rank_of_environment
from dist_classicrl.cli import config
from dist_classicrl.cli.config import ENVIRONMENT, ENVIRONMENT_ARGUMENTS, RANKS
from dist_classicrl.cli.options import OF_SETTINGS, OF_TRAIN, OPTIONS
from dist_classicrl.cli.run_folder import RunFolder, folder_of, other_folder, steps_saved
from dist_classicrl.environments import named
from dist_classicrl.errors import CheckpointError, ModelFileError, SettingsError
from dist_classicrl.settings import defaults_of_rule


@dataclass(frozen=True)
class RequestedRun:
    """A training with all its settings."""

    environment: str
    environment_arguments: dict[str, Any]
    settings: dict[str, Any]  # a value for every name in `OPTIONS`
    ranks: int | None  # None: not said
    folder: RunFolder

    def make_env(self) -> Any:
        """Return the environment in a form that `train` takes."""
        return named.make(self.environment, self.environment_arguments)

    def with_settings(self, **changes: Any) -> RequestedRun:
        """Return the same with some other settings."""
        return replace(self, settings={**self.settings, **changes})

    def of_agent(self) -> dict[str, Any]:
        """Return the keyword arguments of `DistAsyncQLearning`."""
        return {option.name: self.settings[option.name] for option in OF_SETTINGS}

    def of_train(self) -> dict[str, Any]:
        """Return the keyword arguments of its `train`."""
        arguments = {option.name: self.settings[option.name] for option in OF_TRAIN}
        arguments["checkpoint_dir"] = arguments["checkpoint_dir"] or self.folder.checkpoints
        return arguments

    def data(self) -> dict[str, Any]:
        """Return all that was decided as plain data for a TOML file, without what is left out."""
        data: dict[str, Any] = {ENVIRONMENT: self.environment, RANKS: self.ranks}
        data |= {name: _data(name, value) for name, value in self.settings.items()}
        data = {name: value for name, value in data.items() if value is not None}
        if self.environment_arguments:
            data[ENVIRONMENT_ARGUMENTS] = self.environment_arguments
        return data

    def check(self) -> None:
        """Find what is wrong with the settings and the environment without starting anything.

        CheckpointError if there is no checkpoint, and one is asked for.
        """
        from dist_classicrl.sweep.study import is_study

        self.check_values()
        if self.folder.path.is_dir() and is_study(self.folder.path):
            raise SettingsError(
                f"{self.folder.path} is the folder of a study, and a run needs one of its own. Give --out "
                "another."
            )
        config.check(self.data())
        log_dir = self.settings["log_dir"]
        if log_dir is not None and Path(log_dir).exists() and not Path(log_dir).is_dir():
            raise SettingsError(f"--log-dir {log_dir} is no folder. Give one, or leave it out.")
        self._check_resume()

    def _check_resume(self) -> None:
        """Find what is wrong with how the run is to begin or go on, where its checkpoints are to be."""
        place, path = self.of_train()["checkpoint_dir"], Path(os.path.abspath(self.folder.path))
        if self.settings["resume"] == "never":
            is_renamed = self.folder.exists()
            if is_renamed and Path.cwd().is_relative_to(path.parent.resolve() / path.name):
                raise SettingsError(
                    f"--resume never gives the folder of the run before another name, and {path} is the "
                    "current one or above it. Type the command elsewhere, or give --out another folder."
                )
            if not is_renamed:
                refuse_to_lose(self, None)
            made = None if is_renamed and _is_below(place, path) else steps_saved(place)
            if made is not None:
                raise SettingsError(
                    f"There are checkpoints of another run in {place} already, at {made:,} steps, and "
                    "--resume never begins anew. Give --checkpoint-dir another folder, or remove them."
                )
        if self.settings["resume"] == "must" and steps_saved(place) is None:
            raise CheckpointError(
                f"There is no checkpoint in {place}, but --resume must asks for one. "
                "Correct --out or --checkpoint-dir, or leave out --resume to begin where there is none."
            )

    def check_values(self) -> None:
        """Find what is wrong with the settings and the environment in any folder."""
        from dist_classicrl.checkpoint.plan import CheckpointPlan, checkpoint_plan
        from dist_classicrl.engines.engine import engine_for
        from dist_classicrl.learning.supersteps.share import check_walkers
        from dist_classicrl.settings import Settings

        asked, settings, ranks = self.of_train(), Settings(**self.of_agent()), self.ranks or 1
        settings.check_given()
        settings.check_packages(ranks)
        engine_for(settings, ranks, settings.placement)
        if asked["walkers"] is not None:
            check_walkers(asked["walkers"])
        saving = {field.name: asked[field.name] for field in fields(CheckpointPlan)}
        checkpoint_plan(**saving)
        self.make_env()

    def prepare(self) -> None:
        """Make the folder of the run; SettingsError if it cannot be written to."""
        path = self.folder.path
        with self._writing():
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def write_for_ranks(self) -> None:
        """Write the settings down for ranks that are being started."""
        with self._writing():
            config.write(self.folder.for_ranks, self.data(), config.ABOUT)

    def save(self, seed: int | None = None, begin: int = 0) -> None:
        """Write down that the run goes on with these settings, and remove what an earlier end has left.

        The seed is what was drawn, or that of a checkpoint, where the settings have none. SettingsError
        where what is left holds more than the `begin` steps from which the run goes on.
        """
        # A run that was to begin again has begun now: with this file it goes on.
        now: dict[str, Any] = {"resume": "auto"} if self.settings["resume"] == "never" else {}
        if seed is not None:
            now["seed"] = seed
        refuse_to_lose(self, begin)
        with self._writing():
            self.folder.result.unlink(missing_ok=True)
            self.folder.model.unlink(missing_ok=True)
            config.write(self.folder.config, {**self.data(), **now}, config.ABOUT)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SettingsError(
                f"The run cannot be kept in {self.folder.path} ({error.strerror}). Give --out a folder that "
                "this user may write to."
            ) from error


# Settings that belong to one run: another that takes over its settings has places of its own.
_PLACES = ("checkpoint_dir", "log_dir")


def _without_places(said: dict[str, Any], file: Path) -> dict[str, Any]:
    own = [name for name in _PLACES if name in said]
    if own and not rank_of_environment():
        text = f"{' and '.join(own)} of {file} are for the run there, and left out here."
        click.echo(text if len(own) > 1 else text.replace(" are ", " is "), err=True)
    return {name: value for name, value in said.items() if name not in own}


def gather(
    name: str | None,
    arguments: Iterable[str],
    given: Mapping[str, Any],
    file: Path | None,
    out: Path | None,
    otherwise: str | None = None,
) -> RequestedRun:
    """Return the run that a command line and a file ask for; what the command line says wins.

    `name` and `arguments`, of the form ``name=value``, are those of the environment, which is `otherwise`
    where neither command line nor file names one. `given` has the settings
    of the command line, None where there is none. The folder of the run, `out`, is by default named after the
    environment. The settings of a run in another folder are taken over without the places where that one
    saves and logs.
    """
    said = {} if file is None else config.read_settings(file)
    chosen = name or said.get(ENVIRONMENT) or otherwise
    folder = RunFolder(out or folder_of(chosen or ""))
    if folder.exists() and not config.is_of_run(folder.config):
        raise SettingsError(
            f"{folder.config} was not written by `dist-classicrl train`, which keeps settings of a run under "
            "that name. Give --out another folder."
        )
    if file is not None and config.is_of_run(file) and file.resolve().parent != folder.path.resolve():
        said = _without_places(said, file)
    if chosen is None:
        raise SettingsError(
            "Which environment? Write for instance `dist-classicrl train FrozenLake-v1`, or environment = "
            '"FrozenLake-v1" into the file that you give with --config.'
        )
    # Arguments in a file are for the environment that it names.
    of_file = said.get(ENVIRONMENT_ARGUMENTS, {}) if chosen == said.get(ENVIRONMENT, chosen) else {}
    own = {key: value for key, value in given.items() if value is not None}
    settings = {each: own.get(each, said.get(each, option.default)) for each, option in OPTIONS.items()}
    settings.update(defaults_of_rule(settings))
    return RequestedRun(
        chosen,
        {**of_file, **named.parse_arguments(arguments)},
        settings,
        own.get(RANKS, said.get(RANKS)),
        folder,
    )


def continued(run: RequestedRun) -> RequestedRun:
    """Return the run as it goes on in its folder: with the seed that was drawn, if none is given.

    SettingsError if the folder holds a run with other settings.
    """
    before = run.folder.read_config()
    if not before or not run.folder.has_record():
        return run
    if run.settings["seed"] is None and "seed" in before:
        run = run.with_settings(seed=before["seed"])
    then, now = _identity(before), _identity(run.data())
    for name in {**now, **then}:
        if then.get(name) != now.get(name):
            run.check_values()  # what cannot be at all is said before what cannot be here
            raise SettingsError(_other(run.folder.path, name, then.get(name), now.get(name)))
    return run


def _identity(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run keeps for good, of its data, by what it is called."""
    kept = [ENVIRONMENT, *(option.name for option in OPTIONS.values() if option.is_kept)]
    arguments = sorted(data.get(ENVIRONMENT_ARGUMENTS, {}).items())
    return {name: data.get(name) for name in kept} | {
        f"{name} of the environment": value for name, value in arguments
    }


def is_done(run: RequestedRun) -> bool:
    """Return whether the run in the folder has made all steps that are asked for, or has ended before.

    SettingsError if it has not ended, and has made more steps than are asked for; if it is to go on to the
    same steps after an early end; or if what it has learned would be lost by going on.
    """
    asked, folder = run.settings["total_steps"], run.folder
    ended = folder.ended() if folder.model.exists() else None
    before, now = folder.read_config(), run.data()
    is_same_call = asked == before.get("total_steps")  # which `train` makes no more of
    changed = [name for name in _EARLY_ENDS if before.get(name) != now.get(name)]
    if ended is not None and (asked <= ended[0].steps or (is_same_call and not changed)):
        return True
    made = steps_saved(run.of_train()["checkpoint_dir"])
    refuse_to_lose(run, made)
    if ended is not None and is_same_call:
        raise SettingsError(
            f"The run in {folder.path} has ended at {ended[0].steps:,} of {asked:,} steps, and with "
            f"another --{changed[0].replace('_', '-')} it goes on to another number of steps alone. Add "
            f"for instance --total-steps {asked + 1}."
        )
    if made is not None and made > asked:
        raise SettingsError(
            f"The run in {folder.path} has made {made:,} steps, more than --total-steps {asked:,}. Give "
            f"more, or --out {other_folder(folder.path)} for a run of its own."
        )
    return False


_EARLY_ENDS = ("total_episodes", "stop_at_return")


def refuse_to_lose(run: RequestedRun, begin: int | None) -> None:
    """Raise SettingsError where a run that goes on from `begin` steps, or anew, loses what it has learned."""
    if (why := why_not_from(run, begin)) is not None:
        raise SettingsError(f"The run in {run.folder.path} {why}")


def why_not_from(run: RequestedRun, begin: int | None) -> str | None:
    """Return why a run must not go on from `begin` steps, None for nothing; None where nothing is lost by it.

    The model of an earlier end may hold more than the newest checkpoint, as that one could not be written. A
    run that was killed before its first checkpoint has learned nothing that is left.
    """
    folder, place = run.folder, run.of_train()["checkpoint_dir"]
    away = f"move {folder.model.name} to another folder first."
    try:
        made = _steps_left(folder, begin)
    except ModelFileError:
        return f"has left {folder.model}, which cannot be read and may have learned more: {away}"
    if made is None or (begin is not None and made <= begin):
        return None
    only = f": only {folder.model} has what it learned" if folder.model.exists() else ""
    if begin:
        there, since = f"the newest checkpoint in {place} that can be used has {begin:,}", only and " since"
        way = f"To go on from {begin:,} steps, {away}"
    else:
        there, since = f"there is no checkpoint in {place} to go on from", ""
        way = f"In Python, DistAsyncQLearning.load_model({str(folder.model)!r}) trains on."
    if not folder.exists():  # a model was saved here, and not by a run
        return f"has made {made:,} steps, and {there}{only}{since}. Give --out another folder, or {away}"
    elsewhere = " and another --checkpoint-dir" if begin and not _is_below(place, folder.path) else ""
    cure = f"--resume never{elsewhere} to begin anew and keep what is there under another name."
    before = folder.place_of_checkpoints()
    if _absolute(place) != _absolute(before):
        saved = f"has made {made:,} steps and saved in {before}"
        return f"{saved}, and {there}. Give --checkpoint-dir as before, or {cure}"
    return f"has made {made:,} steps, and {there}{only}{since}. Give {cure}{only and f' {way}'}"


def _steps_left(folder: RunFolder, begin: int | None) -> int | None:
    """Return the steps of what was learned here, if it may be more than the `begin` that are gone on from."""
    from dist_classicrl.model import model_file

    has_model = folder.model.exists()
    if not has_model and begin is not None:
        return None
    ended = folder.ended()
    if ended is not None:
        return ended[0].steps
    return model_file.read(folder.model).steps if has_model else steps_saved(folder.place_of_checkpoints())


def _absolute(place: str | Path) -> str:
    """Return the whole path of a folder, or a URL as it is."""
    return str(place) if "://" in str(place) else os.path.abspath(place)


def _is_below(place: str | Path, folder: Path) -> bool:
    return Path(_absolute(place)).is_relative_to(os.path.abspath(folder))


def _other(folder: Path, name: str, then: Any, now: Any) -> str:
    def shown(value: Any) -> str:
        return "left out" if value is None else repr(value)

    return (
        f"The run in {folder} was begun with another {name}: it is {shown(then)} there, and {shown(now)} "
        f"now. Give it as it was to go on with that run, --out {other_folder(folder)} for a run of its own, "
        "or --resume never to begin anew and keep what is there under another name."
    )


def _data(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _PLACES:
        value = _absolute(value)  # the run may be looked at from elsewhere
    return OPTIONS[name].kind.to_data(value)
