"""What the servers of all engines do alike: they hear workers, report how far the run is, and end it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import Bye, decode, encode, kind_of
from dist_classicrl.comm.remote_errors import Failed, raise_remote
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.loops import LearningOn
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Company, Learning, Reporter
from dist_classicrl.engines.roles.members import Members, Service
from dist_classicrl.engines.roles.messages import AskToStop, Final, Leave
from dist_classicrl.engines.roles.peers import Client, Peer, Peers
from dist_classicrl.engines.run import LossPolicy
from dist_classicrl.engines.saving import Position, Saver
from dist_classicrl.errors import ProtocolError
from dist_classicrl.membership.group import Group, Release
from dist_classicrl.membership.heartbeat import Beat, say_beat
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.shared import ServedTable

_COPY_SECONDS = 1.0
_COPY_SHARE = 0.02
"""Ranks are told all the table, from which they could go on without this one, so often, or less often where
that takes more than this share of the time."""

_GAVE_UP = "it heard too few others to go on, and gave up"


class NobodyLeft(Exception):
    """The server has no workers any more."""


@dataclass
class Serving(Service[Client]):
    """A server's dealings with its workers, whatever it serves."""

    can_rescue: ClassVar[bool]
    """Whether `position` and the table belong together at any time."""

    group: Group
    table: ServedTable
    policy: LossPolicy
    tally: Tally
    reporter: Reporter
    told: dict[str, Any] = field(default_factory=dict)  # to a rank that joins in the middle of the call
    saver: Saver | None = field(default=None, kw_only=True)  # where the run is saved

    def __post_init__(self) -> None:
        self.progress = 0
        self._woken = self.group.wire.now()
        self.members: Members[Client] = Members(
            self.group, self.table, self.policy, self.tally, self.told, self
        )

    # What an engine does, besides what its `Service` does when workers change

    def make_ready(self) -> None:
        """Do what has to be done before anybody is told how far the run is; it raises what `run` does."""

    @abstractmethod
    def run(self) -> Stop | None:
        """Serve until all steps have been made, or until the run is to stop: return why, in that case.

        It raises what `take_in_common` and `look_around` do, and a `CheckpointFencedError` if another server
        has taken over the checkpoints.
        """

    @property
    @abstractmethod
    def position(self) -> Position:
        """How far the run is, for a checkpoint of the table as it is now."""

    @property
    @abstractmethod
    def learning(self) -> int:
        """How many ranks learn."""

    @property
    def learns_here(self) -> bool:
        """Whether this rank learns itself, so that there is a learner whoever is lost."""
        return False

    @abstractmethod
    def has_made(self, alone: LearningOn) -> None:
        """Count what this rank learned itself, which is in the table as it is now."""

    def has_paused(self, seconds: float) -> None:
        """Take note that this rank answered nobody for so long, through no fault of theirs."""

    # Workers

    @property
    def peers(self) -> Peers[Client]:
        """All workers."""
        return self.members.peers

    @property
    def channels(self) -> list[Channel]:
        """To all who are to hear of the end."""
        return [peer.channel for peer in self.peers.present.values()]

    @property
    def seconds(self) -> float:
        """Seconds since this rank began to serve."""
        return self.members.seconds

    def close(self, linger: float) -> None:
        """Close all channels."""
        for peer in self.peers:
            peer.channel.close(linger)

    def beat(self) -> Beat:
        """Return this server's sign of life."""
        return Beat(self.progress, self.group.view.key)

    # The loop

    def keep_alive(self) -> None:
        """Say that this rank is there, while its main loop waits for something else; let go what was sent."""
        self.progress += 1
        say_beat(self.channels, self.beat(), self.group.timing.interval, self.group.wire.now())
        for channel in self.channels:
            channel.reap()

    def wake(self) -> float:
        """Begin a turn of the main loop, and return the time; a pause of this process is nobody's silence."""
        group = self.group
        now = group.wire.now()
        self.progress += 1
        gap = now - self._woken
        if gap > group.timing.interval:
            self.excuse(gap)
        self._woken = now
        return now

    def excuse(self, seconds: float) -> None:
        """Count so many seconds, in which nothing was received, as nobody's silence."""
        self.members.excuse(seconds)
        self._woken = self.group.wire.now()

    def report_progress(self, now: bool = False) -> None:
        """Tell the callbacks what is new, if it is time or `now`. Nothing is received while they run."""
        clock, reporter = self.group.wire.now, self.reporter
        begin = clock()
        reporter.hear(self.group.events, self.saver)
        if reporter.is_due(self.seconds, now):
            reporter.report(self.seconds, self.who_learns())
            reporter.rest(self.seconds)
            self.has_paused(clock() - begin)
        if (spent := clock() - begin) > self.group.timing.interval:
            self.excuse(spent)

    @property
    def own_learning(self) -> Learning:
        """What reports say of this rank, where it learns."""
        return Learning(self.group.rank, self.group.host_of(self.group.rank))

    @property
    def company(self) -> Company:
        """Whom this rank has, should it have to learn alone."""
        return Company(self.own_learning, self.has_workers, self.group.events)

    def who_learns(self) -> list[Learning]:
        """Return what reports say of the ranks that learn: this one first, where it does."""
        now, group, learners = self.group.wire.now(), self.group, self.peers.learners
        waiting = self.waiting([peer.rank for peer in learners])
        workers = [
            Learning(peer.rank, group.host_of(peer.rank), max(0.0, now - peer.channel.last_heard))
            for peer in learners
            if peer.rank not in waiting
        ]
        return [self.own_learning, *workers] if self.learns_here else workers

    def seconds_between_copies(self, ranks: int) -> float:
        """Return after how many seconds so many ranks are told all the table once more."""
        n_bytes = self.table.values.nbytes + self.table.counts.nbytes
        return max(_COPY_SECONDS, ranks * n_bytes / 1e9 / _COPY_SHARE)

    def receive(self) -> int:
        """Take in what has come from the workers. Return how many messages that were."""
        wire = self.group.wire
        arrived = wire.receive(self.channels)
        if arrived:
            now = wire.now()
            peers = {id(peer.channel): peer for peer in self.peers.present.values()}
            for channel, message in arrived:
                peer = peers[id(channel)]
                if self.peers.present.get(peer.rank) is peer:  # what came before may have been its last word
                    self.members.heard(peer, now)
                    if not envelope.has_kind(message, Kind.BEAT):  # all else comes from its main loop
                        peer.progressed_at = now
                    self.take_in(peer, message)
        return len(arrived)

    def take_in_common(self, peer: Peer[Client], told: object) -> None:
        """Take in what any worker may send at any time: a sign of life, a failure, its leave, a stop.

        A `RemoteRankError` is raised if it failed. One that was cut off has not: it heard nobody for so long
        that it gave up, as where this process was suspended, and this rank goes on without it.
        """
        match told:
            case Failed(is_cut_off=True):
                self.members.lose(peer.rank, _GAVE_UP)
            case Failed():
                raise_remote(peer.channel, told)
            case Beat():
                self.members.note_progress(peer, told.progress, told.view)
            case Leave():
                self.members.let_go(peer, told)
            case AskToStop(stop) if stop is not None:
                if self.saver is not None:
                    self.saver.ask_to_stop(stop)
            case _:
                raise ProtocolError(f"Worker {peer.rank} sent {kind_of(told).name} where a push belongs.")

    def look_around(self, now: float) -> None:
        """Take in control messages, and judge who is lost: at time `now`, up to which all was received.

        It raises what `Members.look` does, also for losses before this rank began to serve, and `NobodyLeft`
        if no rank is left that learns.
        """
        if self.group.is_due() or any(channel.lost for channel in self.channels):
            say_beat(self.channels, self.beat(), self.group.timing.interval, now)
            self.members.look(now)
        if not self.peers.learners:
            self.members.check_earlier_losses()
            if not self.learns_here:
                raise NobodyLeft

    def has_workers(self) -> bool:
        """Look around, and return whether there is a worker again."""
        self.receive()
        try:
            self.look_around(self.wake())
        except NobodyLeft:
            return False
        return True

    def await_successor(self) -> None:
        """Find out who has taken over the checkpoints: `Deposed` is raised if it is a server of this run."""
        wire = self.group.wire
        begin = wire.now()
        backoff = Backoff(wire.sleep)
        while wire.now() - begin < self.group.timing.silence:
            self.members.take_in_control()
            self.receive()
            heard = [peer.rank for peer in self.peers.present.values() if peer.channel.last_heard > begin]
            if self.members.may_serve(heard):
                break  # they still follow this one
            backoff.wait()

    # The end

    def finish(self, result: dict[str, Any]) -> None:
        """Send the whole table and `result` to all, and let them go when all that are there have it.

        Until then each of them could take over from this rank.
        """
        group = self.group
        message = encode(Final(self.table.refresh(-1), result))
        for channel in self.channels:
            channel.send(message)
        have_it: set[Peer[Client]] = set()
        told = set(self.peers.present.values())
        backoff = Backoff(group.wire.sleep)
        while (
            self.members.awaits_somebody
            or not self.members.is_backed
            or not have_it.issuperset(self.peers.present.values())
        ):
            now = self.wake()
            said = {peer for peer in self.peers.present.values() if self._says_goodbye(peer, now)}
            have_it |= said
            say_beat(self.channels, self.beat(), group.timing.interval, now)
            if group.is_due():
                self.members.take_in_control()
                for peer in self.peers.present.values():
                    if peer not in told:
                        self.tell_end(peer, message)
                        told.add(peer)
            for rank, why in self.members.judge(now).items():
                self.members.drop(rank, f"{why}, at the end")
            if said:
                backoff.reset()
            backoff.wait()
        for channel in self.channels:
            channel.send(encode(Release()))

    def tell_end(self, peer: Peer[Client], message: np.ndarray) -> None:
        """Send the end to a worker that came when all others had been told of it."""
        peer.channel.send(message)

    def _says_goodbye(self, peer: Peer[Client], now: float) -> bool:
        goodbye = False
        while (answer := peer.channel.poll()) is not None:
            self.members.heard(peer, now)
            match decode(answer):
                case Failed(is_cut_off=True):
                    self.members.drop(peer.rank, f"{_GAVE_UP}, at the end")
                    return False
                case Failed() | Beat() as told:
                    self.take_in_common(peer, told)
                case Bye():
                    goodbye = True
        return goodbye
