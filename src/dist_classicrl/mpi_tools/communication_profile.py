"""How long messages and collective operations take between the ranks of a communicator, by size.

Rank 0 orders what is measured next; who has no part in it sleeps, so that it takes no core from those who
have. Collective operations are measured in their non-blocking forms, which alone can be given a deadline.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from dist_classicrl.comm.collectives import spin
from dist_classicrl.comm.rooted import RootedCollectives

COLLECTIVES = ("barrier", "bcast", "allreduce", "gather", "allgather")
POINT_TO_POINT = "point-to-point"
MOST_GATHERED_BYTES = 1 << 28  # larger results of gather and allgather are left out
MOST_HOSTS_IN_PAIRS = 8  # up to so many, each is measured with every other one, if "some" pairs are
HOST_PAIRS = ("one", "some", "all")
_TAG = 2
_CHUNK_SECONDS = 0.25
_WHAT = "its part in the measuring of communication"


@dataclass(frozen=True)
class Measurement:
    """How long one operation takes: half a round trip, or until the last rank has finished."""

    operation: str  # `POINT_TO_POINT`, or one of `COLLECTIVES`
    ranks: tuple[int, ...]  # who takes part
    same_host: bool  # all these are on one host
    bytes: int  # of the message, and in a collective operation of what each rank gives
    iterations: int  # how often it was measured
    seconds: float  # the median
    fastest: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data for JSON."""
        return {**asdict(self), "ranks": list(self.ranks), "bandwidth": self.bandwidth}


@dataclass(frozen=True)
class CommunicationProfile:
    """What `measure` found."""

    hosts: tuple[str, ...]  # by rank
    measurements: tuple[Measurement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {"hosts": list(self.hosts), "measurements": [each.to_dict() for each in self.measurements]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CommunicationProfile:
        """Return what `to_dict` described."""
        entries = [{key: each[key] for key in each if key != "bandwidth"} for each in data["measurements"]]
        found = (Measurement(**{**entry, "ranks": tuple(entry["ranks"])}) for entry in entries)
        return cls(tuple(data["hosts"]), tuple(found))


def measure(
    comm: Any,
    rooted: RootedCollectives,
    sizes: Sequence[int],
    iterations: int,
    seconds_each: float | None = None,
    collectives: Sequence[str] = COLLECTIVES,
    host_pairs: str = "one",
    seconds: float | None = None,
) -> CommunicationProfile:
    """Measure messages and collective operations at all `sizes`. Every rank calls it, and gets the result.

    `comm` is the caller's alone, and what `rooted` is over; errors are those of `RootedCollectives.receive`.
    Each is measured so many times, or fewer where that takes longer than `seconds_each`; after `seconds`
    nothing more is begun. Messages go between rank 0 and another rank of its host and of one other host, or
    between "some" or "all" `pairs_of_hosts`, and on each of these hosts. Sizes are in bytes.
    """
    with rooted.operation():
        hosts = rooted.gather(_Host(socket.gethostname()), _WHAT)
        if rooted.rank:
            return _follow(comm, rooted)
        names = tuple(host.name for host in hosts.values())
        found = []
        begun = time.monotonic()
        for step in _plan(names, sizes, collectives, host_pairs):
            if seconds is not None and time.monotonic() - begun > seconds:
                break
            times = _lead(comm, rooted, step, iterations, seconds_each)
            same_host = len({names[rank] for rank in step.ranks}) == 1
            median = statistics.median(times)
            found.append(
                Measurement(step.operation, step.ranks, same_host, step.size, len(times), median, min(times))
            )
        profile = CommunicationProfile(names, tuple(found))
        rooted.tell(_Order(None, 0, profile), _Order, _WHAT)
        return profile


@dataclass(frozen=True)
class _Host:
    """Where a rank is."""

    name: str


@dataclass(frozen=True)
class _Step:
    """One operation to measure."""

    operation: str
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class _Order:
    """What rank 0 tells the others: to make a step `n` times, or in the end what was found."""

    step: _Step | None
    n: int
    profile: CommunicationProfile | None


@dataclass(frozen=True)
class _Times:
    """How long a step took on one rank, each time that it was made."""

    seconds: np.ndarray


def pairs_of_hosts(hosts: Sequence[str], host_pairs: str = "some") -> list[tuple[int, int]]:
    """Return the pairs of ranks, one for each two hosts, which are given by rank: the first ranks of these.

    "one" is that of rank 0 and the next host. "some" are all up to `MOST_HOSTS_IN_PAIRS` hosts, and of more
    each with that of rank 0, and with the next one in a ring.
    """
    first = [hosts.index(host) for host in dict.fromkeys(hosts)]
    pairs = list(combinations(first, 2))
    if host_pairs == "one":
        return pairs[:1]
    if host_pairs == "all" or len(first) <= MOST_HOSTS_IN_PAIRS:
        return pairs
    ring = set(zip(first, first[1:], strict=False))
    return [pair for pair in pairs if pair[0] == first[0] or pair in ring]


def _plan(
    hosts: tuple[str, ...], sizes: Sequence[int], collectives: Sequence[str], host_pairs: str = "one"
) -> list[_Step]:
    """Return what to measure: messages on rank 0's host, or on each, messages between hosts, and all."""
    everybody = tuple(range(len(hosts)))
    on_hosts = ([rank for rank in everybody if hosts[rank] == host] for host in dict.fromkeys(hosts))
    near = [(ranks[0], ranks[1]) for ranks in on_hosts if len(ranks) > 1]
    if host_pairs == "one":
        near = [pair for pair in near if pair[0] == 0]
    pairs = near + pairs_of_hosts(hosts, host_pairs)
    plan = [_Step(POINT_TO_POINT, pair, size) for pair in pairs for size in sizes]
    for operation in collectives if len(hosts) > 1 else ():
        for size in sizes if operation != "barrier" else (0,):
            if "gather" not in operation or size * len(hosts) <= MOST_GATHERED_BYTES:
                plan.append(_Step(operation, everybody, size))
    return plan


def _lead(
    comm: Any, rooted: RootedCollectives, step: _Step, iterations: int, seconds_each: float | None
) -> list[float]:
    """Order one operation in chunks, between which those who wait are told that this rank is there."""
    partners = [rank for rank in step.ranks if rank]
    run = _runner(comm, rooted, step)

    def measured(n: int) -> list[float]:
        rooted.send(partners, _Order(step, n, None))
        own = [run(n)] if 0 in step.ranks else []
        reports = rooted.receive(partners, _Times, _WHAT)
        rooted.beat()
        slowest: list[float] = np.max([*own, *(each.seconds for each in reports.values())], axis=0).tolist()
        return slowest

    measured(1)  # does not count: connections and buffers are new
    times: list[float] = []
    begun, chunk = time.perf_counter(), 1
    while len(times) < iterations:
        times += measured(chunk)
        if seconds_each is not None and time.perf_counter() - begun > seconds_each:
            break
        in_time = int(_CHUNK_SECONDS / max(statistics.median(times), 1e-7))
        chunk = max(1, min(iterations - len(times), 2 * chunk, in_time))
    return times


def _follow(comm: Any, rooted: RootedCollectives) -> CommunicationProfile:
    runners: dict[_Step, Callable[[int], np.ndarray]] = {}
    while True:
        order = rooted.tell(None, _Order, _WHAT)
        if order.step is None:
            assert order.profile is not None
            return order.profile
        if order.step not in runners:
            runners = {order.step: _runner(comm, rooted, order.step)}
        rooted.send([0], _Times(runners[order.step](order.n)))


def _runner(comm: Any, rooted: RootedCollectives, step: _Step) -> Callable[[int], np.ndarray]:
    """Return a function that makes an operation so often, and returns how long each took on this rank."""
    if step.operation == POINT_TO_POINT:
        first = rooted.rank == step.ranks[0]
        return _ping_pong(comm, rooted, step.ranks[1] if first else step.ranks[0], first, step.size)
    start, start_barrier = _starter(comm, step.operation, step.size), _starter(comm, "barrier", 0)

    def run(n: int) -> np.ndarray:
        seconds = np.empty(n)
        for i in range(n):
            request, *buffers = start_barrier()
            spin(comm, request, rooted.seconds, _WHAT, *buffers)
            begun = time.perf_counter()
            request, *buffers = start()
            spin(comm, request, rooted.seconds, _WHAT, *buffers)
            seconds[i] = time.perf_counter() - begun
        return seconds

    return run


def _ping_pong(
    comm: Any, rooted: RootedCollectives, peer: int, first: bool, size: int
) -> Callable[[int], np.ndarray]:
    from mpi4py import MPI

    outgoing, incoming = np.zeros(size, np.uint8), np.empty(size, np.uint8)

    def send() -> None:
        spin(comm, comm.Isend([outgoing, MPI.BYTE], peer, _TAG), rooted.seconds, _WHAT, outgoing)

    def receive() -> None:
        spin(comm, comm.Irecv([incoming, MPI.BYTE], peer, _TAG), rooted.seconds, _WHAT, incoming)

    def run(n: int) -> np.ndarray:
        seconds = np.zeros(n + 1)
        for i in range(n + 1):
            begun = time.perf_counter()
            if first:
                send()
                receive()
                seconds[i] = 0.5 * (time.perf_counter() - begun)
            else:
                receive()
                send()
        return seconds[1:]  # at first the peer may be asleep still

    return run


def _starter(comm: Any, operation: str, size: int) -> Callable[[], tuple[Any, ...]]:
    """Return a function that starts a collective operation and returns its request and its buffers."""
    own = np.zeros(size, np.uint8)
    if operation == "barrier":
        return lambda: (comm.Ibarrier(),)
    if operation == "bcast":
        return lambda: (comm.Ibcast(own, 0), own)
    if operation == "allreduce":
        numbers = np.zeros(-(-size // 8))
        total = np.empty_like(numbers)
        return lambda: (comm.Iallreduce(numbers, total), numbers, total)
    gathered = np.empty(size * comm.Get_size(), np.uint8)
    if operation == "gather":
        target = gathered if comm.Get_rank() == 0 else None
        return lambda: (comm.Igather(own, target, 0), own, target)
    return lambda: (comm.Iallgather(own, gathered), own, gathered)
