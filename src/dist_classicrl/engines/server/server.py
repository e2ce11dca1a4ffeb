"""The parameter server of asynchronous training.

It applies pushes, hands out leases and refreshes, and sleeps in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.roles.messages import AskToStop
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.roles.server_base import Serving
from dist_classicrl.engines.roles.shutdown import LAST_PUSH_SECONDS
from dist_classicrl.engines.saving import Position, Saver
from dist_classicrl.engines.server.leases import Lease, LeaseBook
from dist_classicrl.engines.server.messages import HandIn, Handover, Push, Pushed, Reply, Wishes
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.maps import Refresh

_SHORTEST_SLEEP = 5e-5
_LONGEST_SLEEP = 4e-3
_LONGEST_CALM_SLEEP = 2e-2
_END_SECONDS = 0.5
_CALM_DUTY = 0.02
_BUSY_DUTY = 0.5
_OFFER_SECONDS = 0.1
_COPY_SECONDS = 2e-3


@dataclass
class Client:
    """What the server knows of one worker's work."""

    version: int
    wishes: Wishes = Wishes()
    starved: bool = True
    owes_reply: bool = True
    has_stopped: bool = False
    hands_in: bool = False  # it has not told all that this server may lack
    told: np.ndarray | None = None  # the values that it has, where it gets previews


@dataclass
class Server(Serving[Client]):
    """Serves one call of `train`, from its beginning or in place of a server that was lost.

    If it `takes_over`, the workers have to hand in first what the lost one may not have passed on.
    """

    can_rescue = True

    leases: LeaseBook = field(kw_only=True)
    takes_over: bool = field(default=False, kw_only=True)
    codec: Codec = field(default_factory=Codec, kw_only=True)
    carry: Carry = field(default=SEND_ALL, kw_only=True)  # what of refreshes may wait

    def __post_init__(self) -> None:
        self._snapshot = self.table.snapshot()
        self.table.in_order = self.codec.wants_order
        self._handover: tuple[int, Handover | None] = -1, None  # with the version that it is of
        self._offered = 0.0
        self._was_ramping = True
        self._is_stopping = False
        super().__post_init__()  # last: it asks for new clients, which takes the above

    @property
    def position(self) -> Position:
        """How far the run is, for a checkpoint of the table as it is now."""
        return Position(
            self.leases.start + self.leases.done,
            self.tally.to_dict(self.seconds),
            "async",
            version=self.table.version,
            applied={str(rank): sequence for rank, sequence in self.table.applied.items()},
        )

    def run(self) -> Stop | None:
        """Apply pushes and hand out leases.

        When it returns, all that the workers had learned is in the table, except what a worker held that did
        not answer within two seconds.
        """
        self._report_at_step()  # who takes over may have pushed more than the lost one had reported
        while True:
            if self.reporter.wants_end and not self._awaits_maps and not self.leases.is_over:
                self.leases.end()
                self._ask_for_last_pushes()
            if self._is_done:
                break
            woken = self.wake()
            # What each worker said up to here is received before anybody's silence is judged.
            self.receive()
            if self._is_done:
                break
            self.look_around(woken)
            if not self._awaits_maps:
                self.members.check_earlier_losses()
                for peer in self.peers.learners:
                    if peer.client.owes_reply:
                        self._reply(peer, self._grant(peer))
                self._offer(woken)
            self.report_progress()
            if self.saver is not None:
                steps = self.leases.start + self.leases.done
                if (stop := self.saver.look(steps)) is not None:
                    self._take_in_last_pushes()
                    return None if self._is_done else stop
                self._save(self.saver, steps)
            if not self._is_done:
                self._sleep(self.group.wire.now() - woken)
        return None

    @property
    def _is_done(self) -> bool:
        return self.leases.finished and not self._awaits_maps

    @property
    def _awaits_maps(self) -> bool:
        return self.takes_over and any(peer.client.hands_in for peer in self.peers.learners)

    def _save(self, saver: Saver, steps: int) -> None:
        """Begin a checkpoint if it is time at `steps`, or copy more of the table for the last one."""
        snapshot = self._snapshot
        if not snapshot.copying:
            if not saver.is_due(steps):
                return
            saver.begin(steps)
            snapshot.begin()
            self.table.watch(snapshot)
        if snapshot.advance(_COPY_SECONDS):
            self.table.watch(None)
            self.report_progress(now=True)
            saver.save(snapshot.values, snapshot.counts, self.position)

    def _ask_for_last_pushes(self) -> None:
        for channel in self.channels:
            channel.send(encode(AskToStop()))

    def has_paused(self, seconds: float) -> None:
        """Take note that nobody was heard for so long."""
        self.leases.excuse(seconds)

    def _take_in_last_pushes(self) -> None:
        """Ask the workers for what they have not pushed, and wait for it, but not for long."""
        wire = self.group.wire
        self.table.watch(None)
        self._is_stopping = True
        self._ask_for_last_pushes()
        deadline = wire.now() + LAST_PUSH_SECONDS
        backoff = Backoff(wire.sleep)
        while wire.now() < deadline and not all(
            peer.client.has_stopped or peer.channel.lost for peer in self.peers.learners
        ):
            if not self.receive():
                backoff.wait()

    def take_in(self, peer: Peer[Client], message: np.ndarray) -> None:
        """Take in a push, or what any worker may send."""
        told, saved = self.codec.decode(message)
        self.tally.count_compression(saved, self.codec.take_seconds())
        match told:
            case Push() as push if peer.learns:
                self._push(peer, message.size, push)
            case HandIn() as handed_in if peer.learns:
                self._take_hand_in(peer, message.size, handed_in)
            case _:
                self.take_in_common(peer, told)

    def _push(self, peer: Peer[Client], size: int, push: Push) -> None:
        rank, client = peer.rank, peer.client
        pushed = push.pushed
        client.wishes, client.starved, client.has_stopped = push.wishes, push.wishes.is_starved, push.is_last
        self.members.note_progress(peer, push.progress, (self.group.view.term, push.revision))
        self.members.note_push(peer)
        staleness = self.table.version - push.known_version if push.known_version >= 0 else 0
        self.table.apply(rank, pushed.sequence, pushed.packed)
        self.leases.report(rank, push.made.items(), pushed.learned.learning_seconds)
        if client.has_stopped and self.leases.is_over:
            self.leases.give_up(rank)
        self._count(rank, pushed, size, staleness)
        self.tally.count_compression(push.bytes_saved, push.compressing, push.waiting)
        client.owes_reply = True
        self._report_at_step()

    def _report_at_step(self) -> None:
        """Report if this push came to the step for that, before the next is applied or any is answered.

        So the report is of the first table with so many, and no worker's base is ahead of the reports: who
        takes over from this server misses none. At a stop, workers must not wait for callbacks.
        """
        if self.reporter.is_at_step and not self._is_stopping:
            self.report_progress()

    def apply_if_lacking(self, rank: int, pushed: Pushed, size: int = 0) -> None:
        """Apply a push that a server before this one may have had, if the table lacks it."""
        if self.table.apply(rank, pushed.sequence, pushed.packed):
            self.leases.credit(pushed.steps)
            self._count(rank, pushed, size)
            self._report_at_step()

    def has_made(self, alone: LearningOn) -> None:
        """Count what this rank learned itself, which is in the table as it is now."""
        self.leases.credit(alone.made)
        self.table.overwritten()

    def _take_hand_in(self, peer: Peer[Client], size: int, handed_in: HandIn) -> None:
        """Apply a push that the server before this one may have had: pushes of survivors count."""
        rank = peer.rank
        if handed_in.pushed is not None:
            self.apply_if_lacking(rank, handed_in.pushed, size)
        if handed_in.is_last:
            # What it forgot when it came back, before its base had caught up, is not missing here.
            self.table.applied[rank] = max(self.table.applied.get(rank, 0), handed_in.last_sequence)
            peer.client.hands_in = False
            peer.client.owes_reply = True

    def _count(self, rank: int, pushed: Pushed, size: int, staleness: int = 0) -> None:
        tally, learned = self.tally, pushed.learned
        tally.steps = tally.earlier_steps + self.leases.done
        tally.pushes += 1
        tally.bytes_pushed += size
        tally.staleness += staleness
        tally.add_learned(learned)
        tally.learning_seconds += learned.learning_seconds
        tally.worker_seconds += learned.worker_seconds
        self.reporter.count(rank, pushed.steps, learned, staleness, size)

    def _offer(self, now: float) -> None:
        """Give leases, now and then, to those who got none: others may be lost by now, or slower."""
        if self.leases.pool == 0 or (now - self._offered < _OFFER_SECONDS and not self._was_ramping):
            return
        self._was_ramping = self.leases.is_ramping  # who waited for the end of that is asked at once
        self._offered = now
        for peer in self.peers.learners:
            if peer.client.starved and (lease := self._grant(peer)) is not None:
                self._reply(peer, lease)

    def _grant(self, peer: Peer[Client]) -> Lease | None:
        wishes = peer.client.wishes
        return self.leases.grant(peer.rank, wishes.quantum, wishes.interval_seconds)

    def _reply(self, peer: Peer[Client], lease: Lease | None) -> None:
        client = peer.client
        refresh, handover = None, None
        if client.wishes.refresh and client.version < self.table.version:
            if client.told is not None and not client.wishes.whole_refresh:
                refresh = self.table.preview(client.version, client.told, self.carry)
            else:
                refresh, handover = self.table.refresh(client.version), self._current_handover()
                client.version = refresh.version
                self._note_told(client, refresh)
        reply = Reply(self.table.applied.get(peer.rank, 0), lease, refresh, handover)
        message, saved = self.codec.encode(reply)
        peer.channel.send(message)
        self.tally.bytes_pulled += message.size
        self.tally.count_compression(saved, self.codec.take_seconds())
        client.owes_reply = False
        client.starved = client.starved and lease is None

    def _note_told(self, client: Client, refresh: Refresh) -> None:
        """Take note of the values that the worker has now, where it gets previews of what comes next.

        A preview has the part of a refresh that matters most. The worker's base stays complete all the same:
        it is what others may have to go on from.
        """
        if self.carry.share == 1.0 and not self.carry.bits:
            return
        if client.told is None or refresh.entries is None:
            client.told = self.table.values.copy()
        else:
            client.told[refresh.entries] = refresh.values

    def _current_handover(self) -> Handover | None:
        if self._handover[0] != self.table.version:
            handover = Handover.of(self.leases.done, self.table.applied, self.tally.so_far(self.seconds))
            self._handover = self.table.version, handover
        return self._handover[1]

    def new_client(self, is_first: bool) -> Client:
        """Return what there is to know of a worker: who joins later has no version of this server's."""
        if not is_first:
            return Client(-1)
        return Client(-1 if self.takes_over else self.table.version, hands_in=self.takes_over)

    def has_admitted(self, rank: int) -> None:
        """Give the worker leases."""
        self.leases.add(rank)

    def has_lost(self, rank: int) -> int:
        """Take back the worker's leases."""
        return self.leases.remove(rank)

    @property
    def learning(self) -> int:
        """How many ranks learn: this one, if there is nobody else."""
        return max(1, len(self.peers.learners))

    def _sleep(self, worked: float) -> None:
        """Sleep for the shortest interval between pushes, half of it in a hurry."""
        clients = [peer.client for peer in self.peers.learners]
        hurry = any(client.wishes.is_urgent or client.starved for client in clients)
        duty = _BUSY_DUTY if hurry else _CALM_DUTY
        intervals = (client.wishes.interval_seconds for client in clients)
        wanted = min((seconds for seconds in intervals if seconds), default=0.0)
        if hurry:
            wanted *= 0.5
        # Towards the end leases are short, and who waits for one must not wait long.
        short = self.leases.seconds_left < _END_SECONDS or self._snapshot.copying
        longest = _LONGEST_SLEEP if short else _LONGEST_CALM_SLEEP
        self.group.wire.sleep(max(_SHORTEST_SLEEP, min(max(wanted, worked * (1.0 / duty - 1.0)), longest)))
