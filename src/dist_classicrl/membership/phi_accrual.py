"""How likely it is that a peer which has been silent for some time will never be heard again.

The phi-accrual failure detector of N. Hayashibara, X. Defago, R. Yared and T. Katayama, "The phi accrual
failure detector", SRDS 2004. With T the time since the last sign of life,

    phi = -log10(P(an interval between two signs of life is longer than T)),

where the intervals are taken as normally distributed with the mean and deviation of the latest ones. As far
as they are normal, one suspicion in ten is wrong at phi = 1, and one in a hundred million at phi = 8.
"""

from __future__ import annotations

import math
from collections import deque

THRESHOLD = 8.0

_WINDOW = 100
# At threshold 8 a peer that is as regular as a clock is suspected after 2.4 of its intervals.
_LEAST_DEVIATION = 0.25
# Here 1 - F(z) is 1e-198, well before `erfc` has no number for it.
_FAR = 30.0


class Arrivals:
    """When one peer was heard, and what its silence since then means.

    No clock is read: all times are passed in, and in seconds of one clock.

    An interval counts as no shorter than `expected`: that is what the peer promises, however often it happens
    to write. What comes in quick succession counts as one interval for each time of `expected`, so that a
    burst of messages does not push what is known of the peer's jitter out of the window. The estimate rests
    on the latest `window` intervals. The peer counts as heard for the first time at `now`.
    """

    def __init__(self, expected: float, *, window: int = _WINDOW, now: float) -> None:
        self._expected = expected
        self._least_deviation = _LEAST_DEVIATION * expected
        # As if two intervals were known, with the expected mean and the least deviation.
        self._intervals = deque(
            (expected - self._least_deviation, expected + self._least_deviation), max(window, 2)
        )
        self._estimate: tuple[float, float] | None = None
        self._last = now
        self._passed = 0.0

    def heard(self, now: float) -> None:
        """Enter a sign of life."""
        interval = self.silence(now)
        self._last = now
        self._passed += interval
        if self._passed >= self._expected:
            self._intervals.append(max(interval, self._expected))
            self._passed = 0.0
            self._estimate = None

    def excuse(self, seconds: float) -> None:
        """Count `seconds` in which nobody listened here as nobody's silence.

        It is called before what came in that time is entered with `heard`.
        """
        self._last += seconds

    def silence(self, now: float) -> float:
        """Return the seconds since the last sign of life, without those that are excused."""
        return max(0.0, now - self._last)

    def phi(self, now: float) -> float:
        """Return the level of suspicion, from 0.0 upwards without a bound."""
        if self._estimate is None:
            mean = math.fsum(self._intervals) / len(self._intervals)
            variance = math.fsum((each - mean) ** 2 for each in self._intervals) / len(self._intervals)
            self._estimate = mean, max(math.sqrt(variance), self._least_deviation)
        mean, deviation = self._estimate
        z = (self.silence(now) - mean) / deviation
        if z < _FAR:
            return -math.log10(0.5 * math.erfc(z / math.sqrt(2.0))) + 0.0
        return z * z / math.log(100.0) + math.log10(z * math.sqrt(2.0 * math.pi))

    def is_suspect(self, now: float, threshold: float = THRESHOLD) -> bool:
        """Whether the silence is no longer what the peer's own jitter explains."""
        return self.phi(now) >= threshold
