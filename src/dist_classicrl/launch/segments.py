"""Shared memory that ranks leave: Open MPI's, where mpirun is killed as well, and MPICH's, at any death."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

from dist_classicrl.process.jobs import all_processes

_PLACE = Path("/dev/shm")
_KINDS = ("sm_segment", "vader_segment")  # of Open MPI 5 and 4
_OF_MPICH = "mpich_shm_"  # says neither the host nor the user
_PAUSE_SECONDS = 0.3  # in which the one that makes a segment has mapped it
_FIRST_NAMESPACE = "pid:[4026531836]"
_START_SECONDS = 600.0  # in which all ranks of a job have found its segments


def remove_unused_segments() -> None:
    """Remove this user's segments of this host that no process has mapped; who makes one keeps it mapped.

    Another process may be just making one, so they are looked at twice. In a container there may be processes
    that cannot be seen: there, only segments go that are too old for anybody to be looking for them by name.
    """
    if unused := _unused():
        time.sleep(_PAUSE_SECONDS)
        for path in unused & _unused():
            path.unlink(missing_ok=True)


def _unused() -> set[Path]:
    host = socket.gethostname()
    names = "|".join(re.escape(name) for name in {host, host.partition(".")[0]})
    ours = re.compile(rf"({'|'.join(_KINDS)})\.({names})\.{os.geteuid()}\.|{_OF_MPICH}")
    found = {}
    newest = time.time() - (0.0 if _sees_all_processes() else _START_SECONDS)
    with suppress(OSError):
        for path in _PLACE.iterdir():
            if ours.match(path.name):
                with suppress(OSError):
                    state = path.lstat()
                    if state.st_uid == os.geteuid() and state.st_mtime <= newest:
                        found[path] = str(state.st_ino)
    mapped = _mapped() if found else set()  # never empty where there is a /proc
    return {path for path, number in found.items() if mapped and number not in mapped}


def _sees_all_processes() -> bool:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    return False


def _mapped() -> set[str]:
    """Return the inode numbers of all files that processes have mapped, as far as they can be seen."""
    numbers: set[str] = set()
    for pid in all_processes():
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            numbers.update(line.split(maxsplit=5)[4] for line in lines)
    return numbers
