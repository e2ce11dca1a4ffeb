"""Sweeps as people start them: killed and typed again, and on the ranks of an MPI job."""

import os
import signal
import subprocess
import sys
import time

import kill_sweeps
import pytest

from dist_classicrl import Study
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.exit_record import LAUNCH_VARIABLE
from dist_classicrl.process.jobs import run_job
from dist_classicrl.sweep.folder import StudyFolder

_SECONDS = 300.0


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


def test_ranks_add_seeds_to_a_study_together_and_end_with_what_one_process_makes_of_all(tmp_path):
    study = tmp_path / "study.toml"

    def job(seeds, *words):
        study.write_text(kill_sweeps.STUDY.format(seeds=seeds).replace("1_000_000", "1_000"))
        made = run_job([*words], timeout=300.0, env=launch_environment())
        assert made.returncode == 0, made.output

    job(5, *kill_sweeps.command(study, tmp_path / "one"), "--processes", "1")
    for seeds in (2, 5):
        job(seeds, *mpirun_command(3), *kill_sweeps.command(study, tmp_path / "ranks"))
    assert kill_sweeps.tables(tmp_path / "ranks") == kill_sweeps.tables(tmp_path / "one")
    assert [path.name for path in (tmp_path / "ranks" / "more_seeds").iterdir()] == ["2.json"]
    made = [line for path in (tmp_path / "ranks" / "records").iterdir() for line in path.open()]
    assert sum('"run": ' in line for line in made) == 20  # no run was made twice


def begun(line, folder, is_ready, **more):
    """Return a sweep in a session of its own, once `is_ready` of its folder."""
    sweep = subprocess.Popen(
        line, env={**launch_environment(), **more}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 120.0
    while not is_ready(folder):
        assert time.monotonic() < end and sweep.poll() is None
        time.sleep(0.05)
    return sweep


def is_claimed(folder):
    return bool(list(folder.glob("claims/*.0")))


def n_made(folder):
    return len(StudyFolder(folder).records())


def loud(study, folder):
    return [word for word in kill_sweeps.command(study, folder) if word != "--quiet"]


def test_ctrl_c_ends_it_at_once_and_says_how_far_it_is(tmp_path):
    study, folder = tmp_path / "study.toml", tmp_path / "study"
    study.write_text(kill_sweeps.STUDY.format(seeds=1).replace("1_000_000", "1_000_000_000"))
    sweep = begun(loud(study, folder), folder, is_claimed)
    os.killpg(sweep.pid, signal.SIGINT)
    _, said = sweep.communicate(timeout=240.0)
    assert sweep.returncode == 130 and "0 of 4 runs are made. The same command goes on." in said, said
    assert "script" not in said and "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_stop_signal_ends_it_in_order_with_all_its_processes(number, tmp_path):
    study, folder = tmp_path / "study.toml", tmp_path / "study"
    study.write_text(kill_sweeps.STUDY.format(seeds=1).replace("1_000_000", "1_000_000_000"))
    sweep = begun([*loud(study, folder), "--processes", "3"], folder, is_claimed)
    sweep.send_signal(number)
    _, said = sweep.communicate(timeout=240.0)
    assert sweep.returncode == 75, said
    assert f"Stopped by {number.name}: 0 of 4 runs are made. The same sweep with the same folder" in said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):  # the helpers are in its group
        os.killpg(sweep.pid, 0)
    assert not list((folder / "members").glob("[!.]*"))


def test_a_sweep_that_a_signal_has_stopped_keeps_its_runs_and_goes_on_to_the_same_tables(tmp_path):
    study, folder, quiet = tmp_path / "study.toml", tmp_path / "study", tmp_path / "quiet"
    study.write_text(kill_sweeps.STUDY.format(seeds=20).replace("1_000_000", "5_000_000"))
    # All hear it, as in a job that SLURM ends.
    line = [*kill_sweeps.command(study, folder), "--processes", "2"]
    sweep = begun(line, folder, lambda there: (there / "records").exists() and n_made(there) > 2)
    os.killpg(sweep.pid, signal.SIGTERM)
    _, said = sweep.communicate(timeout=240.0)
    made = n_made(folder)
    assert sweep.returncode == 75 and 2 < made < 80, said
    assert f"Stopped by SIGTERM: {made} of 80 runs are made." in said and "Traceback" not in said
    for place in (folder, quiet):
        job = run_job(kill_sweeps.command(study, place), timeout=_SECONDS, env=launch_environment())
        assert job.returncode == 0, job.output
    assert kill_sweeps.tables(folder) == kill_sweeps.tables(quiet)


_SCRIPT = """
import os, signal, sys
from dist_classicrl import Sweep
from dist_classicrl.errors import SweepStopped

sweep = Sweep("FrozenLake-v1", 1_000_000_000, 2, folder=sys.argv[1])
try:
    sweep.run(2)
except SweepStopped as stopped:
    assert stopped.folder == sweep.folder and stopped.reason == "SIGTERM", stopped
    signal.raise_signal(signal.SIGTERM)  # by mpirun to a program that has just stopped
    raise
"""


def test_a_script_that_sweeps_ends_with_the_status_of_a_training_that_was_stopped(tmp_path):
    folder = tmp_path / "study"
    sweep = begun([sys.executable, "-c", _SCRIPT, str(folder)], folder, is_claimed)
    sweep.send_signal(signal.SIGTERM)
    _, said = sweep.communicate(timeout=240.0)
    assert sweep.returncode == 75 and "Stopped by SIGTERM: 0 of 2 runs are made." in said, said
    with pytest.raises(ProcessLookupError):
        os.killpg(sweep.pid, 0)


_LONG = """
import sys
from dist_classicrl import Sweep
from dist_classicrl.sweep import trial

trial.LONG_STEPS = 1e6
Sweep("FrozenLake-v1", 100_000_000_000, 2, folder=sys.argv[1]).run(2, stop_signals=("SIGHUP",))
"""


@pytest.mark.parametrize("reaches", [os.kill, os.killpg])
def test_a_stop_signal_lets_long_runs_of_all_processes_save_what_they_have(reaches, tmp_path):
    folder = tmp_path / "study"

    def both_go_on(there):
        return len(list(there.glob("checkpoints/*/curve.jsonl"))) == 2

    sweep = begun([sys.executable, "-c", _LONG, str(folder)], folder, both_go_on)
    reaches(sweep.pid, signal.SIGHUP)
    _, said = sweep.communicate(timeout=240.0)
    assert sweep.returncode == 75 and "0 of 2 runs are made." in said and "Traceback" not in said, said
    assert len(list(folder.glob("checkpoints/*/saved/*/*/manifest.json"))) == 2


def test_a_launcher_asks_a_sweep_to_stop(tmp_path):
    folder = tmp_path / "study"
    script = _SCRIPT.replace("sweep.run(2)", "sweep.run(2, stop_signals=())").replace("TERM", "USR1")
    line = [sys.executable, "-c", script, str(folder)]
    sweep = begun(line, folder, is_claimed, **{LAUNCH_VARIABLE: str(tmp_path)})
    sweep.send_signal(signal.SIGUSR1)
    _, said = sweep.communicate(timeout=240.0)
    assert sweep.returncode == 75, said


def test_a_study_file_with_a_mistake_is_refused_on_every_rank(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(kill_sweeps.STUDY.format(seeds=2).replace("learning_rate", "learning_rat"))
    line = [*mpirun_command(2), *kill_sweeps.command(study, tmp_path / "out")]
    job = run_job(line, timeout=300.0, env=launch_environment())
    assert job.returncode == 2 and "Did you mean 'learning_rate'" in job.output, job.output
    assert not (tmp_path / "out").exists()
