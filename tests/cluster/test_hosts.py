"""That the emulated hosts are apart, that a cut is a cut, and that nothing is left of them."""

import os
import socket
import subprocess
import sys
import time

import cut_network
import hosts as emulated
import pytest
from hosts import SSH_PORT, UNREACHABLE, Hosts

SECONDS = 300
# More steps than are made until its link is cut, however late that is; then it hurries. The others are not
# silent for so long, however busy the machine is.
SHORT = cut_network.Case(
    cut="h3",
    returns=True,
    away=frozenset({4, 5}),
    silence=15.0,
    steps=100_000,
    grace=15.0,
    share=0.02,
    hurries=True,
)


@pytest.fixture
def hosts(possible):
    with Hosts(2) as hosts:
        yield hosts


def run(hosts, host, *words):
    return subprocess.run(hosts.command(host, words), capture_output=True, text=True, timeout=SECONDS)


def ask(hosts, host, other, command):
    return run(hosts, host, hosts.agent, "-x", other, command)


def connect(hosts, host, other, seconds=0.5):
    """Return the name of the error with which a connection is not made, or after how many seconds it is."""
    connect = (
        "import socket, time; since = time.monotonic(); "
        f"socket.create_connection(({other!r}, {SSH_PORT}), timeout={seconds}); "
        "print(time.monotonic() - since)"
    )
    said = run(hosts, host, sys.executable, "-c", connect).stdout.strip()
    return said.rpartition("\n")[2].partition(":")[0]


def start(hosts, host, *words):
    job = subprocess.Popen(hosts.command(host, words), stdout=subprocess.PIPE)
    while " ".join(words) not in hosts.processes(host).values():
        assert job.poll() is None
        time.sleep(0.01)
    return job


def test_each_host_has_its_own_name_card_processes_and_shared_memory(hosts):
    look = "hostname; echo $$; echo here >> /dev/shm/file; cat /dev/shm/file; ip -o -4 address"
    at_1, at_2 = (run(hosts, name, "sh", "-c", look).stdout.split() for name in hosts.names)
    assert (at_1[0], at_2[0]) == ("h1", "h2")
    assert at_1[1] != at_2[1]
    assert at_1[2:3] == at_2[2:3] == ["here"]
    assert "10.77.0.1/24" in at_1 and "10.77.0.2/24" in at_2
    assert not os.path.exists("/dev/shm/file")


def test_this_machine_keeps_its_own_name(possible):
    before = socket.gethostname()
    with Hosts(2) as hosts:
        assert run(hosts, "h2", "hostname").stdout == "h2\n"
        assert socket.gethostname() == before
    assert socket.gethostname() == before


def test_nothing_becomes_a_host_outside_of_a_namespace_of_its_own(possible, tmp_path):
    host = f"{sys.executable} {emulated.__file__} host h9 9 {tmp_path} 0"
    look = f"hostname one; {host} $(readlink /proc/self/ns/uts) 22; hostname"
    # All namespaces are new, so that nothing happens to this machine if it goes wrong.
    words = ["unshare", *emulated._NAMESPACES, "sh", "-c", look]
    with socket.socket() as lifeline:
        tried = subprocess.run(words, stdin=lifeline, capture_output=True, text=True, timeout=SECONDS)
    assert tried.stdout == "one\n"
    assert "This machine itself would be called h9" in tried.stderr


def test_a_program_on_a_host_gives_back_its_output_and_its_status(hosts):
    job = run(hosts, "h1", sys.executable, "-c", "print('x' * 200_000); raise SystemExit(7)")
    assert (job.returncode, job.stdout) == (7, "x" * 200_000 + "\n")
    assert ask(hosts, "h1", "h2", "hostname; kill -9 $$").stdout == "h2\n"
    assert ask(hosts, "h1", "h2", "kill -9 $$").returncode == 128 + 9
    assert run(hosts, "h1", "no-such-program").returncode == 127


def test_only_what_is_started_at_a_host_itself_has_this_environment(hosts, monkeypatch):
    monkeypatch.setenv("OF_THIS_TEST", "1")
    assert run(hosts, "h1", "sh", "-c", "echo $OF_THIS_TEST").stdout == "1\n"
    assert ask(hosts, "h1", "h2", "echo $OF_THIS_TEST").stdout == "\n"


def test_signals_reach_a_program_on_a_host(hosts):
    job = start(hosts, "h1", "sleep", "100")
    job.terminate()
    assert job.wait(SECONDS) == 128 + 15


def test_a_host_that_is_cut_off_cannot_be_reached_until_it_is_healed(hosts):
    hosts.cut("h2")
    assert ask(hosts, "h1", "h2", "hostname").returncode == UNREACHABLE
    assert connect(hosts, "h2", "h1") == "TimeoutError"
    assert run(hosts, "h2", "hostname").stdout == "h2\n"
    hosts.heal("h2")
    assert ask(hosts, "h1", "h2", "hostname").stdout == "h2\n"


def test_packets_are_delayed_and_lost(hosts):
    hosts.impair(delay_ms=50)
    assert ask(hosts, "h1", "h2", "hostname").stdout == "h2\n"
    assert float(connect(hosts, "h1", "h2", SECONDS)) >= 2 * 0.05
    hosts.impair(delay_ms=1e6 * SECONDS)  # far more than any machine keeps a program waiting
    assert connect(hosts, "h1", "h2") == "TimeoutError"
    hosts.impair(loss=1.0)
    assert connect(hosts, "h1", "h2") == "TimeoutError"


@pytest.mark.parametrize("silently", [False, True])
def test_a_killed_host_has_no_process_and_does_not_answer(hosts, silently):
    job = start(hosts, "h2", "sleep", "100")
    run(hosts, "h2", "setsid", "--fork", "sleep", "200")
    deadline = time.monotonic() + SECONDS
    while sorted(hosts.processes("h2").values()) != ["sleep 100", "sleep 200"]:
        assert time.monotonic() < deadline, hosts.processes("h2")
        time.sleep(0.01)
    hosts.kill_host("h2", silently=silently)
    assert hosts.processes("h2") == {}
    assert job.wait(SECONDS) == UNREACHABLE
    if silently:
        assert connect(hosts, "h1", "h2") == "TimeoutError"
    else:  # a busy machine may take its time to refuse
        assert connect(hosts, "h1", "h2", SECONDS) == "ConnectionRefusedError"
    assert run(hosts, "h1", "hostname").stdout == "h1\n"


ORPHANS = """
import os, subprocess, sys
from hosts import Hosts
hosts = Hosts(1)
subprocess.run(hosts.command("h1", ["setsid", "--fork", "sleep", "300"]))
processes = [*hosts.processes("h1"), *(first.pid for first in hosts._first.values())]
print(hosts.folder, *(f"/proc/{pid}" for pid in processes), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_host_ends_with_the_process_that_made_it(hosts):
    path = os.pathsep.join(sys.path)
    maker = subprocess.run(
        [sys.executable, "-c", ORPHANS],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=SECONDS,
    )
    left = maker.stdout.decode().split()
    assert len(left) == 3
    deadline = time.monotonic() + SECONDS
    while any(map(os.path.exists, left)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("possible", "survivable")
def test_a_training_goes_on_without_the_workers_of_a_host_that_is_cut_off():
    seen = cut_network.one_run(SHORT)
    assert seen["lost_workers"] == [4, 5]
