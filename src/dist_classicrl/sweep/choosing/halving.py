"""Early stopping of settings that are hopeless: successive halving, synchronous or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.checks import is_flag, is_whole
from dist_classicrl.errors import StudyError


@dataclass(frozen=True)
class SuccessiveHalving:
    """All settings get few steps, the best of them `factor` times as many, and so on to the full number.

    In each environment by itself, after Jamieson and Talwalkar (2016). A run of more steps is a training from
    its beginning: its schedules are those of its own length, so that a setting that goes to the end is what
    it is in a study without early stopping, bit for bit. That costs about (rungs - 1) / factor of the last
    rung more. By default all runs of a rung end before the next begins, so that the result depends on no
    timing.

    Parameters
    ----------
    factor : int
        2 or more: the best 1/factor of the settings go on, and get this many times the steps.
    rungs : int
        2 or more, the last one included.
    asynchronous : bool
        Do not wait for the end of a rung: whoever is free takes on the best 1/factor of the settings of a
        rung that have ended so far, and else settings that have not begun (ASHA; Li and others, 2020). No
        core waits, and which settings go on depends on the order in which runs end; each run does not.
    """

    factor: int = 3
    rungs: int = 3
    asynchronous: bool = False

    def __post_init__(self) -> None:
        for name in ("factor", "rungs"):
            value = getattr(self, name)
            if not is_whole(value) or not 2 <= value <= 100:
                raise StudyError(
                    f"SuccessiveHalving: {name} must be a whole number from 2 on, got {value!r}."
                )

        if not is_flag(self.asynchronous):
            raise StudyError(
                f"SuccessiveHalving: asynchronous must be True or False, got {self.asynchronous!r}."
            )

    def steps(self, rung: int, total_steps: int) -> int:
        """Return the steps of a run in a rung; 0 where there are too few for so many rungs."""
        return total_steps // int(self.factor) ** (int(self.rungs) - 1 - rung)

    def survivors(self, scores: Mapping[int, Sequence[float]]) -> list[int]:
        """Return which settings go on, in order, by the mean score of their seeds; NaN is the worst.

        At least one goes on; of equal ones those with the smallest numbers do.
        """
        return self.best(scores, max(1, math.ceil(len(scores) / int(self.factor))))

    def best(self, scores: Mapping[int, Sequence[float]], count: int) -> list[int]:
        """Return the best `count` settings, as `survivors` ranks them."""
        means = {
            variant: float(np.mean(values)) if len(values) else math.nan for variant, values in scores.items()
        }
        ranked = sorted(means, key=lambda one: (math.inf if math.isnan(means[one]) else -means[one], one))
        return sorted(ranked[:count])

    def trainings(self, variants: int) -> int:
        """Return how many settings are trained in all rungs together; an asynchronous one may train more."""
        total = 0
        for _ in range(int(self.rungs)):
            total += variants
            variants = max(1, math.ceil(variants / int(self.factor)))
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        data = {"factor": int(self.factor), "rungs": int(self.rungs)}
        return data | {"asynchronous": True} if self.asynchronous else data
