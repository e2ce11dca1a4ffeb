"""A study on a screen: runs, processes, the best settings so far and their learning curve."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_classicrl.callbacks.bar import clock, short
from dist_classicrl.cli.live.chart import Chart
from dist_classicrl.cli.live.run_view import LastLines, headline
from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.study import Study, score_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_RATE_SECONDS = 30.0  # over which rates are taken
_SILENT_SECONDS = 15.0  # a process shows that it lives every few seconds


@dataclass
class _Scores:
    """Of the runs of some settings in the last rung that they reached; of all without early stopping."""

    steps: int = 0
    scores: list[float] = field(default_factory=list)
    curve: dict[int, list[float]] = field(default_factory=dict)  # returns by step

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores) if self.scores else -math.inf

    def add(self, record: dict[str, Any], varied: Sequence[str]) -> None:
        if record["steps"] < self.steps:
            return
        if record["steps"] > self.steps:
            self.steps, self.scores, self.curve = record["steps"], [], {}
        self.scores.append(score_of(record, varied))
        for step, mean, _ in record["curve"]:
            if mean is not None:
                self.curve.setdefault(step, []).append(mean)


class StudyView:
    """Shows the study in a folder, as soon as it is there."""

    def __init__(self, folder: Path, hint: str) -> None:
        self._folder, self._hint = folder, hint
        self._files = StudyFolder(folder)
        self._study: Study | None = None
        self._by_settings: dict[tuple[str, str], _Scores] = {}
        self._failures: list[str] = []
        self._done = 0
        self._failed: set[str] = set()  # runs, which may be made again
        self._of_members: Counter[str] = Counter()
        self._began = time.monotonic()
        self._is_first_look = True  # what is there then has been made before
        #: When how many trainings, and steps by each process, were new: of the last seconds.
        self._recent: deque[tuple[float, str, int]] = deque()

    def _look(self) -> None:
        if self._study is None:
            try:
                self._study = Study(self._folder)
            except StudyError:
                self._is_first_look = False
                return
        now = time.monotonic()
        for member, record in self._files.news():
            if (number := self._study.number_of(record)) is None:
                continue
            self._of_members[member] += 1
            if not self._is_first_look:
                self._recent.append((now, member, record.get("steps", 0)))
            self._failed.discard(record["key"])
            if record["error"] is not None:
                self._failed.add(record["key"])
                self._failures = [*self._failures[-20:], f"run {number}: {record['error']}"]
                continue
            self._done += 1
            group = self._study.group_of(number)
            self._by_settings.setdefault(group, _Scores()).add(record, self._study.varied)
        self._is_first_look = False
        while self._recent and self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def picture(self, lines: list[str]) -> RenderableType:
        """See `View`."""
        from rich.layout import Layout
        from rich.panel import Panel
        from rich.text import Text

        self._look()
        study = self._study
        if study is None:
            return Text("There is no study yet.", style="dim")
        # With early stopping by the rung that was reached, then by the score there: those of others are of
        # other numbers of steps.
        ranked = sorted(self._by_settings.items(), key=lambda item: (-item[1].steps, -item[1].mean))
        best = ranked[0][1].curve if ranked else {}
        curve = {step: math.fsum(means) / len(means) for step, means in sorted(best.items())}
        chart = Chart([*curve], [*curve.values()], "No run has ended yet.")
        names = len(study.environments) > 1
        screen, lower, processes = Layout(), Layout(), Layout()
        said = self._failures + lines
        processes.split_column(
            Layout(Panel(self._members(), title="processes", border_style="dim")),
            Layout(
                Panel(LastLines(said), title="failures and output", border_style="dim"),
                size=5,
                visible=bool(said),
            ),
        )
        lower.split_row(Layout(Panel(chart, title="mean return of the best", border_style="dim")), processes)
        screen.split_column(
            Layout(headline(str(self._folder), self._hint), size=1),
            Layout(self._bar(study), size=2),
            Layout(
                Panel(
                    _best(ranked, names, study.plan.stopping is not None),
                    title="best settings so far",
                    border_style="dim",
                )
            ),
            lower,
        )
        return screen

    def _bar(self, study: Study) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        made = self._done + len(self._failed)
        total = max(study.trainings, made)  # early stopping that waits for nothing may make more
        passed = min(_RATE_SECONDS, time.monotonic() - self._began)
        per_second = len(self._recent) / passed if passed > 0.0 else 0.0
        steps = sum(each for *_, each in self._recent) / passed if passed > 0.0 else 0.0
        left = clock((total - made) / per_second) if per_second else "--:--"
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column(justify="right", no_wrap=True)
        share = math.floor(100 * made / total)
        line.add_row(ProgressBar(total=total, completed=made), Text(f"{share}%  {left} left"))
        failed = f"{len(self._failed):,} failed  " if self._failed else ""
        numbers = (
            f"{made:,}/{total:,} runs  {failed}{total - made:,} left  {per_second:.3g} runs/s  "
            f"{short(steps)} steps/s"
        )
        return Group(line, Text(numbers, no_wrap=True, overflow="ellipsis"))

    def _members(self) -> RenderableType:
        from rich.table import Table

        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=True)
        for name in ("process", "state", "runs", "steps/s"):
            right = name in ("runs", "steps/s")
            table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
        there = {}
        for path in (self._folder / "members").glob("[!.]*"):
            try:
                there[path.name] = time.time() - path.stat().st_mtime
            except OSError:  # it has just ended
                continue
        passed = max(1e-9, min(_RATE_SECONDS, time.monotonic() - self._began))
        rates: Counter[str] = Counter()
        for _, member, steps in self._recent:
            rates[member] += steps
        for member in sorted({*there, *rates}):
            silence = there.get(member)
            state, style = "works", None
            if silence is None:
                state, style = "has ended", "dim"
            elif silence > _SILENT_SECONDS:
                state, style = f"silent {clock(silence)}", "red"
            name = member.rpartition(".")[0]
            runs = str(self._of_members[member])
            table.add_row(name, state, runs, short(rates[member] / passed), style=style)
        return table


def _best(
    ranked: list[tuple[tuple[str, str], _Scores]], with_names: bool, with_steps: bool
) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    if with_steps:
        table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("settings", ratio=1, no_wrap=True, overflow="ellipsis")
    for (environment, settings), found in ranked:
        name = f"{environment} {settings}" if with_names else settings
        steps = [short(found.steps)] if with_steps else []
        table.add_row(f"{found.mean:.4g}", str(len(found.scores)), *steps, name)
    return table
