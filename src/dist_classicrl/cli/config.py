"""The settings of a run as a TOML file: read with an eye on typing errors, and written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl._files import open_regular, read_regular, whole_file
from dist_classicrl._urls import without_password
from dist_classicrl._words import nearest
from dist_classicrl.cli.synonyms import SYNONYMS
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.cli.option_types import Kind

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Keys beside the options.
ENVIRONMENT = "environment"
ENVIRONMENT_ARGUMENTS = "environment_arguments"  # a table: keyword arguments for what makes it
RANKS = "ranks"

# The first line of the file in a run's folder.
ABOUT = "Written by dist-classicrl train; it takes this with --config."

_TYPES = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}


def read(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds."""
    try:
        return tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise SettingsError(f"The configuration {str(path)!r} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8
        raise SettingsError(f"The configuration {str(path)!r} is no TOML: {error}.") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file by name, each as it is on the command line once it is read."""
    return {name: _checked(path, name, data) for name, data in read(path).items()}


def read_of_run(path: Path) -> dict[str, Any]:
    """Return what the file of a run holds, checked as far as its settings are known: others may be older."""
    data = read(path)
    for name in data.keys() & {*_kinds(), ENVIRONMENT_ARGUMENTS}:
        _checked(path, name, data[name])
    return data


def _kinds() -> dict[str, Kind]:
    from dist_classicrl.cli.option_types import Text, Whole
    from dist_classicrl.cli.options import OPTIONS

    kinds = {option.name: option.kind for option in OPTIONS.values()}
    return {**kinds, ENVIRONMENT: Text(), RANKS: Whole(1)}


def _checked(path: Path, name: str, data: Any) -> Any:
    if name == ENVIRONMENT_ARGUMENTS:
        if not isinstance(data, dict):
            raise SettingsError(f"{path}: {name} must be a table, got {_shown(data)}.")
        return data
    kinds = _kinds()
    if name not in kinds and SYNONYMS.get(name) in kinds:
        raise SettingsError(f"{path}: {name} is called {SYNONYMS[name]} here. Write {SYNONYMS[name]} = ...")
    if name not in kinds:
        known = [*kinds, ENVIRONMENT_ARGUMENTS]
        raise SettingsError(
            f"{path}: there is no setting {name!r}.{nearest(name, known)} The keys are the options of "
            "`dist-classicrl train --help`, with _ in place of -."
        )
    try:
        return kinds[name].of_data(data)
    except ValueError as error:
        raise SettingsError(
            f"{path}: {name} must be {kinds[name].allowed}, got {_shown(data)}. {str(error).strip()}".strip()
        ) from error


def _shown(data: Any) -> str:
    data = without_password(data) if isinstance(data, str) else data
    kind = _TYPES.get(type(data))
    return f"{data!r}, which is {kind}" if kind else repr(data)


def is_of_run(path: Path) -> bool:
    """Return whether a file was written by `train`, and not by a person."""
    with open_regular(path) as file:
        return file.readline(1_000).strip() == f"# {ABOUT}".encode()


def check(settings: Mapping[str, Any]) -> None:
    """Raise SettingsError where a text, which `write` would write, is not UTF-8: a path may be any bytes."""
    import tomli_w

    for name, value in settings.items():
        try:
            tomli_w.dumps({name: value}).encode()
        except UnicodeEncodeError as error:
            raise SettingsError(
                f"{name} is {value!r}, which is not UTF-8, and the file that keeps the settings of a run is. "
                "Give what can be written in UTF-8: rename a folder that has such a name."
            ) from error


def write(path: Path, settings: Mapping[str, Any], comment: str) -> None:
    """Write settings, as `read` returns them, to a TOML file, whole or not at all."""
    import tomli_w

    with whole_file(path) as file:
        file.write(f"# {comment}\n{tomli_w.dumps(settings)}".encode())
