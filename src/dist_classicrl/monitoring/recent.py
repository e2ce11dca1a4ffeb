"""Means over the episodes that ended last."""

from __future__ import annotations

import math
from collections import deque

WINDOW = 100
"""Episodes that a recent mean is over, at least, once there are so many."""


class RecentEpisodes:
    """The episodes of the last reports: as few reports as have `window` episodes between them.

    Parameters
    ----------
    window : int
    """

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window
        self._reports: deque[tuple[int, float, float]] = deque()
        self._episodes = 0

    def add(self, episodes: int, mean_return: float, mean_length: float) -> None:
        """Take in a report's episodes."""
        if episodes <= 0:
            return
        self._reports.append((episodes, episodes * mean_return, episodes * mean_length))
        self._episodes += episodes
        while self._episodes - self._reports[0][0] >= self.window:
            self._episodes -= self._reports.popleft()[0]

    @property
    def is_full(self) -> bool:
        """Whether these are `window` episodes or more."""
        return self._episodes >= self.window

    @property
    def mean_return(self) -> float:
        """Their mean return; NaN if there are none."""
        return self._mean(1)

    @property
    def mean_length(self) -> float:
        """Their mean length in steps; NaN if there are none."""
        return self._mean(2)

    def _mean(self, column: int) -> float:
        # Added up anew each time: a running total would keep the rounding of whatever has passed through.
        return (
            sum(report[column] for report in self._reports) / self._episodes if self._episodes else math.nan
        )
