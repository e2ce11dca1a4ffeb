"""Where checkpoints lie: files in a folder, on a local file system or behind a URL."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

from dist_classicrl.errors import CheckpointError


class Storage(ABC):
    """One folder, in which paths are relative and separated by ``/``.

    Attributes
    ----------
    url : str
        Where it is, for people: without passwords.
    mode : int
        Permissions of the files that are written from now on; without a meaning behind a URL.
    """

    url: str
    mode: int = 0o600

    @abstractmethod
    def create(self) -> None:
        """Make the folder where there is none, and make sure that it can be written to.

        Raises
        ------
        CheckpointError
            If it cannot be made, or not be written to.
        """

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is directly inside `folder`; none if there is no such folder."""

    @abstractmethod
    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a file from `chunks`: durable when this returns, and whole or not there at all."""

    @abstractmethod
    def write_new(self, path: str, data: bytes) -> bool:
        """Write a file, durably, unless there is one already; return whether it was written."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; FileNotFoundError if there is none."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; it may be missing."""

    @abstractmethod
    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable."""


def open_storage(location: str | os.PathLike[str], subfolder: str, mode: int) -> Storage:
    """Return the folder `subfolder` of `location`: a path, or a URL that fsspec knows.

    Raises
    ------
    CheckpointError
        If `location` is neither, or a package is missing that its kind of URL needs.
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
    if place.startswith("file://"):
        parts = urlsplit(place)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise CheckpointError(
                f"checkpoint_dir is {place!r}, which is no local folder. Write the path alone, or "
                "file:///absolute/path."
            )
        place = unquote(parts.path)
    elif "://" in place:
        from dist_classicrl.checkpoint.remote import RemoteStorage

        return RemoteStorage(place, subfolder)
    return LocalStorage(os.path.join(place, subfolder), mode)


class LocalStorage(Storage):
    """A folder of a local or mounted file system.

    Parameters
    ----------
    path : str or path-like
    mode : int
        Permissions of the files. Folders that this makes get the matching ones; others are left as they are.
        The umask has no say.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        self.url = os.path.abspath(path)
        self.mode = mode

    def create(self) -> None:
        """Make the folder and those above it, and try whether a file can be written."""
        try:
            self._make(self.url)
            with tempfile.TemporaryFile(dir=self.url):
                pass
        except OSError as error:
            raise CheckpointError(
                f"Checkpoints cannot be written to {self.url}: {error.strerror or error}. "
                "Give a folder that this user may write to, or that can be made."
            ) from error

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is directly inside `folder`, sorted."""
        try:
            return sorted(os.listdir(self._at(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write to a temporary name in the same folder and rename at the end."""
        target = self._at(path)
        folder, name = os.path.split(target)
        self._make(folder)
        temporary = os.path.join(folder, f".{name[:40]}.{secrets.token_hex(8)}.tmp")
        try:
            self._write_exclusively(temporary, chunks)
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)

    def write_new(self, path: str, data: bytes) -> bool:
        """Create the file exclusively."""
        target = self._at(path)
        self._make(os.path.dirname(target))
        try:
            self._write_exclusively(target, [data])
        except FileExistsError:
            return False
        _sync_folder(os.path.dirname(target))
        return True

    def open(self, path: str) -> BinaryIO:
        """Open a regular file; whatever else has that name is refused, since reading it could block."""
        # Not blocking: opening a named pipe would wait for somebody who writes to it.
        handle = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "Not a regular file", self._at(path))
        return cast(BinaryIO, os.fdopen(handle, "rb"))

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        target = self._at(path)
        with suppress(FileNotFoundError):
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
            else:
                os.unlink(target)

    def sync(self, folder: str) -> None:
        """Write the folder's directory to disk."""
        _sync_folder(self._at(folder))

    @property
    def _folder_mode(self) -> int:
        return self.mode | (self.mode & 0o444) >> 2  # who may read may also enter

    def _at(self, path: str) -> str:
        return os.path.join(self.url, path) if path else self.url

    def _make(self, folder: str) -> None:
        """Make `folder` and the missing ones above it."""
        if os.path.isdir(folder):
            return
        self._make(os.path.dirname(folder))
        try:
            os.mkdir(folder, self._folder_mode)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a file", folder) from None
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _set_mode(handle, self._folder_mode)
        finally:
            os.close(handle)
        _sync_folder(os.path.dirname(folder))

    def _write_exclusively(self, target: str, chunks: Iterable[bytes | memoryview]) -> None:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self.mode)
        with os.fdopen(handle, "wb") as file:
            _set_mode(handle, self.mode)
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(handle)
            # What is read back for verification shall come from the disk, where that is possible.
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _set_mode(handle: int, mode: int) -> None:
    current = stat.S_IMODE(os.fstat(handle).st_mode)
    if current & 0o777 != mode:
        try:
            os.fchmod(handle, current & 0o7000 | mode)
        except OSError as error:  # some mounted file systems have no permissions of their own
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems have nothing to sync here, and say so
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
