"""A worker of asynchronous training.

It learns while it has a lease, and pushes when it is time and there is room.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl._words import error_told
from dist_classicrl.comm import envelope
from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.remote_errors import without_exit
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.compression import Carry
from dist_classicrl.engines.loops import LONGEST_TURN
from dist_classicrl.engines.outcome import Learned
from dist_classicrl.engines.roles.messages import AskToStop, Final, Leave
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.engines.server.messages import (
    HandIn,
    Handover,
    PassedOn,
    Probe,
    Push,
    Pushed,
    Reply,
    Route,
    Wishes,
)
from dist_classicrl.engines.server.node_server import NodeServer
from dist_classicrl.engines.server.pacing import Pacer
from dist_classicrl.engines.server.staleness import StalenessBound
from dist_classicrl.engines.server.window import PushWindow
from dist_classicrl.errors import DeviceError
from dist_classicrl.learning.learner import Learner, Stream
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import POLL_SECONDS
from dist_classicrl.tables import kernels
from dist_classicrl.tables.map_table import MapTable
from dist_classicrl.tables.maps import Refresh
from dist_classicrl.tables.merging import AFFINE, Merging

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Worker(Working):
    """Works for one call of `train`, for one server after another if need be.

    What is learned again after a run was taken up from a checkpoint, `generation` times, gets other random
    numbers than what was learned before, some of which is in the table.
    """

    learner: Learner  # with one walker
    pacer: Pacer
    window: PushWindow
    carry: Carry  # what may wait
    seed: int
    generation: int = 0
    survives_errors: bool = False  # an exception of the environment costs this worker alone
    max_staleness: int | None = None  # versions behind which it does not learn on; None: it does
    note_workers: Callable[[int], None] = lambda workers: None  # how many there are: step sizes may need it
    codec: Codec = field(default_factory=Codec, kw_only=True)
    merging: Merging = field(default=AFFINE, kw_only=True)  # of maps of others, where it composes them

    def __post_init__(self) -> None:
        super().__post_init__()
        self._table: MapTable = self.learner.table
        self._view = self.group.view
        self._staleness = StalenessBound(self.max_staleness, len(self._view.workers))
        self._stopping = False
        self._goodbye: Leave | None = None  # to be said once what was pushed has arrived
        self._goodbye_by = 0.0  # when at the latest
        self._why_passive: str | None = None
        self._up: Channel | None = None  # to the server of its node, where maps go through one
        self._node: NodeServer | None = None  # what this rank is itself, if it is one
        self._node_servers = 0
        self._unreceipted: deque[Push] = deque()
        self._leases: deque[tuple[int, int, Stream]] = deque()  # each with its number and steps left
        self._made: dict[int, int] = {}
        self._since_push = 0
        self._looked = 0.0
        self._waiting = np.zeros(0, np.int64)
        self._waiting_updates = np.zeros(0, np.int64)
        self._learning = 0.0
        self._packing = 0.0  # seconds since the last push
        self._cpu_learning = 0.0
        self._cpu_at_push = time.thread_time()
        self._told_learning = 0.0
        self._told_time = time.perf_counter()

    @property
    def base(self) -> Base:
        """How new this rank's table is."""
        return Base.finished(self.window.base[0]) if self.final is not None else Base(*self.window.base)

    def run(self) -> Final | None:
        """Learn what the server gives out; again after `hand_over`, `hand_in` or `begin_anew`."""
        backoff = Backoff(self.group.wire.sleep)
        while self.final is None and not self.was_released:
            now = self.wake()
            if self._take_in():
                backoff.reset()
            is_behind = bool(self._leases) and self._staleness.must_wait(self.window)
            if self._leases and self._since_push < self.pacer.longest_push and not is_behind:
                self._learn_or_give_up()
                backoff.reset()
            elif (self._since_push or is_behind and not self.window.in_flight) and (
                self.window.has_room and not self._stopping
            ):
                self._push(flush=not self._leases)
            elif self._node is not None and self._node.turn():
                backoff.reset()
            elif self.final is None:
                self._parent.reap()
                self.channel.reap()
                backoff.wait()
            self.pass_on_stop()
            self._leave_if_asked()
            # Between pushes, and while others make the last steps, the server would hear nothing else.
            self.look_around(now)
            if self.group.view is not self._view:
                self._note_workers()
        if self.final is not None:
            self.await_release()
        return self.final

    def _note_workers(self) -> None:
        """Learn and push as one of as many workers as there are now."""
        self._view = self.group.view
        workers = max(1, len(self._view.workers) - self._node_servers)
        self.note_workers(workers)
        self.pacer.workers = workers

    # Which way maps go

    @property
    def _parent(self) -> Channel:
        """Where maps go, and refreshes come from."""
        return self.channel if self._up is None else self._up

    def _take_route(self, route: Route) -> None:
        """Go another way, and send again what had not arrived.

        Who is to compose maps of others gives back what it has to do, after one push of what it made of it.
        """
        group, window = self.group, self.window
        if self._why_passive is not None:  # the server is about to hear of it, and gives another way
            return
        self.leave_route()
        self._receipt(route.applied)
        self._node_servers = route.node_servers
        self._note_workers()
        if route.parent != group.view.server:
            self._up = group.wire.channel(route.parent, group.tag_between_workers(route.number))
        for push in self._unreceipted:
            self._parent.send(self.codec.encode(push)[0])
        if route.below:
            self._push(flush=True, given_back=self._give_back())
            base, counts = self._table.base.copy(), window.base_counts()
            version = window.version_of_term
            self._node = NodeServer(
                group,
                self.codec,
                route,
                self._parent,
                base,
                counts,
                version,
                self.merging,
                self.max_staleness,
            )
            if self._stopping:
                self._node.hurry()

    def leave_route(self) -> None:
        """Have to do with the server alone, and with no node's."""
        if self._up is not None:
            self._up.close()
            self._up = None
        if self._node is not None:
            self._node.close()
            self._node = None

    def close(self, linger: float) -> None:
        """See `Working`."""
        self.leave_route()
        super().close(linger)

    # Changing servers

    def give_up_server(self) -> None:
        """Take nothing from the server any more: what it granted is void, what it was sent is kept."""
        super().give_up_server()
        self.leave_route()
        self._unreceipted.clear()
        self._node_servers = 0
        self._leases.clear()
        if self._since_push or self._table.waiting:
            self._pack(True, time.perf_counter())
        self._since_push = 0
        if self._goodbye is not None and self._goodbye.waits:
            self._why_passive = self._goodbye.why
        self._stopping, self._goodbye = False, None

    def hand_over(self, values: np.ndarray, counts: np.ndarray) -> Handover | None:
        """Write the base to `values` and `counts`, flat like the table, for this rank to serve it.

        Return the handover of that version, if there is one. What the base lacks is in `window.kept`.
        """
        values[:] = self._table.base
        counts[:] = self.window.base_counts()
        return self.window.handover

    def hand_in(self, admission: int) -> None:
        """Follow the server of the view, and send it all that it may lack."""
        super().hand_in(admission)
        self.window.enter(self.group.view.term)
        if self.final is not None:
            return
        kept, last = self.window.kept, self.window.last_sequence
        for pushed in kept:
            self.channel.send(encode(HandIn(pushed, pushed is kept[-1], last)))
        if not kept:
            self.channel.send(encode(HandIn(None, True, last)))
        if self._why_passive is not None:
            self.channel.send(encode(_excluded(self._why_passive)))

    def begin_anew(self, channel: Channel, sequence: int) -> None:
        """Follow the server on `channel`, which has this rank's pushes up to number `sequence`.

        What it has not applied is forgotten: others make those steps.
        """
        self.follow_on(channel)
        self.leave_route()
        self._unreceipted.clear()
        self._made.clear()
        self.learner.totals.take()
        self.window.give_up(sequence, self.group.view.term)
        self._why_passive = None
        self._note_workers()  # who served until now made ready for as many as it once began with

    def _learn(self) -> None:
        lease_id, left, stream = self._leases[0]
        pacer = self.pacer
        until_push = pacer.interval - self._since_push
        if until_push <= 0:  # the window is full: look for room again after half an interval
            until_push = -(-pacer.interval // 2)
        steps = min(left, until_push, pacer.longest_push - self._since_push, pacer.longest_call)
        begin, cpu_begin, used = time.perf_counter(), time.thread_time(), stream.used
        self.learner.learn(self.learner.walkers[0], stream, steps)
        steps = stream.used - used
        seconds, cpu_seconds = time.perf_counter() - begin, time.thread_time() - cpu_begin
        self._learning += seconds
        self._cpu_learning += cpu_seconds
        pacer.learned(steps, seconds, cpu_seconds)
        self._since_push += steps
        self._made[lease_id] = self._made.get(lease_id, 0) + steps
        if steps == left:
            self._leases.popleft()
        else:
            self._leases[0] = (lease_id, left - steps, stream)
        if self._since_push >= pacer.interval and self._leases and self.window.has_room:
            self._push(flush=False)

    def _has_to_look(self) -> bool:
        """Whether not to go on to the end of a batch, as its steps are slow; asked between two of them."""
        self.show_progress()
        is_asked = self.watch is not None and self.watch.stop is not None
        return is_asked or self.group.wire.now() - self._woken >= LONGEST_TURN

    def _learn_or_give_up(self) -> None:
        """Learn; an exception costs this worker alone where that was asked for."""
        if not self.survives_errors:
            self._learn()
            return
        try:
            self._learn()
        except (Exception, SystemExit) as caught:
            if isinstance(error := without_exit(caught), SystemExit):
                raise
            what = "card failed" if isinstance(error, DeviceError) else "environment raised an exception"
            logger.exception("Rank %d learns no more, as its %s.", self.group.rank, what)
            self._leases.clear()
            self._forget_since_push()
            self._stopping = True
            if self._table.waiting:
                self._push(flush=True, is_last=True)
            self._say_once_all_arrived(_excluded(error_told(error)))

    def _forget_since_push(self) -> None:
        """Undo what was learned since the last push: how much of it was learned in order is not known.

        What had to wait when that went, and did not change since, is of steps that were reported with it.
        """
        self._made.clear()
        self._since_push = 0
        self.learner.totals.values[:] = 0.0
        is_as_it_was = self._table.updates[self._waiting] == self._waiting_updates
        self._table.forget(self._waiting[is_as_it_was])

    def _leave_if_asked(self) -> None:
        """Push all that was learned, and say goodbye once that has arrived, if this rank is to leave."""
        if self.final is not None:
            return
        why = self.wants_to_leave()
        if why is not None and not self._stopping:
            self._stop()
            self._say_once_all_arrived(Leave("left", why, waits=False))
        goodbye = self._goodbye
        if goodbye is not None and (self._has_arrived or self.group.wire.now() >= self._goodbye_by):
            self._goodbye = None
            self.channel.send(encode(goodbye))
            if goodbye.waits:
                self._why_passive, self._stopping = goodbye.why, False

    def _say_once_all_arrived(self, goodbye: Leave) -> None:
        self._goodbye = goodbye
        # A server of a node that hangs is lost by then.
        self._goodbye_by = self.group.wire.now() + self.group.timing.silence

    @property
    def _has_arrived(self) -> bool:
        """Whether all that was pushed is at the server, or gets there before what is said now.

        What goes by another rank may come later. Who composes, or counts as failed, gets no receipts.
        """
        has_receipts = self._up is not None and self._node is None and self._why_passive is None
        return not has_receipts or self.window.in_flight == 0

    def _stop(self) -> None:
        """Push all that was learned, as the server asks, and learn no more."""
        self._stopping = True
        given_back = self._give_back()
        if self._node is not None:
            self._node.hurry()
        elif self._why_passive is None:
            self._push(flush=True, is_last=True, given_back=given_back)

    def _give_back(self) -> tuple[int, ...]:
        """Make no more of what the server has granted, and return which leases that are."""
        lease_ids = tuple(lease_id for lease_id, _, _ in self._leases)
        self._leases.clear()
        return lease_ids

    def _push(self, flush: bool, is_last: bool = False, given_back: tuple[int, ...] = ()) -> None:
        begin = time.perf_counter()
        pacer = self.pacer
        is_behind = self._staleness.needs_refresh(self.window)
        wants_refresh = pacer.wants_refresh or flush or self.window.needs_refresh or is_behind
        pushed, made, saved = self._pack(flush, begin)
        load = kernels.map_load(pushed.packed)
        wishes = Wishes(
            self.learner.quantum,
            pacer.interval_seconds,
            not self._leases,
            pacer.urgent or is_behind,
            wants_refresh,
            flush or self.window.needs_refresh or is_behind,
        )
        known = self.window.known_version(pushed.sequence)
        revision = self.group.view.revision
        waiting = self._table.waiting if self.carry.is_some else 0
        compressing, self._packing = self.codec.take_seconds() + self._packing, 0.0
        push = Push(
            pushed,
            made,
            wishes,
            saved,
            self.progress,
            revision,
            known,
            is_last,
            waiting,
            compressing,
            given_back,
        )
        self._unreceipted.append(push)
        self._parent.send(self.codec.encode(push)[0])
        steps, self._since_push = self._since_push, 0
        pacer.gauge.look(self._table.base)
        cpu_now = time.thread_time()
        pacer.pushed(load, steps, cpu_now - self._cpu_at_push - self._cpu_learning)
        self._cpu_at_push, self._cpu_learning = cpu_now, 0.0

    def _pack(self, flush: bool, now: float) -> tuple[Pushed, dict[int, int], int]:
        """Make the next push of what was learned. Return it, its steps by lease, and the bytes saved."""
        made, self._made = self._made, {}
        learning, passed = self._learning - self._told_learning, now - self._told_time
        self._told_learning, self._told_time = self._learning, now
        learned = Learned.of(self.learner.totals.take(), learning, passed)
        steps = sum(made.values())
        if self.carry.is_some:
            begin = time.perf_counter()
            pushed, saved = self._pack_some(flush, steps, learned)
            self._packing += time.perf_counter() - begin
        else:
            in_order = self.codec.wants_order
            pushed, saved = self.window.push(steps=steps, learned=learned, in_order=in_order), 0
        return pushed, made, saved

    def _pack_some(self, flush: bool, steps: int, learned: Learned) -> tuple[Pushed, int]:
        """Pack what is to go now. Return it, and the bytes saved."""
        table = self._table
        touched = int(table.n_touched[0])
        untouched = int(np.count_nonzero(table.updates[self._waiting] == self._waiting_updates))
        key = stream_key(self.seed, "compression", self.group.rank, self.window.last_sequence)
        pushed = self.window.push(self.carry, flush, key, steps, learned, self.codec.wants_order)
        self._waiting = table.touched[: table.n_touched[0]].copy()
        self._waiting_updates = table.updates[self._waiting]
        # If nothing waited all would have gone, but what only waits since an earlier push went with that. At
        # a flush there may go more than was touched: what rounding took from others, which are no such maps.
        entries = touched - untouched - min(touched, pushed.packed.size)
        return pushed, entries * sum(part.itemsize for part in pushed.packed.parts)

    def _take_in(self) -> bool:
        """Take in what the server sent, and return whether there was anything.

        While there is work and no push is on its way, nothing but bad news can come: it is looked for now and
        then.
        """
        now = self.group.wire.now()
        if self._busy_alone() and now - self._looked < POLL_SECONDS:
            return False
        self._looked = now
        something = False
        while self.final is None and (message := self._next_message()) is not None:
            something = True
            match self.codec.decode(message)[0]:
                case Reply() as reply:
                    self._take_reply(reply)
                case PassedOn() as told:
                    self._take_passed_on(told)
                case Route() as route:
                    self._take_route(route)
                case Probe() as probe:
                    self.channel.send(encode(probe))
                case AskToStop():
                    self._stop()
                case told:
                    self.take_in_common(told)
            if self._busy_alone():
                break
        return something

    def _next_message(self) -> np.ndarray | None:
        message = self.channel.poll()
        if message is None:
            return None if self._up is None else self._up.poll()
        if not envelope.has_kind(message, Kind.BEAT):  # all else comes from its main loop
            self.note_server_progress()
        return message

    def _busy_alone(self) -> bool:
        return bool(self._leases) and self.window.in_flight == 0

    def _receipt(self, applied: int) -> None:
        self.window.receipt(applied)
        while self._unreceipted and self._unreceipted[0].pushed.sequence <= self.window.received:
            self._unreceipted.popleft()

    def _rebase(self, refresh: Refresh, included: int, handover: Handover | None) -> None:
        begin = time.thread_time()
        self.window.refresh(refresh, included, handover)
        self.pacer.refreshed(time.thread_time() - begin)

    def _take_passed_on(self, told: PassedOn) -> None:
        handover = told.handover
        if self._node is None:
            self._receipt(told.number)
        if told.refresh is not None and handover is not None:
            self._rebase(told.refresh, handover.applied.get(self.group.rank, 0), handover)
        self._staleness.heard(self.window, told.version)
        if self._node is not None:
            self._node.passed_on(told)

    def _take_reply(self, reply: Reply) -> None:
        self._receipt(reply.applied)
        if reply.refresh is not None:
            self._rebase(reply.refresh, reply.applied, reply.handover)
        self._staleness.heard(self.window, reply.version)
        lease = reply.lease
        if lease is not None and not self._stopping and self._why_passive is None:
            again = [self.generation] if self.generation else []
            term = self.group.view.term
            key = stream_key(self.seed, "lease", lease.start, *again, *(("term", term) if term else ()))
            stream = Stream(key, lease.start, is_cut=self._has_to_look)
            self._leases.append((lease.id, lease.steps, stream))


def _excluded(why: str) -> Leave:
    return Leave("excluded", why, waits=True)
