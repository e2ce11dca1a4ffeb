"""What goes wrong between ranks: data that should be the same, and messages that should be fast."""

from __future__ import annotations

from typing import Any

from dist_classicrl.checks import OneOf, WholeNumber, checked_whole
from dist_classicrl.errors import SettingsError
from dist_classicrl.mpi_tools import communication_profile, consistency
from dist_classicrl.mpi_tools.communication_profile import POINT_TO_POINT, Measurement
from dist_classicrl.mpi_tools.consistency import Consistency
from dist_classicrl.mpi_tools.part import RootedPart

LEAST_BYTES = 8  # of the message whose time is the latency


class DistributedDebugger(RootedPart):
    """Compares data and measures communication over any communicator.

    Its methods are collective: every rank calls them, in the same order. No wait is longer than `timeout`,
    and where ULFM reports a death (``mpirun --with-ft ulfm``) nobody waits for the dead.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The messages go over a duplicate. **Every rank of the communicator has to construct the debugger**, at
        the same point of the program.
    timeout : float, default=60
        Seconds to wait for a rank that says nothing, here and in each method.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.
    RankTimeoutError, RankLostError
        If not every rank constructs its debugger within `timeout`, or one has died.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> import numpy as np
    >>> from dist_classicrl import DistributedDebugger
    >>> with DistributedDebugger(MPI.COMM_SELF) as debugger:
    ...     bool(debugger.check_data_consistency(np.zeros(1000)))
    True
    """

    def __init__(self, comm: Any, *, timeout: float = 60.0) -> None:
        super().__init__(comm, timeout)

    def check_data_consistency(self, array: Any, tolerance: float = 1e-6) -> Consistency:
        """Compare an array on all ranks with that of rank 0.

        Digests of blocks of 256 KiB are compared first, and then the numbers of those blocks that differ, one
        block at a time: no rank ever holds another one's whole array.

        Parameters
        ----------
        array : array_like
            Numbers of any type and shape.
        tolerance : float
            How far two numbers may be apart, the same on all ranks. Two NaN are the same; NaN and a number
            never are.

        Returns
        -------
        Consistency
            The same on all ranks: true if all have the same; else its `differences` say for each rank where
            and by how much, and so does its text.

        Raises
        ------
        SettingsError
            On all ranks, if one has an argument that is not what is described here, or other ranks have
            another tolerance than rank 0.
        RankTimeoutError, RankLostError, RemoteRankError
            If a rank does not take part.
        """
        return consistency.check(self._rooted, array, tolerance)

    def profile_communication(
        self, data_size: int = 1 << 20, iterations: int = 100, host_pairs: str = "some"
    ) -> dict[str, Any]:
        """Measure latency and bandwidth of messages and of collective operations.

        Parameters
        ----------
        data_size : int
            Bytes of a message, and in a collective operation of what each rank gives; below 2**31.
        iterations : int
            How often each is measured; the median counts.
        host_pairs : {"some", "all", "one"}
            Between which hosts messages are measured, one pair after the other: ``"all"``, each with every
            other one; ``"some"``, the same up to eight hosts, and of more each with that of rank 0 and with
            the next one; ``"one"``, that of rank 0 with one other.

        Returns
        -------
        dict
            The same on all ranks. ``"point_to_point"`` is a list of messages between two ranks, the first
            ones of two hosts, or the first two of one host, each with ``"ranks"``, their ``"hosts"``,
            ``"same_host"``, ``"latency"`` (seconds of a message of 8 bytes), ``"seconds"`` (of one of
            `data_size`) and ``"bandwidth"`` (bytes per second). ``"collective"`` has the last three for each
            of ``"bcast"``, ``"allreduce"``, ``"gather"`` and ``"allgather"``, and ``"barrier"``, which has a
            latency alone. ``"seconds"`` and ``"bandwidth"`` of gather and allgather are None where all ranks
            together give more than 256 MiB, which is not measured. On one rank nothing is, and both
            ``"point_to_point"`` and ``"collective"`` are empty. ``"bytes"``, ``"iterations"`` and
            ``"hosts"``, by rank, say what was measured.

        Raises
        ------
        SettingsError
            On all ranks, if one has an argument that is not what is described here, or rank 0 has another.
        RankTimeoutError, RankLostError, RemoteRankError
            If a rank does not take part. The debugger is closed then if the measuring had begun.
        """
        size, refusal = data_size, ""
        try:
            size = WholeNumber(1, bits=31)("data_size", data_size)
            iterations = checked_whole("iterations", iterations, 1)
            host_pairs = OneOf(communication_profile.HOST_PAIRS)("host_pairs", host_pairs)
        except SettingsError as error:
            refusal = str(error).removesuffix(".")
        arguments = f"data_size={size}, iterations={iterations}, host_pairs={host_pairs!r}"
        self._agree(refusal, arguments)
        sizes = sorted({LEAST_BYTES, size})
        try:
            profile = communication_profile.measure(
                self._comm, self._rooted, sizes, iterations, host_pairs=host_pairs
            )
        except BaseException:
            self._is_closed = True  # what was begun may end yet, and be taken for part of another profile
            raise
        pairs: dict[tuple[int, ...], dict[str, Any]] = {}
        collective: dict[str, dict[str, Any]] = {}
        for found in profile.measurements:
            if found.operation == POINT_TO_POINT:
                hosts = [profile.hosts[rank] for rank in found.ranks]
                start = {"ranks": list(found.ranks), "hosts": hosts, "same_host": found.same_host}
                _note(pairs.setdefault(found.ranks, start), found, size)
            else:
                start = {} if found.operation == "barrier" else {"seconds": None, "bandwidth": None}
                _note(collective.setdefault(found.operation, start), found, size)
        return {
            "bytes": size,
            "iterations": iterations,
            "hosts": list(profile.hosts),
            "point_to_point": list(pairs.values()),
            "collective": collective,
        }


def _note(entry: dict[str, Any], found: Measurement, size: int) -> None:
    if found.bytes in (0, LEAST_BYTES):
        entry["latency"] = found.seconds
    if found.bytes == size:
        entry["seconds"], entry["bandwidth"] = found.seconds, found.bandwidth
