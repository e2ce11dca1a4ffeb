"""How trials and probes are started in processes of their own, and what is kept of their output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_classicrl.diagnosis import marked
from dist_classicrl.launch.launcher import Launcher, launch_environment
from dist_classicrl.launch.mpirun import start_command
from dist_classicrl.launch.network import network_words
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


def probe_command(
    launcher: Launcher,
    n_ranks: int,
    hostfile: str | Path | None,
    agent: str | None,
    network: str | None,
    *program: object,
    survive: bool = False,
) -> list[str]:
    """Return the command that starts ranks with a program of `dist_classicrl.diagnosis.probe`."""
    words = [sys.executable, "-m", "dist_classicrl.diagnosis.probe", *map(str, program)]
    chosen = network_words(launcher, network)
    return start_command(
        launcher, n_ranks, words, hostfile=hostfile, agent=agent, network=chosen, survive=survive
    )


def last_lines(output: str) -> str:
    """Return the end of a job's output, for people."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -=*\t")]
    return "\n".join(lines[-_SHOWN_LINES:])
