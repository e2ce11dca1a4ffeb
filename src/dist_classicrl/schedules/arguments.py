"""What schedules are given, checked."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from dist_classicrl.checks import as_float, is_real, is_whole
from dist_classicrl.errors import SettingsError

MOST_POINTS = 10_000


def checked_number(owner: str, name: str, value: Any) -> float:
    """Return a finite number as a float; SettingsError for anything else."""
    if not is_real(value):
        raise SettingsError(
            f"{owner}: {name} must be a number, got {value!r} of type {type(value).__name__}."
        )
    number = as_float(value)
    if not math.isfinite(number):
        raise SettingsError(f"{owner}: {name} must be finite, got {value!r}.")
    return number


def checked_steps(owner: str, steps: Any) -> int:
    """Return a number of steps; SettingsError for anything else."""
    number = checked_number(owner, "steps", steps)
    if number < 1 or number != int(number):
        raise SettingsError(f"{owner}: steps must be a whole number of at least 1, got {steps!r}.")
    return int(number)


def checked_fraction(owner: str, fraction: Any) -> float:
    """Return a share of a call of ``train``; SettingsError for anything else."""
    number = checked_number(owner, "fraction", fraction)
    if not 0.0 < number <= 1.0:
        raise SettingsError(
            f"{owner}: fraction must be above 0 and at most 1, got {fraction!r}: it is a share of the steps "
            "of a call of train. Write steps for a number of steps."
        )
    return number


def check_one(owner: str, steps: Any, fraction: Any) -> None:
    """Raise SettingsError unless one of the two is given."""
    if (steps is None) == (fraction is None):
        raise SettingsError(
            f"{owner} takes steps, a number of global steps, or fraction, a share of the call of train, "
            f"exactly one of them; got steps={steps!r} and fraction={fraction!r}. Write for instance "
            "fraction=0.5."
        )


def checked_call(owner: str, fraction: float | None, call: Any) -> tuple[int, int]:
    """Return where a call of ``train`` begins, and its steps; SettingsError for anything else."""
    if (
        fraction is None
        or not isinstance(call, (tuple, list))
        or len(call) != 2
        or not all(is_whole(number) and number >= 0 for number in call)
        or call[1] < 1
    ):
        raise SettingsError(
            f"{owner}: call must be the global step at which a call of train begins, and its steps, and "
            f"belongs to a fraction; got {call!r}. Leave it out: train fills it in."
        )
    return int(call[0]), int(call[1])


def checked_points(owner: str, points: Any, are_shares: bool) -> tuple[tuple[float, float], ...]:
    """Return places and values as pairs: places as shares, or as global steps, which are whole then."""
    import numpy as np

    example = "(0.0, 1.0), (0.5, 0.1)" if are_shares else "(0, 1.0), (50_000, 0.1)"
    instead = f"Write for instance the points {example}{' with fraction=1.0' if are_shares else ''}."
    given = list(points) if isinstance(points, (list, tuple)) or np.ndim(points) == 2 else []
    if not 2 <= len(given) <= MOST_POINTS or not all(np.shape(point) == (2,) for point in given):
        raise SettingsError(
            f"{owner}: points must be pairs of a place and the value there, from 2 to {MOST_POINTS:,} of "
            f"them, got {points!r:.200}. {instead}"
        )
    found = [
        (checked_number(owner, "a place", place), checked_number(owner, "a value", value))
        for place, value in given
    ]
    for (before, _), (after, _) in pairwise(found):
        if before > after:
            unordered = f"got {before!r} before {after!r}"
            raise SettingsError(f"{owner}: places must be in order, {unordered}. {instead}")
    first, last = found[0][0], found[-1][0]
    if are_shares:
        if first < 0.0 or last > 1.0:
            raise SettingsError(
                f"{owner}: with steps or a fraction places are shares of it, from 0 to 1, got places from "
                f"{first!r} to {last!r}. {instead} Places that are global steps need neither."
            )
        return tuple(found)
    broken = next((place for place, _ in found if place != int(place)), None)
    if broken is not None or first < 0.0 or last < 1.0:
        got = f"places from {first!r} to {last!r}" if broken is None else repr(broken)
        raise SettingsError(
            f"{owner}: places are global steps, whole numbers from 0 on and the last one at least 1, got "
            f"{got}. {instead} Shares of a call are given with fraction=1.0."
        )
    return tuple((int(place), value) for place, value in found)
