"""One call of `train` in which all ranks of a host learn in the same rows."""

from __future__ import annotations

from functools import partial

from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.participants import run_together
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.server.messages import Handover
from dist_classicrl.engines.server.training import AsyncRoles
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.engines.sharded.host_memory import HostMemory, opened_later, share, share_rows
from dist_classicrl.engines.sharded.rows import Board, HostRows
from dist_classicrl.engines.sharded.server import HostServer
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.interleaved import InterleavedLearner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.rules import table_shape
from dist_classicrl.membership.admission import Entry
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.line_table import size_of
from dist_classicrl.tables.shared import ServedTable

_TOLD = "memory"


def train(run: Run, group: Group, start: Setup | Entry) -> Outcome:
    """Train with the other ranks of this host, as `Engine.train` says."""
    source, settings = run.source, run.settings
    shape = table_shape(settings.algorithm, source.n_states, source.n_actions)
    legal = None if source.simulator is None else source.simulator.legal
    dtype = run.values.dtype
    size = size_of(shape, dtype)
    large = run.large
    is_first = not isinstance(start, Entry) and start.is_head
    try:
        if isinstance(start, Entry):
            memory = opened_later(run.told[_TOLD], size)
            if large is not None:
                large.move_to(memory, is_first)
        else:
            _check_one_host(group)
            if large is None:
                memory = share(start, size)
            else:
                share_rows(large, start)
                memory = large.shared
    except BaseException:
        run.close(None)
        raise
    try:
        array = memory.array(is_taken=is_first) if large is None else large.memory
        run.rows = rows = HostRows(shape, dtype, legal, array)
        if large is not None:
            run.values, run.counts = large.rows.values, large.rows.counts
        elif is_first:
            rows.begin_with(run.values, run.counts)
        return run_together(partial(RowsRoles, memory=memory), run, group, start)
    finally:
        if large is None:
            memory.close()


def _check_one_host(group: Group) -> None:
    hosts = sorted({group.host_of(rank) for rank in group.view.members})
    if len(hosts) > 1:
        raise SettingsError(
            f'placement="sharded" needs all ranks on one host, and these are on {len(hosts)} '
            f'({", ".join(hosts)}). Start them on one, or write placement="replicated".'
        )


class RowsRoles(AsyncRoles):
    """What a rank may be where all learn in the same rows."""

    ramp_seconds = 0.0  # nobody learns from old news

    def __init__(self, run: Run, group: Group, rates: Rates, memory: HostMemory) -> None:
        super().__init__(run, group, rates)
        self._memory = memory
        assert run.rows is not None
        self._rows: HostRows = run.rows
        # Its clock is the count of the entry, which all learn in.
        rates.set_workers(1)

    def note_workers(self, workers: int) -> None:
        """See `AsyncRoles`: more walkers at a time begin later, and the clock stays."""
        if isinstance(self.learner, InterleavedLearner):
            self.learner.ranks = workers + 1

    def worker(self, base: Base) -> Worker:
        """See `Roles`."""
        worker = super().worker(base)
        self.note_workers(len(self.group.view.workers))
        return worker

    def board(self, version: int = 0, applied: dict[int, int] | None = None) -> Board:
        """See `AsyncRoles`."""
        board = Board(self._rows, self.run.values, self.run.counts, version, applied)
        self.run.lend(board.settle)
        return board

    def tree(self) -> None:
        """See `AsyncRoles`: no maps are sent that could go through one."""
        return

    def server(self, table: ServedTable, takes_over: bool = False) -> HostServer:
        """See `Roles`."""
        run, group = self.run, self.group
        run.told[_TOLD] = self._memory.told
        own = None
        if run.source.simulator is not None:
            own = self.ready_learner(group.rank)
            self.note_workers(len(group.view.workers))
        return HostServer(
            **self.serving(table, takes_over), own_learner=own, seed=run.seed, generation=run.generation
        )

    def handed_over(self, worker: Worker) -> Handover | None:
        """See `AsyncRoles`: the rows are there."""
        return worker.window.handover

    def take(self, final: Final) -> None:
        """See `Roles`: the rows are there."""
        self._rows.settle(self.run.values, self.run.counts)
