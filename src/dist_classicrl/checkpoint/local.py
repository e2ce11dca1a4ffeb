"""Checkpoints on a local or mounted file system."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO

from dist_classicrl._files import new_file, open_regular, set_mode, whole_file
from dist_classicrl.checkpoint.storage import Storage
from dist_classicrl.errors import CheckpointError


class LocalStorage(Storage):
    """A folder of a local or mounted file system.

    Folders that this makes get the permissions that match those of files, `mode`; others are left as they
    are. The umask is ignored.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        self.url = os.path.abspath(path)
        self.mode = mode

    def create(self) -> None:
        """Make the folder and those above it, and check that a file can be written."""
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
        self._make(os.path.dirname(target))
        with whole_file(target, self.mode) as file:
            for chunk in chunks:
                file.write(chunk)
        _sync_folder(os.path.dirname(target))

    def write_new(self, path: str, data: bytes) -> bool:
        """Create the file exclusively."""
        target = self._at(path)
        self._make(os.path.dirname(target))
        try:
            with new_file(target, self.mode) as file:
                file.write(data)
        except FileExistsError:
            return False
        _sync_folder(os.path.dirname(target))
        return True

    def open(self, path: str) -> BinaryIO:
        """Open a regular file; whatever else has that name is refused."""
        return open_regular(self._at(path))

    def remove(self, path: str) -> None:
        """Remove a file or a folder; of a link the link alone, and nothing that lies behind it."""
        target = self._at(path)
        if "/" in path and os.path.islink(os.path.dirname(target)):
            return
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
                what = "a link that leads to no folder" if os.path.islink(folder) else "a file"
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is {what}", folder) from None
            return
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            set_mode(handle, self._folder_mode)
        finally:
            os.close(handle)
        _sync_folder(os.path.dirname(folder))


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems have nothing to sync here, and say so
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
