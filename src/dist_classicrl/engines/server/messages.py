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
    given_back: tuple[int, ...] = ()  # leases of which it makes no more than it has reported


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
    version: int = -1  # of the table as this was sent


class ComposedPart(NamedTuple):
    """What a composed map has of one worker, besides the maps: its pushes `first` to `last`."""

    rank: int
    first: int
    last: int
    steps: int
    made: dict[int, int]  # its steps by lease
    learned: Learned
    wishes: Wishes
    known_version: int  # as of the first of the pushes
    bytes_saved: int
    is_last: bool
    waiting: int
    compressing: float
    given_back: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, push: Push) -> ComposedPart:
        """Return what there is of one push of worker `rank`."""
        pushed = push.pushed
        return cls(
            rank,
            pushed.sequence,
            pushed.sequence,
            pushed.steps,
            push.made,
            pushed.learned,
            push.wishes,
            push.known_version,
            push.bytes_saved,
            push.is_last,
            push.waiting,
            push.compressing,
            push.given_back,
        )

    def then(self, later: ComposedPart) -> ComposedPart:
        """Return this and what the same worker pushed next as one part."""
        made = dict(self.made)
        for lease, steps in later.made.items():
            made[lease] = made.get(lease, 0) + steps
        return later._replace(
            first=self.first,
            steps=self.steps + later.steps,
            made=made,
            learned=Learned(*map(sum, zip(self.learned, later.learned, strict=True))),
            wishes=later.wishes._replace(refresh=self.wishes.refresh or later.wishes.refresh),
            known_version=self.known_version,
            bytes_saved=self.bytes_saved + later.bytes_saved,
            is_last=self.is_last or later.is_last,
            waiting=max(self.waiting, later.waiting),
            compressing=self.compressing + later.compressing,
            given_back=self.given_back + later.given_back,
        )


@message(Kind.COMPOSED)
class Composed(NamedTuple):
    """Maps of several workers as one, from the server of their node to the one above it.

    It is applied whole, or not at all.
    """

    route: int  # the number of the `Route` that the sender has
    number: int  # of the sender's composed maps on this route, from 1
    packed: PackedMap
    parts: tuple[ComposedPart, ...]  # one for each worker


@message(Kind.ROUTE)
class Route(NamedTuple):
    """The server's: which way a rank's maps go from now on, until the next.

    Maps go to `parent` and refreshes come from it; all else stays between the rank and the server.
    """

    number: int
    parent: int
    below: tuple[int, ...]  # ranks whose maps it composes and passes on; empty: it learns
    node_servers: int  # ranks that compose, and do not learn
    applied: int  # the rank's last push that is in the table: what came after it has to go the new way


@message(Kind.PROBE)
class Probe(NamedTuple):
    """The server's, which the worker sends back as it is: how long that takes tells how fast the link is."""

    number: int
    load: np.ndarray  # uint8


@message(Kind.PASSED_ON)
@dataclass(frozen=True)
class PassedOn:
    """The answer to the server of a node, for all below it, and its own to each of these.

    A refresh includes what its handover says, which is of its version.
    """

    number: int  # of the receiver's last push, or composed map, that is in the table; 0: none
    refresh: Refresh | None = None
    handover: Handover | None = None
    version: int = -1  # of the table at the root, as far as the sender knows


@message(Kind.HAND_IN)
@dataclass(frozen=True)
class HandIn:
    """A push that a new server may lack: a worker sends one for each, and one if there are none."""

    pushed: Pushed | None
    is_last: bool  # that was all
    last_sequence: int  # of the worker's pushes
