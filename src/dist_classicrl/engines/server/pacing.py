"""When a worker pushes and when it asks for a refresh, for ``sync_frequency="auto"`` or a number."""

from __future__ import annotations

import math
import time

import numpy as np

from dist_classicrl.settings import Settings
from dist_classicrl.tables import kernels

MOST_LOAD = 4.0
"""N k a up to which N workers are nearly N times as fast, see the design notes."""

_CALM_SHARE = 0.02
_BUSY_SHARE = 0.5
_FIRST_STEPS = 512
_LONGEST_SECONDS = 0.1
_LONGEST_SHARE = 0.005
_MOST_STEPS = 2.0**62
_SMOOTHING = 0.2
_SETTLED_CHANGE = 0.03
_MOVED_CHANGE = 0.1
_WINDOW_SECONDS = 0.05
_SAMPLE = 4096
_LOOKS = 8


class MovementGauge:
    """Whether values still move, by more than 3 % while the time that has passed grows by a quarter.

    Once they stand, only a change of more than 10 % counts as moving again.

    Compared are the means of the base (of at most some 4,096 entries of it) in one window of time and in the
    one before, each from eight looks, so single updates and the noise of constant step sizes do not count.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._since = self._looked = self._begin
        self._means: list[float] = []
        self._before: float | None = None
        self.moving = True

    def look(self, base: np.ndarray) -> None:
        """Take the measure again if it is time."""
        now = time.monotonic()
        window = max(_WINDOW_SECONDS, 0.2 * (now - self._begin))
        if now - self._looked < window / _LOOKS:
            return
        self._looked = now
        mean_now, size = kernels.mean_and_size(base, 1 + base.size // _SAMPLE)
        self._means.append(mean_now)
        if now - self._since < window:
            return
        self._since = now
        mean = sum(self._means) / len(self._means)
        self._means.clear()
        if self._before is not None:
            change = _SETTLED_CHANGE if self.moving else _MOVED_CHANGE
            self.moving = abs(mean - self._before) > change * size
        self._before = mean


class Pacer:
    """Decides how many steps lie between two pushes.

    With a number they are ``sync_frequency * batch_size`` steps, whatever the quantum. With "auto" talking
    takes 2 % of the worker's processor time, and up to half of it while values still move if that is needed
    to keep N k a at or below 4 on the busiest entries, where k is an entry's visits per push and a the step
    size.

    Costs are processor time: where ranks outnumber cores, time that another rank gets is not lost. There are
    N `workers`, and intervals are multiples of `quantum` steps then. What is to happen at a step of the run
    happens with the push that comes to it, so one with "auto" has at most 0.5 % of the run's `steps`.
    """

    def __init__(self, settings: Settings, workers: int, quantum: int, steps: float = math.inf) -> None:
        self._auto = settings.sync_frequency == "auto"
        self._quantum = max(quantum, settings.batch_size)
        self._share = _LONGEST_SHARE * steps
        self.workers = workers
        self.interval = int(settings.sync_frequency) * settings.batch_size if not self._auto else _FIRST_STEPS
        if self._auto and self._share < _FIRST_STEPS:
            self.interval = self._whole_quanta(self._share)
        self._steps_per_second = 0.0
        self._steps_per_cpu_second = 0.0
        self._push_seconds = 0.0
        self._refresh_seconds = 0.0
        self._refreshed = 0.0
        self._short_of_calm = True
        self.gauge = MovementGauge()

    @property
    def urgent(self) -> bool:
        """Whether the server should answer quickly: an interval was asked for, or values want it short."""
        return not self._auto or (self._short_of_calm and self.gauge.moving)

    @property
    def interval_seconds(self) -> float:
        """Expected time between two pushes."""
        return self.interval / self._steps_per_second if self._steps_per_second > 0.0 else 0.0

    @property
    def longest_call(self) -> int:
        """Steps after which messages should be looked at, whatever the interval."""
        return max(self._quantum, int(self._steps_per_second * _LONGEST_SECONDS))

    @property
    def longest_push(self) -> int:
        """Steps that a push may have where there is no room for another, as the server has not answered."""
        longest = max(self._share, self._steps_per_second * _LONGEST_SECONDS)
        return max(self.interval, self._whole_quanta(min(longest, _MOST_STEPS)))

    @property
    def wants_refresh(self) -> bool:
        """Whether a refresh is due by what it costs to take one in."""
        share = _BUSY_SHARE if self.urgent else _CALM_SHARE
        return (time.monotonic() - self._refreshed) * share >= self._refresh_seconds

    def learned(self, steps: int, seconds: float, cpu_seconds: float) -> None:
        """Take note of the wall time and of the processor time that learning took."""
        if seconds > 0.0:
            self._steps_per_second = _smooth(self._steps_per_second, steps / seconds)
        if cpu_seconds > 0.0:
            self._steps_per_cpu_second = _smooth(self._steps_per_cpu_second, steps / cpu_seconds)
        if self._auto and seconds > 0.0:  # so that a slow environment's first push does not take minutes
            self.interval = min(self.interval, self._whole_quanta(self._steps_per_second * _LONGEST_SECONDS))

    def refreshed(self, seconds: float) -> None:
        """Take note of the time that re-basing took."""
        self._refresh_seconds = _smooth(self._refresh_seconds, seconds)
        self._refreshed = time.monotonic()

    def pushed(self, load: float, steps: int, cpu_seconds: float) -> None:
        """Choose the next interval after a push of so many `steps` with a mean k a of `load`.

        `cpu_seconds` is the processor time of all that was not learning since the push before.
        """
        self._push_seconds = _smooth(self._push_seconds, cpu_seconds)
        if not self._auto or self._steps_per_second == 0.0:
            return
        rate = self._steps_per_cpu_second
        calm = rate * self._push_seconds * (1.0 / _CALM_SHARE - 1.0)
        fits = steps * MOST_LOAD / (self.workers * load) if load > 0.0 else calm
        self._short_of_calm = fits < calm
        wanted = calm
        if self.urgent:
            wanted = max(rate * self._push_seconds * (1.0 / _BUSY_SHARE - 1.0), fits)
        wanted = min(wanted, self._steps_per_second * _LONGEST_SECONDS, 4.0 * self.interval, self._share)
        self.interval = self._whole_quanta(wanted)

    def _whole_quanta(self, steps: float) -> int:
        return max(1, math.ceil(steps / self._quantum)) * self._quantum


def _smooth(old: float, new: float) -> float:
    return new if old == 0.0 else old + _SMOOTHING * (new - old)
