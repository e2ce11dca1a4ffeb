"""Three ranks that watch each other while the last one is killed or stopped; each says what it was told.

usage: mpirun -n 3 python detector_program.py (killed | stopped | dead)
"""

import json
import os
import signal
import sys
import time

from mpi4py import MPI

from dist_classicrl import FailureDetector
from dist_classicrl.errors import RankLostError

SECONDS = 200.0
SILENCE = 12.0  # of the rank that is stopped, which is longer than a busy machine makes the others wait
VICTIM = 2


def run_until(detector, condition, progress):
    """Beat and check until `condition()`."""
    begun = time.monotonic()
    while not condition():
        detector.send_heartbeat(progress)
        detector.check_node_health()
        if time.monotonic() - begun > SECONDS:
            raise TimeoutError(f"rank {MPI.COMM_WORLD.rank}: {detector.check_node_health()}")
        time.sleep(0.002)


def killed(detector):
    """The last rank kills itself. The others find out, and go on beating."""
    if MPI.COMM_WORLD.rank == VICTIM:
        # Not before the others have made their detectors.
        run_until(detector, lambda: len(detector.progress) == 2, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    run_until(detector, lambda: VICTIM in detector.failed_nodes, 1)
    other = 1 - MPI.COMM_WORLD.rank
    run_until(detector, lambda: detector.progress.get(other, 0) >= 2, 2)
    # Until it has heard that, too: it says 3, or has left because it heard 3.
    run_until(detector, lambda: detector.progress[other] >= 3 or detector.reason(other), 3)


def stopped(detector):
    """Rank 0 stops the last rank, until it has failed everywhere, and lets it go on."""
    world = MPI.COMM_WORLD
    if world.rank != VICTIM:
        if world.rank == 0:
            run_until(detector, lambda: len(detector.progress) == 2, 1)
            os.kill(detector.progress[VICTIM], signal.SIGSTOP)
        run_until(detector, lambda: VICTIM in detector.failed_nodes, 1)
        if world.rank == 0:
            run_until(detector, lambda: detector.progress.get(1) == 2, 2)
            os.kill(detector.progress[VICTIM], signal.SIGCONT)
        run_until(detector, lambda: not detector.failed_nodes, 2)
    request = world.Ibarrier()
    run_until(detector, request.Test, os.getpid() if world.rank == VICTIM else 2)


def dead():
    """The last rank dies before it makes a detector. The others are told so."""
    world, nothing = MPI.COMM_WORLD, bytearray(1)
    if world.rank == VICTIM:
        for other in (0, 1):
            world.Recv(nothing, other)
        os.kill(os.getpid(), signal.SIGKILL)
    world.Send(nothing, VICTIM)
    try:
        FailureDetector(world, timeout=SECONDS)
    except RankLostError as error:
        print(json.dumps({"rank": world.rank, "error": str(error)}), flush=True)
    os._exit(0)


def main(what):
    told, reasons = [], []

    def fail(rank):
        told.append(["failure", rank])
        reasons.append(detector.reason(rank))

    detector = FailureDetector(
        MPI.COMM_WORLD,
        # If MPI does not say that a rank was killed, silence does not tell in time.
        *((0.05, 10 * SECONDS) if what == "killed" else (0.1, SILENCE)),
        on_failure=fail,
        on_recovery=lambda rank: told.append(["recovery", rank]),
        threshold=1e9,  # the machine may be busy
        timeout=SECONDS,
    )
    {"killed": killed, "stopped": stopped}[what](detector)
    detector.close()
    said = {"rank": MPI.COMM_WORLD.rank, "told": told, "reasons": reasons}
    print(json.dumps(said), flush=True)
    if what == "killed":
        os._exit(0)  # MPI_Finalize may wait for the dead


if __name__ == "__main__":
    dead() if sys.argv[1] == "dead" else main(sys.argv[1])
