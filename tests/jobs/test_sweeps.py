"""Sweeps as people start them: killed and typed again, and on the ranks of an MPI job."""

import os
import signal
import subprocess
import time

import kill_sweeps

from dist_classicrl import Study
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import run_job


def test_a_killed_sweep_that_is_typed_again_ends_with_the_same_tables():
    kill_sweeps.main(["--kills", "3", "--seeds", "10"])


def test_a_sweep_on_ranks_of_which_some_or_all_are_killed_ends_with_the_same_tables():
    kill_sweeps.main(["--kills", "1", "--seeds", "6", "--ranks", "3"])


def test_ranks_of_a_job_share_a_study_and_make_what_one_process_makes(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(kill_sweeps.STUDY.format(seeds=2).replace("1_000_000", "1_000"))
    lines = {
        "one": kill_sweeps.command(study, tmp_path / "one") + ["--processes", "1"],
        "ranks": [*mpirun_command(3), *kill_sweeps.command(study, tmp_path / "ranks")],
    }
    for line in lines.values():
        job = run_job(line, timeout=300.0, env=launch_environment())
        assert job.returncode == 0, job.output
    assert kill_sweeps.tables(tmp_path / "ranks") == kill_sweeps.tables(tmp_path / "one")
    assert Study(tmp_path / "ranks").done == 8


def test_ctrl_c_ends_it_at_once_and_says_how_far_it_is(tmp_path):
    study, folder = tmp_path / "study.toml", tmp_path / "study"
    study.write_text(kill_sweeps.STUDY.format(seeds=1).replace("1_000_000", "1_000_000_000"))
    line = kill_sweeps.command(study, folder)
    line.remove("--quiet")
    sweep = subprocess.Popen(
        line, env=launch_environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 120.0
    while not list(folder.glob("claims/*.0")):
        assert time.monotonic() < end and sweep.poll() is None
        time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGINT)
    _, said = sweep.communicate(timeout=240.0)
    assert sweep.returncode == 130 and "0 of 4 runs are made. The same command goes on." in said, said
    assert "script" not in said and "Traceback" not in said


def test_a_study_file_with_a_mistake_is_refused_on_every_rank(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(kill_sweeps.STUDY.format(seeds=2).replace("learning_rate", "learning_rat"))
    line = [*mpirun_command(2), *kill_sweeps.command(study, tmp_path / "out")]
    job = run_job(line, timeout=300.0, env=launch_environment())
    assert job.returncode == 2 and "Did you mean 'learning_rate'" in job.output, job.output
    assert not (tmp_path / "out").exists()
