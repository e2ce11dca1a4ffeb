"""Collective operations in two levels: within each host, and between hosts by one rank of each."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np

from dist_classicrl.checks import OneOf, WholeNumber, YesOrNo, is_whole
from dist_classicrl.comm.collectives import free_together, own_communicator, spin
from dist_classicrl.errors import RankLostError, SettingsError
from dist_classicrl.mpi_tools.arrays import as_numbers, type_of_sum
from dist_classicrl.mpi_tools.part import Part

METHODS = ("auto", "two_level", "mpi")
OPERATIONS = ("sum", "max", "min")
_TEXT_BYTES = 256
_MOST_NUMBERS = 2**31 - 1  # of one of MPI's operations, of which many count in 32 bits with a sign
_WHAT = "their part in a TwoLevel operation"


class TwoLevel(Part):
    """All-reduce, broadcast, reduce-scatter and all-gather that cross the network once for each host.

    Ranks of a host, which share memory, first bring together what they have; then one rank of each host, the
    leader, talks to the other leaders, and passes on what came.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The messages go over a duplicate. **Every rank constructs the object**, at the same point, and with
        the same arguments but for `host`.
    method : {"auto", "two_level", "mpi"}, default="auto"
        ``"mpi"`` leaves the operations to MPI's own. ``"auto"`` does so where there is one host only, or one
        rank on each, and else takes two levels but for `allgather`, where as many bytes cross the network
        in both ways (``benchmarks/mpi_tools.py``).
    host : str, optional
        What is to be taken for this rank's host, in up to 255 bytes. All ranks give one, or none: then
        those that share memory are on one host.
    check : bool, default=True
        Whether the ranks compare, before each operation, which one it is, and shapes and types. That takes
        one short message more. Without it, where ranks differ, MPI does what it likes.
    timeout : float, default=60
        Seconds to wait for other ranks, here and in each step of an operation: longer than the largest
        arrays need. With `check`, a rank that comes so late that others have given up gives up, too, but for
        the source of a broadcast; without it, MPI may give any such rank the result all the same.

    Raises
    ------
    SettingsError
        If an argument is not what is described here, or only some ranks give a `host`; on all ranks, if they
        give another `method` or `check`.
    RankTimeoutError, RankLostError
        If not every rank constructs its object within `timeout`, or one has died.

    Notes
    -----
    These are MPI's non-blocking operations, each waited for with a deadline, and so is every other wait but
    for the making of communicators here, which MPI has in no such form: a rank that dies right within it may
    leave the others waiting for ever. After a death or a `RankTimeoutError` the object is closed, and another
    one is needed. `QuorumBarrier` needs no single rank.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> import numpy as np
    >>> from dist_classicrl.mpi_tools import TwoLevel
    >>> with TwoLevel(MPI.COMM_SELF) as levels:
    ...     levels.allreduce(np.arange(3)).tolist(), levels.hosts
    ([0, 1, 2], ((0,),))
    """

    def __init__(
        self,
        comm: Any,
        *,
        method: str = "auto",
        host: str | None = None,
        check: bool = True,
        timeout: float = 60.0,
    ) -> None:
        method = OneOf(METHODS)("method", method)
        label = _checked_label(host)
        self._check = YesOrNo()("check", check)
        super().__init__(comm, timeout)
        self._closing = own_communicator(self._comm, self._seconds, type(self).__name__)
        self._rank, self._size = self._comm.Get_rank(), self._comm.Get_size()
        self._local: Any = None
        self._leaders: Any = None
        try:
            self._compare(f"method={method!r}, check={self._check}")
            self._local = self._split(label)
            color = 0 if self._local.Get_rank() == 0 else _undefined()
            self._leaders = self._made(self._comm.Split, color, self._rank)
            leader, leaders = np.array([self._rank]), np.empty(self._size, np.int64)
            self._do(self._local.Ibcast, leader)
            self._do(self._comm.Iallgather, leader, leaders)
        except BaseException:
            self.close()
            raise
        numbers = dict.fromkeys(leaders.tolist())
        self._hosts = tuple(tuple(np.flatnonzero(leaders == each).tolist()) for each in numbers)
        self._order = np.concatenate(self._hosts)  # ranks, those of a host behind each other
        has_levels = 1 < len(self._hosts) < self._size
        self._two_levels = has_levels if method == "auto" else method == "two_level"
        self._gathers_in_two = method == "two_level"

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, its leader first."""
        return self._hosts

    @property
    def uses_two_levels(self) -> bool:
        """Whether operations but `allgather` take two levels, and are not MPI's own."""
        return self._two_levels

    def allreduce(self, array: Any, op: str = "sum") -> np.ndarray:
        """Return the sum of all ranks' arrays, or their largest or least numbers.

        Parameters
        ----------
        array : array_like
            Whole numbers of 8 to 64 bits, float32 or float64, of the same shape and type on all ranks, and
            fewer than 2**31 of them.
        op : {"sum", "max", "min"}
            Sums are of the arrays' type, and those of whole numbers that leave it wrap round, as NumPy's do.
            Of 8 and 16 bits they are sent and added up in 32. Where one rank has NaN, the result is NaN, of
            any `op`.

        Returns
        -------
        ndarray
            Of that shape and type; of two levels the same bits on all ranks.

        Raises
        ------
        SettingsError
            On all ranks, if they give what does not fit, or one gives what is not allowed; or if this object
            is closed.
        RankTimeoutError, RankLostError
            If a rank does not do its part within `timeout`, or has died; the object is closed then.
        """
        numbers, operation = self._agreed("allreduce", array, op=op)
        given = _to_reduce(numbers, op)
        total = np.empty_like(given)
        if not self._two_levels:
            self._do(self._comm.Iallreduce, given, total, operation)
            return _reduced(total, numbers.dtype)
        own = np.empty_like(given)
        self._do(self._local.Ireduce, given, own, operation, 0)
        if self._is_leader:
            self._do(self._leaders.Iallreduce, own, total, operation)
        self._do(self._local.Ibcast, total, 0)
        return _reduced(total, numbers.dtype)

    def broadcast(self, array: Any, source: int = 0) -> np.ndarray:
        """Return the array of rank `source`; those of the others say its shape and type.

        Errors are those of `allreduce`.
        """
        given, _ = self._agreed("broadcast", array, source=source)
        found = given.copy()
        if not self._two_levels:
            self._do(self._comm.Ibcast, found, source)
            return found
        home = next(number for number, ranks in enumerate(self._hosts) if source in ranks)
        if self._rank in self._hosts[home]:
            self._do(self._local.Ibcast, found, self._hosts[home].index(source))
        if self._is_leader:
            self._do(self._leaders.Ibcast, found, home)
        if self._rank not in self._hosts[home]:
            self._do(self._local.Ibcast, found, 0)
        return found

    def reduce_scatter(self, array: Any, op: str = "sum") -> np.ndarray:
        """Return this rank's rows of the sum of all ranks' arrays, or of their largest or least numbers.

        Parameters
        ----------
        array : array_like
            As for `allreduce`, of at least one dimension.
        op : {"sum", "max", "min"}
            As for `allreduce`.

        Returns
        -------
        ndarray
            Part r of n on rank r, as ``np.array_split(total, n)`` splits the first dimension.

        Raises
        ------
        SettingsError, RankTimeoutError, RankLostError
            As `allreduce`.
        """
        numbers, operation = self._agreed("reduce_scatter", array, op=op)
        given = _to_reduce(numbers, op)
        parts = np.array_split(given, self._size)
        mine = np.empty_like(parts[self._rank])
        counts = [part.size for part in parts]
        if not self._two_levels:
            self._do(self._comm.Ireduce_scatter, given, mine, counts, operation)
            return _reduced(mine, numbers.dtype)
        total = np.empty(given.size, given.dtype)
        if not np.array_equal(self._order, range(self._size)):
            given = np.concatenate([parts[rank] for rank in self._order])
        self._do(self._local.Ireduce, given, total, operation, 0)
        by_host = [[counts[rank] for rank in ranks] for ranks in self._hosts]
        own = by_host[next(number for number, ranks in enumerate(self._hosts) if self._rank in ranks)]
        of_host = np.empty(sum(own), given.dtype)
        if self._is_leader:
            self._do(
                self._leaders.Ireduce_scatter, total, of_host, [sum(each) for each in by_host], operation
            )
        self._do(self._local.Iscatterv, [of_host, own], mine, 0)
        return _reduced(mine, numbers.dtype)

    def allgather(self, array: Any) -> np.ndarray:
        """Return the arrays of all ranks.

        Parameters
        ----------
        array : array_like
            As for `allreduce`; those of all ranks together are fewer than 2**31 numbers.

        Returns
        -------
        ndarray
            Of shape (ranks, *shape of array).

        Raises
        ------
        SettingsError, RankTimeoutError, RankLostError
            As `allreduce`.
        """
        given, _ = self._agreed("allgather", array)
        found = np.empty((self._size, *given.shape), given.dtype)
        if not self._gathers_in_two:
            self._do(self._comm.Iallgather, given, found)
            return found
        of_host = np.empty((self._local.Get_size(), *given.shape), given.dtype)
        self._do(self._local.Igather, given, of_host, 0)
        if self._is_leader:
            counts = [len(ranks) * given.size for ranks in self._hosts]
            self._do(self._leaders.Iallgatherv, of_host, [found, counts])
        self._do(self._local.Ibcast, found, 0)
        if np.array_equal(self._order, range(self._size)):
            return found
        return found[np.argsort(self._order)]

    @property
    def _is_leader(self) -> bool:
        return bool(self._local.Get_rank() == 0)

    def _split(self, label: bytes) -> Any:
        """Return the communicator of the ranks on this host."""
        from mpi4py import MPI

        labels = self._pieces(label)
        nameless = [rank for rank, each in enumerate(labels) if not each]
        if len(nameless) == self._size:
            return self._made(self._comm.Split_type, MPI.COMM_TYPE_SHARED, self._rank)
        if nameless:
            raise SettingsError(
                f"host must be given on all ranks or on none; it is missing on rank {nameless[0]}."
            )
        return self._made(self._comm.Split, labels.index(labels[self._rank]), self._rank)

    def _pieces(self, own: bytes) -> list[bytes]:
        """Return the first bytes of each rank's text, by rank."""
        sent, received = np.zeros(_TEXT_BYTES, np.uint8), np.empty((self._size, _TEXT_BYTES), np.uint8)
        piece = np.frombuffer(own[:_TEXT_BYTES], np.uint8)
        sent[: piece.size] = piece
        self._do(self._comm.Iallgather, sent, received)
        return [row.tobytes().rstrip(b"\0") for row in received]

    def _compare(self, text: str) -> None:
        """Raise on all ranks what they say where that is not the same."""
        encoded = text.encode(errors="backslashreplace").replace(b"\0", rb"\0")
        if self._is_same_everywhere(encoded):
            return
        for begin in itertools.count(0, _TEXT_BYTES // 2):  # with some of what is the same before it
            pieces = self._pieces(encoded[begin:])
            if len(set(pieces)) > 1:
                raise _unlike(pieces, begin)

    def _agreed(self, name: str, array: Any, **options: Any) -> tuple[np.ndarray, Any]:
        """Return this rank's array in one piece, and MPI's operation, when all ranks give what fits."""
        self._check_open()
        refusal, given, operation = "", np.zeros(0), None
        try:
            given, operation = self._checked(name, array, **options)
        except SettingsError as error:
            refusal = str(error).removesuffix(".")
        if self._check:
            said = "".join(f"{option}={_plain(value)!r}, " for option, value in options.items())
            text = refusal or f"{name}({said}array of {given.dtype} {given.shape})"
            self._compare(text)
        if refusal:
            raise SettingsError(f"{refusal}.")
        return given, operation

    def _checked(self, name: str, array: Any, op: Any = None, source: Any = None) -> tuple[np.ndarray, Any]:
        from mpi4py import MPI

        given = as_numbers("array", array)
        ranks = self._size if name == "allgather" else 1
        if given.size * ranks > _MOST_NUMBERS:
            together = f"; those of {ranks} ranks come together" if ranks > 1 else ""
            raise SettingsError(
                f"array must have at most {_MOST_NUMBERS // ranks:,} numbers, got {given.size:,}{together}: "
                f"MPI counts up to {_MOST_NUMBERS:,} in one operation. Call {name} for a part at a time"
            )
        if name == "broadcast" and WholeNumber(0)("source", source) >= self._size:
            raise SettingsError(f"source must be a rank below {self._size}, got {source!r}")
        if name == "reduce_scatter" and given.ndim == 0:
            raise SettingsError("array must have a dimension to be split, got a single number")
        word = None if name in ("broadcast", "allgather") else OneOf(OPERATIONS)("op", op)
        operation = {None: None, "sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}[word]
        return np.ascontiguousarray(given).reshape(given.shape), operation

    def _is_same_everywhere(self, text: bytes) -> bool:
        """Whether all ranks give the same text, by its digest: its largest and its least one are equal."""
        from mpi4py import MPI

        digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
        both = np.array([digest, -digest])
        most = np.empty_like(both)
        self._do(self._comm.Iallreduce, both, most, MPI.MAX)
        return bool(most[0] == -most[1])

    def _do(self, begin: Any, *arguments: Any) -> None:
        """Do one of MPI's non-blocking operations, within the time that it may take."""
        from mpi4py import MPI

        try:
            spin(self._comm, begin(*arguments), self._seconds, _WHAT, *arguments)
        except MPI.Exception as error:
            raise self._broken(error) from error
        except BaseException:
            self._is_closed = True  # what was begun may not end: nothing is freed, and nothing used any more
            raise

    def _made(self, split: Any, *arguments: Any) -> Any:
        """Return a communicator, which MPI makes without a deadline: all ranks are here already."""
        from mpi4py import MPI

        try:
            return split(*arguments)
        except MPI.Exception as error:
            raise self._broken(error) from error

    def _broken(self, error: BaseException) -> RankLostError:
        self._is_closed = True
        return RankLostError(
            f"MPI could not do its part of a TwoLevel operation ({error}). If a rank has died, construct "
            "another one over the ranks that are left, such as comm.Shrink()."
        )

    def _leave(self) -> None:
        made = [comm for comm in (self._local, self._leaders) if comm]
        free_together([*made, self._comm, self._closing])


def _to_reduce(given: np.ndarray, op: str) -> np.ndarray:
    """Return numbers as those of which MPI makes what NumPy would.

    Floats whose largest or least is asked for are whole numbers in their order, NaN beyond all: of NaN and a
    number MPI takes the one or the other, by which rank has it.
    """
    if op == "sum":
        return given.astype(type_of_sum(given.dtype), copy=False)
    if given.dtype.kind != "f":
        return given
    made = given.copy()
    made[np.isnan(made)] = np.copysign(np.nan, 1.0 if op == "max" else -1.0)
    whole = made.view(f"i{made.itemsize}")
    _flip(whole)
    return whole


def _reduced(found: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return what MPI made of what `_to_reduce` returned, as numbers of the type that it was given."""
    if dtype.kind != "f" or found.dtype == dtype:
        return found.astype(dtype, copy=False)
    _flip(found)
    made = found.view(dtype)
    made[np.isnan(made)] = np.nan
    return made


def _flip(whole: np.ndarray) -> None:
    """Turn the order of negative numbers round: as bits, that of a float grows with its distance from 0."""
    whole ^= (whole >> (8 * whole.itemsize - 1)) & np.iinfo(whole.dtype).max


def _unlike(pieces: list[bytes], begin: int) -> SettingsError:
    """Return the error for what is not the same on all ranks: what each says from some byte of it on."""
    texts = [
        "..." * (begin > 0) + piece.decode(errors="replace") + "..." * (len(piece) == _TEXT_BYTES)
        for piece in pieces
    ]
    unlike = [f"rank {rank}: {each}" for rank, each in enumerate(texts) if each != texts[0]]
    return SettingsError(f"rank 0: {texts[0]}; {'; '.join(unlike)}. Give all ranks the same.")


def _plain(value: Any) -> Any:
    """Return an option as Python's own number or text: NumPy's of the same value is no other one."""
    if is_whole(value):
        return int(value)
    return str(value) if isinstance(value, str) else value


def _checked_label(host: Any) -> bytes:
    """Return the bytes of a host's name, which may be of a file system that is not UTF-8; none for None."""
    label = host.encode(errors="surrogatepass") if isinstance(host, str) else b""
    if host is not None and (not 0 < len(label) < _TEXT_BYTES or b"\0" in label):
        raise SettingsError(
            f"host must be a text of 1 to {_TEXT_BYTES - 1} bytes without NUL, or None, got {host!r}."
        )
    return label


def _undefined() -> int:
    from mpi4py import MPI

    return MPI.UNDEFINED
