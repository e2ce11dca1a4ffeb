"""The options of starting a job, as users give them, and the plan that is made of them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_classicrl._files import read_regular
from dist_classicrl._hints import usable_cores
from dist_classicrl.errors import LauncherError
from dist_classicrl.launch import program
from dist_classicrl.launch.folders import STATE_FOLDER
from dist_classicrl.launch.hosts import (
    Host,
    agent_words,
    has_hosts_of_job,
    hostfile_text,
    ranks_for,
    read_hostfile,
    slurm_tasks,
)
from dist_classicrl.launch.launcher import Launcher, find_launcher
from dist_classicrl.launch.mpirun import start_command
from dist_classicrl.launch.network import network_words
from dist_classicrl.process.exit_record import LAUNCH_VARIABLE


@dataclass(frozen=True)
class LaunchOptions:
    """How a job is started and watched over; times are in seconds.

    `grace` is what the job has to end when its work is done or one of its ranks has failed. After `silence`
    without a sign of life of any rank it counts as dead; while ranks start MPI, and none has come through, it
    does after `start_limit`. `silence` is also what the job has to end after it was asked to stop.
    """

    ranks: int | None = None  # by default the slots of the hostfile, or SLURM's tasks
    hostfile: str | None = None
    max_restarts: int = 3
    restart_delay: float = 1.0  # before the first restart; doubled each time
    state_dir: Path = Path(STATE_FOLDER)  # a folder that all hosts see
    grace: float = 30.0
    silence: float = 300.0
    start_limit: float = 180.0
    survive: bool = True  # so that the other ranks survive a death, where the MPI can
    agent: str | None = None  # what starts a program on another host in place of ssh
    network: str | None = None  # as `network_words` takes it
    mca: tuple[tuple[str, str], ...] = ()  # parameters of Open MPI
    mpirun_options: str = ""  # further words for mpirun

    @property
    def is_for_mpirun(self) -> bool:
        """Whether they say what mpirun alone can do, also for one rank."""
        return any((self.hostfile, self.agent, self.network, self.mca, self.mpirun_options))

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
        return slurm_tasks()


@dataclass(frozen=True)
class LaunchPlan:
    """What to start, and how to watch over it."""

    launcher: Launcher
    ranks: int
    words: tuple[str, ...]  # the script, or `-m` and a module, and its arguments
    hosts: tuple[Host, ...] | None = None  # what the hostfile says
    network: tuple[str, ...] = ()  # words for mpirun that keep the job to the network that the last one names
    mpirun_words: tuple[str, ...] = ()  # further ones that were given
    options: LaunchOptions = LaunchOptions()

    def command(self, ranks: int, hostfile: str | Path | None) -> list[str]:
        """Return the command that starts `ranks` ranks."""
        return start_command(
            self.launcher,
            ranks,
            program.command(self.words),
            hostfile=hostfile,
            agent=self.options.agent,
            network=self.network,
            options=self.mpirun_words,
            survive=self.options.survive,
            exported=[LAUNCH_VARIABLE],
        )

    def shortage(self) -> str | None:
        """Return what is said of a training of more ranks than this host has cores for; None if they fit.

        Nothing is said where other hosts may be meant: those of a hostfile, of mpirun's words, or of a job of
        a batch system.
        """
        named = ("host", "rankfile")  # and -H, Open MPI's word for them
        is_elsewhere = self.hosts is not None or any(
            word.startswith("-H") or any(name in word for name in named) for word in self.mpirun_words
        )
        cores = usable_cores()
        fit = ranks_for(cores)
        if is_elsewhere or has_hosts_of_job() or self.ranks <= fit:
            return None
        are = "a core" if cores == 1 else f"{cores} cores"
        return (
            f"{self.ranks} ranks share {are}: they are not faster than {fit}, and take more memory and "
            f"time to start. Write --ranks {fit}, unless environments wait for "
            "something else than a core."
        )

    def shown(self) -> str:
        """Return the command that starts the job, as it is typed into a shell."""
        return shlex.join(self.command(self.ranks, self.options.hostfile))

    def written_hostfile(self) -> str | None:
        """Return what mpirun gets in place of the hostfile that was given, where that has another text."""
        if self.hosts is None or self.options.hostfile is None:
            return None
        text = hostfile_text(self.hosts, self.launcher.family)
        return None if text.encode() == read_regular(self.options.hostfile) else text


_PYTHON = re.compile(r"python[\d.]*")
_RANKS = re.compile(r"-np?\d*|--ranks(=.*)?")


def checked_script(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a script, or of `-m` and a module, and its arguments; LauncherError without one."""
    if not words or tuple(words) == ("-m",):
        raise LauncherError(
            "The script is missing. Write for instance `python -m dist_classicrl launch -n 4 train.py`."
        )
    if _PYTHON.fullmatch(os.path.basename(words[0])):
        raise LauncherError(
            f"launch runs the script with the Python that it has itself: leave {words[0]!r} out. Write for "
            "instance `python -m dist_classicrl launch -n 4 train.py`."
        )
    if words[0] != "-m" and not os.path.isfile(words[0]):
        raise LauncherError(
            f"There is no script {words[0]!r} in {os.getcwd()}. Options of launch come before the script."
        )
    return tuple(words)


def launch_plan(options: LaunchOptions, words: Sequence[str]) -> LaunchPlan:
    """Return the plan for starting `words`, which are a script, or `-m` and a module, and arguments.

    LauncherError if the options ask for something that cannot be.
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
        late = next((f" {word} is the script's here." for word in words[1:] if _RANKS.fullmatch(word)), "")
        order = " Options of launch come before the script." if late else ""
        raise LauncherError(
            f"How many ranks?{late}{order} Write for instance -n 4: a server and three workers."
        )
    launcher = find_launcher()
    if options.mca and launcher.family == "hydra":
        raise LauncherError(
            f"--mca {shlex.join(options.mca[0])}: {launcher} has no such parameters, which are Open MPI's. "
            "Leave it out; further words for this mpirun are written as --mpirun-options=..."
        )
    parameters = [word for pair in options.mca for word in ("--mca", *pair)]
    network = tuple(network_words(launcher, options.network))
    return LaunchPlan(launcher, ranks, tuple(words), hosts, network, (*parameters, *further), options)
