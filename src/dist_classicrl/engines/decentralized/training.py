"""One call of `train` without a server in the data path: how a rank coordinates, learns, and takes over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dist_classicrl._words import START_AGAIN
from dist_classicrl.engines.decentralized.messages import RoundsCut
from dist_classicrl.engines.decentralized.part import PlayerPart
from dist_classicrl.engines.decentralized.patterns import ExchangePattern, pattern_for
from dist_classicrl.engines.decentralized.server import Coordinator
from dist_classicrl.engines.decentralized.stride import Stride
from dist_classicrl.engines.decentralized.worker import Player
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.link import settle_compression
from dist_classicrl.engines.roles.ordered import OrderedRoles
from dist_classicrl.engines.roles.participants import run_together
from dist_classicrl.engines.run import Run
from dist_classicrl.errors import RankLostError, SettingsError
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.shared import ServedTable
from dist_classicrl.tables.warm_up import warm_up_decentralized

logger = logging.getLogger(__name__)


def train(
    run: Run, group: Group | None, start: Setup | Entry | None, pattern: ExchangePattern | None = None
) -> Outcome:
    """Train with the other ranks, as `Engine.train` says; None: the pattern that the settings name."""
    if group is None or start is None:
        instead = 'topology="flat"' if pattern is None else 'placement="auto"'
        raise SettingsError(
            "Maps are exchanged between ranks, and this process trains alone. Start several, for instance "
            f"with `mpirun -n 4`, or write {instead}."
        )
    settle_compression(run, group, start)
    return run_together(partial(DecentralizedRoles, pattern=pattern), run, group, start)


class DecentralizedRoles(OrderedRoles[Player, Coordinator]):
    """What a rank may be where all learn, and exchange what they learned."""

    def __init__(self, run: Run, group: Group, rates: Rates, pattern: ExchangePattern | None) -> None:
        super().__init__(run, group, rates)
        self._pattern = pattern
        self._part = PlayerPart(run, group, rates, self._pattern_for, self.codec(), self._learner)

    def _learner(self) -> Learner:
        """Return this rank's learner, with the run's table as it is now."""
        return self.ready_learner(self.group.rank)

    def _pattern_for(self, hosts: Sequence[int]) -> ExchangePattern:
        """Return how ranks on these hosts exchange what they learned."""
        if self._pattern is not None:
            if not self._pattern.suits(hosts):
                raise self._unsuited(self._pattern, hosts)
            return self._pattern
        name, pattern = pattern_for(self.run.settings.exchange_pattern)
        if self.group.is_server:
            logger.info(
                "%d ranks on %d hosts exchange what they learned: %s.", len(hosts), len(set(hosts)), name
            )
        return pattern

    def _unsuited(self, pattern: ExchangePattern, hosts: Sequence[int]) -> SettingsError | RankLostError:
        """Return the error that says that the pattern is none for these ranks: where some were lost, that."""
        name, ranks = type(pattern).__name__, self.group.wire.size
        there = f"{len(hosts)} ranks on {len(set(hosts))} hosts"
        instead = 'topology="decentralized", which has patterns for any number'
        if len(hosts) < ranks:
            return RankLostError(
                f"The exchange pattern {name} does not suit the {there} that are left of {ranks}, as it says "
                f"itself. {START_AGAIN} Or write {instead}."
            )
        return SettingsError(
            f"The exchange pattern {name} does not suit {there}, as it says itself. Start as many as it "
            f"takes, or write {instead}."
        )

    def kernels(self) -> list[Callable[[], None]]:
        """See `Roles`."""
        learn, *_ = self.run.kernels(self.rates)
        return [learn, lambda: warm_up_decentralized(self.run.learner(self.rates, 1).table)]

    def compile(self, serves: bool) -> None:
        """See `Roles`: environments are made, which may take long."""
        warm_up_decentralized(self.run.learner(self.rates, 1).table)
        self._learner()

    def _first_cut(self) -> RoundsCut:
        run = self.run
        return RoundsCut(0, Stride.first(run.settings, run.source.simulator is not None))

    def worker(self, base: Base) -> Player:
        """See `Roles`."""
        run = self.run
        part = self._part
        part.use(self.board(max(0, base.version)))
        part.made, part.stride = 0, self._first_cut().stride
        return Player(self.group, part, base, watch=run.watch, wants_to_leave=run.wants_to_leave)

    def server(self, table: ServedTable, cut: RoundsCut | None = None) -> Coordinator:
        """See `Roles`; in place of one that was lost it goes on from `cut`."""
        run = self.run
        return Coordinator(
            self.group,
            table,
            run.policy,
            run.tally,
            run.reporter,
            run.told,
            saver=run.saver,
            part=self._part,
            cut=self._first_cut() if cut is None else cut,
            start=run.start,
            steps=run.steps,
            knows_all=cut is None,
        )

    def successor(self, worker: Player) -> Coordinator:
        """See `Roles`: it begins where its own table is."""
        cut = worker.cut
        if cut.tally is not None:
            self.run.tally.take_over(cut.tally)
        return self.server(self.board(worker.base.version + 1), replace(cut, tally=None))
