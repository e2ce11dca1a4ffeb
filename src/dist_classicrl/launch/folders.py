"""The folders of a launched job: where its ranks record how they end, and where mpirun keeps its files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dist_classicrl.errors import LauncherError
from dist_classicrl.process.jobs import all_processes, environment_of, is_running, start_of

STATE_FOLDER = ".dist_classicrl"  # where ranks record how they end by default
_PREFIX = "launch-"
_SESSION_PREFIX = "dist-classicrl-"
_OWNER = "launcher.json"
_GOES_WITH_ITS_PLACE = "made-state-dir"  # a file in a launcher's folder
_TRIES = 10
_STALE_SECONDS = 24 * 3600.0


@contextmanager
def launch_folder(state_dir: Path) -> Iterator[Path]:
    """Make a new folder within `state_dir` for the duration of the block.

    Only this user may enter it, whatever the umask: another user could otherwise claim there that the work is
    done. Folders of launchers of this host that have ended are removed if nothing in them has changed for a
    day: ranks on other hosts may have outlived their launcher. `state_dir` itself goes, too, once it is
    empty, where this package made it.
    """
    folder = state_dir.absolute() / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    _make(folder)
    _remove_others(folder, _PREFIX, lambda other: _is_deserted(other) and _is_old(other))
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a launcher's folder, and the one that it is in where that was made for such and is empty now."""
    takes_its_place_along = folder.joinpath(_GOES_WITH_ITS_PLACE).exists()
    shutil.rmtree(folder, ignore_errors=True)
    if takes_its_place_along:
        with suppress(OSError):  # it has a folder of another launch
            folder.parent.rmdir()


def make_attempt_folder(attempt: Path) -> None:
    """Make the folder of one start in that of its launcher, and that again where somebody has removed it.

    LauncherError if that fails.
    """
    _make(attempt.parent, attempt)


def _make_one(folder: Path) -> None:
    """Make a folder and those above it, though another launch may just remove one of these that it made."""
    for left in reversed(range(_TRIES)):
        if folder.is_dir():
            return
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            if not left:
                raise


def _make(*folders: Path) -> None:
    """Make a launcher's folder and those in it, as far as they are not there."""
    place = folders[0].parent
    try:
        is_ours = place == Path(STATE_FOLDER).absolute() or not place.exists()
        for folder in folders:
            _make_one(folder)
        _sign(folders[0])
        if is_ours:
            folders[0].joinpath(_GOES_WITH_ITS_PLACE).touch()
    except OSError as error:
        raise LauncherError(
            f"The folder {str(folders[-1])!r}, in which ranks say how they end, cannot be made ({error}). "
            "Give --state-dir a folder that can be written to from all hosts."
        ) from error


@contextmanager
def session_folder() -> Iterator[str]:
    """Make a new folder of this host that only this user may enter, for the duration of the block.

    Open MPI names the folder of its files after its process id, and would use one that another user has made.
    Folders of launchers that have ended are removed if nothing that was started with them runs any more.
    """
    try:
        folder = tempfile.mkdtemp(prefix=_SESSION_PREFIX)
        _sign(Path(folder))
    except OSError as error:
        raise LauncherError(
            f"No folder can be made for mpirun's own files ({error}). Let TMPDIR name a folder of this host "
            "that you may write to."
        ) from error
    _remove_others(Path(folder), _SESSION_PREFIX, lambda other: _is_deserted(other) and not _is_in_use(other))
    try:
        yield folder
    finally:
        remove_folder(Path(folder))


def _sign(folder: Path) -> None:
    """Write into a folder which launcher it belongs to."""
    folder.joinpath(_OWNER).write_text(json.dumps(_owner(os.getpid())), encoding="utf-8")


def _owner(pid: int) -> dict[str, Any]:
    """Return what tells a process of this host from all others, as far as it is known here."""
    numbers = None
    with suppress(OSError):
        # In another container of the same name the same numbers are other processes.
        numbers = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "pid": pid, "start": start_of(pid), "numbers": numbers}


def _remove_others(folder: Path, prefix: str, is_stale: Callable[[Path], bool]) -> None:
    """Remove this user's folders beside `folder` whose names begin alike, if they are stale."""
    for other in folder.parent.glob(f"{prefix}*"):
        if other != folder and is_stale(other):
            remove_folder(other)


def _is_deserted(folder: Path) -> bool:
    """Return whether a folder's launcher, on this host, has ended."""
    try:
        owner = json.loads(folder.joinpath(_OWNER).read_bytes())
        now = _owner(int(owner["pid"]))
        is_here = owner["host"] == now["host"] and owner.get("numbers", now["numbers"]) == now["numbers"]
        if not is_here or folder.stat().st_uid != os.geteuid():
            return False
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return False  # cannot be judged from here
    return owner.get("start", now["start"]) != now["start"] or not is_running(now["pid"])


def _is_old(folder: Path) -> bool:
    """Return whether nothing in a folder has changed for long."""
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return False
    return time.time() - newest > _STALE_SECONDS


def _is_in_use(folder: Path) -> bool:
    """Return whether a process was told of a folder, such as an mpirun that outlives its launcher."""
    if not os.path.isdir("/proc/self"):
        return not _is_old(folder)
    return any(str(folder) in environment_of(pid).values() for pid in all_processes())
