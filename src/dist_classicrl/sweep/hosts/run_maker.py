"""What one process does in a study: it makes runs that nobody else has taken, until all are made."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dist_classicrl.errors import StudyError
from dist_classicrl.process.stop import EndingWatch, Stop
from dist_classicrl.sweep.arrivals import Arrivals
from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
from dist_classicrl.sweep.folder import Member, StudyFolder
from dist_classicrl.sweep.hosts.apart import records_apart
from dist_classicrl.sweep.making import Making
from dist_classicrl.sweep.plan import Parcel, Plan, Trial
from dist_classicrl.sweep.study import score_of

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class RunMaker:
    """Makes runs of a study in this process, with all that work in the same folder."""

    plan: Plan
    stopping: SuccessiveHalving | None
    making: Making
    #: Decides the settings of a number of which none are known; on what runs came to, in order of arrival.
    propose: Callable[[int, StudyFolder, Arrivals], None]
    ended: Callable[[Stop], BaseException]  # what a stop is raised as
    #: With how many lost processes one that was forked makes runs: each may have been ended from outside.
    apart_after: int

    def work(self, folder: StudyFolder, tick: Callable[[], None], known: Member | None = None) -> None:
        """Make runs until there are none left, as a new member or one that is known; `tick` between them."""
        with Member(folder) if known is None else nullcontext(known) as member:
            shift = _Shift(self, folder, member, tick)
            if self.plan.search is not None or (self.stopping is not None and self.stopping.asynchronous):
                shift.make_as_they_come()
                return
            if self.stopping is None:
                shift.make([self.plan.trial(number) for number in range(self.plan.n_runs)])
                return
            alive = {name: list(range(len(self.plan.variants))) for name in self.plan.environments}
            for rung in range(self.stopping.rungs):
                steps = self.stopping.steps(rung, self.plan.total_steps)
                shift.make(_trials_of(self.plan, alive, steps))
                alive = _next_rung(self.plan, self.stopping, alive, steps, folder.records())

    def help(self, folder: StudyFolder) -> None:
        """Work in a process that was forked from another one."""
        with self._ended_by_another() as watch:
            self.work(folder, watch.check)

    def make_apart(self, trials: Sequence[Trial]) -> Iterator[dict[str, Any] | None]:
        """Yield None, and what came out of runs, in a process forked from the one that writes it down."""
        with self._ended_by_another() as watch:
            self.making.try_out(trials)
            yield None
            for record in self.making.records(trials):
                yield record
                watch.check()

    @contextmanager
    def _ended_by_another(self) -> Iterator[EndingWatch]:
        """Let the process from which this one was forked end it by SIGTERM; it uses no card."""
        self.making.may_use_cards = False
        self.making.stop_long_runs_on((signal.SIGTERM,))
        watch = EndingWatch((signal.SIGTERM,), self.ended)
        with watch:
            yield watch


@dataclass(frozen=True)
class _Shift:
    """The work of a member, from its beginning to its end."""

    maker: RunMaker
    folder: StudyFolder
    member: Member
    tick: Callable[[], None]

    def make(self, trials: list[Trial]) -> None:
        """Take part in making these runs, and return when all of them are made by someone."""
        parcels = left = self.maker.making.parcels(trials)
        withdrawn = -1
        while left:
            waiting: list[Parcel] = []
            records = self.folder.records()
            for parcel in left:
                if _not_there([parcel], records) and not self._make_parcel(parcel):
                    waiting.append(parcel)
            if waiting and len(waiting) == len(left):
                time.sleep(_POLL_SECONDS)
                self.tick()
            left = waiting or _not_there(parcels, self.folder.records())
            if left and not waiting:  # somebody has them made again, or they are lost
                if self.folder.withdrawn == withdrawn:
                    raise StudyError(
                        f"What came out of run {left[0].trials[0].number} or of one after it was written to "
                        f"{self.folder.path / 'records'} and is not there. Leave the files of a study under "
                        "way as they are: the same study with the same folder makes what is missing."
                    )
                withdrawn = self.folder.withdrawn

    def _make_parcel(self, parcel: Parcel) -> bool:
        """Make the runs of a parcel, and return True; False if somebody else does.

        If several processes died with them, one of them may have killed these.
        """
        making = self.maker.making
        if not making.can_make(parcel.trials) or not self.member.claim(parcel.name):
            return False
        known = self.folder.records_read
        trials = [trial for trial in parcel.trials if trial.key not in known]
        n_lost = self.member.lost_owners(parcel.name)
        if n_lost >= self.maker.apart_after and trials and making.can_be_made_apart(trials):
            logger.warning(
                "%d processes were lost with %d run(s), number %d the first: a forked process makes them.",
                n_lost,
                len(trials),
                trials[0].number,
            )
            made = records_apart(
                trials, self.maker.make_apart, making.records, self.tick, self.folder.longest_seconds
            )
        else:
            made = making.records(trials)
        failed = set()
        with closing(made):
            for record in made:
                self.member.keep(record)
                if record["error"] is not None:
                    failed.add(record["key"])
                self.tick()
        self.member.make_durable()
        making.tidy(trial for trial in trials if trial.key not in failed)
        return True

    def make_as_they_come(self) -> None:
        """Take part in making runs each of which depends on what others came to; return when none is left."""
        plan, making, folder = self.maker.plan, self.maker.making, self.folder
        arrivals: Arrivals

        def propose(number: int) -> None:
            if folder.proposed(number) is None:
                self.maker.propose(number, folder, arrivals)
            found = folder.proposed(number)
            assert found is not None
            plan.variants[number] = found["settings"]  # type: ignore[index]

        def is_claimed(trials: list[Trial]) -> bool:
            return any(folder.is_claimed(parcel.name) for parcel in making.parcels(trials))

        arrivals = Arrivals(plan, self.maker.stopping, folder, propose, is_claimed)
        while True:
            records, left, made = folder.records(), False, False
            for trials in arrivals.jobs():
                left = True
                for parcel in making.parcels(trials):
                    if not all(trial.key in records for trial in parcel.trials):
                        made |= self._make_parcel(parcel)
                if made:
                    break  # what came out may bring others to the front
            if not left:
                return
            if not made:
                time.sleep(_POLL_SECONDS)
                self.tick()


def _trials_of(plan: Plan, alive: Mapping[str, Sequence[int]], steps: int) -> list[Trial]:
    """Return the runs of the settings that are alive, by environment."""
    trials = (plan.trial(number, steps) for number in range(plan.n_runs))
    return [trial for trial in trials if trial.variant in alive[trial.environment]]


def _next_rung(
    plan: Plan,
    stopping: SuccessiveHalving,
    alive: Mapping[str, Sequence[int]],
    steps: int,
    records: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[int]]:
    """Return the settings that go on after a rung, by environment."""
    scores: dict[str, dict[int, list[float]]] = {
        name: {variant: [] for variant in numbers} for name, numbers in alive.items()
    }
    for trial in _trials_of(plan, alive, steps):
        scores[trial.environment][trial.variant].append(score_of(records[trial.key], plan.varied))
    return {name: stopping.survivors(each) for name, each in scores.items()}


def _not_there(parcels: Sequence[Parcel], records: Mapping[str, Any]) -> list[Parcel]:
    """Return the parcels that hold a run without a record."""
    return [parcel for parcel in parcels if not all(trial.key in records for trial in parcel.trials)]
