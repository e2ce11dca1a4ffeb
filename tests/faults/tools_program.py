"""Three ranks that use parts of `mpi_tools` while the last one is killed; each survivor says what it saw.

usage: mpirun -n 3 python tools_program.py
"""

import json
import os
import signal

from mpi4py import MPI

from dist_classicrl.errors import RankLostError
from dist_classicrl.mpi_tools import ParameterSync, QuorumBarrier, TwoLevel

SECONDS = 200.0  # if MPI does not say that a rank was killed, silence does not tell in time
VICTIM = 2


class Levels(TwoLevel):
    """One rank is killed while all construct it."""

    def _split(self, label):
        local = super()._split(label)
        if MPI.COMM_WORLD.rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        return local


def raised(call):
    try:
        call()
    except RankLostError as error:
        return str(error)


def main():
    world = MPI.COMM_WORLD
    most, everybody = QuorumBarrier(world, timeout=SECONDS), QuorumBarrier(world, 3, timeout=SECONDS)
    sync = ParameterSync(world, timeout=SECONDS)
    came = [sorted(most.wait()), sorted(everybody.wait())]
    errors = [raised(lambda: Levels(world, timeout=SECONDS))]
    came += [sorted(most.wait()), sorted(most.wait())]
    errors += [raised(everybody.wait), raised(sync.start({"a": [1.0]}, op="mean").wait)]
    print(json.dumps({"rank": world.rank, "came": came, "errors": errors}), flush=True)
    most.wait()  # so that nobody ends the job before the other has said it
    os._exit(0)  # MPI_Finalize may wait for the dead


if __name__ == "__main__":
    main()
