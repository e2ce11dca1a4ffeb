"""What servers and workers of all engines tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.maps import Refresh


@message(Kind.DONE)
@dataclass(frozen=True)
class Final:
    """The server's: the whole final table, and the `Outcome` as plain data."""

    refresh: Refresh
    result: dict[str, Any]


@message(Kind.STOP)
@dataclass(frozen=True)
class AskToStop:
    """A worker's: this rank was asked to stop, by `stop`. The server's: push what you have, and wait."""

    stop: Stop | None = None


@message(Kind.STOPPED)
@dataclass(frozen=True)
class Stopped:
    """The server's last word: why the run has stopped, and after how many steps, all in `checkpoint`."""

    stop: Stop
    checkpoint: str | None
    steps: int


@message(Kind.LEAVE)
@dataclass(frozen=True)
class Leave:
    """A worker's: it learns no more."""

    event: str  # what the record shall say of it: one of `dist_classicrl.membership.events.KINDS`
    why: str
    waits: bool  # for the end all the same
