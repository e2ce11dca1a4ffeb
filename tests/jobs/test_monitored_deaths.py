"""Monitor and debugger when a rank is killed: nobody waits for it."""

import json

import pytest

from dist_classicrl.launch.launcher import find_launcher, launch_environment
from dist_classicrl.launch.mpirun import mpirun_command, survival_words
from dist_classicrl.launch.program import command
from dist_classicrl.process.jobs import run_job

PROGRAM = """
import json, os, signal, time
import numpy as np
from mpi4py import MPI
from dist_classicrl import DistributedDebugger, DistributedMonitor
from dist_classicrl.errors import RankLostError, RemoteRankError

world = MPI.COMM_WORLD
monitor, debugger = DistributedMonitor(world, log_interval=1), DistributedDebugger(world, timeout=100)
for step in range(2):
    monitor.log_metrics(step, reward=world.rank, throughput=10.0)
assert debugger.check_data_consistency(np.arange(5))
if world.rank == 2:
    monitor.plot_training_curves()  # waits until rank 0 has what was logged here
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
deadline = time.monotonic() + 100
while world.rank == 0 and not monitor.lost_ranks and time.monotonic() < deadline:
    monitor.log_metrics(1)
    time.sleep(0.01)
for step in range(2, 4):
    monitor.log_metrics(step, reward=world.rank, throughput=10.0)
try:
    debugger.check_data_consistency(np.arange(5))
except (RankLostError, RemoteRankError) as error:
    said = str(error)
monitor.close()
metrics = {name: values.tolist() for name, values in monitor.metrics.items()}
print("SAID", json.dumps([world.rank, sorted(monitor.lost_ranks), metrics, said]), flush=True)
time.sleep(0.3)
os._exit(0)
"""


def test_a_rank_that_is_killed_holds_up_nobody(tmp_path):
    launcher = find_launcher()
    words = survival_words(launcher)
    if not words:
        pytest.skip("a death ends the job in this MPI")
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    whole = [*mpirun_command(3, launcher), *words, *command([str(script)])]
    job = run_job(whole, timeout=400.0, env=launch_environment(), cwd=tmp_path)
    assert not job.timed_out, job.output
    said = sorted(json.loads(line.split(" ", 1)[1]) for line in job.output.splitlines() if "SAID" in line)
    assert [rank for rank, *_ in said] == [0, 1], job.output
    _, lost, metrics, error = said[0]
    assert lost == [2] and "Rank 2 died while rank 0 waited" in error
    assert "Rank 2 died while rank 0 waited" in said[1][3]
    assert metrics["step"] == [0, 1, 2, 3]
    # What it had sent counts; from then on the others alone.
    assert metrics["ranks"] == [3, 3, 2, 2]
    assert metrics["throughput"] == [30.0, 30.0, 20.0, 20.0]
    assert metrics["reward"] == [1.0, 1.0, 0.5, 0.5]
