"""One call of `train` in the reproducible mode: how a rank serves, works, and takes over."""

from __future__ import annotations

from dist_classicrl.comm.compression import codec_for
from dist_classicrl.compression import name_of
from dist_classicrl.engines.loops import LearningOn, RoundLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.cores import settle_cores, with_cores
from dist_classicrl.engines.roles.link import settle_compression
from dist_classicrl.engines.roles.participants import Roles, run_together
from dist_classicrl.engines.rounds.messages import RoundStart
from dist_classicrl.engines.rounds.server import RoundServer, carriers
from dist_classicrl.engines.rounds.worker import RoundWorker
from dist_classicrl.engines.run import Run
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.state import unstack_states
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.shared import SharedTable


def train(run: Run, group: Group, start: Setup | Entry) -> Outcome:
    """Train with the other ranks, as `Engine.train` says."""
    settle_compression(run, group, start)
    settle_cores(run, group, start, serves_only=True)
    return run_together(RoundRoles, run, group, start)


class RoundRoles(Roles[RoundWorker, RoundServer]):
    """What a rank may be in the reproducible mode."""

    @property
    def _may_repeat(self) -> bool:
        # Then all that the learners carry along is known to all ranks.
        return self.run.source.simulator is not None and self.run.settings.replay_ratio == 0.0

    def _begin_walkers(self, learner: Learner, numbers: list[int]) -> None:
        """Give the learner these logical workers as walkers, as the run begins with them."""
        self.run.add_walkers(learner, numbers)
        self.run.restore(learner, numbers, "rounds")

    def worker(self, base: Base) -> RoundWorker:
        """See `Roles`."""
        run, settings = self.run, self.run.settings
        learner = self.ready_learner()
        worker = RoundWorker(
            self.group,
            learner,
            lambda numbers: self._begin_walkers(learner, numbers),
            settings,
            run.start,
            run.steps,
            run.seed,
            run.pace,
            self._may_repeat,
            base,
            codec=codec_for(name_of(settings.compression), run.values.size),
            watch=run.watch,
            wants_to_leave=run.wants_to_leave,
        )
        if base.is_some:
            carried_by = carriers(settings, with_cores(run.told, self.group, self.group.view.workers))
            mine = [logical for logical, rank in carried_by.items() if rank == self.group.rank]
            self._begin_walkers(learner, mine)
            worker.carried = mine
        return worker

    def server(self, table: SharedTable, first: RoundStart | None = None) -> RoundServer:
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
            codec=codec_for(name_of(run.settings.compression), run.values.size),
        )

    def successor(self, worker: RoundWorker) -> RoundServer:
        """See `Roles`: it begins the round anew that the worker is in."""
        run = self.run
        worker.check_may_repeat()
        run.values[:] = worker.learner.table.base
        run.counts[:] = worker.learner.table.visits
        if worker.round.tally is not None:
            run.tally.take_over(worker.round.tally)
        return self.server(SharedTable(run.values, run.counts, worker.base.version + 1), worker.round)

    def learner_alone(self, server: RoundServer) -> LearningOn:
        """See `Roles`."""
        learner, n_workers = self.ready_learner(), self.run.settings.logical_workers
        self._begin_walkers(learner, list(range(n_workers)))
        if server.now_at.learners:
            for logical, state in enumerate(unstack_states(server.now_at.learners, n_workers)):
                learner.restore(logical, state)
        self.run.pace = server.now_at.pace
        return LearningOn(self.run, learner, RoundLoop, server.made, server.seconds, server.company)
