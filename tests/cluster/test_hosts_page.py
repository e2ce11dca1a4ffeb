"""The commands of docs/clusters.md are run as they stand, in order, on three hosts with real ssh."""

import json
import shutil
from pathlib import Path

import host_ssh
import pytest
from host_ssh import SshHosts

from dist_classicrl.launch.hosts import Host, read_hostfile
from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.process.jobs import run_job

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- run on the hosts -->\n```sh\n"
SECONDS = 300.0
HOSTS = 3
WORKERS = {"FrozenLake-v1": 6, "one-network": 6, "bound": 2}


def boxes():
    """Return the marked boxes of the page."""
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    return [text.partition("\n```")[0] for text in page.split(MARK)[1:]]


def test_the_example_of_a_hostfile_is_one():
    assert read_hostfile(ROOT / "hostfile.example") == (
        *(Host("node1", 3), Host("node2", 2), Host("node3", 2)),
    )


def test_every_box_that_needs_hosts_is_marked():
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert page.count("```sh") == page.count(MARK) == len(boxes()) > 0


def test_the_commands_of_the_page_work_over_ssh(possible, tmp_path):
    if reason := host_ssh.why_not():
        pytest.skip(reason)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(mode=0o700)
    work.mkdir()
    shutil.copy(ROOT / "hostfile.example", work)
    said = []
    with SshHosts(HOSTS, home) as hosts:
        for box in boxes():
            # As the commands are typed: what fails stops the box.
            command = hosts.command("h1", ["sh", "-ec", f"cd {work}\n{box}"])
            job = run_job(command, timeout=SECONDS, env=launch_environment(hosts.environment()))
            assert not job.timed_out and job.returncode == 0, f"{box}\n{job.output}"
            said.append(job.output)
    everything = "\n".join(said)
    assert "\nnode1\nnode2\nnode3\n" in everything, everything  # what ssh says
    assert everything.splitlines().count("7") == 7, everything  # what seven ranks say of their world
    runs = {path.parent.name: json.loads(path.read_text()) for path in work.glob("runs/*/result.json")}
    assert {name: run["workers"] for name, run in runs.items()} == WORKERS
