"""Kill a job that trains while it writes checkpoints, check what is left, and go on: again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from background_job import (
    BackgroundJob,
    appearance,
    check_with_numpy_alone,
    complete_checkpoints,
    events,
    program,
)
from slowly import slowly

from dist_classicrl.checkpoint.folder import CheckpointFolder

GAP = 0.02
"""By how much the greedy policy may be worse than the best one, whose value is about 10."""

SETTINGS = {
    # The table is larger than the environment, so that writing takes a while.
    "alone": ({"state_size": 30_000, "action_size": 3}, None),
    "rounds": ({"state_size": 30_000, "action_size": 3, "async_updates": False, "logical_workers": 4}, None),
    "async-3": ({"state_size": 30_000, "action_size": 3}, 3),
    "rounds-3": ({"state_size": 30_000, "action_size": 3, "async_updates": False, "logical_workers": 4}, 3),
}
LONGEST_DELAY = 0.5


@dataclass
class Kills:
    """What was seen of one way to train.

    Attributes
    ----------
    kills, ended : int
        Processes or jobs that were killed, and those that had come to their end before.
    torn : int
        Kills that left a checkpoint half written or half removed.
    resumed : int
        Starts that went on from a checkpoint.
    finished : int
        Runs that came to their end, with the right number of steps and the right answer.
    largest_gap : float
        By which a finished run's greedy policy was worse than the best one.
    tables : set of str
        SHA-256 of the finished runs' tables.
    """

    kills: int = 0
    ended: int = 0
    torn: int = 0
    resumed: int = 0
    finished: int = 0
    largest_gap: float = 0.0
    tables: set[str] = field(default_factory=set)


def options_of(way, steps, folder=None):
    """Return the options with which `checkpoint_program.py` trains in this way."""
    agent, _ = SETTINGS[way]
    saving = {} if folder is None else {"checkpoint_dir": str(folder), "checkpoint_interval": 1}
    return {"agent": agent, "train": saving, "calls": [{"total_steps": steps}]}


def kill_and_finish(way, steps, folder, kills, chance, seen):
    """Begin a run, kill it `kills` times at moments that `chance` draws, and let it come to its end."""
    agent_folder = Path(folder) / "agent-0"
    while kills:
        expected = newest_of(agent_folder)
        checkpoint_begins = appearance(agent_folder, "f*-c*")
        arguments = slowly(program(**options_of(way, steps, folder)))
        with BackgroundJob(arguments, ranks=SETTINGS[way][1]) as job:
            if job.wait_for(checkpoint_begins, "a checkpoint to begin"):
                time.sleep(chance.uniform(0.0, LONGEST_DELAY))
            if job.process.poll() is not None:
                check_end(job, way, steps, agent_folder, expected, seen)
                seen.ended += 1
                return
            job.kill()
        kills -= 1
        seen.kills += 1
        seen.resumed += expected is not None
        check_folder(agent_folder, seen)
    expected = newest_of(agent_folder)
    with BackgroundJob(program(**options_of(way, steps, folder)), ranks=SETTINGS[way][1]) as job:
        job.wait(timeout=300)
        check_end(job, way, steps, agent_folder, expected, seen)


def newest_of(agent_folder):
    """Return where the newest complete checkpoint is, or None."""
    names = complete_checkpoints(agent_folder)
    return str(agent_folder / names[0]) if names else None


def check_folder(agent_folder, seen):
    """Check that the newest complete checkpoint is the one that is loaded, and that all are good."""
    names = complete_checkpoints(agent_folder)
    for name in names:
        check_with_numpy_alone(agent_folder / name)
    seen.torn += len(list(agent_folder.glob("f*-c*"))) > len(names)
    read = CheckpointFolder(agent_folder.parent, agent_folder.name).read_newest()
    assert (read and read.name) == (names[0] if names else None)


def check_end(job, way, steps, agent_folder, expected, seen):
    """Check that a job went on from the checkpoint `expected`, and ended as if it had never been killed."""
    if job.process.returncode != 0:
        raise job.error(f"ended with status {job.process.returncode}")
    said = events(job.output, "trained")
    assert len(said) == (SETTINGS[way][1] or 1), job.output
    for rank in said:
        assert rank["steps"] == rank["agent_steps"] == rank["visits"] == steps, job.output
        assert rank["resumed_from"] == expected, job.output
        assert rank["optimum"] - rank["value"] < GAP, job.output
        seen.largest_gap = max(seen.largest_gap, rank["optimum"] - rank["value"])
        seen.tables.add(rank["sha256"])
    seen.resumed += expected is not None
    seen.finished += 1
    check_folder(agent_folder, seen)
    assert f"step{steps:015d}" in complete_checkpoints(agent_folder)[0]


def uninterrupted(way, steps):
    """Return the SHA-256 of the table of a run that nobody kills and that writes no checkpoints."""
    with BackgroundJob(program(**options_of(way, steps)), ranks=None) as job:
        job.wait(0, timeout=300)
        return events(job.output, "trained")[0]["sha256"]
