"""Run a program to its end or to a deadline, and leave nothing of it behind.

`mpirun` starts daemons and ranks in sessions of their own, so killing its process group does not end a job.
Every process of a job inherits an environment variable that names the job, and that is how they are found.
"""

from __future__ import annotations

import os
import signal
import subprocess
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
    end within some seconds of SIGKILL, such as one held by a dead file system, and those of other users, as
    with sudo. On systems without `/proc` only those in the first process's session can be found.
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
    within: str | None = None,
) -> tuple[subprocess.Popen[bytes], str]:
    """Start `command` as a job, without input, in a session of its own.

    What is left out is that of this process: its environment, its folder, and where its output goes; without
    `keep_errors` standard error goes nowhere. `before` is called in the new process before it becomes the
    program. Besides the process the name of the job is returned, for `processes_of` and `end_job`; it belongs
    to the one that is named by `within`, as `name_job` has it.
    """
    job = name_job(within)
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


def name_job(within: str | None = None) -> str:
    """Return a new name of a job, which belongs to the one that is named by `within` as well.

    That is by default the job that this process belongs to, if it does.
    """
    outer = os.environ.get(JOB_VARIABLE) if within is None else within
    return uuid.uuid4().hex if outer is None else f"{outer}/{uuid.uuid4().hex}"


def processes_of(job: str) -> list[int]:
    """Give the ids of this user's live processes that belong to `job`, where there is a `/proc`."""
    return [
        pid for pid in all_processes() if f"{environment_of(pid).get(JOB_VARIABLE)}/".startswith(f"{job}/")
    ]


def all_processes() -> list[int]:
    """Give the ids of all processes that can be seen, where there is a `/proc`."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def environment_of(pid: int) -> dict[str, str]:
    """Give the environment in which a process of this user was started; nothing if it has ended."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(each).partition("=") for each in variables)
    return {name: value for name, _, value in pairs}


def is_running(pid: int) -> bool:
    """Tell whether there is a process with this id that has not ended.

    Without a `/proc` one that its parent has not waited for counts as there.
    """
    if os.path.isdir("/proc/self"):
        state = _stat(pid)
        return bool(state) and state[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def parent_of(pid: int) -> int | None:
    """Give the id of the process that a process belongs to; None if there is none, or no `/proc`."""
    state = _stat(pid)
    return int(state[1]) if state else None


def start_of(pid: int) -> str | None:
    """Give when a process was started: another one with the same id has another start. As for `parent_of`."""
    state = _stat(pid)
    return state[19] if state else None


def _stat(pid: int) -> list[str]:
    """Give what the kernel tells of a process, from its state on: Z and X have ended."""
    try:
        # The name, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def command_of(pid: int) -> list[str]:
    """Give the command line of a process, where there is a `/proc`; nothing if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]


def end_job(process: subprocess.Popen[bytes], job: str) -> None:
    """End what `start_job` returned: SIGTERM to its first process, and SIGKILL to all that is left.

    Signals to this process wait meanwhile: a second Ctrl-C must not leave the job running.
    """
    with postponed():
        # Those that the first process kills itself end without an environment, in which they would be found.
        known = set(processes_of(job))
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        # macOS denies permission for a group of which only zombies are left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        killed = _kill(job)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        _wait_for(known | killed)


def kill_job(job: str) -> None:
    """Kill all processes of a job, where there is a `/proc`."""
    _wait_for(_kill(job))


def _kill(job: str) -> set[int]:
    # A process may start another one between the look and the kill, so look until there is none.
    # One that is held by a dead file system may never go. What is found is killed, whatever the clock says:
    # this process may itself have been held up.
    killed: set[int] = set()
    deadline = None
    while remaining := processes_of(job):
        killed.update(remaining)
        for pid in remaining:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        now = time.monotonic()
        if deadline is None:
            deadline = now + _GRACE_SECONDS
        elif now > deadline:
            break
        time.sleep(_POLL_SECONDS)
    return killed


def _wait_for(killed: set[int]) -> None:
    # A killed process gives up its environment, in which it is found, a little before it is gone.
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(is_running(pid) for pid in killed) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
