"""Several reports as one: those that get no line of their own, and those of the episodes that ended last."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dist_classicrl.monitoring.reading import COLUMNS, Columns, Metrics

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress

WINDOW = 100  # episodes that a recent mean is over, at least, once there are so many
_HISTORY = 1000  # reports of a call that stay at least, where there were so many


class RecentEpisodes:
    """The episodes of the last reports: as few reports as have `window` episodes between them."""

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


def combined(earlier: Progress, later: Progress, steps: int, seconds: float) -> Progress:
    """Return `later` with what `earlier` counted, which was reported just before it.

    The earlier one counts from `steps` and `seconds` on.
    """
    n_earlier, n_later = max(0, earlier.steps - steps), max(0, later.steps - earlier.steps)
    passed = max(later.seconds - seconds, 1e-9)
    before = {rank.rank: rank.steps for rank in earlier.ranks}
    ranks = (replace(rank, steps=rank.steps + before.get(rank.rank, 0)) for rank in later.ranks)
    return replace(
        later,
        steps_per_second=(later.steps - steps) / passed,
        episodes=earlier.episodes + later.episodes,
        mean_return=_mean(earlier.mean_return, earlier.episodes, later.mean_return, later.episodes),
        mean_length=_mean(earlier.mean_length, earlier.episodes, later.mean_length, later.episodes),
        pushes=earlier.pushes + later.pushes,
        bytes_pushed=earlier.bytes_pushed + later.bytes_pushed,
        bytes_pulled=earlier.bytes_pulled + later.bytes_pulled,
        bytes_saved=earlier.bytes_saved + later.bytes_saved,
        compression_seconds=earlier.compression_seconds + later.compression_seconds,
        td_error=_mean(
            earlier.td_error,
            0 if math.isnan(earlier.td_error) else n_earlier,
            later.td_error,
            0 if math.isnan(later.td_error) else n_later,
        ),
        # By the workers' time; without a step there is none that was told of.
        communication_fraction=_mean(
            earlier.communication_fraction,
            (earlier.seconds - seconds) * earlier.workers if n_earlier else 0.0,
            later.communication_fraction,
            (later.seconds - earlier.seconds) * later.workers if n_later else 0.0,
            empty=later.communication_fraction,
        ),
        staleness=_mean(earlier.staleness, earlier.pushes, later.staleness, later.pushes, empty=0.0),
        ranks=tuple(replace(rank, steps_per_second=rank.steps / passed) for rank in ranks),
        events=earlier.events + later.events,
    )


def _mean(one: float, n_one: float, other: float, n_other: float, empty: float = math.nan) -> float:
    if n_one == 0 or n_other == 0:
        return other if n_other else one if n_one else empty
    return (n_one * one + n_other * other) / (n_one + n_other)


class Gathered:
    """Several reports as one: all since the last time that they were taken, at first since `steps`."""

    def __init__(self, steps: int = 0, seconds: float = 0.0) -> None:
        self._begin = steps, seconds
        self._so_far: Progress | None = None

    def add(self, progress: Progress) -> Progress:
        """Take in the next report, and return all of them as one."""
        so_far = self._so_far
        self._so_far = progress if so_far is None else combined(so_far, progress, *self._begin)
        return self._so_far

    def take(self) -> Progress | None:
        """Return them as one, None where there is none, and begin anew."""
        taken, self._so_far = self._so_far, None
        if taken is not None:
            self._begin = taken.steps, taken.seconds
        return taken

    @property
    def has_steps(self) -> bool:
        """Whether they tell of any step."""
        return self._so_far is not None and self._so_far.steps > self._begin[0]


class ReportHistory:
    """The reports of a call, without what they tell of single ranks: of a long one neighbors are joined."""

    def __init__(self) -> None:
        self._kept: list[Progress] = []
        self._joined = 1  # reports in each entry of `_kept` but the last
        self._in_last = 0

    def add(self, progress: Progress) -> None:
        """Take the next report."""
        bare = progress if len(progress.ranks) == 1 else _bare(progress)  # one rank's may wait until the end
        if self._kept and (self._in_last < self._joined or bare.steps <= self._kept[-1].steps):
            self._kept[-1] = _joined(self._kept[-2:-1], self._kept[-1], bare)
            self._in_last += 1
            return
        self._kept.append(bare)
        self._in_last = 1
        if len(self._kept) == 2 * _HISTORY:
            kept: list[Progress] = []
            for earlier, later in zip(self._kept[::2], self._kept[1::2], strict=True):
                kept.append(_joined(kept, earlier, later))
            self._kept = kept
            self._in_last = self._joined + 1
            self._joined *= 2

    @property
    def reports(self) -> tuple[Progress, ...]:
        """What is kept, in order."""
        return tuple(map(_bare, self._kept))


def _bare(report: Progress) -> Progress:
    """Return `report` without what it tells of single ranks."""
    return replace(report, ranks=(), events=()) if report.ranks or report.events else report


def _joined(before: Sequence[Progress], earlier: Progress, later: Progress) -> Progress:
    """Return two reports as one, which follows those `before`."""
    begin = (before[-1].steps, before[-1].seconds) if before else (0, 0.0)
    return combined(earlier, later, *begin)


def metrics_of(reports: Sequence[Progress]) -> Metrics:
    """Return the reports of one call as `read_metrics` returns those of a run, without any rank's."""
    columns, latest = Columns(COLUMNS), 0.0
    for each in reports:
        latest = max(latest, each.seconds)
        columns.add({**each.to_dict(), "step": each.steps, "time": latest, "recent_return": None})
    return Metrics(columns.arrays(), [], {})
