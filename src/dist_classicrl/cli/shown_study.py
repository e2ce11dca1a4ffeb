"""What a terminal shows of a study: how far it is, a line for each of its settings, what it is no run for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dist_classicrl.cli import output
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.sweep.progress import SweepProgress
    from dist_classicrl.sweep.study import Study


def teller() -> Callable[[SweepProgress], None]:
    """Return what shows how far a sweep is: at first each second, then ever less often."""
    from dist_classicrl.callbacks.bar import clock

    due, last = 0.0, -1

    def tell(progress: SweepProgress) -> None:
        nonlocal due, last
        made = progress.done + progress.failed
        if progress.seconds_left == 0.0 and made == last:
            return  # the end, which was told when the last run was there
        if progress.seconds < due and progress.seconds_left != 0.0:  # NaN before a run has ended
            return
        last = made
        due = max(progress.seconds + 1.0, progress.seconds * 1.2)
        if not made:
            click.echo(f"0 of {progress.total:,} runs", err=True)
            return
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        left = f", {clock(progress.seconds_left)} left" if progress.seconds_left > 0.0 else ""
        click.echo(
            f"{progress.done:,} of {progress.total:,} runs{failed}, "
            f"{progress.steps_per_second / 1e6:.3g} M steps/s{left}",
            err=True,
        )

    return tell


@contextmanager
def telling_of_compilation() -> Iterator[None]:
    """Write it to standard error when this process begins to compile what the runs need."""
    progress, handler = logging.getLogger("dist_classicrl.progress"), logging.StreamHandler()
    level = progress.level
    progress.addHandler(handler)
    progress.setLevel(logging.INFO)
    try:
        yield
    finally:
        progress.setLevel(level)
        progress.removeHandler(handler)


def show_study(study: Study) -> None:
    """Write a table of all settings, with the runs that are made of each and their mean score.

    With early stopping it has the steps that the score is of.
    """
    has_rungs = study.plan.stopping is not None
    rows = [
        [
            each["environment"],
            each["settings"] + (" (stopped early)" if each["stopped"] else ""),
            str(each["runs"]),
            str(each["failed"]),
            *([f"{each['steps']:,}"] if has_rungs else []),
            "-" if each["mean_score"] is None else f"{each['mean_score']:.4g}",
            "-" if each["standard_error"] is None else f"{each['standard_error']:.2g}",
        ]
        for each in study.summary()
    ]
    steps = ["steps"] if has_rungs else []
    output.show_table(["environment", "settings", "runs", "failed", *steps, "score", "standard error"], rows)


def refuse_study(folder: str | os.PathLike[str]) -> None:
    """Say what to type for a study, where a run is asked for; SettingsError."""
    from dist_classicrl.sweep.study import is_study

    if is_study(folder):
        raise SettingsError(
            f"{folder} is the folder of a study, not of one run. Type `dist-classicrl show {folder}`, "
            f"`dist-classicrl compare {folder}` or `dist-classicrl report {folder} --html page.html`."
        )
