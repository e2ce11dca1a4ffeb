"""Arrays that ranks add up, average or take over while they go on computing.

Each rank tells every other one what it is about to give: a digest of names, shapes and types. When all agree,
the numbers go in one of MPI's non-blocking operations for each type; so the ranks that are missing are known
by name, and what does not fit is refused before anything is sent that MPI could not take.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from dist_classicrl.checks import OneOf, WholeNumber, checked_positive
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode, message
from dist_classicrl.comm.remote_errors import Failed
from dist_classicrl.comm.transport import Backoff, Channel, Wire, leave_to_mpi
from dist_classicrl.errors import RankLostError, RankTimeoutError, SettingsError
from dist_classicrl.mpi_tools.arrays import as_numbers, type_of_sum
from dist_classicrl.mpi_tools.links import Link, close, receive
from dist_classicrl.mpi_tools.part import Part

OPERATIONS = ("sum", "mean")
_TAG = 1
_AWAKE_SECONDS = 2e-3  # of a wait: most are over by then, and sleeping would make them longer
_MESSAGE_BYTES = 1 << 12
_MOST_NUMBERS = 1 << 30  # of one of MPI's operations, of which many count in 31 bits


@message(Kind.OFFER)
@dataclass(frozen=True)
class _Offer:
    """What the sender gives in its synchronization of this number: why it cannot, or what.

    The description, as JSON, is left out where the receiver has been told which one has the digest.
    """

    number: int
    refusal: str
    digest: str
    description: str


@message(Kind.PARTED)
@dataclass(frozen=True)
class _Parted:
    """The sender has left by an exception, or with synchronizations that it did not wait for."""

    failed: Failed
    unfinished: tuple[int, ...]  # the numbers of those that were not complete there
    last: int  # the number of the last one that it has started

    def ends(self, number: int) -> bool:
        """Whether a synchronization may not become complete; to one that was complete it gave its part."""
        return number > self.last or number in self.unfinished


class _Peer(Link):
    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.offers: dict[int, _Offer] = {}
        self.descriptions: dict[str, str] = {}  # by digest
        self.parted: _Parted | None = None

    def acknowledge(self) -> None:
        """Do nothing: nobody can run ahead of who does not listen."""


class SyncHandle:
    """One synchronization under way, see `ParameterSync.start`."""

    def __init__(self, sync: ParameterSync, number: int, given: _Given) -> None:
        self._sync = sync
        self._number = number
        self._given = given
        self._requests: list[Any] | None = None  # not before all ranks agree
        self._broken: BaseException | None = None  # why its operations were not begun, or do not end
        self._error: SettingsError | None = None
        self._result: dict[str, np.ndarray] | None = None

    def test(self) -> bool:
        """Return whether it is complete, or has failed: `wait` would not wait. Never waits.

        Call it now and then while computing: what all ranks have to agree on goes on in it.

        Raises
        ------
        RankLostError, RemoteRankError, SettingsError
            As `wait`.
        """
        self._sync._progress(self)
        return self._is_over

    def wait(self, timeout: float | None = None) -> dict[str, np.ndarray]:
        """Wait for the result.

        Parameters
        ----------
        timeout : float, optional
            Seconds; what the `ParameterSync` was made with if left out.

        Returns
        -------
        dict of str to ndarray
            By name, in the shapes and types that were given; the same on all ranks, and new arrays.

        Raises
        ------
        SettingsError
            On all ranks, if ranks gave what does not fit, or one of them gave what is not allowed.
        RankTimeoutError
            After `timeout` seconds; it names the ranks that have not started this synchronization. It goes
            on, and may be waited for again.
        RankLostError
            If MPI reports that a rank has died, or gives another error, or a rank has closed its
            `ParameterSync` without taking part.
        RemoteRankError
            If another rank left its ``with`` block by an exception, or closed its `ParameterSync` before
            this synchronization was complete there: what a rank has waited for completes on all.
        """
        seconds = self._sync._seconds if timeout is None else checked_positive("timeout", timeout)
        wire = self._sync._wire
        begun = wire.now()
        backoff = Backoff(wire.sleep)
        while not self.test():
            now = wire.now()
            if now > begun + seconds:
                raise self._sync._timed_out(self._number, seconds)
            if now < begun + _AWAKE_SECONDS:
                os.sched_yield()
            else:
                backoff.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    @property
    def _is_over(self) -> bool:
        return self._error is not None or self._result is not None


class ParameterSync(Part):
    """Adds up, averages or copies named arrays over all ranks, without waiting while that goes on.

    `start` returns a handle at once, and the arrays may be changed from then on. Several may be under way;
    all ranks start the same ones in the same order. However many arrays there are, those of one type travel
    as one message, in MPI's own non-blocking all-reduce or broadcast.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The messages go over a duplicate. **Every rank constructs the object**, at the same point.
    timeout : float, default=60
        Seconds to wait for other ranks, here and in `SyncHandle.wait`.

    Raises
    ------
    SettingsError
        If an argument is not what is described here.
    RankTimeoutError, RankLostError
        If not every rank constructs its object within `timeout`, or one has died.

    Notes
    -----
    Ranks agree first by one short message between any two of them, which is what may be waited for with a
    deadline. If a rank dies after that, MPI's operation may not end: with ULFM that is a `RankLostError`,
    elsewhere a `RankTimeoutError`, and a new `ParameterSync` is needed over the ranks that are left.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> import numpy as np
    >>> from dist_classicrl.mpi_tools import ParameterSync
    >>> with ParameterSync(MPI.COMM_SELF) as sync:
    ...     handle = sync.start({"weights": np.ones((2, 2)), "bias": np.zeros(2)}, op="mean")
    ...     busy = 1 + 1  # compute, and call handle.test() now and then
    ...     handle.wait()["weights"].tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, comm: Any, *, timeout: float = 60.0) -> None:
        super().__init__(comm, timeout)
        self._wire = Wire(self._comm)
        others = [rank for rank in range(self._wire.size) if rank != self._wire.rank]
        self._peers = [_Peer(self._wire.channel(rank, _TAG, _MESSAGE_BYTES)) for rank in others]
        self._number = 0
        self._has_failed = False
        self._told: set[str] = set()  # digests of the descriptions that all others have been sent
        self._under_way: deque[SyncHandle] = deque()

    def start(
        self, arrays: Mapping[str, Any], op: str | None = None, source: int | None = None
    ) -> SyncHandle:
        """Begin to synchronize arrays; every rank calls it, with the same names, shapes and types.

        Parameters
        ----------
        arrays : mapping of str to array_like
            Whole numbers of 8 to 64 bits, float32 or float64, of any shape. With a `source`, those of the
            other ranks only say what is expected.
        op : {"sum", "mean"}, optional
            What is made of them; ``"mean"`` of float32 and float64 only. Sums are of the arrays' types, and
            those of whole numbers that leave the type wrap round, as NumPy's do. Of 8 and 16 bits they are
            sent and added up in 32.
        source : int, optional
            In place of `op`: the rank whose arrays all get.

        Returns
        -------
        SyncHandle
            Its `wait` raises what is wrong with the arguments of any rank, on all of them.

        Raises
        ------
        SettingsError
            If this object is closed.
        """
        self._check_open()
        given = _Given.of(arrays, op, source, self._wire.size)
        self._number += 1
        is_new = given.digest not in self._told
        self._told.add(given.digest)
        offer = _Offer(self._number, given.refusal, given.digest, given.description if is_new else "")
        encoded = encode(offer)
        for peer in self._peers:
            peer.channel.send(encoded)
        handle = SyncHandle(self, self._number, given)
        self._under_way.append(handle)
        self._advance()
        return handle

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        if error is not None and not self._is_closed:
            self._say_failed(error)
        self.close()

    def _progress(self, handle: SyncHandle) -> None:
        """Go on with all that is under way; raise what ends the waiting for `handle`."""
        if handle._is_over:
            return
        self._check_open()
        self._advance()
        if handle._is_over:
            return
        for peer in self._peers:
            if peer.parted is not None and peer.parted.ends(handle._number):
                raise peer.parted.failed.error()
            if peer.channel.lost is not None:
                raise RankLostError(
                    f"Rank {peer.rank} died before synchronization {handle._number} was complete. Go on over "
                    "the ranks that are left, such as comm.Shrink()."
                )
            if peer.has_left and handle._number not in peer.offers:
                raise RankLostError(
                    f"Rank {peer.rank} closed its ParameterSync without synchronization {handle._number}. "
                    "Every rank has to start the same ones before it closes its own."
                )
        for each in self._under_way:
            if each._broken is not None and each._number <= handle._number:
                raise RankLostError(
                    f"Synchronization {each._number} could not be done ({each._broken}). If a rank has "
                    "died, construct another ParameterSync over the ranks that are left, such as "
                    "comm.Shrink(); else on all ranks."
                ) from each._broken

    def _advance(self) -> None:
        for peer, content in receive(self._wire, [peer for peer in self._peers if not peer.has_left]):
            if isinstance(content, _Parted):
                peer.parted = content
            else:
                peer.offers[content.number] = content
                if content.description:
                    peer.descriptions[content.digest] = content.description
        for handle in self._under_way:  # in their order, as MPI needs it
            if handle._broken is not None or (handle._requests is None and not self._begin(handle)):
                break
        for handle in [each for each in self._under_way if self._is_complete(each)]:
            handle._result = None if handle._error else handle._given.result(self._wire.size)
            self._under_way.remove(handle)
            for peer in self._peers:
                del peer.offers[handle._number]

    def _begin(self, handle: SyncHandle) -> bool:
        """Begin with MPI's operations, or refuse it, if all ranks have said what they give."""
        from mpi4py import MPI

        number, given = handle._number, handle._given
        if any(number not in peer.offers for peer in self._peers):
            return False
        refusals = {peer.rank: peer.offers[number].refusal for peer in self._peers}
        refusals[self._wire.rank] = given.refusal
        texts = [f"rank {rank}: {refusal}" for rank, refusal in sorted(refusals.items()) if refusal]
        if not texts:
            about = {peer.rank: peer.descriptions[peer.offers[number].digest] for peer in self._peers}
            texts = _unlike({**about, self._wire.rank: given.description})
        handle._requests = []
        if texts:
            handle._error = SettingsError(f"{'; '.join(texts)}.")
            return True
        try:
            for request in given.begin(self._comm):
                handle._requests.append(request)
        except BaseException as error:
            handle._broken = error
            if not isinstance(error, MPI.Exception):
                raise
        return handle._broken is None

    def _is_complete(self, handle: SyncHandle) -> bool:
        from mpi4py import MPI

        if handle._requests is None or handle._broken is not None:
            return False
        try:
            return all([request.Test() for request in handle._requests])
        except MPI.Exception as error:
            handle._broken = error
            return False

    def _timed_out(self, number: int, seconds: float) -> RankTimeoutError:
        silent = [str(peer.rank) for peer in self._peers if number not in peer.offers]
        if silent:
            who = f"nothing came from rank{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
        else:
            who = "all ranks have started it, but the numbers are under way still"
        return RankTimeoutError(
            f"Synchronization {number} is not complete after {seconds:g} s: {who}. Every rank has to start "
            "it, and to call test or wait; if one may take that long, raise timeout=, or wait again."
        )

    def _leave(self) -> None:
        for handle in self._under_way:
            if handle._requests:
                leave_to_mpi(handle._requests, handle._given)
        if self._under_way:
            number = self._under_way[0]._number
            error = RankLostError(
                f"This rank closed its ParameterSync before synchronization {number} was over."
            )
            self._say_failed(error)
        for peer in self._peers:
            peer.say_goodbye()
        if self._under_way:  # MPI still works on its communicator, here or on a rank that has begun with it
            for peer in self._peers:
                peer.channel.close(1.0)
        else:
            close(self._wire, self._comm, self._peers, 1.0)

    def _say_failed(self, error: BaseException) -> None:
        """Tell the others, once, why nothing more comes of this rank."""
        if self._has_failed:
            return
        self._has_failed = True
        unfinished = tuple(handle._number for handle in self._under_way)
        parted = encode(_Parted(Failed.of(error, self._wire.rank), unfinished, self._number))
        for peer in self._peers:
            peer.channel.send(parted)


class _Given:
    """What one rank gives: what is wrong with it, or its numbers, those of one type behind each other."""

    def __init__(self, refusal: str, about: dict[str, Any], flat: dict[str, np.ndarray]) -> None:
        self.refusal = refusal
        self.description = json.dumps(about)
        self.digest = hashlib.blake2b(self.description.encode(), digest_size=16).hexdigest()
        self._about = about
        self._flat = flat
        self._received = flat

    @classmethod
    def of(cls, arrays: Any, op: Any, source: Any, size: int) -> _Given:
        try:
            return cls._checked(arrays, op, source, size)
        except SettingsError as error:
            return cls(str(error).removesuffix("."), {}, {})

    @classmethod
    def _checked(cls, arrays: Any, op: Any, source: Any, size: int) -> _Given:
        if (op is None) == (source is None):
            raise SettingsError(f"give op= or source=, one of them, got op={op!r} and source={source!r}")
        if op is not None:
            OneOf(OPERATIONS)("op", op)
        elif WholeNumber(0)("source", source) >= size:
            raise SettingsError(f"source must be a rank below {size}, got {source!r}")
        if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
            raise SettingsError(f"arrays must be a mapping of names to arrays, got {arrays!r:.80}")
        made = {name: as_numbers(repr(name), array) for name, array in arrays.items()}
        for name, array in made.items() if op == "mean" else ():
            if array.dtype.kind != "f":
                raise SettingsError(
                    f"{name!r} must be float32 or float64 for op='mean', got {array.dtype}; use astype(float)"
                )
        layout = []
        by_type: dict[str, list[np.ndarray]] = {}
        for name, array in made.items():
            dtype = array.dtype.str
            layout.append([name, dtype, array.shape])
            by_type.setdefault(dtype, []).append(array.ravel())
        sent = {dtype: np.dtype(dtype) if op is None else type_of_sum(np.dtype(dtype)) for dtype in by_type}
        flat = {dtype: np.concatenate(several, dtype=sent[dtype]) for dtype, several in by_type.items()}
        return cls("", {"op": op, "source": None if source is None else int(source), "arrays": layout}, flat)

    def begin(self, comm: Any) -> Iterator[Any]:
        """Start MPI's operations, and yield the request of each."""
        source = self._about["source"]
        if source is None:
            self._received = {each: np.empty_like(flat) for each, flat in self._flat.items()}
        for each, flat in self._flat.items():
            for first in range(0, flat.size, _MOST_NUMBERS):
                some = slice(first, first + _MOST_NUMBERS)
                if source is None:
                    yield comm.Iallreduce(flat[some], self._received[each][some])
                else:
                    yield comm.Ibcast(flat[some], source)

    def result(self, size: int) -> dict[str, np.ndarray]:
        """Return the arrays by name, once the operations are complete on so many ranks."""
        if self._about["op"] == "mean":
            for flat in self._received.values():
                flat /= size
        places = dict.fromkeys(self._received, 0)
        found = {}
        for name, dtype, shape in self._about["arrays"]:
            begin = places[dtype]
            places[dtype] = begin + math.prod(shape)
            received = self._received[dtype][begin : places[dtype]]
            found[name] = received.astype(dtype, copy=False).reshape(shape)
        return found


def _unlike(descriptions: dict[int, str]) -> list[str]:
    """Return for each rank that describes something else than rank 0 where that begins."""
    texts = []
    for rank, description in sorted(descriptions.items()):
        if description == descriptions[0]:
            continue
        here, there = (_said(json.loads(each)) for each in (description, descriptions[0]))
        pairs = zip_longest(here, there, fillvalue="no more arrays")
        one, another = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
        texts.append(f"rank {rank} gives {one}, rank 0 {another}; give all ranks the same")
    return texts


def _said(about: dict[str, Any]) -> list[str]:
    arrays = (f"{name!r} of {np.dtype(dtype).name} {tuple(shape)}" for name, dtype, shape in about["arrays"])
    return [f"op={about['op']!r} and source={about['source']!r}", *arrays]
