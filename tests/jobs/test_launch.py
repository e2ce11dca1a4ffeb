"""Jobs under `python -m dist_classicrl launch`, with the real mpirun."""

import os
import signal
import time
from pathlib import Path

import pytest
from background_job import appearance, check_finished, complete_checkpoints, program
from kill_launchers import kill_one
from slowly import slowly

from dist_classicrl.launch.launcher import find_launcher
from dist_classicrl.launch.mpirun import survival_words
from dist_classicrl.process.jobs import command_of, environment_of, is_running, processes_of

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

# Ranks 0 and 1 train apart from 2 and 3, and one of both parts goes on for longer than the grace.
PARTS = """
import sys, time
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
world = MPI.COMM_WORLD
part = world.rank // 2
agent = DistAsyncQLearning(seed=1, comm=world.Split(part, world.rank))
agent.train("FrozenLake-v1", total_steps=1000)
if part == int(sys.argv[1]):
    time.sleep(8)
print("part", part, "has ended", flush=True)
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


@pytest.mark.parametrize("last", [0, 1])
def test_a_job_is_done_when_all_that_train_apart_are(run_python, tmp_path, last):
    job = run_python(*LAUNCH, "-n", 4, "--grace", 1, write(tmp_path, PARTS), last)
    said = [line for line in job.output.splitlines() if line.startswith("part")]
    assert sorted(said) == [f"part {part} has ended" for part in (0, 0, 1, 1)]


def test_an_error_on_one_rank_ends_the_job_for_good(run_python, tmp_path):
    text = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: [][1]\nMPI.COMM_WORLD.recv(source=1)"
    job = run_python(*LAUNCH, "-n", 2, "--grace", 0.5, write(tmp_path, text), status=1)
    assert job.output.count("IndexError: list index out of range") == 2  # the traceback, and why it ended
    assert "starts again" not in job.output


@pytest.mark.parametrize("status", [0, 2])
def test_a_disk_that_is_full_at_the_end_does_not_start_a_job_again(run_python, tmp_path, status):
    text = (
        "import resource, sys\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nsys.exit({status})"
    )
    job = run_python(*LAUNCH, "-n", 2, "--grace", 0.5, write(tmp_path, text), status=status)
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
    job.must_wait_for(lambda: job.output.count("\n") == 2, "two ranks")
    pids = [int(word) for word in job.output.split()]
    job.send(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, job.output
        time.sleep(0.05)


# In the first start one rank is killed while the others start MPI, which waits for it.
EARLY = """
import os, signal, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == sys.argv[1] and not os.path.exists("died"):
    open("died", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.rank, flush=True)
"""


@survives
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_a_rank_that_dies_before_mpi_runs_is_missed_soon(run_python, tmp_path):
    # Long before --silence, and before --start-limit.
    limits = ("--silence", 600, "--start-limit", 600)
    job = run_python(*LAUNCH, "-n", 3, *limits, write(tmp_path, EARLY), 1, timeout=240)
    assert "a rank of this host was gone before MPI had started" in job.output
    assert len([line for line in job.output.splitlines() if line.startswith("rank")]) == 3


# Writes down its shared memory; then mpirun is killed, which would have removed it.
WITHOUT_MPIRUN = """
import os, re, signal, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
with open("told", "a") as file:
    for name in sorted(set(re.findall(r"/dev/shm/sm_segment\\S+", open("/proc/self/maps").read()))):
        print(name, file=file, flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""


@survives
def test_the_shared_memory_of_a_killed_mpirun_is_removed(run_python, tmp_path):
    script = write(tmp_path, WITHOUT_MPIRUN)
    job = run_python(*LAUNCH, "-n", 2, "--max-restarts", 1, script, status=128 + signal.SIGKILL)
    told = set((tmp_path / "told").read_text().splitlines())
    assert len(told) == 4, job.output  # of two ranks in each of two starts
    assert [name for name in told if os.path.exists(name)] == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_nothing_outlives_a_launcher_that_is_killed_where_mpirun_hangs(start_python, tmp_path):
    job = start_python(*LAUNCH, "-n", 2, write(tmp_path, LONG), env={"TMPDIR": str(tmp_path)})
    job.must_wait_for(lambda: job.output.count("\n") == 2, "two ranks")
    (mpirun,) = {int(parent) for parent in job.output.split()[1::2]}
    os.kill(mpirun, signal.SIGSTOP)
    job.send(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while processes_of(job.job):
        assert time.monotonic() < deadline, job.output
        time.sleep(0.05)
    # Nor a folder.
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
@pytest.mark.parametrize("seconds", [0.2, 0.5, 0.9])
def test_a_launcher_that_is_killed_as_it_starts_leaves_nothing(tmp_path, seconds):
    kill_one(tmp_path, seconds)


# A process that the rank has not started itself, but its shell, which has ended.
ORPHAN = """
import subprocess
from mpi4py import MPI
subprocess.run("sleep 600 &", shell=True)
print("rank", MPI.COMM_WORLD.rank, flush=True)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_launch_ends_when_its_ranks_have_whatever_they_have_left(run_python, tmp_path):
    job = run_python(*LAUNCH, "-n", 2, "--grace", 600, write(tmp_path, ORPHAN), timeout=240)
    assert "mpirun waited for what they had started" in job.output


REPLACES = """
import os, sys
from dist_classicrl import DistAsyncQLearning
print("started", os.getpid(), flush=True)
agent = DistAsyncQLearning(seed=1, on_failure="replace", heartbeat_timeout=2.0, heartbeat_interval=0.2)
agent.train("FrozenLake-v1", total_steps=10**12, checkpoint_dir="saved", checkpoint_interval=10**6)
"""


@survives
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_a_run_that_is_stopped_while_a_rank_that_came_back_is_replaced_ends(start_python, tmp_path):
    job = start_python(*LAUNCH, "-n", 3, "--max-restarts", 0, "--grace", 600, write(tmp_path, REPLACES))
    job.must_wait_for(appearance(tmp_path / "saved", "*/f*/manifest.json"), "a checkpoint")
    job.must_wait_for(lambda: len(started(job.output)) == 3, "the word of all ranks")
    ranks = {environment_of(pid).get("OMPI_COMM_WORLD_RANK"): pid for pid in started(job.output)}
    os.kill(ranks["2"], signal.SIGSTOP)
    job.must_wait_for(lambda: any("--replacement" in command_of(pid) for pid in processes_of(job.job)), "one")
    os.kill(ranks["2"], signal.SIGCONT)
    time.sleep(0.6)  # it is back, and the other one starts MPI
    os.kill(ranks["0"], signal.SIGUSR1)
    job.wait(75, timeout=45)  # after a minute a process ends that nobody has called


def started(output):
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith("started ")]
