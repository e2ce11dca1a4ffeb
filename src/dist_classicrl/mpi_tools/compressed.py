"""Sums over ranks that send less than the arrays, and keep what was not sent for the next sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl.checks import OneOf, RealNumber, checked_whole
from dist_classicrl.errors import SettingsError
from dist_classicrl.mpi_tools.arrays import as_array
from dist_classicrl.mpi_tools.packing import KINDS, Packed, dense, pack, sparse
from dist_classicrl.mpi_tools.part import RootedPart, refusals

_WHAT = "its part in CompressedAllreduce"


@dataclass(frozen=True)
class Traffic:
    """What this rank has sent, in bytes of numbers, and what float64 arrays in its place would have been."""

    calls: int = 0
    sent: int = 0
    dense: int = 0


@dataclass(frozen=True)
class _Given:
    """What a rank gives: what is wrong with it, if anything, its settings and shape, and its numbers."""

    refusal: str
    settings: str
    packed: Packed


@dataclass(frozen=True)
class _Answer:
    """What rank 0 makes of that."""

    refused: list[str]
    packed: Packed


class CompressedAllreduce(RootedPart):
    """An all-reduce of arrays that sends part of the numbers, or rounded ones, with error feedback.

    What is not sent is kept and added at the next call, so it goes in the end: what all calls returned and
    what `flush` returns add up to the sums of what was given, as far as float64 has them. Rank 0 adds up;
    messages are point-to-point, and no wait is longer than `timeout`. The methods are collective. `close`
    drops what was kept, so call `flush` before.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The messages go over a duplicate. **Every rank constructs the object**, at the same point.
    kind : {"threshold", "top_k", "int8", "int16"}
        ``"threshold"`` sends entries of at least `threshold`, ``"top_k"`` the `k` largest; what is returned
        is their exact sum. ``"int8"`` and ``"int16"`` send all entries in units of the largest one divided
        by 127 or 32767, and so is the sum returned.
    operation : {"sum", "mean"}, default="sum"
        What is made of the arrays.
    threshold : float, optional
        For ``"threshold"``: at least 0.
    k : int, optional
        For ``"top_k"``: from 1 to the size of the arrays.
    timeout : float, default=60
        Seconds to wait for a rank that says nothing.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.
    RankTimeoutError, RankLostError
        If not every rank constructs its object within `timeout`, or one has died.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> import numpy as np
    >>> from dist_classicrl.mpi_tools import CompressedAllreduce
    >>> with CompressedAllreduce(MPI.COMM_SELF, "top_k", k=1) as reduce:
    ...     reduce(np.array([1.0, 3.0, 2.0, 0.0])).tolist(), reduce.flush().tolist()
    ([0.0, 3.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0])
    """

    def __init__(
        self,
        comm: Any,
        kind: str,
        *,
        operation: str = "sum",
        threshold: float | None = None,
        k: int | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._kind = OneOf(KINDS)("kind", kind)
        self._operation = OneOf(("sum", "mean"))("operation", operation)
        self._threshold = threshold if threshold is None else RealNumber(0.0)("threshold", threshold)
        self._k = k if k is None else checked_whole("k", k, 1)
        for name, value in (("threshold", threshold), ("k", k)):
            belongs = name == ("k" if kind == "top_k" else kind)
            if belongs != (value is not None):
                which = "needs" if belongs else "takes no"
                raise SettingsError(f"kind={kind!r} {which} {name}, got {name}={value!r}.")
        self.traffic = Traffic()
        self._residual: np.ndarray | None = None  # of this rank's arrays, in their shape
        self._kept: np.ndarray | None = None  # of what rank 0 returned
        super().__init__(comm, timeout)

    def __call__(self, array: Any) -> np.ndarray:
        """Return the sum, or mean, of what all ranks give and have kept, as far as it was sent.

        Parameters
        ----------
        array : array_like
            Finite real numbers, of the same shape on all ranks and in all calls. They become float64 first,
            which rounds whole numbers above 2**53 and long doubles.

        Returns
        -------
        ndarray(float64)
            The same bits on all ranks.

        Raises
        ------
        SettingsError
            On all ranks, if one gives something else or was made with other arguments; nothing is lost.
        RankTimeoutError, RankLostError, RemoteRankError
            If a rank does not take part.
        """
        refusal, given = self._checked(array)
        return self._reduce(refusal, given, whole=False)

    def flush(self) -> np.ndarray:
        """Return the sum, or mean, in float64 of all that was kept; nothing is kept afterwards."""
        nothing = self._residual is None
        given = np.zeros(0) if self._residual is None else np.zeros_like(self._residual)
        return self._reduce("flush needs a call before it" if nothing else "", given, whole=True)

    def _checked(self, array: Any) -> tuple[str, np.ndarray]:
        """Return why an array cannot be used, or nothing, and what this rank now has to send."""
        try:
            given = as_array("array", array)
        except SettingsError as error:
            return str(error), np.zeros(0)
        if given.dtype.kind not in "biuf":
            return f"array must be an array of real numbers, got one of type {given.dtype}", np.zeros(0)
        if self._residual is not None and given.shape != self._residual.shape:
            shapes = f"{self._residual.shape}, got {given.shape}"
            return f"array must have the shape of the calls before, {shapes}", np.zeros(0)
        if self._k is not None and self._k > given.size:
            return f"k must be at most the size of the array, {given.size}, got {self._k}", np.zeros(0)
        with np.errstate(over="ignore", invalid="ignore"):
            due = given.astype(np.float64) + (0.0 if self._residual is None else self._residual)
        if not np.isfinite(due).all():
            return "array must have finite numbers, got NaN, infinity or too large ones", np.zeros(0)
        return "", due

    def _pack(self, flat: np.ndarray, whole: bool) -> Packed:
        return dense(flat) if whole else pack(flat, self._kind, self._threshold, self._k)

    def _reduce(self, refusal: str, due: np.ndarray, whole: bool) -> np.ndarray:
        if whole and self._residual is not None:
            due = self._residual
        with self._rooted.operation():
            packed = self._pack(due.ravel(), whole)
            used = (self._kind, self._operation, self._threshold, self._k, due.shape, whole)
            settings = "kind={}, operation={}, threshold={}, k={}, shape {}, flush {}".format(*used)
            gathered = self._rooted.gather(_Given(refusal, settings, packed), _WHAT)
            answer, kept = self._answer(gathered, due.size, whole) if gathered else (None, None)
            answer = self._rooted.tell(answer, _Answer, _WHAT)
            if answer.refused:
                raise SettingsError(f"{'; '.join(answer.refused)}.")
        self._kept = kept
        sent = np.zeros(due.size)
        packed.add_to(sent)
        self._residual = due - sent.reshape(due.shape)
        messages = [packed] if not self._rooted.is_root else [answer.packed] * len(self._rooted.others)
        traffic = self.traffic
        self.traffic = replace(
            traffic,
            calls=traffic.calls + 1,
            sent=traffic.sent + sum(each.bytes for each in messages),
            dense=traffic.dense + due.nbytes * len(messages),
        )
        total = np.zeros(due.size)
        answer.packed.add_to(total)
        size = len(self._rooted.others) + 1 if self._rooted.is_root else self._comm.Get_size()
        return (total / size if self._operation == "mean" else total).reshape(due.shape)

    def _answer(
        self, gathered: dict[int, _Given], size: int, whole: bool
    ) -> tuple[_Answer, np.ndarray | None]:
        """Return rank 0's answer, and what is left out of it."""
        nothing = dense(np.zeros(0))
        refused = refusals(
            {rank: given.refusal for rank, given in gathered.items()},
            {rank: given.settings for rank, given in gathered.items()},
        )
        if refused:
            return _Answer(refused, nothing), None
        total = np.zeros(size) if self._kept is None else self._kept.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            for given in gathered.values():
                given.packed.add_to(total)
        if not np.isfinite(total).all():
            return _Answer(["the sum over the ranks is too large for float64"], nothing), None
        if whole:
            return _Answer([], dense(total)), None
        if self._kind in ("threshold", "top_k"):
            return _Answer([], sparse(total, np.flatnonzero(total))), None
        packed = self._pack(total, whole)
        kept = total.copy()
        replace(packed, scale=-packed.scale).add_to(kept)
        return _Answer([], packed), kept
