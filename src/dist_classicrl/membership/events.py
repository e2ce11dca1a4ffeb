"""What happened to the ranks of a run: a log line and an event for each loss and each return."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

logger = logging.getLogger(__name__)

KINDS = ("suspected", "cleared", "excluded", "readmitted", "replaced", "left", "failover")
"""What an event may be."""

_DOUBTS = ("suspected", "cleared")
_MOST_DOUBTS = 200  # all that happened goes along with each change of the membership

_TEXTS = {
    "suspected": "Rank {rank} is suspected to be lost",
    "cleared": "Rank {rank} is heard again",
    "excluded": "Rank {rank} is lost",
    "readmitted": "Rank {rank} is back",
    "replaced": "Rank {rank} was started as a replacement",
    "left": "Rank {rank} has left in good order",
    "failover": "Rank {rank} serves now",
}


def is_event(data: Any) -> bool:
    """Whether `data`, which was read from a file, is an event."""
    kinds = {"kind": str, "rank": int, "seconds": float, "steps_returned": int, "detail": str}
    return (
        isinstance(data, dict)
        and set(data) == set(kinds)
        and all(type(data[name]) is kind for name, kind in kinds.items())
        and data["kind"] in KINDS
    )


class EventLog:
    """The events of one call of `train`, known to all ranks so that a new server goes on with them.

    Attributes
    ----------
    entries : list of dict
        The events, in order.
    fresh : deque of dict
        Those that were entered here and nobody has taken out yet.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.fresh: deque[dict[str, Any]] = deque(maxlen=_MOST_DOUBTS)

    def add(self, kind: str, rank: int, seconds: float, steps_returned: int = 0, detail: str = "") -> None:
        """Enter and log an event.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        rank : int
            Whom it is about.
        seconds : float
            Since training began.
        steps_returned : int
            Steps that the rank held and had not reported, which others make now.
        detail : str
            Why.
        """
        doubts = [event for event in self.entries if event["kind"] in _DOUBTS]
        if kind in _DOUBTS and len(doubts) >= _MOST_DOUBTS:
            self.entries.remove(doubts[0])
        self.entries.append(
            {
                "kind": kind,
                "rank": rank,
                "seconds": seconds,
                "steps_returned": steps_returned,
                "detail": detail,
            }
        )
        self.fresh.append(self.entries[-1])
        text = _TEXTS[kind].format(rank=rank)
        returned = f"; {steps_returned:,} steps of its leases go to others" if steps_returned else ""
        level = logging.INFO if kind in _DOUBTS else logging.WARNING
        logger.log(level, "%s after %.2f s%s%s.", text, seconds, f" ({detail})" if detail else "", returned)

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that were lost, or left, and are not back."""
        gone = {}
        for event in self.entries:
            if event["kind"] in ("excluded", "left"):
                gone[event["rank"]] = True
            elif event["kind"] in ("readmitted", "replaced"):
                gone.pop(event["rank"], None)
        return tuple(sorted(gone))

    def take(self, entries: list[dict[str, Any]]) -> None:
        """Take over what another rank knows, where it is more than what is known here."""
        if len(entries) >= len(self.entries):
            self.entries[:] = entries
