"""A process that ends what a launcher leaves when it is killed: its mpirun, its ranks and its folders.

python -m dist_classicrl.launch.guard JOB FOLDER ...

An mpirun is asked to end by its launcher's death, but one that is just starting its ranks may hang of that,
and a rank that is just starting MPI hears of nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.folders import remove_folder
from dist_classicrl.launch.segments import remove_unused_segments
from dist_classicrl.process.jobs import kill_job, processes_of

_GRACE_SECONDS = 3.0  # for mpirun to end the job in order
_POLL_SECONDS = 0.05
_NOT_FOR_IT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def guarded(job: str, folders: Sequence[object]) -> Iterator[None]:
    """While this is entered, let the end of this process be that of the job and all jobs within it.

    The `folders` are removed then. Nothing where processes cannot be found, as without `/proc`.
    """
    if not os.path.isdir("/proc/self"):
        yield
        return
    # It reads until this process, which alone holds the other end of the pipe, closes that or is gone.
    words = [sys.executable, "-m", __name__, job, *map(str, folders)]
    nowhere = subprocess.DEVNULL
    try:
        guard = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
    except OSError as error:
        raise LauncherError(f"{' '.join(words[:3])} cannot be started: {error}") from error
    with guard:
        try:
            yield
        finally:
            guard.kill()


def main(job: str, *folders: str) -> None:
    """Wait until the launcher is gone, and end what it has left."""
    for number in _NOT_FOR_IT:  # whoever sends one to all of a job sends it to the launcher, too
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    deadline = time.monotonic() + _GRACE_SECONDS
    while processes_of(job) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    kill_job(job)
    for folder in folders:
        remove_folder(Path(folder))
    remove_unused_segments()


if __name__ == "__main__":
    main(*sys.argv[1:])
