"""Which runs come next where that depends on what has come out so far: Optuna, and asynchronous halving.

Nothing is written down but settings that were proposed, claims and records: each process finds by these what
is to be made next, so that it may die and come again. A run is the same whenever it is made; which runs are
made depends on the order in which the others ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dist_classicrl.sweep.folder import StudyFolder
from dist_classicrl.sweep.halving import SuccessiveHalving
from dist_classicrl.sweep.plan import Plan, Trial
from dist_classicrl.sweep.study import score_of

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

    def jobs(self) -> Iterator[list[Trial]]:
        """Yield what is left to make, what is to be made first in front; nothing if all is made.

        Settings that got farther come before those that have only begun, and new settings come last: they
        are proposed when all others are taken.
        """
        last = 0 if self._stopping is None else self._stopping.rungs - 1
        for rung in range(last, 0, -1):
            for environment in self._plan.environments:
                yield from self._left((environment, one, rung) for one in self._next(environment, rung - 1))
        for variant in range(self._plan.n_variants):
            if self._plan.variants[variant] is None:
                self._propose(variant)
            yield from self._left((environment, variant, 0) for environment in self._plan.environments)
        # Settings that were among the best when others had not ended, and are not now.
        for rung in range(1, last + 1):
            for environment in self._plan.environments:
                for variant in self._population(environment, rung):
                    yield from self._left([(environment, variant, rung)])

    def scores(self, variant: int) -> float | None:
        """Return the mean score of the first rung in all environments; None while that is under way."""
        found = [self._score((environment, variant, 0)) for environment in self._plan.environments]
        known = [score for score in found if score is not None]
        return math.fsum(known) / len(known) if len(known) == len(found) else None

    def _left(self, jobs: Any) -> Iterator[list[Trial]]:
        for job in jobs:
            if self._score(job) is None:
                yield self._trials(job)

    def _next(self, environment: str, rung: int) -> list[int]:
        """Return the best settings of a rung, which go on: of those that have ended, or of all of them."""
        assert self._stopping is not None
        there = self._population(environment, rung)
        scores = {one: self._score((environment, one, rung)) for one in there}
        ended = {one: [score] for one, score in scores.items() if score is not None}
        if len(ended) == len(there) and self._is_final(environment, rung):
            return self._stopping.survivors(ended)
        return self._stopping.best(ended, len(ended) // int(self._stopping.factor))

    def _population(self, environment: str, rung: int) -> list[int]:
        """Return the settings that have got to a rung."""
        known = [one for one, settings in enumerate(self._plan.variants) if settings is not None]
        if rung == 0:
            return known
        ahead = set(self._next(environment, rung - 1))
        return [
            one
            for one in known
            if one in ahead
            or self._score((environment, one, rung)) is not None
            or (
                self._score((environment, one, rung - 1)) is not None
                and self._is_claimed(self._trials((environment, one, rung)))
            )
        ]

    def _is_final(self, environment: str, rung: int) -> bool:
        """Whether no other settings can get to a rung."""
        if rung == 0:
            return all(settings is not None for settings in self._plan.variants)
        before = self._population(environment, rung - 1)
        return self._is_final(environment, rung - 1) and all(
            self._score((environment, one, rung - 1)) is not None for one in before
        )

    def _trials(self, job: _Job) -> list[Trial]:
        environment, variant, rung = job
        total = self._plan.total_steps
        steps = total if self._stopping is None else self._stopping.steps(rung, total)
        return self._plan.trials(environment, variant, steps)

    def _score(self, job: _Job) -> float | None:
        """Return the mean score of runs that are all made, NaN where one has failed; None if not all are."""
        if job not in self._complete:
            records: Mapping[str, Any] = self._folder.records_read
            theirs = [records.get(trial.key) for trial in self._trials(job)]
            made = [record for record in theirs if record is not None]
            if len(made) < len(theirs):
                return None
            self._complete[job] = math.fsum(map(score_of, made)) / len(made)
        return self._complete[job]
