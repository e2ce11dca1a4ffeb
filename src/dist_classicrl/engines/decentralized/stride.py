"""How long a round is, which all ranks work out alike from what all ranks know alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dist_classicrl.engines.schedule import LONGEST_SHARE, LOOK_GROWTH, SETTLED_LOAD
from dist_classicrl.settings import ROUND_UPDATES, Settings
from dist_classicrl.tables import kernels

MOVING_LOAD = 1.0
"""N k a of a round, up to which it may be long while values still move: twice that is under way at a time."""

_MOVING_WAITS, _SETTLED_WAITS = 0.5, 0.05
"""The share of the ranks' time that may go into waiting, while values move, and once they stand."""

_LONGEST = 1 << 16  # updates
_STILL = 0.03  # a change of the mean by less, in a quarter more steps, is none


@dataclass(frozen=True)
class Stride:
    """The length of the next round, in updates of each rank, and what that follows from.

    With a number as ``sync_frequency`` it is that. With "auto" rounds grow from 32 updates, or from one where
    the environment is stepped, as long as N k a, which is taken from the merged maps, stays below
    `MOVING_LOAD`, and below `SETTLED_LOAD` once the table's mean changes by less than 3 % while a quarter
    more steps of the call are made. A round at most doubles, and has at most a 32nd of the steps made before,
    in calls before this one too. But rounds are longer than all this allows where ranks would wait for each
    other for more than half of the time while values move, and for a 20th afterwards.
    """

    updates: int
    may_grow: bool
    allowed: int = 1  # updates, by N k a and by the steps made
    least: int = 1  # updates, by the time that is spent waiting
    looked: int = 0  # how many steps had been made when the mean was looked at last
    mean: float = 0.0
    is_moving: bool = True

    @classmethod
    def first(cls, settings: Settings, is_compiled: bool) -> Stride:
        """Return that of a call's first round."""
        if settings.sync_frequency != "auto":
            return cls(int(settings.sync_frequency), False)
        first = ROUND_UPDATES if is_compiled else 1
        return cls(first, True, first, 1)

    def after(
        self,
        made: int,
        load: float,
        waited: float,
        values: np.ndarray,
        settings: Settings,
        ranks: int,
        before: int = 0,
    ) -> Stride:
        """Return the stride after a round that `values` contain, and with it `made` steps of the call.

        There were `before` of calls before. Its N k a was `load`, and all ranks together have `waited` for so
        much of their time.
        """
        if not self.may_grow:
            return self
        looked, mean, is_moving = self.looked, self.mean, self.is_moving
        if made >= LOOK_GROWTH * looked:
            now, size = kernels.mean_and_size(values, 1)
            is_moving = looked == 0 or abs(now - mean) > _STILL * size
            looked, mean = made, float(now)
        share = LONGEST_SHARE * ranks * settings.batch_size
        most = max(1, min(_LONGEST, (before + made) // share))
        fits = MOVING_LOAD if is_moving else SETTLED_LOAD
        allowed = 2 * self.updates
        if load * allowed > fits * self.updates:
            allowed = int(self.updates * fits / load)
        allowed = max(1, min(allowed, most))
        may_wait = _MOVING_WAITS if is_moving else _SETTLED_WAITS
        least = self.least
        if waited > may_wait:
            least = min(2 * max(least, self.updates), most)
        elif waited < may_wait / 4.0:
            least = max(1, least // 2)
        updates = max(allowed, least)
        return replace(
            self,
            updates=updates,
            allowed=allowed,
            least=least,
            looked=looked,
            mean=mean,
            is_moving=is_moving,
        )
