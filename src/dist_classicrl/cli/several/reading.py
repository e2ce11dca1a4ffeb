"""Several runs that a command is given, such as by runs/*: those without anything to show are left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import click

from dist_classicrl.cli.run_folder import RunFolder, folders_in, runs_below
from dist_classicrl.cli.shown_study import refuse_study
from dist_classicrl.errors import DistClassicRLError, MetricsError, PlotError, SettingsError

Found = TypeVar("Found")


def runs_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the runs that are meant, each once: a folder with runs in it stands for them.

    SettingsError for a study.
    A warning names folders beside these runs that have records and no settings.
    """
    names = list(names)
    for name in names:
        refuse_study(name)
    found: dict[str, str] = {}  # by where they are: one run may be spelled in several ways
    for name in names:
        below = [str(each.path) for each in runs_below(name)]
        for run in below or [str(Path(name))]:
            found.setdefault(place_of(run), run)
        if below:
            _warn_of_records_alone(Path(name))
    return tuple(found.values())


def place_of(run: str) -> str:
    """Return where a run is that was named by its folder or its records, however that is spelled."""
    path = Path(os.path.realpath(run))
    return str(path.parent if path == RunFolder(path.parent).metrics else path)


def _warn_of_records_alone(place: Path) -> None:
    for folder in folders_in(place):
        if folder.metrics.exists() and not folder.exists():
            click.echo(
                f"Warning: {folder.path} is left out. It has no {folder.config.name}, which tells the "
                "settings of a run. Name it beside the others to have its records all the same.",
                err=True,
            )


def read_each(names: Iterable[str], read: Callable[[str], Found]) -> list[Found]:
    """Return what `read` gives for each of these runs.

    Where `read` raises a MetricsError, a PlotError or, of a run's config.toml, a SettingsError for some of
    several that are there, a warning says that they are left out; for all of them, the first is raised.
    """
    found: list[Found] = []
    failed: dict[str, DistClassicRLError] = {}
    for name in names:
        try:
            found.append(read(name))
        except (MetricsError, PlotError, SettingsError) as error:
            if not Path(name).exists():
                raise
            failed[name] = error
    if not found and failed:
        raise next(iter(failed.values()))
    for name, reason in failed.items():
        click.echo(f"Warning: {name} is left out. {reason}", err=True)
    return found
