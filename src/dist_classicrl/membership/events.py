"""What happened to the ranks of a run: a log line and an event for each loss and each return."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

logger = logging.getLogger(__name__)

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
KINDS = tuple(_TEXTS)
"""What an event may be."""

FIELDS = {"kind": str, "rank": int, "seconds": float, "steps_returned": int, "detail": str}
"""What is known of an event, and as what type."""


def has_fields(data: Any) -> bool:
    """Whether `data` has what is known of an event, of whatever kind."""
    return isinstance(data, dict) and all(type(data.get(name)) is kind for name, kind in FIELDS.items())


class EventLog:
    """The events of one call of `train`, known to all ranks so that a new server goes on with them.

    `left_before`: the ranks that left in good order in a call before, and were not back at its end.
    """

    def __init__(self, left_before: Iterable[int] = ()) -> None:
        self._left_before = frozenset(left_before)
        self.entries: list[dict[str, Any]] = []  # in order
        #: Those that were entered here and nobody has taken out yet.
        self.fresh: deque[dict[str, Any]] = deque(maxlen=_MOST_DOUBTS)

    def add(self, kind: str, rank: int, seconds: float, steps_returned: int = 0, detail: str = "") -> None:
        """Enter and log an event of one of `KINDS`, so many seconds after training began, and why it came.

        `steps_returned` are steps that the rank held and had not reported, which others make now.
        """
        doubts = [event for event in self.entries if event["kind"] in _DOUBTS]
        if kind in _DOUBTS and len(doubts) >= _MOST_DOUBTS:
            self.entries.remove(doubts[0])
        values = (kind, rank, seconds, steps_returned, detail)
        self.entries.append(dict(zip(FIELDS, values, strict=True)))
        self.fresh.append(self.entries[-1])
        text = _TEXTS[kind].format(rank=rank)
        returned = f"; {steps_returned:,} steps of its leases go to others" if steps_returned else ""
        level = logging.INFO if kind in _DOUBTS else logging.WARNING
        logger.log(level, "%s after %.2f s%s%s.", text, seconds, f" ({detail})" if detail else "", returned)

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that were lost, or left, and are not back."""
        return tuple(sorted(self._gone(set(), "excluded", "left")))

    @property
    def left(self) -> set[int]:
        """The ranks that left in good order, in this call or before, and are not back."""
        return self._gone(set(self._left_before), "left")

    def _gone(self, gone: set[int], *kinds: str) -> set[int]:
        """Return the ranks that were gone before, or went in one of these ways, and are not back."""
        for event in self.entries:
            if event["kind"] in kinds:
                gone.add(event["rank"])
            elif event["kind"] in ("readmitted", "replaced"):
                gone.discard(event["rank"])
        return gone

    def missing(self, at_first: Iterable[int], present: Collection[int]) -> list[int]:
        """Return who is to be there, and is not among those `present`, of whom nothing says why.

        `at_first` are those that were there as training began.
        """
        back = {event["rank"] for event in self.entries if event["kind"] == "readmitted"}
        return sorted({*at_first, *back} - {*self.lost, *present})

    def unreplaced(self, present: Collection[int]) -> list[tuple[int, str]]:
        """Return the lost ranks in whose place nobody was started, and why; those `present` only wait."""
        lost: dict[int, str] = {}
        for event in self.entries:
            match event["kind"]:
                case "excluded" if event["rank"] not in present:
                    lost[event["rank"]] = event["detail"]
                case "readmitted" | "left":
                    lost.pop(event["rank"], None)
                case "replaced" if lost:
                    del lost[next(iter(lost))]
        return list(lost.items())

    def take(self, entries: Iterable[dict[str, Any]]) -> None:
        """Take over what came with a newer view: it is what all who follow that go by."""
        self.entries[:] = entries
