"""How jobs end: whole scripts, alone and under mpirun, in which something goes wrong, or nothing."""

import os
import re
import signal
import sys
import time

import pytest

from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.exit import DONE_BUT_HANGING
from dist_classicrl.process.jobs import is_running, run_job

# A job that fails ends long before this; if not, ranks wait for each other for ten minutes.
SOON = 150.0

# Longer than a busy machine holds up a rank that is to be waited for.
SILENCE = 12.0

TRAIN = """
import hashlib
from dist_classicrl import DistAsyncQLearning
agent = DistAsyncQLearning(seed=3, {settings})
result = agent.train("FrozenLake-v1", total_steps={steps})
print("trained", result.steps, "on", result.workers, hashlib.sha256(agent.q_table.tobytes()).hexdigest())
"""

IN_THE_ENVIRONMENT = """
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning

class Lake(FrozenLakeEnv):
    left = 300
    def step(self, action):
        Lake.left -= 1
        if MPI.COMM_WORLD.rank == {rank} and Lake.left == 0:
            raise ZeroDivisionError("thin ice")
        return super().step(action)

DistAsyncQLearning(async_updates={async_updates}, logical_workers=6).train(Lake, total_steps=10_000_000)
"""

EXITS = """
import sys
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning

class Lake(FrozenLakeEnv):
    left = 300
    def step(self, action):
        Lake.left -= 1
        if MPI.COMM_WORLD.rank == {rank} and Lake.left == 0:
            sys.exit({code})
        return super().step(action)

def report(progress):
    if {rank} < 0 and progress.steps > 1000:
        sys.exit({code})

DistAsyncQLearning(n_envs=1).train(Lake, total_steps=10**12, progress=report, progress_interval=0.1)
"""

BEFORE_TRAIN = """
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
{before}
if MPI.COMM_WORLD.rank == {rank}:
    raise ZeroDivisionError("thin ice")
{after}
agent.train("FrozenLake-v1", total_steps=10_000_000)
"""

# Training in a thread of its own; another thread that dies is no reason to end the job.
IN_A_THREAD = """
import threading
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
rank = MPI.COMM_WORLD.rank
agent = DistAsyncQLearning(comm=MPI.COMM_WORLD)

def report(progress):
    raise ZeroDivisionError("thin ice")

def train():
    agent.train("FrozenLake-v1", steps=1000)
    print("trained on", rank, flush=True)
    agent.train("FrozenLake-v1", total_steps=10**15, progress=report, progress_interval=0.2)

bystander = threading.Thread(target=lambda: [].pop())
bystander.start()
bystander.join()
MPI.COMM_WORLD.Barrier()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""

# The launcher sets no variable that tells how many ranks there are; the script says it.
WITH_COMM = """
import os
from mpi4py import MPI
for name in list(os.environ):
    if name.startswith(("OMPI_", "PMI", "SLURM_")):
        del os.environ[name]
from dist_classicrl import DistAsyncQLearning
agent = DistAsyncQLearning(comm=MPI.COMM_WORLD)
agent.train("FrozenLake-v1", steps=1000)
if MPI.COMM_WORLD.rank == 2:
    raise ZeroDivisionError("thin ice")
agent.train("FrozenLake-v1", total_steps=10_000_000)
"""

IN_THE_CONSTRUCTOR = """
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
agent = DistAsyncQLearning(learning_rate=2.0 if MPI.COMM_WORLD.rank == {rank} else 0.1)
agent.train("FrozenLake-v1", steps=10)
"""


def check_ends_with_one_traceback(run_python, program, error):
    """Check that the job fails soon, and tells why exactly once."""
    job = run_python("-c", program, ranks=4, timeout=SOON, status=1)
    # The launcher may write between the lines of the traceback, and a space in front of the last.
    assert len(re.findall(rf"^ *(?:\w+\.)*{error}", job.output, re.MULTILINE)) == 1, job.output
    assert job.output.count("Traceback (most recent call last)") == 1, job.output


@pytest.mark.parametrize("rank, async_updates", [(1, True), (3, False)])
def test_an_exception_in_an_environment_ends_the_job(run_python, rank, async_updates):
    program = IN_THE_ENVIRONMENT.format(rank=rank, async_updates=async_updates)
    check_ends_with_one_traceback(run_python, program, "ZeroDivisionError: thin ice")


@pytest.mark.parametrize("launch", [False, True])
@pytest.mark.parametrize(
    "rank, code, status, where",
    [(1, "3", 3, "step"), (1, "75", 1, "step"), (-1, "5", 5, "report"), (-1, "", 1, "report")],
)
def test_sys_exit_in_an_environment_or_a_callback_ends_the_job(
    run_python, tmp_path, rank, code, status, where, launch
):
    (tmp_path / "script.py").write_text(EXITS.format(rank=rank, code=code))
    words = ("-m", "dist_classicrl", "launch", "-n", 3, "script.py") if launch else ("script.py",)
    job = run_python(*words, ranks=None if launch else 3, timeout=SOON, status=status)
    said = rf"^ *(?:\w+\.)*ExitCalledError: sys\.exit\({code}\) was called in {where}, .*script\.py:\d+,"
    assert len(re.findall(said, job.output, re.MULTILINE)) == 1, job.output
    assert "Traceback" not in job.output
    assert "starts again" not in job.output


@pytest.mark.parametrize("rank, made", [(0, "before"), (0, "after"), (2, "after")])
def test_an_exception_in_the_script_on_one_rank_ends_the_job(run_python, rank, made):
    make = {"before": "", "after": "", made: "agent = DistAsyncQLearning()"}
    program = BEFORE_TRAIN.format(rank=rank, **make)
    check_ends_with_one_traceback(run_python, program, "ZeroDivisionError: thin ice")


def test_an_exception_in_the_constructor_on_one_rank_ends_the_job(run_python):
    program = IN_THE_CONSTRUCTOR.format(rank=2)
    check_ends_with_one_traceback(run_python, program, r"SettingsError: learning_rate .*2\.0")


@pytest.mark.parametrize("comm", ["None", "MPI.COMM_WORLD"])
@pytest.mark.parametrize(
    "before, after, said",
    [("mpi4py.rc.initialize = False", "", r"Init_thread\(\) first"), ("", "MPI.Finalize()", "MPI is over")],
)
def test_mpi_that_does_not_run_is_told(run_python, comm, before, after, said):
    program = f"""
import mpi4py
{before}
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
{after}
DistAsyncQLearning(comm={comm}).train("FrozenLake-v1", steps=10)
"""
    job = run_python("-c", program, ranks=1, timeout=SOON, status=1)
    assert re.search(rf"^ *(?:\w+\.)*SettingsError: .*{said}", job.output, re.MULTILINE), job.output


def test_an_exception_in_a_thread_that_trains_ends_the_job(run_python):
    job = run_python("-c", IN_A_THREAD, ranks=3, timeout=SOON, status=1)
    assert re.findall(r"^(\w+): ", job.output, re.MULTILINE).count("ZeroDivisionError") == 1, job.output
    assert job.output.count("IndexError: pop from empty list") == job.output.count("trained on") == 3


def test_an_exception_ends_a_job_whose_size_only_the_script_tells(run_python):
    check_ends_with_one_traceback(run_python, WITH_COMM, "ZeroDivisionError: thin ice")


def test_an_error_that_every_rank_raises_is_told_once(run_python):
    program = TRAIN.format(settings="state_size=2", steps=1000)
    check_ends_with_one_traceback(run_python, program, "EnvError: ")


LONELY = pytest.mark.parametrize("ranks", [None, 1])


@LONELY
def test_a_lonely_rank_is_refused(run_python, ranks):
    program = TRAIN.format(settings="", steps=1000)
    job = run_python("-c", program, ranks=ranks, status=1, env={"SLURM_NTASKS": "4"}, timeout=SOON)
    told = re.findall(r"^dist_classicrl\.errors\.SingletonError: .*", job.output, re.MULTILINE)
    assert len(told) == 1
    assert "The environment promises 4 ranks" in told[0]
    assert "srun --mpi=pmix" in told[0] and "allow_singletons=True" in told[0]
    assert "trained" not in job.output


@LONELY
def test_a_lonely_rank_trains_if_it_may(run_python, ranks):
    program = TRAIN.format(settings="allow_singletons=True", steps=1000)
    job = run_python("-c", program, ranks=ranks, env={"SLURM_NTASKS": "4"}, timeout=SOON)
    assert job.output.startswith("trained 1000 on 1 ")


def test_a_job_inside_an_allocation_of_another_size_trains(run_python):
    program = TRAIN.format(settings="", steps=1000)
    job = run_python("-c", program, ranks=3, env={"SLURM_NTASKS": "8"}, timeout=SOON)
    assert re.findall(r"trained 1000 on \d", job.output) == ["trained 1000 on 2"] * 3


def test_the_same_script_alone_and_on_three_ranks(run_python, tmp_path):
    script = tmp_path / "x.py"
    script.write_text(TRAIN.format(settings="dtype='float32'", steps=50_000))
    assert run_python(script).output.startswith("trained 50000 on 1 ")
    lines = run_python(script, ranks=3).output.splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1
    assert lines[0].startswith("trained 50000 on 2 ")


# Trains on the first ranks of the job, as many as each number says, one number after the other.
ON_SOME_RANKS = """
import hashlib
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
world = MPI.COMM_WORLD
for ranks in (1, 2, 3, 4, 6):
    comm = world.Split(0 if world.rank < ranks else MPI.UNDEFINED)
    if comm != MPI.COMM_NULL:
        agent = DistAsyncQLearning(seed=3, comm=comm, async_updates=False, logical_workers=4)
        agent.train("FrozenLake-v1", total_steps=60_000)
        print("trained on", ranks, hashlib.sha256(agent.q_table.tobytes()).hexdigest(), flush=True)
    world.Barrier()
"""


def test_the_reproducible_mode_at_six_numbers_of_ranks(run_python):
    program = TRAIN.format(settings="async_updates=False, logical_workers=4", steps=60_000)
    alone = run_python("-c", program).output.split()[-1]
    output = run_python("-c", ON_SOME_RANKS, ranks=6).output
    # The last number is of more ranks than there are logical workers.
    for ranks in (1, 2, 3, 4, 6):
        assert re.findall(rf"^trained on {ranks} (.*)", output, re.MULTILINE) == [alone] * ranks


# Rank `rank` stops for good when training is under way; until then the others take their time. It learns in
# rounds as well, however few cores there are.
STOPPED = """
import os, signal, time
from mpi4py import MPI
from dist_classicrl import DistAsyncQLearning
from dist_classicrl.engines.roles import cores
from dist_classicrl.learning.compiled import CompiledLearner
cores.bound_cores, cores.core_quota = lambda: list(range(64)), lambda: None
rank, learn = MPI.COMM_WORLD.rank, CompiledLearner.learn
agent = DistAsyncQLearning(
    seed=1, heartbeat_interval={silence} / 6, heartbeat_timeout={silence}, async_updates={async_updates},
    logical_workers=4,
)
agent.train("FrozenLake-v1", total_steps=10_000)

def stop(*anything):
    open("stopped", "w").close()
    os.kill(os.getpid(), signal.{signal})

def learn_slowly(self, walker, stream, steps):
    learn(self, walker, stream, steps)
    if not os.path.exists("stopped"):
        time.sleep(steps / 20_000)

def learn_and_stop(self, walker, stream, steps):
    learn(self, walker, stream, steps)
    CompiledLearner.left -= 1
    if CompiledLearner.left == 0:
        stop()

CompiledLearner.learn, CompiledLearner.learn_apart = learn_slowly, lambda *arguments: None
if rank == {rank} > 0:
    CompiledLearner.left, CompiledLearner.learn = 3, learn_and_stop
progress = stop if rank == {rank} else None
result = agent.train("FrozenLake-v1", total_steps=300_000, progress=progress, progress_interval=0)
print("rank", rank, "made", result.steps, "without", result.lost_workers, flush=True)
"""


@pytest.mark.parametrize("rank, async_updates", [(0, True), (2, True), (2, False)])
def test_a_rank_that_stops_is_done_without(run_python, rank, async_updates):
    program = STOPPED.format(rank=rank, silence=SILENCE, async_updates=async_updates, signal="SIGSTOP")
    # The rank that serves at the end ends the job, and with it the one that would never end.
    job = run_python("-c", program, ranks=3, timeout=240, status=DONE_BUT_HANGING)
    made = dict(re.findall(r"^rank (\d) made (.*)", job.output, re.MULTILINE))
    # mpirun lets a stopped rank go on when it ends the job, so that one may come to say something as well.
    made.pop(str(rank), None)
    assert made == {str(other): f"300000 without ({rank},)" for other in {0, 1, 2} - {rank}}


# Goes on after the last line of `STOPPED`, on the ranks that are left.
WAITS_FOR_THE_THIRD = """
import time
from pathlib import Path
if rank == 0:
    os.kill(pids[2], signal.SIGCONT)
deadline = time.monotonic() + 60.0
while not Path("cut-off").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(2.0)
print("rank", rank, "was left in peace", flush=True)
"""


def test_a_rank_that_comes_back_too_late_ends_alone(run_python):
    program = STOPPED.format(rank=2, silence=SILENCE / 2, async_updates=True, signal="SIGSTOP")
    before, train = program[: program.index("result =")], program[program.index("result =") :]
    program = f"""{before}
from dist_classicrl.process import exit
end_alone = exit.end_alone

def say_and_end_alone():
    open("cut-off", "w").close()
    end_alone()

exit.end_alone = say_and_end_alone  # what it does once it has shown its error
pids = MPI.COMM_WORLD.allgather(os.getpid())
{train}{WAITS_FOR_THE_THIRD}"""
    job = run_python("-c", program, ranks=3, timeout=240, status=DONE_BUT_HANGING)
    assert sorted(re.findall(r"^rank (\d) was left in peace", job.output, re.MULTILINE)) == ["0", "1"]
    assert len(re.findall(r"^ *(?:\w+\.)*CutOffError: Rank 2 was taken", job.output, re.MULTILINE)) == 1


def test_a_killed_rank_ends_the_job(run_python, tmp_path):
    program = STOPPED.format(rank=1, silence=60.0, async_updates=True, signal="SIGKILL")
    job = run_job([*mpirun_command(3), sys.executable, "-c", program], timeout=SOON, cwd=tmp_path)
    assert not job.timed_out and job.returncode != 0


def test_ctrl_c_ends_the_job(start_python):
    # As a terminal does it: SIGINT to mpirun.
    program = TRAIN.format(settings="", steps="10**15, progress=lambda told: print('under way', flush=True)")
    job = start_python("-c", program, ranks=3)
    job.must_wait_for(lambda: "under way" in job.output, "the training")
    job.send(signal.SIGINT)
    job.wait(timeout=SOON)
    assert job.process.returncode != 0, job.output


# An environment that starts a process and does not end it, nor gives it an output of its own.
LEAVES_A_PROCESS = """
import subprocess, sys
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from dist_classicrl import DistAsyncQLearning

class Lake(FrozenLakeEnv):
    process = None

    def reset(self, **options):
        if Lake.process is None:
            Lake.process = subprocess.Popen(["sleep", "600"], {output})
            print("sleeps", Lake.process.pid, flush=True)
        return super().reset(**options)

result = DistAsyncQLearning(seed=1).train(Lake, total_steps=2000)
print("trained", result.steps, flush=True)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
@pytest.mark.parametrize("launch", [(), ("-m", "dist_classicrl", "launch", "-n", 2, "--grace", 600)])
def test_a_process_that_an_environment_has_left_does_not_keep_the_job(run_python, tmp_path, launch):
    (tmp_path / "script.py").write_text(LEAVES_A_PROCESS.format(output=""))
    job = run_python(*launch, "script.py", ranks=None if launch else 2, timeout=240)
    assert job.output.count("trained 2000") == 2
    assert "'sleep 600'" in job.output and "stdout=subprocess.DEVNULL" in job.output
    pids = [int(pid) for pid in re.findall(r"sleeps (\d+)", job.output)]
    assert pids and not any(is_running(pid) for pid in pids)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_a_process_with_an_output_of_its_own_outlives_its_rank(start_python, tmp_path):
    own = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    job = start_python("-c", LEAVES_A_PROCESS.format(output=own), ranks=2)
    job.wait(0)
    time.sleep(4.0)  # longer than what is left is given
    pids = [int(pid) for pid in re.findall(r"sleeps (\d+)", job.output)]
    assert pids and all(is_running(pid) for pid in pids)
    assert "has left" not in job.output
