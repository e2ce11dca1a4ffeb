"""The table of everything that `train` can be told: an option of the command, and a key in a TOML file.

An option `--learning-rate` is the key `learning_rate`. Those of the library's own settings are derived from
the fields of `Settings` and of `CheckpointPlan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from inspect import isfunction
from typing import Any

import click

from dist_classicrl.checkpoint import plan
from dist_classicrl.checkpoint.location import checked_location
from dist_classicrl.checks import Checked, OneOf, Or, RealNumber, WholeNumber, YesOrNo
from dist_classicrl.cli.option_types import (
    Choice,
    Flag,
    Folder,
    Kind,
    Mode,
    Names,
    Real,
    RealOrAuto,
    Schedule,
    StepsOrTime,
    Time,
    Whole,
    WholeOr,
)
from dist_classicrl.engines.engine import PARTITIONS
from dist_classicrl.settings import ByRule, Settings, checked_chance, checked_step_size

SHOWING = "Records, evaluation and display"
RUN = "The run"


@dataclass(frozen=True)
class Option:
    """One thing that `train` can be told."""

    name: str  # its key; the option's name has dashes
    kind: Kind
    default: Any  # None: it is left out
    help: str
    section: str  # of the help
    is_kept: bool = False  # a run keeps it for good: with another value it would be another experiment

    def to_click(self) -> click.Option:
        """Return it as an option of a command; None stands for what is not given there."""
        word, help = self.name.replace("_", "-"), f"{self.help}{self._shown_default()}"
        if isinstance(self.kind, Flag):
            return click.Option([f"--{word}/--no-{word}", self.name], default=None, help=help)
        metavar = self.kind.name.upper()
        return click.Option([f"--{word}", self.name], type=self.kind, metavar=metavar, help=help)

    def _shown_default(self) -> str:
        if self.default is None or self.default == ():
            return ""
        value = self.kind.to_data(self.default.usual if isinstance(self.default, ByRule) else self.default)
        if isinstance(value, bool):
            value = "yes" if value else "no"
        return f"  [default: {','.join(value) if isinstance(value, list) else value}]"


def kind_of(check: Any) -> Kind:
    """Return the kind of option for the values that a check of `dist_classicrl.checks` takes."""
    match check:
        case Or():
            return kind_of(check.check) if check.word is None else WholeOr(check.word)
        case WholeNumber():
            return Whole(check.least)
        case OneOf():
            return Choice(*check.words, reasons=check.reasons)
    return _KINDS[check if isfunction(check) else type(check)]()


_KINDS: dict[Any, Callable[[], Kind]] = {
    RealNumber: Real,
    YesOrNo: Flag,
    checked_chance: partial(Schedule, of_visits=False),
    checked_location: Folder,
    checked_step_size: Schedule,
    plan.checked_interval: StepsOrTime,
    plan.checked_mode: Mode,
    plan.checked_signals: Names,
    plan.checked_time_limit: Time,
}


def _of_fields(settings: type[Checked]) -> list[Option]:
    options = []
    for field in fields(settings):
        about = dict(field.metadata)
        options.append(Option(field.name, kind_of(about.pop("check")), field.default, **about))
    return options


OF_SETTINGS = _of_fields(Settings)

OF_TRAIN = [
    Option("total_steps", Whole(1, most=2**62 - 1), 10_000_000, "Steps of all ranks together.", RUN),
    Option("total_episodes", Whole(1), None, "Episodes of all ranks after which the run ends as well.", RUN),
    Option(
        "walkers",
        Whole(1),
        None,
        "Episodes under way in all ranks, where rows have one owner: a power of two, 16384 or, stepped, 256.",
        RUN,
        is_kept=True,
    ),
    Option(
        "partition",
        Choice(*PARTITIONS),
        "hash",
        "Which rank owns which states there: by a hash of them, or by their range.",
        RUN,
    ),
    *_of_fields(plan.CheckpointPlan),
    Option(
        "leave_signals", Names(), (), "Signals on which a worker leaves, and the others go on.", plan.SECTION
    ),
    Option(
        "progress_interval",
        RealOrAuto(),
        "auto",
        "Seconds without a record until there is one, besides up to 200 a run; auto: 1, or none with "
        "--no-async-updates.",
        SHOWING,
    ),
]

OF_COMMAND = [
    Option(
        "eval_every",
        Whole(1),
        None,
        "Steps between evaluations of the greedy policy; the best model is kept.",
        SHOWING,
    ),
    Option("eval_episodes", Whole(1), 100, "Episodes of each evaluation, and of the last one.", SHOWING),
    Option("stop_at_return", Real(), None, "End the run when its recent mean return is this high.", SHOWING),
    Option(
        "tensorboard", Flag(), False, "Write TensorBoard's records; needs the extra tensorboard.", SHOWING
    ),
    Option("log_interval", Real(0.0), 30.0, "Seconds between two log lines, where there is no bar.", SHOWING),
    Option("log_dir", Folder(), None, "Where each rank logs; by default logs in the run's folder.", SHOWING),
]

OPTIONS = {option.name: option for option in (*OF_TRAIN, *OF_SETTINGS, *OF_COMMAND)}
"""By name, all that a configuration may hold besides the environment and the number of ranks."""
