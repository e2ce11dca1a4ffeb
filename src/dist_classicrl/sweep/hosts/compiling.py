"""Compiling what the runs of a study need, once on each host, before the first of them."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dist_classicrl.settings import Settings

_MOST_SECONDS = 120.0  # for which another process that compiles is waited for
_POLL_SECONDS = 0.02


def once_on_each_host(folder: Path, compile_all: Callable[[], None]) -> None:
    """Call this in every process, and in one of each host before the others.

    That one compiles and leaves machine code on disk, where the others find it. Who is first shows a lock on
    a file in `folder`, which is gone with its process.
    """
    with _lock_file(folder / f".compiles-{socket.gethostname()}") as handle:
        if handle is None or _is_locked(handle, fcntl.LOCK_EX):
            compile_all()
            return
        end = time.monotonic() + _MOST_SECONDS
        # All that wait have their locks at the same time.
        while time.monotonic() < end and not _is_locked(handle, fcntl.LOCK_SH):
            time.sleep(_POLL_SECONDS)
    compile_all()


def kind_of(settings: Settings) -> tuple[Any, ...]:
    """Return what the code of a training with these settings depends on: two of one kind share it.

    Numbers count only as being 0, which leaves out parts of some loops.
    """
    return tuple(_kind_of(value) for value in settings.arguments().values())


def _kind_of(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return type(value), value == 0
    if isinstance(value, tuple):  # a rule, or a behavior
        return type(value), *map(_kind_of, value)
    if isinstance(value, Mapping):
        return tuple((name, _kind_of(each)) for name, each in value.items())
    if isinstance(value, Sequence):
        return type(value), *map(_kind_of, value)
    return type(value)


def _is_locked(handle: int, how: int) -> bool:
    """Whether this process has the lock now; where a file system has no locks, it has."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _lock_file(path: Path) -> Iterator[int | None]:
    """Give an open file, or None where there can be none."""
    handle = None
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)
