"""Step sizes and exploration rates as functions of the global step, or of the visits to an entry.

`Constant`, `Linear`, `Exponential` and `Piecewise` follow the global step: the number of steps that the whole
run has been given, over all workers and all calls of ``train``. With a `fraction` they last for a share of
the first call of ``train``, however long it is. A learning rate goes on with the transitions of a call of
``learn``. `PerVisit` follows the number of visits to the entry that is updated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from dist_classicrl._arguments import named_arguments, named_constructor
from dist_classicrl._steps import NEVER
from dist_classicrl.checks import as_float, is_real, is_whole
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np

_BUCKET_BITS = 12
EXACT_VISITS = 2 << _BUCKET_BITS
"""Visits below this have a table slot of their own."""

_MAX_VISIT_BITS = 48
VISITS_END = 1 << _MAX_VISIT_BITS
"""Visits of an entry are fewer than these, where the table of `PerVisit` ends."""


def _check_number(owner: str, name: str, value: Any) -> float:
    if not is_real(value):
        raise SettingsError(
            f"{owner}: {name} must be a number, got {value!r} of type {type(value).__name__}."
        )
    number = as_float(value)
    if not math.isfinite(number):
        raise SettingsError(f"{owner}: {name} must be finite, got {value!r}.")
    return number


def _check_steps(owner: str, steps: Any) -> int:
    number = _check_number(owner, "steps", steps)
    if number < 1 or number != int(number):
        raise SettingsError(f"{owner}: steps must be a whole number of at least 1, got {steps!r}.")
    return int(number)


def _check_fraction(owner: str, fraction: Any) -> float:
    number = _check_number(owner, "fraction", fraction)
    if not 0.0 < number <= 1.0:
        raise SettingsError(
            f"{owner}: fraction must be above 0 and at most 1, got {fraction!r}: it is a share of the steps "
            "of a call of train. Write steps for a number of steps."
        )
    return number


def _check_one(owner: str, steps: Any, fraction: Any) -> None:
    if (steps is None) == (fraction is None):
        raise SettingsError(
            f"{owner} takes steps, a number of global steps, or fraction, a share of the call of train, "
            f"exactly one of them; got steps={steps!r} and fraction={fraction!r}. Write for instance "
            "fraction=0.5."
        )


def _check_call(owner: str, fraction: float | None, call: Any) -> tuple[int, int]:
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


@dataclass(frozen=True)
class Segment:
    """A stretch of a schedule that is a straight line.

    Its values are ``value + slope * (step - start)`` for start <= step < end.

    The stretches lie on a grid that the schedule alone decides, so the values do not depend on who asks when.
    """

    start: int
    end: int
    value: float
    slope: float


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _check_number("Constant", "value", self.value))

    def at(self, step: int) -> float:
        """Return the value at global step `step`."""
        return self.value

    def segment(self, step: int) -> Segment:
        """Return the straight stretch in which `step` lies."""
        return Segment(0, NEVER, self.value, 0.0)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return self.value, self.value


class _Course:
    """What changes between two global steps, from `initial` to `final`, and stays as it is before and after.

    The two lie `steps` apart, from step 0 on, or are those of a share of a call of ``train``.
    """

    initial: float
    final: float
    steps: int | None
    fraction: float | None
    call: tuple[int, int] | None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.fraction is not None:
            object.__setattr__(self, "fraction", _check_fraction(kind, self.fraction))
        if self.call is not None:
            object.__setattr__(self, "call", _check_call(kind, self.fraction, self.call))

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({', '.join(given)})"

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return min(self.initial, self.final), max(self.initial, self.final)

    def at(self, step: int) -> float:
        """Return the value at global step `step`."""
        begin, end = self._stretch
        if step < begin:
            return self.initial
        return self.final if step >= end else self._between(step, begin, end)

    def segment(self, step: int) -> Segment:
        """Return the straight stretch in which `step` lies."""
        begin, end = self._stretch
        if step < begin:
            return Segment(0, begin, self.initial, 0.0)
        if step >= end:
            return Segment(end, NEVER, self.final, 0.0)
        return self._line(step, begin, end)

    @property
    def _stretch(self) -> tuple[int, int]:
        """The global steps between which the value changes."""
        if self.steps is not None:
            return 0, self.steps
        if self.call is None or self.fraction is None:
            return NEVER, NEVER + 1  # no call has begun
        begin, steps = self.call
        return begin, begin + max(1, round(self.fraction * steps))

    def _between(self, step: int, begin: int, end: int) -> float:
        """Return the value at `step`, where it changes from `begin` to `end`."""
        raise NotImplementedError

    def _line(self, step: int, begin: int, end: int) -> Segment:
        """Return the straight stretch in which `step` lies, where the value changes from `begin` to `end`."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class _FromTo(_Course):
    initial: float
    final: float
    steps: int | None = None
    fraction: float | None = field(default=None, kw_only=True)
    call: tuple[int, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        object.__setattr__(self, "initial", _check_number(kind, "initial", self.initial))
        object.__setattr__(self, "final", _check_number(kind, "final", self.final))
        _check_one(kind, self.steps, self.fraction)
        if self.steps is not None:
            object.__setattr__(self, "steps", _check_steps(kind, self.steps))
        super().__post_init__()


_named = named_constructor(
    start="initial",
    initial_value="initial",
    start_value="initial",
    end="final",
    end_value="final",
    final_value="final",
    end_fraction="fraction",
    exploration_fraction="fraction",
    duration="steps",
    n_steps="steps",
    total_steps="steps",
)


@_named
@dataclass(frozen=True, repr=False)
class Linear(_FromTo):
    """From `initial` in a straight line to `final`, which stays from there on.

    `final` is reached at global step `steps`; or, with a `fraction` in its place, when that share of a call
    of ``train`` has been made.

    Parameters
    ----------
    initial, final : float
    steps : int, optional
    fraction : float, optional
        Above 0 and at most 1, of all steps that are asked for of all ranks in the first call of ``train``
        that begins with this schedule. Before, the value is `initial`. A call that goes on from a checkpoint
        keeps its share, and each later call holds `final`, also where the first one was ended early.
    call : tuple of two int, optional
        The global step at which that call begins, and its steps. ``train`` fills it in.
    """

    def _between(self, step: int, begin: int, end: int) -> float:
        return self.initial + (self.final - self.initial) * ((step - begin) / (end - begin))

    def _line(self, step: int, begin: int, end: int) -> Segment:
        return Segment(begin, end, self.initial, (self.final - self.initial) / (end - begin))


@_named
@dataclass(frozen=True, repr=False)
class Exponential(_FromTo):
    """From `initial` to `final`, both above 0, by a constant factor per step; otherwise like `Linear`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("initial", self.initial), ("final", self.final)):
            if value <= 0.0:
                raise SettingsError(
                    f"Exponential: {name} must be above 0, got {value!r}: a constant factor never reaches 0. "
                    "Use a small positive number, or Linear."
                )
        if self.final / self.initial in (0.0, math.inf):
            raise SettingsError(
                f"Exponential: from {self.initial!r} to {self.final!r} is a factor that float64 cannot hold. "
                "Bring them nearer together, for instance with 1e-9 for the smaller one, or use Linear."
            )

    def _between(self, step: int, begin: int, end: int) -> float:
        return self.initial * (self.final / self.initial) ** ((step - begin) / (end - begin))

    def _line(self, step: int, begin: int, end: int) -> Segment:
        """Return a chord, over which the value changes by at most 1 %: it is off by at most 0.01**2 / 8."""
        steps = end - begin
        logarithm = abs(math.log(self.final / self.initial))
        length = steps if logarithm == 0.0 else min(steps, max(1, int(0.01 * steps / logarithm)))
        start = step - (step - begin) % length
        stop = min(start + length, end)
        value = self.at(start)
        return Segment(start, stop, value, (self.at(stop) - value) / (stop - start))


@named_constructor(
    endpoints="points",
    values="points",
    end_fraction="fraction",
    exploration_fraction="fraction",
)
@dataclass(frozen=True, repr=False)
class Piecewise(_Course):
    """From point to point in straight lines, and at the last value from there on.

    Stairs have two points at one place, of which the second counts from there on; before the first point the
    value is the first one. `from_function` makes one of a function.

    Parameters
    ----------
    points : sequence of (place, value)
        In the order of places. A place is a global step, as in
        ``Piecewise([(0, 1.0), (50_000, 0.1), (200_000, 0.02)])``; with a `fraction` it is from 0 to 1, the
        share of that stretch that has been made.
    fraction, call
        As in `Linear`.
    """

    points: tuple[tuple[float, float], ...]
    fraction: float | None = field(default=None, kw_only=True)
    call: tuple[int, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "points", _checked_points(self.points, self.fraction is not None))

    @classmethod
    @named_arguments("Piecewise.from_function")
    def from_function(
        cls,
        function: Callable[[float], float],
        *,
        steps: int | None = None,
        fraction: float | None = None,
        points: int = 257,
    ) -> Piecewise:
        """Return the schedule that follows a function, in straight lines between its values.

        Parameters
        ----------
        function : callable
            It takes the share of the stretch that has been made, from 0.0 to 1.0, and returns the value. It
            is called here, and neither kept nor saved.
        steps : int, optional
        fraction : float, optional
            How long the stretch is, as in `Linear`: exactly one of the two.
        points : int
            At how many places the function is called, at least 2. They are evenly spaced.

        Raises
        ------
        SettingsError
            If an argument is wrong, or a value is no finite number.
        """
        _check_one("Piecewise.from_function", steps, fraction)
        if not callable(function):
            raise SettingsError(
                f"Piecewise.from_function: function must take a share of the way from 0.0 to 1.0, got "
                f"{function!r}. Write for instance lambda made: 1.0 - made."
            )
        if not is_whole(points) or points < 2:
            raise SettingsError(
                f"Piecewise.from_function: points must be a whole number of at least 2, got {points!r}."
            )
        shares = [point / (points - 1) for point in range(points)]
        length = None if steps is None else _check_steps("Piecewise.from_function", steps)
        places = shares if length is None else [round(share * length) for share in shares]
        return cls(tuple(zip(places, map(function, shares), strict=True)), fraction=fraction)

    def __repr__(self) -> str:
        shown = [repr(point) for point in self.points]
        if len(shown) > 8:
            shown[2:-2] = [f"... {len(shown) - 4} more ..."]
        share = "" if self.fraction is None else f", fraction={self.fraction!r}"
        return f"Piecewise([{', '.join(shown)}]{share}{'' if self.call is None else f', call={self.call!r}'})"

    @property
    def initial(self) -> float:  # type: ignore[override]
        """The value before the first point."""
        return self.points[0][1]

    @property
    def final(self) -> float:  # type: ignore[override]
        """The value after the last point."""
        return self.points[-1][1]

    @property
    def steps(self) -> int | None:  # type: ignore[override]
        """The global step of the last point; None if places are shares."""
        return None if self.fraction is not None else int(self.points[-1][0])

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        values = [value for _, value in self.points]
        return min(values), max(values)

    def _between(self, step: int, begin: int, end: int) -> float:
        line = self._line(step, begin, end)
        return line.value + line.slope * (step - line.start)

    def _line(self, step: int, begin: int, end: int) -> Segment:
        def step_of(point: tuple[float, float]) -> int:
            return begin + round(point[0] if self.fraction is None else point[0] * (end - begin))

        after = bisect_right(self.points, step, key=step_of)
        if after == 0:
            return Segment(begin, step_of(self.points[0]), self.initial, 0.0)
        before, value = step_of(self.points[after - 1]), self.points[after - 1][1]
        if after == len(self.points):
            return Segment(before, end, value, 0.0)
        stop = step_of(self.points[after])
        return Segment(before, stop, value, (self.points[after][1] - value) / (stop - before))


def _checked_points(points: Any, are_shares: bool) -> tuple[tuple[float, float], ...]:
    """Return points of a `Piecewise`, its places as whole steps or as shares; SettingsError for others."""
    example = "(0.0, 1.0), (0.5, 0.1)" if are_shares else "(0, 1.0), (50_000, 0.1)"
    instead = f"Write for instance the points {example}{' with fraction=1.0' if are_shares else ''}."
    given = (
        list(points) if isinstance(points, Iterable) and not isinstance(points, (str, bytes, dict)) else []
    )
    if len(given) < 2 or not all(hasattr(each, "__len__") and len(each) == 2 for each in given):
        raise SettingsError(
            f"Piecewise: points must be at least two pairs of a place and the value there, got {points!r}. "
            f"{instead}"
        )
    found = [
        (_check_number("Piecewise", "a place", place), _check_number("Piecewise", "a value", value))
        for place, value in given
    ]
    places = [place for place, _ in found]
    for before, after in pairwise(places):
        if before > after:
            raise SettingsError(
                f"Piecewise: places must be in order, got {before!r} before {after!r}. {instead}"
            )
    if are_shares:
        if places[0] < 0.0 or places[-1] > 1.0:
            raise SettingsError(
                "Piecewise: with a fraction places are shares of it, from 0 to 1, got places from "
                f"{places[0]!r} to {places[-1]!r}. {instead} Global steps are given without fraction."
            )
        return tuple(found)
    wrong = [place for place in places if place < 0.0 or place != int(place)] or places[-1:]
    if wrong[0] < 1.0 or wrong[0] != int(wrong[0]):
        raise SettingsError(
            "Piecewise: without a fraction places are global steps, whole numbers from 0 on and the last one "
            f"at least 1, got {wrong[0]!r}. {instead} Shares of a call are given with fraction=1.0."
        )
    return tuple((int(place), value) for place, value in found)


@named_constructor(power="exponent", omega="exponent")
@dataclass(frozen=True, repr=False)
class PerVisit:
    """The step size ``scale * ((n + offset) / (1 + offset)) ** -exponent`` at the n-th visit of an entry.

    ``PerVisit(0.7)`` is n**-0.7. With an `offset` the step size stays near `scale` for about so many visits:
    rewards that lie far ahead, and values of a discount factor near 1, take many visits to come to an entry,
    whoever makes them. Where returns are short and noisy there should be none: ``PerVisit(1.0)`` is the mean
    of all.

    Exponents in (0.5, 1] satisfy the conditions of Robbins and Monro (1951), under which Q-learning
    converges; polynomial rates below 1 converge much faster than 1/n (Even-Dar and Mansour, 2003). With N
    workers the clock runs at n/N, see the design notes: the count of an entry grows N times faster than one
    worker's information.
    """

    exponent: float
    scale: float = 1.0
    offset: float = 0.0

    def __repr__(self) -> str:
        given = (
            f", {each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != each.default and each.name != "exponent"
        )
        return f"PerVisit({self.exponent!r}{''.join(given)})"

    def __post_init__(self) -> None:
        exponent = _check_number("PerVisit", "exponent", self.exponent)
        scale = _check_number("PerVisit", "scale", self.scale)
        offset = _check_number("PerVisit", "offset", self.offset)
        if not 0.0 < exponent <= 1.0:
            raise SettingsError(
                f"PerVisit: exponent must be above 0 and at most 1, got {exponent!r}. Write for instance "
                "exponent=0.7."
            )
        if not 0.0 < scale <= 1.0:
            raise SettingsError(f"PerVisit: scale must be above 0 and at most 1, got {scale!r}.")
        if offset < 0.0:
            raise SettingsError(f"PerVisit: offset must be a number of visits, at least 0, got {offset!r}.")
        object.__setattr__(self, "exponent", exponent)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "offset", offset)

    def table(self, workers: int) -> np.ndarray:
        """Return the step sizes of `workers` workers by bucket of visits, ndarray(float64, ndim=1).

        The slot of visit n is ``n`` below 8192 and shares the 4096 slots of its octave above (see
        `dist_classicrl.tables.rows.visit_bucket`), so the clock is exact at first and within 1/4096
        later.
        """
        import numpy as np

        octaves = _MAX_VISIT_BITS - _BUCKET_BITS
        low = np.arange(EXACT_VISITS, dtype=np.float64)
        mantissa = np.arange(1 << _BUCKET_BITS, 2 << _BUCKET_BITS, dtype=np.float64)
        high = [mantissa * 2.0**octave for octave in range(1, octaves)]
        visits = np.concatenate([low, *high])
        return self._after(visits, workers)

    def at_visit(self, visit: int, workers: int) -> float:
        """Return the step size of `workers` workers at visit number `visit` of an entry."""
        return float(self._after(float(visit), workers))

    def _after(self, visits: Any, workers: int) -> Any:
        import numpy as np

        clock, offset = np.maximum(visits / workers, 1.0), self.offset / workers
        return self.scale * ((clock + offset) / (1.0 + offset)) ** -self.exponent


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
    return Constant(_check_number(name, "value", value))


def in_call(schedule: Schedule, begin: int, steps: int, made: int) -> Schedule:
    """Return `schedule` as it is in a call of ``train`` of so many steps that begins at global step `begin`.

    A share of a call becomes one of this call, unless it is already one of a call of which steps were made,
    `made` being the global step from which this one goes on. That call counts with the steps that were made
    of it, if it was ended early and this is another one.
    """
    if not isinstance(schedule, _Course) or schedule.fraction is None or steps == 0:
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
    return schedule.value if isinstance(schedule, Constant) else schedule.final


def without_call(schedule: Schedule) -> Schedule:
    """Return `schedule` as it was before any call of ``train``."""
    return replace(schedule, call=None) if isinstance(schedule, _Course) else schedule


def to_dict(schedule: Schedule) -> dict[str, Any]:
    """Return `schedule` as plain data for JSON."""
    given = {name: value for name, value in asdict(schedule).items() if value is not None}
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
