"""How runs scale with their number of workers: speed-up, efficiency, and what communication costs.

`measure` reads what one run did, `compare` sets several against the one with the fewest workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checks import as_float, is_real
from dist_classicrl.errors import MetricsError
from dist_classicrl.membership.events import has_fields

if TYPE_CHECKING:
    from dist_classicrl.monitoring.reading import Metrics

_TOTALS = ("steps", "seconds", "steps_per_second", "communication_fraction")


@dataclass(frozen=True)
class Spread:
    """Some numbers in short."""

    mean: float
    min: float
    max: float
    deviation: float  # of just these numbers: the root of the mean squared distance from the mean


@dataclass(frozen=True)
class WorkerLoad:
    """What one worker of a run did.

    `communication` is the share of its time, between one report with steps of it and the next, that did not
    go into learning; such reports weigh as much as that time. None where none has any: nothing is known then.
    """

    rank: int
    host: str  # where it was last
    steps: int
    steps_per_second: float  # over the time of the reports that tell of it
    communication: Spread | None


@dataclass(frozen=True)
class Measured:
    """What one run did.

    `workers` is the number of ranks that learned; if that changed on the way, or the run has no result yet,
    the mean over time. `communication_fraction` is the share of all workers' time that did not go into
    learning, and `communication` the same over the workers' means; None where nothing is known of them.
    """

    name: str
    workers: float
    steps: int
    seconds: float  # of training
    steps_per_second: float
    communication_fraction: float
    communication: Spread | None
    per_worker: tuple[WorkerLoad, ...]  # by rank


@dataclass(frozen=True)
class Scaled:
    """A run and how it compares with the baseline."""

    run: Measured
    speed_up: float  # its rate / the baseline's rate
    efficiency: float  # speed_up / (its workers / the baseline's workers): 1 where rates grow as workers do


@dataclass(frozen=True)
class ScalingReport:
    """Several runs, by number of workers, or one."""

    baseline: str  # name of the run that the others are compared with
    runs: tuple[Scaled, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        runs = [
            {**asdict(scaled.run), "speed_up": scaled.speed_up, "efficiency": scaled.efficiency}
            for scaled in self.runs
        ]
        return {"baseline": self.baseline, "runs": runs}


def measure(name: str, metrics: Metrics | None, result: Mapping[str, Any] | None = None) -> Measured:
    """Return what a run did.

    `metrics` come from `read_metrics`; without them nothing is known of single workers. `result` comes from
    `TrainingResult.to_dict`; a run that still goes on has none, and its metrics must hold a report.
    MetricsError if there is neither, the result is not one of this library, or nobody made a step.
    """
    if metrics is not None and not len(metrics):
        metrics = None
    if result is not None:
        totals = _totals_of_result(name, result, metrics)
    elif metrics is not None:
        totals = _totals_of_metrics(metrics)
    else:
        raise MetricsError(
            f"{name} has no result and no report of progress yet, so there is nothing to compare. Train "
            "longer than one progress interval, or give another run."
        )
    per_worker = () if metrics is None else _per_worker(metrics)
    if not totals["steps_per_second"] > 0.0:
        raise MetricsError(f"{name} has made no step, so it has no rate. Give another run.")
    if not totals["workers"] > 0.0:
        raise MetricsError(f"{name} says that it had {totals['workers']:g} workers. Give another run.")
    means = [load.communication.mean for load in per_worker if load.communication is not None]
    communication = _spread(means) if means else None
    return Measured(name=name, communication=communication, per_worker=per_worker, **totals)


def compare(runs: Sequence[Measured], baseline: str | None = None) -> ScalingReport:
    """Set runs, at least one, against that of the name `baseline`; MetricsError if none has it.

    By default that is the one with the fewest workers; of several such the slowest, so that no speed-up is
    made up by chance.
    """
    ordered = sorted(runs, key=lambda run: (run.workers, run.steps_per_second))
    chosen = ordered[0].name if baseline is None else baseline
    base = next((run for run in ordered if run.name == chosen), None)
    if base is None:
        names = ", ".join(run.name for run in ordered)
        raise MetricsError(f"The baseline {chosen} is not one of the runs. Those are {names}.")
    scaled = []
    for run in ordered:
        speed_up = run.steps_per_second / base.steps_per_second
        scaled.append(Scaled(run, speed_up, speed_up / (run.workers / base.workers)))
    return ScalingReport(base.name, tuple(scaled))


def _totals_of_result(name: str, result: Mapping[str, Any], metrics: Metrics | None) -> dict[str, Any]:
    numbers: dict[str, Any] = {key: result.get(key) for key in (*_TOTALS, "workers")}
    events: Any = result.get("events")
    wrong = [key for key, n in numbers.items() if not (is_real(n) and 0.0 <= as_float(n) < math.inf)]
    if not isinstance(events, (list, tuple)) or not all(map(has_fields, events)):
        wrong.append("events")
    if wrong:
        raise MetricsError(
            f"The result of {name} is not one of this library: {', '.join(map(repr, wrong))} of it are not "
            "as they should be. Give another run."
        )
    workers = float(numbers["workers"])
    if metrics is not None:
        # The result has those of the last call alone, which may have gone on with more or fewer ranks.
        varied = bool(np.ptp(metrics["workers"]))
        if varied or any(event["kind"] in ("excluded", "left") for event in events):
            workers = _mean_workers(metrics)
    return {**numbers, "workers": workers}


def _totals_of_metrics(metrics: Metrics) -> dict[str, Any]:
    steps, seconds = int(metrics["step"][-1]), float(metrics["time"][-1])
    busy = _durations(metrics) * metrics["workers"]
    return {
        "workers": _mean_workers(metrics),
        "steps": steps,
        "seconds": seconds,
        "steps_per_second": steps / seconds if seconds > 0.0 else 0.0,
        "communication_fraction": _mean(metrics["communication_fraction"], busy),
    }


def _durations(metrics: Metrics) -> np.ndarray:
    """Return the time before each report, since the one before it."""
    return np.diff(metrics["time"], prepend=0.0)


def _mean_workers(metrics: Metrics) -> float:
    return _mean(metrics["workers"], _durations(metrics))


def _per_worker(metrics: Metrics) -> tuple[WorkerLoad, ...]:
    ends, durations = metrics["time"], _durations(metrics)
    loads = []
    for rank, series in metrics.ranks.items():
        seconds = durations[np.searchsorted(ends, series["time"])]
        steps = int(series["steps"].sum())
        tells = series["steps"] > 0  # else nothing came of it, which is no time without communication
        since = np.diff(np.cumsum(seconds)[tells], prepend=0.0)
        loads.append(
            WorkerLoad(
                rank=rank,
                host=str(series["host"][-1]),
                steps=steps,
                steps_per_second=steps / seconds.sum() if seconds.sum() > 0.0 else 0.0,
                communication=_spread(series["communication_fraction"][tells], since) if steps else None,
            )
        )
    return tuple(sorted(loads, key=lambda load: load.rank))


def _spread(values: Any, weights: np.ndarray | None = None) -> Spread:
    numbers = np.asarray(values, np.float64)
    weights = np.ones(numbers.size) if weights is None else weights
    mean = _mean(numbers, weights)
    deviation = math.sqrt(_mean((numbers - mean) ** 2, weights))
    return Spread(mean, float(numbers.min()), float(numbers.max()), deviation)


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted mean; the plain one where nothing weighs anything."""
    return float(np.average(values, weights=weights if weights.sum() > 0.0 else None))
