"""Step sizes and exploration rates as functions of the global step, or of the visits to an entry.

`Constant`, `Linear` and `Exponential` follow the global step: the number of steps that the whole run has been
given, over all workers and all calls of ``train``. `PerVisit` follows the number of visits to the entry that
is updated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

from dist_classicrl.checks import as_float, is_real
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np

_BUCKET_BITS = 12
EXACT_VISITS = 2 << _BUCKET_BITS
"""Visits below this have a table slot of their own."""

_MAX_VISIT_BITS = 48


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


_ENDLESS = 1 << 62


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
        return Segment(0, _ENDLESS, self.value, 0.0)

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return self.value, self.value


@dataclass(frozen=True)
class _FromTo:
    initial: float
    final: float
    steps: int

    def __post_init__(self) -> None:
        kind = type(self).__name__
        object.__setattr__(self, "initial", _check_number(kind, "initial", self.initial))
        object.__setattr__(self, "final", _check_number(kind, "final", self.final))
        object.__setattr__(self, "steps", _check_steps(kind, self.steps))

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return min(self.initial, self.final), max(self.initial, self.final)


@dataclass(frozen=True)
class Linear(_FromTo):
    """From `initial` in a straight line to `final` at global step `steps`, and `final` from there on."""

    def at(self, step: int) -> float:
        """Return the value at global step `step`."""
        return self.initial + (self.final - self.initial) * (min(step, self.steps) / self.steps)

    def segment(self, step: int) -> Segment:
        """Return the straight stretch in which `step` lies."""
        if step >= self.steps:
            return Segment(self.steps, _ENDLESS, self.final, 0.0)
        return Segment(0, self.steps, self.initial, (self.final - self.initial) / self.steps)


@dataclass(frozen=True)
class Exponential(_FromTo):
    """From `initial` to `final` by a constant factor per step.

    `final` is reached at global step `steps`, and stays from there on.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("initial", self.initial), ("final", self.final)):
            if value <= 0.0:
                raise SettingsError(
                    f"Exponential: {name} must be above 0, got {value!r}: a constant factor never reaches 0. "
                    "Use a small positive number, or Linear."
                )

    def at(self, step: int) -> float:
        """Return the value at global step `step`."""
        return self.initial * (self.final / self.initial) ** (min(step, self.steps) / self.steps)

    def segment(self, step: int) -> Segment:
        """Return the straight stretch in which `step` lies.

        The value changes by at most 1 % over a stretch, so a chord is off by at most 0.01**2 / 8 of the
        value.
        """
        if step >= self.steps:
            return Segment(self.steps, _ENDLESS, self.final, 0.0)
        logarithm = abs(math.log(self.final / self.initial))
        length = (
            self.steps if logarithm == 0.0 else min(self.steps, max(1, int(0.01 * self.steps / logarithm)))
        )
        start = step - step % length
        end = min(start + length, self.steps)
        value = self.at(start)
        return Segment(start, end, value, (self.at(end) - value) / (end - start))


@dataclass(frozen=True)
class PerVisit:
    """The step size ``scale * n ** -exponent`` at the n-th visit of an entry, never above 1.

    Exponents in (0.5, 1] satisfy the conditions of Robbins and Monro (1951), under which Q-learning
    converges; polynomial rates below 1 converge much faster than 1/n (Even-Dar and Mansour, 2003). With N
    workers the clock runs at n/N, see the design notes: the count of an entry grows N times faster than one
    worker's information.
    """

    exponent: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        exponent = _check_number("PerVisit", "exponent", self.exponent)
        scale = _check_number("PerVisit", "scale", self.scale)
        if not 0.0 < exponent <= 1.0:
            raise SettingsError(
                f"PerVisit: exponent must be above 0 and at most 1, got {exponent!r}. Write for instance "
                "PerVisit(0.7)."
            )
        if not 0.0 < scale <= 1.0:
            raise SettingsError(f"PerVisit: scale must be above 0 and at most 1, got {scale!r}.")
        object.__setattr__(self, "exponent", exponent)
        object.__setattr__(self, "scale", scale)

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

        return self.scale * np.maximum(visits / workers, 1.0) ** -self.exponent


Schedule = Constant | Linear | Exponential | PerVisit
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Schedule)}


def as_schedule(name: str, value: Any) -> Schedule:
    """Return `value`, a number or a schedule, as a schedule; `name` is the setting that it is for.

    Raises
    ------
    SettingsError
        If `value` is neither.
    """
    if isinstance(value, Schedule):
        return value
    if not is_real(value):
        raise SettingsError(
            f"{name} must be a number or a schedule ({', '.join(_KINDS)} of dist_classicrl.schedules), "
            f"got {value!r} of type {type(value).__name__}."
        )
    return Constant(_check_number(name, "value", value))


def to_dict(schedule: Schedule) -> dict[str, Any]:
    """Return `schedule` as plain data for JSON."""
    return {"kind": type(schedule).__name__, **asdict(schedule)}


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
