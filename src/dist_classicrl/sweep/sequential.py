"""How many seeds are enough? A test that looks after each batch of seeds, and stops as soon as it can.

A group-sequential permutation test after Mathieu, Della Vecchia, Shilova, Centa de Medeiros, Kohler, Maillard
and Preux, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL agents" (2023), for two
variants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.comparison import PERMUTATIONS, check_count, check_level, checked_values

DIFFERENT, UNDECIDED, NOT_FOUND = "different", "undecided", "no difference found"


@dataclass(frozen=True)
class Verdict:
    """What the seeds so far say.

    Attributes
    ----------
    outcome : {"different", "undecided", "no difference found"}
    better : {"first", "second"} or None
        Which one has the higher mean, where they are different.
    difference : float
        Mean score of the first less that of the second, averaged over tasks.
    seeds : int
        Of each variant and task, so far.
    more_seeds : int
        To run before asking again; 0 where it is decided.
    """

    outcome: str
    better: str | None
    difference: float
    seeds: int
    more_seeds: int

    def __str__(self) -> str:
        if self.outcome == UNDECIDED:
            return f"{UNDECIDED}: run {self.more_seeds} more"
        return f"{DIFFERENT}: the {self.better} is better" if self.better else NOT_FOUND


class SequentialComparison:
    """A comparison of two variants in stages, each of so many seeds, that may end after any of them.

    Equal variants are called different with probability `level` at most, over all stages together: after
    stage i of K, at most i `level` / K of all permutations have been beyond a stage's boundary. Permutations
    deal the scores out anew within each stage and task, and the statistic is the difference of means.

    Parameters
    ----------
    stages : int
    seeds_per_stage : int
        At least 2. With fewer than 5 the first stages have too few permutations to find anything.
    level : float
        Where several pairs are compared, divide it by their number.
    permutations : int
    seed : int
        Of the permutations.

    Raises
    ------
    StudyError
        If a number is out of range, and by `add`.
    """

    def __init__(
        self,
        stages: int = 5,
        seeds_per_stage: int = 5,
        level: float = 0.05,
        permutations: int = PERMUTATIONS,
        seed: int = 0,
    ) -> None:
        check_count("stages", stages, 1)
        check_count("seeds_per_stage", seeds_per_stage, 2)
        check_count("permutations", permutations, 100)
        check_level(level)
        self.stages, self.seeds_per_stage, self.level = stages, seeds_per_stage, level
        self._rng = np.random.default_rng(seed)
        # Number 0 is what was seen: under the hypothesis it is one among the others.
        self._sums = np.zeros(1 + permutations)
        self._within = np.ones(1 + permutations, bool)
        self._stage = 0
        self._tasks: tuple[str, ...] | None = None
        self._verdict: Verdict | None = None

    def add(self, first_scores: Any, second_scores: Any) -> Verdict:
        """Take in the scores of the next stage, and say what all so far show.

        Parameters
        ----------
        first_scores, second_scores : array_like of float, or mapping of str to array_like of float
            New runs of the two variants, of shape (seeds_per_stage,), or such an array per task. Several
            tasks count alike, so their scores should have one scale.

        Raises
        ------
        StudyError
            If all is decided, tasks differ, there are not `seeds_per_stage` scores, or one is NaN.
        """
        if self._verdict is not None and self._verdict.outcome != UNDECIDED:
            raise StudyError(
                f"The comparison has ended ({self._verdict}), and a look at more seeds would raise its "
                "share of false alarms. Make a new SequentialComparison for new seeds."
            )
        first, second = self._checked(first_scores, "first"), self._checked(second_scores, "second")
        tasks = tuple(first)
        if set(second) != set(tasks) or (self._tasks is not None and set(self._tasks) != set(tasks)):
            raise StudyError(
                f"Tasks differ: {list(first)}, {list(second)}"
                + (f", before {list(self._tasks)}" if self._tasks else "")
                + ". Give scores of the same tasks for both, in each stage."
            )
        self._tasks = tasks
        scale = 0.0
        for task in tasks:
            pooled = np.concatenate((first[task], second[task]))
            dealt = np.tile(pooled, (len(self._sums), 1))
            self._rng.permuted(dealt[1:], axis=1, out=dealt[1:])
            n = self.seeds_per_stage
            self._sums += dealt[:, :n].sum(axis=1) - dealt[:, n:].sum(axis=1)
            scale = max(scale, float(np.abs(pooled).max()))
        self._stage += 1
        self._verdict = self._look(scale)
        return self._verdict

    def _look(self, scale: float) -> Verdict:
        # Sums that differ by rounding only are equal.
        distances = np.round(np.abs(self._sums) / (scale or 1.0), 9)
        allowed = int(self.level * self._stage / self.stages * len(distances) + 1e-9)
        room = allowed - int((~self._within).sum())
        inside = np.sort(distances[self._within])[::-1]
        # No more than `room` are above the boundary.
        boundary = inside[min(room, len(inside) - 1)]
        is_different = bool(distances[0] > boundary)
        self._within &= distances <= boundary
        seeds = self._stage * self.seeds_per_stage
        difference = float(self._sums[0]) / seeds / len(self._tasks or " ")
        if is_different:
            return Verdict(DIFFERENT, "first" if difference > 0 else "second", difference, seeds, 0)
        if self._stage == self.stages:
            return Verdict(NOT_FOUND, None, difference, seeds, 0)
        return Verdict(UNDECIDED, None, difference, seeds, self.seeds_per_stage)

    def _checked(self, scores: Any, name: str) -> dict[str, np.ndarray]:
        tasks = scores if isinstance(scores, Mapping) else {"": scores}
        checked = {}
        for task, values in tasks.items():
            what = f"Scores of the {name} variant" + (f" in {task!r}" if task else "")
            checked[task] = checked_values(values, what)
            if len(checked[task]) != self.seeds_per_stage:
                raise StudyError(
                    f"{what} are of {len(checked[task])} seeds, and a stage has {self.seeds_per_stage}. "
                    f"Give as many "
                    "as were said beforehand: the boundaries hold for those."
                )
        if not checked:
            raise StudyError(f"The {name} variant has no scores. Give those of one task at least.")
        return checked


def compare_until_significant(
    more_runs: Callable[[range], tuple[Any, Any]],
    *,
    stages: int = 5,
    seeds_per_stage: int = 5,
    level: float = 0.05,
    permutations: int = PERMUTATIONS,
    first_seed: int = 0,
    seed: int = 0,
) -> Verdict:
    """Run seeds until two variants are shown to differ, or `stages` x `seeds_per_stage` seeds are spent.

    Parameters
    ----------
    more_runs : callable
        Takes seeds that were not run before, as a range, and returns the scores of the first variant and
        those of the second with these seeds, as `SequentialComparison.add` takes them.
    stages, seeds_per_stage, level, permutations, seed
        As those of `SequentialComparison`.
    first_seed : int
        The first one of the runs.

    Raises
    ------
    StudyError
        As `SequentialComparison`.
    """
    test = SequentialComparison(stages, seeds_per_stage, level, permutations, seed)
    begin = first_seed
    while True:
        verdict = test.add(*more_runs(range(begin, begin + seeds_per_stage)))
        if verdict.outcome != UNDECIDED:
            return verdict
        begin += seeds_per_stage
