"""What of a job listens, which files it makes, and what another user of the host can do with both."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from background_job import ROOT, BackgroundJob, check_with_numpy_alone
from hosts import Hosts
from security_stranger import MADE

from dist_classicrl.launch.launcher import launch_environment
from dist_classicrl.launch.mpirun import mpirun_command
from dist_classicrl.process.jobs import run_job

STRANGER = Path(__file__).with_name("security_stranger.py")
RANKS = 3
SECONDS = 240.0
DISTURBED_SECONDS = 4.0
STARTS = 5
# More than any machine makes in the time of a test: each job is asked to stop.
STEPS = 10**13
LOOPBACK, ALL, ALL_6 = "127.0.0.1", "0.0.0.0", "[::]"
PRTE_PORTS, RANK_PORTS = range(47_000, 47_010), range(47_100, 47_200)
# What is given to mpirun so that a firewall can know the ports.
KNOWN_PORTS = [
    *("--mca", "btl_tcp_port_min_v4", "47100", "--mca", "btl_tcp_port_range_v4", "100"),
    *("--mca", "btl_tcp_port_min_v6", "47100", "--mca", "btl_tcp_port_range_v6", "100"),
    "--mpirun-options=--prtemca oob_tcp_static_ipv4_ports 47000-47009 "
    "--prtemca oob_tcp_static_ipv6_ports 47000-47009",
]
# Nobody outside hears of a job in a network of its own.
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "-")

ALONE_AND_SHOWN = """
import subprocess
from dist_classicrl import DistAsyncQLearning
DistAsyncQLearning(seed=1).train("FrozenLake-v1", total_steps=1000)
print("what listens:", flush=True)
subprocess.run(["sh", "-c", "ss -Hltunp | grep -v :22"])
"""
# mpi4py's own pickle raises, which a message of any object would meet.
NO_PICKLE = """
from mpi4py import MPI

def refuse(*_, **__):
    raise SystemExit("a pickle was made or read")

MPI.pickle.__init__(refuse, refuse)
from dist_classicrl import DistAsyncQLearning

try:
    MPI.COMM_SELF.bcast("any object")
except SystemExit:
    print("pickle is refused", flush=True)
for options in ({}, {"async_updates": False}):
    agent = DistAsyncQLearning(seed=1, **options)
    result = agent.train("FrozenLake-v1", total_steps=20_000, checkpoint_dir="saved")
    agent.evaluate("FrozenLake-v1", episodes=10)
    print(f"made {result.steps} steps", flush=True)
"""
# What is between the fences in docs/security.md.
FIREWALL = re.search(
    r"```text\n(table.*?)```", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"), re.DOTALL
)[1]
# Shows all of the network's packets that have text of this library in them.
LISTEN = """
import socket
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.bind(("eth0", 0))
print("hears", flush=True)
while True:
    _, word, rest = packets.recv(65536).partition(b'"asked"')
    if word:
        print(word + rest[:200], flush=True)
"""
# A rank that shows what listens once all ranks have met.
SHOW = """
import subprocess
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    subprocess.run(["sh", "-c", "ss -Hltnp | grep -v :22"])
MPI.COMM_WORLD.Barrier()
"""

pytestmark = pytest.mark.usefixtures("possible", "survivable")


class Job(BackgroundJob):
    """`train` on host h1, whose temporary folder and shared memory are open to all users, as always."""

    def __init__(self, hosts, *words, before=(), start=("train",)):
        self.hosts, self.folder = hosts, hosts.folder / f"job-{time.monotonic_ns()}"
        hosts.folder.chmod(0o755)
        self.folder.mkdir()
        self.temporary, self.run = self.folder / "tmp", self.folder / "run"
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        train = [*start, "FrozenLake-v1", "--total-steps", STEPS, "--out", self.run, "--quiet"]
        train += ["--checkpoint-interval", "1s", *words]
        command = [*before, sys.executable, "-m", "dist_classicrl", *map(str, train)]
        super().__init__(
            hosts.command("h1", ["env", f"TMPDIR={self.temporary}", *command])[1:], cwd=self.folder
        )

    def steps(self):
        """Return the steps of the last line of metrics; 0 where there is none."""
        try:
            *lines, _ = (self.run / "metrics.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return 0
        return json.loads(lines[-1])["step"] if lines else 0

    def wait_for_progress(self):
        """Wait until steps are made that had not been made before."""
        before = self.steps()
        self.must_wait_for(lambda: self.steps() > before, "progress", SECONDS)

    def wait_for_checkpoint(self):
        """Wait until there is one."""
        self.must_wait_for(self.checkpoints, "a checkpoint", SECONDS)

    def checkpoints(self):
        """Return the complete checkpoints, oldest first."""
        return sorted(path.parent for path in self.run.glob("checkpoints/agent-0/f*/manifest.json"))

    def stop(self):
        """Ask the job to stop; return the steps that it says, after its checkpoint was found to have them."""
        self.process.terminate()
        output = self.wait(status=75, timeout=SECONDS)
        (steps,) = re.findall(r"after ([\d,]+) of ", output)
        newest = self.checkpoints()[-1]
        steps = int(steps.replace(",", ""))
        assert check_with_numpy_alone(newest)["steps"] == steps
        assert np.load(newest / "visits.npy", allow_pickle=False).sum() == steps
        return steps

    def stranger(self, *words, host="h1"):
        """Let the other user of a host do something, and return what came of it."""
        command = self.hosts.command(host, [sys.executable, str(STRANGER), *map(str, words)])
        done = run_job(command, timeout=SECONDS)
        assert done.returncode == 0, done.output
        return json.loads(done.output.splitlines()[-1])


def listening(hosts, host="h1"):
    """Give what listens on a host, as (program, address, port); the program of a rank is python."""
    done = run_job(hosts.command(host, ["ss", "-Hltunp"]), timeout=SECONDS)
    found = []
    for line in done.output.splitlines():
        _, _, _, _, local, _, *program = line.split(maxsplit=6)
        address, _, port = local.rpartition(":")
        if int(port) != 22 and program:  # else who listened has just ended
            name = re.search(r'"([a-z]+)', program[0])[1]
            found.append((name, {"*": ALL_6}.get(address, address), int(port)))
    return found


def unix_sockets(hosts):
    """Give the named sockets on host h1 that are not the bed's own."""
    done = run_job(hosts.command("h1", ["ss", "-Hlxp"]), timeout=SECONDS)
    return [line for line in done.output.splitlines() if str(hosts.folder) not in line]


@pytest.fixture(scope="module")
def one_host():
    with Hosts(1) as hosts:
        yield hosts


@pytest.fixture(scope="class")
def job(one_host):
    """A job of three ranks on one host that has written a checkpoint; it is stopped at the end."""
    with Job(one_host, "--ranks", RANKS) as job:
        job.wait_for_checkpoint()
        yield job
        assert job.stop() > 0


def permissions(folder):
    """Give the permissions of all that is in a folder of this machine, in which files come and go."""
    found = {}
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):
                found[path] = stat.S_IMODE(path.lstat().st_mode)
    return found


def umask():
    """Give the permissions that nothing new has."""
    current = os.umask(0)
    os.umask(current)
    return current


class TestOneJobOnOneHost:
    """The job of the fixture; that its steps are exact is asserted when it is stopped."""

    def test_what_listens_on_one_host(self, job):
        daemon = [("prterun", LOOPBACK), ("prterun", ALL), ("prterun", ALL_6)]
        ranks = [("python", ALL), ("python", ALL_6)] * RANKS
        found = listening(job.hosts)
        assert Counter((program, address) for program, address, _ in found) == Counter(daemon + ranks)
        assert {port for program, _, port in found if program == "python"} == {1024, 1025, 1026}
        assert unix_sockets(job.hosts) == []

    def test_who_may_open_which_files(self, job):
        session = permissions(job.temporary)
        launch = permissions(job.folder / ".dist_classicrl")
        assert len([path for path in session if path.name.startswith("pmix")]) >= 4
        assert len([path for path in launch if path.name == "alive"]) == 1
        (own,) = job.temporary.iterdir()
        (attempt,) = (job.folder / ".dist_classicrl").iterdir()
        assert session[own] == launch[attempt] == 0o700
        of_mpirun = {path: mode for path, mode in session.items() if path.name != "launcher.json"}
        assert {mode & 0o077 for mode in of_mpirun.values()} == {0}
        saved = permissions(job.run / "checkpoints")
        assert set(saved.values()) == {0o600, 0o700}
        rest = {path.name: mode for path, mode in permissions(job.run).items() if path.parent == job.run}
        assert rest["config.toml"] == rest["metrics.jsonl"] == 0o666 & ~umask()

    def test_a_stranger_reads_and_changes_nothing_that_is_not_meant_for_him(self, job):
        attempts = job.stranger("files", "/dev/shm", job.temporary, job.folder)
        shared = [path for path in attempts["seen"] if "/dev/shm/sm_segment" in path]
        assert len(shared) == RANKS
        assert set(attempts["made"]) == {"/dev/shm", str(job.temporary)}  # where everybody may
        read, changed = (
            {path for path in attempts[what] if not path.endswith(MADE)} for what in ("read", "changed")
        )
        assert changed == set()
        # The umask has its say in the folder of the run, but not over checkpoints.
        assert {Path(path).parent for path in read} <= {job.run, job.run / "logs"}
        assert (str(job.run / "metrics.jsonl") in read) == (umask() & 0o004 == 0)

    def test_a_stranger_sees_command_lines_and_no_more(self, job):
        seen = job.stranger("processes")
        assert sum("dist_classicrl.launch.program" in line for line in seen["commands"]) >= RANKS
        assert seen["environments"] == seen["memories"] == []

    def test_nonsense_on_every_port_costs_time_and_nothing_else(self, job):
        done = job.stranger("connect", DISTURBED_SECONDS)
        open_to_him = {port for _, _, port in listening(job.hosts)}
        assert set(done["ports"]) == open_to_him and done["sent"] >= len(open_to_him)
        job.wait_for_progress()
        noticed = partial(re.search, "invalid header|PMIX ERROR")
        job.must_wait_for(lambda: noticed(job.output), "somebody to notice the nonsense", SECONDS)


def test_nonsense_while_a_job_starts_only_delays_it(one_host):
    for _ in range(STARTS):
        with Job(one_host, "--ranks", 2) as starting:
            starting.must_wait_for(lambda: listening(one_host), "a port", SECONDS)
            done = starting.stranger("connect", 0.0)
            is_early = starting.steps() == 0
            if is_early:
                more = starting.stranger("connect", DISTURBED_SECONDS)
                assert done["sent"] + more["sent"] > 0
            starting.wait_for_progress()
            assert starting.stop() > 0
        if is_early:
            return
    pytest.fail(f"none of {STARTS} jobs was met while it started")


def test_a_job_in_a_network_of_its_own_is_out_of_reach(one_host):
    with Job(one_host, "--ranks", RANKS, "--mca", "btl_tcp_if_include", "lo", before=ALONE) as alone:
        alone.wait_for_progress()
        assert listening(one_host) == []
        assert alone.stranger("connect", 0.5) == {"ports": [], "sent": 0}
        assert alone.stop() > 0


def test_a_training_alone_listens_nowhere_and_leaves_nothing(one_host):
    temporary = one_host.folder / "alone"
    temporary.mkdir()
    words = ["env", f"TMPDIR={temporary}", sys.executable, "-c", ALONE_AND_SHOWN]
    done = run_job(one_host.command("h1", words), timeout=SECONDS, cwd=temporary)
    assert done.returncode == 0 and done.output.splitlines() == ["what listens:"], done.output
    assert list(temporary.iterdir()) == []


def test_without_tcp_ranks_do_not_listen(one_host):
    for words, listen in (([], True), (["--mca", "btl", "sm,self"], False)):
        command = [*mpirun_command(2), *words, sys.executable, "-c", SHOW]
        done = run_job(one_host.command("h1", command), timeout=SECONDS)
        assert done.returncode == 0 and '"prterun"' in done.output, done.output
        assert ('"python' in done.output) == listen, done.output


@pytest.fixture(scope="class")
def spread():
    """A job on two hosts that uses known ports, and what h1 has heard of it; it is stopped at the end."""
    with Hosts(2) as hosts:
        words = ["--agent", hosts.agent, "--hostfile", hosts.hostfile(2), *KNOWN_PORTS]
        heard = BackgroundJob(hosts.command("h1", [sys.executable, "-c", LISTEN])[1:])
        with heard:
            heard.must_wait_for(lambda: "hears" in heard.output, "it to hear", SECONDS)
            with Job(hosts, *words) as job:
                job.wait_for_progress()
                yield job, heard
                assert job.stop() > 0


class TestOneJobOnTwoHosts:
    """The job of the fixture; that its steps are exact is asserted when it is stopped."""

    def test_what_listens_has_the_ports_that_were_asked_for(self, spread):
        job, _ = spread
        for host, daemon in (("h1", "prterun"), ("h2", "prted")):
            found = listening(job.hosts, host)
            open_to_all = {(program, port) for program, address, port in found if address != LOOPBACK}
            ranks = {port for program, port in open_to_all if program == "python"}
            daemons = {port for program, port in open_to_all if program == daemon}
            assert {program for program, _ in open_to_all} == {"python", daemon}, found
            assert len(ranks) == 2 and ranks <= set(RANK_PORTS), found
            assert daemons and daemons <= set(PRTE_PORTS), found

    def test_what_daemons_of_other_hosts_keep(self, spread):
        job, _ = spread
        (session,) = (job.hosts.folder / "h2.tmp").iterdir()
        assert session.name.startswith("prted.")
        kept = {path: mode for path, mode in permissions(session).items() if path.is_file()}
        open_to_all = {path for path, mode in kept.items() if mode & 0o077}
        # They say at which port of the loopback interface the daemon listens, as everybody can see.
        assert open_to_all < set(kept) and {path.name[:12] for path in open_to_all} <= {"pmix.h2.tool"}
        assert all(mode & 0o022 == 0 for mode in kept.values())

    def test_who_hears_the_network_can_read_along(self, spread):
        _, heard = spread
        heard.must_wait_for(lambda: '"asked"' in heard.output, "words of this library")

    def test_a_firewall_keeps_other_users_and_hosts_out(self, spread):
        if shutil.which("nft") is None:
            pytest.skip("there is no nft (Debian's package nftables)")
        job, _ = spread
        assert set(job.stranger("connect", 1.0)["ports"]) > set(known(job))
        rules = FIREWALL.replace("USER", str(os.getuid())).replace("HOSTS", "10.77.0.1, 10.77.0.2")
        for host in job.hosts.names:
            done = run_job(
                job.hosts.command(host, ["sh", "-c", f"echo '{rules}' | nft -f -"]), timeout=SECONDS
            )
            assert done.returncode == 0, done.output
        assert known(job)
        assert set(job.stranger("connect", 1.0)["ports"]).isdisjoint(known(job))
        job.wait_for_progress()


def known(job):
    """Give the ports on h1 that are open to more than the host itself."""
    return sorted({port for _, address, port in listening(job.hosts) if address != LOOPBACK})


@pytest.mark.usefixtures("files_of_mpirun")
def test_ranks_that_may_not_use_pickle_train_all_the_same(tmp_path):
    (tmp_path / "train.py").write_text(NO_PICKLE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [*mpirun_command(RANKS), sys.executable, "train.py"]
    done = run_job(command, timeout=SECONDS, env=launch_environment(env), cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert done.output.count("pickle is refused") == RANKS
    assert done.output.count("made 20000 steps") == 2 * RANKS


def test_mpirun_by_hand_takes_a_folder_that_a_stranger_made(one_host, tmp_path):
    temporary = one_host.folder / "by hand"
    temporary.mkdir()
    one_host.folder.chmod(0o755)
    temporary.chmod(0o1777)
    # One of the next processes is mpirun, which names its folder after its process id.
    number = 20_000
    for next_number in range(number + 1, number + 100):
        folder = temporary / f"ompi.{next_number}"
        folder.mkdir()
        os.chown(folder, 12_345, 12_345)
    look = f"import os; print({{os.stat(each).st_uid for each in os.scandir({str(temporary)!r})}})"
    words = ["env", f"TMPDIR={temporary}", *mpirun_command(1), sys.executable, "-c", look]
    command = f'echo {number} > /proc/sys/kernel/ns_last_pid; "$@" & wait'
    done = run_job(one_host.command("h1", ["sh", "-c", command, "-", *words]), timeout=SECONDS)
    assert done.output.strip() == "{12345}", done.output
