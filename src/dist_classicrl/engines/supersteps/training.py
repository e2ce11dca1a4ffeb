"""One call of `train` in supersteps: alone, or how a rank serves, works, and takes over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dist_classicrl.engines.local import training as local
from dist_classicrl.engines.loops import StepLoop
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.cores import settle_cores
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.ordered import OrderedRoles
from dist_classicrl.engines.roles.participants import run_together
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.sharded.host_memory import HostMemory, opened_later, share, share_rows
from dist_classicrl.engines.supersteps.desk import open_desk
from dist_classicrl.engines.supersteps.divided_rows import divide_rows
from dist_classicrl.engines.supersteps.divided_server import DividedServer
from dist_classicrl.engines.supersteps.messages import Cut
from dist_classicrl.engines.supersteps.part import (
    Part,
    WalkerCounts,
    can_be_in_memory,
    first_cut,
    shared_bytes,
)
from dist_classicrl.engines.supersteps.rows_server import RowsServer
from dist_classicrl.engines.supersteps.server import SuperstepServer
from dist_classicrl.engines.supersteps.table import GatheredTable, RowsInPlace
from dist_classicrl.engines.supersteps.worker import SuperstepWorker
from dist_classicrl.environments.trial import try_out
from dist_classicrl.errors import CutOffError, SettingsError, WorkerLeft
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.supersteps.row_share import can_be_in_place
from dist_classicrl.learning.supersteps.share import WALKERS
from dist_classicrl.learning.supersteps.stepped.share import WALKERS as STEPPED
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.shared import ServedTable

_TOLD = "memory"
_TOLD_ROWS = "rows"


def train(run: Run, group: Group | None, start: Setup | Entry | None) -> Outcome:
    """Train as `Engine.train` says."""
    is_stepped = run.source.stepped is not None
    run.walkers, run.logical = run.walkers or (STEPPED if is_stepped else WALKERS), None
    if group is None or start is None:
        run.source = run.source.with_envs(run.walkers)
        return local.train(run, make_loop=SuperstepLoop)
    memory: HostMemory | None = None
    try:
        try:
            _share_rows(run, group, start)
            settle_cores(run, group, start, serves_only=False)
            memory = _memory(run, group, start)
        except BaseException:
            run.close(None)
            raise
        array = None if memory is None else memory.array()
        shares_rows = memory is not None and not memory.is_a_file and run.large is None and _is_in_place(run)
        roles = partial(SuperstepRoles, memory=array, shares_rows=shares_rows)
        return run_together(roles, run, group, start)
    except WorkerLeft:
        if run.large is not None and run.large.desk is not None:
            run.large.desk.step_aside()
        raise
    finally:
        if memory is not None:
            memory.close()


def _share_rows(run: Run, group: Group, start: Setup | Entry) -> None:
    """Let all ranks have the rows of a table that is there once."""
    large = run.large
    if large is None:
        return
    if isinstance(start, Entry):
        _join_rows(large, group, run.told[_TOLD_ROWS])
    elif large.is_divided:
        assert run.read_table is not None  # where several ranks train there is one
        divide_rows(large, start, group.host_of, run.partition, run.table_from, run.read_table)
        open_desk(large, group, start)
    else:
        share_rows(large, start)
    run.told[_TOLD_ROWS] = large.shared.told
    run.rows = large.rows
    run.values, run.counts = large.rows.values, large.rows.counts


def _join_rows(large: LargeTable, group: Group, told: dict[str, Any]) -> None:
    """Let a rank that joins have the rows that its host has."""
    if large.is_in_use:  # since an earlier call: nobody else of this host has other memory
        return
    if large.is_divided:
        raise CutOffError(
            "This process cannot join: the table is divided between hosts, and it has no part of it."
        )
    large.move_to(opened_later(told, large.size), False)


def _memory(run: Run, group: Group, start: Setup | Entry) -> HostMemory | None:
    """Return the memory in which the ranks exchange walkers.

    None: they exchange messages, since they are on several hosts, or cannot have it.
    """
    if not can_be_in_memory(run):
        return None
    size, memory = shared_bytes(run, group.wire.size), None
    if isinstance(start, Entry):
        memory = None if (told := run.told[_TOLD]) is None else opened_later(told, size)
    elif len({group.host_of(rank) for rank in group.view.members}) == 1:
        with suppress(SettingsError):  # on all ranks alike
            memory = share(start, size, is_sparse=True)
    # It opens it again for a rank that joins, should it come to serve.
    run.told[_TOLD] = None if memory is None else memory.told
    return memory


def _is_in_place(run: Run) -> bool:
    """Whether walkers can stay where they are."""
    return can_be_in_place(run.problem(Rates(run.settings, 1)))


class SuperstepLoop(StepLoop):
    """Learns all steps alone; what is counted is exact, so that it is what any number of ranks count."""

    def __init__(self, run: Run, learner: Learner) -> None:
        super().__init__(run, learner)
        self._sums = WalkerCounts(run.tally, first_cut(run))

    @property
    def _whole(self) -> int:
        # Of stepped environments, too: a superstep ends where it does on many ranks.
        return self._learner.quantum

    def _take_totals(self) -> None:
        self._sums.enter(self._learner.totals.values)


class SuperstepRoles(OrderedRoles[SuperstepWorker, SuperstepServer]):
    """What a rank may be where all learn in supersteps."""

    def __init__(
        self, run: Run, group: Group, rates: Rates, memory: np.ndarray | None, shares_rows: bool
    ) -> None:
        super().__init__(run, group, rates)
        self._part = Part(run, group, rates, memory, shares_rows)
        # Its clock is the count of the entry, which one rank alone moves.
        rates.set_workers(1)

    def kernels(self) -> list[Callable[[], None]]:
        """See `Roles`; a game is tried out first."""
        if self.run.source.simulator is not None:
            try_out(self.run.source.simulator)
        return self._part.kernels()

    def compile(self, serves: bool) -> None:
        """See `Roles`: there is nothing besides, but environments are made, which may take long."""
        self._part.make_environments(self.group.view.members)

    def worker(self, base: Base) -> SuperstepWorker:
        """See `Roles`."""
        run, group = self.run, self.group
        return SuperstepWorker(
            group,
            self._part,
            first_cut(run),
            base,
            watch=run.watch,
            wants_to_leave=run.wants_to_leave,
        )

    def board(self, version: int = 0, applied: dict[int, int] | None = None) -> GatheredTable:
        """See `Roles`."""
        return (GatheredTable if self.run.large is None else RowsInPlace)(self.run, version)

    def server(self, table: ServedTable, cut: Cut | None = None) -> SuperstepServer:
        """See `Roles`; in place of one that was lost it goes on from `cut`."""
        run, group = self.run, self.group
        assert isinstance(table, GatheredTable)  # from `board`
        kind = SuperstepServer
        if run.large is not None:
            kind = DividedServer if run.large.is_divided else RowsServer
        knows_all, cut = cut is None, first_cut(run) if cut is None else cut
        return kind(
            group,
            table,
            run.policy,
            run.tally,
            run.reporter,
            run.told,
            saver=run.saver,
            part=self._part,
            cut=replace(cut, tally=run.tally.so_far(0.0)) if cut.tally is None else cut,
            start=run.start,
            knows_all=knows_all,
        )

    def successor(self, worker: SuperstepWorker) -> SuperstepServer:
        """See `Roles`: it begins where its own table is, or with a checkpoint of one that is there once."""
        if self.run.large is not None:
            return self.server(self.board(worker.begun_with.version + 1), first_cut(self.run))
        if worker.cut.tally is not None:
            self.run.tally.take_over(worker.cut.tally)
        return self.server(self.board(worker.begun_with.version + 1), worker.cut)

    def take(self, final: Final) -> None:
        """See `Roles`."""
        self._part.take(final.refresh)
