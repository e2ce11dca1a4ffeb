"""Run a program to its end or to a deadline, and leave nothing of it behind.

`mpirun` starts daemons and ranks in sessions of their own, so killing its process group does not end a job.
Every process of a job inherits an environment variable that names the job, and that is how they are found.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dist_classicrl.process.signals import postponed

JOB_VARIABLE = "DIST_CLASSICRL_JOB"

_POLL_SECONDS = 0.02
# In well under this time Open MPI passes SIGTERM on, kills its ranks and removes its session directory.
_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class FinishedJob:
    """How a job ended.

    `output` is what all processes wrote to standard output and standard error, in the order of writing; it is
    empty where that was passed on instead of kept.
    """

    command: tuple[str, ...]
    returncode: int  # of the first process; negative for a signal, as `subprocess` has it
    output: str
    timed_out: bool  # the deadline ended the job
    seconds: float


def run_job(
    command: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    keep_output: bool = True,
    keep_errors: bool = True,
) -> FinishedJob:
    """Run `command` and everything that it starts, and end it after `timeout` seconds: see `end_job`.

    `env` is the whole environment of the job. Output that is not kept goes where this process's output goes;
    without `keep_errors` standard error goes nowhere.

    When this function returns or raises, no process of the job is left, except one that the kernel does not
    end within some seconds of SIGKILL, such as one held by a dead file system. On systems without `/proc`
    only those in the first process's session can be found.
    """
    started = time.monotonic()
    timed_out = False
    # A file and not a pipe: a daemon that outlives the job would keep a pipe open, and reading it would hang.
    with tempfile.TemporaryFile() as output_file, ExitStack() as ending:
        output = output_file if keep_output else None
        with postponed():
            process, job = start_job(command, env=env, cwd=cwd, output=output, keep_errors=keep_errors)
            ending.callback(end_job, process, job)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        ending.close()
        seconds = time.monotonic() - started
        output_file.seek(0)
        text = output_file.read().decode(errors="replace")
    returncode = -signal.SIGKILL if process.returncode is None else process.returncode
    return FinishedJob(tuple(command), returncode, text, timed_out, seconds)


def start_job(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    output: IO[bytes] | None = None,
    keep_errors: bool = True,
    before: Callable[[], object] | None = None,
) -> tuple[subprocess.Popen[bytes], str]:
    """Start `command` as a job, without input, in a session of its own.

    What is left out is that of this process: its environment, its folder, and where its output goes; without
    `keep_errors` standard error goes nowhere. `before` is called in the new process before it becomes the
    program. Besides the process the name of the job is returned, for `processes_of` and `end_job`; a job that
    starts within another one belongs to that as well.
    """
    outer = os.environ.get(JOB_VARIABLE)
    job = uuid.uuid4().hex if outer is None else f"{outer}/{uuid.uuid4().hex}"
    environment = dict(os.environ if env is None else env)
    environment[JOB_VARIABLE] = job
    errors = None if output is None else subprocess.STDOUT
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors if keep_errors else subprocess.DEVNULL,
        env=environment,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=before,
    )
    return process, job


def processes_of(job: str) -> list[int]:
    """Give the ids of this user's live processes that belong to `job`, where there is a `/proc`."""
    name = f"{JOB_VARIABLE}={job}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(each == name or each.startswith(name + b"/") for each in variables):
            found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Tell whether there is a process with this id that has not ended; needs `/proc`."""
    try:
        # The name, in parentheses, may hold anything. The state follows it: Z and X have ended.
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def command_of(pid: int) -> list[str]:
    """Give the command line of a process, where there is a `/proc`; nothing if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]


def end_job(process: subprocess.Popen[bytes], job: str) -> None:
    """End what `start_job` returned: SIGTERM to its first process, and SIGKILL to all that is left."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        # macOS answers so for a group of which only zombies are left.
        if sys.platform != "darwin":
            raise
    # A process may start another one between the look and the kill, so look until there is none.
    # One that is held by a dead file system may never go.
    deadline = time.monotonic() + _GRACE_SECONDS
    killed: set[int] = set()
    while (remaining := processes_of(job)) and time.monotonic() < deadline:
        killed.update(remaining)
        for pid in remaining:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    # A killed process gives up its environment, in which it is found, a little before it is gone.
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(is_running(pid) for pid in killed) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
