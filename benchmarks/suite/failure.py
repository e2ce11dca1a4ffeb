"""Throughput through a worker's and the server's death, and how long it takes to notice and to go on."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.launcher import find_launcher, launch_environment
from dist_classicrl.launch.mpirun import mpirun_command, survival_words
from suite.form import Effort, LeftOutError, table_row
from suite.peers import Peers

RANKS = 4
SECONDS = 6.0
"""Of a training, about; the death comes in the middle."""
LOOK_SECONDS = 0.05
LIMIT_SECONDS = 120.0
VICTIMS = {"a worker": 2, "the server": 0}


def run(case: str, effort: Effort, _: Peers, folder: str) -> dict[str, Any]:
    """Measure several jobs, in each of which one process is killed."""
    headers = ["job", "M steps/s before", "after", "s until noticed", "s until steps come again"]
    headers += ["steps made again", "steps in the end"]
    try:
        launcher = find_launcher()
        if launcher.family != "openmpi" or launcher.version < (5,):
            raise LeftOutError(f"a death is survived with Open MPI 5 and newer only, and this is {launcher}")
        steps = int(SECONDS * _rate(Path(folder)))
        seen = [one_job(Path(folder), VICTIMS[case], steps) for _ in range(effort.jobs)]
    except (LauncherError, LeftOutError) as error:
        return table_row("failure", case, headers, [], {"all": str(error)})
    rows = [
        [
            str(number),
            f"{job['before'] / 1e6:.3g}",
            f"{job['after'] / 1e6:.3g}",
            f"{job['noticed']:.2f}",
            f"{job['again']:.2f}",
            f"{job['returned']:,}",
            f"{job['steps']:,} of {steps:,}",
        ]
        for number, job in enumerate(seen, 1)
    ]
    lines = {f"job {number}": job["rates"] for number, job in enumerate(seen, 1)}
    plot = {"x": "seconds since the death", "y": "steps per second", "lines": lines}
    return table_row("failure", case, headers, rows, plots=[plot])


class _Job:
    """A training on `RANKS` ranks whose deaths are survived; each process writes what it sees to `folder`."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        words = ["-m", "suite.failure", str(folder), str(steps)]
        launcher = find_launcher()
        command = [*mpirun_command(RANKS, launcher), *survival_words(launcher), sys.executable, *words]
        self.process = subprocess.Popen(
            command,
            env=launch_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def said(self, event: str) -> list[dict[str, Any]]:
        """Return what processes wrote of a kind of event, in the order of time."""
        lines = [line for path in self.folder.glob("*.jsonl") for line in path.read_text().split("\n")[:-1]]
        told = [json.loads(line) for line in lines if f'"event": "{event}"' in line]
        return sorted(told, key=lambda line: line["time"])

    def wait_for(self, event: str, what: Any = bool) -> list[dict[str, Any]]:
        """Wait until processes have said enough of a kind; raise `LeftOutError` where they never do."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not what(self.said(event)):
            if time.monotonic() > deadline or (
                self.process.poll() is not None and not what(self.said(event))
            ):
                raise LeftOutError(f"the job ended or stood still before it said enough of {event!r}")
            time.sleep(LOOK_SECONDS)
        return self.said(event)


@contextmanager
def _job(folder: Path, steps: int) -> Iterator[_Job]:
    where = folder / f"job-{time.time_ns()}"
    where.mkdir()
    job = _Job(where, steps)
    try:
        yield job
        job.process.wait(LIMIT_SECONDS)
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()


def _rate(folder: Path) -> float:
    with _job(folder, 20_000_000) as job:
        return float(job.wait_for("trained")[-1]["rate"])


def one_job(folder: Path, victim: int, steps: int) -> dict[str, Any]:
    """Kill one rank in the middle of a training, and return what was seen."""
    with _job(folder, steps) as job:
        job.wait_for("progress", lambda lines: lines and lines[-1]["steps"] > steps / 2)
        pid = next(line["pid"] for line in job.said("started") if line["rank"] == victim)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        ended = job.wait_for("trained", lambda lines: len(lines) == RANKS - 1)[-1]
        progress = [line for line in job.said("progress") if line["pid"] != pid or line["time"] < killed]
        told = [line for line in job.said("lost") if line["rank_lost"] == victim] or job.said("failover")
    before, after = _halves(progress, killed)
    first = next((line["time"] for line in after if line["steps"] > before[-1]["steps"]), ended["time"])
    return {
        "before": _mean_rate(before[len(before) // 4 :]),
        "after": _mean_rate([line for line in after if line["time"] >= first]),
        "noticed": min(line["time"] for line in told) - killed if told else float("nan"),
        "again": first - killed,
        "returned": ended["returned"],
        "steps": ended["steps"],
        "rates": _rates(progress, killed),
    }


def _halves(progress: list[dict[str, Any]], killed: float) -> tuple[list[Any], list[Any]]:
    before = [line for line in progress if line["time"] <= killed]
    return before, [line for line in progress if line["time"] > killed]


def _mean_rate(lines: list[dict[str, Any]]) -> float:
    if len(lines) < 2:
        return float("nan")
    return (lines[-1]["steps"] - lines[0]["steps"]) / (lines[-1]["time"] - lines[0]["time"])


def _rates(progress: list[dict[str, Any]], killed: float) -> list[list[float]]:
    """Return seconds since the death and steps per second, of stretches of a quarter of a second."""
    found, last = [], progress[0]
    for line in progress[1:]:
        if line["time"] - last["time"] >= 0.25:
            rate = max(0.0, (line["steps"] - last["steps"]) / (line["time"] - last["time"]))
            found.append([(line["time"] + last["time"]) / 2 - killed, rate])
            last = line
    return found


class _Lines:
    """Writes lines of JSON, each at once: a process that is killed has written all."""

    def __init__(self, folder: str, rank: int) -> None:
        path = os.path.join(folder, f"{os.getpid()}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._rank = rank

    def say(self, event: str, **data: Any) -> None:
        """Write one."""
        line = {"event": event, "time": time.time(), "pid": os.getpid(), "rank": self._rank, **data}
        os.write(self._file, (json.dumps(line) + "\n").encode())


def run_rank(folder: str, steps: int) -> None:
    """Be one rank of a job."""
    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.callbacks import BaseCallback
    from dist_classicrl.schedules import PerVisit

    logging.getLogger("dist_classicrl").setLevel(logging.ERROR)
    agent = DistAsyncQLearning(learning_rate=PerVisit(0.7), epsilon=0.5, seed=0)
    lines = _Lines(folder, agent.rank)

    class Told(BaseCallback):
        def _on_worker_lost(self, event: dict[str, Any]) -> None:
            lines.say("lost", rank_lost=event["rank"])

        def _on_failover(self, event: dict[str, Any]) -> None:
            lines.say("failover")

    lines.say("started")
    result = agent.train(
        common.problem(common.FROZEN_LAKE),
        total_steps=steps,
        progress=lambda progress: lines.say("progress", steps=progress.steps),
        progress_interval=LOOK_SECONDS,
        progress_bar=False,
        callbacks=Told(),
    )
    returned = sum(event["steps_returned"] for event in result.events)
    lines.say("trained", rate=result.steps_per_second, steps=result.steps, returned=returned)


if __name__ == "__main__":
    run_rank(sys.argv[1], int(sys.argv[2]))
