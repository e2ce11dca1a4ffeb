"""The reproducible mode on many ranks.

The server merges each round in the order of the logical workers, the others play them. A rank that is lost
costs the round: it is played again from its beginning, with the same bits, by the ranks that are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.engines.roles.server_base import NobodyLeft, Serving
from dist_classicrl.engines.roles.shutdown import take_in_stop
from dist_classicrl.engines.roles.worker_base import Working
from dist_classicrl.engines.rounds.schedule import Quota, play, round_steps, rounds
from dist_classicrl.engines.saving import Position
from dist_classicrl.errors import ProtocolError, RankLostError
from dist_classicrl.learning.learner import Learner
from dist_classicrl.learning.state import stack_states, unstack_states
from dist_classicrl.membership.election import Base
from dist_classicrl.membership.group import POLL_SECONDS, Group
from dist_classicrl.process.stop import Stop, StopWatch
from dist_classicrl.settings import Settings
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.shared import RoundMerge
from dist_classicrl.tables.snapshot import TableSnapshot

_GO_ON = 0
_TELL_STATE = 1
_TELL_STATE_AND_WAIT = 2

States = dict[int, dict[str, np.ndarray]]
"""The state of learners, by logical worker."""


def carriers(settings: Settings, workers: list[int]) -> dict[int, int]:
    """Return which rank carries each logical worker."""
    return {logical: workers[logical % len(workers)] for logical in range(settings.logical_workers)}


def steps_before(settings: Settings, number: int, steps: int) -> int:
    """Return how many of a call's `steps` are made before its round `number`."""
    return min(steps, number * settings.logical_workers * round_steps(settings))


def state_parts(state: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the state of a learner, or the stacked states of several, as message parts."""
    shapes = envelope.text({name: list(array.shape) for name, array in state.items()})
    arrays = [array.view(np.uint8) if array.dtype == bool else array for array in state.values()]
    return [shapes, *(part.ravel() for part in arrays)]


def state_of(parts: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the state whose `state_parts` these are."""
    shapes = envelope.from_text(parts[0])
    arrays = [part.view(bool) if part.dtype == np.uint8 else part for part in parts[1:]]
    return {name: array.reshape(shape) for (name, shape), array in zip(shapes.items(), arrays, strict=True)}


def stack_by_number(states: States) -> dict[str, np.ndarray]:
    """Return the state of learners as one, in the order of their numbers."""
    return stack_states([states[number] for number in sorted(states)])


def learners_message(learners: States) -> np.ndarray:
    """Return the state of all learners, by logical worker, as one message."""
    number = np.array([len(learners)], np.int64)
    return envelope.encode(Kind.STATE, number, *state_parts(stack_by_number(learners)))


def learners_of(message: np.ndarray) -> States:
    """Return what `learners_message` packed."""
    _, parts = envelope.decode(message)
    stacked, number = state_of(parts[1:]), int(parts[0][0])
    return dict(enumerate(unstack_states(stacked, number))) if stacked else {}


@dataclass(frozen=True)
class RoundStart:
    """What a round starts from, besides the table.

    Attributes
    ----------
    number : int
        Of the round, from 0.
    states : dict of int to dict
        The state of all learners; empty where they are as new, or where only their carriers know.
    tally : ndarray(float64)
        `Tally.to_numbers`; empty at the very beginning.
    """

    number: int = 0
    states: States = field(default_factory=dict)
    tally: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class RoundOrder:
    """What the server tells all before a round.

    Attributes
    ----------
    start : RoundStart
    refresh : Refresh
        The table.
    attempt : int
        How often this server has begun a round.
    order : int
        To go on, or to tell the learners' state first.
    carried_by : ndarray(int64), shape (logical workers,)
        Who plays each.
    """

    start: RoundStart
    refresh: Refresh
    attempt: int
    order: int
    carried_by: np.ndarray

    def to_message(self) -> np.ndarray:
        """Return the order as a message."""
        start, refresh = self.start, self.refresh
        head = [refresh.since, refresh.version, self.order, start.number, self.attempt, len(refresh.parts)]
        return envelope.encode(
            Kind.MERGED,
            np.array(head, np.int64),
            self.carried_by,
            start.tally,
            *refresh.parts,
            *state_parts(stack_by_number(start.states) if start.states else {}),
        )

    @classmethod
    def from_parts(cls, parts: list[np.ndarray]) -> RoundOrder:
        """Return the order in a MERGED message."""
        since, version, order, number, attempt, n_parts = parts[0].tolist()
        values, counts, *entries = parts[3 : 3 + n_parts]
        stacked = state_of(parts[3 + n_parts :])
        states = dict(enumerate(unstack_states(stacked, parts[1].size))) if stacked else {}
        refresh = Refresh(since, version, entries[0] if entries else None, values, counts)
        return cls(RoundStart(number, states, parts[2]), refresh, attempt, order, parts[1])


@dataclass
class RoundServer(Serving):
    """Serves one call of `train` in the reproducible mode.

    Attributes
    ----------
    settings : Settings
    start, steps : int
        First global step, and steps of the whole run.
    first : RoundStart
        Where this server begins.
    may_repeat : bool
        Whether a round can be played again: all learners' state goes along with it.
    """

    settings: Settings = field(kw_only=True)
    start: int = field(kw_only=True)
    steps: int = field(kw_only=True)
    first: RoundStart = field(default_factory=RoundStart, kw_only=True)
    may_repeat: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.now_at = self.first
        self.made = steps_before(self.settings, self.first.number, self.steps)
        self._snapshot = TableSnapshot(self.table.values, self.table.counts)
        self._attempt = 0
        self._carried_by: dict[int, int] = {}
        self._is_broken = False
        self._new: set[int] = set()
        self._states: States = {}
        self._asked: Position | None = None
        self._copied = False
        super().__post_init__()

    @property
    def position(self) -> Position:
        """How far the run is after the last round, for a checkpoint of the table as it is then.

        It has the learners' state if that was asked for after this round and told by all.
        """
        asked = self._asked
        known = asked is not None and asked.steps == self.start + self.made
        complete = known and len(self._states) == self.settings.logical_workers
        return Position(
            self.start + self.made,
            self.tally.to_dict(self.seconds),
            "rounds",
            version=self.table.version,
            learners=stack_by_number(self._states) if complete else {},
        )

    def run(self) -> Stop | None:
        """Merge round after round until all steps have been made, or until the run is to stop.

        Return why, in that case. `position` has the learners' state then.

        Raises
        ------
        RemoteRankError
            If a worker failed.
        NobodyLeft
            If no worker is left, and steps are: `now_at` says where.
        RankLostError, CutOffError, Deposed
            See `Serving.look_around`.
        CheckpointFencedError
            If another server has taken over the checkpoints.
        """
        merge = RoundMerge(self.table)
        since = -1
        todo = rounds(self.settings, self.start + self.made, self.steps - self.made)
        for number, quotas in enumerate(todo, self.now_at.number):
            if self.reporter.wants_end:
                return None
            stop, order = self._next_order()
            self.check_earlier_losses()
            self._begin_round(since, order)
            if stop is not None:
                self._await_states()
                return stop
            maps, stats, states = self._collect_round(quotas, order)
            since = self.table.version
            merge.merge([maps[quota.worker] for quota in quotas])
            made = sum(quota.steps for quota in quotas)
            self.made += made
            self.tally.steps += made
            for quota in quotas:
                self.tally.add_totals(stats[quota.worker])
                learning, passed = stats[quota.worker][4:].tolist()
                rank = self._carried_by[quota.worker]
                self.reporter.count(rank, quota.steps, learning, passed, n_bytes=self._sizes[quota.worker])
            self.now_at = RoundStart(number + 1, states, self.tally.to_numbers(self.seconds))
        return None

    def _next_order(self) -> tuple[Stop | None, int]:
        """Return why to stop here, if there is a reason, and whether the learners' state is to be told.

        It is where the run stops or a checkpoint is due.
        """
        saver = self.saver
        if saver is None:
            return None, _GO_ON
        stop = saver.look()
        if stop is not None:
            return stop, _TELL_STATE_AND_WAIT
        if self.made and saver.is_due(self.start + self.made):
            saver.begin(self.start + self.made)
            return None, _TELL_STATE
        return None, _GO_ON

    def _begin_round(self, since: int, order: int) -> None:
        """Tell all the table, who plays what, and what to tell; again if somebody was lost meanwhile."""
        if not self.workers:
            raise NobodyLeft
        self._attempt += 1
        self._is_broken = False
        self._carried_by = carriers(self.settings, self.workers)
        ready: dict[int, np.ndarray] = {}
        for rank, peer in self.peers.items():
            base = -1 if rank in self._new else since
            if base not in ready:
                ready[base] = self._order_of(self.table.refresh(base), order).to_message()
            message = ready[base]
            peer.channel.send(message)
            self.tally.bytes_pulled += message.size
        self._new.clear()
        self._states = {}
        if order == _TELL_STATE:
            self.report_progress(now=True)
        if order != _GO_ON:
            self._asked = self.position
            self._copied = order == _TELL_STATE
            if self._copied:
                self._snapshot.copy_now()
        # Silence is judged from now on: who had no part in the end of the last round had nothing to say.
        now = self.group.wire.now()
        for peer in self.peers.values():
            peer.channel.last_heard = max(peer.channel.last_heard, now - self.group.timing.interval)

    def _order_of(self, refresh: Refresh, order: int) -> RoundOrder:
        carried_by = np.array([self._carried_by[n] for n in sorted(self._carried_by)], np.int64)
        return RoundOrder(self.now_at, refresh, self._attempt, order, carried_by)

    def _collect_round(
        self, quotas: list[Quota], order: int
    ) -> tuple[dict[int, PackedMap], dict[int, np.ndarray], States]:
        """Wait for all maps of the round, playing it again if somebody is lost."""
        due = {quota.worker for quota in quotas}
        backoff = Backoff(self.group.wire.sleep)
        self._open_round()
        while self._maps.keys() != due:
            woken = self.wake()
            # What each worker said up to here is received before anybody's silence is judged.
            arrived = self.receive()
            self.look_around(woken)
            if self._is_broken:
                self._begin_round(-1, order)
                self._open_round()
            self.report_progress()
            if arrived:
                backoff.reset()
            else:
                backoff.wait()
        return self._maps, self._stats, self._after

    def _open_round(self) -> None:
        self._maps: dict[int, PackedMap] = {}
        self._stats: dict[int, np.ndarray] = {}
        self._sizes: dict[int, int] = {}
        self._after: States = {}

    def _await_states(self) -> None:
        """Wait for the learners' state after the last round."""
        backoff = Backoff(self.group.wire.sleep)
        while len(self._states) < len(self._carried_by):
            woken = self.wake()
            arrived = self.receive()
            self.look_around(woken)
            if self._is_broken:
                self._begin_round(-1, _TELL_STATE_AND_WAIT)
            if not arrived:
                backoff.wait()

    def take_in(self, rank: int, message: np.ndarray) -> None:
        """Take in a logical worker's maps, a learner's state, or what any worker may send."""
        kind, parts = envelope.decode(message)
        if kind is Kind.ROUND:
            self._take_in_maps(rank, message.size, parts)
        elif kind is Kind.STATE:
            self._take_in_state(rank, parts)
        elif kind is Kind.STOP:
            take_in_stop(self.saver, parts)
        else:
            self.take_in_common(rank, kind, parts)

    def _take_in_maps(self, rank: int, size: int, parts: list[np.ndarray]) -> None:
        attempt, logical, n_parts = parts[0].tolist()
        if attempt < self._attempt:  # of a round that is played again
            return
        if attempt != self._attempt or logical in self._maps or self._carried_by.get(logical) != rank:
            raise ProtocolError(
                f"Worker {rank} sent attempt {attempt} of logical worker {logical} in attempt "
                f"{self._attempt}, where it is not due."
            )
        self.has_pushed(rank)
        self._stats[logical] = parts[1]
        self._maps[logical] = PackedMap.from_parts(parts[2 : 2 + n_parts])
        if self.may_repeat:
            self._after[logical] = state_of(parts[2 + n_parts :])
        self.tally.pushes += 1
        self.tally.bytes_pushed += size
        self._sizes[logical] = size
        self.tally.learning_seconds += float(parts[1][4])
        self.tally.worker_seconds += float(parts[1][5])

    def _take_in_state(self, rank: int, parts: list[np.ndarray]) -> None:
        """Keep the state of a logical worker's learner, and save if it was the last that lacked."""
        attempt, logical = parts[0].tolist()
        if attempt < self._attempt:
            return
        if self._asked is None or logical in self._states or self._carried_by.get(logical) != rank:
            raise ProtocolError(
                f"Worker {rank} sent the state of logical worker {logical}, which is not due."
            )
        self._states[logical] = state_of(parts[1:])
        if len(self._states) == len(self._carried_by) and self._copied and self.saver is not None:
            self._copied = False
            position = replace(self._asked, learners=stack_by_number(self._states))
            self.saver.save(self._snapshot.values, self._snapshot.counts, position)

    def has_lost(self, rank: int) -> int:
        """Play the round again if the worker had a part in it."""
        self._new.discard(rank)
        if rank not in self._carried_by.values():
            return 0
        if not self.may_repeat:
            raise RankLostError(
                f"Rank {rank} is lost, and with it the state of its environments or its replay memory, which "
                "the reproducible mode cannot do without. Start the job again, best with `python -m "
                "dist_classicrl launch`: it goes on from the last checkpoint."
            )
        self._is_broken = True
        return 0

    def has_made(self, steps: int) -> None:
        """Count rounds that this rank played itself, in the table as it is now.

        The learners' state has to be put into `now_at` besides, if the run goes on with others.
        """
        self.made += steps
        self.table.overwritten()
        number = self.now_at.number + -(-steps // steps_before(self.settings, 1, self.steps))
        self.now_at = RoundStart(number, {}, self.tally.to_numbers(self.seconds))

    def has_admitted(self, rank: int) -> None:
        """Let the worker take part from the next round on."""
        self._new.add(rank)


class RoundWorker(Working):
    """Carries some of the logical workers for one call of `train`, for one server after another if need be.

    Parameters
    ----------
    group : Group
    learner : Learner
        Its walkers are logical workers.
    begin_walkers : callable
        Gives the learner these logical workers as walkers, as the run begins with them.
    settings : Settings
    start, steps : int
        First global step, and steps of the whole run.
    seed : int
    may_repeat : bool
        See `RoundServer`.
    watch : StopWatch, optional
        Tells when this rank was asked to stop.
    wants_to_leave : callable, optional
        Tells why this rank is to leave in good order, once it is.

    Attributes
    ----------
    round : RoundStart
        Where the round begins that this rank is in.
    carried : list of int
        The logical workers that are this rank's.
    """

    def __init__(
        self,
        group: Group,
        learner: Learner,
        begin_walkers: Callable[[list[int]], None],
        settings: Settings,
        start: int,
        steps: int,
        seed: int,
        may_repeat: bool,
        watch: StopWatch | None = None,
        wants_to_leave: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(group, watch)
        self.learner = learner
        self.round = RoundStart()
        self.carried: list[int] = []
        self._has_played = self._has_finished = False
        self._begin_walkers = begin_walkers
        self._settings = settings
        self._start = start
        self._steps = steps
        self._seed = seed
        self._may_repeat = may_repeat
        self._wants_to_leave = wants_to_leave
        self._leaving = False
        self._base = Base()
        self._order: RoundOrder | None = None
        self._told = time.perf_counter()
        self._looked = 0.0

    @property
    def base(self) -> Base:
        """How new this rank's table is."""
        return Base.finished(self._base.term) if self.final is not None else self._base

    def start_from(self, base: Base) -> None:
        """Take note that the table is what the server of `base` began with; none: walkers are old."""
        self._base = base
        if not base.is_some:
            self.carried = []

    def give_up_server(self) -> None:
        """Take nothing from the server any more."""
        self.channel.close()
        self._order = None
        self._leaving = False

    def run(self) -> tuple[Refresh, dict[str, Any]] | None:
        """Play rounds until the server says that the run is done.

        Return the whole final table and the run's result; None if this rank has left in good order.

        Raises
        ------
        RemoteRankError
            If another rank failed.
        TrainingStopped
            If the server says that the run has stopped.
        ServerLost, Deposed
            See `Working.look_around`.
        """
        backoff = Backoff(self.group.wire.sleep)
        while self.final is None and not self.was_released:
            now = self.wake()
            self._take_in()
            if self._order is not None:
                self._play_round()
                backoff.reset()
            else:
                self.pass_on_stop()
                self.channel.reap()
                self._leave_if_asked()
                self.look_around(now)
                backoff.wait()
        if self.final is not None:
            self.await_release()
        return self.final

    def _leave_if_asked(self) -> None:
        why = None if self._leaving else self._wants_to_leave()
        if why is not None:
            self._leaving = True
            self.say_leave("left", why, waits=False)

    def _take_in(self) -> None:
        while self.final is None and (message := self.channel.poll()) is not None:
            kind, parts = envelope.decode(message)
            if kind is Kind.MERGED:
                self._take_order(RoundOrder.from_parts(parts))
                self.note_server_progress()
            else:
                self.take_in_common(kind, parts)

    def _take_order(self, order: RoundOrder) -> None:
        """Move to the table at the beginning of a round, and get ready the learners that are this rank's."""
        term = self.group.view.term
        refresh = order.refresh
        if refresh.since > self._base.version or refresh.since >= 0 and self._base.term != term:
            raise ProtocolError(
                f"A table from version {refresh.since} on came to a base of version {self._base.version}."
            )
        self.learner.table.rebase(refresh, [])
        passed = order.start.number - self.round.number
        is_ready = passed == 1 and self._has_finished or passed == 0 and not self._has_played
        self._base = Base(term, refresh.version)
        self.round = order.start
        mine = [n for n in range(order.carried_by.size) if order.carried_by[n] == self.group.rank]
        if mine != self.carried or not is_ready:
            self._carry(mine, order.start.states)
        self._has_played = self._has_finished = False
        if order.order != _GO_ON:
            for logical in self.carried:
                head = np.array([order.attempt, logical], np.int64)
                state = state_parts(self.learner.state(logical))
                self.channel.send(envelope.encode(Kind.STATE, head, *state))
        self._order = None if order.order == _TELL_STATE_AND_WAIT else order

    def _carry(self, mine: list[int], states: States) -> None:
        """Carry the logical workers `mine` in these states, or as new where there are none."""
        self._begin_walkers([logical for logical in mine if logical not in self.carried or not states])
        self.carried = mine
        for logical in mine:
            if logical in states:
                self.learner.restore(logical, states[logical])

    def _play_round(self) -> None:
        """Play this rank's part of the round, unless the server begins it anew meanwhile."""
        order, self._order = self._order, None
        assert order is not None
        made = steps_before(self._settings, order.start.number, self._steps)
        quotas = next(iter(rounds(self._settings, self._start + made, self._steps - made)), [])
        for quota in quotas:
            if quota.worker in self.carried:
                self._play(order.attempt, quota)
                self._look()
                if self._order is not None or self.final is not None:
                    return
        self._has_finished = True

    def _play(self, attempt: int, quota: Quota) -> None:
        learner = self.learner
        self._has_played = True
        begin = time.perf_counter()
        packed = play(quota, learner, self._seed)
        now = time.perf_counter()
        reals = np.empty(6)
        reals[:4] = learner.totals.take()
        reals[4] = now - begin
        reals[5] = now - self._told
        self._told = now
        head = np.array([attempt, quota.worker, len(packed.parts)], np.int64)
        after = state_parts(learner.state(quota.worker)) if self._may_repeat else []
        self.channel.send(envelope.encode(Kind.ROUND, head, reals, *packed.parts, *after))

    def _look(self) -> None:
        """Look now and then for what cannot wait for the end of this rank's part of the round."""
        now = self.wake()
        if now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        self.pass_on_stop()
        self._take_in()
        self.look_around(now)
