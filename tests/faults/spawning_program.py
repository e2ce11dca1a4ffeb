"""What test_spawning.py runs on three ranks: rank 2 dies, rank 1 serves and replaces it, rank 0 is a witness.

Argument: "kill", and the first replacement is killed as it works, or "early", and it ends before it has
started MPI.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from dist_classicrl.membership import spawn as replacing
from dist_classicrl.process.parent import find_parent, replacement_mark

DYING, SERVER, WITNESS = 2, 1, 0
TAG = 5
TO_DIE, TO_END, HELLO = 1, 2, 3
SECONDS = 120.0
EXCHANGES = 20  # that go on with the witness while a replacement is on its way
TALKED = "talked"  # this file says that they did
# A replacement waits for that before it starts MPI.
WAIT = f'until [ -e {TALKED} ]; do sleep 0.01; done; exec "$@"'
WAY = sys.argv[1]


def say(*words):
    print(*words, flush=True)


class Line:
    """One posted receive and what was sent, to and from one peer."""

    def __init__(self, comm, peer):
        self.comm, self.peer, self.sent = comm, peer, []
        self.post()

    def post(self):
        self.buffer = np.zeros(2, np.int64)
        self.request = self.comm.Irecv(self.buffer, self.peer, TAG)

    def send(self, *numbers):
        message = np.array(numbers, np.int64)
        self.sent.append((self.comm.Isend(message, self.peer, TAG), message))

    def poll(self):
        """Return what has come, "dead", or None."""
        from mpi4py import MPI

        try:
            if not self.request.Test():
                return None
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
            return "dead"
        message = self.buffer.tolist()
        self.post()
        return message

    def wait(self):
        deadline = time.monotonic() + SECONDS
        while (message := self.poll()) is None:
            assert time.monotonic() < deadline, "nothing came"
            time.sleep(0.001)
        return message


def replace():
    """Be the replacement."""
    from mpi4py import MPI

    line = Line(find_parent(), 0)
    line.send(HELLO, os.getpid())
    what = line.wait()
    say("replacement", replacement_mark(), "of world", MPI.COMM_WORLD.size, "was told", what)
    if what != "dead" and what[0] == TO_DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    line.send(HELLO, 0)
    # A moment after that is heard, the parent is gone: that has to be heard as well.
    say("replacement hears that its server is", line.wait())


def wait_for_replacement(replacements, witness):
    """Return the line to the next replacement; the witness is talked to all the time."""
    deadline = time.monotonic() + SECONDS
    exchanged, is_under_way = 0, False
    while True:
        now = time.monotonic()
        assert now < deadline, "no replacement came"
        if replacements.start(now):
            say("started", replacements.started)
            exchanged, is_under_way = 0, WAY == "kill" or replacements.started == 2
        for comm in replacements.poll():
            os.unlink(TALKED)
            say("arrived while messages went on")
            return Line(comm, 0)
        if witness.poll() is not None:
            exchanged += 1
            witness.send(HELLO, exchanged)
            if exchanged == EXCHANGES and is_under_way:
                open(TALKED, "w").close()
        time.sleep(0.001)


def serve(comm):
    replacing.FIRST_DELAY = 0.1
    replacing.ARRIVAL_SECONDS = 1.5 if WAY == "early" else SECONDS
    spawn = replacing.spawn_in_thread
    replacing.spawn_in_thread = lambda words: spawn(["sh", "-c", WAIT, "-", "env", *words])
    spawner = replacing.spawner("at work")
    if WAY == "early":

        def begin_anew():
            replacing.ARRIVAL_SECONDS = SECONDS  # of one that does come
            return spawner()

        attempts = iter([lambda: spawn(["true"]), begin_anew])
        replacements = replacing.Replacements(2, begin=lambda: next(attempts)())
    else:
        replacements = replacing.Replacements(2, begin=spawner)
    lost, witness = Line(comm, DYING), Line(comm, WITNESS)
    witness.send(HELLO, 0)
    assert lost.wait() == "dead"
    replacements.wanted(1)
    if WAY == "kill":
        line = wait_for_replacement(replacements, witness)
        assert line.wait()[0] == HELLO
        line.send(TO_DIE, 0)
        say("server hears that the first is", line.wait())
        replacements.wanted(1)
    line = wait_for_replacement(replacements, witness)
    say("second says", line.wait()[0], "and", len(replacements._attempts), "are on the way")
    # Each answers, so that nothing that was said is lost with this process.
    line.send(TO_END, 0)
    line.wait()
    witness.wait()
    witness.send(TO_END, 0)
    witness.wait()


def main():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    comm.Barrier()
    if comm.rank == DYING:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == SERVER:
        serve(comm)
    else:
        line = Line(comm, SERVER)
        while (message := line.wait()) != "dead" and message[0] != TO_END:
            line.send(HELLO, 0)
        say("witness was told", message)
        line.send(HELLO, 0)
        line.wait()


if replacement_mark() is None:
    main()
else:
    replace()
sys.stdout.flush()
os._exit(0)
