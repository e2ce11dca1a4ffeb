"""The settings of a run as a TOML file: read with an eye on typing errors, and written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dist_classicrl.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises
    ------
    SettingsError
        If it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"The configuration {str(path)!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise SettingsError(f"The configuration {str(path)!r} is no TOML: {error}.") from error


def write(path: Path, settings: Mapping[str, Any], comment: str) -> None:
    """Write settings to a TOML file, whole or not at all; those that are None are left out."""
    import tomli_w

    text = tomli_w.dumps({name: value for name, value in settings.items() if value is not None})
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(f"# {comment}\n{text}", encoding="utf-8")
    temporary.replace(path)
