"""Who makes supersteps where ranks exchange messages: one of them alone, or all, whichever is faster.

Of that the table tells nothing: it is the same bits whoever owns the rows. While few walkers move at once, as
they do at the beginning, messages take longer than all of their steps; over a slow network they always do.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from dist_classicrl.learning.supersteps import share

logger = logging.getLogger(__name__)

_FIRST_TRY = 1 << 10
"""Walkers at once from which all are tried: one rank makes a superstep of as many in 40 microseconds."""

_TRY_SECONDS = 60.0


@dataclass
class WhoPlays:
    """Says whether the server `is_alone` in making supersteps of so many `walkers`."""

    can_be_alone: bool
    walkers: int

    def __post_init__(self) -> None:
        self.is_alone = self.can_be_alone
        self._rate = 0.0  # steps per second of one
        self._orders = 0  # since somebody else plays
        self._at_once = 0  # walkers, when all were tried last
        self._tried = -math.inf

    def note(self, rate: float, position: int, now: float) -> bool:
        """Take note of how many steps per second were made up to step `position`; return whether others play.

        The first order that all are given is a short one, so the second tells what they make of it.
        """
        self._orders += 1
        if self.is_alone:
            self._rate = rate
            at_once = min(self.walkers, position // share.STEPS_PER_WALKER)
            is_due = at_once >= 2 * self._at_once or now - self._tried > _TRY_SECONDS
            changes = at_once >= min(_FIRST_TRY, self.walkers) and is_due
            if changes:
                self._at_once, self._tried = at_once, now
        else:
            changes = self.can_be_alone and self._orders == 2 and rate < self._rate
            if changes and self._at_once == self.walkers:
                logger.info(
                    "One rank alone makes %.3g M steps/s, and all together %.3g, which exchange messages "
                    "after each step of %s episodes: so one plays, and all are tried again in a minute.",
                    self._rate / 1e6,
                    rate / 1e6,
                    f"{self.walkers:,}",
                )
        if changes:
            self.is_alone, self._orders = not self.is_alone, 0
        return changes
