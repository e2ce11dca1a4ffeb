"""One call of `train` in the reproducible mode: how a rank serves, works, and takes over."""

from __future__ import annotations

from dist_classicrl.engines.loops import LearningOn, RoundLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.cores import knows_cores, settle_cores
from dist_classicrl.engines.roles.link import settle_compression
from dist_classicrl.engines.roles.participants import Roles, run_together
from dist_classicrl.engines.rounds.messages import RoundStart
from dist_classicrl.engines.rounds.part import RoundPart, carried_of
from dist_classicrl.engines.rounds.server import RoundServer, carriers, who_plays
from dist_classicrl.engines.rounds.worker import RoundWorker
from dist_classicrl.engines.run import Run
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.state import unstack_states
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.shared import ServedTable


def train(run: Run, group: Group, start: Setup | Entry) -> Outcome:
    """Train with the other ranks, as `Engine.train` says."""
    settle_compression(run, group, start)
    settle_cores(run, group, start, serves_only=not _may_repeat(run))
    return run_together(RoundRoles, run, group, start)


def _may_repeat(run: Run) -> bool:
    """Whether a round can be played again, since all that learners carry along is known to all ranks."""
    return run.source.simulator is not None and run.settings.replay_ratio == 0.0


class RoundRoles(Roles[RoundWorker, RoundServer]):
    """What a rank may be in the reproducible mode."""

    _first_part: RoundPart | None = None  # of who serves, if it plays one as long as all are there

    @property
    def _may_repeat(self) -> bool:
        return _may_repeat(self.run)

    @property
    def _head_may_play(self) -> bool:
        return self._may_repeat and knows_cores(self.run.told)

    def compile(self, serves: bool) -> None:
        """See `Roles`: who serves may play a part as well."""
        if not serves or not self._head_may_play:
            super().compile(serves)
            return
        for part in self.kernels():
            part()
        if carried := self._carries_first():
            self._first_part = self._part(carried)

    def _carries_first(self) -> list[int]:
        """Return the logical workers that this rank carries as long as all ranks are there."""
        run, group = self.run, self.group
        ranks = who_plays(run.settings, run.told, group, group.view.workers, self._may_repeat)
        return carried_of(group.rank, carriers(run.settings, ranks).values())

    def _begin_walkers(self, learner: Learner, numbers: list[int]) -> None:
        """Give the learner these logical workers as walkers, as the run begins with them."""
        self.run.add_walkers(learner, numbers)
        self.run.restore(learner, numbers, "rounds")

    def _part(self, carried: list[int]) -> RoundPart:
        """Return what this rank learns with, as the run begins with these logical workers."""
        run, learner = self.run, self.ready_learner()
        self._begin_walkers(learner, carried)
        return RoundPart(
            learner,
            lambda numbers: self._begin_walkers(learner, numbers),
            run.settings,
            run.start,
            run.steps,
            run.seed,
            self._may_repeat,
            codec=self.codec(),
            carried=carried,
        )

    def _part_of_server(self) -> RoundPart:
        first, self._first_part = self._first_part, None
        return self._part([]) if first is None else first

    def worker(self, base: Base) -> RoundWorker:
        """See `Roles`."""
        run, part = self.run, self._part(self._carries_first() if base.is_some else [])
        return RoundWorker(
            self.group, part, run.pace, base, watch=run.watch, wants_to_leave=run.wants_to_leave
        )

    def server(self, table: ServedTable, first: RoundStart | None = None) -> RoundServer:
        """See `Roles`; `first` is the round that it begins with."""
        run = self.run
        return RoundServer(
            self.group,
            table,
            run.policy,
            run.tally,
            run.reporter,
            run.told,
            settings=run.settings,
            start=run.start,
            steps=run.steps,
            saver=run.saver,
            first=RoundStart(run.pace, tally=run.tally.so_far(0.0)) if first is None else first,
            may_repeat=self._may_repeat,
            make_part=self._part_of_server if self._head_may_play else None,
            codec=self.codec(),
        )

    def successor(self, worker: RoundWorker) -> RoundServer:
        """See `Roles`: it begins the round anew that the worker is in."""
        run = self.run
        worker.check_may_repeat()
        run.values[:] = worker.part.learner.table.base
        run.counts[:] = worker.part.learner.table.visits
        if worker.round.tally is not None:
            run.tally.take_over(worker.round.tally)
        return self.server(self.board(worker.base.version + 1), worker.round)

    def learner_alone(self, server: RoundServer) -> LearningOn:
        """See `Roles`."""
        learner, n_workers = self.ready_learner(), self.run.settings.logical_workers
        self._begin_walkers(learner, list(range(n_workers)))
        if server.now_at.learners:
            for logical, state in enumerate(unstack_states(server.now_at.learners, n_workers)):
                learner.restore(logical, state)
        self.run.pace = server.now_at.pace
        return LearningOn(self.run, learner, RoundLoop, server.made, server.seconds, server.company)
