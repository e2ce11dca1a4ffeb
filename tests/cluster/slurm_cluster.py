"""A real SLURM on emulated hosts: two nodes, h1 and h2, and h3 with the controller, where users log in.

Nothing of the machine's own SLURM or MUNGE is touched, and several of these can run at once. All of it ends
when this object is closed or this process dies.

    with SlurmCluster() as cluster:
        job = cluster.submit("#!/bin/bash\\nsrun hostname\\n", "--nodes=2")
        cluster.wait(job, "COMPLETED")
        print(cluster.output(job))
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import hosts as emulated
from hosts import Hosts

from dist_classicrl.launch.launcher import launch_environment

NODES = ("h1", "h2")
LOGIN = "h3"
POLL_SECONDS = 0.3
STARTING_SECONDS = 180.0
COMMAND_SECONDS = 120.0
# On a busy machine the controller may not answer at once.
ANSWERING_SECONDS = 180.0
LONGEST_MESSAGE_SECONDS = 20
ENDING_SECONDS = 120.0
JOB_SECONDS = 600.0
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey")
# These are there without a job, too.
DAEMONS = ("slurmd", "munged", "slurmctld")

Condition = Callable[[dict[str, str]], object]

# cred_expire: the least that SLURM takes; a job that is queued again waits about twice as long.
_CONFIGURATION = """\
ClusterName=emulated
SlurmctldHost=h3
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=2,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout}
MessageTimeout={message_timeout}
MinJobAge=1200
TCPTimeout=2
ReturnToService=2
KillWait=3
SwitchType=switch/none
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} CPUs=16 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes={nodes} Default=YES DefMemPerCPU=100 PriorityTier=1 GraceTime={grace}
PartitionName=high Nodes={nodes} DefMemPerCPU=100 PriorityTier=10
"""


def why_not() -> str | None:
    """Say why there can be no SLURM here; None if there can."""
    missing = [program for program in PROGRAMS if _program(program) is None]
    if missing:
        return f"there is no program {', '.join(missing)}"
    # By this name SLURM's plugin for --mpi=pmix loads it.
    load = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libpmix.so')"]
    if subprocess.run(load, capture_output=True, timeout=COMMAND_SECONDS).returncode != 0:
        return "there is no libpmix.so (Debian: libpmix-dev), without which srun --mpi=pmix starts nothing"
    return emulated.why_not()


class SlurmCluster:
    """Two nodes of SLURM with 16 CPUs each, partitions `all`, and `high` whose jobs pre-empt those of `all`.

    Parameters
    ----------
    sends_warning : bool
        Whether pre-emption sends jobs the signal of `--signal` (`preempt_send_user_signal`).
    grace : int
        Seconds that a pre-empted job has until it is killed.
    node_timeout : int
        Seconds of silence after which a node counts as dead.
    """

    def __init__(self, *, sends_warning: bool = True, grace: int = 15, node_timeout: int = 600) -> None:
        self.hosts = Hosts(len(NODES) + 1)
        self.folder = self.hosts.folder / "slurm"
        self.jobs = self.folder / "jobs"
        environment = launch_environment()
        self._environment = {
            **{
                name: value for name, value in environment.items() if not name.startswith(("SLURM", "SBATCH"))
            },
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            # Daemons lie there, also for users who have no such folder on their PATH.
            "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]),
        }
        try:
            self._configure(sends_warning, grace, node_timeout)
            self._start()
        except BaseException:
            self.close()
            raise

    def _configure(self, sends_warning: bool, grace: int, node_timeout: int) -> None:
        of_nodes = [self.folder / f"{kind}.{node}" for node in NODES for kind in ("spool", "tmp")]
        for folder in (self.folder, self.jobs, *of_nodes):
            folder.mkdir()
        text = _CONFIGURATION.format(
            folder=self.folder,
            nodes=",".join(NODES),
            grace=grace,
            node_timeout=node_timeout,
            message_timeout=min(node_timeout, LONGEST_MESSAGE_SECONDS),
        )
        if sends_warning:
            text += "SlurmctldParameters=preempt_send_user_signal\n"
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start(self) -> None:
        key = f"{self.folder}/munge.key"
        self.run("mungekey", "--create", f"--keyfile={key}")
        for host in self.hosts.names:
            files = [f"--{kind}-file={self.folder}/munge.{host}.{kind}" for kind in ("pid", "log", "seed")]
            self.run("sh", "-c", "mount -t tmpfs run /run && install -d -m 755 /run/munge", host=host)
            self.run("munged", "--force", f"--key-file={key}", *files, host=host)
        self.run("slurmctld")
        for node in NODES:
            self.run("slurmd", "-N", node, host=node)
        deadline = time.monotonic() + STARTING_SECONDS
        while self.ask("sinfo", "-h", "-N", "-p", "all", "-t", "idle", "-o", "%N").split() != [*NODES]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"SLURM did not start:\n{self._logs()}")
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all jobs and daemons, and remove all files."""
        self.hosts.close()

    def run(self, *words: str, host: str = LOGIN) -> str:
        """Run a command on the login node, or on another one, which has to succeed; return what it writes."""
        done = subprocess.run(
            self.hosts.command(host, words),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def ask(self, *words: str) -> str:
        """Run a command that changes nothing, again while it fails for want of time; return its output."""
        deadline = time.monotonic() + ANSWERING_SECONDS
        while True:
            try:
                return self.run(*words)
            except (RuntimeError, subprocess.TimeoutExpired):
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def submit(self, script: str, *options: str) -> str:
        """Submit a script with further options of sbatch, and return the job's number.

        It runs in a new folder, and so does each job of an array.
        """
        folder = self.jobs / str(time.monotonic_ns())
        folder.mkdir()
        path = folder / "job.sh"
        path.write_text(script)
        place = (f"--chdir={folder}", f"--output={folder}/%j.out")
        return self.run("sbatch", "--parsable", *place, *options, str(path)).strip()

    def about(self, job: str) -> dict[str, str]:
        """Return what SLURM knows of a job, by its names, such as JobState."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.ask("scontrol", "--oneliner", "show", "job", job)))

    def wait(self, job: str, states: str | Collection[str], timeout: float = JOB_SECONDS) -> dict[str, str]:
        """Wait until a job has one of these states, and return what SLURM knows of it then."""
        wanted = {states} if isinstance(states, str) else set(states)
        return self.wait_for(job, lambda about: about["JobState"] in wanted, f"it to be {wanted}", timeout)

    def wait_for(
        self, job: str, condition: Condition, what: str, timeout: float = JOB_SECONDS
    ) -> dict[str, str]:
        """Wait until `condition(about)` holds for what SLURM knows of a job, which must not end before."""
        deadline = time.monotonic() + timeout
        while not condition(about := self.about(job)):
            late = time.monotonic() > deadline
            if late or about["JobState"] in ENDED:
                how = f"after {timeout:g} s" if late else "as it ended"
                seen = f"{about}\n{self.output(job)}\n{self._logs()}"
                raise AssertionError(f"waited for {what}, {how}: {seen}")
            time.sleep(POLL_SECONDS)
        return about

    def place(self, job: str) -> Path:
        """Return the folder in which a job runs."""
        return Path(self.about(job)["WorkDir"])

    def output(self, job: str) -> str:
        """Return all that a job has written so far."""
        path = Path(self.about(job)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self, node: str, job: str | None = None) -> list[str]:
        """Return the command lines of what runs on a node besides SLURM's daemons, all or those of a job."""
        return [
            line
            for pid, line in self.hosts.processes(node).items()
            if Path(line.split()[0]).name not in DAEMONS and (job is None or _is_of(job, pid, line))
        ]

    def pids(self, node: str, job: str, word: str) -> list[int]:
        """Return the processes of a job's tasks on a node whose command lines have this word."""
        running = self.hosts.processes(node).items()
        return [
            pid
            for pid, line in running
            if word in line.split() and "srun" not in line and _is_of(job, pid, line)
        ]

    def wait_until_idle(self, nodes: Collection[str] = NODES, job: str | None = None) -> None:
        """Wait until nothing of any job, or of this one, is left on these nodes."""
        deadline = time.monotonic() + ENDING_SECONDS
        while left := {node: lines for node in nodes if (lines := self.processes(node, job))}:
            if time.monotonic() > deadline:
                raise AssertionError(f"left after {ENDING_SECONDS:g} s: {left}")
            time.sleep(POLL_SECONDS)

    def _logs(self) -> str:
        return "\n".join(
            f"{path.name}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted(self.folder.glob("*.log"))
        )


def _is_of(job: str, pid: int, line: str) -> bool:
    """Tell whether a process is of a job: it has inherited its number, or is SLURM's own for it."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"SLURM_JOB_ID={job}".encode() in variables or line.startswith(f"slurmstepd: [{job}.")


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
