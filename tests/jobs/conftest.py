"""Whole programs as a user starts them, under the same mpirun as scripts/train, each to a deadline."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from background_job import BackgroundJob

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import run_job

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session", autouse=True)
def apart(files_of_mpirun):
    """Let processes that run at the same time not disturb each other's jobs."""


@pytest.fixture
def run_python(tmp_path):
    """Give a function that runs Python in an empty folder, on `ranks` ranks or without mpirun.

    It fails the test if the program does not end with `status`, and gives the FinishedJob.
    """

    def run(*arguments, ranks=None, timeout=300.0, status=0, env=None):
        command = [*([] if ranks is None else mpirun_command(ranks)), sys.executable, *map(str, arguments)]
        # The package is found where this one was found, installed or not.
        source = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
        environment = launch_environment({**os.environ, **source, **(env or {})})
        job = run_job(command, timeout=timeout, env=environment, cwd=tmp_path)
        # Open MPI 5.0's mpirun may crash itself after it has ended the ranks of a job that was aborted.
        crashed = ranks is not None and job.returncode == -signal.SIGSEGV
        ended = status if crashed and f"Errorcode: {status}\n" in job.output else job.returncode
        if job.timed_out or ended != status:
            ending = "was killed at its deadline" if job.timed_out else f"ended with status {job.returncode}"
            pytest.fail(f"{' '.join(command)}\n{ending} after {job.seconds:.1f} s; it wrote:\n{job.output}")
        return job

    return run


@pytest.fixture
def start_python(tmp_path):
    """Give a function that starts Python in an empty folder and returns the `BackgroundJob`.

    Whatever is left of such jobs when the test ends is ended as well.
    """
    with ExitStack() as jobs:

        def start(*arguments, ranks=None, env=None):
            job = BackgroundJob(arguments, ranks=ranks, cwd=tmp_path, env=env)
            return jobs.enter_context(job)

        yield start
