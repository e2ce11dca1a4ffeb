"""Files of records: appended to line by line, and set aside when another run begins."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from dist_classicrl._files import whole_file


class TakenOverError(Exception):
    """A file is not as its writer left it: another process writes it now."""


class AppendedFile:
    """A file that grows by whole pieces, each in one write to the end.

    A process that is killed leaves at most the beginning of its last piece. What was written survives the
    process as soon as `append` returns; it is not synchronized with the disk, so a power failure may take
    the last seconds.

    It is a new file, which takes the place of an old one in one step and holds `content` at first: a process
    that still appends to the old one finds out, and leaves this one alone.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self._waiting = b""
        with whole_file(path) as file:
            file.write(content)
        self._left = _identity(os.stat(path))

    @property
    def is_current(self) -> bool:
        """Whether the file is as it was left."""
        try:
            return _identity(os.stat(self.path)) == self._left
        except OSError:
            return False

    def append(self, piece: bytes) -> None:
        """Write a piece to the end, after those that could not be written before.

        A piece that cannot be written, for instance as the disk is full, raises OSError and waits for the
        next call. `TakenOverError` says that another process has written, replaced or removed the file.
        """
        self._waiting += piece
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            raise TakenOverError(f"{self.path} is gone") from None
        try:
            if _identity(os.fstat(handle)) != self._left:
                raise TakenOverError(f"{self.path} was written by another process")
            written = 0
            try:
                while written < len(self._waiting):  # the second write says what cut off the first one
                    written += os.write(handle, self._waiting[written:])
            except OSError as error:
                os.ftruncate(handle, self._left[2])
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self._waiting = b""
            self._left = *self._left[:2], self._left[2] + written
        finally:
            os.close(handle)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


def set_aside(paths: Sequence[Path]) -> list[Path]:
    """Rename files or folders, of which the first must be there, and return what they are called now.

    ``metrics.jsonl`` becomes ``metrics.1.jsonl``, or has the first number that is free; the others get the
    same.
    """
    for number in itertools.count(1):
        target = _numbered(paths[0], number)
        try:
            if paths[0].is_dir():  # which takes the place of an empty one alone
                target.mkdir()
            else:
                target.touch(exist_ok=False)
            break
        except FileExistsError:
            continue
    moved = []
    for path in paths:
        if path.exists():
            target = _numbered(path, number)
            os.replace(path, target)
            moved.append(target)
    return moved


def _numbered(path: Path, number: int) -> Path:
    stem, _, suffix = path.name.partition(".")
    return path.with_name(f"{stem}.{number}.{suffix}")
