"""The parameter server of asynchronous training.

It applies pushes, hands out leases and refreshes, and sleeps in between.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from dist_classicrl.comm.compression import Codec
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.compression import SEND_ALL, Carry
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.progress import Learning
from dist_classicrl.engines.roles.messages import AskToStop
from dist_classicrl.engines.roles.peers import Peer
from dist_classicrl.engines.roles.server_base import Serving
from dist_classicrl.engines.roles.shutdown import LAST_PUSH_SECONDS
from dist_classicrl.engines.saving import Position, Saver
from dist_classicrl.engines.server import topology
from dist_classicrl.engines.server.leases import Lease, LeaseBook
from dist_classicrl.engines.server.messages import (
    Composed,
    ComposedPart,
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
from dist_classicrl.engines.server.tree import Branch, Tree, below, branches
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.maps import Refresh

logger = logging.getLogger(__name__)

_SHORTEST_SLEEP = 5e-5
_LONGEST_SLEEP = 4e-3
_LONGEST_CALM_SLEEP = 2e-2
_END_SECONDS = 0.5
_CALM_DUTY = 0.02
_BUSY_DUTY = 0.5
_OFFER_SECONDS = 0.1
_COPY_SECONDS = 2e-3


@dataclass
class AsyncClient:
    """What the server knows of one worker's work."""

    version: int
    wishes: Wishes = Wishes()
    starved: bool = True
    owes_reply: bool = True
    has_stopped: bool = False  # it takes no more leases
    hands_in: bool = False  # it has not told all that this server may lack
    told: np.ndarray | None = None  # the values that it has, where it gets previews
    branch: Branch | None = None  # in which its maps come; None: they come by themselves
    composes: bool = False  # it is the server of a node, and does not learn
    composed: int = 0  # the last of its composed maps that is in the table

    def comes_in_branch_of_another(self, rank: int) -> bool:
        """Whether the maps of this worker, `rank`, reach the server by way of another rank."""
        return self.branch is not None and self.branch.head != rank


@dataclass
class Server(Serving[AsyncClient]):
    """Serves one call of `train`, from its beginning or in place of a server that was lost.

    If it `takes_over`, the workers have to hand in first what the lost one may not have passed on.
    """

    can_rescue = True

    leases: LeaseBook = field(kw_only=True)
    takes_over: bool = field(default=False, kw_only=True)
    codec: Codec = field(default_factory=Codec, kw_only=True)
    carry: Carry = field(default=SEND_ALL, kw_only=True)  # what of refreshes may wait
    tree: Tree | None = field(default=None, kw_only=True)  # None: all workers push to this rank
    may_be_flat: bool = field(default=False, kw_only=True)  # the tree is for where it is worth it
    max_staleness: int | None = field(default=None, kw_only=True)  # of workers that learn on

    def __post_init__(self) -> None:
        self._route = self.group.first_attempt  # the number of the last one
        self._broken: set[Branch] = set()
        self._probes = self._probed = 0  # sent, and the last that came back
        self._snapshot = self.table.snapshot()
        self.table.in_order = self.codec.wants_order
        self._handover: tuple[int, Handover | None] = -1, None  # with the version that it is of
        self._offered = 0.0
        self._was_ramping = True
        self._is_stopping = False
        self._refused = 0  # pushes, for their staleness
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
            self.reporter.end_if_enough()
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
                self._keep_tree()
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
            peer.client.has_stopped or peer.client.composes or peer.channel.lost
            for peer in self.peers.learners
        ):
            self.keep_alive()
            if not self.receive():
                backoff.wait()

    def take_in(self, peer: Peer[AsyncClient], message: np.ndarray) -> None:
        """Take in a push, or what any worker may send."""
        told, saved = self.codec.decode(message)
        self.tally.count_compression(saved, self.codec.take_seconds())
        match told:
            case Push() as push if peer.learns:
                self._push(peer, message.size, push)
            case Composed() as composed if peer.learns:
                self._take_composed(peer, message.size, composed)
            case Probe(number=number):
                self._probed = number
            case HandIn() as handed_in if peer.learns:
                self._take_hand_in(peer, message.size, handed_in)
            case _:
                self.take_in_common(peer, told)

    def _push(self, peer: Peer[AsyncClient], size: int, push: Push) -> None:
        rank, version = peer.rank, self.table.version
        self.members.note_progress(peer, push.progress, (self.group.view.term, push.revision))
        if peer.client.comes_in_branch_of_another(rank):
            return  # it was under way when the worker got another way, by which it comes again
        # It comes again where a worker that goes another way did not know that it had arrived.
        staleness = _staleness(version, push.known_version)
        if self.table.apply(rank, push.pushed.sequence, push.pushed.packed, staleness):
            self._note_refused(rank, staleness)
            self._take_part(peer, ComposedPart.of(rank, push), size, version)
        self._report_at_step()

    def _note_refused(self, rank: int, staleness: int) -> None:
        if not self.table.merging.refuses(staleness):
            return
        self._refused += 1
        logger.log(
            logging.INFO if self._refused == 1 else logging.DEBUG,
            "A push of rank %d is refused, as it did not know of %d pushes of others, and "
            "max_staleness is %d: what it learned is dropped, its steps count.",
            rank,
            staleness,
            self.table.merging.most_stale,
        )

    def _take_composed(self, peer: Peer[AsyncClient], size: int, composed: Composed) -> None:
        """Apply the maps of several workers, or nothing of them: who of them is there has to send them again.

        Their branch gets other routes in that case, as one of them is lost, or has got them already.
        """
        branch = peer.client.branch
        present, version = self.peers.present, self.table.version
        senders = [present.get(part.rank) for part in composed.parts]
        if (
            branch is None
            or composed.route != branch.number
            or not all(sender and sender.learns and sender.client.branch is branch for sender in senders)
        ):
            logger.debug(
                "Maps that rank %d composed are refused: they came a way that is no more.", peer.rank
            )
            return
        self.table.apply_composed([part[:3] for part in composed.parts], composed.packed)
        for sender, part in zip(senders, composed.parts, strict=True):
            assert sender is not None  # as was checked above
            self._take_part(sender, part, size, version)
            size = 0  # it came once
        peer.client.composed = composed.number
        peer.client.wishes = Wishes(
            is_starved=False, is_urgent=False, refresh=any(part.wishes.refresh for part in composed.parts)
        )
        peer.client.owes_reply = True
        self._report_at_step()

    def _take_part(self, peer: Peer[AsyncClient], part: ComposedPart, size: int, version: int) -> None:
        """Count what came of a worker, of which `size` bytes were its own, to a table of `version`."""
        rank, client = peer.rank, peer.client
        client.wishes, client.starved = part.wishes, part.wishes.is_starved and not client.composes
        client.has_stopped = part.is_last
        self.members.note_push(peer)
        if part.made or part.given_back or rank in self.leases.workers:
            self.leases.report(rank, part.made.items(), part.learned.learning_seconds)
            self.leases.give_back(rank, part.given_back)
            self._end_learning(peer)
        self._count(rank, part, size, _staleness(version, part.known_version))
        self.tally.count_compression(part.bytes_saved, part.compressing, part.waiting)
        client.owes_reply = True

    def _end_learning(self, peer: Peer[AsyncClient]) -> None:
        """Share steps no longer with a worker that composes, once it has reported or given back what it had.

        Until then its pushes are on their way, whatever other routes it gets meanwhile.
        """
        if peer.client.composes and not self.leases.account(peer.rank).leases:
            self.leases.remove(peer.rank)

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

    def _take_hand_in(self, peer: Peer[AsyncClient], size: int, handed_in: HandIn) -> None:
        """Apply a push that the server before this one may have had: pushes of survivors count."""
        rank, pushed = peer.rank, handed_in.pushed
        if pushed is not None:
            is_lacking = pushed.sequence > self.table.applied.get(rank, 0)
            if is_lacking and pushed.steps > self.leases.pool:
                # A server before this one excluded it, of which nobody had heard who voted for this one.
                self.members.drop(rank, "others have made its steps since it was excluded")
                return
            self.apply_if_lacking(rank, pushed, size)
        if handed_in.is_last:
            # What it forgot when it came back, before its base had caught up, is not missing here.
            self.table.applied[rank] = max(self.table.applied.get(rank, 0), handed_in.last_sequence)
            peer.client.hands_in = False
            peer.client.owes_reply = True

    # The tree

    def make_ready(self) -> None:
        """Find out whether the tree is worth it, where that was left open."""
        if self.tree is None or not self.may_be_flat:
            return
        ranks = [peer.rank for peer in self.peers.learners]
        parents = self.tree.parents(ranks, self.group.rank)
        composing = sorted(set(parents.values()) - {self.group.rank})
        if not composing:
            is_worth_it, why = False, "no host besides the server's has three ranks"
        else:
            here = self.group.host_of(self.group.rank)
            others = sum(self.group.host_of(rank) != here for rank in ranks)
            bandwidth = topology.bytes_per_second_over(composing, self._seconds_there_and_back)
            is_worth_it, why = topology.is_worth_a_tree(self.table.values.size, others, bandwidth)
        logger.info("Maps go %s: %s.", "through a tree" if is_worth_it else "to the server directly", why)
        if not is_worth_it:
            self.tree = None

    def _seconds_there_and_back(self, rank: int) -> float:
        wire = self.group.wire
        if rank not in self.peers.present:  # it has left meanwhile
            return topology.PROBE_SECONDS
        self._probes += 1
        begin = wire.now()
        probe = Probe(self._probes, np.zeros(topology.PROBE_BYTES, np.uint8))
        self.peers.present[rank].channel.send(encode(probe))
        backoff = Backoff(wire.sleep)
        while self._probed < self._probes and wire.now() - begin < topology.PROBE_SECONDS:
            if not self.receive():
                self.keep_alive()
                backoff.wait()
        return wire.now() - begin

    def _keep_tree(self) -> None:
        """Let maps come as the tree says: at first, and again where a branch has lost somebody."""
        if self.tree is None:
            return
        if self._route == self.group.first_attempt:
            self._lay_out([peer.rank for peer in self.peers.learners])
        learners = {peer.rank for peer in self.peers.learners}
        broken = list(self._broken)
        self._broken.clear()
        for branch in broken:
            self._lay_out([rank for rank in branch.ranks if rank in learners])

    def _lay_out(self, ranks: list[int]) -> None:
        """Tell `ranks` which way their maps go from now on."""
        group, present = self.group, self.peers.present
        assert self.tree is not None  # as was checked before
        self._route = number = group.next_attempt(self._route)
        parents = self.tree.parents(ranks, group.rank)
        branch_of = branches(parents, group.rank, number)
        for rank in ranks:
            client = present[rank].client
            client.branch, client.told = branch_of.get(rank), None
            client.composes = bool(below(parents, rank))
            client.composed = 0
            client.owes_reply = True
            client.starved = not client.composes
            if rank in self.leases.workers:
                self._end_learning(present[rank])
            elif not client.composes:
                self.leases.add(rank)
        node_servers = sum(peer.client.composes for peer in self.peers.learners)
        for rank in ranks:
            applied = self.table.applied.get(rank, 0)
            route = Route(number, parents[rank], below(parents, rank), node_servers, applied)
            present[rank].channel.send(encode(route))
        composing = [rank for rank in ranks if present[rank].client.composes]
        if composing:
            logger.info(
                "Ranks %s compose the maps of others on their way here.", ", ".join(map(str, composing))
            )

    def _count(self, rank: int, pushed: Pushed | ComposedPart, size: int, staleness: int = 0) -> None:
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

    def _grant(self, peer: Peer[AsyncClient]) -> Lease | None:
        wishes = peer.client.wishes
        if peer.client.composes or peer.client.has_stopped:
            return None
        return self.leases.grant(peer.rank, wishes.quantum, wishes.interval_seconds)

    def _reply(self, peer: Peer[AsyncClient], lease: Lease | None) -> None:
        client = peer.client
        client.owes_reply = False
        client.starved = client.starved and lease is None
        comes_in_branch = client.comes_in_branch_of_another(peer.rank)
        refresh, handover = None, None
        behind = self.table.version - client.version
        is_far_behind = self.max_staleness is not None and behind > self.max_staleness
        if (client.wishes.refresh or is_far_behind) and behind > 0 and not comes_in_branch:
            if client.told is not None and not client.wishes.whole_refresh and not is_far_behind:
                refresh = self.table.preview(client.version, client.told, self.carry)
            else:
                refresh, handover = self.table.refresh(client.version), self._current_handover()
                client.version = refresh.version
                self._note_told(client, refresh)
        reply: Reply | PassedOn
        if client.composes and not comes_in_branch:
            reply = PassedOn(client.composed, refresh, handover, self.table.version)
        elif comes_in_branch and lease is None:
            return  # its receipt comes with what it goes by
        else:
            applied = self.table.applied.get(peer.rank, 0)
            reply = Reply(applied, lease, refresh, handover, self.table.version)
        message, saved = self.codec.encode(reply)
        peer.channel.send(message)
        self.tally.bytes_pulled += message.size
        self.tally.count_compression(saved, self.codec.take_seconds())

    def _note_told(self, client: AsyncClient, refresh: Refresh) -> None:
        """Take note of the values that the worker has now, where it gets previews of what comes next.

        A preview has the part of a refresh that matters most; in a tree there are none, as the server of a
        node goes on from what it is told. The worker's base stays complete all the same: others may have to
        go on from it.
        """
        if client.branch is not None or (self.carry.share == 1.0 and not self.carry.bits):
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

    def new_client(self, is_first: bool) -> AsyncClient:
        """Return what there is to know of a worker: who joins later has no version of this server's."""
        if not is_first:
            return AsyncClient(-1)
        return AsyncClient(-1 if self.takes_over else self.table.version, hands_in=self.takes_over)

    def has_admitted(self, rank: int) -> None:
        """Give the worker leases."""
        self.leases.add(rank)

    def has_lost(self, rank: int) -> int:
        """Take back the worker's leases."""
        branch = self.peers.present[rank].client.branch
        if branch is not None:
            self._broken.add(branch)
        return self.leases.remove(rank) if rank in self.leases.workers else 0

    @property
    def learning(self) -> int:
        """How many ranks learn: this one, if there is nobody else."""
        return max(1, sum(not peer.client.composes for peer in self.peers.learners))

    def who_learns(self) -> list[Learning]:
        """See `Serving`."""
        peers = self.peers.present
        return [
            each
            for each in super().who_learns()
            if each.rank not in peers or not peers[each.rank].client.composes
        ]

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


def _staleness(version: int, known_version: int) -> int:
    """Return how many versions of others a push did not know of that came to this one; 0: not known."""
    return max(0, version - known_version) if known_version >= 0 else 0
