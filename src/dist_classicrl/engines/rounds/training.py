"""One call of `train` in the reproducible mode: how a rank serves, works, and takes over."""

from __future__ import annotations

from dist_classicrl.engines.loops import LearningOn, RoundLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.participants import run_together
from dist_classicrl.engines.rounds.messages import RoundStart
from dist_classicrl.engines.rounds.server import RoundServer, carriers
from dist_classicrl.engines.rounds.worker import RoundWorker
from dist_classicrl.engines.run import Run
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.state import unstack_states
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.shared import SharedTable


def train(run: Run, group: Group, start: Setup | Entry) -> Outcome:
    """Train with the other ranks: see `run_together`."""
    return run_together(RoundRoles, run, group, start)


class RoundRoles:
    """What a rank may be in the reproducible mode: see `Roles`."""

    def __init__(self, run: Run, group: Group, rates: Rates) -> None:
        self.learner: Learner | None = None
        self._run = run
        self._group = group
        self._rates = rates
        # Then all that the learners carry along is known to all ranks.
        self._may_repeat = run.source.simulator is not None and run.settings.replay_ratio == 0.0

    def _ready_learner(self) -> Learner:
        """Return this rank's learner, whose table is the run's as it is now."""
        if self.learner is None:
            self.learner = self._run.learner(self._rates)
        self.learner.table.load(self._run.values, self._run.counts)
        return self.learner

    def _begin_walkers(self, learner: Learner, numbers: list[int]) -> None:
        """Give the learner these logical workers as walkers, as the run begins with them."""
        self._run.add_walkers(learner, numbers)
        self._run.restore(learner, numbers, "rounds")

    def worker(self, base: Base) -> RoundWorker:
        """Return a worker whose table is the run's, as new as `base`."""
        run, settings = self._run, self._run.settings
        learner = self._ready_learner()
        worker = RoundWorker(
            self._group,
            learner,
            lambda numbers: self._begin_walkers(learner, numbers),
            settings,
            run.start,
            run.steps,
            run.seed,
            self._may_repeat,
            run.watch,
            run.wants_to_leave,
        )
        worker.start_from(base)
        if base.is_some:
            carried_by = carriers(settings, self._group.view.workers)
            mine = [logical for logical, rank in carried_by.items() if rank == self._group.rank]
            self._begin_walkers(learner, mine)
            worker.carried = mine
        return worker

    def server(self, table: SharedTable, first: RoundStart | None = None) -> RoundServer:
        """Return a server that begins with `table`, at a round's beginning."""
        run = self._run
        return RoundServer(
            self._group,
            table,
            run.policy,
            run.tally,
            run.reporter,
            run.told,
            settings=run.settings,
            start=run.start,
            steps=run.steps,
            saver=run.saver,
            first=RoundStart() if first is None else first,
            may_repeat=self._may_repeat,
        )

    def successor(self, worker: RoundWorker) -> RoundServer:
        """Return a server that begins the round anew that this rank's worker is in."""
        run = self._run
        worker.check_may_repeat()
        run.values[:] = worker.learner.table.base
        run.counts[:] = worker.learner.table.visits
        if worker.round.tally is not None:
            run.tally.take_over(worker.round.tally)
        return self.server(SharedTable(run.values, run.counts, worker.base.version + 1), worker.round)

    def learner_alone(self, server: RoundServer) -> LearningOn:
        """Return what plays rounds in this process while the server has no workers."""
        learner, n_workers = self._ready_learner(), self._run.settings.logical_workers
        self._begin_walkers(learner, list(range(n_workers)))
        if server.now_at.learners:
            for logical, state in enumerate(unstack_states(server.now_at.learners, n_workers)):
                learner.restore(logical, state)
        return LearningOn(self._run, learner, RoundLoop, server.made, server.seconds, server.company)
