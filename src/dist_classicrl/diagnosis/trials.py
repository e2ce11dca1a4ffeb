"""What is tried in a process of its own, so that only that process hangs or crashes.

python -m dist_classicrl.diagnosis.trials (library | folder | remove | cache | training) [argument ...]

Each writes one line of JSON after a mark.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dist_classicrl._words import error_told
from dist_classicrl.diagnosis import marked


def library() -> dict[str, Any]:
    """Load the MPI library without starting MPI: a broken one may hang there."""
    try:
        import mpi4py
    except ImportError as error:
        return {"missing": str(error)}
    mpi4py.rc.initialize = False
    said: dict[str, Any] = {"mpi4py": mpi4py.__version__}
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {**said, "error": str(error)}
    return {**said, "library": MPI.Get_library_version(), "file": _loaded_file()}


def folder(location: str) -> dict[str, Any]:
    """Do what checkpoints need: files that are whole or not there, replaced by renaming, taken by one alone.

    What is made stays there, for other ranks to look for, until `remove`; unless the trial is ended.
    """
    from dist_classicrl.checkpoint.local import LocalStorage
    from dist_classicrl.checkpoint.location import open_storage
    from dist_classicrl.errors import CheckpointError

    name = f"doctor-{secrets.token_hex(4)}"
    said: dict[str, Any] = {"name": name, "missing": _missing_folders(location)}
    try:
        storage = open_storage(location, name, 0o600)
        storage.create()
        begun = time.monotonic()
        storage.write("state", [b"first"])
        storage.write("state", [b"second"])
        said["seconds"] = (time.monotonic() - begun) / 2
        with storage.open("state") as file:
            said["replaced"] = file.read() == b"second"
        said["exclusive"] = storage.write_new("fence", b"1") and not storage.write_new("fence", b"2")
        said["listed"] = storage.names() == ["fence", "state"]
        storage.sync("")
        if isinstance(storage, LocalStorage):
            said["path"] = storage.url
            said["free"] = shutil.disk_usage(storage.url).free
            said["kind"] = _file_system(storage.url)
    except (CheckpointError, OSError) as error:
        said["error"] = str(error)
    except SystemExit:
        remove(location, name, *said["missing"])
        raise
    return said


def remove(location: str, name: str, *missing: str) -> dict[str, Any]:
    """Remove what `folder` has made, and the folders above it that were missing before."""
    from dist_classicrl.checkpoint.location import open_storage

    open_storage(location, name, 0o600).remove("")
    for path in missing:
        try:
            os.rmdir(path)
        except OSError:  # never made, or in use by now
            continue
    return {}


def cache() -> dict[str, Any]:
    """Load compiled code, and look where numba keeps it."""
    try:
        import numba

        from dist_classicrl.evaluation.greedy import play_greedily
    except Exception as error:  # numba raises errors of many kinds
        return {"error": error_told(error)}
    config: Any = numba.config
    said: dict[str, Any] = {"wanted": config.CACHE_DIR, "disabled": bool(config.DISABLE_JIT)}
    if not said["disabled"]:
        said["path"] = path = getattr(play_greedily._cache, "cache_path", None)
        if path is None:
            return {**said, "unused": True}
        try:
            os.makedirs(path, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            said["unwritable"] = str(error)
    return said


def training() -> dict[str, Any]:
    """Learn a compiled game, without MPI: all that is compiled is, whether a cache has it or not."""
    begun = time.monotonic()
    try:
        from dist_classicrl.agent.agent import DistAsyncQLearning
        from dist_classicrl.sweep.trial import THIS_PROCESS

        result = DistAsyncQLearning(comm=THIS_PROCESS, seed=0).train("Blackjack-v1", total_steps=1_000)
    except Exception as error:  # numba raises errors of many kinds
        return {"error": error_told(error)}
    return {"steps": result.steps, "seconds": time.monotonic() - begun}


def _loaded_file() -> str:
    """Return the file of the MPI library that this process has loaded; empty where it cannot be told."""
    try:
        with open("/proc/self/maps") as maps:
            files = {line.split()[-1] for line in maps if "/libmpi" in line}
    except OSError:
        return ""
    others = [file for file in files if not os.path.basename(file).startswith(("libmpi.so", "libmpi_abi"))]
    return min(files.difference(others) or others, default="")


def _missing_folders(location: str) -> list[str]:
    """Return the folders that have to be made for `location`, the innermost first."""
    if "://" in location:
        return []
    path = Path(os.path.abspath(location))
    return [str(each) for each in (path, *path.parents) if not os.path.lexists(each)]


def _file_system(path: str) -> str:
    """Return the kind of file system that `path` is on; empty where it cannot be told."""
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return ""
    inside = [row for row in mounts if os.path.realpath(path).startswith(os.path.join(row[4], ""))]
    nearest = max(inside, key=lambda row: len(row[4]), default=None)
    return "" if nearest is None else nearest[nearest.index("-") + 1]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    trials: dict[str, Callable[..., dict[str, Any]]]
    trials = {"library": library, "folder": folder, "remove": remove, "cache": cache, "training": training}
    marked.write(**trials[sys.argv[1]](*sys.argv[2:]))
