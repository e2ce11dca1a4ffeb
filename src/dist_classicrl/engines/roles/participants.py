"""One call of `train` on many ranks: what each prepares, how it serves or works, and how that changes."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from dist_classicrl._words import name_of
from dist_classicrl.comm.compression import Codec, codec_for
from dist_classicrl.comm.transport import Channel
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.outcome import Outcome
from dist_classicrl.engines.roles.messages import Final
from dist_classicrl.engines.roles.server_base import NobodyLeft, Serving
from dist_classicrl.engines.roles.shutdown import (
    LAST_PUSH_SECONDS,
    fail,
    tell_rescued,
    tell_stopped,
    wait_for_rescue,
)
from dist_classicrl.engines.roles.worker_base import ServerLost, Working
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.saving import RESCUE_SECONDS, Position, Saver
from dist_classicrl.errors import (
    CheckpointFencedError,
    CutOffError,
    DivergenceError,
    RankTimeoutError,
    StateLimitError,
    TrainingStopped,
    WorkerLeft,
)
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.rates import Rates
from dist_classicrl.membership.admission import FIRST_ADMISSION, Entry, join
from dist_classicrl.membership.election import Base, Deposed, Election, Settled
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.membership.heartbeat import Beat, heartbeat
from dist_classicrl.membership.view import View
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.shared import ServedTable, SharedTable

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0

W = TypeVar("W", bound=Working)
S = TypeVar("S", bound=Serving[Any])
P = TypeVar("P", bound=Working | Serving[Any])


@dataclass(eq=False)
class Roles(ABC, Generic[W, S]):
    """What a rank may be in an engine, made when it comes to that."""

    run: Run
    group: Group
    rates: Rates
    learner: Learner | None = field(default=None, init=False)  # its worker's, once there is one

    @abstractmethod
    def worker(self, base: Base) -> W:
        """Return a worker, compiled, whose table is the run's, as new as `base`."""

    def board(self, version: int = 0, applied: dict[int, int] | None = None) -> ServedTable:
        """Return the run's table for a server: its version, and the last push of each rank in it."""
        return SharedTable(self.run.values, self.run.counts, version, applied)

    def codec(self) -> Codec:
        """Return what writes and reads the messages of maps and refreshes."""
        return codec_for(name_of(self.run.settings.compression), self.run.values.size)

    def take(self, final: Final) -> None:
        """Let the run's table be the final one."""
        self.run.take(final.refresh)

    def kernels(self) -> list[Callable[[], None]]:
        """Return what compiles what ranks call, see `Run.kernels`."""
        return self.run.kernels(self.rates)

    def compile(self, serves: bool) -> None:
        """Compile what this rank calls besides."""
        self.run.compile(self.rates, serves)

    @abstractmethod
    def server(self, table: ServedTable) -> S:
        """Return a server that begins with `table`."""

    @abstractmethod
    def successor(self, worker: W) -> S:
        """Return a server that goes on with what this rank's worker has."""

    @abstractmethod
    def learner_alone(self, server: S) -> LearningOn:
        """Return what learns in this process while the server has no workers."""

    def ready_learner(self, *walkers: int) -> Learner:
        """Return this rank's learner, whose table is the run's as it is now; a new one has these walkers."""
        run = self.run

        def make() -> Learner:
            self.learner = run.learner(self.rates)
            if walkers:
                run.add_walkers(self.learner, list(walkers))
            return self.learner

        learner = run.on_card_or_cores(make) if self.learner is None else self.learner
        learner.table.load(run.values, run.counts)
        return learner


def run_together(
    make_roles: Callable[[Run, Group, Rates], Roles[W, S]], run: Run, group: Group, start: Setup | Entry
) -> Outcome:
    """Train on all ranks of `group`: one serves, the others learn.

    The result and the table are the same everywhere. With an `Entry` this rank joins a call that the others
    have begun.

    `TrainingStopped` is raised on all ranks if any was asked to stop; what all learned is on disk then.
    `WorkerLeft` is raised if this rank has left in good order, and `Deposed` if the setup has to begin anew,
    with other members.
    """
    rates = Rates(run.settings, run.logical or max(1, len(group.view.workers)))
    participant = Participant(make_roles(run, group, rates))
    clean = False
    try:
        if isinstance(start, Entry):
            participant.begin_anew(start)
        else:
            participant.prepare(start)
        try:
            result = participant.take_part()
        except (TrainingStopped, WorkerLeft):
            clean = True
            raise
        except BaseException as caught:
            participant.fail(caught)
            raise
        clean = True
    finally:
        participant.close(_LINGER_SECONDS if clean else 0.0)
    return result


class Participant(Generic[W, S]):
    """A rank in a call of `train`, as a server or as a worker: its `roles` are the engine's."""

    def __init__(self, roles: Roles[W, S]) -> None:
        self.run = run = roles.run
        self.group = group = roles.group
        self._roles = roles
        self._worker: W | None = None
        self._server: S | None = None
        self._compile_seconds = 0.0
        self._at_first: tuple[int, ...] = ()  # the members as training began, or as this rank joined
        self._begun = group.wire.now()
        self._earlier = run.tally.earlier_seconds
        self._final: Final | None = None  # of a server that was lost at the very end
        run.made.append(roles)

    def _noted(self, made: P) -> P:
        """Return a server or a worker, whose parts refer to it, as what was made for this call."""
        self.run.made.append(made)
        return made

    def prepare(self, setup: Setup) -> None:
        """Compile, together with all other ranks."""
        rates = self._roles.rates
        begin = time.perf_counter()
        if rates.table is not None:
            setup.broadcast(rates.table, "the server's step sizes")
        error: BaseException | None = None

        def noting(part: Callable[[], None]) -> None:
            nonlocal error
            try:
                if error is None:
                    part()
            except BaseException as caught:  # whatever it is, the others must hear of it
                error = caught

        def own() -> None:
            self._roles.compile(setup.is_head)
            if not setup.is_head:
                self._worker = self._noted(self._roles.worker(Base(setup.term, 0)))

        kernels: list[Callable[[], None]] = []
        noting(lambda: kernels.extend(self._roles.kernels()))
        setup.compile_together([partial(noting, part) for part in kernels])
        noting(own)
        compiled = int((time.perf_counter() - begin) * 1e6)
        try:
            self._compile_seconds = int(setup.agree(error, {}, [compiled])[:, 0].max()) / 1e6
        finally:
            error = None  # see `Alone.agree`

    # Roles

    def take_part(self) -> Outcome:
        """Serve or work until the call is done, through all changes of the server.

        A `CutOffError` is raised if too few ranks are heard to go on, or the run ended without this rank.
        """
        group = self.group
        self._begun = group.wire.now()
        self._at_first = group.view.members
        self.run.begin()
        while True:
            try:
                return self.serve() if group.is_server else self.work(self.at_work)
            except ServerLost as why:
                self._leave_old_view()
                lost = group.view
                logger.debug("Rank %d lost the server, rank %d: %s.", group.rank, lost.server, why)
                try:
                    view = Election(group, self.at_work.base).run()
                except Settled:  # all others have the result, as this rank has
                    self.at_work.was_released = True
                    return self.work(self.at_work)
                if view.term == lost.term:  # the others still hear it
                    self.begin_anew(join(group))
                    continue
            except Deposed as deposed:
                self._leave_old_view()
                view = deposed.view
            self._enter(view)

    @property
    def at_work(self) -> W:
        """What this rank works with."""
        if self._worker is None:
            raise RuntimeError(f"Rank {self.group.rank} is to work, and has nothing to work with.")
        return self._worker

    def _leave_old_view(self) -> None:
        """Leave the old view: as its server, or as one of its workers."""
        if self._server is not None:
            self._server.close(0.0)
            self._server = None
            self.run.reporter.pause()
            if self.run.saver is not None:
                self.run.saver.stop()
                self.run.saver = None
        elif self._worker is not None:
            self._worker.give_up_server()

    def _enter(self, view: View) -> None:
        """Take the role that a new view gives this rank."""
        if self.group.rank not in view.members:
            self.begin_anew(join(self.group))
        elif view.server == self.group.rank:
            self._server = self._noted(self._take_over(self.at_work))
            self._worker = None
            self._server.members.begin_in_place_of(self._at_first)
        else:
            self.at_work.hand_in(FIRST_ADMISSION)

    def _take_over(self, worker: W) -> S:
        """Return the server that goes on from the base and what it lacks."""
        run = self.run
        if worker.final is not None:  # the lost server has saved all before it said so
            self._final = worker.final
            run.tally.end_as(self._final.result)
            self._roles.take(self._final)
            return self._roles.server(self._roles.board(self._final.refresh.version))
        run.saver = None if run.take_over_saving is None else run.take_over_saving()
        server = self._roles.successor(worker)
        # The time without a server counts as well.
        passed = self._earlier + self.group.wire.now() - self._begun
        run.tally.earlier_seconds = max(run.tally.earlier_seconds, passed)
        return server

    def begin_anew(self, entry: Entry) -> None:
        """Make ready to work for a server that took this rank for lost, or never knew it."""
        group = self.group
        if self._worker is None:
            # That takes time, and the server knows this rank already.
            with _heard(group, lambda: [entry.channel], lambda: Beat(0, group.view.key)):
                self._worker = self._noted(self._roles.worker(Base()))
        self._worker.final = None  # the server may learn on, or else tells the end again
        self._worker.begin_anew(entry.channel, entry.sequence)

    # Working

    def work(self, worker: W) -> Outcome:
        """Work to the end."""
        if worker.is_new:
            worker.follow(FIRST_ADMISSION)
        with _heard(self.group, lambda: worker.channels, worker.beat):
            try:
                final = worker.run()
            except (ServerLost, Deposed) as why:
                if not self.group.is_replacement:
                    raise
                logger.warning("Rank %d, a replacement, ends: %s.", self.group.rank, why)
                final = None
        if final is None or self.group.is_replacement:
            raise WorkerLeft(self.group.rank)
        self._roles.take(final)
        return Outcome.from_dict(final.result)

    # Serving

    def serve(self) -> Outcome:
        """Serve to the end."""
        run, server = self.run, self._server
        if server is None:
            server = self._server = self._noted(self._roles.server(self._roles.board()))
            lost = [event for event in self.group.events.entries if event["kind"] == "excluded"]
            server.members.lost_before += [(event["rank"], event["detail"]) for event in lost]
        with _heard(self.group, lambda: server.channels, server.beat):
            if self._final is None:
                server.make_ready()
            run.reporter.begin(server.seconds, server.who_learns())
            if self._final is None:
                return self._serve(server)
            server.finish(self._final.result)
            return Outcome.from_dict(self._final.result)

    def _serve(self, server: S) -> Outcome:
        run, saver = self.run, self.run.saver
        try:
            stop = self._serve_or_learn(server)
        except CheckpointFencedError:
            server.await_successor()
            raise
        except TrainingStopped as stopped:  # while this rank learned alone
            tell_stopped(self.group.wire, server.channels, stopped, 0.0)
            raise
        except StateLimitError as full:
            full.steps = server.position.steps  # which all ranks are told
            raise
        except (Exception, SystemExit):
            if saver is not None and server.can_rescue:
                run.rescue = partial(self._rescue, server, saver, server.position)
            raise
        finally:
            run.kept = server.position.steps - run.start
        try:
            result = self._end(server, stop)
        except CheckpointFencedError:
            server.await_successor()
            raise
        except TrainingStopped as stopped:
            tell_stopped(self.group.wire, server.channels, stopped, LAST_PUSH_SECONDS)
            raise
        server.finish(result.to_dict())
        return result

    def _rescue(self, server: S, saver: Saver, position: Position) -> None:
        """Save what there is after an error."""
        with suppress(DivergenceError):  # an earlier checkpoint stays
            server.table.settle()
            saver.rescue(self.run.values, self.run.counts, position, server.keep_alive)

    def _end(self, server: S, stop: Stop | None) -> Outcome:
        """Save and report the end, or that it comes early: TrainingStopped is raised then."""
        run, group, saver = self.run, self.group, self.run.saver
        seconds = server.seconds
        if stop is not None and saver is not None:
            run.rescue = partial(self._rescue, server, saver, server.position)
            server.report_progress(now=True)
            run.rescue = None
            server.table.settle()
            where = saver.save_last(run.values, run.counts, server.position, server.keep_alive)
            run.reporter.hear(group.events, saver)
            raise run.stopped(stop, where)
        away = set(range(group.wire.size)) - set(group.view.members)
        server.table.settle()
        result = run.tally.result(seconds, self._compile_seconds, server.learning, group.events, away)
        where = None
        if saver is not None:
            where = saver.finish(run.values, run.counts, server.position, result, server.keep_alive)
        run.reporter.hear(group.events, saver)
        run.reporter.report_end(seconds, server.who_learns())  # after saving: the callbacks may raise
        if saver is not None and saver.asked_to_stop is not None:
            # Too late for this call, but not for what the script does next.
            raise run.stopped(saver.asked_to_stop, where)
        return result

    def _serve_or_learn(self, server: S) -> Stop | None:
        """Serve until all is done; where no worker is left, learn alone until there is one again."""
        while True:
            try:
                return server.run()
            except NobodyLeft:
                if self.run.reporter.wants_end:
                    continue
                logger.warning("No worker is left: rank %d goes on alone.", self.group.rank)
            alone = self._roles.learner_alone(server)
            try:
                alone.run()
            finally:
                server.has_made(alone)

    # Ends

    def fail(self, error: BaseException) -> None:
        """Tell the others of an error, after what there is is on disk: who hears of it may end the job."""
        run = self.run
        if run.rescue is not None:
            run.rescue()
        if self._server is not None:
            fail(self._server.channels, error, self.group.rank, run.settings.timeout)
            tell_rescued(self._server.channels)
        elif self._worker is not None and not self._worker.is_new:
            channel = self._worker.channel
            fail([channel], error, self.group.rank, run.settings.timeout)
            alone = isinstance(error, (RankTimeoutError, CutOffError, KeyboardInterrupt))
            if run.watch is not None and not alone:
                wait_for_rescue(channel, RESCUE_SECONDS)

    def close(self, linger: float) -> None:
        """Close all channels and environments."""
        if self._server is not None:
            self._server.close(linger)
        if self._worker is not None and not self._worker.is_new:
            self._worker.close(linger)
        self.run.close(self._roles.learner)


def _heard(
    group: Group, channels: Callable[[], list[Channel]], beat: Callable[[], Beat]
) -> AbstractContextManager[None]:
    """Let a thread say that this rank is there, where the MPI library allows threads."""
    if not group.wire.has_threads:
        return nullcontext()
    return heartbeat(channels, beat, group.timing.interval, group.wire.now)
