"""One call of `train` in the asynchronous mode: how a rank serves, works, and takes over."""

from __future__ import annotations

from dist_classicrl.engines.loops import LearningOn, StepLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.participants import run_together
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.server.pacing import Pacer
from dist_classicrl.engines.server.server import Server
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.shared import SharedTable

_FIRST_LEASE_COMPILED = 20_000


def train(run: Run, group: Group, start: Setup | Entry) -> Outcome:
    """Train with the other ranks: see `run_together`."""
    return run_together(AsyncRoles, run, group, start)


class AsyncRoles:
    """What a rank may be in asynchronous training: see `Roles`."""

    def __init__(self, run: Run, group: Group, rates: Rates) -> None:
        self.learner: Learner | None = None
        self._run = run
        self._group = group
        self._rates = rates

    def _ready_learner(self) -> Learner:
        """Return this rank's learner, whose table is the run's as it is now."""
        run = self._run
        if self.learner is None:
            self.learner = run.learner(self._rates)
            run.add_walkers(self.learner, [self._group.rank])
        self.learner.table.load(run.values, run.counts)
        return self.learner

    def worker(self, base: Base) -> Worker:
        """Return a worker whose table is the run's, as new as `base`."""
        run, settings = self._run, self._run.settings
        learner = self._ready_learner()
        return Worker(
            self._group,
            learner,
            Pacer(settings, self._rates.workers, learner.quantum),
            PushWindow(learner.table, settings.prefetch_factor, base.version, base.term),
            settings.compression_threshold,
            run.seed,
            run.watch,
            run.generation,
            run.wants_to_leave,
            settings.on_error == "exclude",
            self._rates.set_workers,
        )

    def server(self, table: SharedTable, takes_over: bool = False) -> Server:
        """Return a server that begins with `table`; `takes_over`: the workers hand in what it lacks."""
        run, group = self._run, self._group
        # A step of an environment that is not compiled may take seconds.
        stepped = run.source.stepped
        first = _FIRST_LEASE_COMPILED if stepped is None else stepped.n_envs
        return Server(
            group,
            table,
            run.policy,
            run.tally,
            run.reporter,
            run.told,
            leases=LeaseBook(run.start, run.steps, group.view.workers, first, group.wire.now),
            saver=run.saver,
            takes_over=takes_over,
        )

    def successor(self, worker: Worker) -> Server:
        """Return a server that goes on with what this rank's worker has."""
        run = self._run
        handover = worker.hand_over(run.values, run.counts)
        done, applied = 0, {}
        if handover is not None:
            done, applied = handover.done, handover.applied
            run.tally.take_over(handover.tally)
        table = SharedTable(run.values, run.counts, worker.base.version + 1, applied)
        server = self.server(table, takes_over=True)
        server.leases.credit(done)
        for pushed in worker.kept:
            server.take_over(self._group.rank, pushed)
        return server

    def learner_alone(self, server: Server) -> LearningOn:
        """Return what learns in this process while the server has no workers."""
        learner = self._ready_learner()
        self._rates.set_workers(1)
        done = server.leases.done
        return LearningOn(self._run, learner, StepLoop, done, server.seconds, server.company)
