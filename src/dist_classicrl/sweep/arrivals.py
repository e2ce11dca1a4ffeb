"""Which runs come next where that depends on what has come out so far: Optuna, and asynchronous halving.

Nothing is written down but settings that were proposed, claims and records: each process finds by these what
is to be made next, so that it may die and come again. A run is the same whenever it is made; which runs are
made depends on the order in which the others ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.plan import Plan, Trial
from dist_classicrl.sweep.study import has_scale, score_of

_Job = tuple[str, int, int]  # environment, settings, rung


class Arrivals:
    """What can be made now, given what is there.

    `propose` decides settings that nobody has decided; `is_claimed` tells whether somebody has ever claimed
    a part of these runs.
    """

    def __init__(
        self,
        plan: Plan,
        stopping: SuccessiveHalving | None,
        folder: StudyFolder,
        propose: Callable[[int], None],
        is_claimed: Callable[[list[Trial]], bool],
    ) -> None:
        self._plan, self._stopping, self._folder = plan, stopping, folder
        self._propose, self._is_claimed = propose, is_claimed
        self._complete: dict[_Job, float] = {}  # with the mean score, of the runs that are all made
        self._has_returns = False  # whether scores that are complete are
        self._withdrawn = 0

    def jobs(self) -> Iterator[list[Trial]]:
        """Yield what is left to make, what is to be made first in front; nothing if all is made.

        Settings that got farther come before those that have only begun, and new settings come last: they
        are proposed when all others are taken.
        """
        for rung, environment, ahead, _ in reversed(self._promotions()):
            yield from self._left((environment, one, rung) for one in ahead)
        for variant in range(self._plan.n_variants):
            if self._plan.variants[variant] is None:
                self._propose(variant)
            yield from self._left((environment, variant, 0) for environment in self._plan.environments)
        # Settings that were among the best when others had not ended, and are not now.
        for rung, environment, _, there in self._promotions():
            yield from self._left((environment, one, rung) for one in there)

    def scores(self, variants: Iterable[int]) -> dict[int, float | None]:
        """Return the mean scores of the first rung over all environments; None while that is under way.

        Where scores of several environments are returns, each on a scale of its own, what counts of a score
        is the share of the others of its environment that are below.
        """
        environments = self._plan.environments
        found = {one: [self._score((each, one, 0)) for each in environments] for one in variants}
        known = {one: np.array(scores, dtype=float) for one, scores in found.items() if None not in scores}
        if known and len(environments) > 1 and self._has_returns:
            columns = [_places(scores) for scores in np.transpose(list(known.values()))]
            known = dict(zip(known, np.transpose(columns), strict=True))
        means = {one: math.fsum(scores) / len(scores) for one, scores in known.items()}
        return {one: means.get(one) for one in found}

    def _left(self, jobs: Any) -> Iterator[list[Trial]]:
        for job in jobs:
            if self._score(job) is None:
                yield self._trials(job)

    def _promotions(self) -> list[tuple[int, str, list[int], list[int]]]:
        """Return for each rung but the first, and each environment, who is to go there and who is known to.

        To go there are the best of the rung below: of those that have ended there, or of all once no others
        can come. Then those count as well that have begun and are not among the best any more.
        """
        found: list[tuple[int, str, list[int], list[int]]] = []
        if self._stopping is None:
            return found
        known = [one for one, settings in enumerate(self._plan.variants) if settings is not None]
        for environment in self._plan.environments:
            there, is_whole = known, len(known) == self._plan.n_variants
            for rung in range(1, int(self._stopping.rungs)):
                scores = {one: self._score((environment, one, rung - 1)) for one in there}
                ended = {one: [score] for one, score in scores.items() if score is not None}
                is_whole = is_whole and len(ended) == len(there)
                if is_whole:
                    ahead = self._stopping.survivors(ended)
                else:
                    ahead = self._stopping.best(ended, len(ended) // int(self._stopping.factor))
                begun = [
                    one
                    for one in ended
                    if one not in ahead
                    and (
                        self._score((environment, one, rung)) is not None
                        or (is_whole and self._is_claimed(self._trials((environment, one, rung))))
                    )
                ]
                there = sorted([*ahead, *begun])
                found.append((rung, environment, ahead, there))
        return sorted(found, key=lambda each: each[0])

    def _trials(self, job: _Job) -> list[Trial]:
        environment, variant, rung = job
        total = self._plan.total_steps
        steps = total if self._stopping is None else self._stopping.steps(rung, total)
        return self._plan.trials(environment, variant, steps)

    def _score(self, job: _Job) -> float | None:
        """Return the mean score of runs that are all made, NaN where one has failed; None if not all are."""
        if self._folder.withdrawn != self._withdrawn:  # somebody makes failed runs once more
            self._withdrawn = self._folder.withdrawn
            self._complete.clear()
        if job not in self._complete:
            records: Mapping[str, Any] = self._folder.records_read
            theirs = [records.get(trial.key) for trial in self._trials(job)]
            made = [record for record in theirs if record is not None]
            if len(made) < len(theirs):
                return None
            varied = self._plan.varied
            self._complete[job] = math.fsum(score_of(each, varied) for each in made) / len(made)
            well = [each for each in made if each["error"] is None]
            self._has_returns |= not all(has_scale(each, varied) for each in well)
        return self._complete[job]


def _places(scores: np.ndarray) -> np.ndarray:
    """Return which share of these scores is below each, itself and equal ones counted half; NaN stays."""
    well = np.sort(scores[~np.isnan(scores)])
    places = np.searchsorted(well, scores, "left") + np.searchsorted(well, scores, "right")
    return np.where(np.isnan(scores), np.nan, places / max(1, 2 * len(well)))
