"""What ranks that really run say of themselves: their hosts, cores and memory, and whether they survive.

    mpirun -n 4 python -m dist_classicrl.diagnosis.probe look FILE
    mpirun -n 4 python -m dist_classicrl.diagnosis.probe profile SIZES ITERATIONS SECONDS TIMEOUT
    mpirun -n 3 --hostfile FILE python -m dist_classicrl.diagnosis.probe hosts SECONDS
    mpirun --with-ft ulfm -n 3 python -m dist_classicrl.diagnosis.probe death

Each writes a line of JSON after a mark, so that what else is written does not matter.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from dist_classicrl._hints import bound_cores
from dist_classicrl._memory import memory_left
from dist_classicrl.comm.rooted import rooted_over
from dist_classicrl.diagnosis import marked
from dist_classicrl.diagnosis.cores import asked_threads
from dist_classicrl.mpi_tools.clocks import compare_clocks
from dist_classicrl.mpi_tools.communication_profile import COLLECTIVES, CommunicationProfile, measure

DEATH_RANKS = 3  # how many ranks `death` takes: one dies, and two talk after it
_NAME = "measuring of communication"
_TIMEOUT = 30.0
_DEATH_SECONDS = 15.0
_SIZES = (8, 1 << 20)
_ITERATIONS = 100
_SECONDS_EACH = 0.2
_TAG = 7


def look(file: str) -> None:
    """Say what this rank is, whether it sees a file, and on rank 0 how fast messages are."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    marked.write(
        rank=world.Get_rank(),
        size=world.Get_size(),
        host=socket.gethostname(),
        cores=bound_cores(),
        threads=asked_threads(),
        sees_file=os.path.exists(file),
        memory=memory_left(),
    )
    _say_profile(measured(world, _SIZES, _ITERATIONS, _SECONDS_EACH, _TIMEOUT, collectives=()))


def profile(sizes: str, iterations: str, seconds: str, timeout: str) -> None:
    """Measure communication by size."""
    from mpi4py import MPI

    numbers = [int(size) for size in sizes.split(",")]
    _say_profile(measured(MPI.COMM_WORLD, numbers, int(iterations), float(seconds), float(timeout)))


def hosts(seconds: str) -> None:
    """Compare the clocks of all ranks, and measure messages between all hosts for so many seconds at most."""
    from mpi4py import MPI

    with rooted_over(MPI.COMM_WORLD, _TIMEOUT, _NAME) as (rooted, comm):
        clocks = compare_clocks(comm, rooted)
        found = measure(comm, rooted, _SIZES, _ITERATIONS, _SECONDS_EACH, (), "some", float(seconds))
    if rooted.rank == 0:
        marked.write(profile=found.to_dict(), clocks=[each.to_dict() for each in clocks])


def measured(
    comm: Any,
    sizes: Sequence[int],
    iterations: int,
    seconds_each: float,
    timeout: float,
    collectives: Sequence[str] = COLLECTIVES,
) -> CommunicationProfile | None:
    """Measure communication over `comm`, on which every rank calls this; rank 0 gets the result.

    Messages between several hosts are measured where collective operations are. See
    `communication_profile.measure`.
    """
    host_pairs = "some" if collectives else "one"
    with rooted_over(comm, timeout, _NAME) as (rooted, own):
        found = measure(own, rooted, sizes, iterations, seconds_each, collectives, host_pairs)
    return found if rooted.rank == 0 else None


def _say_profile(found: CommunicationProfile | None) -> None:
    if found is not None:
        marked.write(profile=found.to_dict())


def death() -> None:
    """Let the last rank kill itself; the others say whether they were told of it, and can still talk."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)
    rank, victim, nothing = world.Get_rank(), world.Get_size() - 1, bytearray(1)
    other = (rank + 1) % victim
    if rank == victim:
        for survivor in range(victim):
            world.Recv(nothing, survivor, _TAG)
        os.kill(os.getpid(), signal.SIGKILL)
    bell = world.Irecv(nothing, victim, _TAG)
    world.Send(bytearray(1), victim, _TAG)
    told = _until(lambda: _fails(bell.Test), _DEATH_SECONDS)
    arrived = bytearray(1)
    requests = [world.Isend(bytearray(1), other, _TAG), world.Irecv(arrived, other, _TAG)]
    talks = _until(lambda: bool(MPI.Request.Testall(requests)), _DEATH_SECONDS)
    marked.write(rank=rank, told=told, talks=talks)
    time.sleep(0.2)  # so that the other rank can say so, too
    os._exit(0)  # MPI_Finalize may wait for the dead


def _fails(test: Callable[[], object]) -> bool:
    from mpi4py import MPI

    try:
        test()
    except MPI.Exception:
        return True
    return False


def _until(ready: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-3)
    return True


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]]
    programs = {"look": look, "profile": profile, "hosts": hosts, "death": death}
    programs[sys.argv[1]](*sys.argv[2:])
