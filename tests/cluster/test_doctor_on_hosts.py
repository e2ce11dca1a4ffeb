"""`doctor --hostfile` on emulated hosts, with their agent as ssh: each trouble is made, and found by name."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hosts import Hosts
from slurm_cluster import SlurmCluster

import dist_classicrl
from dist_classicrl.process.jobs import run_job

SECONDS = 300
# In less than this a daemon of mpirun ends, on a busy machine as well; what the doctor starts on hosts waits
# for twice what it is given if nobody ends it.
LEFT_SECONDS = 60.0
DOCTOR = [sys.executable, "-m", "dist_classicrl", "doctor", "--json", "--timeout", "120"]
TRIES = 5  # until one is met in its midst
EXAMINATIONS = 3
AHEAD_SECONDS = 90.0
PACKAGE = Path(dist_classicrl.__file__).parent
CLOCK = f"""
import time
true_time = time.time
time.time = lambda: true_time() + {AHEAD_SECONDS}
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder to work in, which all hosts see."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def do(hosts, host, *words):
    job = run_job(hosts.command(host, words), timeout=SECONDS)
    assert job.returncode == 0, job.output


def hide(hosts, host, folder):
    """Let a host have an empty folder there."""
    do(hosts, host, "mount", "-t", "tmpfs", "hidden", str(folder))


def put(hosts, host, ours, place):
    """Let a host, and no other, have `ours` at a place."""
    do(hosts, host, "mount", "--bind", str(ours), str(place))


def check_nothing_runs(hosts):
    """Such as what listens for other hosts."""
    deadline = time.monotonic() + LEFT_SECONDS
    while left := {host: processes for host in hosts.names if (processes := hosts.processes(host))}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def examined(hosts, *words, names=None, status=0, hostfile=None):
    """What the doctor finds when it is started at h1, by check."""
    on = ["--hostfile", hostfile or hosts.hostfile(2, names), "--agent", hosts.agent]
    job = run_job(hosts.command("h1", [*DOCTOR, *on, *words]), timeout=SECONDS)
    assert job.returncode == status, job.output
    check_nothing_runs(hosts)
    return {each["check"]: each for each in json.loads(job.output)["findings"]}


def check_repeatedly(check):
    """Let a busy machine spoil an examination, which measures times and speeds, but not each of several."""
    for number in range(EXAMINATIONS):
        try:
            check()
        except (AssertionError, KeyError, ValueError):
            if number == EXAMINATIONS - 1:
                raise
        else:
            return


def statuses(found):
    return {check: finding["status"] for check, finding in found.items()}


def test_three_hosts_that_are_well(three_hosts, work):
    (work / "hosts").write_text("h1:2\nh2:2\nh3:2\n")  # in the form of another launcher than Open MPI

    def check():
        found = examined(three_hosts, "--checkpoint-dir", "saved", hostfile=work / "hosts")
        well = ["hosts", "connections", "host names", "same versions", "working folder", "clocks", "ranks"]
        assert {statuses(found)[check] for check in well} == {"ok"}
        shared = [statuses(found)[check] for check in ("shared checkpoint folder", "shared state folder")]
        assert shared == ["ok", "ok"]
        assert "6 on 3 hosts" in found["ranks"]["found"]
        assert found["same versions"]["data"].keys() == {"h1", "h2", "h3"}
        clocks = found["clocks"]["data"]
        assert clocks.keys() == {"h2", "h3"}
        for clock in clocks.values():  # they have the same clock, which the uncertainty has to allow for
            assert abs(clock["offset"]) <= clock["uncertainty"] + 1e-6 < 1.0
        pairs = found["pairs of hosts"]["data"]["pairs"]
        assert sorted(pair["hosts"] for pair in pairs) == [["h1", "h2"], ["h1", "h3"], ["h2", "h3"]]
        assert all(pair["latency"] > 0.0 and pair["bandwidth"] > 0.0 for pair in pairs)
        # Neither checkpoints nor the state folder stay.
        assert [path.name for path in work.iterdir()] == ["hosts"]

    check_repeatedly(check)


@pytest.mark.skipif(shutil.which("tc") is None, reason="there is no program tc to slow a card down")
def test_a_host_that_is_not_like_the_others_is_named(three_hosts, work, monkeypatch):
    stale, clock, shifted = work / "stale", work / "clock", work / "shifted"
    shutil.copytree(PACKAGE, stale)
    with open(stale / "errors.py", "a") as file:
        file.write("# stale\n")
    clock.mkdir()
    shifted.mkdir()
    (shifted / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(clock), os.environ.get("PYTHONPATH", "")]))
    (work / "saved").mkdir()
    (work / "state").mkdir()
    put(three_hosts, "h3", stale, PACKAGE)
    put(three_hosts, "h3", shifted, clock)
    hide(three_hosts, "h3", work / "saved")
    put(three_hosts, "h2", work / "state", work / "state")
    do(three_hosts, "h2", "mount", "-o", "remount,bind,ro", str(work / "state"))
    shape = ["tbf", "rate", "20mbit", "burst", "64kb", "latency", "400ms"]
    do(three_hosts, "h3", "tc", "qdisc", "add", "dev", "eth0", "root", *shape)

    def check():
        found = examined(three_hosts, "--checkpoint-dir", "saved", "--state-dir", "state", status=1)
        assert (statuses(found)["hosts"], statuses(found)["connections"]) == ("ok", "ok")
        assert statuses(found)["same versions"] == "failure"
        (line,) = found["same versions"]["found"].splitlines()
        assert line.startswith("dist_classicrl differs: ") and line.endswith("on h3") and "on h1, h2" in line
        assert found["shared checkpoint folder"]["found"] == "it is not the same one on h3"
        assert "cannot be written to on h2" in found["shared state folder"]["found"]
        assert statuses(found)["clocks"] == "warning"
        assert found["clocks"]["found"].startswith("far apart on h3")
        clock = found["clocks"]["data"]["h3"]
        assert abs(clock["offset"] - AHEAD_SECONDS) <= clock["uncertainty"] + 0.001
        assert statuses(found)["pairs of hosts"] == "warning"
        assert found["pairs of hosts"]["found"].startswith("h3 is far slower than the others")
        assert statuses(found)["ranks"] == "ok"

    check_repeatedly(check)


@pytest.mark.parametrize(
    "part, number",
    [
        ("on_host report", signal.SIGINT),
        ("on_host report", signal.SIGTERM),
        ("probe hosts", signal.SIGTERM),
        ("probe look", signal.SIGTERM),
    ],
)
def test_a_doctor_that_is_ended_leaves_nothing_on_hosts(three_hosts, work, part, number):
    words = [*DOCTOR, "--hostfile", three_hosts.hostfile(1), "--agent", three_hosts.agent]
    command = three_hosts.command("h1", [*words, "--checkpoint-dir", "saved"])
    for _ in range(TRIES):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as doctor:
            met = None
            try:
                met = stopped(three_hosts, part, doctor)
                if met is not None:
                    doctor.send_signal(number)
                    assert doctor.wait(SECONDS) == 128 + number
            finally:
                doctor.kill()
                if met is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(met, signal.SIGCONT)
        check_nothing_runs(three_hosts)
        assert list(work.iterdir()) == []
        if met is not None:
            return
    pytest.fail(f"none of {TRIES} doctors was met while {part} ran")


def stopped(hosts, part, doctor):
    """Stop this part of a doctor on h3, so that it does not come to its end; None if the doctor has."""
    deadline = time.monotonic() + SECONDS
    while doctor.poll() is None:
        assert time.monotonic() < deadline
        for pid in [pid for pid, line in hosts.processes("h3").items() if part in line]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                if part in hosts.processes("h3").get(pid, ""):  # it has not ended
                    return pid
        time.sleep(0.005)
    return None


def test_hosts_that_do_not_answer_are_named_and_the_others_are_examined(possible, work):
    with Hosts(6) as hosts:
        hosts.cut("h2")
        hide(hosts, "h3", sys.prefix)
        hide(hosts, "h4", PACKAGE)
        # And no rank is to run where the doctor is started.
        names = ["h2", "h3", "h4", "h5", "h6", "h9"]
        found = examined(hosts, "--network", "10.77.0.0/24", names=names, status=1)
    told = dict(line.split(": ", 1) for line in found["hosts"]["found"].splitlines() if ": " in line)
    assert told["h2"].startswith("it cannot be reached")
    assert told["h3"].startswith(f"there is no {sys.executable}")
    assert told["h4"].startswith(f"{sys.executable} cannot run dist_classicrl there")
    assert told["h9"].startswith("its name is not known here")
    assert "Ranks are started on h5, h6 alone." in found["hosts"]["found"]
    assert found["hosts"]["data"]["answer"] == ["h5", "h6"]
    assert len(found["hosts"]["remedy"].splitlines()) == 4
    assert statuses(found)["connections"] == statuses(found)["ranks"] == "ok"
    assert "all 3 pairs" in found["connections"]["found"]  # h1, where mpirun runs, has to be reached
    assert "4 on 2 hosts" in found["ranks"]["found"]
    assert [pair["hosts"] for pair in found["pairs of hosts"]["data"]["pairs"]] == [["h5", "h6"]]


def test_hosts_that_do_not_reach_each_other_are_named_and_nothing_hangs(three_hosts, work):
    # What h2 and h3 send each other goes nowhere, as through a firewall that drops it.
    for host, other in (("h2", "10.77.0.3"), ("h3", "10.77.0.2")):
        nowhere = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
        do(three_hosts, host, "ip", "neighbour", "replace", other, *nowhere)

    def check():
        found = examined(three_hosts, status=1)
        assert statuses(found)["hosts"] == "ok" and statuses(found)["connections"] == "failure"
        missing = [(each["from"], each["to"]) for each in found["connections"]["data"]["missing"]]
        assert missing == [("h2", "h3"), ("h3", "h2")]
        assert "h2 does not reach h3 by TCP" in found["connections"]["found"]
        assert "Ranks are started on h1, h2 alone." in found["connections"]["found"]
        assert statuses(found)["ranks"] == "ok" and "4 on 2 hosts" in found["ranks"]["found"]

    check_repeatedly(check)


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no program nft for a firewall")
def test_what_listens_behind_a_firewall_ends_without_being_told(three_hosts, work):
    firewall = (
        "add table inet wall; add chain inet wall in { type filter hook input priority 0; }; "
        "add rule inet wall in iifname eth0 tcp dport 1024-65535 tcp flags syn / syn,ack drop"
    )
    for host in ("h2", "h3"):
        do(three_hosts, host, "nft", firewall)
    found = examined(three_hosts, status=1)
    assert "h1 does not reach h2 by TCP" in found["connections"]["found"]
    assert "Ranks are started on h1 alone." in found["connections"]["found"]


@pytest.mark.usefixtures("slurm_possible")
def test_the_nodes_of_a_slurm_job_are_hosts_without_a_hostfile(tmp_path):
    path = tmp_path / "found.json"
    script = (
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\n"
        f"export PYTHONPATH={os.environ.get('PYTHONPATH', '')}\n"
        f"{shlex.join(DOCTOR)} > {path}\n"
    )
    with SlurmCluster() as cluster:
        job = cluster.submit(script)
        cluster.wait(job, {"COMPLETED", "FAILED"}, timeout=SECONDS)
        assert path.read_text(), cluster.output(job)
    found = {each["check"]: each for each in json.loads(path.read_text())["findings"]}
    nodes = found["hosts"]["data"]["answer"]
    assert len(nodes) == 2 and statuses(found)["connections"] == "ok"
    assert found["same versions"]["data"].keys() == set(nodes)
    assert [pair["hosts"] for pair in found["pairs of hosts"]["data"]["pairs"]] == [nodes]
    assert "4 on 2 hosts" in found["ranks"]["found"]
