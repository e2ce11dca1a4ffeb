"""Files that are written whole or not at all, and who may write in a folder."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast


@contextmanager
def new_file(
    path: str | os.PathLike[str], mode: int | None = None, durable: bool = True
) -> Iterator[BinaryIO]:
    """Give a file that is made at `path`, where there must be none, and is complete once the block has ended.

    If it cannot be written, or the block raises, there is none. It has the permissions `mode`, whatever the
    umask; by default those of any new file. A `durable` one is on disk at the end, so that it survives a
    power failure.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                set_mode(handle, mode)
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
                if hasattr(os, "posix_fadvise"):
                    # What is read back to compare shall come from the disk, where that is possible.
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


@contextmanager
def whole_file(
    path: str | os.PathLike[str], mode: int | None = None, durable: bool = True
) -> Iterator[BinaryIO]:
    """Give a file that is there as exactly `path` once the block has ended, and not if it raises.

    An existing file is replaced at the end. The other arguments are those of `new_file`. What the system
    raises, such as that its disk is full, names `path`.
    """
    target = Path(path)
    # A long name would leave no room for what makes the temporary one unique.
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}"
    try:
        with new_file(temporary, mode, durable) as file:
            yield file
        os.replace(temporary, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file; OSError for whatever else has that name, since reading it could block for ever."""
    # Not blocking: opening a named pipe would wait for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
    return cast(BinaryIO, os.fdopen(handle, "rb"))


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return what a regular file holds, see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def set_mode(handle: int, mode: int) -> None:
    """Give an open file or folder these permissions, where its file system has permissions of its own."""
    current = stat.S_IMODE(os.fstat(handle).st_mode)
    if current & 0o777 != mode:
        try:
            os.fchmod(handle, current & 0o7000 | mode)
        except OSError as error:  # some mounted file systems have none
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise


def others_may_write(folder: str | os.PathLike[str]) -> bool:
    """Tell whether a user who is neither this one nor root may put files into `folder`.

    Members of a group of this user do not count: people who make groups know whom they trust.
    """
    status = os.stat(folder)
    is_shared = bool(status.st_mode & stat.S_IWGRP) and status.st_gid in (os.getegid(), *os.getgroups())
    is_foreign = status.st_uid not in (0, os.geteuid()) and not is_shared
    return is_foreign or bool(status.st_mode & stat.S_IWOTH)
