"""Under a real SLURM of two nodes: jobs of a higher partition take the nodes, with and without a warning."""

from contextlib import ExitStack

import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import (
    FOUR_TASKS,
    check_learned,
    checkpoints_in,
    hurry,
    result,
    run_folder,
    script,
    slow_words,
    wait_until_it_trains,
)

# Three workers need more than two minutes for them until they are told to hurry.
STEPS = 200_000
SOME_STEPS = 2_000
# Without a warning the job is killed some seconds after it was told to make way.
CASES = {
    "warning": {"sends_warning": True, "grace": 60},
    "no warning": {"sends_warning": False, "grace": 0},
}
INTERVALS = {"warning": "1h", "no warning": "2s"}


@pytest.fixture(scope="module")
def preempted(slurm_possible):
    """A cluster of each case, with a job that has been queued again: both at once, as they wait a lot."""
    with ExitStack() as stack:
        clusters = {name: stack.enter_context(SlurmCluster(**case)) for name, case in CASES.items()}
        jobs = {}
        for name, cluster in clusters.items():
            text = script("requeue.sbatch", *slow_words(STEPS, INTERVALS[name]))
            jobs[name] = cluster.submit(text, *FOUR_TASKS, "--partition=all")
        for name, cluster in clusters.items():
            folder = wait_until_it_trains(cluster, jobs[name], SOME_STEPS)
            if name == "no warning":
                cluster.wait_for(jobs[name], lambda _, folder=folder: checkpoints_in(folder), "a checkpoint")
            other = "#!/bin/bash\nsleep 2\n"
            cluster.submit(other, "--partition=high", "--nodes=2", "--exclusive", "--job-name=other")
        for name, cluster in clusters.items():
            cluster.wait_for(jobs[name], lambda about: about["Restarts"] == "1", "it to be queued again")
            hurry(cluster, jobs[name])
        yield {name: (cluster, jobs[name]) for name, cluster in clusters.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_job_that_makes_way_for_another_goes_on_after_it(preempted, case):
    cluster, job = preempted[case]
    cluster.wait(job, "COMPLETED")
    said = cluster.output(job)
    # With the one it has saved itself, and nothing else would have; without, it was killed.
    assert ("Stopped by SIGUSR1 on rank" in said) == (case == "warning"), said
    folder = run_folder(cluster.place(job))
    assert result(folder)["resumed_from"] is not None
    check_learned(folder / "model.npz", STEPS, slow=True)
    assert cluster.about(job)["Restarts"] == "1"
    cluster.wait_until_idle()
