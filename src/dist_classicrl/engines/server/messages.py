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
    """What a push adds to the table, and what was learned; kept by its worker until the base includes it."""

    sequence: int
    packed: PackedMap
    steps: int
    learned: Learned


class Wishes(NamedTuple):
    """What a worker would like to have."""

    quantum: int = 1  # leases of multiples of it
    interval_seconds: float = 0.0  # expected between two of its pushes
    is_starved: bool = True  # it has nothing left to do
    is_urgent: bool = True  # answers should come quickly
    refresh: bool = True
    whole_refresh: bool = True  # and no preview


@message(Kind.PUSH)
class Push(NamedTuple):
    """A worker's maps, and how it is getting on: what is sent most often, so no dataclass."""

    pushed: Pushed
    made: dict[int, int]  # its steps by lease
    wishes: Wishes
    bytes_saved: int  # by leaving out what is small
    progress: int  # turns of the worker's main loop
    revision: int  # of the view that it knows
    known_version: int  # of the table when this comes if the others push nothing; -1: not known
    is_last: bool
    waiting: int = 0  # entries of which something was learned that did not go
    compressing: float = 0.0  # seconds since the last push that compressing and restoring took


@dataclass(frozen=True)
class Handover:
    """What a server knows besides its table, at a version of it: whoever has both can serve."""

    done: int  # steps of this process's part of the call
    ranks: np.ndarray  # int64, whose last pushes that the version contains are
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
    """The server's answer. A refresh includes the push `applied`, and the handover is of its version."""

    applied: int  # the last push of the worker that is in the table
    lease: Lease | None = None
    refresh: Refresh | None = None
    handover: Handover | None = None


@message(Kind.HAND_IN)
@dataclass(frozen=True)
class HandIn:
    """A push that a new server may lack: a worker sends one for each, and one if there are none."""

    pushed: Pushed | None
    is_last: bool  # that was all
    last_sequence: int  # of the worker's pushes
