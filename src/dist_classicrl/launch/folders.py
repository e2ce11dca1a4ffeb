"""The folders of a launched job: where its ranks record how they end, and where mpirun keeps its files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dist_classicrl.errors import LauncherError

STATE_FOLDER = ".dist_classicrl"  # where ranks record how they end by default
_PREFIX = "launch-"
_SESSION_PREFIX = "dist-classicrl-"
_OWNER = "launcher.json"
_STALE_SECONDS = 24 * 3600.0


@contextmanager
def launch_folder(state_dir: Path) -> Iterator[Path]:
    """Make a new folder within `state_dir` for the duration of the block.

    Only this user may enter it, whatever the umask: another user could otherwise claim there that the work is
    done. Folders of launchers of this host that have ended are removed if nothing in them has changed for a
    day.
    """
    place = state_dir.absolute()
    folder = place / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        _sign(folder)
    except OSError as error:
        raise LauncherError(
            f"The folder {str(folder)!r}, in which ranks say how they end, cannot be made ({error}). "
            "Give --state-dir a folder that can be written to from all hosts."
        ) from error
    _remove_stale(folder, _PREFIX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # it has a folder of another launch, or is not ours to remove
            place.rmdir()


@contextmanager
def session_folder() -> Iterator[str]:
    """Make a new folder of this host that only this user may enter, for the duration of the block.

    Open MPI names the folder of its files after its process id, and would use one that another user has made.
    Those of launchers that have ended are removed as by `launch_folder`.
    """
    try:
        folder = tempfile.mkdtemp(prefix=_SESSION_PREFIX)
        _sign(Path(folder))
    except OSError as error:
        raise LauncherError(
            f"No folder can be made for mpirun's own files ({error}). Let TMPDIR name a folder of this host "
            "that you may write to."
        ) from error
    _remove_stale(Path(folder), _SESSION_PREFIX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sign(folder: Path) -> None:
    """Write into a folder which launcher it belongs to."""
    owner = {"host": socket.gethostname(), "pid": os.getpid()}
    folder.joinpath(_OWNER).write_text(json.dumps(owner), encoding="utf-8")


def _remove_stale(folder: Path, prefix: str) -> None:
    """Remove folders beside `folder` whose names begin alike, and whose launchers have ended."""
    for other in folder.parent.glob(f"{prefix}*"):
        if other != folder and _is_stale(other):
            shutil.rmtree(other, ignore_errors=True)


def _is_stale(folder: Path) -> bool:
    """Return whether a folder's launcher, on this host, has ended and its ranks have long been silent."""
    try:
        owner = json.loads(folder.joinpath(_OWNER).read_bytes())
        is_gone = folder.stat().st_uid == os.geteuid()
        is_gone &= owner["host"] == socket.gethostname() and not _exists(int(owner["pid"]))
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False  # cannot be judged from here
    return is_gone and time.time() - newest > _STALE_SECONDS


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
