"""The commands with which an mpirun starts a program on several ranks, in each launcher's own words.

`python -m dist_classicrl.launch.mpirun -n 3 -- python train.py` starts one from a shell. This module does not
import mpi4py: the process that starts an MPI job must not be part of one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from dist_classicrl.errors import LauncherError
from dist_classicrl.launch.endings import shell_status
from dist_classicrl.launch.folders import session_folder
from dist_classicrl.launch.launcher import (
    OF_THREADS,
    Launcher,
    find_launcher,
    has_ulfm,
    launch_environment,
)
from dist_classicrl.launch.segments import remove_unused_segments
from dist_classicrl.process.jobs import FinishedJob, run_job

_CHECK_SECONDS = 60.0
_CHECK_RANKS = 2
_CHECK_PROGRAM = "from mpi4py import MPI; print('world', MPI.COMM_WORLD.size)"


def mpirun_command(n_ranks: int, launcher: Launcher | None = None, further: Sequence[str] = ()) -> list[str]:
    """Return the words that start `n_ranks` ranks on this machine; the program and its arguments follow them.

    There may be more ranks than cores. Where `further` words, which come later, set mapping or binding it is
    not set here, since mpirun takes each only once.
    """
    if n_ranks < 1:
        raise LauncherError(f"A job has at least 1 rank; {n_ranks} were asked for.")
    launcher = launcher or find_launcher()
    words = [launcher.path, "-n", str(n_ranks)]
    if launcher.family == "openmpi":
        # Ranks beyond the cores are refused by default. Binding would put the extra ones on the same few
        # cores, and fails where a container may use only some of the machine's cores.
        said = {word.lstrip("-").partition("=")[0] for word in further if word.startswith("-")}
        if launcher.version < (5,):
            words.append("--oversubscribe")
        elif "map-by" not in said:
            words += ["--map-by", ":OVERSUBSCRIBE"]
        if "bind-to" not in said:
            words += ["--bind-to", "none"]
    return words


def survival_words(launcher: Launcher) -> list[str]:
    """Return the words with which a job survives a rank's death; none where the launcher cannot do that."""
    if launcher.family != "openmpi" or launcher.version < (5,) or not has_ulfm(launcher):
        return []
    return [
        *("--with-ft", "ulfm"),
        # Of the ways in which Open MPI sends messages only ob1 survives.
        *("--mca", "pml", "ob1"),
        # For processes that are started later, which those words do not cover.
        *("--prtemca", "prte_state_base_recoverable", "1"),
        # Else mpirun ends the job eight minutes after a host fell silent, even where the others go on.
        *("--prtemca", "oob_tcp_keepalive_intvl", "600"),
        *("--prtemca", "oob_tcp_keepalive_probes", "127"),
    ]


def host_words(launcher: Launcher, hostfile: str | None, agent: str | None) -> list[str]:
    """Return the words that start ranks on the hosts of a file, in this launcher's own form.

    Without a file that is this machine alone, or what a batch system has given. `agent` starts a program on
    another host in place of ssh. LauncherError if it is not known how this launcher wants it said.
    """
    if hostfile is None and agent is None:
        return []
    if launcher.family == "openmpi":
        name = ["--prtemca", "plm_ssh_agent"] if launcher.version >= (5,) else ["--mca", "plm_rsh_agent"]
        words = [] if hostfile is None else ["--hostfile", hostfile]
    elif launcher.family == "hydra":
        name = ["-launcher", "ssh", "-launcher-exec"]
        words = [] if hostfile is None else ["-f", hostfile]
    else:
        raise LauncherError(
            f"{launcher} is not known, and neither is how it takes a hostfile or an agent. Write its own "
            "words as `launch --mpirun-options=...`."
        )
    return words if agent is None else [*words, *name, agent]


def export_words(launcher: Launcher, names: Sequence[str]) -> list[str]:
    """Return the words that pass environment variables on to other hosts; MPICH's family passes on all."""
    return [word for name in names for word in ("-x", name)] if launcher.family == "openmpi" else []


def start_command(
    launcher: Launcher,
    n_ranks: int,
    program: Sequence[str],
    *,
    hostfile: str | Path | None = None,
    agent: str | None = None,
    network: Sequence[str] = (),
    options: Sequence[str] = (),
    survive: bool = False,
    exported: Sequence[str] = (),
) -> list[str]:
    """Return the whole command that starts a program on ranks of this or of several hosts.

    `hostfile` and `agent` are as for `host_words`, `network` is what `network_words` returns, and `options`
    are further words for mpirun. With `survive` the other ranks survive a death, where the launcher can do
    that. `exported` names environment variables for the ranks, besides PYTHONPATH and those that say how many
    threads they start.
    """
    there = launch_environment()
    said = {word.partition("=")[0] for before, word in pairwise(options) if before in ("-x", "--x")}
    further = [name for name in ("PYTHONPATH", *OF_THREADS) if name in there and name not in said]
    return [
        *mpirun_command(n_ranks, launcher, options),
        *(survival_words(launcher) if survive else []),
        *host_words(launcher, None if hostfile is None else str(hostfile), agent),
        *export_words(launcher, [*exported, *further]),
        *network,
        *options,
        *program,
    ]


def session_variables(
    launcher: Launcher, folder: str, options: Sequence[str], base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables that let Open MPI 5 keep its own files, on mpirun's host, in a folder.

    Nothing where `options` of mpirun, the variables in `base`, or a file of settings, the user's or the
    site's, say where they are to be.
    """
    said = [word for word in options if "tmpdir_base" in word]
    said += [name for name in base if name.startswith(("PRTE_MCA_", "OMPI_MCA_")) and "tmpdir_base" in name]
    site = Path(launcher.path).parent.parent / "etc" / "prte-mca-params.conf"
    home = Path(base.get("HOME", "/"))
    for file in (home / ".prte" / "mca-params.conf", site):
        with suppress(OSError, UnicodeDecodeError):
            # An empty prte_tmpdir_base does not overrule them: it crashes an mpirun with other hosts.
            lines = file.read_text(encoding="utf-8").splitlines()
            said += [line for line in lines if "tmpdir_base" in line.partition("#")[0]]
    return {} if said else {"PRTE_MCA_prte_local_tmpdir_base": folder}


def run_ranks(
    launcher: Launcher, command: Sequence[str], *, timeout: float, keep_output: bool = True
) -> FinishedJob:
    """Run a command of `launcher` as `run_job` does, with a folder of its own for mpirun's files."""
    with session_folder() as folder:
        own = session_variables(launcher, folder, command, os.environ)
        environment = launch_environment({**os.environ, **own})
        try:
            return run_job(command, timeout=timeout, env=environment, keep_output=keep_output)
        finally:
            remove_unused_segments()


def check_launcher(launcher: Launcher) -> None:
    """Start two ranks that load mpi4py, and see whether they find each other; LauncherError if not.

    They are each alone when the launcher belongs to another MPI than the library that mpi4py loads.
    """
    command = [*mpirun_command(_CHECK_RANKS, launcher), sys.executable, "-c", _CHECK_PROGRAM]
    job = run_ranks(launcher, command, timeout=_CHECK_SECONDS)
    if job.timed_out:
        raise LauncherError(
            f"{launcher} did not start two ranks within {_CHECK_SECONDS:.0f} s.\n{job.output}"
        )
    if job.returncode != 0:
        raise LauncherError(f"{launcher} does not run mpi4py (exit status {job.returncode}).\n{job.output}")
    worlds = re.findall(r"world (\d+)", job.output)
    if worlds != [str(_CHECK_RANKS)] * _CHECK_RANKS:
        raise LauncherError(
            f"{launcher} started {_CHECK_RANKS} ranks, but they saw worlds of {', '.join(worlds) or 'no'} "
            "ranks: mpi4py loads the library of another MPI. Load only one MPI."
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dist_classicrl.launch.mpirun",
        description="Start a program on several MPI ranks, which may be more than there are cores.",
    )
    add = parser.add_argument
    add("-n", "--ranks", type=int, default=1, help="number of ranks (default: 1)")
    add("--timeout", type=float, metavar="SECONDS", help="end the job and all it started then")
    add("--check", action="store_true", help="only see whether mpirun and mpi4py work together")
    add("command", nargs="*", metavar="-- PROGRAM", help="the program and its arguments")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the job's status, 124 at the deadline, or 1 if it could not be started."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        launcher = find_launcher()
        if options.check:
            check_launcher(launcher)
            sys.stdout.write(f"{launcher}\n")
            return 0
        if not options.command:
            parser.error("the program to start is missing: write it after --")
        command = mpirun_command(options.ranks, launcher) + options.command
    except LauncherError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.timeout is None:
        # Become mpirun, so that signals from the terminal and from a batch system reach it directly.
        sys.stdout.flush()
        os.execve(command[0], command, launch_environment())
    job = run_ranks(launcher, command, timeout=options.timeout, keep_output=False)
    if job.timed_out:
        sys.stderr.write(f"The job did not end within {options.timeout:g} s and was killed.\n")
        return 124
    return shell_status(job.returncode)


if __name__ == "__main__":
    sys.exit(main())
