"""Whether one rank holds the others up, where all wait for the slowest: it is named in the log, with why."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

logger = logging.getLogger(__name__)

_WINDOW_SECONDS = 5.0
_TIMES_AS_BUSY = 1.5
_SHARE_BUSY = 0.6
"""Of the time: who is idle for longer waits for something itself, and holds nobody up."""


@dataclass
class Work:
    """What a rank has done."""

    steps: int = 0
    seconds: float = 0.0  # in which it was busy with them


@dataclass
class Laggards:
    """Judges what ranks have done every few seconds of `now`; each is named once, with its `host_of`.

    `why_more` tells why a rank may have more to do than others, and what to write instead.
    """

    now: Callable[[], float]
    host_of: Callable[[int], str]
    why_more: str
    _done: defaultdict[int, Work] = field(default_factory=lambda: defaultdict(Work), init=False)
    _named: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now on: others may be there than before."""
        self._done.clear()
        self._since = self.now()

    def count(self, rank: int, steps: int, seconds: float) -> None:
        """Take note that a rank was busy for so long with so many steps."""
        work = self._done[rank]
        work.steps += steps
        work.seconds += seconds

    def judge(self) -> None:
        """Name who holds the others up, if it is time to."""
        passed = self.now() - self._since
        if passed < _WINDOW_SECONDS:
            return
        if len(self._done) > 1:
            self._judge(passed)
        self.begin()

    def _judge(self, passed: float) -> None:
        rank, work = max(self._done.items(), key=lambda item: item[1].seconds)
        others = [other for number, other in self._done.items() if number != rank]
        usual = median(other.seconds for other in others)
        is_slowest = work.seconds > max(_TIMES_AS_BUSY * usual, _SHARE_BUSY * passed)
        if not is_slowest or rank in self._named:
            return
        self._named.add(rank)
        steps = median(other.steps for other in others)
        each = median(other.seconds / max(1, other.steps) for other in others)
        more = work.steps / max(1.0, steps)
        slower = work.seconds / max(1, work.steps) / max(each, 1e-12)
        if more > slower:
            why = f"It had {more:.1f} times as many steps to make as they. {self.why_more}"
        else:
            why = (
                f"A step takes it {slower:.1f} times as long as them: its core may be slower, or shared with "
                "other processes."
            )
        logger.warning(
            "Rank %d on %s holds the others up: it was busy for %.0f %% of the last %.1f s, they for %.0f %% "
            "and waited for it otherwise. %s",
            rank,
            self.host_of(rank),
            100.0 * min(1.0, work.seconds / passed),
            passed,
            100.0 * min(1.0, usual / passed),
            why,
        )
