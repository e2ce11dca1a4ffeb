"""Print how many MB a process keeps for each process that it spawns and that dies: MPI's own share.

Run by soak.py, without this library, on one rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

FIRST, MORE = 4, 16
SECONDS = 5.0


def resident_megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def spawn_and_lose():
    """Spawn a process, hear it, and hear of its death."""
    info = MPI.Info.Create()
    info.Set("map_by", ":OVERSUBSCRIBE")
    info.Set("bind_to", "none")
    comm = MPI.COMM_SELF.Spawn(sys.executable, [__file__], maxprocs=1, info=info)
    info.Free()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    buffer = np.zeros(1)
    comm.Recv(buffer, 0)
    request = comm.Irecv(buffer, 0)
    deadline = time.monotonic() + SECONDS
    try:
        while not request.Test() and time.monotonic() < deadline:
            time.sleep(0.01)
    except MPI.Exception:
        pass


parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    parent.Send(np.zeros(1), 0)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)
for _ in range(FIRST):
    spawn_and_lose()
before = resident_megabytes()
for _ in range(MORE):
    spawn_and_lose()
print((resident_megabytes() - before) / MORE, flush=True)
os._exit(0)
