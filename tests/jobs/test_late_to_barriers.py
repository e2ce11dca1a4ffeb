"""A rank that comes to a barrier when the others have closed it and end: it gets whole messages."""

from dist_classicrl.launch.launcher import find_launcher, launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.launch.program import command
from dist_classicrl.process.jobs import run_job

PROGRAM = """
import time
from mpi4py import MPI
from dist_classicrl.mpi_tools import QuorumBarrier

barrier = QuorumBarrier(MPI.COMM_WORLD, 1, timeout=100, grace=None if MPI.COMM_WORLD.rank == 2 else 1e-6)
if MPI.COMM_WORLD.rank == 2:
    time.sleep(5)
came = [barrier.wait() for _ in range(1000)]
if MPI.COMM_WORLD.rank == 2:
    print("MET", sum(map(len, came)), flush=True)
barrier.close()
"""


def test_what_mpi_had_not_sent_when_python_ended_arrives_whole(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    whole = [*mpirun_command(3, find_launcher()), *command([str(script)])]
    job = run_job(whole, timeout=300.0, env=launch_environment(), cwd=tmp_path)
    assert job.returncode == 0 and "MET 3000" in job.output, job.output
