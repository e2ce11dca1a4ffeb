"""Jobs that run while a test does something else, such as sending them signals, and that never outlive it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process import jobs as processes

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "jobs" / "checkpoint_program.py"


class JobError(AssertionError):
    """A job did not do what was expected of it; the message has all that it wrote."""


class BackgroundJob:
    """Python, on `ranks` ranks or without mpirun. Leaving the `with` block ends whatever is left of it.

    `options` are further words for mpirun.
    """

    def __init__(self, arguments, *, ranks=None, options=(), cwd=None, env=None):
        self.job = uuid.uuid4().hex
        launcher = [] if ranks is None else [*mpirun_command(ranks), *options]
        self.command = [*launcher, sys.executable, *map(str, arguments)]
        # The package is found where this one was found, installed or not.
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = launch_environment({**os.environ, "PYTHONPATH": path, **(env or {})})
        self._file = tempfile.TemporaryFile()
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env={**environment, processes.JOB_VARIABLE: self.job},
            cwd=cwd,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        processes.end_job(self.process, self.job)
        self._file.close()

    @property
    def output(self):
        """All that the job has written so far."""
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), size, 0).decode(errors="replace")

    def events(self, event=None):
        """What the ranks of `checkpoint_program.py` said, in order."""
        return events(self.output, event)

    def wait_for(self, condition, what, timeout=180.0):
        """Wait until `condition()` is true and return it; None if the job ended before."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            if self.process.poll() is not None:
                return condition() or None
            if time.monotonic() > deadline:
                raise self.error(f"waited {timeout:g} s for {what}")
            time.sleep(0.003)
        return value

    def must_wait_for(self, condition, what, timeout=180.0):
        """Wait until `condition()` is true and return it; the job must not end before."""
        value = self.wait_for(condition, what, timeout)
        if value is None:
            raise self.error(f"ended with status {self.process.returncode} before {what}")
        return value

    def send(self, number):
        """Send a signal to the first process: mpirun, or Python."""
        self.process.send_signal(number)

    def send_to_rank(self, rank, number):
        """Send a signal to one rank as soon as it has said that it started."""

        def pids():
            return [each["pid"] for each in self.events("started") if each["rank"] == rank]

        # What a rank has done may be seen before mpirun has handed on what it said.
        (pid,) = self.must_wait_for(pids, f"the word of rank {rank} that it started")
        os.kill(pid, number)

    def kill(self):
        """Kill everything that belongs to the job, as one would a process group."""
        for pid in processes.processes_of(self.job):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        processes.end_job(self.process, self.job)

    def wait(self, status=None, timeout=180.0):
        """Wait for the end, which must be with `status` if one is given, and return the output."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self.error(f"did not end within {timeout:g} s") from None
        if status is not None and self.process.returncode != status:
            raise self.error(f"ended with status {self.process.returncode} and not {status}")
        return self.output

    def error(self, what):
        """Return the error that says `what` went wrong."""
        return JobError(f"{' '.join(self.command)}\n{what}; it wrote:\n{self.output}")


def events(output, event=None):
    """Return what `checkpoint_program.py` said in whole lines, all or one kind of `event`."""
    whole = output[: output.rfind("\n") + 1]
    said = [json.loads(line) for line in whole.splitlines() if line.startswith('{"event"')]
    return [each for each in said if event in (None, each["event"])]


def program(**options):
    """Return the arguments with which Python runs `checkpoint_program.py`."""
    return [PROGRAM, json.dumps(options, default=os.fspath)]


def appearance(folder, pattern):
    """Return a condition for `wait_for`: that `folder` has a name which it does not have now."""
    before = set(Path(folder).glob(pattern))
    return lambda: set(Path(folder).glob(pattern)) - before


def complete_checkpoints(folder):
    """Return the names of the checkpoints in an agent's `folder` that have a manifest, newest first."""
    return sorted((path.parent.name for path in Path(folder).glob("f*/manifest.json")), reverse=True)


def check_with_numpy_alone(checkpoint):
    """Return a checkpoint's body after every checksum in it was compared, without help of the package."""
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    body = manifest["body"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == manifest["sha256"]
    for name, entry in body["arrays"].items():
        data = (checkpoint / entry["file"]).read_bytes()
        assert len(data) == entry["bytes"], name
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], name
    visits = np.load(checkpoint / "visits.npy", allow_pickle=False)
    assert visits.sum() == body["steps"]
    assert np.isfinite(np.load(checkpoint / "q_table.npy", allow_pickle=False)).all()
    return body


def check_stopped(job, ranks, reason, since, folder, status=75):
    """Check that all ranks stopped in order, and that the checkpoint is one of after `since`.

    Return the number of steps in it.
    """
    job.wait(status)
    stopped = job.events("stopped")
    assert sorted(each["rank"] for each in stopped) == list(range(ranks)), job.output
    assert {each["code"] for each in stopped} == {status}
    assert all(reason in each["reason"] for each in stopped), job.output
    newest = Path(folder) / "agent-0" / complete_checkpoints(Path(folder) / "agent-0")[0]
    assert {each["checkpoint"] for each in stopped} == {str(newest)}
    body = check_with_numpy_alone(newest)
    assert {each["steps"] for each in stopped} == {each["agent_steps"] for each in stopped} == {body["steps"]}
    assert (newest / "manifest.json").stat().st_mtime > since - 0.05  # file systems count in ticks
    return body["steps"]


def check_finished(output, ranks, steps, resumed_at):
    """Check that all ranks made all steps, from the checkpoint of `resumed_at` steps on.

    Return what they said.
    """
    trained = events(output, "trained")
    assert sorted(each["rank"] for each in trained) == list(range(ranks))
    for each in trained:
        assert each["steps"] == each["agent_steps"] == each["visits"] == steps
        assert f"step{resumed_at:015d}" in each["resumed_from"]
    return trained
