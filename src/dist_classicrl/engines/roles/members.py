"""Who works for a server: who is lost, who leaves, joins or is replaced, and what all are told of it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np

from dist_classicrl._words import START_AGAIN, counted
from dist_classicrl.comm.messages import encode
from dist_classicrl.comm.transport import Channel
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.roles.messages import Leave
from dist_classicrl.engines.roles.peers import Client, Peer, PeerEvent, Peers, PeerState
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.errors import CutOffError, RankLostError
from dist_classicrl.membership.admission import FIRST_ADMISSION, Assignment, Join, Welcome
from dist_classicrl.membership.election import Base, Deposed, Prepare, answer
from dist_classicrl.membership.group import Group, NewView, Release
from dist_classicrl.membership.phi_accrual import Arrivals
from dist_classicrl.membership.spawn import Replacements
from dist_classicrl.membership.view import Announced, confirmed
from dist_classicrl.tables.shared import ServedTable

logger = logging.getLogger(__name__)

_REPLACEMENT_SECONDS = 120.0  # in which a replacement gets from its start to `train`


class Service(ABC, Generic[Client]):
    """What an engine does when its workers change: `Members` calls it from within the server's own loop."""

    counts_as_worker: ClassVar[bool] = False
    """Whether this rank counts for `min_workers`, as the workers do."""

    @abstractmethod
    def new_client(self, is_first: bool) -> Client:
        """Return what there is to know of a worker's work; `is_first`: it is there from the beginning."""

    @abstractmethod
    def has_admitted(self, rank: int) -> None:
        """Count on a worker that has just joined."""

    @abstractmethod
    def has_lost(self, rank: int) -> int:
        """Do without a worker, whether it is gone or waits. Return its steps that others make now."""

    @abstractmethod
    def take_in(self, peer: Peer[Client], message: np.ndarray) -> None:
        """Take in a message of a worker."""

    def waiting(self, ranks: Collection[int]) -> Collection[int]:
        """Return those of these workers that have nothing to do, and are to take another one's place."""
        return ()


@dataclass(eq=False)
class Members(Generic[Client]):
    """The workers of one server, from when it begins to serve. A rank that joins is `told` of the call."""

    group: Group
    table: ServedTable
    policy: LossPolicy
    tally: Tally
    told: dict[str, Any]
    service: Service[Client]

    def __post_init__(self) -> None:
        group, policy = self.group, self.policy
        self.peers: Peers[Client] = Peers()
        self.begun = group.wire.now()
        self._announced = Announced(group.view)
        self.lost_before: list[tuple[int, str]] = []  # before this rank began to serve, and why
        self._joining: set[int] = set()  # ranks that have voted for this one, and are about to ask to join
        self.is_backed = True  # whether enough of those who voted for this rank have come to follow it
        self._known_dead: set[int] = set()
        self._witnesses: set[int] = set()  # ranks heard since MPI last said that one has died
        self._requests: dict[int, int] = {}  # the last one to take part of each rank
        self._replacements: Replacements | None = None
        if policy.on_failure == "replace":
            self._replacements = Replacements(policy.max_replacements, str(group.call), group.wire.now)
        for rank in group.view.workers:
            self._open(rank, FIRST_ADMISSION)

    @property
    def seconds(self) -> float:
        """Seconds since this rank began to serve."""
        return self.group.wire.now() - self.begun

    def note(self, kind: str, rank: int, steps_returned: int = 0, detail: str = "") -> None:
        """Enter into the record what happened to `rank`."""
        seconds = self.tally.earlier_seconds + self.seconds
        self.group.events.add(kind, rank, seconds, steps_returned, detail)

    def _open(self, rank: int, admission: int) -> None:
        group = self.group
        channel = group.wire.channel(rank, group.tag(group.view.term, admission))
        self._add(rank, channel, PeerState.LEARNING, admission == FIRST_ADMISSION)

    def _add(self, rank: int, channel: Channel, state: PeerState, is_first: bool) -> None:
        client = self.service.new_client(is_first)
        self.peers.add(Peer(rank, channel, client, *self._heard_now(), state=state))

    def _heard_now(self) -> tuple[Arrivals, float]:
        now = self.group.wire.now()
        return Arrivals(self.group.timing.interval, now=now), now

    # Signs of life

    def excuse(self, seconds: float) -> None:
        """Count so many seconds, in which nothing was received, as nobody's silence."""
        for peer in self.peers.present.values():
            peer.arrivals.excuse(seconds)
            peer.channel.last_heard += seconds
            peer.progressed_at += seconds

    def heard(self, peer: Peer[Client], now: float) -> None:
        """Hear a worker, whatever it says."""
        peer.arrivals.heard(now)
        if self._known_dead != self.group.dead:
            self._known_dead = set(self.group.dead)
            self._witnesses.clear()
        if self._known_dead and peer.rank not in self._witnesses:
            self._witnesses.add(peer.rank)
            self._announced.settle(self._died_for_sure())
        self._note_view(peer, (self.group.view.term, 0))  # else it would not have this channel

    def _died_for_sure(self) -> set[int]:
        """Return who has died beyond doubt: MPI says so, and the host it was on is still heard.

        When a host is cut off, MPI may give up its ranks one by one, and this rank not have missed the last
        of them. So somebody there has to be heard after that word.
        """
        group = self.group
        present = self._witnesses if self._known_dead == group.dead else ()
        return confirmed(group.dead, {group.rank, *present}, group.host_of)

    def note_progress(self, peer: Peer[Client], progress: int, view: tuple[int, int]) -> None:
        """Hear how far a worker's main loop is, and which view it knows."""
        group = self.group
        if progress != peer.progress:
            peer.progress = progress
            peer.progressed_at = group.wire.now()
            if peer.is_untried and self.service.waiting([peer.rank]):
                self.note_push(peer)  # it has begun, which is all it is to do
        self._note_view(peer, view)

    def _note_view(self, peer: Peer[Client], view: tuple[int, int]) -> None:
        if self._announced.awaits(peer.rank, view):
            self._announced.echo(peer.rank, view, self._died_for_sure())

    def note_push(self, peer: Peer[Client]) -> None:
        """Take note that a worker has done something."""
        if peer.is_untried and self._replacements is not None:
            self._replacements.note_first_push()
        self.peers.note(peer, PeerEvent.PUSHED)

    def may_serve(self, heard: Collection[int]) -> bool:
        """Whether the ranks that are `heard` are enough to go on."""
        group = self.group
        return self._announced.may_serve({group.rank, *heard}, self._died_for_sure(), group.host_of)

    # Losses

    def look(self, now: float) -> None:
        """Take in control messages, judge who is lost, and start or let in who replaces them.

        `Deposed` is raised if another rank serves now, a `CutOffError` if too few ranks are heard to go on,
        and a `RankLostError` if so few are left, or any loss is one too many, by the policy.
        """
        self.take_in_control()
        for rank, why in self.judge(now).items():
            self.lose(rank, why)
        if self._announced.is_outdated:  # so that the others elect by the newest view alone
            self._change_members(set(self.group.view.members))
        if self._replacements is not None:
            self._replace(self._replacements, now)

    def take_in_control(self) -> None:
        """Take in control messages, of which only some concern a server."""
        group = self.group
        for sender, control in group.poll():
            match control:
                case NewView():
                    if (view := group.accept(control)) is not None:
                        raise Deposed(view)
                case Prepare():
                    answer(group, sender, control, Base(), lambda: False)
                case Join(number) if number > self._requests.get(sender, 0):  # it asks more than once
                    self._requests[sender] = number
                    self._admit(sender)
            # Anything else answers a question of this rank that has been settled otherwise.

    def judge(self, now: float) -> dict[int, str]:
        """Return who is to be excluded, and why; a CutOffError is raised if too few are left to go on."""
        group, timing = self.group, self.group.timing
        silent: dict[int, str] = {}
        stuck: dict[int, str] = {}  # heard here, so they follow no other server
        doubtful: set[int] = set()
        dead: set[int] = set()
        for rank, peer in self.peers.present.items():
            channel = peer.channel
            if channel.lost is not None or rank in group.dead:
                silent[rank] = "MPI reports its death"
                dead.add(rank)
            elif now - channel.last_heard > timing.silence:
                silent[rank] = f"silent for {now - channel.last_heard:.1f} s"
            else:
                self._suspect(peer, now)
                if peer.is_suspect:
                    doubtful.add(rank)
                if now - peer.progressed_at > timing.stuck:
                    stuck[rank] = f"its main loop made no progress for {now - peer.progressed_at:.1f} s"
        lost = {**silent, **stuck}
        if not self.is_backed:
            self.is_backed = self.may_serve(group.view.members)
            if not self.is_backed and now > self.begun + 2.0 * timing.silence:
                raise CutOffError(
                    f"Rank {group.rank} was elected to serve, and too few of those who voted follow it: the "
                    f"network may be cut, and the others may go on without it. {START_AGAIN}"
                )
        if not lost:
            return lost
        group.dead.update(dead.intersection(group.view.members))
        present = set(group.view.members) - set(silent)
        if silent and not self.may_serve(present):
            if self._announced.may_serve(present, group.dead, group.host_of):
                return {}  # hosts of the dead are to be heard again first, or to fall silent
            if not self.is_backed:
                return {}  # who is about to join may make up for them, and has its time, see above
            raise CutOffError(
                f"The server, rank {group.rank}, does not hear the ranks "
                f"{', '.join(map(str, sorted(silent)))} any more ({next(iter(silent.values()))}), which is "
                "more than half of the run: the network may be cut, and the others may go on without it. "
                + START_AGAIN
            )
        sure = not doubtful or self.may_serve(present - doubtful)
        return lost if sure else {}

    def _suspect(self, peer: Peer[Client], now: float) -> None:
        if peer.arrivals.is_suspect(now) == peer.is_suspect:
            return
        if peer.is_suspect:
            self.peers.note(peer, PeerEvent.CLEARED)
            self.note("cleared", peer.rank)
        else:
            self.peers.note(peer, PeerEvent.DOUBTED)
            silence = f"silent for {now - peer.channel.last_heard:.2f} s"
            self.note("suspected", peer.rank, detail=silence)

    def lose(self, rank: int, why: str) -> None:
        """Exclude a worker; a `RankLostError` is raised if that is one too many, by the policy."""
        self.drop(rank, why)
        self._check_policy(rank, why)

    def drop(self, rank: int, why: str) -> None:
        """Exclude a worker, and tell it and all others."""
        peer = self.peers.present[rank]
        if self._replacements is not None:
            self._replacements.wanted(1)
            if peer.is_untried:
                self._replacements.note_death_before_first_push()
        returned = self._do_without(peer)
        self.peers.note(peer, PeerEvent.LOST)
        self.note("excluded", rank, returned, why)
        self._change_members(set(self.group.view.members) - {rank}, rank)

    def _do_without(self, peer: Peer[Client]) -> int:
        """Let the engine do without a worker, if it counts on it; if that raises, it has to be told yet."""
        return self.service.has_lost(peer.rank) if peer.learns else 0

    def _check_policy(self, rank: int, why: str) -> None:
        """Check that the run may go on without `rank`, which was lost."""
        policy, left = self.policy, len(self.peers.learners) + self.service.counts_as_worker
        if policy.on_failure == "abort":
            raise RankLostError(
                f'Rank {rank} is lost ({why}), and on_failure="abort" ends the run then. "continue" goes on '
                "without it."
            )
        if left < policy.min_workers:
            raise RankLostError(
                f"Rank {rank} is lost ({why}), which leaves {counted(left, 'worker')}: fewer than "
                f"min_workers={policy.min_workers}. Start the job again with more ranks, or lower "
                "min_workers."
            )

    def check_earlier_losses(self) -> None:
        """Have replaced who was lost before this rank began to serve; RankLostError if the policy says so.

        Who is about to join is waited for.
        """
        if self.awaits_somebody:
            return
        for rank, why in self.lost_before:
            if self._replacements is not None:
                self._replacements.wanted(1)
            self._check_policy(rank, why)
        self.lost_before.clear()

    def begin_in_place_of(self, at_first: Collection[int]) -> None:
        """Tell all that this rank serves now, and who had no part in that, of those there `at_first`.

        It goes by what was told, not by the view that was: who was elected before may have died untold.
        """
        group = self.group
        why = "it had no part in the election"
        missing = group.events.missing(at_first, group.view.members)
        for rank in missing:
            self.note("excluded", rank, detail=why)
        self.lost_before += [(rank, why) for rank in missing]
        if self._replacements is not None:  # what the servers before this one still wanted as well
            self.lost_before = group.events.unreplaced(group.view.members)
        self._joining.update(group.joining)
        self.is_backed = False
        self.note("failover", group.rank, detail=f"term {group.view.term}")
        self._change_members(set(group.view.members))

    # Coming and going

    @property
    def awaits_somebody(self) -> bool:
        """Whether ranks that voted for this one are about to join: the run must not end without them.

        They had nothing to go on with, and ask as soon as they know who serves.
        """
        group = self.group
        if self._joining:
            self._joining -= group.dead
            if group.wire.now() > self.begun + group.timing.silence:
                self._joining.clear()
        return bool(self._joining)

    def let_go(self, peer: Peer[Client], leave: Leave) -> None:
        """Do without a worker that says so itself: it leaves the job, or only waits for the end."""
        returned = self._do_without(peer)
        self.peers.note(peer, PeerEvent.RETIRED if leave.waits else PeerEvent.LEFT)
        if not leave.waits or peer.rank not in self.group.events.lost:  # else the server before has told it
            self.note(leave.event, peer.rank, returned, leave.why)
        if not leave.waits:
            peer.channel.send(encode(Release()))
            self._change_members(set(self.group.view.members) - {peer.rank})

    def _change_members(self, members: set[int], *others: int) -> None:
        self.group.announce(self._announced.change(tuple(sorted(members))), *others)

    def _admit(self, rank: int) -> None:
        """Let `rank` take part from now on."""
        group = self.group
        if rank in self.peers.present:  # it was away for less time than it takes to be missed
            self.drop(rank, "it asks to join anew")
        group.dead.discard(rank)
        self._joining.discard(rank)
        self.lost_before = [(lost, why) for lost, why in self.lost_before if lost != rank]
        self.note("readmitted", rank)
        self._change_members({*group.view.members, rank})
        admission = FIRST_ADMISSION + group.view.revision
        self._open(rank, admission)
        group.send(rank, Welcome(admission, self.table.applied.get(rank, 0), group.view, self.told))
        self.service.has_admitted(rank)

    def _replace(self, replacements: Replacements, now: float) -> None:
        """Start replacements, processes that only this server knows, and let in those that are ready."""
        group = self.group
        replacements.start(now)
        for intercomm in replacements.poll():
            channel = group.wire.channel_over(intercomm)
            rank = self._new_number()
            channel.send(encode(Assignment(rank, group.view, self.told)))
            self._add(rank, channel, PeerState.EXPECTED, False)
        for peer in self.peers.expected:
            message = peer.channel.poll()
            if message is not None:
                peer.arrivals, peer.progressed_at = self._heard_now()
                self.peers.note(peer, PeerEvent.SPOKE)
                self.service.has_admitted(peer.rank)
                self.note("replaced", peer.rank)
                self._change_members(set(group.view.members))  # else a new server fills that place again
                self.service.take_in(peer, message)
            elif peer.channel.lost is not None or now - peer.channel.last_sent > _REPLACEMENT_SECONDS:
                self.peers.note(peer, PeerEvent.LOST)
                logger.warning("Replacement %d was lost before it could begin.", peer.rank)
                replacements.wanted(1)
                replacements.note_death_before_first_push()

    def _new_number(self) -> int:
        """Return a number that no rank has had, under this server or an earlier one."""
        events = (event["rank"] for event in self.group.events.entries)
        peers = (peer.rank for peer in self.peers)
        return 1 + max(self.group.wire.size - 1, *self.table.applied, *events, *peers)
