"""Under a real SLURM of two nodes: one of the nodes dies."""

import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import (
    check_learned,
    checkpoints_in,
    hurry,
    result,
    script,
    slow_words,
    wait_until_it_trains,
)

# The ranks that are left go on until SLURM has noticed, and must not come to the end meanwhile.
STEPS = 300_000
# Of silence, after which a node counts as dead: longer than a busy machine keeps the other one waiting.
NODE_SECONDS = 25


@pytest.fixture(scope="module")
def cluster(slurm_possible):
    with SlurmCluster(node_timeout=NODE_SECONDS) as cluster:
        yield cluster


def test_a_job_that_loses_a_node_goes_on_from_its_checkpoint_on_the_other(cluster):
    job = cluster.submit(
        script("requeue.sbatch", *slow_words(STEPS, "2s")), "--ntasks=4", "--nodes=1-2", "--time=10"
    )
    folder = wait_until_it_trains(cluster, job)
    cluster.wait_for(job, lambda _: checkpoints_in(folder), "a checkpoint")
    assert cluster.about(job)["NumNodes"] == "2"
    cluster.hosts.kill_host("h2", silently=True)
    cluster.wait_for(job, lambda about: int(about["Restarts"]) > 0, "it to be queued again")
    hurry(cluster, job)
    cluster.wait(job, "COMPLETED")
    assert "DUE TO NODE FAILURE" in cluster.output(job)
    assert cluster.about(job)["NodeList"] == "h1"
    assert result(folder)["resumed_from"] is not None
    check_learned(folder / "model.npz", STEPS, slow=True)
    cluster.wait_until_idle(["h1"])
