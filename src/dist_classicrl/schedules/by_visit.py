"""Step sizes that follow the visits to an entry."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dist_classicrl._arguments import named_constructor
from dist_classicrl.errors import SettingsError
from dist_classicrl.schedules.arguments import checked_number

if TYPE_CHECKING:
    import numpy as np

_BUCKET_BITS = 12
EXACT_VISITS = 2 << _BUCKET_BITS
"""Visits below this have a table slot of their own."""

_MAX_VISIT_BITS = 48
VISITS_END = 1 << _MAX_VISIT_BITS
"""Visits of an entry are fewer than these, where the table of `PerVisit` ends."""


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
        exponent = checked_number("PerVisit", "exponent", self.exponent)
        scale = checked_number("PerVisit", "scale", self.scale)
        offset = checked_number("PerVisit", "offset", self.offset)
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
