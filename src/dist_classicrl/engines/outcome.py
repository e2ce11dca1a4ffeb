"""What a run was: counters that the server and the workers keep, and the result that every rank gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dist_classicrl.engines.progress import communication_fraction, with_nan, without_nan
from dist_classicrl.membership.events import EventLog, is_event

_MEANS = ("mean_return", "mean_length")
# What a checkpoint carries of a tally, besides steps and seconds.
_COUNTERS = (
    "episodes",
    "returns",
    "lengths",
    "td_errors",
    "pushes",
    "bytes_pushed",
    "bytes_pulled",
    "bytes_saved",
    "staleness",
    "learning_seconds",
    "worker_seconds",
)


@dataclass(frozen=True)
class TrainingResult:
    """What `train` did; the same on every rank.

    Attributes
    ----------
    steps : int
        Environment steps made and learned.
    episodes : int
        Episodes that ended.
    mean_return : float
        Mean undiscounted return of those episodes, under the exploring policy; NaN if none ended.
    mean_length : float
        Their mean length in steps; NaN if none ended.
    seconds : float
        Wall time of training alone, compilation and set-up apart.
    compile_seconds : float
        Wall time of compiling or loading compiled code, on the slowest rank.
    steps_per_second : float
    workers : int
        Ranks that learned; 1 where one process trained alone.
    lost_workers : tuple of int
        Ranks that were lost on the way, or left, and did not come back.
    events : tuple of dict
        What happened to ranks, in order: "kind" is one of `dist_classicrl.membership.events.KINDS`, "rank"
        whom it is about, "seconds" the time since training began, "steps_returned" the steps that the rank
        held and had not reported, "detail" why.
    pushes : int
        Messages with maps, or logical workers' rounds in the reproducible mode.
    bytes_pushed, bytes_pulled : int
        Bytes that workers sent to the server, and it to them.
    bytes_saved : int
        Bytes of maps that `compression_threshold` spared: what pushes would have carried, had each taken all
        entries learned since the one before, less what they did carry.
    communication_fraction : float
        Share of the workers' time that did not go into learning.
    resumed_from : str or None
        The checkpoint from which the run went on; None: it began afresh.

    Notes
    -----
    A call that went on from a checkpoint is described from its first beginning: what the checkpoint had
    counted is included everywhere, except in `compile_seconds`.
    """

    steps: int = 0
    episodes: int = 0
    mean_return: float = float("nan")
    mean_length: float = float("nan")
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
    communication_fraction: float = 0.0
    resumed_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON, which has no NaN: None stands for it."""
        return without_nan(asdict(self), _MEANS)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrainingResult:
        """Return the result that `to_dict` described."""
        lists = {name: tuple(data[name]) for name in ("lost_workers", "events")}
        return cls(**{**with_nan(data, _MEANS), **lists})

    @classmethod
    def is_described_by(cls, data: Any) -> bool:
        """Whether `data`, which was read from a file, is what `to_dict` returns."""
        model = asdict(cls())
        if not isinstance(data, dict) or set(data) != set(model):
            return False
        optional = (*_MEANS, "resumed_from")
        kinds = {
            **{name: type(value) for name, value in model.items()},
            "lost_workers": list,
            "events": list,
            "resumed_from": str,
        }
        return all(
            type(value) is kinds[name] or (value is None and name in optional) for name, value in data.items()
        ) and (
            all(type(rank) is int for rank in data["lost_workers"])
            and all(is_event(event) for event in data["events"])
        )


@dataclass
class Tally:
    """Counters of one call of `train` while it goes on, from where a checkpoint left them.

    Attributes
    ----------
    total_steps : int
        Asked for in the whole call.
    earlier_steps : int
        Of those, made before this process began.
    earlier_seconds : float
        Training time before this process began.
    resumed_from : str or None
        The checkpoint that says so.
    """

    total_steps: int
    steps: int = 0
    earlier_steps: int = 0
    earlier_seconds: float = 0.0
    resumed_from: str | None = None
    episodes: float = 0.0
    returns: float = 0.0
    lengths: float = 0.0
    td_errors: float = 0.0
    pushes: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    bytes_saved: int = 0
    staleness: int = 0
    learning_seconds: float = 0.0
    worker_seconds: float = 0.0

    def to_dict(self, seconds: float) -> dict[str, float]:
        """Return what has to be counted on from, `seconds` after this process began, as data for JSON."""
        counted = {name: getattr(self, name) for name in _COUNTERS}
        return {**counted, "steps": self.steps, "seconds": self.earlier_seconds + seconds}

    def go_on_from(self, data: Mapping[str, float], resumed_from: str) -> None:
        """Count on from what `to_dict` returned."""
        for name in _COUNTERS:
            setattr(self, name, type(getattr(self, name))(data[name]))
        self.steps = self.earlier_steps = int(data["steps"])
        self.earlier_seconds = float(data["seconds"])
        self.resumed_from = resumed_from

    def to_numbers(self, seconds: float) -> np.ndarray:
        """Return what `to_dict` does, as float64."""
        return np.array(list(self.to_dict(seconds).values()))

    def end_as(self, result: Mapping[str, Any]) -> None:
        """Be what it was at the end of a call with this `TrainingResult.to_dict`."""
        self.steps = int(result["steps"])
        self.earlier_seconds = float(result["seconds"])

    def take_over(self, numbers: np.ndarray) -> None:
        """Count on from what `to_numbers` said on another rank of the same call."""
        data = dict(zip(self.to_dict(0.0), numbers.tolist(), strict=True))
        for name in _COUNTERS:
            setattr(self, name, type(getattr(self, name))(data[name]))
        self.steps = int(data["steps"])
        self.earlier_seconds = data["seconds"]

    def add_totals(self, totals: Any) -> None:
        """Add (episodes, returns, lengths, errors), as of `dist_classicrl.learning.learner.Totals`."""
        self.episodes += float(totals[0])
        self.returns += float(totals[1])
        self.lengths += float(totals[2])
        self.td_errors += float(totals[3])

    def result(
        self,
        seconds: float,
        compile_seconds: float,
        workers: int,
        record: EventLog | None = None,
        away: Iterable[int] = (),
    ) -> TrainingResult:
        """Return the call's result, `seconds` after this process began, with those lost who are `away`."""
        seconds += self.earlier_seconds
        return TrainingResult(
            steps=self.steps,
            episodes=int(self.episodes),
            mean_return=self.returns / self.episodes if self.episodes else float("nan"),
            mean_length=self.lengths / self.episodes if self.episodes else float("nan"),
            seconds=seconds,
            compile_seconds=compile_seconds,
            steps_per_second=self.steps / seconds if seconds > 0.0 else 0.0,
            workers=workers,
            lost_workers=tuple(sorted({*away, *(() if record is None else record.lost)})),
            events=() if record is None else tuple(record.entries),
            pushes=self.pushes,
            bytes_pushed=self.bytes_pushed,
            bytes_pulled=self.bytes_pulled,
            bytes_saved=self.bytes_saved,
            communication_fraction=communication_fraction(self.learning_seconds, self.worker_seconds),
            resumed_from=self.resumed_from,
        )
