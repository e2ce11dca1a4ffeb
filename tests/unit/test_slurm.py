"""How long SLURM leaves a job, asked of commands that only look like SLURM's."""

import logging
import os
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dist_classicrl.launch import slurm
from dist_classicrl.launch.slurm import seconds_left

SCONTROL = """JobId=41 JobName=train
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime={run} TimeLimit={limit} TimeMin=N/A
   SubmitTime=2026-11-20T13:00:00 EligibleTime=2026-11-20T13:00:00
   StartTime=2026-11-20T13:00:02 EndTime=2026-11-20T14:00:02 Deadline=N/A
   Comment=RunTime is what counts
"""


class Cluster:
    """A folder of commands, the environment that finds them, what they were asked, and the warnings."""

    def __init__(self, folder, caplog):
        self.caplog = caplog
        self.folder = folder
        self.asked = folder / "asked"
        self.environment = {"SLURM_JOB_ID": "41", "PATH": f"{folder}:{os.environ['PATH']}"}

    def command(self, name, body):
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{shlex.quote(str(self.asked))}\n{body}\n')
        path.chmod(0o755)

    def says(self, name, text):
        self.command(name, f"printf %s {shlex.quote(text)}")

    def seconds_left(self, command_seconds=60.0, **variables):
        return seconds_left({**self.environment, **variables}, command_seconds)

    def warnings(self):
        return [record.getMessage() for record in self.caplog.records]

    def questions(self):
        return self.asked.read_text().splitlines() if self.asked.exists() else []


@pytest.fixture
def cluster(tmp_path, caplog):
    caplog.set_level(logging.WARNING, slurm.logger.name)
    made = Cluster(tmp_path, caplog)
    for name in ("squeue", "scontrol"):  # so that a real one is never asked
        made.command(name, "exit 1")
    return made


def test_outside_slurm_nothing_is_asked(cluster, monkeypatch):
    assert seconds_left({"PATH": cluster.environment["PATH"]}) is None
    assert cluster.seconds_left(SLURM_JOB_ID="") is None
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert seconds_left() is None
    assert cluster.questions() == [] and not cluster.warnings()


def test_the_own_environment_is_looked_at(cluster, monkeypatch):
    cluster.says("squeue", "10:00\n")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert seconds_left() == 600.0


def test_a_process_asks_once_and_counts_on_from_there(cluster, monkeypatch):
    cluster.says("squeue", "10:00\n")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    slurm._end_of_job.cache_clear()
    try:
        first = slurm.job_seconds_left()
        assert 0.0 < first <= 600.0
        later = time.monotonic() + 900.0
        monkeypatch.setattr(slurm, "time", SimpleNamespace(time=time.time, monotonic=lambda: later))
        assert slurm.job_seconds_left() == pytest.approx(first - 900.0, abs=60.0)
        assert len(cluster.questions()) == 1
        slurm._end_of_job.cache_clear()
        cluster.says("squeue", "UNLIMITED\n")
        assert slurm.job_seconds_left() is None
        assert slurm.job_seconds_left() is None
        assert len(cluster.questions()) == 2
    finally:
        slurm._end_of_job.cache_clear()


def test_the_end_in_the_environment_needs_no_question(cluster):
    left = cluster.seconds_left(SLURM_JOB_END_TIME=str(int(time.time()) + 5000))
    assert 4000.0 < left <= 5000.0
    assert cluster.questions() == []


@pytest.mark.parametrize("end", ["", "soon", "-1", "1e9", "1000000000", "²"])
def test_an_end_that_is_no_time_or_has_passed_is_asked_for(cluster, end):
    cluster.says("squeue", "10:00\n")
    assert cluster.seconds_left(SLURM_JOB_END_TIME=end) == 600.0


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ("0:45", 45),
        ("59:01", 3541),
        ("1:00:00", 3600),
        ("23:59:59", 86399),
        ("1-02:03:04", 93784),
        ("0:00", 0),
    ],
)
def test_what_squeue_says(cluster, answer, seconds):
    cluster.says("squeue", answer + "\n")
    assert cluster.seconds_left() == seconds
    assert cluster.questions() == ["squeue -h -j 41 -o %L"]


def test_of_the_parts_of_a_job_the_first_to_end_counts(cluster):
    cluster.says("squeue", "1:00:00\n5:00\nUNLIMITED\n")
    assert cluster.seconds_left() == 300.0
    cluster.command("squeue", "exit 1")
    cluster.says(
        "scontrol", SCONTROL.format(run="00:10:00", limit="01:00:00") * 2 + "RunTime=0:00 TimeLimit=9:00"
    )
    assert cluster.seconds_left() == 540.0


def test_the_task_of_an_array_is_asked_for_by_the_arrays_number(cluster):
    assert cluster.seconds_left(SLURM_ARRAY_JOB_ID="41", SLURM_ARRAY_TASK_ID="7") is None
    assert cluster.questions() == ["squeue -h -j 41_7 -o %L", "scontrol show job 41_7"]


def test_options_of_squeue_in_the_environment_do_not_reach_it(cluster):
    cluster.command("squeue", 'echo "${SQUEUE_STATES:-1}:${SLURM_CLUSTERS}"')
    assert cluster.seconds_left(SQUEUE_STATES="PD", SLURM_CLUSTERS="30") == 90.0


@pytest.mark.parametrize("answer", ["UNLIMITED", "NOT_SET"])
def test_without_a_limit(cluster, answer):
    cluster.says("squeue", answer + "\n")
    assert cluster.seconds_left() is None
    assert len(cluster.questions()) == 1 and not cluster.warnings()


@pytest.mark.parametrize(
    ("run", "limit", "seconds"),
    [("00:10:01", "01:00:00", 2999), ("1-00:00:00", "2-12:00:00", 129600), ("00:05:10", "00:05:00", 0)]
    + [("00:10:01", "UNLIMITED", None)],
)
@pytest.mark.parametrize(
    "squeue", ["", "INVALID\n", "slurm_load_jobs error: Unable to contact\n", "10:00\n??\n", "600\n"]
)
def test_what_scontrol_says_where_squeue_says_nothing_of_use(cluster, squeue, run, limit, seconds):
    cluster.says("squeue", squeue)
    cluster.says("scontrol", SCONTROL.format(run=run, limit=limit))
    assert cluster.seconds_left() == seconds
    assert cluster.questions()[1:] == ["scontrol show job 41"] and not cluster.warnings()


def test_scontrol_alone_is_enough(cluster):
    (cluster.folder / "squeue").unlink()
    cluster.says("scontrol", SCONTROL.format(run="00:10:00", limit="01:00:00"))
    cluster.environment["PATH"] = str(cluster.folder)
    assert cluster.seconds_left() == 3000.0


@pytest.mark.parametrize(
    "scontrol",
    ["", "TimeLimit=01:00:00", "RunTime=00:10:00", SCONTROL.format(run="UNLIMITED", limit="UNLIMITED")]
    + [
        SCONTROL.format(run="INVALID", limit="01:00:00"),
        SCONTROL.format(run="0:01", limit="Partition_Limit"),
    ],
)
def test_where_nobody_knows_one_warning_says_what_to_do(cluster, scontrol):
    cluster.says("squeue", "bytes-\N{SNOWMAN}-and-more-" * 100)
    cluster.says("scontrol", scontrol)
    assert cluster.seconds_left() is None
    [message] = cluster.warnings()
    assert "job 41" in message and "time_limit=" in message and len(message) < 500
    assert "squeue: it said" in message and "scontrol: it said" in message


def test_bytes_that_are_no_text(cluster):
    cluster.command("squeue", r"printf '\377\376\000'")
    assert cluster.seconds_left() is None
    assert len(cluster.warnings()) == 1


def test_commands_that_fail_or_are_not_there(cluster):
    cluster.command("squeue", "echo 10:00; exit 3")
    (cluster.folder / "scontrol").unlink()
    cluster.environment["PATH"] = str(cluster.folder)
    assert cluster.seconds_left() is None
    [message] = cluster.warnings()
    assert "squeue: exit status 3" in message and "scontrol: No such file" in message


def test_commands_that_hang_are_ended_with_their_children(cluster):
    children = cluster.folder / "children"
    # The second one's child keeps its output open after the parent is gone.
    cluster.command("squeue", f"sleep 300 & echo $! >>{shlex.quote(str(children))}; wait")
    cluster.command("scontrol", f"sleep 300 & echo $! >>{shlex.quote(str(children))}; exit 0")
    begun = []
    for seconds in (4.0, 20.0, 60.0):  # a busy machine may take longer than that to start both
        assert cluster.seconds_left(command_seconds=seconds) is None
        warning = cluster.warnings()[-1]
        assert f"squeue: no answer within {seconds:g} s" in warning
        begun = children.read_text().split() if children.exists() else []
        if len(begun) == 2:
            break
    assert len(begun) == 2 and "scontrol: it said ''" in warning
    for child in begun:
        assert not runs(child)


def runs(pid):
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True
        ).stdout.strip()
        if not state or state.startswith("Z"):
            return False
        time.sleep(0.01)
    return True


def test_nothing_is_left_open_by_a_hanging_command(cluster):
    cluster.command("squeue", "sleep 300")
    code = (
        "import os; from dist_classicrl.launch.slurm import seconds_left;"
        "before = len(os.listdir('/proc/self/fd')); assert seconds_left(None, 0.5) is None;"
        "assert len(os.listdir('/proc/self/fd')) == before"
    )
    environment = {**os.environ, **cluster.environment}
    environment.pop("SLURM_JOB_END_TIME", None)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and "ResourceWarning" not in done.stderr, done.stderr
