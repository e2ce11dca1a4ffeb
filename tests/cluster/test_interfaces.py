"""Hosts with several network cards, one of which leads nowhere: jobs with and without `--network`."""

import json
import sys

import host_jobs
import pytest
from background_job import BackgroundJob
from hosts import NETWORK, SECOND_NETWORK, Hosts

from dist_classicrl.launch.launcher import find_launcher

SLOTS = {"h1": 2, "h2": 2, "h3": 2}
# A table of two MB, which every worker gets at the end, and those on other hosts over a network.
TABLE = {"n_states": 62_500, "n_actions": 4}
TABLE_BYTES = 8 * TABLE["n_states"] * TABLE["n_actions"]
# What Open MPI says where a rank is connected to itself, or to another one than it thinks.
TROUBLES = (
    "WARNING: Open MPI accepted a TCP connection",
    "received unexpected process identifier",
    "connect() to 172.17.0.1",
)
WAITS = "from mpi4py import MPI; import time; MPI.COMM_WORLD.Barrier(); print('through', flush=True)"


@pytest.fixture(scope="module")
def hosts(possible):
    with Hosts(3, more_cards=True) as hosts:
        yield hosts


@pytest.fixture
def needs_openmpi_5():
    launcher = find_launcher()
    if launcher.family != "openmpi" or launcher.version < (5,):
        pytest.skip(f"what Open MPI 5 does by itself is looked at, and this is {launcher}")


@pytest.mark.parametrize(
    "network, carries, other",
    [("10.78.0.0/24", SECOND_NETWORK, NETWORK), ("eth0", NETWORK, SECOND_NETWORK)],
    ids=["by address", "by name"],
)
def test_a_job_keeps_to_the_network_that_was_chosen(hosts, tmp_path, network, carries, other):
    before = {name: hosts.carried(name) for name in (carries, other)}
    words = ["-m", "dist_classicrl", "train", "garnet", "--total-steps", "2e5", "--out", tmp_path / "run"]
    words += [word for name, value in TABLE.items() for word in ("--env-arg", f"{name}={value}")]
    host_jobs.launch(hosts, tmp_path, words, slots=SLOTS, launch_words=["--network", network])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 200_000
    used = {name: hosts.carried(name) - bytes_before for name, bytes_before in before.items()}
    assert used[carries] > 4 * TABLE_BYTES, used
    # What starts programs on other hosts goes where the hosts' names lead.
    assert used[other] < 100_000, used


def test_without_a_choice_ranks_connect_to_the_card_that_all_hosts_have(hosts, needs_openmpi_5):
    words = [find_launcher().path, "--prtemca", "plm_ssh_agent", hosts.agent, "--bind-to", "none"]
    words += ["--hostfile", hosts.hostfile(2), "-n", "6", sys.executable, "-c", WAITS]
    with BackgroundJob(hosts.command("h1", words)[1:]) as job:
        # Then it hangs, or ends with an error.
        said = job.wait_for(
            lambda: [text for text in TROUBLES if text in job.output], "its trouble", host_jobs.SECONDS
        )
        assert said and "through" not in job.output, job.output
