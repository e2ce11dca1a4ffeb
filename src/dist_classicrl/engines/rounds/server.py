"""The server of the reproducible mode: it merges each round in the order of the logical workers.

While the others play it has little to do, so that it may play a part itself.
A rank that is lost costs the round: it is played again from its beginning, with the same bits, by the ranks
that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dist_classicrl._words import START_AGAIN
from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.engines.laggards import Laggards
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.outcome import Learned
from dist_classicrl.engines.progress import Learning
from dist_classicrl.engines.roles.cores import knows_cores, with_cores
from dist_classicrl.engines.roles.peers import Peer, RoundClient
from dist_classicrl.engines.roles.server_base import NobodyLeft, Serving
from dist_classicrl.engines.rounds.messages import (
    Order,
    RoundMaps,
    RoundOrder,
    RoundStart,
    WalkerState,
    stack_by_number,
)
from dist_classicrl.engines.rounds.part import RoundPart, carried_of
from dist_classicrl.engines.saving import Position
from dist_classicrl.engines.schedule import sum_of
from dist_classicrl.errors import ProtocolError, RankLostError
from dist_classicrl.learning.state import State, join_states
from dist_classicrl.membership.group import POLL_SECONDS, Group
from dist_classicrl.process.stop import Stop
from dist_classicrl.settings import Settings
from dist_classicrl.tables.maps import diverged
from dist_classicrl.tables.round_merge import RoundMerge

_WHY_MORE = (
    "It carries more logical workers than they. Let logical_workers be a multiple of the ranks that learn."
)


def who_plays(
    settings: Settings, told: Mapping[str, Any], group: Group, workers: Sequence[int], may_repeat: bool
) -> list[int]:
    """Return which ranks play parts of rounds, of these workers and the server.

    It does where that makes the longest part shorter, and where it would have no core while the others play.
    What it has learned is lost with it, and where environments are in Python it could not serve meanwhile: so
    it takes part only where rounds can be repeated, and cores matter.
    """
    if not may_repeat or not knows_cores(told):
        return with_cores(told, group, workers)
    head = group.view.server
    ranks, others = with_cores(told, group, [head, *workers]), with_cores(told, group, workers)
    if head in with_cores(told, group, [*others[: settings.logical_workers], head]) and others:
        is_shorter = settings.longest_part(len(ranks)) < settings.longest_part(len(others))
        return ranks if is_shorter else others
    return ranks


def carriers(settings: Settings, ranks: Sequence[int]) -> dict[int, int]:
    """Return which rank carries each logical worker: neighbors, whose maps it adds up, shared evenly."""
    each, more = divmod(settings.logical_workers, len(ranks))
    carriers = [rank for i, rank in enumerate(ranks) for _ in range(each + (i < more))]
    return dict(enumerate(carriers))


@dataclass
class RoundServer(Serving[RoundClient]):
    """Serves one call of `train` in the reproducible mode."""

    can_rescue = False

    settings: Settings = field(kw_only=True)
    start: int = field(kw_only=True)  # first global step of the whole run
    steps: int = field(kw_only=True)
    first: RoundStart = field(kw_only=True)  # where this server begins
    #: Whether a round can be played again: all learners' state goes along with it.
    may_repeat: bool = field(default=True, kw_only=True)
    #: Gives what this rank plays with, where it does; None: it never does.
    make_part: Callable[[], RoundPart] | None = field(default=None, kw_only=True)
    codec: Codec = field(default_factory=Codec, kw_only=True)

    def __post_init__(self) -> None:
        self.now_at = self.first
        self.made = self.first.made
        self._snapshot = self.table.snapshot()
        self.table.in_order = self.codec.wants_order
        self._attempt = 0
        self._told_all = -math.inf  # when all were, also those that carry nobody
        self._carried_by: dict[int, int] = {}
        self._is_broken = False
        self._part: RoundPart | None = None
        self._own: list[int] = []  # the logical workers that this rank carries
        self._is_part_new = True  # its table is none of this server's
        self._is_part_ready = True  # see `RoundPart.begin`
        self._waited = math.inf  # seconds, for the maps of the last round
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
            pace=self.now_at.pace.to_dict(),
        )

    def run(self) -> Stop | None:
        """Merge round after round. `position` has the learners' state if the run is to stop.

        After `NobodyLeft`, `now_at` says where the run is.
        """
        merge = RoundMerge(self.table)
        since = -1
        while self.made < self.steps:
            if self.reporter.wants_end:
                return None
            stop, order = self._next_order()
            self.members.check_earlier_losses()
            self._begin_round(since, order)
            self._collect(order)
            if stop is not None:
                return stop
            played = sorted(self._played.items(), key=lambda each: each[1].parts.first)
            since = self.table.version
            load = merge.merge([maps.parts for _, maps in played])
            made = sum(maps.steps for _, maps in played)
            self.made += made
            self.tally.steps += made
            self.tally.add_learned(sum_of(np.concatenate([maps.totals for _, maps in played]).reshape(-1, 4)))
            for rank, maps in played:
                spent = Learned(learning_seconds=maps.learning_seconds, worker_seconds=maps.worker_seconds)
                self.reporter.count(rank, maps.steps, spent, n_bytes=self._sizes[rank])
                self._laggards.count(rank, maps.steps, maps.learning_seconds)
            self._laggards.judge()
            # A next round begins here, before the observer hears of it, who may end the run.
            pace = self.now_at.pace.after(made, load, self.table.values, self.settings)
            learners = join_states([maps.learners for _, maps in played]) if self.may_repeat else {}
            self.now_at = RoundStart(pace, self.now_at.number + 1, self.made, learners)
            self._is_part_ready = bool(self._own)
            self.report_progress()
            self.now_at = replace(self.now_at, tally=self.tally.so_far(self.seconds))
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
        carried_by = self._carriers()
        if not carried_by:
            raise NobodyLeft
        self._attempt += 1
        self._is_broken = False
        self._played: dict[int, RoundMaps] = {}  # by rank, as their sizes in bytes
        self._sizes: dict[int, int] = {}
        if carried_by != self._carried_by:
            self._laggards.begin()
        self._carried_by = carried_by
        ready: dict[int, tuple[np.ndarray, int]] = {}
        now = self.group.wire.now()
        waiting = self.waiting(self.peers.present)
        tells_all = order != Order.GO_ON or now >= self._told_all + self.seconds_between_copies(len(waiting))
        if tells_all:
            self._told_all = now
        for peer in self.peers.present.values():
            if not tells_all and peer.rank in waiting:
                peer.client.is_new = True
                continue
            base = -1 if peer.client.is_new else since
            peer.client.is_new = False
            if base not in ready:
                refresh = self.table.refresh(base)
                carriers_of_all = tuple(carried_by.values())
                told = RoundOrder(self.now_at, refresh, self._attempt, order, carriers_of_all)
                ready[base] = self.codec.encode(told)
            message, saved = ready[base]
            peer.channel.send(message)
            self.tally.bytes_pulled += message.size
            self.tally.count_compression(saved, self.codec.take_seconds())
        self._begin_part(since)  # after the others, who have to wait for what they are told
        self._states = {}
        if order == Order.TELL_STATE:
            self.report_progress(now=True)
        if order != Order.GO_ON:
            self._asked = self.position
            self._copied = order == Order.TELL_STATE
            if self._copied:
                self._snapshot.copy_now()
            for logical in self._own:
                assert self._part is not None
                self._keep_state(logical, self._part.learner.state(logical))
        # Silence of those who play is judged from now on: who had no part in the end of the last round had
        # nothing to say. Who waits for a place beats all the while.
        now = self.group.wire.now()
        for rank in set(carried_by.values()) & self.peers.present.keys():
            channel = self.peers.present[rank].channel
            channel.last_heard = max(channel.last_heard, now - self.group.timing.interval)

    def _begin_part(self, since: int) -> None:
        """Get this rank's own part ready, if it has one in this attempt at a round."""
        self._own = carried_of(self.group.rank, self._carried_by.values())
        if self.make_part is None or not self._own:
            self._is_part_new = True
            return
        if self._part is None:
            self._part = self.make_part()
        refresh = self.table.refresh(-1 if self._is_part_new else since)
        self._part.begin(self.now_at, refresh, self._own, len(self._carried_by), self._is_part_ready)
        self._is_part_new = self._is_part_ready = False

    def _play_part(self) -> None:
        """Play this rank's own part of the round, unless somebody is lost meanwhile."""
        assert self._part is not None
        maps = self._part.play(self.now_at, self._attempt, self._goes_on)
        if maps is not None:
            self._take_in_maps(self.group.rank, 0, maps)

    def _goes_on(self) -> bool:
        """Look around now and then in this rank's own part, and return whether the round still counts."""
        if self.group.wire.now() - self._woken >= POLL_SECONDS:
            self._turn(reports=False)
        return not self._is_broken

    def _is_told(self) -> bool:
        """Whether what all are to play has gone: while this rank plays, MPI sends nothing on."""
        carrying = set(self._carried_by.values())
        return all(peer.channel.reap() for peer in self.peers.present.values() if peer.rank in carrying)

    def _carriers(self) -> dict[int, int]:
        """Return which rank is to carry each logical worker from now on; {} where nobody is left.

        A learner whose state cannot be put back stays where it is, whoever joins.
        """
        if self._carried_by and not self.may_repeat:
            return self._carried_by
        workers = [peer.rank for peer in self.peers.learners]
        if not workers:
            return {}
        may_repeat = self.may_repeat and self.make_part is not None
        return carriers(self.settings, who_plays(self.settings, self.told, self.group, workers, may_repeat))

    def _collect(self, order: Order) -> None:
        """Wait for all maps of a round, or all states at the end; begin it again if somebody is lost."""
        is_end = order is Order.TELL_STATE_AND_WAIT
        backoff, begin = Backoff(self.group.wire.sleep), self.group.wire.now()
        backoff.expect(self._waited)
        while self._lacks(is_end):
            arrived = self._turn(reports=not is_end)
            if self._is_broken:
                if order is Order.TELL_STATE and not self._copied:  # the checkpoint is being written
                    order = Order.GO_ON
                self._begin_round(-1, order)
            if self._own and not is_end and self.group.rank not in self._played and self._is_told():
                self._play_part()
                begin = self.group.wire.now()
                backoff.reset()
            elif arrived:
                backoff.reset()
            else:
                backoff.wait()
        self._waited = self.group.wire.now() - begin

    def _turn(self, reports: bool) -> int:
        """Go round the main loop once. Return how many messages came."""
        woken = self.wake()
        # What each worker said up to here is received before anybody's silence is judged.
        arrived = self.receive()
        self.look_around(woken)
        if reports and not self._is_broken:
            self.report_progress()
        return arrived

    def _lacks(self, is_end: bool) -> bool:
        if is_end:
            return len(self._states) < len(self._carried_by)
        return len(self._played) < len(set(self._carried_by.values()))

    def take_in(self, peer: Peer[RoundClient], message: np.ndarray) -> None:
        """Take in a logical worker's maps, a learner's state, or what any worker may send."""
        told, saved = self.codec.decode(message)
        self.tally.count_compression(saved, self.codec.take_seconds())
        match told:
            case RoundMaps() as maps if maps.attempt < self._attempt:
                pass  # of a round that is played again
            case RoundMaps() as maps:
                self._take_in_maps(peer.rank, message.size, maps)
                self.members.note_push(peer)
            case WalkerState() as state:
                self._take_in_state(peer.rank, state)
            case _:
                self.take_in_common(peer, told)

    def _take_in_maps(self, rank: int, size: int, maps: RoundMaps) -> None:
        carried = carried_of(rank, self._carried_by.values())
        is_due = maps.attempt == self._attempt and carried and rank not in self._played
        if not is_due or not maps.is_of(range(carried[0], carried[-1] + 1), len(self._carried_by)):
            raise ProtocolError(
                f"Worker {rank} sent attempt {maps.attempt} of {len(maps.parts.counts)} parts from logical "
                f"worker {maps.parts.first} on in attempt {self._attempt}, where they are not due."
            )
        if not np.isfinite(maps.parts.sums.targets).all():
            who = maps.parts.named(int(np.flatnonzero(~np.isfinite(maps.parts.sums.targets))[0]))
            what = f"What rank {rank} learned as logical worker {who} is no finite number"
            raise diverged(what, self.table.values.dtype)
        self._played[rank] = maps
        self._sizes[rank] = size
        self.tally.pushes += len(carried)
        self.tally.bytes_pushed += size
        self.tally.count_compression(0, maps.compressing)
        self.tally.learning_seconds += maps.learning_seconds
        self.tally.worker_seconds += maps.worker_seconds

    def _take_in_state(self, rank: int, told: WalkerState) -> None:
        logical = told.logical
        if told.attempt < self._attempt:
            return
        if self._asked is None or logical in self._states or self._carried_by.get(logical) != rank:
            raise ProtocolError(
                f"Worker {rank} sent the state of logical worker {logical}, which is not due."
            )
        self._keep_state(logical, told.state)

    def _keep_state(self, logical: int, state: State) -> None:
        """Keep the state of a logical worker's learner, and save if it was the last that lacked."""
        self._states[logical] = state
        if len(self._states) == len(self._carried_by) and self._copied and self.saver is not None:
            self._copied = False
            assert self._asked is not None
            position = replace(self._asked, learners=stack_by_number(self._states))
            self.saver.save(self._snapshot.values, self._snapshot.counts, position)

    def has_lost(self, rank: int) -> int:
        """Play the round again if the worker had a part in it."""
        if rank not in self._carried_by.values():
            return 0
        if not self.may_repeat:
            raise RankLostError(
                f"Rank {rank} is lost, and with it the state of its environments or its replay memory, which "
                f"the reproducible mode cannot do without. {START_AGAIN}"
            )
        self._is_broken = True
        return 0

    def has_made(self, alone: LearningOn) -> None:
        """Count rounds that this rank played itself, in the table as it is now."""
        self.made += alone.made
        self.table.overwritten()
        self._is_part_new, self._is_part_ready = True, False
        number = self.now_at.number + alone.rounds
        tally = self.tally.so_far(self.seconds)
        self.now_at = RoundStart(alone.pace, number, self.made, alone.learners, tally)

    def new_client(self, is_first: bool) -> RoundClient:
        """Return what there is to know of a worker: who joins later needs the whole table."""
        return RoundClient(is_new=not is_first)

    def has_admitted(self, rank: int) -> None:
        """Let the worker take part, from the next round on."""

    def waiting(self, ranks: Collection[int]) -> Collection[int]:
        """See `Service`."""
        return set(ranks).difference((self._carried_by or self._carriers()).values())

    def who_learns(self) -> list[Learning]:
        """See `Serving`: this rank does as well, where it plays a part."""
        return [*([self.own_learning] if self._plays else ()), *super().who_learns()]

    @property
    def _plays(self) -> bool:
        return self.group.rank in (self._carried_by or self._carriers()).values()

    @property
    def learning(self) -> int:
        """How many ranks learn: this one, if there is nobody else."""
        return max(1, len(self.who_learns()))
