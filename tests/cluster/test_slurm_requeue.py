"""Under a real SLURM of two nodes: a job is told before its time limit, or is cancelled."""

import re

import numpy as np
import pytest
from slurm_cluster import NODES, SlurmCluster
from slurm_jobs import (
    EXAMPLE,
    FOUR_TASKS,
    TRAIN,
    check_learned,
    checkpoints_in,
    hurry,
    result,
    run_folder,
    script,
    slow_words,
    wait_until_it_trains,
)

# Seven workers cannot make them before the warning, which comes a minute after the start, or somewhat later.
LONG_STEPS = 500_000
# Three workers need more than a minute for them until they are told to hurry.
STEPS = 100_000
SOME_STEPS = 2_000
ENDLESS = 10**14
# The script, which hands it on, is all that hears it.
WARNING = ("scancel", "--batch", "--signal=USR1")


@pytest.fixture(scope="module")
def cluster(slurm_possible):
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def long_job(cluster):
    """A job that is longer than its time limit, and runs while other tests do."""
    words = slow_words(LONG_STEPS, "1h")
    options = ("--time=2", "--signal=B:USR1@60", "--nodes=2", "--ntasks-per-node=4")
    return cluster.submit(script("requeue.sbatch", *words), *options)


@pytest.fixture(scope="module", autouse=True)
def early_job(cluster):
    """A job that is warned as soon as its training has been started, and is queued again."""
    job = cluster.submit(script("requeue.sbatch", *slow_words(STEPS, "1h")), *FOUR_TASKS)

    def is_starting(about):
        return any("dist_classicrl train" in line for node in NODES for line in cluster.processes(node, job))

    cluster.wait_for(job, is_starting, "its training to be started")
    cluster.run(*WARNING, job)
    return job


def test_a_cancelled_job_leaves_no_process_on_any_node(cluster):
    launched = cluster.submit(script("plain.sbatch", *slow_words(ENDLESS, "1h")), *FOUR_TASKS)
    words = (*EXAMPLE, "--steps", str(ENDLESS), "--env", "FrozenLake-v1")
    started = cluster.submit(script("srun.sbatch", *words), *FOUR_TASKS)
    wait_until_it_trains(cluster, launched)
    cluster.wait_for(started, lambda _: "steps/s" in cluster.output(started), "it to train")
    for job in (launched, started):
        for node in NODES:
            assert len([line for line in cluster.processes(node, job) if "python" in line]) >= 2
    for job in (launched, started):
        cluster.run("scancel", job)
        cluster.wait(job, "CANCELLED")
        cluster.wait_until_idle(job=job)
        assert cluster.about(job)["Restarts"] == "0"


def test_ranks_that_srun_started_hear_the_warning_and_go_on_when_requeued(cluster):
    job = cluster.submit(script("srun.sbatch", *TRAIN, *slow_words(STEPS, "1h")), *FOUR_TASKS)
    folder = wait_until_it_trains(cluster, job, SOME_STEPS)
    cluster.run(*WARNING, job)
    cluster.wait_for(job, lambda about: about["Restarts"] == "1", "it to be queued again")
    hurry(cluster, job)
    cluster.wait(job, "COMPLETED")
    assert len(re.findall(r"Stopped by SIGUSR1 on rank \d", cluster.output(job))) == 1
    assert result(folder)["resumed_from"] is not None
    check_learned(folder / "model.npz", STEPS, slow=True)


def test_a_job_that_is_warned_while_it_starts_is_queued_again(cluster, early_job):
    cluster.wait_for(early_job, lambda about: about["Restarts"] == "1", "it to be queued again")
    hurry(cluster, early_job)
    cluster.wait(early_job, "COMPLETED")
    assert cluster.about(early_job)["Restarts"] == "1"
    check_learned(run_folder(cluster.place(early_job)) / "model.npz", STEPS, slow=True)


def test_the_warning_before_the_time_limit_saves_the_run(cluster, long_job):
    def has_stopped(about):
        return about["Restarts"] != "0" and "Stopped by SIGUSR1" in cluster.output(long_job)

    cluster.wait_for(long_job, has_stopped, "it to be queued again")
    said = cluster.output(long_job)
    # It is warned a minute after each start, as long as it does not hurry.
    steps = int(re.findall(r"SIGUSR1 on rank \d \(h\d\) after ([\d,]+) of", said)[-1].replace(",", ""))
    found = checkpoints_in(run_folder(cluster.place(long_job)))
    saved = [int(np.load(path / "visits.npy").sum()) for path in found]
    hurry(cluster, long_job)
    assert "the same command goes on from there" in said  # and exit status 75 has queued it again
    # Nothing saves it but the warning, and the end.
    assert steps in saved


def test_the_job_that_was_warned_goes_on_where_it_stopped(cluster, long_job):
    cluster.wait(long_job, "COMPLETED")
    folder = run_folder(cluster.place(long_job))
    assert result(folder)["resumed_from"] is not None
    check_learned(folder / "model.npz", LONG_STEPS, slow=True)
    # That was the last job.
    cluster.wait_until_idle()
