"""The arguments of `train` about checkpoints and stopping, checked once where they enter."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from dist_classicrl import durations
from dist_classicrl.checkpoint.location import checked_location
from dist_classicrl.checks import (
    Checked,
    OneOf,
    Or,
    WholeNumber,
    YesOrNo,
    as_float,
    is_flag,
    is_real,
    is_whole,
    setting,
)
from dist_classicrl.errors import SettingsError

SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGTERM")
"""What stops a training in order by default."""

_NO_STOP_SIGNALS = {
    "it stops the training always": "INT",
    "no program can catch it": "KILL STOP",
    "it means that the program has crashed": "ABRT BUS FPE ILL SEGV SYS TRAP",
    # A second stop signal ends the process through its default action: these have none that ends it.
    "it asks no program to end": "CHLD CONT TSTP TTIN TTOU URG WINCH",
}


class Interval(NamedTuple):
    """The steps or the seconds from one checkpoint to the next; the other is None."""

    steps: int | None = None
    seconds: float | None = None


def checked_interval(name: str, value: Any) -> Interval:
    """Return the interval between checkpoints; SettingsError for what is none."""
    if isinstance(value, str):
        seconds = durations.with_unit(value)
        if seconds is not None and 0.0 < seconds < math.inf:
            return Interval(seconds=seconds)
        hint = _unit_hint(value, f"{value.strip()} without quotes for steps")
    else:
        is_float = is_real(value) and not is_whole(value)
        whole = int(value) if is_float and float(value).is_integer() else value
        if is_whole(whole) and whole >= 1:
            return Interval(steps=int(whole))
        hint = ""
    raise SettingsError(
        f"{name} must be a whole number of steps of at least 1, such as 100_000, or a duration "
        f'above 0 with its unit (ms, s, m or min, h, d), such as "30s" or "1.5min"; got {value!r}.{hint}'
    )


def _unit_hint(text: str, otherwise: str) -> str:
    number = text.strip()
    if not re.fullmatch(r"\d+(\.\d+)?", number, re.ASCII):
        return ""
    return f' Write "{number}s" for seconds, "{number}min" for minutes, or {otherwise}.'


def checked_time_limit(name: str, value: Any) -> float:
    """Return a time limit in seconds; SettingsError for others."""
    seconds, hint = None, ""
    if isinstance(value, str):
        seconds = durations.with_unit(value)
        if seconds is None:
            seconds = durations.of_clock(value)
        hint = _unit_hint(value, f'"{value.strip()}:00" for minutes as SLURM writes them')
    elif is_real(value):
        seconds = as_float(value)
    if seconds is None or not 0.0 < seconds < math.inf:
        raise SettingsError(
            f"{name} must be a number of seconds above 0, a duration above 0 with its unit (ms, s, m or "
            'min, h, d), such as "55min", or one of SLURM\'s forms MM:SS, HH:MM:SS, D-HH, D-HH:MM and '
            f"D-HH:MM:SS, or None for no limit; got {value!r}.{hint}"
        )
    return seconds


class Resume(OneOf):
    """Whether to go on from a checkpoint, in words, or as True or False."""

    def __call__(self, name: str, value: Any) -> str:
        """Return the word."""
        word = {True: "must", False: "never"}[bool(value)] if is_flag(value) else value
        if not isinstance(word, str) or word not in self.words:
            raise SettingsError(
                f'{name} must be "auto" (go on from a checkpoint if there is one), True or "must" (there has '
                f'to be one), or False or "never" (begin anew); got {value!r}.'
            )
        return word


def checked_signals(name: str, value: Any) -> tuple[signal.Signals, ...]:
    """Return the signals that an argument lists; SettingsError if one is none, or has another meaning."""
    try:
        listed = None if isinstance(value, (str, bytes)) else list(value)
    except TypeError:  # NumPy's array of one number says that it is an Iterable
        listed = None
    if listed is None:
        raise SettingsError(
            f"{name} must be a list or tuple of names or numbers of signals, or () for none; got "
            f'{value!r}. Write for instance {name}=("SIGUSR1",).'
        )
    return tuple(sorted({_signal(name, each) for each in listed}))


def _signal(name: str, value: Any) -> signal.Signals:
    try:
        if isinstance(value, str):
            found = signal.Signals[value if value.startswith("SIG") else f"SIG{value}"]
        elif is_whole(value):
            found = signal.Signals(int(value))
        else:
            raise ValueError
    except (KeyError, ValueError):
        raise SettingsError(
            f"{name} holds {value!r}, which is no signal of this system. Write for instance "
            f"{name}={SIGNALS!r}."
        ) from None
    for why, names in _NO_STOP_SIGNALS.items():
        if found.name.removeprefix("SIG") in names.split():
            raise SettingsError(
                f"{name} must not hold {found.name}: {why}. Leave it out, as in {name}={SIGNALS!r}."
            )
    return found


def checked_mode(name: str, value: Any) -> int:
    """Return the permission bits of files; SettingsError where one could not read and write them."""
    whole = is_whole(value)
    if not whole or value & 0o600 != 0o600 or value & ~0o666:
        got = f"{value!r} (0o{value:o})" if whole and value >= 0 else repr(value)
        raise SettingsError(
            f"{name} must be permission bits with which you can read and write and nobody can "
            f"execute, from 0o600 to 0o666; got {got}. Write 0o640 to let your group read."
        )
    return int(value)


SECTION = "Checkpoints and stopping"
"""Of the help of `train`."""

_saving = partial(setting, section=SECTION)


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan(Checked):
    """Where and when checkpoints are written, which are kept, and what stops the training.

    The fields are arguments of `DistAsyncQLearning.train`, whose docstring says what they mean, checked: the
    folder is an absolute path or an fsspec URL ("scheme://..."), and times are in seconds.
    """

    checkpoint_dir: Any = _saving(
        None, Or(None, checked_location), "Folder or URL; by default checkpoints in the run's folder."
    )
    checkpoint_interval: Interval = _saving("30s", checked_interval, "Between checkpoints.")
    keep_last: int = _saving(3, WholeNumber(1), "How many of the newest checkpoints stay.")
    keep_every: int | None = _saving(
        None, Or(None, WholeNumber(1, "None")), "Besides, keep every so many-th for good."
    )
    resume: str = _saving(
        "auto", Resume(("auto", "must", "never")), "Go on from a checkpoint: if there is one, ..."
    )
    strict: bool = _saving(True, YesOrNo(), "Refuse checkpoints of something else.")
    time_limit: float | None = _saving(
        None,
        Or(None, checked_time_limit),
        "Stop in order after so much training; by default SLURM's limit.",
    )
    stop_signals: tuple[signal.Signals, ...] = _saving(
        SIGNALS, checked_signals, "Signals that stop it in order."
    )
    checkpoint_mode: int = _saving(0o600, checked_mode, "Permissions of the checkpoints.")


@cache
def _default_plan() -> CheckpointPlan:
    return CheckpointPlan()


def checkpoint_plan(**arguments: Any) -> CheckpointPlan | None:
    """Return the plan that these arguments of `train` describe, or None without `checkpoint_dir`.

    SettingsError if one of them is not allowed, or would be ignored.
    """
    plan, default = CheckpointPlan(**arguments), _default_plan()
    if plan.checkpoint_dir is None:
        ignored = ", ".join(name for name, value in vars(plan).items() if value != getattr(default, name))
        if ignored:
            raise SettingsError(
                f"{ignored} would be ignored: without checkpoint_dir nothing is saved. Add for instance "
                f'checkpoint_dir="checkpoints", or leave out {ignored}.'
            )
        return None
    if "://" in plan.checkpoint_dir and plan.checkpoint_mode != default.checkpoint_mode:
        raise SettingsError(
            f"checkpoint_mode=0o{plan.checkpoint_mode:o} would be ignored: it is for folders, and "
            f"checkpoint_dir={plan.checkpoint_dir!r} is a URL, where the store has rules of its own. Leave "
            "it out."
        )
    return plan
