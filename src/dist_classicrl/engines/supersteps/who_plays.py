"""Who makes supersteps where ranks exchange messages: one of them alone, or all, whichever is faster.

Of that the table tells nothing: it is the same bits whoever owns the rows. While few walkers move at once, as
they do at the beginning, messages take longer than all of their steps; over a slow network they always do.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from dist_classicrl.learning import loops

logger = logging.getLogger(__name__)

_FIRST_TRY = 1 << 10
"""Walkers at once from which all are tried: one rank makes a superstep of as many in 40 microseconds."""

_JUDGED_SECONDS = 0.1
_TRY_SECONDS = 60.0


@dataclass
class WhoPlays:
    """Says whether the server `is_alone` in making supersteps of so many `walkers`."""

    can_be_alone: bool
    walkers: int

    def __post_init__(self) -> None:
        self.is_alone = self.can_be_alone
        self._rate = 0.0  # steps per second of one rank; 0: not known
        self._at_once = 0  # walkers, when all were tried last
        self._tried = -math.inf
        self.begin()

    def begin(self) -> None:
        """Judge anew: other ranks play from now on, or one of them is lost, or new."""
        self._is_first, self._is_judged = True, not self.can_be_alone
        self._steps, self._seconds = 0, 0.0

    def note(self, steps: int, seconds: float, position: int, now: float) -> bool:
        """Take note of so many steps in so many seconds, up to step `position`; return whether others play.

        Of the first order nothing is judged: it is a short one, and what it needs is in no cache.
        """
        if self._is_first or self._is_judged:
            self._is_first = False
            return False
        self._steps, self._seconds = self._steps + steps, self._seconds + seconds
        if self._seconds >= _JUDGED_SECONDS:
            rate, self._steps, self._seconds = self._steps / self._seconds, 0, 0.0
            changes = self._wants_all(rate, position, now) if self.is_alone else self._wants_one(rate)
            self.is_alone ^= changes
            return changes
        return False

    def _wants_all(self, rate: float, position: int, now: float) -> bool:
        self._rate = rate
        at_once = min(self.walkers, position // loops.STEPS_PER_WALKER)
        is_due = at_once >= 2 * self._at_once or now - self._tried > _TRY_SECONDS
        if at_once < min(_FIRST_TRY, self.walkers) or not is_due:
            return False
        self._at_once, self._tried = at_once, now
        return True

    def _wants_one(self, rate: float) -> bool:
        self._is_judged = True
        if rate >= self._rate:
            return False
        if self._at_once == self.walkers:
            logger.info(
                "One rank alone makes %.3g M steps/s, and all together %.3g, which exchange messages after "
                "each step of %s episodes: so one plays, and all are tried again in a minute.",
                self._rate / 1e6,
                rate / 1e6,
                f"{self.walkers:,}",
            )
        return True
