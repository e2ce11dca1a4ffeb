"""The arguments of `train` about checkpoints and stopping, checked once where they enter."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl import durations
from dist_classicrl.checkpoint.location import checked_location
from dist_classicrl.errors import SettingsError
from dist_classicrl.settings import checked_flag, checked_whole

DEFAULT_INTERVAL = "30s"
DEFAULT_KEEP_LAST = 3
DEFAULT_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGTERM")
DEFAULT_MODE = 0o600

_RESUME: dict[Any, str] = {"auto": "auto", "must": "must", "never": "never", True: "must", False: "never"}
_UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}
_CRASHES = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}
# A second stop signal ends the process through its default action: these have none that ends it.
_HARMLESS = {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGURG,
    signal.SIGWINCH,
}


@dataclass(frozen=True)
class CheckpointPlan:
    """Where and when checkpoints are written, which are kept, and what stops the training.

    Attributes
    ----------
    location : str
        Absolute path of a folder, or an fsspec URL ("scheme://...").
    interval_steps : int or None
        Steps between checkpoints; exactly one of this and `interval_seconds` is set.
    interval_seconds : float or None
        Seconds between checkpoints.
    keep_last : int
        How many of the newest are kept.
    keep_every : int or None
        Older ones whose number is a multiple of this are kept for good; None: none are.
    resume : str
        "auto": go on from a checkpoint if there is one; "must": there has to be one; "never": begin anew.
    strict : bool
        As `train` was given it.
    time_limit : float or None
        Seconds after which the training stops in order.
    stop_signals : tuple of signal.Signals
        What stops it in order, besides SIGINT.
    mode : int
        Permission bits of the files.
    """

    location: str
    interval_steps: int | None
    interval_seconds: float | None
    keep_last: int
    keep_every: int | None
    resume: str
    strict: bool
    time_limit: float | None
    stop_signals: tuple[signal.Signals, ...]
    mode: int


def plan_of(
    checkpoint_dir: Any,
    checkpoint_interval: Any,
    keep_last: Any,
    keep_every: Any,
    resume: Any,
    strict: Any,
    time_limit: Any,
    stop_signals: Any,
    checkpoint_mode: Any,
) -> CheckpointPlan | None:
    """Return the plan that these arguments of `train` describe, or None without `checkpoint_dir`.

    Raises
    ------
    SettingsError
        If one of them is not allowed, or would be ignored because there is no `checkpoint_dir`.
    """
    steps, seconds = _interval(checkpoint_interval)
    checked: dict[str, Any] = {
        "checkpoint_interval": (steps, seconds),
        "keep_last": checked_whole("keep_last", keep_last, 1),
        "keep_every": None if keep_every is None else checked_whole("keep_every", keep_every, 1, "None"),
        "resume": _resume(resume),
        "strict": checked_flag("strict", strict),
        "time_limit": _time_limit(time_limit),
        "stop_signals": checked_signals("stop_signals", stop_signals),
        "checkpoint_mode": _mode(checkpoint_mode),
    }
    if checkpoint_dir is None:
        defaults = {
            "checkpoint_interval": _interval(DEFAULT_INTERVAL),
            "keep_last": DEFAULT_KEEP_LAST,
            "keep_every": None,
            "resume": "auto",
            "strict": True,
            "time_limit": None,
            "stop_signals": checked_signals("stop_signals", DEFAULT_SIGNALS),
            "checkpoint_mode": DEFAULT_MODE,
        }
        ignored = [name for name, value in checked.items() if value != defaults[name]]
        if ignored:
            raise SettingsError(
                f"{', '.join(ignored)} would be ignored: without checkpoint_dir nothing is saved. Add for "
                f'instance checkpoint_dir="checkpoints", or leave out {", ".join(ignored)}.'
            )
        return None
    location = checked_location(checkpoint_dir)
    if "://" in location and checked["checkpoint_mode"] != DEFAULT_MODE:
        raise SettingsError(
            f"checkpoint_mode=0o{checked['checkpoint_mode']:o} would be ignored: it is for folders, and "
            f"checkpoint_dir={location!r} is a URL, where the store has rules of its own. Leave it out."
        )
    return CheckpointPlan(
        location=location,
        interval_steps=steps,
        interval_seconds=seconds,
        keep_last=checked["keep_last"],
        keep_every=checked["keep_every"],
        resume=checked["resume"],
        strict=checked["strict"],
        time_limit=checked["time_limit"],
        stop_signals=checked["stop_signals"],
        mode=checked["checkpoint_mode"],
    )


def _interval(value: Any) -> tuple[int | None, float | None]:
    if isinstance(value, str):
        seconds = durations.with_unit(value)
        if seconds is not None and 0.0 < seconds < math.inf:
            return None, seconds
        hint = _unit_hint(value, f"{value.strip()} without quotes for steps")
    else:
        whole = int(value) if isinstance(value, (float, np.floating)) and float(value).is_integer() else value
        if isinstance(whole, (int, np.integer)) and not isinstance(whole, bool) and whole >= 1:
            return int(whole), None
        hint = ""
    raise SettingsError(
        "checkpoint_interval must be a whole number of steps of at least 1, such as 100_000, or a duration "
        f'above 0 with its unit (ms, s, m or min, h, d), such as "30s" or "1.5min"; got {value!r}.{hint}'
    )


def _unit_hint(text: str, otherwise: str) -> str:
    number = text.strip()
    if not re.fullmatch(r"\d+(\.\d+)?", number, re.ASCII):
        return ""
    return f' Write "{number}s" for seconds, "{number}min" for minutes, or {otherwise}.'


def _time_limit(value: Any) -> float | None:
    if value is None:
        return None
    seconds, hint = None, ""
    if isinstance(value, str):
        seconds = durations.with_unit(value)
        if seconds is None:
            seconds = durations.of_clock(value)
        hint = _unit_hint(value, f'"{value.strip()}:00" for minutes as SLURM writes them')
    elif isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        seconds = float(value)
    if seconds is None or not 0.0 < seconds < math.inf:
        raise SettingsError(
            "time_limit must be a number of seconds above 0, a duration above 0 with its unit (ms, s, m or "
            'min, h, d), such as "55min", or one of SLURM\'s forms MM:SS, HH:MM:SS, D-HH, D-HH:MM and '
            f"D-HH:MM:SS, or None for no limit; got {value!r}.{hint}"
        )
    return seconds


def _resume(value: Any) -> str:
    if isinstance(value, (str, bool, np.bool_)) and value in _RESUME:
        return _RESUME[value]
    raise SettingsError(
        'resume must be "auto" (go on from a checkpoint if there is one), True or "must" (there has to be '
        f'one), or False or "never" (begin anew); got {value!r}.'
    )


def checked_signals(name: str, value: Any) -> tuple[signal.Signals, ...]:
    """Return the signals that the argument `name` of `train` lists.

    Raises
    ------
    SettingsError
        If one is not a signal, or has another meaning already.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise SettingsError(
            f"{name} must be a list or tuple of names or numbers of signals, or () for none; got "
            f'{value!r}. Write for instance {name}=("SIGUSR1",).'
        )
    return tuple(sorted({_signal(name, each) for each in value}))


def _signal(name: str, value: Any) -> signal.Signals:
    try:
        if isinstance(value, str):
            found = signal.Signals[value if value.startswith("SIG") else f"SIG{value}"]
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            found = signal.Signals(int(value))
        else:
            raise ValueError
    except (KeyError, ValueError):
        raise SettingsError(
            f"{name} holds {value!r}, which is no signal of this system. Write for instance "
            f"{name}={DEFAULT_SIGNALS!r}."
        ) from None
    if found == signal.SIGINT:
        why = "it stops the training always"
    elif found in _UNCATCHABLE:
        why = "no program can catch it"
    elif found in _CRASHES:
        why = "it means that the program has crashed"
    elif found in _HARMLESS:
        why = "it asks no program to end"
    else:
        return found
    raise SettingsError(
        f"{name} must not hold {found.name}: {why}. Leave it out, as in {name}={DEFAULT_SIGNALS!r}."
    )


def _mode(value: Any) -> int:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value & 0o600 != 0o600 or value & ~0o666:
        got = f"{value!r} (0o{value:o})" if whole and value >= 0 else repr(value)
        raise SettingsError(
            "checkpoint_mode must be permission bits with which you can read and write and nobody can "
            f"execute, from 0o600 to 0o666; got {got}. Write 0o640 to let your group read."
        )
    return int(value)
