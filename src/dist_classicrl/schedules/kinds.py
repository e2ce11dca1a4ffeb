"""All kinds of schedules: of what is given, in a call of ``train``, and as plain data."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, get_args

from dist_classicrl.checks import is_real
from dist_classicrl.errors import SettingsError
from dist_classicrl.schedules.arguments import checked_number
from dist_classicrl.schedules.by_step import Constant, Course, Exponential, Linear, Piecewise
from dist_classicrl.schedules.by_visit import PerVisit

Schedule = Constant | Linear | Exponential | Piecewise | PerVisit
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Schedule)}


def as_schedule(name: str, value: Any) -> Schedule:
    """Return `value`, a number or a schedule, as a schedule; `name` is the setting that it is for.

    Raises
    ------
    SettingsError
        If `value` is neither, or a schedule of a class of one's own: kernels follow stretches of the kinds
        that there are, and files name these.
    """
    if type(value) in _KINDS.values():
        schedule: Schedule = value
        return schedule
    if not is_real(value):
        is_own = isinstance(value, Schedule) or (callable(value) and not isinstance(value, type))
        hint = (
            " Training goes along straight lines, and files name the kind: of a function of the share of the "
            "call that has been made write Piecewise.from_function(function, fraction=1.0), of points "
            "Piecewise([(0, 0.5), (50_000, 0.1)])."
        )
        raise SettingsError(
            f"{name} must be a number or a schedule ({', '.join(_KINDS)} of dist_classicrl.schedules), "
            f"got {value!r} of type {type(value).__name__}.{hint if is_own else ''}"
        )
    return Constant(checked_number(name, "value", value))


def in_call(schedule: Schedule, begin: int, steps: int, made: int) -> Schedule:
    """Return `schedule` as it is in a call of ``train`` of so many steps that begins at global step `begin`.

    A share of a call becomes one of this call, unless it is already one of a call of which steps were made,
    `made` being the global step from which this one goes on. That call counts with the steps that were made
    of it, if it was ended early and this is another one.
    """
    if not isinstance(schedule, Course) or schedule.fraction is None or steps == 0:
        return schedule
    if schedule.call is None or schedule.call[0] >= made:
        return replace(schedule, call=(begin, steps))
    first, asked = schedule.call
    was_ended_early = first < begin == made < first + asked
    return replace(schedule, call=(first, begin - first)) if was_ended_early else schedule


def final_value(schedule: Schedule) -> float:
    """Return the value of the last steps of a schedule of the global step."""
    if isinstance(schedule, PerVisit):
        raise TypeError(f"{schedule!r} follows visits")
    return schedule.value if isinstance(schedule, Constant) else schedule.ends[1]


def highest(schedule: Schedule, first: int, last: int) -> float:
    """Return the highest value of a schedule of the global step at the steps from `first` to `last`."""
    if isinstance(schedule, PerVisit):
        raise TypeError(f"{schedule!r} follows visits")
    found, step = schedule.at(last), first
    while step <= last:  # straight stretches are highest at their ends
        stretch = schedule.segment(step)
        found = max(found, schedule.at(step), schedule.at(min(stretch.end - 1, last)))
        step = stretch.end
    return found


def without_call(schedule: Schedule) -> Schedule:
    """Return `schedule` as it was before any call of ``train``."""
    return replace(schedule, call=None) if isinstance(schedule, Course) else schedule


def to_dict(schedule: Schedule) -> dict[str, Any]:
    """Return `schedule` as plain data for JSON."""
    given = {name: value for name, value in asdict(schedule).items() if value is not None}
    if isinstance(schedule, Piecewise):
        given["points"] = [list(point) for point in schedule.points]
    if given.get("offset") == 0.0:  # files have not always had it
        del given["offset"]
    return {"kind": type(schedule).__name__, **given}


def from_dict(data: dict[str, Any]) -> Schedule:
    """Return the schedule that `to_dict` described.

    Raises
    ------
    SettingsError
        If `data` describes no known schedule.
    """
    arguments = dict(data)
    kind = _KINDS.get(str(arguments.pop("kind", None)))
    if kind is None:
        raise SettingsError(f"{data!r} is no schedule; known kinds are {', '.join(_KINDS)}.")
    try:
        schedule: Any = kind(**arguments)
    except TypeError as error:
        raise SettingsError(f"{data!r} is no schedule: {error}.") from error
    return schedule
