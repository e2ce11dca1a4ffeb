"""Two reports as one, for the reports that get no line of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dist_classicrl.engines.progress import Progress


def combined(earlier: Progress, later: Progress) -> Progress:
    """Return `later` with what `earlier` counted, which was reported just before it."""
    steps = {rank.rank: rank.steps for rank in earlier.ranks}
    return replace(
        later,
        episodes=earlier.episodes + later.episodes,
        mean_return=_mean(earlier.mean_return, earlier.episodes, later.mean_return, later.episodes),
        mean_length=_mean(earlier.mean_length, earlier.episodes, later.mean_length, later.episodes),
        pushes=earlier.pushes + later.pushes,
        bytes_pushed=earlier.bytes_pushed + later.bytes_pushed,
        bytes_pulled=earlier.bytes_pulled + later.bytes_pulled,
        staleness=_mean(earlier.staleness, earlier.pushes, later.staleness, later.pushes, empty=0.0),
        ranks=tuple(replace(rank, steps=rank.steps + steps.get(rank.rank, 0)) for rank in later.ranks),
    )


def with_rates(progress: Progress, steps: int, seconds: float) -> Progress:
    """Return `progress` with the rates since `steps` and `seconds`."""
    passed = max(progress.seconds - seconds, 1e-9)
    return replace(
        progress,
        steps_per_second=(progress.steps - steps) / passed,
        ranks=tuple(replace(rank, steps_per_second=rank.steps / passed) for rank in progress.ranks),
    )


def _mean(one: float, n_one: int, other: float, n_other: int, empty: float = math.nan) -> float:
    if n_one == 0 or n_other == 0:
        return other if n_other else one if n_one else empty
    return (n_one * one + n_other * other) / (n_one + n_other)
