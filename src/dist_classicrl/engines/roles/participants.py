"""One call of `train` on many ranks: what each prepares, how it serves or works, and how it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from dist_classicrl.comm.transport import Channel
from dist_classicrl.engines.local.training import LearningOn
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.changes import Entry, take_part
from dist_classicrl.engines.roles.server_base import FIRST_ADMISSION, NobodyLeft, Serving
from dist_classicrl.engines.roles.shutdown import fail, tell_rescued, tell_stopped, wait_for_rescue
from dist_classicrl.engines.roles.worker_base import ServerLost
from dist_classicrl.engines.rounds.messages import RoundStart
from dist_classicrl.engines.rounds.server import RoundServer, carriers
from dist_classicrl.engines.rounds.worker import RoundWorker
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.saving import RESCUE_SECONDS
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.engines.server.pacing import Pacer
from dist_classicrl.engines.server.server import LAST_PUSH_SECONDS, Server
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.engines.server.worker import Worker
from dist_classicrl.errors import (
    CheckpointFencedError,
    CutOffError,
    RankLostError,
    RankTimeoutError,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.learning.state import stack_states, unstack_states
from dist_classicrl.membership.election import Base, Deposed
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.membership.heartbeat import Beat, Heartbeat
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.shared import SharedTable

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
_FIRST_LEASE_COMPILED = 20_000


def run_together(make_part: type[_Part], run: Run, group: Group, begin_from: Setup | Entry) -> Outcome:
    """Train on all ranks of `group`: one serves, the others learn, each with its part.

    The result and the table are the same everywhere. With an `Entry` this rank joins a call that the others
    have begun.

    Raises
    ------
    TrainingStopped
        On all ranks, if any was asked to stop; what all learned is on disk.
    WorkerLeft
        If this rank has left in good order.
    Deposed
        If the setup has to begin anew, with other members.
    """
    rates = Rates(run.settings, run.logical or max(1, len(group.view.workers)))
    part = make_part(run, group, rates)
    clean = False
    try:
        if isinstance(begin_from, Entry):
            part.begin_anew(begin_from)
        else:
            _prepare(part, begin_from)
        part.begin()
        try:
            result = take_part(part)
        except (TrainingStopped, WorkerLeft):
            clean = True
            raise
        except BaseException as caught:
            part.fail(caught)
            raise
        clean = True
    finally:
        part.close(_LINGER_SECONDS if clean else 0.0)
        run.close(part.learner)
    return result


def _prepare(part: _Part, setup: Setup) -> None:
    """Compile, together with all other ranks."""
    run, rates = part.run, part.rates
    begin = time.perf_counter()
    if rates.table is not None:
        setup.broadcast(rates.table, "the server's step sizes")
    error: BaseException | None = None

    def prepare(first: bool) -> None:
        nonlocal error
        try:
            run.compile(rates, setup.is_head, first)
            if not setup.is_head:
                part.prepare_worker(Base(setup.term, 0))
        except BaseException as caught:  # whatever it is, the others must hear of it
            error = caught

    setup.compile_in_turn(prepare)
    compiled = int((time.perf_counter() - begin) * 1e6)
    part.compile_seconds = int(setup.agree(error, {}, [compiled])[:, 0].max()) / 1e6


class _Part:
    """A rank's part in a call of `train`, as a server or as a worker: what both modes have in common.

    Parameters
    ----------
    run : Run
    group : Group
    rates : Rates
    """

    worker: Worker | RoundWorker | None
    server: Server | RoundServer | None

    def __init__(self, run: Run, group: Group, rates: Rates) -> None:
        self.run = run
        self.group = group
        self.rates = rates
        self.compile_seconds = 0.0
        self.learner: Learner | None = None
        self.worker = None
        self.server = None
        self._members: set[int] = set()  # of the view that was
        self._begun = group.wire.now()
        self._earlier = run.tally.earlier_seconds
        self._result: dict[str, Any] | None = None  # of a server that was lost at the very end

    # What the modes do

    def prepare_worker(self, base: Base) -> None:
        """Make what a worker needs, compiled. Its table is the run's, as new as `base`."""
        raise NotImplementedError

    def make_server(self, table: SharedTable) -> Server | RoundServer:
        """Return a server that begins with `table`."""
        raise NotImplementedError

    def make_successor(self) -> Server | RoundServer:
        """Return a server that goes on with what this rank's worker has."""
        raise NotImplementedError

    def learn_alone(self) -> None:
        """Learn in this process while the server has no workers."""
        raise NotImplementedError

    def hand_in(self, admission: int) -> None:
        """Make ready to work for the server of a new view, which gets what it lacks."""
        raise NotImplementedError

    def join(self, entry: Entry) -> None:
        """Make ready to work for a server that took this rank for lost."""
        raise NotImplementedError

    @property
    def learning(self) -> int:
        """How many ranks learn."""
        raise NotImplementedError

    # Roles

    def begin(self) -> None:
        """Count the time of training from now on."""
        self._begun = self.group.wire.now()

    @property
    def base(self) -> Base:
        """How new what this rank holds is."""
        return Base() if self.worker is None else self.worker.base

    def work(self) -> Outcome:
        """Work to the end."""
        run, worker = self.run, self.worker
        assert worker is not None
        if worker.is_new:
            worker.follow(FIRST_ADMISSION)
        with _heard(self.group, lambda: worker.channels, worker.beat):
            try:
                final = worker.run()
            except (ServerLost, Deposed):
                if not self.group.is_replacement:
                    raise
                final = None
        if final is None or self.group.is_replacement:
            raise WorkerLeft(self.group.rank)
        run.values[:] = final.refresh.values
        run.counts[:] = final.refresh.counts
        return Outcome.from_dict(final.result)

    def step_down(self) -> None:
        """Have nothing more to do with the view that was."""
        self._members = set(self.group.view.members)
        if self.server is not None:
            self.server.close(0.0)
            self.server = None
            if self.run.saver is not None:
                self.run.saver.stop()
                self.run.saver = None
        elif self.worker is not None:
            self.worker.give_up_server()

    def release(self) -> None:
        """Take it that all others have the result, as this rank has."""
        assert self.worker is not None
        self.worker.was_released = True

    def take_over(self) -> None:
        """Make ready to serve, from the base and what it lacks."""
        run, group, worker = self.run, self.group, self.worker
        assert worker is not None
        if worker.final is not None:  # the lost server has saved all before it said so
            refresh, self._result = worker.final.refresh, worker.final.result
            run.tally.end_as(self._result)
            run.values[:] = refresh.values
            run.counts[:] = refresh.counts
            self.server = self.make_server(SharedTable(run.values, run.counts, refresh.version))
        else:
            run.saver = None if run.take_over_saving is None else run.take_over_saving()
            self.server = self.make_successor()
            # The time without a server counts as well.
            passed = self._earlier + group.wire.now() - self._begun
            run.tally.earlier_seconds = max(run.tally.earlier_seconds, passed)
        self.worker = None
        for rank in sorted(self._members - set(group.view.members)):
            why = "it had no part in the election"
            self.server.note("excluded", rank, detail=why)
            self.server.lost_before.append((rank, why))
        self.server.note("failover", group.rank, detail=f"term {group.view.term}")
        self.server.announce_events()

    def begin_anew(self, entry: Entry) -> None:
        """Make ready to work for a server that took this rank for lost, or never knew it."""
        group = self.group
        if self.worker is None:
            # That takes time, and the server knows this rank already.
            with _heard(group, lambda: [entry.channel], lambda: Beat(0, group.view.key)):
                self.prepare_worker(Base())
        self.join(entry)

    # Serving

    def serve(self) -> Outcome:
        """Serve to the end."""
        run = self.run
        if self.server is None:
            self.server = self.make_server(SharedTable(run.values, run.counts))
            lost = [event for event in self.group.events.entries if event["kind"] == "excluded"]
            self.server.lost_before += [(event["rank"], event["detail"]) for event in lost]
        server = self.server
        with _heard(self.group, lambda: server.channels, server.beat):
            server.begin_reports()
            if self._result is None:
                return self._serve(server)
            server.finish(self._result)
            return Outcome.from_dict(self._result)

    def _serve(self, server: Server | RoundServer) -> Outcome:
        run, saver = self.run, self.run.saver
        stop: Stop | None = None
        try:
            while True:
                try:
                    stop = server.run()
                    break
                except NobodyLeft:
                    if run.reporter.wants_end:
                        continue
                    logger.warning("No worker is left: rank %d goes on alone.", self.group.rank)
                    self.learn_alone()
        except CheckpointFencedError:
            server.await_successor()
            raise
        except TrainingStopped:
            raise
        except Exception:
            if saver is not None and isinstance(server, Server):
                run.rescue = partial(saver.rescue, run.values, run.counts, server.position, server.keep_alive)
            raise
        finally:
            run.kept = server.position.steps - run.start
        seconds = server.seconds
        if stop is not None and saver is not None:
            run.rescue = partial(saver.rescue, run.values, run.counts, server.position, server.keep_alive)
            server.report_progress(now=True)
            run.rescue = None
            where = saver.save_last(run.values, run.counts, server.position, server.keep_alive)
            run.reporter.hear(self.group.events, saver)
            self._end_all(server, stop, where)
        group = self.group
        away = set(range(group.wire.size)) - set(group.view.members)
        result = run.tally.result(seconds, self.compile_seconds, self.learning, group.events, away)
        where = None
        if saver is not None:
            where = saver.finish(run.values, run.counts, server.position, result, server.keep_alive)
        server.report_end(seconds)  # after saving: the callbacks may raise
        stop = None if saver is None else saver.asked_to_stop
        if stop is not None:  # too late for this call, but not for what the script does next
            self._end_all(server, stop, where)
        server.finish(result.to_dict())
        return result

    def _end_all(self, server: Serving, stop: Stop, checkpoint: str | None) -> NoReturn:
        error = self.run.stopped(stop, checkpoint)
        tell_stopped(self.group.wire, server.channels, stop, error, LAST_PUSH_SECONDS)
        raise error

    def _run_alone(self, alone: LearningOn) -> None:
        assert self.server is not None
        try:
            alone.run_all()
        except TrainingStopped as stopped:
            stop = Stop(int(stopped.code or 0), stopped.reason)
            tell_stopped(self.group.wire, self.server.channels, stop, stopped, 0.0)
            raise
        finally:
            self.server.has_made(alone.made)

    # Ends

    def fail(self, error: BaseException) -> None:
        """Tell the others of an error, after what there is is on disk: who hears of it may end the job."""
        run = self.run
        if run.rescue is not None:
            run.rescue()
        if self.server is not None:
            fail(self.server.channels, error, self.group.rank, run.settings.timeout)
            tell_rescued(self.server.channels)
        elif self.worker is not None and not self.worker.is_new:
            channel = self.worker.channel
            fail([channel], error, self.group.rank, run.settings.timeout)
            alone = isinstance(error, (RankTimeoutError, CutOffError, KeyboardInterrupt))
            if run.watch is not None and not alone:
                wait_for_rescue(channel, RESCUE_SECONDS)

    def close(self, linger: float) -> None:
        """Close all channels."""
        if self.server is not None:
            self.server.close(linger)
        if self.worker is not None and not self.worker.is_new:
            self.worker.channel.close(linger)


class AsyncPart(_Part):
    """A rank's part in asynchronous training."""

    worker: Worker | None
    server: Server | None

    def prepare_worker(self, base: Base) -> None:
        """See `_Part`."""
        run, group = self.run, self.group
        settings = run.settings
        learner = self._ready_learner()
        self.worker = Worker(
            group,
            learner,
            Pacer(settings, self.rates.workers, learner.quantum),
            PushWindow(learner.table, settings.prefetch_factor, base.version, base.term),
            settings.compression_threshold,
            run.seed,
            run.watch,
            run.generation,
            run.wants_to_leave,
            settings.on_error == "exclude",
            self.rates.set_workers,
        )

    def _ready_learner(self) -> Learner:
        """Return this rank's learner, whose table is the run's as it is now."""
        run = self.run
        if self.learner is None:
            self.learner = run.learner(self.rates)
            run.add_walkers(self.learner, [self.group.rank])
        self.learner.table.load(run.values, run.counts)
        return self.learner

    def make_server(self, table: SharedTable, takes_over: bool = False) -> Server:
        """See `_Part`."""
        run, group = self.run, self.group
        # A step of an environment that is not compiled may take seconds.
        stepped = run.source.stepped
        first = _FIRST_LEASE_COMPILED if stepped is None else stepped.n_envs
        leases = LeaseBook(run.start, run.steps, group.view.workers, first, group.wire.now)
        return Server(
            group,
            table,
            run.policy,
            run.tally,
            run.reporter,
            run.told,
            leases=leases,
            saver=run.saver,
            takes_over=takes_over,
        )

    def make_successor(self) -> Server:
        """See `_Part`."""
        run, worker = self.run, self.worker
        assert worker is not None
        handover = worker.hand_over(run.values, run.counts)
        done, applied = 0, {}
        if handover is not None:
            done, applied = handover.done, handover.applied
            run.tally.take_over(handover.tally)
        table = SharedTable(run.values, run.counts, worker.base.version + 1, applied)
        server = self.make_server(table, takes_over=True)
        server.leases.credit(done)
        for pushed in worker.kept:
            server.take_over(self.group.rank, pushed)
        return server

    def hand_in(self, admission: int) -> None:
        """See `_Part`."""
        assert self.worker is not None
        self.worker.hand_in(admission)

    def join(self, entry: Entry) -> None:
        """See `_Part`."""
        assert self.worker is not None
        self.worker.begin_anew(entry.channel, entry.sequence)

    @property
    def learning(self) -> int:
        """See `_Part`."""
        return 1 if self.server is None else max(1, len(self.server.workers))

    def learn_alone(self) -> None:
        """See `_Part`."""
        server = self.server
        assert server is not None
        learner = self._ready_learner()
        self.rates.set_workers(1)
        done, seconds = server.leases.done, server.seconds
        self._run_alone(LearningOn.steps(self.run, learner, done, seconds, server.company))


class RoundsPart(_Part):
    """A rank's part in the reproducible mode."""

    worker: RoundWorker | None
    server: RoundServer | None

    @property
    def _may_repeat(self) -> bool:
        # Then all that the learners carry along is known to all ranks.
        return self.run.source.simulator is not None and self.run.settings.replay_ratio == 0.0

    def prepare_worker(self, base: Base) -> None:
        """See `_Part`."""
        run, settings = self.run, self.run.settings
        learner = self._ready_learner()
        self.worker = RoundWorker(
            self.group,
            learner,
            self._begin_walkers,
            settings,
            run.start,
            run.steps,
            run.seed,
            self._may_repeat,
            run.watch,
            run.wants_to_leave,
        )
        self.worker.start_from(base)
        if base.is_some:
            carried_by = carriers(settings, self.group.view.workers)
            mine = [logical for logical, rank in carried_by.items() if rank == self.group.rank]
            self._begin_walkers(mine)
            self.worker.carried = mine

    def _ready_learner(self) -> Learner:
        """Return this rank's learner, whose table is the run's as it is now."""
        if self.learner is None:
            self.learner = self.run.learner(self.rates)
        self.learner.table.load(self.run.values, self.run.counts)
        return self.learner

    def _begin_walkers(self, numbers: list[int]) -> None:
        """Give the learner these logical workers as walkers, as the run begins with them."""
        assert self.learner is not None
        self.run.add_walkers(self.learner, numbers)
        self.run.restore(self.learner, numbers, "rounds")

    def make_server(self, table: SharedTable, first: RoundStart | None = None) -> RoundServer:
        """See `_Part`."""
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
            first=RoundStart() if first is None else first,
            may_repeat=self._may_repeat,
        )

    def make_successor(self) -> RoundServer:
        """See `_Part`."""
        run, worker = self.run, self.worker
        assert worker is not None
        self._check_may_repeat()
        run.values[:] = worker.learner.table.base
        run.counts[:] = worker.learner.table.visits
        if worker.round.tally is not None:
            run.tally.take_over(worker.round.tally)
        table = SharedTable(run.values, run.counts, worker.base.version + 1)
        return self.make_server(table, worker.round)

    def hand_in(self, admission: int) -> None:
        """See `_Part`."""
        assert self.worker is not None
        self._check_may_repeat()
        self.worker.follow(admission)

    def _check_may_repeat(self) -> None:
        if not self._may_repeat:
            raise RankLostError(
                "The server is lost, and the state of environments or replay memories in the middle of a "
                "round cannot be put back, which the reproducible mode cannot do without. Start the job "
                "again, best with `python -m dist_classicrl launch`: it goes on from the last checkpoint."
            )

    def join(self, entry: Entry) -> None:
        """See `_Part`."""
        assert self.worker is not None
        self.worker.start_from(Base())
        self.worker.follow_on(entry.channel)

    @property
    def learning(self) -> int:
        """See `_Part`."""
        workers = 1 if self.server is None else max(1, len(self.server.workers))
        return min(workers, self.run.settings.logical_workers)

    def learn_alone(self) -> None:
        """See `_Part`."""
        run, server = self.run, self.server
        assert server is not None
        learner, numbers = self._ready_learner(), list(range(run.settings.logical_workers))
        self._begin_walkers(numbers)
        if server.now_at.learners:
            for logical, state in enumerate(unstack_states(server.now_at.learners, len(numbers))):
                learner.restore(logical, state)
        self._run_alone(LearningOn.rounds(run, learner, server.made, server.seconds, server.company))
        server.now_at = replace(server.now_at, learners=stack_states([learner.state(n) for n in numbers]))


@contextmanager
def _heard(group: Group, channels: Callable[[], list[Channel]], beat: Callable[[], Beat]) -> Iterator[None]:
    """Let a thread say that this rank is there, where the MPI library allows threads."""
    if not group.wire.has_threads:
        yield
        return
    with Heartbeat(group.timing.interval, group.wire.now, channels, beat):
        yield
