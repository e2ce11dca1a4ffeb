"""What checkpoints need of the place where they lie, on a local file system or behind a URL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import BinaryIO

from dist_classicrl.errors import CheckpointError, CheckpointUnreadableError


class Storage(ABC):
    """One folder, in which paths are relative and separated by ``/``."""

    url: str
    """Where it is, for people: without passwords."""

    mode: int = 0o600
    """Permissions of the files that are written from now on; ignored behind a URL."""

    @abstractmethod
    def create(self) -> None:
        """Make the folder where there is none; CheckpointError if it cannot be made, or not be written to."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is directly inside `folder`; none if there is no such folder."""

    def listed(self, folder: str = "") -> list[str]:
        """Return `names`; CheckpointUnreadableError, which says what to do, where it cannot be listed."""
        try:
            return self.names(folder)
        except CheckpointError:
            raise
        except Exception as error:  # remote stores raise errors of many kinds
            raise CheckpointUnreadableError(
                f"The checkpoint folder {self.url} cannot be listed: {str(error) or type(error).__name__}. "
                + (
                    "Give a folder that this user may read."
                    if _is_refused(error)
                    else "What is in it may be as good as ever: try again once its disk or its store answers."
                )
            ) from error

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


def _is_refused(error: Exception) -> bool:
    """Whether an error says that this user may not; stores behind HTTP say so by a number."""
    codes = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    return isinstance(error, PermissionError) or any(code in (401, 403) for code in codes)
