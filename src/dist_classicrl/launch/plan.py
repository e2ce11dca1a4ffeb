"""What starting a job takes, as a person says it, and the plan that comes of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.hosts import Host, agent_words, read_hostfile
from dist_classicrl.launch.mpirun import find_launcher
from dist_classicrl.launch.network import network_words
from dist_classicrl.launch.restart import Plan


@dataclass(frozen=True)
class LaunchOptions:
    """How a job is started and watched over.

    Attributes
    ----------
    ranks : int, optional
        By default the slots of the hostfile, or SLURM's tasks.
    hostfile : str, optional
    max_restarts : int
    restart_delay, grace, silence : float
        `Plan.delay`, `Plan.grace` and `Plan.silence`.
    state_dir : Path
    survive : bool
    agent : str, optional
        These four are those of `Plan`.
    network : str, optional
        What `network_words` takes.
    mca : tuple of (str, str)
        Parameters of Open MPI.
    mpirun_options : str
        Further words for mpirun.
    """

    ranks: int | None = None
    hostfile: str | None = None
    max_restarts: int = Plan.max_restarts
    restart_delay: float = Plan.delay
    state_dir: Path = Plan.state_dir
    grace: float = Plan.grace
    silence: float = Plan.silence
    survive: bool = True
    agent: str | None = None
    network: str | None = None
    mca: tuple[tuple[str, str], ...] = ()
    mpirun_options: str = ""

    def hosts(self) -> tuple[Host, ...] | None:
        """Return the hosts of the hostfile; None without one."""
        return None if self.hostfile is None else read_hostfile(self.hostfile)

    def ranks_of_place(self) -> int | None:
        """Return the number of ranks that was asked for, or for which there is a place; None: not known."""
        if self.ranks is not None:
            return self.ranks
        hosts = self.hosts()
        if hosts is not None and all(host.slots is not None for host in hosts):
            return sum(host.slots or 0 for host in hosts)
        tasks = os.environ.get("SLURM_NTASKS", "")
        return int(tasks) if tasks.isdecimal() and int(tasks) > 0 else None


def checked_script(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a script, or of `-m` and a module, and its arguments.

    Raises
    ------
    LauncherError
        If there is no such script.
    """
    if not words or tuple(words) == ("-m",):
        raise LauncherError(
            "The script is missing. Write for instance `python -m dist_classicrl launch -n 4 train.py`."
        )
    if words[0] != "-m" and not os.path.isfile(words[0]):
        raise LauncherError(
            f"There is no script {words[0]!r} in {os.getcwd()}. Options of launch come before the script."
        )
    return tuple(words)


def launch_plan(options: LaunchOptions, words: Sequence[str]) -> Plan:
    """Return the plan for starting `words`, which are a script, or `-m` and a module, and arguments.

    Raises
    ------
    LauncherError
        If the options ask for something that cannot be.
    """
    hosts = options.hosts()
    try:
        further = shlex.split(options.mpirun_options)
    except ValueError as error:
        raise LauncherError(
            f"--mpirun-options={options.mpirun_options!r} cannot be split ({error})."
        ) from error
    agent_words(options.agent)
    ranks = options.ranks_of_place()
    if ranks is None:
        raise LauncherError("How many ranks? Write for instance -n 4: a server and three workers.")
    launcher = find_launcher()
    parameters = [word for pair in options.mca for word in ("--mca", *pair)]
    return Plan(
        launcher=launcher,
        ranks=ranks,
        words=tuple(words),
        hosts=hosts,
        agent=options.agent,
        network=tuple(network_words(launcher, options.network)),
        options=(*parameters, *further),
        survive=options.survive,
        state_dir=options.state_dir,
        max_restarts=options.max_restarts,
        delay=options.restart_delay,
        grace=options.grace,
        silence=options.silence,
    )


def shown(plan: Plan, options: LaunchOptions) -> str:
    """Return the command that starts the job of a plan, as it is typed into a shell."""
    hostfile = None if options.hostfile is None else Path(options.hostfile)
    return shlex.join(plan.command(plan.ranks, hostfile))
