"""A run on a terminal: a progress bar with the numbers of the last report, and a line per worker."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dist_classicrl._words import counted, is_alone
from dist_classicrl.callbacks.display import time_left

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from dist_classicrl.engines.progress import Progress

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def bar(
    console: Console,
    source: Callable[[], Progress | None],
    waiting: Callable[[], str],
    with_workers: bool = False,
) -> Live:
    """Return what draws how far a run is, again and again, while it is entered.

    `source` returns the last report; as long as that is None, what `waiting` returns is said. What Python
    writes meanwhile appears above, unless it does not go to the terminal.
    """
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", waiting())

    def picture() -> RenderableType:
        progress = source()
        if progress is not None:
            return drawn(progress, with_workers)
        spinner.update(text=waiting())
        return spinner

    return Live(
        spinner,  # without it, it begins late
        console=console,
        get_renderable=picture,
        redirect_stdout=is_terminal(sys.stdout),
        redirect_stderr=is_terminal(sys.stderr),
    )


def is_terminal(stream: Any) -> bool:
    """Return whether a stream of `sys` is a terminal on which something can be drawn again and again."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM", "dumb") != "dumb"
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def rendered(progress: Progress | None, waiting: str, with_workers: bool) -> RenderableType:
    """Return the last report, or what is waited for, as what rich draws."""
    from rich.text import Text

    return Text(waiting) if progress is None else drawn(progress, with_workers)


def drawn(progress: Progress, with_workers: bool) -> RenderableType:
    """Return a report as what rich draws; `with_workers` has a line for each worker."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(
        ProgressBar(total=max(1, progress.total_steps), completed=progress.steps),
        Text(_share(progress)),
    )
    numbers = Text(_numbers(progress), no_wrap=True, overflow="ellipsis")
    rows: list[RenderableType] = [bar, numbers]
    if with_workers and progress.ranks and not is_alone(each.rank for each in progress.ranks):
        rows.append(_workers(progress))
    return Group(*rows)


def in_words(progress: Progress) -> str:
    """Return a report as a line of text."""
    return f"{_share(progress)}  {_numbers(progress)}"


def _share(progress: Progress) -> str:
    left = time_left(progress)
    share = progress.steps / progress.total_steps if progress.total_steps else 1.0
    return f"{math.floor(100 * share)}%  {'--:--' if left is None else clock(left)} left"


def _numbers(progress: Progress) -> str:
    workers = counted(progress.workers, "worker")
    return (
        f"{short(progress.steps)}/{short(progress.total_steps)} steps  "
        f"{short(progress.steps_per_second)}/s  "
        f"return {_number(progress.mean_return)}  epsilon {progress.epsilon:.3g}  {workers}"
    )


def _workers(progress: Progress) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("rank", "host", "steps/s", "staleness", "last heard"):
        table.add_column(name, justify="left" if name == "host" else "right", no_wrap=True)
    for each in progress.ranks:
        table.add_row(
            str(each.rank),
            each.host,
            short(each.steps_per_second),
            f"{each.staleness:.2f}",
            f"{each.silence:.1f} s ago",
        )
    return table


def short(number: float) -> str:
    """Return a number in three digits and a unit, such as 45.2M."""
    rounded = float(f"{number:.3g}")
    for size, unit in _UNITS:
        if abs(rounded) >= size:
            return f"{rounded / size:g}{unit}"
    return f"{rounded:g}"


def clock(seconds: float) -> str:
    """Return a duration as on a clock: 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
