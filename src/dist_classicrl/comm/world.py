"""Which ranks train together: the world that a launcher made, or this process alone."""

from __future__ import annotations

from typing import Any

from dist_classicrl._hints import how_to_get_mpi, launched, promised_size
from dist_classicrl.comm.collectives import check_mpi_runs, is_of_mpi, within_one_group
from dist_classicrl.comm.remote_errors import end_job_on_unhandled_errors
from dist_classicrl.errors import SettingsError, SingletonError


def watch_for_unhandled_errors() -> None:
    """In a job of several ranks, let an unhandled exception end the job."""
    if promised_size() > 1:
        end_job_on_unhandled_errors()


def checked_comm(comm: Any) -> Any:
    """Return what was given as the ranks that train together; SettingsError if it is no intracommunicator."""
    is_there = not isinstance(comm, type) and all(
        callable(getattr(comm, name, None)) for name in ("Get_rank", "Get_size")
    )
    if comm is None or is_there and bool(comm):  # mpi4py's COMM_NULL is false
        return within_one_group(comm)
    if is_there:
        raise SettingsError(
            f"comm is a communicator without ranks, such as one after Free(), or COMM_NULL; got {comm!r}. "
            "Give one that is there while the agent is used, or None for the world that the launcher made."
        )
    raise SettingsError(
        f"comm must be a communicator of mpi4py, such as mpi4py.MPI.COMM_WORLD, or None for the world that "
        f"the launcher made; got {comm!r}."
    )


def find_world(comm: Any, allow_singletons: bool) -> Any | None:
    """Return the communicator to train over, or None to train alone.

    `comm` if it is given, else COMM_WORLD; MPI is not started where no launcher started this process. Where
    there are several ranks, an unhandled exception ends the job from here on, whatever the launcher promised.
    A `SingletonError` is raised if several ranks were promised and this process finds itself alone.
    """
    world = _launched_world(allow_singletons) if comm is None else checked_comm(comm)
    if world is None or world.Get_size() == 1:
        return None
    end_job_on_unhandled_errors()
    return world


def first_rank(comm: Any) -> int:
    """Return the lowest rank that those of a communicator have in the world; 0 where none has one there."""
    if not is_of_mpi(comm):
        return 0
    from mpi4py import MPI

    own, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(own, list(range(own.Get_size())), everyone)
    own.Free()
    everyone.Free()
    return min((rank for rank in ranks if rank != MPI.UNDEFINED), default=0)


def _launched_world(allow_singletons: bool) -> Any | None:
    """Return COMM_WORLD if a launcher started this process; None where MPI cannot be loaded."""
    if not launched():
        return None
    world: Any = None
    found, cause = "this process is alone in its MPI world", None
    try:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
    except (ImportError, RuntimeError) as error:
        found, cause = f"MPI could not be loaded ({' '.join(str(error).split())})", error
    else:
        check_mpi_runs()
    promised = promised_size()
    if promised > 1 and not allow_singletons and (world is None or world.Get_size() == 1):
        cure = (
            "Start the job with the mpirun that belongs to the MPI library of mpi4py; under SLURM with `srun "
            "--mpi=pmix` for Open MPI, `srun --mpi=pmi2` for MPICH, or mpirun inside sbatch."
        )
        raise SingletonError(
            f"The environment promises {promised} ranks, but {found}: each would train by itself, "
            f"{promised} times over. {cure if cause is None else how_to_get_mpi()} To train alone all the "
            "same, pass allow_singletons=True."
        ) from cause
    return world
