"""Jobs that signals, time limits, errors or a second job stop, and what they leave behind."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from background_job import (
    appearance,
    check_finished,
    check_stopped,
    check_with_numpy_alone,
    complete_checkpoints,
    events,
    program,
)
from slowly import slowly

from dist_classicrl.checkpoint.folder import CheckpointFolder

LONG = 10**15
STEPS = 25_000_000


# Signals

# USR1 to mpirun, TERM to a worker, and stops in the reproducible mode, are part of test_resuming_jobs.py.


@pytest.mark.core
def test_sigterm_to_rank_0_stops_all(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    arguments = program(
        train={"checkpoint_dir": folder, "checkpoint_interval": 1}, calls=[{"total_steps": STEPS}]
    )
    written = appearance(folder, "agent-0/f*/manifest.json")
    job = start_python(*slowly(arguments), ranks=3)
    job.must_wait_for(written, "the first checkpoint")
    since = time.time()
    job.send_to_rank(0, signal.SIGTERM)
    made = check_stopped(job, 3, "SIGTERM on rank 0 ", since, folder)
    assert made < STEPS
    trained = check_finished(run_python(*arguments).output, 1, STEPS, made)
    assert trained[0]["optimum"] - trained[0]["value"] < 0.02


def test_sigterm_to_mpirun_costs_what_was_learned_since_the_last_checkpoint(
    start_python, run_python, tmp_path
):
    folder = tmp_path / "saved"
    arguments = program(
        train={"checkpoint_dir": folder, "checkpoint_interval": 1}, calls=[{"total_steps": STEPS}]
    )
    written = appearance(folder, "agent-0/f*/manifest.json")
    job = start_python(*slowly(arguments), ranks=3)
    job.must_wait_for(written, "the first checkpoint")
    job.send(signal.SIGTERM)
    job.wait()
    assert job.process.returncode != 0
    made = CheckpointFolder(folder, "agent-0").read_newest().body["steps"]
    assert 0 < made < STEPS
    check_finished(run_python(*arguments).output, 1, STEPS, made)


@pytest.mark.parametrize("ranks", [None, 3])
def test_a_signal_before_the_first_step_stops_as_well(run_python, tmp_path, ranks):
    folder = tmp_path / "saved"
    options = {"train": {"checkpoint_dir": folder}, "calls": [{"total_steps": 1_000_000}]}
    job = run_python(*program(signal="SIGUSR2", **options), ranks=ranks, status=75)
    stopped = events(job.output, "stopped")
    assert len(stopped) == (ranks or 1)
    made = stopped[0]["steps"]
    check_finished(run_python(*program(**options)).output, 1, 1_000_000, made)


@pytest.mark.parametrize("ranks", [None, 3])
def test_an_environment_with_slow_steps_stops_after_the_present_ones(start_python, tmp_path, ranks):
    folder = tmp_path / "saved"
    job = start_python(
        *program(
            environment="SlowCorridor",
            agent={"n_envs": 1, "batch_size": 1 if ranks else 32},
            train={"checkpoint_dir": folder, "checkpoint_interval": 1},
            calls=[{"total_steps": LONG}],
        ),
        ranks=ranks,
    )
    job.must_wait_for(appearance(folder, "agent-0/f*/manifest.json"), "the first checkpoint")
    since = time.time()
    job.send(signal.SIGUSR1)
    reason = "SIGUSR1 on rank " if ranks else "SIGUSR1"
    assert check_stopped(job, ranks or 1, reason, since, folder) > 0


def test_a_second_signal_ends_at_once(start_python, tmp_path):
    job = start_python(
        *program(
            environment="StuckCorridor",
            agent={"n_envs": 1},
            train={"checkpoint_dir": tmp_path / "saved"},
            calls=[{"total_steps": LONG}],
        )
    )
    job.must_wait_for(lambda: job.events("stepping"), "the first step")
    job.send(signal.SIGUSR1)
    said = (
        "SIGUSR1: training stops after the step of the environment that is being made. A second SIGUSR1 ends"
    )
    job.must_wait_for(lambda: said in job.output, "the word that a step is waited for")
    assert job.process.poll() is None
    job.send(signal.SIGUSR1)
    job.wait(-signal.SIGUSR1)  # long before that step is made
    assert not job.events("stopped")


def words_of(output):
    """Return what a job said to people, without what a busy machine adds: that something is waited for."""
    lines = [line for line in output.splitlines() if not line.startswith('{"event"')]
    return [line for line in lines if "A second Ctrl-C ends it" not in line]


def test_ctrl_c_leaves_a_checkpoint_and_says_where(start_python, run_python, tmp_path):
    folder = tmp_path / "saved"
    arguments = program(train={"checkpoint_dir": folder}, calls=[{"total_steps": 30_000_000}])
    job = start_python(*slowly(arguments))
    job.must_wait_for(appearance(folder, "agent-0/fence*"), "the folder to be claimed")
    since = time.time()
    job.send(signal.SIGINT)
    made = check_stopped(job, 1, "Ctrl-C", since, folder, status=130)
    newest = complete_checkpoints(folder / "agent-0")[0]
    sentences = words_of(job.output)
    assert len(sentences) == 1 and newest in sentences[0], job.output
    check_finished(run_python(*arguments).output, 1, 30_000_000, made)


def test_ctrl_c_without_checkpoints_is_one_line_and_says_what_to_do(start_python):
    job = start_python(*program(tells=True, calls=[{"total_steps": LONG}]))
    job.must_wait_for(lambda: any(each["steps"] for each in job.events("under way")), "the first steps")
    job.send(signal.SIGINT)
    job.wait(130)
    (line,) = words_of(job.output)
    assert (
        line.startswith("Stopped by Ctrl-C after ")
        and "call save_model(), or train with checkpoint_dir=" in line
    )
    (stopped,) = job.events("stopped")
    assert (stopped["code"], stopped["checkpoint"]) == (130, None) and stopped["steps"] > 0


def test_a_time_limit_stops_by_itself(run_python, tmp_path):
    train = {"checkpoint_dir": tmp_path / "saved", "time_limit": "0.7s"}
    job = run_python(*program(train=train, calls=[{"total_steps": LONG}]), status=75)
    (stopped,) = events(job.output, "stopped")
    assert stopped["code"] == 75 and "time limit" in stopped["reason"]
    assert check_with_numpy_alone(Path(stopped["checkpoint"]))["steps"] == stopped["steps"] > 0


# Errors


@pytest.mark.parametrize("ranks", [None, 3])
def test_an_error_in_the_environment_leaves_a_checkpoint(run_python, tmp_path, ranks):
    folder = tmp_path / "saved"
    options = {
        "environment": "ThinIce",
        "train": {"checkpoint_dir": folder},
        "calls": [{"total_steps": 20_000}],
    }
    breaking = {"THIN_ICE": f"{(ranks or 1) - 1} 5000"}
    # The rank that failed ends the job, but not before the server has saved what it had.
    job = run_python(*program(slow_disk=0.05, **options), ranks=ranks, status=1, env=breaking)
    assert {each["error"] for each in events(job.output, "failed")} == {"ZeroDivisionError: thin ice"}
    made = CheckpointFolder(folder, "agent-0").read_newest().body["steps"]
    # What was not yet learned of the last batch, or not yet pushed, is lost.
    assert 0 < made < 20_000
    check_finished(run_python(*program(**options)).output, 1, 20_000, made)


def test_who_is_started_twice_ends_the_first(start_python, tmp_path):
    folder = tmp_path / "saved"
    train = {"checkpoint_dir": folder, "checkpoint_interval": "50ms"}
    first = start_python(*program(train=train, calls=[{"total_steps": LONG}]), ranks=3)
    first.must_wait_for(appearance(folder, "agent-0/f*/manifest.json"), "the first checkpoint")
    second = start_python(*program(train=train, calls=[{"total_steps": LONG}]))
    first.wait()
    assert first.process.returncode not in (0, 75)
    failed = first.events("failed")
    assert sorted(each["rank"] for each in failed) == [0, 1, 2], first.output
    assert all("CheckpointFencedError: " in each["error"] for each in failed), first.output
    since = time.time()
    second.send(signal.SIGTERM)
    check_stopped(second, 1, "SIGTERM", since, folder)


# A full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, and a function that makes it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system, and not in every container")
    try:
        yield folder, lambda: subprocess.run(["mount", "-o", "remount,size=100m", folder], check=True)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_training_goes_on_when_the_disk_is_full(small_disk, start_python, run_python, tmp_path):
    disk, enlarge = small_disk
    # A checkpoint takes 1.4 MB, so the third has no room.
    arguments = program(
        agent={"state_size": 30_000, "action_size": 3},
        train={"checkpoint_dir": disk / "saved", "checkpoint_interval": 1},
        calls=[{"total_steps": 30_000_000}],
    )
    job = start_python(*slowly(arguments, until=tmp_path / "told"))
    job.must_wait_for(lambda: "No space left on device" in job.output, "the warning")
    (tmp_path / "told").touch()
    job.wait(0)
    (trained,) = events(job.output, "trained")
    assert trained["steps"] == trained["visits"] == 30_000_000
    warnings = [line for line in job.output.splitlines() if not line.startswith('{"event"')]
    assert len(warnings) == 2, job.output
    assert "No space left on device" in warnings[0] and "none follows" in warnings[1], job.output
    names = complete_checkpoints(disk / "saved" / "agent-0")
    assert len(names) == 2
    made = CheckpointFolder(disk / "saved", "agent-0").read_newest().body["steps"]
    assert f"step{made:015d}" in names[0] and made < 30_000_000
    enlarge()
    (again,) = check_finished(run_python(*arguments).output, 1, 30_000_000, made)
    assert again["sha256"] == trained["sha256"]
