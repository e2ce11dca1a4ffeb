"""Schedules that follow the global step."""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dist_classicrl._arguments import named_constructor
from dist_classicrl._steps import NEVER
from dist_classicrl.checks import is_whole
from dist_classicrl.errors import SettingsError
from dist_classicrl.schedules.arguments import (
    MOST_POINTS,
    check_one,
    checked_call,
    checked_fraction,
    checked_number,
    checked_points,
    checked_steps,
)

if TYPE_CHECKING:
    import numpy as np

_SHOWN_POINTS = 8  # of more, a text has the ends


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
        object.__setattr__(self, "value", checked_number("Constant", "value", self.value))

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


class Course:
    """What changes between two global steps, and stays as it is before and after."""

    steps: int | None
    fraction: float | None
    call: tuple[int, int] | None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.steps is not None:
            object.__setattr__(self, "steps", checked_steps(kind, self.steps))
        if self.fraction is not None:
            object.__setattr__(self, "fraction", checked_fraction(kind, self.fraction))
        if self.call is not None:
            object.__setattr__(self, "call", checked_call(kind, self.fraction, self.call))

    @property
    def ends(self) -> tuple[float, float]:
        """First and last value."""
        raise NotImplementedError

    def at(self, step: int) -> float:
        """Return the value at global step `step`."""
        begin, end = self._stretch
        if begin <= step < end:
            return self._between(step, begin, end)
        return self.ends[step >= end]

    def segment(self, step: int) -> Segment:
        """Return the straight stretch in which `step` lies."""
        begin, end = self._stretch
        if step < begin:
            return Segment(0, begin, self.ends[0], 0.0)
        if step >= end:
            return Segment(end, NEVER, self.ends[1], 0.0)
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
class _FromTo(Course):
    initial: float
    final: float
    steps: int | None = None
    fraction: float | None = field(default=None, kw_only=True)
    call: tuple[int, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        object.__setattr__(self, "initial", checked_number(kind, "initial", self.initial))
        object.__setattr__(self, "final", checked_number(kind, "final", self.final))
        check_one(kind, self.steps, self.fraction)
        super().__post_init__()

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({', '.join(given)})"

    @property
    def ends(self) -> tuple[float, float]:
        """First and last value."""
        return self.initial, self.final

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return min(self.ends), max(self.ends)


_OTHER_NAMES = {
    "end_fraction": "fraction",
    "exploration_fraction": "fraction",
    "duration": "steps",
    "n_steps": "steps",
    "total_steps": "steps",
}
_named = named_constructor(
    start="initial",
    initial_value="initial",
    start_value="initial",
    end="final",
    end_value="final",
    final_value="final",
    **_OTHER_NAMES,
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


@named_constructor(endpoints="points", values="points", **_OTHER_NAMES)
@dataclass(frozen=True, repr=False)
class Piecewise(Course):
    """From point to point in straight lines, and at the last value from there on.

    Stairs have two points at one place, of which the second counts from there on. Before the first point the
    value is the first one. `from_function` makes one of a function.

    Parameters
    ----------
    points : sequence of (place, value)
        From 2 to 10,000, in the order of places. A place is a global step, as in
        ``Piecewise([(0, 1.0), (50_000, 0.1), (200_000, 0.02)])``; with `steps` or a `fraction` it is the
        share of that stretch that has been made, from 0 to 1.
    steps : int, optional
        The stretch goes from global step 0 to this one.
    fraction, call
        As in `Linear`.
    """

    points: Sequence[Sequence[float]] | np.ndarray
    steps: int | None = None
    fraction: float | None = field(default=None, kw_only=True)
    call: tuple[int, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self._are_shares:
            check_one("Piecewise", self.steps, self.fraction)
        super().__post_init__()
        object.__setattr__(self, "points", checked_points("Piecewise", self.points, self._are_shares))

    @classmethod
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
            At how many places the function is called, from 2 to 10,000. They are evenly spaced.

        Raises
        ------
        SettingsError
            If an argument is wrong, or a value is no finite number.
        """
        check_one("Piecewise.from_function", steps, fraction)
        if not callable(function):
            raise SettingsError(
                f"Piecewise.from_function: function must take a share of the way from 0.0 to 1.0, got "
                f"{function!r}. Write for instance lambda made: 1.0 - made."
            )
        if not is_whole(points) or not 2 <= points <= MOST_POINTS:
            raise SettingsError(
                f"Piecewise.from_function: points must be a whole number from 2 to {MOST_POINTS:,}, got "
                f"{points!r}."
            )
        shares = [point / (points - 1) for point in range(points)]
        return cls([(share, function(share)) for share in shares], steps, fraction=fraction)

    def __repr__(self) -> str:
        shown = [repr(point) for point in self.points]
        if len(shown) > _SHOWN_POINTS:
            digest = zlib.crc32(repr(self.points).encode())
            shown[2:-2] = [f"... {len(shown) - 4} more, {digest:08x} ..."]
        others = {"steps": self.steps, "fraction": self.fraction, "call": self.call}
        given = [f", {name}={value!r}" for name, value in others.items() if value is not None]
        return f"Piecewise([{', '.join(shown)}]{''.join(given)})"

    @property
    def ends(self) -> tuple[float, float]:
        """First and last value: of points at place 0 the last one counts."""
        first = max(0, bisect_right(self.points, 0.0, key=itemgetter(0)) - 1)
        return self.points[first][1], self.points[-1][1]

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        values = [value for _, value in self.points]
        return min(values), max(values)

    @property
    def _are_shares(self) -> bool:
        return self.steps is not None or self.fraction is not None

    @property
    def _stretch(self) -> tuple[int, int]:
        return super()._stretch if self._are_shares else (0, int(self.points[-1][0]))

    def _between(self, step: int, begin: int, end: int) -> float:
        line = self._line(step, begin, end)
        return line.value + line.slope * (step - line.start)

    def _line(self, step: int, begin: int, end: int) -> Segment:
        """Return the stretch from the first whole step of a line to that of the next one."""

        def place_of(point: Any) -> Any:
            if not self._are_shares:
                return point[0]
            place = point[0] * (end - begin)  # 3.0000000000000004 is 3
            return begin + (round(place) if abs(place - round(place)) < 1e-6 else place)

        after = bisect_right(self.points, step, key=place_of)
        if after == 0:
            return Segment(begin, math.ceil(place_of(self.points[0])), self.points[0][1], 0.0)
        place, value = place_of(self.points[after - 1]), self.points[after - 1][1]
        start = math.ceil(place)
        if after == len(self.points):
            return Segment(start, end, value, 0.0)
        next_place, next_value = place_of(self.points[after]), self.points[after][1]
        slope = (next_value - value) / (next_place - place)
        return Segment(start, math.ceil(next_place), value + slope * (start - place), slope)
