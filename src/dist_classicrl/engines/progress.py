"""How far a run is, as it is told on the rank that serves while the run goes on."""

from __future__ import annotations

import math
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dist_classicrl.engines.outcome import Counters, Learned, Tally, with_nan, without_nan

if TYPE_CHECKING:
    from dist_classicrl.engines.saving import Saver
    from dist_classicrl.membership.events import EventLog

_MAY_BE_NAN = ("mean_return", "mean_length", "td_error")


@dataclass(frozen=True)
class RankProgress:
    """What one rank that learns has done since the last report."""

    rank: int
    host: str
    steps: int = 0
    steps_per_second: float = 0.0
    communication_fraction: float = 0.0  # share of its time that did not go into learning
    staleness: float = 0.0  # mean number of the others' pushes that a push of its did not know of
    silence: float = 0.0  # seconds since it was last heard


@dataclass(frozen=True, repr=False)
class Progress:
    """How far a run is, for the callbacks of `train`, on the rank that serves.

    All but `steps`, `total_steps`, `seconds`, `epsilon`, `learning_rate` and `workers` is counted since the
    last report.

    Attributes
    ----------
    steps, total_steps : int
        Done and asked for in this call of `train`, by all ranks.
    steps_per_second : float
    episodes : int
        Ended.
    mean_return : float
        Of those episodes, undiscounted; NaN if there were none.
    seconds : float
        Since training began, with what processes before this one trained.
    mean_length : float
        Of those episodes, in steps; NaN if there were none.
    td_error : float
        Mean absolute temporal-difference error of the updates, before each; NaN if there were none. Replayed
        updates are not counted.
    epsilon : float
        Chance of a random action, now.
    learning_rate : float
        Step size, now; with `PerVisit` that of an entry with the mean number of visits.
    communication_fraction : float
        Share of the workers' time that did not go into learning.
    pushes, bytes_pushed, bytes_pulled, bytes_saved : int
        See `TrainingResult`.
    compression_seconds : float
        See `TrainingResult`.
    most_waiting : int
        Likewise, in all of this call so far.
    staleness : float
        Mean number of the other workers' pushes that a push did not know of.
    workers : int
        Ranks that learn now.
    ranks : tuple of RankProgress
        One for each of them.
    events : tuple of dict
        See `TrainingResult.events`.
    """

    steps: int
    total_steps: int
    steps_per_second: float = 0.0
    episodes: int = 0
    mean_return: float = math.nan
    seconds: float = 0.0
    mean_length: float = math.nan
    td_error: float = math.nan
    epsilon: float = 0.0
    learning_rate: float = 0.0
    communication_fraction: float = 0.0
    pushes: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    bytes_saved: int = 0
    compression_seconds: float = 0.0
    most_waiting: int = 0
    staleness: float = 0.0
    workers: int = 1
    ranks: tuple[RankProgress, ...] = ()
    events: tuple[dict[str, Any], ...] = ()

    def __repr__(self) -> str:
        mean = f", mean return {self.mean_return:.4g}" if self.episodes else ""
        return (
            f"Progress({self.steps:,} of {self.total_steps:,} steps, {self.seconds:.3g} s, "
            f"{self.steps_per_second:.3g} steps/s, {self.episodes:,} episodes{mean})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as plain data for JSON, which has no NaN: None stands for it."""
        # dataclasses.asdict() copies deeply, which took a third of the time of a record.
        data = {**vars(self), "ranks": tuple(dict(vars(rank)) for rank in self.ranks)}
        return without_nan(data, _MAY_BE_NAN)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Progress:
        """Return the progress that `to_dict` described."""
        ranks = tuple(RankProgress(**rank) for rank in data["ranks"])
        return cls(**{**with_nan(data, _MAY_BE_NAN), "ranks": ranks, "events": tuple(data["events"])})


_LOOK_SHARE = 4.0
"""Looks for episodes lie apart one in so many of the steps made, and of the episodes missing, at most."""

_LEAST_STEPS = 10
"""Between two of them at least, whatever was made before."""

_LONGER = 1.5
"""Where none has ended between two looks, the next is so many times as far."""


class Observer:
    """What is told of a call of `train` on the rank that serves, between messages; this one ignores it."""

    wants_pushes = False  # whether `pushed` is to be called

    def next_step(self, steps: int, total_steps: int) -> float:
        """Return the first step of this call after `steps` at which to report; infinity: at none."""
        return math.inf

    def started(self, progress: Progress, reported: int) -> None:
        """Hear that this rank serves from now on; the next report counts from step `reported` of the call on.

        If another rank has reported more than that, it was lost before this one could know.
        """

    def reported(self, progress: Progress) -> bool:
        """Hear how far the run is. Return False to end it, in order, with the steps that were given out."""
        return True

    def happened(self, event: dict[str, Any]) -> None:
        """Hear what happened to a rank."""

    def saved(self, steps: int, name: str) -> None:
        """Hear that the checkpoint `name`, of global step `steps`, is on disk."""

    def pushed(self, rank: int, steps: int, staleness: int, n_bytes: int) -> None:
        """Hear of a push of `rank`."""


@dataclass(frozen=True)
class Learning:
    """A rank that learns, and for how many seconds it has been silent."""

    rank: int
    host: str
    silence: float = 0.0


@dataclass(frozen=True)
class Company:
    """Who is there besides a process that learns alone: `own` is the process itself.

    `is_there` tells whether there is somebody to be served, and `record` what happened to the others.
    """

    own: Learning = field(default_factory=lambda: Learning(0, socket.gethostname()))
    is_there: Callable[[], bool] = lambda: False
    record: EventLog | None = None


@dataclass
class Reporter:
    """Tells an observer how far a run is: at the steps that it asks for, and at the end.

    And every so many seconds and at each checkpoint, unless it is infinitely many: then reports depend on
    steps alone.

    `rates` gives the chance of a random action and the step size after so many steps of this call, with so
    many workers. `wants_end`: the observer has asked for the end of the run. `episodes`: it ends, too,
    soon after so many of this call have ended; None: it does not. To see that in time, it looks the more
    often the fewer are missing, and reports then.
    """

    tally: Tally
    observer: Observer = field(default_factory=Observer)
    every: float = math.inf  # seconds between two reports
    rates: Callable[[int, int], tuple[float, float]] = lambda steps, workers: (0.0, 0.0)
    wants_end: bool = False
    episodes: int | None = None

    def __post_init__(self) -> None:
        #: Of each rank, since the last report.
        self._shares: defaultdict[int, Counters] = defaultdict(Counters)
        self._events: list[dict[str, Any]] = []
        self._has_reported = False
        self.pause()
        self._rest_from(0.0)

    def _rest_from(self, seconds: float) -> None:
        """Begin to wait for the next report."""
        self._steps_then, self._then, self._next = self.tally.steps, seconds, seconds + self.every
        self._shares.clear()

    def _plan(self) -> None:
        self.next_step = self.observer.next_step(self.tally.reported.steps, self.tally.total_steps)
        if self.episodes is not None:
            self.next_step = min(self.next_step, self._look_for_episodes(self.episodes))

    def _look_for_episodes(self, most: int) -> float:
        """Return a step by which no more than a part of what is missing of `most` episodes has ended.

        By the length of those that ended between the last two looks: while they get shorter, the mean of all
        is too long. Where one is missing that is a part of an episode on.

        It follows from steps alone: a bar that is moved by time, or callbacks that ask for steps of their
        own, must not show in where a reproducible run ends.
        """
        now = self.tally.looked
        return now.steps + max(1, math.ceil(self._steps_of(1.0 / _LOOK_SHARE, now, most)))

    def _steps_of(self, part: float, now: Counters, most: int) -> float:
        """Return in how many steps from `now` on this part ends of what is missing of `most` episodes."""
        since = now.since(self.tally.looked_before)
        if since.steps <= 0:  # what is gone on from did not say
            since = now
        if since.episodes:
            wanted = since.steps / since.episodes * part * max(1.0, most - now.episodes)
        else:
            wanted = _LONGER * since.steps
        # How long they will be cannot be told for long.
        return min(wanted, max(_LEAST_STEPS, now.steps / _LOOK_SHARE))

    def steps_foreseen(self) -> float:
        """Return how many steps of all ranks may be under way while `episodes` are missing; else infinity.

        All that are missing end in them, by the length of the last ones. Each episode has a step at least, so
        as many as are missing, of whatever length, are not too many.
        """
        if self.episodes is None:
            return math.inf
        missing = self.episodes - self.tally.episodes
        return max(missing, self._steps_of(1.0, self.tally, self.episodes)) if missing > 0 else 0.0

    def end_if_enough(self) -> None:
        """End the run if so many `episodes` have ended, before the next look: where time decides anyway."""
        if self.episodes is not None and self.tally.episodes >= self.episodes:
            self.wants_end = True

    def begin(self, seconds: float, learning: Iterable[Learning]) -> None:
        """Count from now on, `seconds` after this process began, what was not in this call's last report."""
        self._has_begun = True
        self._rest_from(seconds)
        self.observer.started(self._progress(seconds, tuple(learning)), self.tally.reported.steps)
        self._plan()

    def pause(self) -> None:
        """Tell nothing more of steps until it begins again: another rank serves, or nobody yet."""
        self._has_begun = False
        #: Step of this call at which to report next; infinity: at none.
        self.next_step = math.inf

    def count(self, rank: int, steps: int, learned: Learned, staleness: int = 0, n_bytes: int = 0) -> None:
        """Take note of a push, of which only the seconds that were learned are of interest."""
        share = self._shares[rank]
        share.steps += steps
        share.pushes += 1
        share.staleness += staleness
        share.learning_seconds += learned.learning_seconds
        share.worker_seconds += learned.worker_seconds
        if self._has_begun and self.observer.wants_pushes:
            self.observer.pushed(rank, steps, staleness, n_bytes)

    def hear(self, record: EventLog | None, saver: Saver | None) -> None:
        """Pass on what happened to ranks, and which checkpoint is on disk."""
        while record is not None and record.fresh:
            event = record.fresh.popleft()
            self._events.append(event)
            self.observer.happened(event)
        if saver is not None and (written := saver.news()) is not None:
            self.observer.saved(*written)

    def is_due(self, seconds: float, now: bool = False) -> bool:
        """Whether to report, `seconds` after this process began: it is time, or `now` if there is news."""
        if self.tally.steps < self.tally.reported.steps:  # what is made again after a loss was reported
            return False
        if self.is_at_step or seconds >= self._next:
            return True
        return now and self.every < math.inf and self.tally.steps > self.tally.reported.steps

    @property
    def is_at_step(self) -> bool:
        """Whether the step has come at which to report; the last one of all is reported when all is saved."""
        return self.next_step <= self.tally.steps < self.tally.total_steps and not self.wants_end

    def report(self, seconds: float, learning: Iterable[Learning]) -> None:
        """Report, `seconds` after this process began; who learns is told by `learning`."""
        progress = self._progress(seconds, tuple(learning))
        self._has_reported = True
        self.tally.reported = self.tally.copy()
        if self.episodes is not None and self.tally.steps >= self._look_for_episodes(self.episodes):
            self.tally.looked_before, self.tally.looked = self.tally.looked, self.tally.reported
            if self.tally.episodes >= self.episodes:
                self.wants_end = True
        self._rest_from(seconds)
        self._events.clear()
        if not self.observer.reported(progress):
            self.wants_end = True
        self._plan()

    def report_end(self, seconds: float, learning: Iterable[Learning]) -> None:
        """Report the end of the call, unless a report of this process has all.

        Reports add up to the result. What an earlier process reported last, its callbacks may not have heard.
        """
        since = self.tally.since(self.tally.reported)
        if not self._has_reported or any((since.steps, since.pushes, since.bytes_pushed, since.bytes_pulled)):
            self.report(seconds, learning)

    def rest(self, seconds: float) -> None:
        """Count the time to the next report from `seconds` on, when the observer has returned.

        A callback that takes longer than the interval must not be called again at once.
        """
        self._next = seconds + self.every

    def _progress(self, seconds: float, learning: Sequence[Learning]) -> Progress:
        tally = self.tally
        passed = max(seconds - self._then, 1e-9)
        since = tally.since(tally.reported)
        epsilon, step_size = self.rates(tally.steps, len(learning))
        return Progress(
            **since.summary(),
            steps=tally.steps,
            total_steps=tally.total_steps,
            steps_per_second=(tally.steps - self._steps_then) / passed,
            seconds=tally.earlier_seconds + seconds,
            td_error=since.mean_td_error,
            epsilon=epsilon,
            learning_rate=step_size,
            staleness=since.mean_staleness,
            workers=len(learning),
            ranks=tuple(self._rank_progress(one, passed) for one in learning),
            events=tuple(self._events),
        )

    def _rank_progress(self, one: Learning, passed: float) -> RankProgress:
        share = self._shares[one.rank]
        return RankProgress(
            rank=one.rank,
            host=one.host,
            steps=share.steps,
            steps_per_second=share.steps / passed,
            communication_fraction=share.communication_fraction,
            staleness=share.mean_staleness,
            silence=one.silence,
        )
