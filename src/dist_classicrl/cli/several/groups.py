"""Several runs that are drawn together: read, and put into groups by their settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from dist_classicrl._words import nearest, shown_name
from dist_classicrl.cli.config import ENVIRONMENT, ENVIRONMENT_ARGUMENTS, RANKS
from dist_classicrl.cli.options import OPTIONS
from dist_classicrl.cli.run_folder import RunFolder, folder_around, known_runs
from dist_classicrl.cli.synonyms import SYNONYMS
from dist_classicrl.environments import named
from dist_classicrl.errors import DistClassicRLError, SettingsError
from dist_classicrl.monitoring.reading import read_metrics
from dist_classicrl.plotting import RunRecords, read_evaluations
from dist_classicrl.plotting.canvas import check_reported

_ALL = "none"  # what --group-by says to have one group
_SETTINGS = (ENVIRONMENT, RANKS, *OPTIONS)
_ARGUMENT = "env_arg."
_KEPT = [name for name, option in OPTIONS.items() if option.is_kept and name != "seed"]


@dataclass(frozen=True)
class Run:
    """A run with what is drawn of it, and its settings; none where nothing tells them."""

    records: RunRecords
    settings: dict[str, Any]  # as its config.toml has them
    arguments: dict[str, Any]  # of its environment, by what `_name_of_argument` calls them

    def said(self, name: str) -> str:
        """Return what this run has for a setting, in a few characters."""
        return _said(self.settings.get(name, self.arguments.get(name)))


def read(run: str, with_best: bool = True) -> Run:
    """Return a run, which has a report at least; MetricsError or PlotError if it cannot be read.

    FileNotFoundError where there is nothing. `with_best` finds out what the best policy collects, where the
    environment's model is known.
    """
    if not Path(run).exists():
        raise FileNotFoundError(f"There is no {run!r}.{known_runs(Path(run))}")
    metrics = read_metrics(run)
    check_reported(metrics, run)
    settings, arguments = _settings_of(run)
    best = _best(settings, arguments) if with_best else None
    named = {_name_of_argument(name): value for name, value in arguments.items()}
    records = RunRecords(metrics, shown_name(run), read_evaluations(folder_around(run), best))
    return Run(records, settings, named)


def _settings_of(run: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a run, and the arguments of its environment; none where nothing tells them."""
    settings = RunFolder(folder_around(run)).read_config()
    return settings, settings.pop(ENVIRONMENT_ARGUMENTS, {})


def _said(value: Any) -> str:
    return "-" if value is None else str(value)


def _name_of_argument(name: str) -> str:
    """Return what an argument of an environment is called beside settings, of which one may have its name."""
    return f"{_ARGUMENT}{name}" if name in _SETTINGS else name


def _best(settings: dict[str, Any], arguments: dict[str, Any]) -> float | None:
    if ENVIRONMENT not in settings or "discount_factor" not in settings:
        return None
    asked = settings["discount_factor"], settings.get("use_action_mask")
    try:
        return _best_return(settings[ENVIRONMENT], tuple(sorted(arguments.items())), *asked)
    except TypeError:  # an argument that cannot be a key, such as a list
        return _best_return.__wrapped__(settings[ENVIRONMENT], tuple(arguments.items()), *asked)


@lru_cache(maxsize=16)
def _best_return(
    name: str, arguments: tuple[tuple[str, Any], ...], discount_factor: float, use_action_mask: bool | None
) -> float | None:
    from dist_classicrl.evaluation.best import best_return

    try:
        return best_return(named.make(name, dict(arguments)), discount_factor, use_action_mask)
    except (DistClassicRLError, ImportError):  # what was trained in is not here any more
        return None


def grouped(runs: Sequence[Run], by: Sequence[str]) -> tuple[dict[str, list[RunRecords]], tuple[str, ...]]:
    """Return the records of runs in groups, by what the legend says of each, and the settings that make them.

    `by` names the settings; by default those in which the runs differ, but for the seed. Runs that differ in
    nothing are one group, or where they are but two, two.
    """
    names = checked(runs, by) if by else _differing(runs, _KEPT)
    groups: dict[str, list[RunRecords]] = {}
    for run in runs:
        groups.setdefault(_label(run, names), []).append(run.records)
    if not names and len(runs) == 2:
        return {f"{number}: {run.records.name}": [run.records] for number, run in enumerate(runs, 1)}, ()
    return dict(sorted(groups.items(), key=lambda group: _order(group[0]))), names


def _label(run: Run, names: Iterable[str]) -> str:
    return ", ".join(f"{name}={run.said(name)}" for name in names)


def _order(label: str) -> list[tuple[int, float, str]]:
    """Return by what labels are sorted: numbers by size."""
    order = []
    for part in label.split(", "):
        text = part.partition("=")[2]
        try:
            order.append((0, float(text), ""))
        except ValueError:
            order.append((1, 0.0, text))
    return order


def checked(runs: Sequence[Run], by: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that `by` names, as runs call them; BadParameter where there is no such setting."""
    if list(by) == [_ALL]:
        return ()
    own = [name for run in runs for name in run.arguments]
    known = list(dict.fromkeys([*_SETTINGS, *own]))
    names = []
    for asked in by:
        word = asked.replace("-", "_")
        if word.startswith(_ARGUMENT):
            word = _name_of_argument(word.removeprefix(_ARGUMENT))
        name = word if word in known else SYNONYMS.get(word, word)
        if name not in known:
            raise click.BadParameter(
                f"there is no setting {asked!r}.{nearest(name, known)} Write environment, {RANKS}, an "
                f"argument of the environment, a setting such as learning_rate, or {_ALL}.",
                param_hint="--group-by",
            )
        names.append(name)
    return tuple(dict.fromkeys(names))


def _differing(runs: Sequence[Run], settings: Iterable[str] = ()) -> tuple[str, ...]:
    """Return which of these settings, and what of the environment, differs in the runs that tell theirs."""
    told = [run for run in runs if run.settings]
    names = dict.fromkeys([ENVIRONMENT, *(name for run in told for name in run.arguments), *settings])
    return tuple(name for name in names if len({run.said(name) for run in told}) > 1)


def warn_of_unknown(runs: Sequence[Run]) -> None:
    """Say on standard error which runs have no settings, if others have some that these are drawn with."""
    names = [run.records.name for run in runs if not run.settings]
    if 0 < len(names) < len(runs):
        have, who = ("has", "it is") if len(names) == 1 else ("have", "they are")
        click.echo(
            f"Warning: {', '.join(names)} {have} no config.toml, so nobody knows whether {who} of the same "
            "settings as the others. Leave out what is not.",
            err=True,
        )


def warn_of_environments(runs: Sequence[Run], by: Sequence[str]) -> None:
    """Say on standard error if the runs are of different environments, so that returns are not comparable."""
    told = _environments((run.settings, run.arguments) for run in runs)
    if told is not None:
        what = f"these runs are of different environments ({told}), so their returns cannot be compared."
        click.echo(f"Warning: {what}{_how_to_draw_apart(runs, by)}", err=True)


def _how_to_draw_apart(runs: Sequence[Run], by: Sequence[str]) -> str:
    """Return what to write where one group has several environments; nothing where each has one."""
    told = [run for run in runs if run.settings]
    names = dict.fromkeys([*by, *_differing(runs)])
    if len({_label(run, names) for run in told}) == len({_label(run, by) for run in told}):
        return ""
    return f" Draw each by itself, or with {' '.join(f'--group-by {name}' for name in names)}."


def warn_of_rates(runs: Sequence[str]) -> None:
    """Say likewise of runs whose rates are compared; they are named by their folders."""
    each = []
    for run in runs:
        with suppress(SettingsError):
            each.append(_settings_of(run))
    if (told := _environments(each)) is not None:
        click.echo(
            f"Warning: these runs are of different environments ({told}), so speed-up and efficiency do not "
            "tell how one of them scales. Give runs of one environment.",
            err=True,
        )


def _environments(runs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> str | None:
    """Return how many runs of such settings and arguments have which environment; None: all the same."""
    counts: dict[str, int] = {}
    for settings, arguments in runs:
        if settings:
            told = ", ".join(f"{name}={_said(arguments[name])}" for name in sorted(arguments))
            name = _said(settings.get(ENVIRONMENT)) + (f" ({told})" if told else "")
            counts[name] = counts.get(name, 0) + 1
    if len(counts) < 2:
        return None
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
