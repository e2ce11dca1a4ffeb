"""Files that are written whole or not at all, and who may write in a folder."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a file that is on disk as exactly `path` once the block has ended, and not if it raises.

    An existing file is replaced at the end. The permissions are those of any new file.
    """
    target = Path(path)
    # A long name would leave no room for what makes the temporary one unique.
    temporary = target.parent / f".{target.name[:40]}.{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def others_may_write(folder: str | os.PathLike[str]) -> bool:
    """Tell whether a user who is neither this one nor root may put files into `folder`.

    Its group may, and whoever shares a folder with a group of this user: groups are made by people who know
    whom they trust.
    """
    status = os.stat(folder)
    is_shared = bool(status.st_mode & stat.S_IWGRP) and status.st_gid in (os.getegid(), *os.getgroups())
    is_foreign = status.st_uid not in (0, os.geteuid()) and not is_shared
    return is_foreign or bool(status.st_mode & stat.S_IWOTH)
