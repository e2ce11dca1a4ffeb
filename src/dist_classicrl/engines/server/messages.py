"""What the server and the workers of asynchronous training tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.engines.outcome import Counted, Learned
from dist_classicrl.engines.server.leases import Lease
from dist_classicrl.tables.maps import PackedMap, Refresh


class Pushed(NamedTuple):
    """What a push adds to the table, and what it says of the learning behind that.

    A worker keeps it until its base includes it.
    """

    sequence: int
    packed: PackedMap
    steps: int
    learned: Learned


class Wishes(NamedTuple):
    """What a worker would like to have.

    Attributes
    ----------
    quantum : int
        Leases of multiples of it.
    interval_seconds : float
        Expected between two of its pushes.
    is_starved : bool
        Whether it has nothing left to do.
    is_urgent : bool
        Whether answers should come quickly.
    refresh : bool
        Whether it wants one.
    """

    quantum: int = 1
    interval_seconds: float = 0.0
    is_starved: bool = True
    is_urgent: bool = True
    refresh: bool = True


@message(Kind.PUSH)
class Push(NamedTuple):
    """A worker's maps, and how it is getting on: what is sent most often, so no dataclass.

    Attributes
    ----------
    pushed : Pushed
    made : dict of int to int
        Its steps by lease.
    wishes : Wishes
    bytes_saved : int
        By leaving out what is small.
    progress : int
        Turns of the worker's main loop.
    revision : int
        Of the view that it knows.
    known_version : int
        The version that the table has when this comes if the others push nothing; -1: not known.
    is_last : bool
        Whether it sends no other.
    """

    pushed: Pushed
    made: dict[int, int]
    wishes: Wishes
    bytes_saved: int
    progress: int
    revision: int
    known_version: int
    is_last: bool


@dataclass(frozen=True)
class Handover:
    """What a server knows besides its table, at a version of it: whoever has both can serve.

    Attributes
    ----------
    done : int
        Steps of this process's part of the call.
    ranks, sequences : ndarray(int64)
        The last push that the version contains of each rank.
    tally : Counted
    """

    done: int
    ranks: np.ndarray
    sequences: np.ndarray
    tally: Counted

    @classmethod
    def of(cls, done: int, applied: dict[int, int], tally: Counted) -> Handover:
        """Return the handover of a version with the pushes `applied`, by rank."""
        return cls(done, np.array([*applied], np.int64), np.array([*applied.values()], np.int64), tally)

    @property
    def applied(self) -> dict[int, int]:
        """The last push that the version contains, by rank."""
        return dict(zip(self.ranks.tolist(), self.sequences.tolist(), strict=True))


@message(Kind.REPLY)
@dataclass(frozen=True)
class Reply:
    """The server's answer.

    Attributes
    ----------
    applied : int
        The last push of the worker that is in the table.
    lease : Lease or None
    refresh : Refresh or None
        Includes the push.
    handover : Handover or None
        Of the refresh's version.
    """

    applied: int
    lease: Lease | None = None
    refresh: Refresh | None = None
    handover: Handover | None = None


@message(Kind.HAND_IN)
@dataclass(frozen=True)
class HandIn:
    """A push that a new server may lack: a worker sends one for each, and one if there are none.

    Attributes
    ----------
    pushed : Pushed or None
    is_last : bool
        Whether that was all.
    last_sequence : int
        Number of the worker's last push.
    """

    pushed: Pushed | None
    is_last: bool
    last_sequence: int
