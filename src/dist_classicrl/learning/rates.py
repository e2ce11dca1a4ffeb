"""Step sizes and exploration rates in the form that the training loops take."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dist_classicrl._steps import NEVER
from dist_classicrl.learning.loops import NO_LINE, Line
from dist_classicrl.rules import behaviors
from dist_classicrl.schedules import PerVisit
from dist_classicrl.schedules.kinds import Schedule
from dist_classicrl.settings import Settings


class Rates:
    """The step size and the exploration rate, by the global step.

    That is the chance of a random action, or where actions are drawn by their values Boltzmann's temperature.
    Where step sizes are per visit, `table` is `PerVisit.table`, and `workers` divides its clock.
    """

    def __init__(self, settings: Settings, workers: int) -> None:
        self._step_size = settings.learning_rate
        self._exploration = behaviors.temperature_of(settings.behavior) or settings.epsilon
        self.workers = 0
        self.table: np.ndarray | None = None
        self.set_workers(workers)

    def set_workers(self, workers: int) -> None:
        """Let the clock of per-visit step sizes run at one over this many from now on."""
        if workers != self.workers:
            self.workers = workers
            if isinstance(self._step_size, PerVisit):
                self.table = _table(self._step_size, workers).copy()  # a server's may be put in

    def at(self, step: int) -> tuple[Line, Line, int]:
        """Return step size and exploration rate from global step `step` on, and where one of them bends."""
        step_size, end = _line(self._step_size, step)
        exploration, other_end = _line(self._exploration, step)
        return step_size, exploration, min(end, other_end)


def values_at(schedule: Schedule, first: int, every: int, count: int) -> np.ndarray:
    """Return the values at `count` global steps, `first` and every so many after it, float64.

    They are 0 where the schedule follows visits.
    """
    values = np.empty(count)
    done = 0
    while done < count:
        at = first + done * every
        line, end = _line(schedule, at)
        size = min(count - done, -(-(end - at) // every))
        values[done : done + size] = line.value + line.slope * (line.at + every * np.arange(size))
        done += size
    return values


@lru_cache(maxsize=4)
def _table(step_size: PerVisit, workers: int) -> np.ndarray:
    """Return `PerVisit.table`, kept for the next training: of a short one it takes a good part."""
    return step_size.table(workers)


def _line(schedule: Schedule, step: int) -> tuple[Line, int]:
    if isinstance(schedule, PerVisit):
        return NO_LINE, NEVER
    segment = schedule.segment(step)
    return Line(segment.value, segment.slope, step - segment.start), segment.end
