"""How much time SLURM leaves to the job that this process is in."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Mapping
from functools import cache

from dist_classicrl import durations
from dist_classicrl.process.jobs import run_job

logger = logging.getLogger(__name__)

_COMMAND_SECONDS = 10.0
_NO_LIMIT = ("UNLIMITED", "NOT_SET")


class _NoAnswerError(Exception):
    """SLURM could not be asked, or what it said does not tell the time left."""


@cache
def _end_of_job() -> float | None:
    """Return when SLURM ends the job, on the monotonic clock; asked once, and not at each call of `train`."""
    left = seconds_left()
    return None if left is None else time.monotonic() + left


def job_seconds_left() -> float | None:
    """Return `seconds_left`, as it was when this process first asked, less the time since."""
    end = _end_of_job()
    return None if end is None else end - time.monotonic()


def times_queued_again() -> int:
    """Return how many times the SLURM job of this process has gone back into the queue; 0 outside SLURM."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def seconds_left(
    environment: Mapping[str, str] | None = None, command_seconds: float = _COMMAND_SECONDS
) -> float | None:
    """Return the time that is left to the SLURM job of this process, in seconds.

    None outside SLURM and for a job without a time limit; also, with a warning, where it cannot be found out.
    The environment variables, by default this process's, are for SLURM's commands too, of which each may take
    `command_seconds`.
    """
    environment = os.environ if environment is None else environment
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return None
    end = environment.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal() and float(end) > time.time():
        return float(end) - time.time()
    # The job was extended, or the variable is of an earlier run of it.
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        job = f"{array}_{task}"  # the last task's own number is also that of the whole array
    # Its SQUEUE_ variables would choose among jobs as options do.
    environment = {name: value for name, value in environment.items() if not name.startswith("SQUEUE_")}
    failures = []
    for command, read in (
        (("squeue", "-h", "-j", job, "-o", "%L"), _least_of_squeue),
        (("scontrol", "show", "job", job), _least_of_scontrol),
    ):
        try:
            left = read(_output(command, environment, command_seconds))
        except _NoAnswerError as error:
            failures.append(f"{command[0]}: {error}")
        else:
            return left if math.isfinite(left) else None
    logger.warning(
        "SLURM does not say how much time job %s has left (%s): training will not stop by itself before its "
        "time limit. Pass train(time_limit=...) for that.",
        job,
        "; ".join(failures),
    )
    return None


def _least_of_squeue(output: str) -> float:
    """Return the least time left of the parts of the job, a line each; inf without a limit."""
    lines = output.split()
    if not lines:
        raise _NoAnswerError("it said nothing")
    return min(_limit(line) for line in lines)


def _least_of_scontrol(output: str) -> float:
    """Return the least time left of the parts of the job, a record each; inf without a limit."""
    limits = re.findall(r"\bTimeLimit=(\S+)", output)
    runs = re.findall(r"\bRunTime=(\S+)", output)
    if not limits or len(limits) != len(runs):
        raise _NoAnswerError(f"it said {_excerpt(output)}")
    return min(max(0.0, _limit(limit) - _duration(run)) for limit, run in zip(limits, runs, strict=True))


def _limit(text: str) -> float:
    return math.inf if text in _NO_LIMIT else _duration(text)


def _duration(text: str) -> float:
    seconds = durations.of_clock(text)
    if seconds is None:
        raise _NoAnswerError(f"it said {_excerpt(text)}")
    return seconds


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


def _output(command: tuple[str, ...], environment: Mapping[str, str], seconds: float) -> str:
    """Return what `command` prints; it and its children are ended when it takes longer than `seconds`."""
    try:
        job = run_job(command, timeout=seconds, env=environment, keep_errors=False)
    except OSError as error:
        raise _NoAnswerError(error.strerror) from error
    if job.timed_out:
        raise _NoAnswerError(f"no answer within {seconds:g} s")
    if job.returncode:
        raise _NoAnswerError(f"exit status {job.returncode}")
    return job.output
