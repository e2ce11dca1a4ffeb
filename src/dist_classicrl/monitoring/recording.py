"""Writes the records of a run, so that they survive whatever ends it and go on where it does."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl._files import read_regular
from dist_classicrl.errors import MetricsError
from dist_classicrl.monitoring.files import AppendedFile, set_aside
from dist_classicrl.monitoring.reading import COLUMNS, FILE, parse
from dist_classicrl.monitoring.reports import Gathered, RecentEpisodes

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress

logger = logging.getLogger(__name__)

_encode = json.JSONEncoder(allow_nan=False).encode
_HEADER = ",".join(COLUMNS).encode() + b"\n"


_at_rest: dict[Path, MetricsWriter] = {}  # by folder: what wrote there last, of those that wrote last
_MOST_AT_REST = 100


def writer_in(folder: Path, run: str, step: int, progress: Progress, reported: int) -> MetricsWriter:
    """Return the `MetricsWriter` that was put at rest for this folder, if it can go on; else a new one.

    A new one reads all that is there and writes it anew.
    """
    writer = _at_rest.pop(folder.absolute(), None)
    if writer is not None and writer.goes_on(run, step, progress, reported):
        return writer
    return MetricsWriter(folder, run, step, progress, reported)


class MetricsWriter:
    """``metrics.jsonl`` and ``metrics.csv`` in a folder, from where a training begins or goes on.

    What was recorded beyond that point is moved to ``metrics.lost.jsonl``: it is what the training lost when
    it was killed. Where a training begins, at step 0, files of an earlier one are renamed, and so are those
    of another `run` than this one, of which each line has the name.

    The training goes on at `step`, counted over all calls of `train`; `progress` is the same within the call.
    The next report counts from step `reported` on: so what is recorded of later steps will be reported again.
    OSError is raised where the files cannot be read or written.
    """

    def __init__(self, folder: Path, run: str, step: int, progress: Progress, reported: int) -> None:
        self._run = run
        self._jsonl = folder / FILE
        self._csv = self._jsonl.with_suffix(".csv")
        self._lost = self._jsonl.with_suffix(".lost.jsonl")
        self._last: dict[str, Any] = {"step": 0, "time": 0.0, "seconds": 0.0}
        self._recent = RecentEpisodes()
        self._seen: set[tuple[Any, ...]] = set()
        self._offset = 0.0
        self._step = 0  # that of the last report, and never below a line that stays
        folder.mkdir(parents=True, exist_ok=True)
        kept = self._keep(step, progress, reported)
        rows = [_row(line) for _, line in kept if line["kind"] == "progress"]
        self._files = (
            AppendedFile(self._jsonl, b"".join(text for text, _ in kept)),
            AppendedFile(self._csv, _HEADER + b"".join(rows)),
        )

    def goes_on(self, run: str, step: int, progress: Progress, reported: int) -> bool:
        """Whether a training goes on at `step` with these files as they are; then take note of it."""
        if (
            run != self._run
            or reported < self._last["step"]
            or not all(file.is_current for file in self._files)
        ):
            return False
        self._begin_call(step, progress)
        return True

    def rest(self) -> None:
        """Be there for whoever records in this folder next."""
        folder = self._jsonl.parent.absolute()
        _at_rest.pop(folder, None)
        _at_rest[folder] = self
        if len(_at_rest) > _MOST_AT_REST:
            del _at_rest[next(iter(_at_rest))]

    def add_event(self, event: dict[str, Any]) -> None:
        """Write down what happened to a rank, once."""
        self._append(self._event(event), b"")

    def add_progress(self, step: int, progress: Progress) -> None:
        """Write down a report with all that happened until then; not one without a new step."""
        text, row = b"".join(map(self._event, progress.events)), b""
        self._step = max(step, self._step)
        progress = self._gathered.add(progress)
        if step > self._last["step"]:
            self._gathered.take()
            self._recent.add(progress.episodes, progress.mean_return, progress.mean_length)
            told = {name: value for name, value in progress.to_dict().items() if name != "events"}
            line = {
                "kind": "progress",
                "run": self._run,
                "step": step,
                "time": max(self._last["time"], self._offset + progress.seconds),
                "recent_return": self._recent.mean_return,
                **told,
            }
            try:
                written = _text(line)
            except ValueError:  # a number that JSON does not have
                line = _finite(line)
                written = _text(line)
            self._last = line
            text, row = text + written, _row(line)
        self._append(text, row)

    def flush(self) -> None:
        """Try once more to write what could not be written."""
        self._append(b"", b"")

    def _event(self, event: dict[str, Any]) -> bytes:
        if _key(event) in self._seen:
            return b""
        self._seen.add(_key(event))
        time = self._offset + event["seconds"]
        return _text({"kind": "event", "run": self._run, "step": self._step, "time": time, "event": event})

    def _append(self, text: bytes, row: bytes) -> None:
        failure: OSError | None = None
        for file, piece in zip(self._files, (text, row), strict=True):
            try:
                file.append(piece)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _keep(self, step: int, progress: Progress, reported: int) -> list[tuple[bytes, dict[str, Any]]]:
        """Return those lines of the file that is there which stay, and move the others away."""
        content = read_regular(self._jsonl) if self._jsonl.exists() else b""
        lines: list[tuple[bytes, dict[str, Any]]] = []
        try:
            if step > 0:
                lines = list(parse(content, self._jsonl))
                if any(line.get("run") != self._run for _, line in lines):
                    lines = []
                    self._set_aside("they are of another agent")
            elif content:
                self._set_aside("another training begins")
        except MetricsError as error:
            self._set_aside(str(error))
        for _, line in lines:
            if line["kind"] == "progress" and line["step"] <= reported:
                self._last = line
                self._recent.add(line["episodes"], _number(line["mean_return"]), _number(line["mean_length"]))
        self._begin_call(step, progress)
        now = self._offset + progress.seconds
        # An event has the step of the report before it, and a time of its own.
        is_kept = [
            line["step"] <= reported and (line["kind"] == "progress" or line["time"] <= now)
            for _, line in lines
        ]
        kept = [line for line, stays in zip(lines, is_kept, strict=True) if stays]
        lost = [text for (text, _), stays in zip(lines, is_kept, strict=True) if not stays]
        if lost:
            with open(self._lost, "ab") as file:
                file.write(b"".join(lost))
            logger.info(
                "%d lines of %s beyond step %s are in %s now.", len(lost), FILE, f"{reported:,}", self._lost
            )
        self._seen = {_key(line["event"]) for _, line in kept if line["kind"] == "event"}
        return kept

    def _begin_call(self, step: int, progress: Progress) -> None:
        """Take note of the time that passed before the call of `train` that begins, or goes on, at `step`."""
        #: Reports since the last line: those without a new step have none of their own.
        self._gathered = Gathered(progress.steps, progress.seconds)
        self._step = max(step, self._last["step"])
        is_of_call = self._last["step"] > step - progress.steps
        self._offset = self._last["time"] - (self._last["seconds"] if is_of_call else 0.0)

    def _set_aside(self, why: str) -> None:
        moved = set_aside([self._jsonl, self._csv, self._lost])
        logger.warning("Earlier metrics are in %s now: %s.", ", ".join(map(str, moved)), why)


def _key(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["kind"], event["rank"], event["seconds"], event["detail"]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(line: dict[str, Any]) -> bytes:
    return _encode(line).encode() + b"\n"


def _finite(value: Any) -> Any:
    """Return the same with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(line: dict[str, Any]) -> bytes:
    cells = ("" if line[name] is None else repr(line[name]) for name in COLUMNS)
    return ",".join(cells).encode() + b"\n"
