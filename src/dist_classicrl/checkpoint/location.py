"""Where checkpoints are kept, as users write it: the path of a folder, or a URL that fsspec knows."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.checkpoint.remote import RemoteStorage
from dist_classicrl.checkpoint.storage import Storage
from dist_classicrl.checks import is_file_name
from dist_classicrl.errors import CheckpointError, SettingsError

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://.+")
# What is left of a URL that went through pathlib.
_SQUEEZED_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/].*")
_FILE_SCHEMES = ("file", "local")


def open_storage(location: str | os.PathLike[str], subfolder: str, mode: int) -> Storage:
    """Return the folder `subfolder` of `location`: a path, or a URL that fsspec knows.

    CheckpointError if `location` is neither, or a package is missing that its kind of URL needs.
    """
    try:
        place = os.fspath(location)
    except TypeError:
        place = ""
    if not isinstance(place, str) or not place or "\0" in place:
        raise CheckpointError(
            f"checkpoint_dir must be the path or the URL of a folder, got {location!r}. "
            'Write for instance checkpoint_dir="checkpoints", or "s3://bucket/run-1".'
        )
    if not isinstance(location, str) and re.match("[a-z][a-z0-9]+:/", place):
        raise CheckpointError(
            f"checkpoint_dir is {location!r}, but a path object cannot hold a URL. Write the URL as a string."
        )
    scheme, separator, rest = place.partition("://")
    if separator and scheme.lower() in _FILE_SCHEMES:
        parts = urlsplit(place)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise CheckpointError(
                f"checkpoint_dir is {place!r}, which is no local folder. Write the path alone, or "
                "file:///absolute/path."
            )
        place = unquote(parts.path)
    elif separator:
        return RemoteStorage(f"{scheme.lower()}://{rest}", subfolder)
    return LocalStorage(os.path.join(place, subfolder), mode)


def checked_location(name: str, value: Any) -> str:
    """Return the absolute path of a folder, or a URL without a slash at its end; SettingsError for others."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(
            f"{name} must be the path of a folder, a URL such as s3://bucket/run, or None to save "
            f'nothing; got {value!r}. Write for instance {name}="checkpoints".'
        )
    text = str(text)
    scheme, separator, rest = text.partition("://")
    is_url = bool(separator) and "/" not in scheme
    if is_url and not _URL.fullmatch(text):
        raise SettingsError(
            f"{name}={text!r} is no complete URL. Write for instance s3://bucket/run, or the path of "
            "a folder."
        )
    if _SQUEEZED_URL.fullmatch(text):
        raise SettingsError(
            f"{name}={text!r} looks like a URL that lost a slash, as in pathlib.Path. Give the URL "
            f'as text, or write "./{text}" for a folder of that name.'
        )
    if is_url and scheme.lower() not in _FILE_SCHEMES:
        return f"{scheme.lower()}://{rest.rstrip('/')}"  # one spelling, since agents are numbered per folder
    path = unquote(rest.removeprefix("localhost")) if is_url else text
    if is_url and not path.startswith("/"):
        raise SettingsError(
            f"{name}={text!r} must hold an absolute path of this machine: write "
            "file:///path/of/folder, or the path alone."
        )
    if not is_file_name(path):
        raise SettingsError(f"{name} must not contain a NUL character or half of one, got {value!r}.")
    try:
        return os.path.abspath(path if is_url else os.path.expanduser(path))
    except FileNotFoundError:
        raise SettingsError(
            f"{name}={text!r} is a path below the working directory, which has been removed. Give an "
            "absolute path, or change to a directory that is there."
        ) from None
