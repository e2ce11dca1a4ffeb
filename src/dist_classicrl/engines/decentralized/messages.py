"""What the ranks of a training without a server in the data path tell each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.engines.decentralized.stride import Stride
from dist_classicrl.engines.outcome import Counted
from dist_classicrl.tables.maps import PackedSums, Refresh


@dataclass(frozen=True)
class RoundsCut:
    """Where a run is between two rounds, besides the table."""

    made: int  # steps that the table contains, of those to be made when this process began
    stride: Stride  # of the next round
    tally: Counted | None = None  # none before a server has ordered anything


@message(Kind.ROUNDS_BEGIN)
@dataclass(frozen=True)
class RoundsBegin:
    """The coordinator's: from here on the `players`, in this order, learn, until the next of these."""

    attempt: int
    players: tuple[int, ...]
    cut: RoundsCut
    refresh: Refresh


@message(Kind.ROUNDS_PLAY)
@dataclass(frozen=True)
class RoundsPlay:
    """The coordinator's: learn up to step `until`, or until it asks for a pause, then say `RoundsPlayed`."""

    attempt: int
    until: int
    tally: Counted


@message(Kind.ROUNDS_PLAYED)
@dataclass(frozen=True)
class RoundsPlayed:
    """A player's: what it has done since the last of these."""

    attempt: int
    made: int  # steps that the table contains
    digest: int  # of its table, which all have to have alike
    steps: int  # by this rank
    rounds: int
    bytes_sent: int
    bytes_saved: int
    compressing: float  # seconds
    learning_seconds: float
    worker_seconds: float


@message(Kind.ROUNDS_SUMS)
@dataclass(frozen=True)
class SentSums:
    """Between players: sums of a round."""

    number: int  # of the round, counted from the beginning of the attempt
    maps: PackedSums
    counted: np.ndarray  # float64, see `dist_classicrl.engines.decentralized.part.Count`
