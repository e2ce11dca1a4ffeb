"""`dist-classicrl train` with the real mpirun."""

import json
import os
import signal
import sys
import time

import numpy as np
import pytest
from background_job import complete_checkpoints

from dist_classicrl._jit.machine_code import COMPILING
from dist_classicrl.monitoring import read_metrics
from dist_classicrl.process.jobs import command_of, processes_of

TRAIN = ("-m", "dist_classicrl", "train", "FrozenLake-v1", "--out", "run", "--progress-interval", "0.2")


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def test_a_run_on_ranks_that_was_stopped_goes_on_when_it_is_typed_again(start_python, run_python, tmp_path):
    folder = tmp_path / "run"
    words = (*TRAIN, "--log-interval", 0)
    job = start_python(*words, "--ranks", 3, "--total-steps", "1e12")
    job.must_wait_for(lambda: len(lines_of(folder / "metrics.jsonl")) > 2, "records")
    job.send(signal.SIGUSR1)
    said = job.wait(75)
    assert said.count("Stopped by SIGUSR1") == said.count("agent-0/") == 1  # told once
    newest = complete_checkpoints(folder / "checkpoints" / "agent-0")[0]
    stopped_at = int(newest.rpartition("-step")[2].partition("-")[0])
    records = read_metrics(folder)
    assert records["step"][-1] == stopped_at and "Traceback" not in said
    assert not (folder / "model.npz").exists() and not (folder / "result.json").exists()
    assert any(" steps=" in line and " workers=2 " in line for line in said.splitlines())

    total = stopped_at + 1_000_001
    job = run_python(*words, "--ranks", 2, "--total-steps", total)  # on another number of ranks
    result = json.loads((folder / "result.json").read_text())
    assert (result["steps"], result["workers"]) == (total, 1)
    assert newest in result["resumed_from"]
    steps = read_metrics(folder)["step"]
    assert (np.diff(steps) > 0).all() and stopped_at in steps and steps[-1] == total
    with np.load(folder / "model.npz") as model:
        assert model["visits"].sum() == total
    assert f"{total:,} steps in" in job.output and job.output.count("greedy return") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"run"}

    job = run_python(*words, "--total-steps", total)
    assert "is done" in job.output and job.output.count("greedy return") == 1


def test_a_run_on_ranks_ends_and_says_that_its_summary_could_not_be_written(run_python, tmp_path):
    words = (*TRAIN, "--ranks", 3, "--total-steps", 1000)
    shell = "import os, sys; os.execv('/bin/sh', ['sh', '-c', 'exec \"$@\" >/dev/full', 'sh', *sys.argv[1:]])"
    job = run_python("-c", shell, sys.executable, *words, status=2)
    assert job.output.splitlines() == [
        "Error: Standard output cannot be written: No space left on device. Make room, or write it elsewhere."
    ]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 1000
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert model["visits"].sum() == 1000


def test_the_first_run_of_its_kind_says_that_it_compiles(run_python, tmp_path):
    for times in (1, 0):
        cache = {"NUMBA_CACHE_DIR": str(tmp_path / "code")}
        job = run_python(*TRAIN, "--ranks", 3, "--total-steps", 1000, "--resume", "never", env=cache)
        assert job.output.count(COMPILING) == times, job.output


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_a_run_that_is_warned_while_it_starts_can_be_queued_again(start_python, run_python, tmp_path):
    saved = tmp_path / "run" / "checkpoints" / "agent-0"
    for seconds in (0.0, 0.3, 0.8, 1.5):
        job = start_python(*TRAIN, "--ranks", 3, "--total-steps", "1e12")
        # These are mpirun and the ranks, of which mpirun is the first.
        job.must_wait_for(
            lambda job=job: any("--started" in command_of(pid) for pid in processes_of(job.job)), "mpirun"
        )
        time.sleep(seconds)
        job.send(signal.SIGUSR1)
        said = job.wait()
        # A death by it is 138 to a batch script, which queues the job again after either.
        assert job.process.returncode in (75, -signal.SIGUSR1), said
        assert "Traceback" not in said
    made = max(
        (int(name.rpartition("-step")[2].partition("-")[0]) for name in complete_checkpoints(saved)),
        default=0,
    )
    run_python(*TRAIN, "--ranks", 2, "--total-steps", made + 100_000)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == made + 100_000


@pytest.mark.core
def test_ranks_that_mpirun_has_started_take_part(run_python, tmp_path):
    job = run_python(*TRAIN, "--total-steps", "1e5", ranks=2)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["steps"], result["workers"]) == (100_000, 1)
    assert job.output.count(" steps=100000 ") == job.output.count("greedy return") == 1


def test_what_only_ranks_find_out_is_said_once_and_without_a_traceback(run_python, tmp_path):
    (tmp_path / "file").touch()
    job = run_python(*TRAIN, "--ranks", 2, "--checkpoint-dir", "file", status=2)
    assert job.output.count("Error: Checkpoints cannot be written") == 1
    assert "Traceback" not in job.output and "MPI_ABORT" not in job.output


def test_what_is_mistyped_ends_all_ranks_and_is_said_once(run_python, tmp_path):
    job = run_python(*TRAIN, "--enviroment", "x", ranks=2, status=2)
    assert job.output.count("Did you mean") == job.output.count("--environment") == 1
    assert list(tmp_path.iterdir()) == []
