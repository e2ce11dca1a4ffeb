"""What the ranks tell each other that learn in supersteps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.engines.outcome import Counted
from dist_classicrl.tables.maps import Refresh


@dataclass(frozen=True)
class Cut:
    """Where a run is between two supersteps, besides the table."""

    start: int  # global step at which its random stream begins
    used: int  # steps of the stream that the table contains
    last: int  # at which the call ends
    walkers: dict[str, np.ndarray] = field(default_factory=dict)  # of all ranks; none where they are new
    tally: Counted | None = None  # none before a server has ordered anything


@message(Kind.BEGIN)
@dataclass(frozen=True)
class Begin:
    """The server's: from here on the `players`, in this order, own the rows, until the next of these."""

    attempt: int
    players: tuple[int, ...]
    cut: Cut
    refresh: Refresh
    #: Whose each slot is of a table that is divided between hosts, int64: the number of a player.
    owners: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    #: Where the memory is in which all write theirs, if any.
    rows: dict[str, Any] = field(default_factory=dict)


@message(Kind.PLAY)
@dataclass(frozen=True)
class Play:
    """The server's: make supersteps up to step `until` of the stream, then say `Played`."""

    attempt: int
    until: int


@message(Kind.PLAYED)
@dataclass(frozen=True)
class Played:
    """A player's: what it has done since the last of these."""

    attempt: int
    used: int  # steps of the stream made by all
    moved: int  # of them by this rank
    counted: np.ndarray  # see `dist_classicrl.learning.supersteps.share.Share.counted`
    learning_seconds: float
    worker_seconds: float
    bytes_sent: int


@message(Kind.TELL)
@dataclass(frozen=True)
class TellRows:
    """The server's: tell your rows and walkers as they are now."""

    attempt: int


@message(Kind.ROWS)
@dataclass(frozen=True)
class Rows:
    """The answer."""

    attempt: int
    values: np.ndarray
    counts: np.ndarray
    walkers: dict[str, np.ndarray]
    keys: np.ndarray | None = None  # int64: of the states, where they are such


@message(Kind.HALT)
@dataclass(frozen=True)
class Halt:
    """The server's: a rank was lost in the middle of a superstep; touch no rows until the next `Begin`."""

    attempt: int


@message(Kind.HALTED)
@dataclass(frozen=True)
class Halted:
    """The answer."""

    attempt: int


@message(Kind.ASK_ROWS)
@dataclass(frozen=True)
class AskRows:
    """The server's, to one rank of another host: tell those of these rows that ranks of your host own."""

    attempt: int
    first: int  # row
    last: int  # row behind the last


@message(Kind.SOME_ROWS)
@dataclass(frozen=True)
class SomeRows:
    """The answer. The server's: these are all rows from `first` on, for the table of your host."""

    attempt: int
    first: int
    lines: np.ndarray  # uint8: of each row all that stands in it


@message(Kind.GOT_ROWS)
@dataclass(frozen=True)
class GotRows:
    """The answer to that."""

    attempt: int
    first: int


@message(Kind.SAVE_ROWS)
@dataclass(frozen=True)
class SaveRows:
    """The server's, to one rank of another host: write the rows that your host has to a checkpoint."""

    attempt: int
    name: str  # the checkpoint's
    number: int  # of the part


@message(Kind.SAVED_ROWS)
@dataclass(frozen=True)
class SavedRows:
    """The answer to that."""

    attempt: int
    name: str
    error: str  # what was in the way; "": nothing was
    entries: dict[str, Any]  # of the arrays that were written, as in a manifest


@message(Kind.LOAD_ROWS)
@dataclass(frozen=True)
class LoadRows:
    """The server's, likewise: read the rows that your host has now; the answer is `SavedRows`."""

    attempt: int
    name: str


@message(Kind.PUT_ROWS)
@dataclass(frozen=True)
class PutRows:
    """The server's: these rows are your host's from now on; the answer is `GotRows`."""

    attempt: int
    first: int
    rows: np.ndarray  # int64
    lines: np.ndarray  # uint8: of each row all that stands in it


@message(Kind.KEEP)
@dataclass(frozen=True)
class Keep:
    """The server's: the whole table, from which whoever takes over from it can go on."""

    cut: Cut
    refresh: Refresh
