"""The `mpirun` that jobs are started with, and the environment in which it works."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from dist_classicrl._hints import how_to_get_mpi, rank_of_environment
from dist_classicrl.errors import LauncherError
from dist_classicrl.process.jobs import run_job

# What makes a process believe that it is a rank of some job: Open MPI 4's, Open MPI 5's, and MPICH's.
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

THREADS = "OMP_NUM_THREADS"
"""How many threads a process starts for linear algebra, where no variable of its library's own says it."""

OF_THREADS = (THREADS, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

_SETTINGS = {
    # NumPy's BLAS would start one for each core as it is imported, in each of the ranks, which learn in one.
    THREADS: "1",
    # Containers run as root. Open MPI asks for both.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # A rank that waits in MPI gives its core to one that works.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Intel MPI binds ranks unless it is told otherwise, also two to one core.
    "I_MPI_PIN": "0",
}

_VERSION_SECONDS = 30.0


@dataclass(frozen=True)
class Launcher:
    """A program that starts MPI jobs."""

    path: str  # of `mpirun` or `mpiexec`, absolute
    family: str  # "openmpi", "hydra" (MPICH, Intel MPI, MVAPICH), or "unknown"
    version: tuple[int, ...]  # empty where it is not known

    def __str__(self) -> str:
        name = {"openmpi": "Open MPI", "hydra": "MPICH or kin"}.get(self.family, "unknown MPI")
        return f"{name} {'.'.join(map(str, self.version))} ({self.path})"


def find_launcher() -> Launcher:
    """Find the launcher that jobs are started with; LauncherError if there is none.

    It is the one of this Python environment if there is one, as mpi4py looks for its library there first;
    otherwise the first on `PATH`. Whether the library that mpi4py then loads is of the same MPI is not
    looked at here: `dist-classicrl doctor` does that.
    """
    own = own_programs()
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=own) or shutil.which(name)
        if path is not None:
            return identify(path)
    raise LauncherError(f"There is no mpirun or mpiexec in {own} or on PATH. {how_to_get_mpi()}")


def identify(path: str) -> Launcher:
    """Return which MPI the launcher at `path` belongs to, by what it says of its version."""
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


def has_ulfm(launcher: Launcher) -> bool:
    """Return whether an Open MPI was built with fault tolerance (ULFM): it is unless it says otherwise."""
    info = shutil.which("ompi_info", path=os.path.dirname(launcher.path))
    return info is None or not re.search(r"FT MPI support: *no\b", _answer(info))


def _answer(*command: str) -> str:
    """Return what a program of an MPI writes; LauncherError if it cannot be run, or does not answer."""
    try:
        job = run_job(command, timeout=_VERSION_SECONDS, env=launch_environment())
    except OSError as error:
        raise LauncherError(f"{' '.join(command)} does not answer: {error}") from error
    if job.timed_out:
        raise LauncherError(f"{' '.join(command)} does not answer within {_VERSION_SECONDS:g} s")
    return job.output


def start_few_threads() -> None:
    """Let this process, one of several on this host, start the threads of a rank; before numpy is there."""
    os.environ.setdefault(THREADS, _SETTINGS[THREADS])


def launch_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which a launcher works as root, with few cores, and inside another job.

    Variables that are set in `base`, which is this process's environment if left out, are kept.
    """
    base = os.environ if base is None else base
    environment = dict(base)
    if rank_of_environment(base) is not None:
        # A job started from a rank must not take itself for that rank.
        environment = {name: value for name, value in base.items() if not name.startswith(_IDENTITY_PREFIXES)}
    # The mpirun of a wheel may look for its other programs there, and be called by its path alone.
    places = environment.get("PATH", os.defpath).split(os.pathsep)
    if (own := own_programs()) not in places:
        environment["PATH"] = os.pathsep.join([*places, own])
    return {**_SETTINGS, **environment}


def own_programs() -> str:
    """Return the folder of the programs of this Python environment."""
    return os.path.join(sys.prefix, "bin")
