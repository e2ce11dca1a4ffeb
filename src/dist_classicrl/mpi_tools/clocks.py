"""How far the clocks of ranks are apart, as NTP finds it out: by the fastest of some round trips."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dist_classicrl.comm.collectives import spin
from dist_classicrl.comm.rooted import RootedCollectives

_ROUNDS = 20
_TAG = 3
_WHAT = "their part in the comparison of clocks"


@dataclass(frozen=True)
class ClockOffset:
    """How far a rank's clock is from that of rank 0, in seconds."""

    rank: int
    offset: float  # positive where it is ahead
    uncertainty: float  # by how much that may be wrong: half of the fastest round trip

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _YourTurn:
    """Rank 0 is about to compare the receiver's clock."""


def compare_clocks(comm: Any, rooted: RootedCollectives) -> list[ClockOffset]:
    """Compare every rank's clock with that of rank 0, which gets the result. Every rank calls it.

    `comm` is the caller's alone, and what `rooted` is over; errors are those of `RootedCollectives.receive`.
    """
    with rooted.operation():
        if rooted.rank:
            rooted.receive([0], _YourTurn, _WHAT)
            _answer(comm, rooted)
            return []
        found = []
        for rank in rooted.others:
            rooted.send([rank], _YourTurn())
            found.append(_ask(comm, rooted, rank))
            rooted.beat()
        return found


def _ask(comm: Any, rooted: RootedCollectives, rank: int) -> ClockOffset:
    trips = []
    question, answer = np.zeros(1), np.zeros(1)
    for _ in range(_ROUNDS):
        sent = time.time()
        spin(comm, comm.Isend(question, rank, _TAG), rooted.seconds, _WHAT, question)
        spin(comm, comm.Irecv(answer, rank, _TAG), rooted.seconds, _WHAT, answer)
        received = time.time()
        trips.append((received - sent, float(answer[0]) - 0.5 * (sent + received)))
    seconds, offset = min(trips)
    return ClockOffset(rank, offset, 0.5 * seconds)


def _answer(comm: Any, rooted: RootedCollectives) -> None:
    question, answer = np.zeros(1), np.zeros(1)
    for _ in range(_ROUNDS):
        spin(comm, comm.Irecv(question, 0, _TAG), rooted.seconds, _WHAT, question)
        answer[0] = time.time()
        spin(comm, comm.Isend(answer, 0, _TAG), rooted.seconds, _WHAT, answer)
