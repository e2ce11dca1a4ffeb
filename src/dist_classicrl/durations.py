"""Durations as text: with a unit, as people write them, and in SLURM's notation."""

from __future__ import annotations

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds in each unit."""

_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d\d)", re.ASCII)  # [HH:]MM:SS
_DAYS = re.compile(r"(\d+)-(\d\d?)(?::(\d\d)(?::(\d\d))?)?", re.ASCII)  # D-HH[:MM[:SS]]
_SHOWN = ("d", "h", "min")


def with_unit(text: str) -> float | None:
    """Return the seconds of a number with a unit, such as "500ms" or "1.5 h"; None for any other text."""
    match = _WITH_UNIT.fullmatch(text.strip())
    return float(match[1]) * UNITS[match[2]] if match else None


def of_clock(text: str) -> float | None:
    """Return the seconds of what SLURM writes for a time; None for any other text.

    The forms are MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS. Only the first field may be as large as it
    likes; SLURM's bare number of minutes is not taken, as it could as well be seconds.
    """
    text = text.strip()
    if match := _CLOCK.fullmatch(text):
        days, (hours, minutes, seconds) = "0", match.groups(default="0")
        bounded = [seconds] if match[1] is None else [minutes, seconds]
    elif match := _DAYS.fullmatch(text):
        days, hours, minutes, seconds = match[1], *match.groups(default="0")[1:]
        if int(hours) > 23:
            return None
        bounded = [minutes, seconds]
    else:
        return None
    if any(int(field) > 59 for field in bounded):
        return None
    return ((float(days) * 24 + float(hours)) * 60 + float(minutes)) * 60 + float(seconds)


def shown(seconds: float) -> str:
    """Return a duration in the largest unit that makes it a whole number, such as "55 min"."""
    for unit in _SHOWN:
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0.0:
            return f"{seconds / UNITS[unit]:.0f} {unit}"
    return f"{seconds:.12g} s"


def about(seconds: float) -> str:
    """Return a measured duration to three digits, in the largest unit that it reaches, such as "3.42 h"."""
    unit = next((unit for unit in _SHOWN if seconds >= UNITS[unit]), "s")
    return f"{seconds / UNITS[unit]:.3g} {unit}"
