"""What a terminal shows of runs of a study that are being made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dist_classicrl.callbacks.bar import clock

if TYPE_CHECKING:
    from dist_classicrl.sweep.sweep import SweepProgress


def teller() -> Callable[[SweepProgress], None]:
    """Return what shows how far a sweep is: at first each second, then ever less often."""
    due = 0.0

    def tell(progress: SweepProgress) -> None:
        nonlocal due
        if progress.seconds < due and progress.seconds_left > 0.0:
            return
        due = max(progress.seconds + 1.0, progress.seconds * 1.2)
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        left = f", {clock(progress.seconds_left)} left" if progress.seconds_left > 0.0 else ""
        click.echo(
            f"{progress.done:,} of {progress.total:,} runs{failed}, "
            f"{progress.steps_per_second / 1e6:.3g} M steps/s{left}",
            err=True,
        )

    return tell
