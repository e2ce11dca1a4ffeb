"""The server of the reproducible mode: it merges each round in the order of the logical workers.

A rank that is lost costs the round: it is played again from its beginning, with the same bits, by the ranks
that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.engines.laggards import Laggards
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.roles.server_base import NobodyLeft, Serving
from dist_classicrl.engines.rounds.messages import (
    Order,
    RoundMaps,
    RoundOrder,
    RoundStart,
    WalkerState,
    stack_by_number,
)
from dist_classicrl.engines.saving import Position
from dist_classicrl.engines.schedule import rounds, steps_before
from dist_classicrl.errors import ProtocolError, RankLostError
from dist_classicrl.learning.state import State
from dist_classicrl.process.stop import Stop
from dist_classicrl.settings import Settings
from dist_classicrl.tables.maps import diverged
from dist_classicrl.tables.shared import RoundMerge

_WHY_MORE = (
    "It carries more logical workers than they. Let logical_workers be a multiple of the ranks that learn."
)


def carriers(settings: Settings, workers: list[int]) -> dict[int, int]:
    """Return which rank carries each logical worker."""
    return {logical: workers[logical % len(workers)] for logical in range(settings.logical_workers)}


@dataclass
class Client:
    """What the server knows of one worker."""

    is_new: bool  # it has no table of this server's


@dataclass
class RoundServer(Serving[Client]):
    """Serves one call of `train` in the reproducible mode."""

    can_rescue = False

    settings: Settings = field(kw_only=True)
    start: int = field(kw_only=True)  # first global step of the whole run
    steps: int = field(kw_only=True)
    first: RoundStart = field(default_factory=RoundStart, kw_only=True)  # where this server begins
    #: Whether a round can be played again: all learners' state goes along with it.
    may_repeat: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        self.now_at = self.first
        self.made = steps_before(self.settings, self.first.number, self.steps)
        self._snapshot = self.table.snapshot()
        self._attempt = 0
        self._carried_by: dict[int, int] = {}
        self._is_broken = False
        self._states: dict[int, State] = {}
        self._asked: Position | None = None
        self._copied = False
        self._laggards = Laggards(self.group.wire.now, self.group.host_of, _WHY_MORE)
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
        """Merge round after round. `position` has the learners' state if the run is to stop.

        After `NobodyLeft`, `now_at` says where the run is.
        """
        merge = RoundMerge(self.table)
        since = -1
        todo = rounds(self.settings, self.start + self.made, self.steps - self.made)
        for number, quotas in enumerate(todo, self.now_at.number):
            if self.reporter.wants_end:
                return None
            stop, order = self._next_order()
            self.members.check_earlier_losses()
            self._begin_round(since, order)
            self._collect(order)
            if stop is not None:
                return stop
            played = self._played
            since = self.table.version
            merge.merge([played[quota.worker].maps for quota in quotas])
            made = sum(quota.steps for quota in quotas)
            self.made += made
            self.tally.steps += made
            for quota in quotas:
                learned = played[quota.worker].learned
                self.tally.add_learned(learned)
                carrier, size = self._carried_by[quota.worker], self._sizes[quota.worker]
                self.reporter.count(carrier, quota.steps, learned, n_bytes=size)
                self._laggards.count(carrier, quota.steps, learned.learning_seconds)
            self._laggards.judge()
            self.report_progress()  # before a next round begins: the observer may end the run here
            states = {logical: maps.state for logical, maps in played.items() if self.may_repeat}
            self.now_at = RoundStart(number + 1, stack_by_number(states), self.tally.so_far(self.seconds))
        return None

    def _next_order(self) -> tuple[Stop | None, Order]:
        """Return why to stop here, if there is a reason, and whether the learners' state is to be told.

        It is where the run stops or a checkpoint is due.
        """
        saver = self.saver
        if saver is None:
            return None, Order.GO_ON
        here = self.start + self.made
        stop = saver.look(here)
        if stop is not None:
            return stop, Order.TELL_STATE_AND_WAIT
        if self.made and saver.is_due(here):
            saver.begin(here)
            return None, Order.TELL_STATE
        return None, Order.GO_ON

    def _begin_round(self, since: int, order: Order) -> None:
        """Tell all the table, who plays what, and what to tell; again if somebody was lost meanwhile."""
        workers = [peer.rank for peer in self.peers.learners]
        if not workers:
            raise NobodyLeft
        self._attempt += 1
        self._is_broken = False
        self._played: dict[int, RoundMaps] = {}
        self._sizes: dict[int, int] = {}
        carried_by = carriers(self.settings, workers)
        if carried_by != self._carried_by:
            self._laggards.begin()
        self._carried_by = carried_by
        ready: dict[int, np.ndarray] = {}
        for peer in self.peers.present.values():
            base = -1 if peer.client.is_new else since
            peer.client.is_new = False
            if base not in ready:
                refresh = self.table.refresh(base)
                carriers_of_all = tuple(carried_by.values())
                ready[base] = encode(RoundOrder(self.now_at, refresh, self._attempt, order, carriers_of_all))
            message = ready[base]
            peer.channel.send(message)
            self.tally.bytes_pulled += message.size
        self._states = {}
        if order == Order.TELL_STATE:
            self.report_progress(now=True)
        if order != Order.GO_ON:
            self._asked = self.position
            self._copied = order == Order.TELL_STATE
            if self._copied:
                self._snapshot.copy_now()
        # Silence is judged from now on: who had no part in the end of the last round had nothing to say.
        now = self.group.wire.now()
        for peer in self.peers.present.values():
            peer.channel.last_heard = max(peer.channel.last_heard, now - self.group.timing.interval)

    def _collect(self, order: Order) -> None:
        """Wait for all maps of a round, or all states at the end; begin it again if somebody is lost."""
        is_end = order is Order.TELL_STATE_AND_WAIT
        backoff = Backoff(self.group.wire.sleep)
        while len(self._states if is_end else self._played) < len(self._carried_by):
            woken = self.wake()
            # What each worker said up to here is received before anybody's silence is judged.
            arrived = self.receive()
            self.look_around(woken)
            if self._is_broken:
                self._begin_round(-1, order)
            if not is_end:
                self.report_progress()
            if arrived:
                backoff.reset()
            else:
                backoff.wait()

    def take_in(self, peer: Peer[Client], message: np.ndarray) -> None:
        """Take in a logical worker's maps, a learner's state, or what any worker may send."""
        match decode(message):
            case RoundMaps() as maps:
                self._take_in_maps(peer, message.size, maps)
            case WalkerState() as told:
                self._take_in_state(peer.rank, told)
            case told:
                self.take_in_common(peer, told)

    def _take_in_maps(self, peer: Peer[Client], size: int, maps: RoundMaps) -> None:
        rank, logical = peer.rank, maps.logical
        if maps.attempt < self._attempt:  # of a round that is played again
            return
        is_due = maps.attempt == self._attempt and logical not in self._played
        if not is_due or self._carried_by.get(logical) != rank:
            raise ProtocolError(
                f"Worker {rank} sent attempt {maps.attempt} of logical worker {logical} in attempt "
                f"{self._attempt}, where it is not due."
            )
        if not np.isfinite(maps.maps.shift).all():
            what = f"What rank {rank} learned as logical worker {logical} is no finite number"
            raise diverged(what, self.table.values.dtype)
        self.members.note_push(peer)
        self._played[logical] = maps
        self._sizes[logical] = size
        self.tally.pushes += 1
        self.tally.bytes_pushed += size
        self.tally.learning_seconds += maps.learned.learning_seconds
        self.tally.worker_seconds += maps.learned.worker_seconds

    def _take_in_state(self, rank: int, told: WalkerState) -> None:
        """Keep the state of a logical worker's learner, and save if it was the last that lacked."""
        logical = told.logical
        if told.attempt < self._attempt:
            return
        if self._asked is None or logical in self._states or self._carried_by.get(logical) != rank:
            raise ProtocolError(
                f"Worker {rank} sent the state of logical worker {logical}, which is not due."
            )
        self._states[logical] = told.state
        if len(self._states) == len(self._carried_by) and self._copied and self.saver is not None:
            self._copied = False
            position = replace(self._asked, learners=stack_by_number(self._states))
            self.saver.save(self._snapshot.values, self._snapshot.counts, position)

    def has_lost(self, rank: int) -> int:
        """Play the round again if the worker had a part in it."""
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

    def has_made(self, alone: LearningOn) -> None:
        """Count rounds that this rank played itself, in the table as it is now."""
        self.made += alone.made
        self.table.overwritten()
        number = self.now_at.number + -(-alone.made // steps_before(self.settings, 1, self.steps))
        self.now_at = RoundStart(number, alone.learners, self.tally.so_far(self.seconds))

    def new_client(self, is_first: bool) -> Client:
        """Return what there is to know of a worker: who joins later needs the whole table."""
        return Client(is_new=not is_first)

    def has_admitted(self, rank: int) -> None:
        """Let the worker take part, from the next round on."""

    @property
    def learning(self) -> int:
        """How many ranks learn: this one, if there is nobody else."""
        return min(max(1, len(self.peers.learners)), self.settings.logical_workers)
