"""A run on a screen: how far it is, its curve, its workers, and what happened to them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl.callbacks.bar import clock, drawn, short
from dist_classicrl.cli.live.chart import Chart
from dist_classicrl.engines.progress import Progress, RankProgress
from dist_classicrl.errors import MetricsError
from dist_classicrl.monitoring.reading import parse

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_POINTS = 4_000
_MOST_EVENTS = 200
_SILENT_SECONDS = 5.0
_GONE, _BACK = ("excluded", "left"), ("readmitted", "replaced")
_FIELDS = {field.name for field in fields(Progress)} - {"ranks", "events"}


class LiveRecords:
    """What the metrics of a run say so far; reads only what is new.

    Attributes
    ----------
    progress : Progress or None
        The last record; None before the first.
    steps, returns : list
        Of the learning curve: steps, and the mean return of recent episodes; of every other record where
        there are many.
    events : list of dict
        The last ones, in order, with the time of each.
    gone : dict of int to str
        Ranks that were lost or have left, and the host of each.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin_again((0, 0))

    def _begin_again(self, file: tuple[int, int]) -> None:
        self._file, self._end, self._every, self._seen = file, 0, 1, 0
        self.progress: Progress | None = None
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.events: list[dict[str, Any]] = []
        self.gone: dict[int, str] = {}
        self._hosts: dict[int, str] = {}

    def look(self) -> None:
        """Read what is new."""
        with suppress(OSError, MetricsError), open(self._path, "rb") as file:
            about = os.fstat(file.fileno())
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._end:
                self._begin_again((about.st_dev, about.st_ino))  # another process goes on with the run
            file.seek(self._end)
            data = file.read()
            self._end += data.rfind(b"\n") + 1
            for _, line in parse(data, self._path):
                self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if line["kind"] == "event":
            self._take_event({**line["event"], "time": line["time"]})
            return
        ranks = tuple(RankProgress(**rank) for rank in line["ranks"])
        known = {name: value for name, value in line.items() if name in _FIELDS}
        self.progress = Progress.from_dict({**known, "ranks": [vars(rank) for rank in ranks], "events": []})
        self._hosts |= {rank.rank: rank.host for rank in ranks}
        self._seen += 1
        if line["recent_return"] is not None and self._seen % self._every == 0:
            self.steps.append(line["step"])
            self.returns.append(line["recent_return"])
        if len(self.steps) > _MOST_POINTS:
            del self.steps[::2], self.returns[::2]
            self._every *= 2

    def _take_event(self, event: dict[str, Any]) -> None:
        self.events = [*self.events[1 - _MOST_EVENTS :], event]
        if event["kind"] in _GONE:
            self.gone[event["rank"]] = self._hosts.get(event["rank"], "")
        elif event["kind"] in _BACK:
            self.gone.pop(event["rank"], None)


class RunView:
    """Shows the run in a folder.

    `title` is what is trained; `hint` says how to end what is seen.
    """

    def __init__(self, folder: Path, title: str, hint: str) -> None:
        self._records = LiveRecords(folder / "metrics.jsonl")
        self._title, self._hint = title, hint

    def picture(self, lines: list[str]) -> RenderableType:
        """See `View`."""
        from rich.layout import Layout
        from rich.panel import Panel

        records = self._records
        records.look()
        progress = records.progress
        workers = _workers(records)
        below = Layout(name="below", size=7)
        below.split_row(
            Layout(Panel(workers, title="workers", border_style="dim")),
            Layout(Panel(LastLines(_said(records, lines)), title="events", border_style="dim")),
        )
        chart = Chart(records.steps, records.returns, "No episode has ended yet.")
        screen = Layout()
        screen.split_column(
            Layout(headline(self._title, self._hint), size=1),
            Layout(_waiting() if progress is None else drawn(progress, with_workers=False), size=2),
            Layout(Panel(chart, title="mean return of recent episodes", border_style="dim")),
            below,
        )
        if progress is not None:
            below.size = min(7 + max(0, len(progress.ranks) - 3), 14)
        return screen


def headline(title: str, hint: str) -> RenderableType:
    """Return the first line of a screen: what is seen, and how to end it."""
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(Text(title, style="bold"), Text(hint, style="dim"))
    return line


def _waiting() -> RenderableType:
    from rich.text import Text

    return Text("Before the first record: it is prepared, or compiled.", style="dim")


def _workers(records: LiveRecords) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for name in ("rank", "host", "state", "steps/s", "stale"):
        right = name in ("rank", "steps/s", "stale")
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for each in () if records.progress is None else records.progress.ranks:
        is_silent = each.silence >= _SILENT_SECONDS
        state = f"silent {clock(each.silence)}" if is_silent else "learns"
        style = "yellow" if is_silent else None
        rate = short(each.steps_per_second)
        table.add_row(str(each.rank), each.host, state, rate, f"{each.staleness:.2f}", style=style)
    for rank, host in records.gone.items():
        table.add_row(str(rank), host, "gone", "-", "-", style="red")
    return table


def _said(records: LiveRecords, lines: list[str]) -> list[str]:
    """Return what happened, the last of it at the end: events of the records, and lines of output."""
    events = [
        f"{clock(event['time'])} {event['kind']}"
        + ("" if event["kind"] == "checkpoint" else f" rank {event['rank']}")
        for event in records.events
    ]
    return events + lines


class LastLines:
    """Lines of text, of which the last ones are seen where there is no room for all."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Any, options: Any) -> Any:
        """Draw as many as there is room for."""
        from rich.text import Text

        for line in self._lines[-(options.height or 5) :]:
            yield Text.from_ansi(line, no_wrap=True, overflow="ellipsis")
