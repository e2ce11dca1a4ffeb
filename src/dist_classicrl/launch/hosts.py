"""The hosts that a job runs on: what a hostfile says, which of them answer, and a file for each launcher."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dist_classicrl._files import read_regular
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.remote_commands import RemoteCommands
from dist_classicrl.process.jobs import run_job

_SLURM_SECONDS = 10.0
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet", "--nodelist")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HOSTS_OF_JOB = (  # what SLURM, PBS, LSF and SGE set in a job, where mpirun finds its hosts
    *("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE"),
    *("LSB_HOSTS", "LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE"),
    "PE_HOSTFILE",
)


@dataclass(frozen=True)
class Host:
    """A line of a hostfile."""

    name: str
    slots: int | None  # how many ranks it takes; None where the file does not say
    max_slots: int | None = None  # how many at most, where there are more ranks than slots; likewise


def read_hostfile(path: str | Path) -> tuple[Host, ...]:
    """Read a hostfile: a host in each line, as `node1 slots=4` (Open MPI) or `node1:4` (MPICH).

    Where a host without slots is there several times, as in the files of PBS, each line without slots is one.
    LauncherError if the file cannot be used.
    """
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LauncherError(
            f"The hostfile {str(path)!r} cannot be read ({error}). Write one with a line such as "
            "`node1 slots=4` for each host."
        ) from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            hosts.append(_host(text, f"line {number} of the hostfile {str(path)!r}"))
    if not hosts:
        raise LauncherError(
            f"The hostfile {str(path)!r} names no host. Write a line such as `node1 slots=4` for each."
        )
    return _each_once(hosts, str(path))


def _each_once(hosts: Sequence[Host], path: str) -> tuple[Host, ...]:
    lines = Counter(host.name for host in hosts)
    if max(lines.values()) == 1:
        return tuple(hosts)
    for host in hosts:
        if lines[host.name] > 1 and (host.slots, host.max_slots) != (None, None):
            total = sum(each.slots or 1 for each in hosts if each.name == host.name)
            raise LauncherError(
                f"The hostfile {path!r} names {host.name!r} {lines[host.name]} times. Write one line for it, "
                f"such as `{host.name} slots={total}`."
            )
    once = {host.name: host for host in hosts}
    return tuple(replace(host, slots=host.slots or lines[name]) for name, host in once.items())


def _host(text: str, where: str) -> Host:
    found = re.fullmatch(r"(\w[\w.-]*)(?::(\d+))?((?:\s+\w+\s*=\s*\S+)*)", text)
    said = [] if found is None else re.findall(r"(\w+)\s*=\s*(\S+)", found[3])
    settings = dict(said)
    slots = None if found is None else found[2] or settings.get("slots")
    most = settings.get("max_slots")
    are_numbers = all(number is None or re.fullmatch(r"\d{1,9}", number) for number in (slots, most))
    if found is None or not settings.keys() <= {"slots", "max_slots"} or not are_numbers:
        raise LauncherError(
            f"{where[0].upper()}{where[1:]} is {text!r}. Write `node1 slots=4`, `node1:4`, or `node1` alone."
        )
    if slots is not None and int(slots) == 0:
        raise LauncherError(f"{where[0].upper()}{where[1:]} gives {found[1]!r} no slots. Leave the host out.")
    is_twice = len(settings) < len(said) or (found[2] is not None and "slots" in settings)
    if is_twice or (most is not None and int(most) < int(slots or 1)):
        raise LauncherError(
            f"{where[0].upper()}{where[1:]} is {text!r}, which contradicts itself. Say slots once, as "
            "`node1 slots=4`, and with max_slots, which is no less, as `node1 slots=4 max_slots=8`."
        )
    return Host(found[1], *(None if number is None else int(number) for number in (slots, most)))


def write_hostfile(path: Path, hosts: Sequence[Host], family: str) -> None:
    """Write a hostfile, of what `hostfile_text` returns."""
    path.write_text(hostfile_text(hosts, family), encoding="utf-8")


def hostfile_text(hosts: Sequence[Host], family: str) -> str:
    """Return a hostfile for the launchers of a `family`, as in `Launcher.family`.

    LauncherError if it has no word for something that is to be in it.
    """
    capped = [host for host in hosts if host.max_slots is not None]
    if capped and family == "hydra":
        raise LauncherError(
            f"The hostfile gives {capped[0].name!r} max_slots={capped[0].max_slots}, which MPICH and its kin "
            "do not know. Write slots alone."
        )
    separator = ":" if family == "hydra" else " slots="
    lines = [
        host.name
        + ("" if host.slots is None else f"{separator}{host.slots}")
        + ("" if host.max_slots is None else f" max_slots={host.max_slots}")
        for host in hosts
    ]
    return "\n".join(lines) + "\n"


def ranks_on(hosts: Sequence[Host], all_hosts: Sequence[Host], n_ranks: int) -> int:
    """Return how many of `n_ranks` ranks to start on those `hosts` that are left of `all_hosts`: at least 1.

    As many as there are slots; where the hostfile does not tell all of them, the hosts' share.
    """
    if len(hosts) == len(all_hosts):
        return n_ranks
    slots = [host.slots for host in all_hosts]
    if None in slots:
        return max(1, n_ranks * len(hosts) // len(all_hosts))
    return max(1, min(n_ranks, sum(host.slots or 0 for host in hosts)))


def hosts_that_answer(
    hosts: Sequence[Host], agent: str | None, seconds: float, is_over: Callable[[], bool]
) -> list[Host]:
    """Return the hosts on which `true` can be run within `seconds`; this one always can.

    They are reached as by mpirun, in a job of SLURM by srun; `agent` is as for `agent_words`. A job of
    another batch system may not let ssh in: where no host but this one answers there, all are returned.
    `is_over` is called again and again; once it returns True, only the answers so far count.
    """
    others = [host.name for host in hosts if not is_here(host.name)]
    by_srun = "SLURM_JOB_ID" in os.environ and shutil.which(_SRUN[0]) is not None
    with RemoteCommands({name: command_on(name, "true", agent, by_srun) for name in others}) as asked:
        asked.wait(seconds, is_over=is_over)
        answered = {name for name in others if asked.status(name) == 0}
    if not answered and has_hosts_of_job():
        return list(hosts)
    return [host for host in hosts if host.name not in others or host.name in answered]


def agent_words(agent: str | None) -> list[str]:
    """Return the command that starts something on another host: `agent`, or ssh that asks no questions."""
    try:
        return shlex.split(agent) if agent else ["ssh", "-o", "BatchMode=yes"]
    except ValueError as error:
        raise LauncherError(
            f"--agent {agent!r} cannot be split into words ({error}). Write for instance "
            "--agent 'ssh -p 2222'."
        ) from error


def slurm_hosts() -> tuple[Host, ...]:
    """Return the nodes of the SLURM job that this process is in; none where there is no such job."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes or shutil.which("scontrol") is None:
        return ()
    job = run_job(["scontrol", "show", "hostnames", nodes], timeout=_SLURM_SECONDS, keep_errors=False)
    return () if job.returncode else tuple(Host(name, None) for name in job.output.split())


def slurm_tasks() -> int | None:
    """Return the number of tasks of the SLURM job that this process is in; None where it has none."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    return int(tasks) if tasks.isdecimal() and int(tasks) > 0 else None


def has_hosts_of_job() -> bool:
    """Return whether this process is in a job to which SLURM, PBS, LSF or SGE has given hosts."""
    return slurm_tasks() is not None or any(os.environ.get(name) for name in _HOSTS_OF_JOB)


def ranks_for(cores: int) -> int:
    """Return for how many ranks a host has cores: a worker for each, and a server, which mostly sleeps."""
    return cores + 1


def command_on(name: str, text: str, agent: str | None, within_slurm: bool) -> list[str]:
    """Return the command that runs a line of shell on a host; on this one no other program is needed.

    `agent` is as for `agent_words`. `within_slurm` srun takes the place of ssh, where no agent is given.
    """
    if is_here(name):
        return ["/bin/sh", "-c", text]
    if within_slurm and agent is None:
        return [*_SRUN, name, "/bin/sh", "-c", text]
    return [*agent_words(agent), name, text]


def is_here(name: str) -> bool:
    """Return whether a name or an address is this machine's."""
    own = socket.gethostname()
    if name in (*_LOCAL, own, own.partition(".")[0]):
        return True
    if not re.fullmatch(r"\d+(\.\d+){3}", name):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((name, 0))  # fails for the address of another host
        except OSError:
            return False
    return True
