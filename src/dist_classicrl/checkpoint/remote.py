"""Checkpoints behind a URL: S3, Google Cloud Storage, SFTP and whatever else fsspec reaches."""

from __future__ import annotations

import errno
import inspect
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO, cast

from dist_classicrl._urls import without_password
from dist_classicrl._words import error_told
from dist_classicrl.checkpoint.storage import Storage
from dist_classicrl.errors import CheckpointError


class RemoteStorage(Storage):
    """A folder that fsspec reaches; its permissions are the store's own.

    Credentials and endpoints come from where the URL's package looks for them: for ``s3://`` the variables
    and files of the AWS command line (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` and so on), for all of them
    fsspec's own configuration (``FSSPEC_S3_ENDPOINT_URL`` and the like).

    The store is reached when it is first needed, and CheckpointError raised then where that cannot be. A
    process that was forked reaches it anew: connections are of one process.
    """

    def __init__(self, location: str, subfolder: str) -> None:
        self._location = re.sub("(?<![:/])/+$", "", location)
        self._subfolder = subfolder
        self.url = f"{without_password(self._location)}/{subfolder}"
        self._reached: dict[int, tuple[Any, str]] = {}  # by process: the file system, and the folder in it

    def _reach(self) -> tuple[Any, str]:
        """Return the fsspec file system, and the folder in it."""
        process = os.getpid()
        if process not in self._reached:
            self._reached[process] = self._reach_anew()  # that of a parent stays open, which uses it
        return self._reached[process]

    def _reach_anew(self) -> tuple[Any, str]:
        fs, root = _filesystem(self._location, self.url)
        if not root and not fs.root_marker:
            raise CheckpointError(
                f"{without_password(self._location)} names no bucket. Write for instance "
                f"{self._location.partition(':')[0]}://bucket/run-1."
            )
        return fs, f"{root.rstrip('/')}/{self._subfolder}"

    @property
    def _fs(self) -> Any:
        return self._reach()[0]

    @property
    def _root(self) -> str:
        return self._reach()[1]

    def create(self) -> None:
        """Make the folder where the store has folders, and check that an object can be written."""
        try:
            self._fs.invalidate_cache()
            top = self._root.partition("/")[0]
            # Making a bucket, as makedirs would, is up to its owner.
            if top and not self._fs.exists(top):
                raise FileNotFoundError(
                    f"there is no {top!r}, or these credentials may not see it. Create it first"
                )
            with suppress(NotImplementedError):
                self._fs.makedirs(self._root, exist_ok=True)
            probe = f"probe-{secrets.token_hex(8)}"
            self.write(probe, [b"probe"])
            self.remove(probe)
        except CheckpointError:
            raise
        except Exception as error:  # each backend has errors of its own
            raise CheckpointError(
                f"Checkpoints cannot be written to {self.url}: {error_told(error)}. "
                "Give the URL of a folder that these credentials may list, read, write and delete in, or try "
                "again once its store answers."
            ) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is directly inside `folder`, sorted."""
        path = self._at(folder)
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        paths = {str(entry).strip("/") for entry in found} - {path.strip("/")}
        return sorted(entry.rpartition("/")[2] for entry in paths)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Stream one object, which object stores show only once it is whole."""
        file = self._fs.open(self._at(path), "wb")
        try:
            for chunk in chunks:
                file.write(chunk)
            file.close()
        except BaseException:
            self._abandon(file, path)
            raise

    def write_new(self, path: str, data: bytes) -> bool:
        """Create the object exclusively where the store can; elsewhere the last of two at once wins."""
        if self._content(path) is not None:
            return False
        try:
            self._pipe(path, data, exclusively=_creates_exclusively(self._fs))
        except Exception as error:
            # The backend may have tried twice, and met what its own first try had written.
            content = self._content(path)
            if content is not None:
                return content == data
            if not (isinstance(error, NotImplementedError) or getattr(error, "errno", None) == errno.ENOSYS):
                raise
            self._pipe(path, data, exclusively=False)
        return self._content(path) == data

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading."""
        self._fs.invalidate_cache()
        return cast(BinaryIO, self._fs.open(self._at(path), "rb"))

    def remove(self, path: str) -> None:
        """Remove an object, or all objects of a folder."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.rm(self._at(path), recursive=True)

    def sync(self, folder: str) -> None:
        """Do nothing: what a store has accepted is durable."""

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _content(self, path: str) -> bytes | None:
        try:
            with self.open(path) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _pipe(self, path: str, data: bytes, exclusively: bool) -> None:
        options = {"mode": "create"} if exclusively else {}
        self._fs.pipe_file(self._at(path), data, **options)

    def _abandon(self, file: Any, path: str) -> None:
        """Drop what was written of an object that did not become whole."""
        with suppress(Exception):
            file.discard()
        with suppress(Exception):
            file.closed = True  # closing, also by the garbage collector, would publish it
        with suppress(Exception):
            self.remove(path)


def _filesystem(location: str, url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it."""
    try:
        from fsspec.core import url_to_fs

        return cast("tuple[Any, str]", url_to_fs(location))
    except ImportError as error:
        raise CheckpointError(
            f"Checkpoints at {url} need a package that is not installed: {error}. "
            "Write: pip install fsspec, and the package of your store, such as s3fs for "
            "s3:// or gcsfs for gs://."
        ) from error
    except Exception as error:  # each backend has errors of its own
        raise CheckpointError(
            f"Checkpoints cannot be kept at {url}: {error_told(error)}. "
            "Give the path of a folder, or a URL that fsspec knows, such as s3://bucket/run-1."
        ) from error


def _creates_exclusively(fs: Any) -> bool:
    """Whether the backend's `pipe_file` can be told to leave alone what is there; older ones cannot."""
    function = getattr(type(fs), "_pipe_file", None) or type(fs).pipe_file
    return "mode" in inspect.signature(function).parameters
