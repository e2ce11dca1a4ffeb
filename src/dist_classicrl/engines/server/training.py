"""One call of `train` in the asynchronous mode: how a rank serves, works, and takes over."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from dist_classicrl.compression import Carry
from dist_classicrl.engines.loops import LearningOn, StepLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.link import settle_compression
from dist_classicrl.engines.roles.participants import Roles, run_together
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.server.messages import Handover
from dist_classicrl.engines.server.pacing import Pacer
from dist_classicrl.engines.server.server import Server
from dist_classicrl.engines.server.tree import Tree
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.settings import BY_STALENESS
from dist_classicrl.tables.merging import Merging
from dist_classicrl.tables.shared import ServedTable
from dist_classicrl.tables.warm_up import warm_up_node_server

logger = logging.getLogger(__name__)

_FIRST_LEASE_COMPILED = 20_000
_RAMP_SECONDS = 0.5


def train(run: Run, group: Group, start: Setup | Entry) -> Outcome:
    """Train with the other ranks, as `Engine.train` says."""
    settle_compression(run, group, start)
    return run_together(AsyncRoles, run, group, start)


class AsyncRoles(Roles[Worker, Server]):
    """What a rank may be in asynchronous training."""

    ramp_seconds: ClassVar = _RAMP_SECONDS
    """In which all workers come to learn, see `LeaseBook`."""

    def worker(self, base: Base) -> Worker:
        """See `Roles`."""
        run, settings = self.run, self.run.settings
        learner = self.ready_learner(self.group.rank)
        if self.tree() is not None:
            warm_up_node_server(learner.table)
        pacer = Pacer(settings, self.rates.workers, learner.quantum, run.tally.total_steps)
        self.say_short_pushes(pacer.interval, learner.quantum)
        return Worker(
            self.group,
            learner,
            pacer,
            PushWindow(learner.table, settings.prefetch_factor, base.version, base.term),
            Carry.of(settings.compression, settings.compression_threshold),
            run.seed,
            run.generation,
            settings.on_error == "exclude",
            None if settings.merging == "reject_stale" else settings.max_staleness,
            self.note_workers,
            codec=self.codec(),
            merging=self.merging,
            watch=run.watch,
            wants_to_leave=run.wants_to_leave,
        )

    def say_short_pushes(self, interval: int, quantum: int) -> None:
        """Log where pushes are asked for so often that a card mostly waits for them."""
        frequency = self.run.settings.sync_frequency
        if self.run.card is not None and frequency != "auto" and interval < quantum:
            logger.warning(
                "sync_frequency=%s lets rank %d push after %s steps, and for each push the table goes to %s "
                'and back, where a round may have %s steps. Write sync_frequency="auto", or a larger number.',
                frequency,
                self.group.rank,
                f"{interval:,}",
                self.run.card,
                f"{quantum:,}",
            )

    @property
    def merging(self) -> Merging:
        """How pushes are put into the table."""
        settings = self.run.settings
        return Merging(settings.merging, settings.max_staleness or 0)

    def board(self, version: int = 0, applied: dict[int, int] | None = None) -> ServedTable:
        """See `Roles`."""
        table = super().board(version, applied)
        table.merging = self.merging
        return table

    def note_workers(self, workers: int) -> None:
        """Learn as one of so many."""
        self.rates.set_workers(workers)

    def server(self, table: ServedTable, takes_over: bool = False) -> Server:
        """See `Roles`; `takes_over`: the workers hand in what the table lacks."""
        return Server(**self.serving(table, takes_over))

    def serving(self, table: ServedTable, takes_over: bool) -> dict[str, Any]:
        """Return the arguments of a server."""
        run, group = self.run, self.group
        # A step of an environment that is not compiled may take seconds.
        stepped = run.source.stepped
        first = _FIRST_LEASE_COMPILED if stepped is None else stepped.n_envs
        return {
            "group": group,
            "table": table,
            "policy": run.policy,
            "tally": run.tally,
            "reporter": run.reporter,
            "told": run.told,
            "leases": LeaseBook(
                run.start,
                run.steps,
                group.view.workers,
                first,
                group.wire.now,
                self.ramp_seconds,
                run.reporter.steps_foreseen,
            ),
            "saver": run.saver,
            "takes_over": takes_over,
            "codec": self.codec(),
            "carry": Carry.of(run.settings.compression),
            "tree": self.tree(),
            "may_be_flat": run.settings.topology == "auto",
            "max_staleness": run.settings.max_staleness,
        }

    def tree(self) -> Tree | None:
        """Return how ranks are grouped; None: all push to the server."""
        group, settings = self.group, self.run.settings
        if settings.topology == "flat":
            return None
        if settings.merging in BY_STALENESS:  # "auto": Settings refuse a tree
            if group.is_server:
                logger.info(
                    'Maps go to the server directly: merging="%s" has to know how stale each push is.',
                    settings.merging,
                )
            return None
        if settings.tree_group_size is not None:
            return Tree.of_groups(settings.tree_group_size, group.wire.size)
        return Tree.by_host(group.host_of)

    def successor(self, worker: Worker) -> Server:
        """See `Roles`."""
        run = self.run
        handover = self.handed_over(worker)
        done, applied = 0, {}
        if handover is not None:
            done, applied = handover.done, handover.applied
            run.tally.take_over(handover.tally)
        server = self.server(self.board(worker.base.version + 1, applied), takes_over=True)
        server.leases.credit(done)
        for pushed in worker.window.kept:
            server.apply_if_lacking(self.group.rank, pushed)
        return server

    def handed_over(self, worker: Worker) -> Handover | None:
        """Let the run's table be the worker's base, and return the handover of that version."""
        return worker.hand_over(self.run.values, self.run.counts)

    def learner_alone(self, server: Server) -> LearningOn:
        """See `Roles`."""
        learner = self.ready_learner(self.group.rank)
        self.rates.set_workers(1)
        done = server.leases.done
        return LearningOn(self.run, learner, StepLoop, done, server.seconds, server.company)
