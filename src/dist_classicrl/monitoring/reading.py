"""What a file of metrics holds, and how it is read back: as arrays by name."""

from __future__ import annotations

import json
import math
import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl._files import read_regular
from dist_classicrl._words import nearest
from dist_classicrl.checks import checked_path, require_package
from dist_classicrl.errors import MetricsError
from dist_classicrl.membership.events import has_fields

if TYPE_CHECKING:
    import pandas

FILE = "metrics.jsonl"
"""Name of the file in a run's folder."""

_BYTES = ("bytes_pushed", "bytes_pulled", "bytes_saved")
_WHOLE = ("step", "steps", "total_steps", "episodes", "pushes", *_BYTES, "most_waiting", "workers")
COLUMNS = (
    "step",
    "time",
    "recent_return",
    "steps",
    "total_steps",
    "steps_per_second",
    "episodes",
    "mean_return",
    "seconds",
    "mean_length",
    "td_error",
    "epsilon",
    "learning_rate",
    "communication_fraction",
    "pushes",
    "bytes_pushed",
    "bytes_pulled",
    "bytes_saved",
    "compression_seconds",
    "most_waiting",
    "staleness",
    "workers",
)
"""The numbers of a line of progress: those of `Progress`, and step and time since the run's beginning."""

RANK_COLUMNS = ("steps", "steps_per_second", "communication_fraction", "staleness", "silence")
"""The numbers of each rank in it: `RankProgress`."""

_ARCHIVE = b"PK\x03\x04"  # how files of np.savez and save_model begin


@dataclass(frozen=True, repr=False)
class Metrics:
    """The records of a run; ``metrics["mean_return"]`` is a column, with one entry per report.

    Attributes
    ----------
    columns : dict of str to ndarray
        int64 where numbers are whole, else float64, with NaN where there was nothing to measure. "step" and
        "time" (in seconds) count over all calls of `train`, "step" always rises, and "time" never falls:
        where the clock of who took over from a lost server was behind, it is that of the report before.
        "recent_return" is the mean over the episodes of the last reports, as few reports as have 100 episodes
        at least: where each has more it is "mean_return". The others are as in `Progress`.
    events : list of dict
        What happened to ranks, as in `TrainingResult.events`, each with the "step" of the report before it
        and the "time".
    ranks : dict of int to dict of str to ndarray
        For each rank that learned, "step" and "time" of the reports that tell of it, its numbers as in
        `RankProgress`, and "host".
    """

    columns: dict[str, np.ndarray]
    events: list[dict[str, Any]]
    ranks: dict[int, dict[str, np.ndarray]]

    def __repr__(self) -> str:
        until = f" to step {self.columns['step'][-1]:,}" if len(self) else ""
        return f"Metrics({len(self):,} reports{until}, columns {', '.join(self.columns)})"

    def __getitem__(self, name: str) -> np.ndarray:
        if not isinstance(name, str) or name not in self.columns:
            hint = nearest(str(name), self.columns)
            raise MetricsError(f"There is no column {name!r}, only {', '.join(self.columns)}.{hint}")
        return self.columns[name]

    def __len__(self) -> int:
        return self.columns["step"].size

    def frame(self) -> pandas.DataFrame:
        """Return the columns as a pandas.DataFrame; MissingExtraError where pandas is not installed."""
        require_package("pandas", "A data frame", "sweep")
        import pandas

        return pandas.DataFrame(self.columns)


def read_metrics(path: str | os.PathLike[str]) -> Metrics:
    """Read the metrics of a run, which may still be going on.

    Parameters
    ----------
    path : str or path
        ``metrics.jsonl``, or the folder that it is in. A last line that is not complete is passed over.

    Raises
    ------
    MetricsError
        If there is no such file, or something else is wrong with it; the message says in which line.
    SettingsError
        If `path` is no path.
    """
    target = Path(checked_path("path", path))
    if target.is_dir():
        target = target / FILE
    try:
        content = read_regular(target)
    except OSError as error:
        raise MetricsError(
            f"{target} cannot be read: {error.strerror or error}. Give the folder of a run that was trained "
            "with MetricsCallback(folder), or its metrics.jsonl."
        ) from error
    if content.startswith(_ARCHIVE):
        raise MetricsError(
            f"{target} is an archive of arrays, such as a model file, and has no records of a training. Give "
            "the folder of the run or its metrics.jsonl; `dist-classicrl show` shows a model."
        )
    columns, events, latest = Columns(COLUMNS), [], 0.0
    ranks: dict[int, tuple[Columns, list[str]]] = {}
    for _, line in parse(content, target):
        if line["kind"] == "event":
            events.append({**line["event"], "step": line["step"], "time": line["time"]})
            continue
        line["time"] = latest = max(latest, line["time"])
        columns.add(line)
        for rank in line["ranks"]:
            if rank["rank"] not in ranks:
                ranks[rank["rank"]] = Columns(("step", "time", *RANK_COLUMNS)), []
            numbers, hosts = ranks[rank["rank"]]
            numbers.add({**rank, "step": line["step"], "time": line["time"]})
            hosts.append(sys.intern(rank["host"]))
    by_rank = {
        rank: {**numbers.arrays(), "host": np.array(hosts)}
        for rank, (numbers, hosts) in sorted(ranks.items())
    }
    return Metrics(columns.arrays(), events, by_rank)


class Columns:
    """Columns to which a line is added at a time, with eight bytes a number: a line itself takes far more."""

    def __init__(self, names: Iterable[str]) -> None:
        self._values: dict[str, array[Any]] = {name: array("q" if name in _WHOLE else "d") for name in names}

    def add(self, line: dict[str, Any]) -> None:
        """Add what a line says, in which None stands for NaN."""
        for name, values in self._values.items():
            values.append(math.nan if line[name] is None else line[name])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the columns by name: int64 where they are whole, else float64."""
        return {name: np.array(values) for name, values in self._values.items()}


def parse(content: bytes, path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Give each complete line of a file of metrics, as it is and what it says.

    A `MetricsError` is raised at one that is not what `MetricsCallback` writes.
    """
    last, number, begin = -1, 0, 0
    # What follows the last line's end is what a killed writer left.
    while (end := content.find(b"\n", begin)) >= 0:
        text, begin, number = content[begin:end], end + 1, number + 1
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise _fault(path, number, "it is no JSON") from None
        fault = _fault_of(data)
        if fault is None and (data["step"] < last or (data["kind"] == "progress" and data["step"] == last)):
            fault = f"step {data['step']} comes after step {last}"
        if fault is not None:
            raise _fault(path, number, fault)
        if data["kind"] == "progress":
            last = data["step"]
        yield text + b"\n", data


def _fault(path: Path, number: int, why: str) -> MetricsError:
    return MetricsError(
        f"{path}, line {number}: {why}. Metrics are written by MetricsCallback alone; remove that line to "
        "read the others."
    )


def _fault_of(data: Any) -> str | None:
    """Return what is wrong with what a line says, or None."""
    if not isinstance(data, dict) or data.get("kind") not in ("progress", "event"):
        return "it is neither progress nor an event"
    if not (_is_number("step", data.get("step")) and _is_number("time", data.get("time", math.nan))):
        return "it has no step or no time"
    if data["kind"] == "event":
        return None if has_fields(data.get("event")) else "it has no event"
    for name in COLUMNS:
        if name not in data:
            return f"it lacks {name}"
        if not _is_number(name, data[name]):
            return f"its {name} is {data[name]!r}"
    ranks = data.get("ranks")
    if not isinstance(ranks, list) or not all(map(_is_rank, ranks)):
        return "its ranks are not what they should be"
    return None


def _is_number(name: str, value: Any) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return name not in _WHOLE and (
        (value is None and name != "time") or (type(value) is float and math.isfinite(value))
    )


def _is_rank(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and type(data.get("rank")) is int
        and type(data.get("host")) is str
        and all(name in data and _is_number(name, data[name]) for name in RANK_COLUMNS)
    )
