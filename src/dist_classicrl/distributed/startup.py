"""What all ranks settle together before the first step.

They settle that they mean the same thing, the seed, and the compiled code.

The only collective operations of the library stand here, non-blocking and with a deadline.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from dist_classicrl.distributed import messages
from dist_classicrl.distributed.failures import failure_text, mark_as_told_elsewhere
from dist_classicrl.distributed.transport import wait_until
from dist_classicrl.errors import RankMismatchError, RemoteRankError

# MPI may still write to the buffers of operations that were given up, so these live as long as the process.
_abandoned: list[Any] = []


_PIECE = 1 << 27


class Setup:
    """Collective steps over `comm`, each within `timeout` seconds."""

    def __init__(self, comm: Any, timeout: float) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._timeout = timeout
        # Its own communicator keeps the library's messages apart from the user's, and from those of a call
        # that failed.
        self.comm, request = comm.Idup()
        self._wait(request, "all ranks to reach train(); every rank of the communicator has to call it")
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()

    def _wait(self, request: Any, what: str) -> None:
        try:
            wait_until(request.Test, self._timeout, what)
        except BaseException:
            _abandoned.append(request)
            raise

    def gather_numbers(self, numbers: list[int], what: str) -> np.ndarray:
        """Return every rank's `numbers`, int64 of shape (ranks, len(numbers))."""
        own = np.array(numbers, np.int64)
        everyone = np.empty((self.size, own.size), np.int64)
        self._wait(self.comm.Iallgather(own, everyone), what)
        return everyone

    def gather_texts(self, own: np.ndarray, what: str) -> list[np.ndarray]:
        """Return every rank's bytes, ndarray(uint8)."""
        sizes = self.gather_numbers([own.size], what)[:, 0]
        everyone = np.empty(int(sizes.sum()), np.uint8)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        layout = [everyone, (sizes.tolist(), starts.tolist()), self._mpi.BYTE]
        self._wait(self.comm.Iallgatherv([own, self._mpi.BYTE], layout), what)
        return np.split(everyone, np.cumsum(sizes)[:-1])

    def agree(
        self,
        error: BaseException | None,
        description: dict[str, Any],
        numbers: list[int],
        what: str = "all ranks to prepare their environments",
    ) -> np.ndarray:
        """Check that no rank failed so far and that all have the same `description`.

        Return every rank's `numbers`. `what` says what takes time, where ranks wait too long.

        Raises
        ------
        BaseException
            `error`, if this rank has one.
        RemoteRankError
            If another rank has one.
        RankMismatchError
            If descriptions differ; the message shows what differs between which ranks.

        Notes
        -----
        Where it raises one of these, which it does on all ranks, it has closed the setup.
        """
        data = json.dumps(description, sort_keys=True, default=str).encode()
        digest = np.frombuffer(hashlib.sha256(data).digest(), np.int64).tolist()
        own = [0 if error is None else 1, *digest, *numbers]
        everyone = self.gather_numbers(own, what)
        failed = np.flatnonzero(everyone[:, 0])
        if failed.size:
            text = np.empty(0, np.uint8) if error is None else failure_text(error, self.rank)
            texts = self.gather_texts(text, "all ranks to report their errors")
            self.close(clean=True)
            if error is not None:
                if failed[0] != self.rank:
                    mark_as_told_elsewhere(error)
                raise error
            raise RemoteRankError(**messages.from_text(texts[int(failed[0])]))
        if (everyone[:, 1:5] != everyone[0, 1:5]).any():
            texts = self.gather_texts(np.frombuffer(data, np.uint8), "all ranks to report their settings")
            self.close(clean=True)
            mismatch = RankMismatchError(_difference([messages.from_text(text) for text in texts]))
            if self.rank != 0:
                mark_as_told_elsewhere(mismatch)
            raise mismatch
        return everyone[:, 5:]

    def broadcast(self, array: np.ndarray, what: str) -> None:
        """Overwrite `array` (C order) with rank 0's; `what` names it where it does not come."""
        flat = array.reshape(-1)
        # MPI 3 counts in 32 bits.
        for start in range(0, flat.size, _PIECE):
            self._wait(self.comm.Ibcast(flat[start : start + _PIECE], 0), what)

    def broadcast_message(self, message: np.ndarray | None, what: str) -> np.ndarray:
        """Return rank 0's `message` (uint8), which the other ranks do not know the length of."""
        size = np.array([0 if message is None else message.size], np.int64)
        self.broadcast(size, what)
        if self.rank != 0 or message is None:
            message = np.empty(int(size[0]), np.uint8)
        self.broadcast(message, what)
        return message

    def compile_in_turn(self, compile_all: Callable[[bool], None]) -> None:
        """Let one rank of each host compile first, so that the others find the machine code on disk.

        `compile_all` is called with whether it is that rank's turn, which compiles for the others too.
        """
        hosts = self.gather_numbers([_host_number()], "all ranks to tell their hosts")[:, 0]
        first = int(np.flatnonzero(hosts == hosts[self.rank])[0])
        if first == self.rank:
            compile_all(True)
        self._wait(self.comm.Ibarrier(), "the first rank of each host to compile")
        if first != self.rank:
            compile_all(False)

    def close(self, clean: bool) -> None:
        """Free the communicator, but leave it alone after a failure.

        Messages may still be on their way then.
        """
        if clean:
            self.comm.Free()


def _host_number() -> int:
    return int.from_bytes(hashlib.sha256(socket.gethostname().encode()).digest()[:8], "little", signed=True)


def _difference(descriptions: list[dict[str, Any]]) -> str:
    first = descriptions[0]
    for rank, other in enumerate(descriptions):
        names = sorted(name for name in {*first, *other} if first.get(name) != other.get(name))
        if names:
            shown = "; ".join(
                f"{name}: {first.get(name)!r} on rank 0, {other.get(name)!r} on rank {rank}" for name in names
            )
            return (
                "The ranks of one job must have the same settings and environment, "
                f"but they differ in {shown}."
            )
    return "The ranks of one job must have the same settings and environment."
