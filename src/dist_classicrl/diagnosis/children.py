"""Trials in processes of their own, each to a deadline."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from dist_classicrl.diagnosis import marked
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.process.jobs import run_job

_SHOWN_LINES = 8


@dataclass(frozen=True)
class Child:
    """How a trial ended."""

    data: dict[str, Any] | None  # what it said; None if it did not come to that
    trouble: str  # why not


def make_trial(name: str, *words: str, seconds: float) -> Child:
    """Run a trial of `dist_classicrl.diagnosis.trials`, for at most `seconds`."""
    command = [sys.executable, "-m", "dist_classicrl.diagnosis.trials", name, *words]
    job = run_job(command, timeout=seconds, env=launch_environment())
    for said in marked.read(job.output):
        return Child(said, "")
    if job.timed_out:
        return Child(None, f"it did not end within {seconds:g} s")
    return Child(None, f"exit status {job.returncode}: {last_lines(job.output) or 'it said nothing'}")


def last_lines(output: str) -> str:
    """Return the end of a job's output, for people."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -=*\t")]
    return "\n".join(lines[-_SHOWN_LINES:])
