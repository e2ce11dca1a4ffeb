"""What a run was: counters that are kept while it goes on, and the outcome that every rank gets."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter, sub
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dist_classicrl._html import facts_of
from dist_classicrl._words import counted
from dist_classicrl.membership.events import EventLog, has_fields

logger = logging.getLogger(__name__)

_MEANS = ("mean_return", "mean_length")

_Outcome = TypeVar("_Outcome", bound="Outcome")


@dataclass(frozen=True, repr=False)
class Outcome:
    """What an engine gives when it has trained; the same on every rank.

    `dist_classicrl.TrainingResult`, which `train` makes of it, says what the fields mean.
    """

    steps: int = 0
    episodes: int = 0
    mean_return: float = math.nan
    mean_length: float = math.nan
    seconds: float = 0.0
    compile_seconds: float = 0.0
    steps_per_second: float = 0.0
    workers: int = 0
    lost_workers: tuple[int, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    pushes: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    bytes_saved: int = 0
    compression_seconds: float = 0.0
    most_waiting: int = 0
    communication_fraction: float = 0.0
    resumed_from: str | None = None
    device: str = "cpu"

    def __repr__(self) -> str:
        parts = [counted(self.steps, "step"), counted(self.episodes, "episode")]
        if self.episodes:
            parts += [f"mean return {self.mean_return:.4g}", f"mean length {self.mean_length:.4g}"]
        parts += [f"{self.seconds:.3g} s", f"{self.steps_per_second:.3g} steps/s"]
        parts.append(counted(self.workers, "worker"))
        if self.device != "cpu":
            parts.append(f"on {self.device}")
        if self.lost_workers:
            parts.append(f"lost {', '.join(map(str, self.lost_workers))}")
        if self.resumed_from is not None:
            parts.append(f"resumed from {self.resumed_from}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return facts_of(repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON, which has no NaN: None stands for it."""
        return without_nan(asdict(self), _MEANS)

    @classmethod
    def from_dict(cls: type[_Outcome], data: Mapping[str, Any]) -> _Outcome:
        """Return what `to_dict` described, be it in another version: see `is_described_by`."""
        known = {name: value for name, value in data.items() if name in _KINDS}
        lists = {name: tuple(known.get(name, ())) for name in ("lost_workers", "events")}
        return cls(**{**with_nan(known, _MEANS), **lists})

    @classmethod
    def is_described_by(cls, data: Any) -> bool:
        """Whether `data`, which was read from a file, is what `to_dict` returns, here or in another version.

        That may count more, which is passed over, or less besides the steps.
        """
        if not isinstance(data, dict) or "steps" not in data:
            return False
        known = {name: value for name, value in data.items() if name in _KINDS}
        return (
            all(
                type(value) is _KINDS[name] or (value is None and name in _MAY_BE_NONE)
                for name, value in known.items()
            )
            and all(type(rank) is int for rank in known.get("lost_workers", ()))
            and all(map(has_fields, known.get("events", ())))
        )


# What the fields of an outcome are in files; those that may be None there, too.
_KINDS = {
    **{name: type(value) for name, value in asdict(Outcome()).items()},
    "lost_workers": list,
    "events": list,
    "resumed_from": str,
}
_MAY_BE_NONE = (*_MEANS, "resumed_from")


@dataclass
class Counters:
    """What is counted of a run, from its beginning or since a report. `TrainingResult` explains the bytes."""

    steps: int = 0
    episodes: float = 0.0  # that ended
    returns: float = 0.0  # the sum over those episodes
    lengths: float = 0.0  # likewise
    td_errors: float = 0.0  # sum of absolute temporal-difference errors over the steps
    pushes: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    bytes_saved: int = 0
    compression_seconds: float = 0.0  # of all ranks
    most_waiting: int = 0  # entries of which a worker held back something at a time; the most so far
    staleness: int = 0  # sum over the pushes of the other workers' pushes that each did not know of
    learning_seconds: float = 0.0  # of all workers
    worker_seconds: float = 0.0  # likewise, with all that was not learning

    def counted(self) -> dict[str, Any]:
        """Return all counters by name."""
        return dict(zip(_COUNTERS, _values_of(self), strict=True))

    def copy(self) -> Counters:
        """Return them as they are now."""
        return Counters(*_values_of(self))

    def add_learned(self, learned: Learned) -> None:
        """Add what was learned, without the time that it took."""
        self.episodes += learned.episodes
        self.returns += learned.returns
        self.lengths += learned.lengths
        self.td_errors += learned.td_errors

    def since(self, before: Counters) -> Counters:
        """Return what was counted after `before`."""
        counted = Counters(*map(sub, _values_of(self), _values_of(before)))
        counted.most_waiting = self.most_waiting
        return counted

    def summary(self) -> dict[str, Any]:
        """Return what `Outcome` and `Progress` both say of it, by the names that it has there."""
        episodes = self.episodes
        return {
            "episodes": int(episodes),
            "mean_return": self.returns / episodes if episodes else math.nan,
            "mean_length": self.lengths / episodes if episodes else math.nan,
            "pushes": self.pushes,
            "bytes_pushed": self.bytes_pushed,
            "bytes_pulled": self.bytes_pulled,
            "bytes_saved": self.bytes_saved,
            "compression_seconds": self.compression_seconds,
            "most_waiting": self.most_waiting,
            "communication_fraction": self.communication_fraction,
        }

    @property
    def mean_td_error(self) -> float:
        """Mean absolute temporal-difference error of the steps; NaN if there were none."""
        return self.td_errors / self.steps if self.steps else math.nan

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the pushes; 0.0 if there were none."""
        return self.staleness / self.pushes if self.pushes else 0.0

    @property
    def communication_fraction(self) -> float:
        """The share of the workers' time that did not go into learning; 0.0 if there was no time."""
        if self.worker_seconds <= 0.0:
            return 0.0
        return max(0.0, 1.0 - self.learning_seconds / self.worker_seconds)


_COUNTERS = [each.name for each in fields(Counters)]
_values_of = attrgetter(*_COUNTERS)
_MOMENTS = "reported", "looked", "looked_before"
_LEARNED = ("steps", "episodes", "returns", "lengths", "td_errors")


def _typed(data: Mapping[str, float]) -> dict[str, Any]:
    """Return the counters in `data` by name, each of its own type; 0 where one is missing."""
    return {name: type(count)(data.get(name, count)) for name, count in Counters().counted().items()}


def _are_counters(data: Any, needed: set[str]) -> bool:
    """Whether `data` has numbers that counters can be, those that are `needed` among them."""
    if not isinstance(data, dict) or not needed <= set(data):
        return False
    numbers = [data[name] for name in {*_COUNTERS, *needed}.intersection(data)]
    return all(type(value) in (int, float) and abs(value) < 2**1023 for value in numbers)


class Learned(NamedTuple):
    """What a worker's learning came to since it last told; see `Counters`."""

    episodes: float = 0.0
    returns: float = 0.0
    lengths: float = 0.0
    td_errors: float = 0.0
    learning_seconds: float = 0.0
    worker_seconds: float = 0.0

    @classmethod
    def of(cls, totals: np.ndarray, learning_seconds: float = 0.0, worker_seconds: float = 0.0) -> Learned:
        """Return what `dist_classicrl.learning.learner.Totals.take` said, with the seconds."""
        episodes, returns, lengths, td_errors = totals.tolist()
        return cls(episodes, returns, lengths, td_errors, learning_seconds, worker_seconds)


NOTHING_LEARNED = Learned()


@dataclass(frozen=True)
class Counted:
    """What was counted of a call, and its training time: what another rank can count on from."""

    counters: Counters
    reported: Counters  # as of the last report
    looked: Counters  # as of the last look for episodes
    looked_before: Counters  # as of the one before that
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as `Tally.to_dict` does."""
        moments = {name: getattr(self, name).counted() for name in _MOMENTS}
        return {**self.counters.counted(), "seconds": self.seconds, **moments}


@dataclass
class Tally(Counters):
    """Counters of one call of `train` while it goes on, from where a checkpoint left them.

    What is earlier was made before this process began, as the checkpoint `resumed_from` says.
    """

    total_steps: int = field(kw_only=True)  # asked for in the whole call
    earlier_steps: int = 0
    earlier_seconds: float = 0.0  # of training
    resumed_from: str | None = None
    device: str = "cpu"  # on which this call is learned now
    reported: Counters = field(default_factory=Counters)  # as of the last report
    #: As of the last look for whether episodes enough have ended, which no report by time moves.
    looked: Counters = field(default_factory=Counters)
    looked_before: Counters = field(default_factory=Counters)  # as of the look before that one

    def to_dict(self, seconds: float) -> dict[str, Any]:
        """Return what has to be counted on from, `seconds` after this process began, as data for JSON."""
        return {
            **self.counted(),
            "seconds": self.earlier_seconds + seconds,
            **{name: getattr(self, name).counted() for name in _MOMENTS},
        }

    @classmethod
    def is_described_by(cls, data: Any) -> bool:
        """Whether `data`, which was read from a file, is what `to_dict` returns, here or in another version.

        That may count more, which is passed over, or less besides steps and seconds; moments may lack.
        """
        return _are_counters(data, {"steps", "seconds"}) and all(
            _are_counters(data[name], {"steps"}) for name in _MOMENTS if name in data
        )

    def so_far(self, seconds: float) -> Counted:
        """Return likewise what another rank of the same call has to count on from."""
        moments = self.reported, self.looked, self.looked_before
        return Counted(self.copy(), *moments, self.earlier_seconds + seconds)

    def go_on_from(self, data: Mapping[str, Any], resumed_from: str) -> None:
        """Count on from what `to_dict` returned."""
        self._take(data)
        self.earlier_steps = self.steps
        self.resumed_from = resumed_from

    def take_over(self, counted: Counted) -> None:
        """Count on from what `so_far` said on another rank of the same call."""
        self._take(counted.to_dict())

    def go_back_to(self, data: Mapping[str, Any]) -> None:
        """Be at the steps at which `to_dict` returned `data`, which are to be made again from there on.

        What was sent, how long it took, and what was reported since then stays.
        """
        there = Tally(total_steps=self.total_steps)
        there._take(data)
        if again := self.steps - there.steps:  # below 0 where this rank takes over, and never knew more
            known = f": {again:,} steps are made again" if again > 0 else ""
            logger.warning("Going back to step %s of this call%s.", f"{there.steps:,}", known)
        for name in _COUNTERS:
            own, then = getattr(self, name), getattr(there, name)
            setattr(self, name, then if name in _LEARNED else max(own, then))
        for name in _MOMENTS:
            newest = max(getattr(self, name), getattr(there, name), key=lambda counters: counters.steps)
            setattr(self, name, newest)

    def end_as(self, result: Mapping[str, Any]) -> None:
        """Be what it was at the end of a call with this `Outcome.to_dict`."""
        self.steps = int(result["steps"])
        for name in _MOMENTS:
            setattr(self, name, self.copy())
        self.earlier_seconds = float(result["seconds"])

    def _take(self, data: Mapping[str, Any]) -> None:
        for name, count in _typed(data).items():
            setattr(self, name, count)
        self.earlier_seconds = float(data["seconds"])
        for name in _MOMENTS:
            setattr(self, name, Counters(**_typed(data[name])) if name in data else self.copy())

    def count_compression(self, bytes_saved: int, seconds: float, waiting: int = 0) -> None:
        """Count what compression of a message spared, how long it took, and how much waits for the next."""
        self.bytes_saved += bytes_saved
        self.compression_seconds += seconds
        self.most_waiting = max(self.most_waiting, waiting)

    def result(
        self,
        seconds: float,
        compile_seconds: float,
        workers: int,
        record: EventLog | None = None,
        away: Iterable[int] = (),
    ) -> Outcome:
        """Return the call's outcome, `seconds` after this process began, with those lost who are `away`."""
        seconds += self.earlier_seconds
        return Outcome(
            **self.summary(),
            steps=self.steps,
            seconds=seconds,
            compile_seconds=compile_seconds,
            steps_per_second=self.steps / seconds if seconds > 0.0 else 0.0,
            workers=workers,
            lost_workers=tuple(sorted({*away, *(() if record is None else record.lost)})),
            events=() if record is None else tuple(record.entries),
            resumed_from=self.resumed_from,
            device=self.device,
        )


def without_nan(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return `data` for JSON, which has no NaN: None stands for it under these `names`."""
    return {**data, **{name: None for name in names if math.isnan(data[name])}}


def with_nan(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return what `without_nan` was made of."""
    return {**data, **{name: math.nan for name in names if name in data and data[name] is None}}
