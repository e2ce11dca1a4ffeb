"""Jobs under `python -m dist_classicrl launch`, with the real mpirun."""

import os
import signal
import time
from pathlib import Path

import pytest
from background_job import appearance, check_finished, complete_checkpoints, program
from slowly import slowly

from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.launch.mpirun import survival_words
from dist_classicrl.process.jobs import is_running

LAUNCH = ("-m", "dist_classicrl", "launch", "--restart-delay", "0")

# Needs no help of the package: one rank dies in the first start, before or after all have met.
PLAIN = """
import os, signal, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == int(sys.argv[1]) and not os.path.exists("died"):
    open("died", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
world.Barrier()
print("rank", world.rank, sys.argv, flush=True)
"""

# Notes its losses as the training does. The survivors differ in how long they have to do.
SURVIVORS = """
import os, signal, sys, time
from mpi4py import MPI
from dist_classicrl.process import exit as process_exit
world, dead = MPI.COMM_WORLD, int(sys.argv[1])
world.Set_errhandler(MPI.ERRORS_RETURN)
if world.rank == dead:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    world.Recv(bytearray(1), dead)
except MPI.Exception:
    process_exit.note_losses()
process_exit.note_head(world.rank == (0 if dead else 1))
time.sleep(0.2 * world.rank)
print("survived", flush=True)
"""

LONG = """
import os, time
from mpi4py import MPI
print(os.getpid(), os.getppid(), flush=True)
time.sleep(600)
"""

survives = pytest.mark.skipif(not survival_words(find_launcher()), reason="a death ends the job in this MPI")


def write(folder, text):
    (folder / "script.py").write_text(text)
    return "script.py"


def test_a_job_that_dies_is_started_again(run_python, tmp_path):
    job = run_python(*LAUNCH, "-n", 3, "--no-ulfm", write(tmp_path, PLAIN), 1, "a b")
    said = [line for line in job.output.splitlines() if line.startswith("rank")]
    assert sorted(said) == [f"rank {rank} ['script.py', '1', 'a b']" for rank in range(3)]
    assert "mpirun returned 137, SIGKILL" in job.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["died", "script.py"]


@survives
@pytest.mark.parametrize("dead", [0, 2])
def test_who_survives_a_death_ends_the_job_well(run_python, tmp_path, dead):
    job = run_python(*LAUNCH, "-n", 4, "--max-restarts", 0, write(tmp_path, SURVIVORS), dead)
    assert job.output.split() == ["survived"] * 3


@survives
def test_who_fails_of_a_death_is_started_again(run_python, tmp_path):
    job = run_python(*LAUNCH, "-n", 3, write(tmp_path, PLAIN), 0)
    assert "ERR_PROC_FAILED" in job.output
    assert "The job died" in job.output
    assert len([line for line in job.output.splitlines() if line.startswith("rank")]) == 3


def test_an_error_on_one_rank_ends_the_job_for_good(run_python, tmp_path):
    text = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: [][1]\nMPI.COMM_WORLD.recv(source=1)"
    job = run_python(*LAUNCH, "-n", 2, "--grace", 0.5, write(tmp_path, text), status=1)
    assert job.output.count("IndexError: list index out of range") == 2  # the traceback, and why it ended
    assert "starts again" not in job.output


@pytest.mark.core
def test_training_goes_on_from_its_checkpoint(start_python, tmp_path):
    steps = 6_000_000
    train = {"total_steps": steps, "checkpoint_dir": tmp_path / "saved", "checkpoint_interval": 100_000}
    script = slowly(program(calls=[{}], train=train), until=tmp_path / "killed")
    job = start_python(*LAUNCH, "-n", 3, "--no-ulfm", *script)
    saved = job.must_wait_for(appearance(tmp_path / "saved", "agent-0/f*/manifest.json"), "a checkpoint")
    job.send_to_rank(1, signal.SIGKILL)
    (tmp_path / "killed").touch()
    output = job.wait(0)
    resumed = {each["resumed_from"] for each in job.events("trained")}
    assert saved
    (at,) = {int(name.partition("step")[2].partition("-")[0]) for name in resumed}
    assert 0 < at < steps
    check_finished(output, 3, steps, at)


def test_ctrl_c_at_the_launcher_saves_the_run(start_python, tmp_path):
    train = {"total_steps": 10**12, "checkpoint_dir": tmp_path / "saved", "checkpoint_interval": 10**6}
    job = start_python(*LAUNCH, "-n", 3, *program(calls=[{}], train=train))
    job.must_wait_for(appearance(tmp_path / "saved", "agent-0/f*/manifest.json"), "a checkpoint")
    job.send(signal.SIGINT)
    job.wait(130)
    newest = complete_checkpoints(tmp_path / "saved" / "agent-0")[0]
    assert {Path(each["checkpoint"]).name for each in job.events("stopped")} == {newest}
    assert not any(is_running(each["pid"]) for each in job.events("started"))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_nothing_outlives_a_launcher_that_is_killed(start_python, tmp_path):
    job = start_python(*LAUNCH, "-n", 2, write(tmp_path, LONG))
    job.must_wait_for(lambda: len(job.output.split()) == 4, "two ranks")
    pids = [int(word) for word in job.output.split()]
    job.send(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, job.output
        time.sleep(0.05)
