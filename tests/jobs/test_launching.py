import os
import sys

import pytest

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import is_running, run_job

LAUNCHER = ("-m", "dist_classicrl.launch.mpirun")

# Ranks that tell their process id and will not end by themselves, nor when they are asked to.
STUBBORN = """
import os, signal, sys, time
from mpi4py import MPI
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
time.sleep(600)
"""


def test_more_ranks_than_cores_find_each_other(run_python):
    ranks = 2 * (os.cpu_count() or 1) + 1
    program = "from mpi4py import MPI; print(f'{MPI.COMM_WORLD.rank}/{MPI.COMM_WORLD.size}')"
    job = run_python(*LAUNCHER, "-n", ranks, "--", sys.executable, "-c", program)
    assert sorted(job.output.split()) == sorted(f"{rank}/{ranks}" for rank in range(ranks))


def test_the_launcher_that_is_found_passes_its_own_check(run_python):
    assert mpirun_command(1)[0] in run_python(*LAUNCHER, "--check").output


def test_a_job_can_be_started_from_a_rank_of_another(run_python):
    inner = "from mpi4py import MPI; print('inner', MPI.COMM_WORLD.size)"
    outer = (
        "import subprocess, sys\nfrom mpi4py import MPI\n"
        f"subprocess.run([sys.executable, *{LAUNCHER!r}, '-n', '2', '--', sys.executable, '-c', {inner!r}])"
    )
    assert run_python("-c", outer, ranks=1).output.split() == ["inner", "2"] * 2


def test_the_status_of_a_failing_rank_comes_back(run_python):
    program = "from mpi4py import MPI; raise SystemExit(3 * MPI.COMM_WORLD.rank)"
    run_python(*LAUNCHER, "-n", "2", "--", sys.executable, "-c", program, status=3)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found through /proc")
def test_a_deadline_ends_every_rank_and_every_daemon(tmp_path):
    command = [*mpirun_command(3), sys.executable, "-c", STUBBORN, str(tmp_path)]
    ranks = []
    for seconds in (6, 20, 60):  # a busy machine may take longer than that to start them
        job = run_job(command, timeout=seconds, env=launch_environment())
        assert job.timed_out
        before, ranks = len(ranks), [int(path.name) for path in tmp_path.iterdir()]
        if len(ranks) - before == 3:
            break
    assert len(ranks) - before == 3
    assert [rank for rank in ranks if is_running(rank)] == []


@pytest.mark.parametrize("name", ["dist_classicrl", "dist_classicrl.launch.mpirun"])
def test_importing_the_package_starts_no_mpi_and_loads_no_gymnasium(run_python, name):
    program = f"import sys, {name}; print(*(m in sys.modules for m in ('mpi4py', 'mpi4py.MPI', 'gymnasium')))"
    assert run_python("-c", program).output.split() == ["False"] * 3
