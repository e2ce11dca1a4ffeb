"""What both servers have in common: who works for them, who is lost, who comes back, and how it all ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_classicrl.comm.messages import Bye, decode, encode, kind_of
from dist_classicrl.comm.remote_errors import Failed, raise_remote
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Company, Learning, Reporter
from dist_classicrl.engines.roles.messages import AskToStop, Final, Leave
from dist_classicrl.engines.saving import Saver
from dist_classicrl.errors import CutOffError, ProtocolError, RankLostError
from dist_classicrl.membership.admission import Assignment, Join, Welcome
from dist_classicrl.membership.election import Base, Deposed, Prepare, answer
from dist_classicrl.membership.group import Group, NewView, Release
from dist_classicrl.membership.heartbeat import Beat, say_beat
from dist_classicrl.membership.phi_accrual import Arrivals
from dist_classicrl.membership.spawn import Replacements
from dist_classicrl.membership.view import Announced, View, confirmed
from dist_classicrl.tables.shared import SharedTable

logger = logging.getLogger(__name__)

_REPLACEMENT_SECONDS = 120.0  # in which a replacement gets from its start to `train`
FIRST_ADMISSION = 1
"""What the data channels of a term's first members are numbered with."""


@dataclass(frozen=True)
class LossPolicy:
    """What is done about lost ranks.

    Attributes
    ----------
    on_failure : str
        "continue", "replace" or "abort".
    min_workers : int
        With fewer the run ends.
    max_replacements : int
    """

    on_failure: str = "continue"
    min_workers: int = 0
    max_replacements: int = 0


class NobodyLeft(Exception):
    """The server has no workers any more."""


@dataclass
class Peer:
    """What a server knows of one worker."""

    channel: Channel
    arrivals: Arrivals
    progressed_at: float
    progress: int = -1
    is_suspect: bool = False
    waits: bool = False  # it learns no more, and only waits for the end


@dataclass
class Serving:
    """A server's dealings with its workers, whatever it serves.

    Attributes
    ----------
    group : Group
    table : SharedTable
    policy : LossPolicy
    tally : Tally
    reporter : Reporter
    told : dict
        What a rank that joins in the middle of the call has to be told of it.
    saver : Saver or None
        Where the run is saved.
    """

    group: Group
    table: SharedTable
    policy: LossPolicy
    tally: Tally
    reporter: Reporter
    told: dict[str, Any] = field(default_factory=dict)
    saver: Saver | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        group = self.group
        now = group.wire.now()
        self.begun = now
        self.progress = 0
        self.peers: dict[int, Peer] = {}
        #: Who was lost before this rank began to serve, and why.
        self.lost_before: list[tuple[int, str]] = []
        self._gone: list[Channel] = []
        self._replacements: Replacements | None = None
        self._untried: set[int] = set()  # replacements that have not pushed yet
        self._expected: dict[int, Channel] = {}  # to replacements that have not said a word yet
        if self.policy.on_failure == "replace":
            self._replacements = Replacements(self.policy.max_replacements, str(group.call), group.wire.now)
        self._joins: dict[int, int] = {}
        self._announced = Announced(group.view)
        self._woken = now
        for rank in group.view.workers:
            self._open(rank, FIRST_ADMISSION)

    # What a subclass does

    def take_in(self, rank: int, message: np.ndarray) -> None:
        """Take in a message of a worker."""
        raise NotImplementedError

    def has_lost(self, rank: int) -> int:
        """Do without a worker, which is no peer any more. Return its steps that others make now."""
        raise NotImplementedError

    def has_admitted(self, rank: int) -> None:
        """Count on a worker that has just joined."""
        raise NotImplementedError

    def has_made(self, steps: int) -> None:
        """Count steps that this rank made itself, in the table as it is now."""
        raise NotImplementedError

    def has_paused(self, seconds: float) -> None:
        """Take note that this rank answered nobody for so long, through no fault of theirs."""

    # Channels

    @property
    def channels(self) -> list[Channel]:
        """To all who are to hear of the end."""
        return [peer.channel for peer in tuple(self.peers.values())]

    @property
    def workers(self) -> list[int]:
        """Who learns."""
        return [rank for rank, peer in self.peers.items() if not peer.waits]

    @property
    def seconds(self) -> float:
        """Seconds since this rank began to serve."""
        return self.group.wire.now() - self.begun

    def note(self, kind: str, rank: int, steps_returned: int = 0, detail: str = "") -> None:
        """Enter into the record what happened to `rank`."""
        self.group.events.add(kind, rank, self.tally.earlier_seconds + self.seconds, steps_returned, detail)

    def _open(self, rank: int, admission: int) -> None:
        group = self.group
        self._add_peer(rank, group.wire.channel(rank, group.tag(group.view.term, admission)))

    def _add_peer(self, rank: int, channel: Channel) -> None:
        now = self.group.wire.now()
        self.peers[rank] = Peer(channel, Arrivals(self.group.timing.interval, now=now), now)

    def close(self, linger: float) -> None:
        """Close all channels."""
        for channel in (*self.channels, *self._gone, *self._expected.values()):
            channel.close(linger)

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
        """Begin a turn of the main loop, and return the time.

        Time in which this process did not run counts as nobody's silence.
        """
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
        for peer in self.peers.values():
            peer.arrivals.excuse(seconds)
            peer.channel.last_heard += seconds
            peer.progressed_at += seconds
        self._woken = self.group.wire.now()

    def report_progress(self, now: bool = False) -> None:
        """Tell the callbacks what is new, if it is time or `now`. Nothing is received while they run."""
        clock, reporter = self.group.wire.now, self.reporter
        begin = clock()
        reporter.hear(self.group.events, self.saver)
        if now and reporter.has_news or reporter.is_due(self.seconds):
            reporter.report(self.seconds, self._learning())
            reporter.rest(self.seconds)
            self.has_paused(clock() - begin)
        if (spent := clock() - begin) > self.group.timing.interval:
            self.excuse(spent)

    def begin_reports(self) -> None:
        """Tell the callbacks that this rank serves."""
        self.reporter.begin(self.seconds, self._learning())

    def report_end(self, seconds: float) -> None:
        """Tell the callbacks how the run has ended, `seconds` after this rank began to serve."""
        self.reporter.hear(self.group.events, self.saver)
        self.reporter.report(seconds, self._learning())

    @property
    def company(self) -> Company:
        """Whom this rank has, should it have to learn alone."""
        group = self.group
        return Company(Learning(group.rank, group.host_of(group.rank)), self.has_workers, group.events)

    def _learning(self) -> list[Learning]:
        now, group = self.group.wire.now(), self.group
        return [
            Learning(rank, group.host_of(rank), max(0.0, now - peer.channel.last_heard))
            for rank, peer in self.peers.items()
            if not peer.waits
        ]

    def receive(self) -> int:
        """Take in what has come from the workers. Return how many messages that were."""
        wire = self.group.wire
        arrived = wire.receive(self.channels)
        if arrived:
            now = wire.now()
            ranks = {id(peer.channel): rank for rank, peer in self.peers.items()}
            for channel, message in arrived:
                rank = ranks[id(channel)]
                if rank in self.peers:  # what came before may have been its last word
                    self.peers[rank].arrivals.heard(now)
                    self.take_in(rank, message)
        return len(arrived)

    def take_in_common(self, rank: int, told: object) -> None:
        """Take in what any worker may send at any time: a sign of life, a failure, its leave, a stop.

        Raises
        ------
        RemoteRankError
            If it failed.
        """
        match told:
            case Failed():
                raise_remote(self.peers[rank].channel, told)
            case Beat():
                self.note_progress(rank, told.progress, told.view)
            case Leave():
                self._let_go(rank, told)
            case AskToStop(stop) if stop is not None:
                if self.saver is not None:
                    self.saver.ask_to_stop(stop)
            case _:
                raise ProtocolError(f"Worker {rank} sent {kind_of(told).name} where a push belongs.")

    def note_progress(self, rank: int, progress: int, view: tuple[int, int]) -> None:
        """Hear how far a worker's main loop is, and which view it knows."""
        peer = self.peers[rank]
        if progress != peer.progress:
            peer.progress = progress
            peer.progressed_at = self.group.wire.now()
        if self._announced.awaits(rank, view):
            group = self.group
            present = {group.rank, *self.workers}.intersection(group.view.members)
            self._announced.echo(rank, view, confirmed(group.dead, present, group.hosts))

    def look_around(self, now: float) -> None:
        """Take in control messages, and judge who is lost: at time `now`, up to which all was received.

        Raises
        ------
        Deposed
            If another rank serves now.
        CutOffError
            If too few ranks are heard to go on.
        RankLostError
            If so few are left, or any loss is one too many, by the policy.
        NobodyLeft
            If no worker is left.
        """
        group = self.group
        if group.is_due() or any(peer.channel.lost for peer in self.peers.values()):
            say_beat(self.channels, self.beat(), group.timing.interval, now)
            self._take_in_control()
            for rank, why in self._judge(now).items():
                self._drop(rank, why)
                self.check_policy(rank, why)
            if self._replacements is not None:
                self._replace(self._replacements, now)
        if not self.workers:
            raise NobodyLeft

    def has_workers(self) -> bool:
        """Look around, and return whether there is a worker again."""
        self.receive()
        try:
            self.look_around(self.wake())
        except NobodyLeft:
            return False
        return True

    def _take_in_control(self) -> None:
        group = self.group
        for sender, control in group.poll():
            if isinstance(control, NewView):
                if (view := group.accept(control)) is not None:
                    raise Deposed(view)
            elif isinstance(control, Prepare):
                answer(group, sender, control, Base(), lambda: False)
            elif isinstance(control, Join):
                self._let_join(sender, control.number)
            # Anything else answers a question of this rank that has been settled otherwise.

    def _judge(self, now: float) -> dict[int, str]:
        """Return who is to be excluded, and why.

        Raises
        ------
        CutOffError
            If too few others are left to go on.
        """
        group, timing = self.group, self.group.timing
        silent: dict[int, str] = {}
        stuck: dict[int, str] = {}  # heard here, so they follow no other server
        doubtful: set[int] = set()
        for rank, peer in self.peers.items():
            channel = peer.channel
            if channel.lost is not None or rank in group.dead:
                silent[rank] = "MPI reports its death"
            elif now - channel.last_heard > timing.silence:
                silent[rank] = f"silent for {now - channel.last_heard:.1f} s"
            else:
                self._suspect(rank, peer, now)
                if peer.is_suspect:
                    doubtful.add(rank)
                if now - peer.progressed_at > timing.stuck:
                    stuck[rank] = f"its main loop made no progress for {now - peer.progressed_at:.1f} s"
        lost = {**silent, **stuck}
        if not lost:
            return lost
        dead = {rank for rank in silent if rank in group.dead or self.peers[rank].channel.lost is not None}
        dead.intersection_update(group.view.members)
        group.dead.update(dead)
        present = set(group.view.members) - set(silent)
        if silent and not self._announced.may_serve(present, group.dead, group.hosts):
            raise CutOffError(
                f"The server, rank {group.rank}, does not hear the ranks "
                f"{', '.join(map(str, sorted(silent)))} any more ({next(iter(silent.values()))}), which is "
                "more than half of the run: the network may be cut, and the others may go on without it. "
                "Start the job again, best with `python -m dist_classicrl launch`: it goes on from the last "
                "checkpoint."
            )
        sure = not doubtful or self._announced.may_serve(present - doubtful, group.dead, group.hosts)
        return lost if sure else {}

    def _suspect(self, rank: int, peer: Peer, now: float) -> None:
        suspect = peer.arrivals.is_suspect(now)
        if suspect == peer.is_suspect:
            return
        peer.is_suspect = suspect
        if suspect:
            silence = f"silent for {now - peer.channel.last_heard:.2f} s"
            self.note("suspected", rank, detail=silence)
        else:
            self.note("cleared", rank)

    def check_policy(self, rank: int, why: str) -> None:
        """Check that the run may go on without `rank`, which was lost.

        Raises
        ------
        RankLostError
            If it may not.
        """
        policy = self.policy
        if policy.on_failure == "abort":
            raise RankLostError(
                f'Rank {rank} is lost ({why}), and on_failure="abort" ends the run then. "continue" goes on '
                "without it."
            )
        if len(self.workers) < policy.min_workers:
            raise RankLostError(
                f"Rank {rank} is lost ({why}), which leaves {len(self.workers)} workers: fewer than "
                f"min_workers={policy.min_workers}. Start the job again with more ranks, or lower "
                "min_workers."
            )

    def check_earlier_losses(self) -> None:
        """Check, and have replaced, who was lost before this rank began to serve.

        Raises
        ------
        RankLostError
            If the run may not go on without them.
        """
        for rank, why in self.lost_before:
            if self._replacements is not None:
                self._replacements.wanted(1)
            self.check_policy(rank, why)
        self.lost_before.clear()

    def has_pushed(self, rank: int) -> None:
        """Take note that a worker has done something."""
        if rank in self._untried and self._replacements is not None:
            self._untried.discard(rank)
            self._replacements.note_first_push()

    def _replace(self, replacements: Replacements, now: float) -> None:
        """Start replacements, processes that only this server knows, and let in those that are ready."""
        group = self.group
        replacements.start(now)
        for intercomm in replacements.poll():
            channel = group.wire.channel_over(intercomm)
            rank = self._new_number()
            channel.send(encode(Assignment(rank, group.view, self.told)))
            self._expected[rank] = channel
        for rank, channel in list(self._expected.items()):
            message = channel.poll()
            if message is not None:
                del self._expected[rank]
                self._add_peer(rank, channel)
                self._untried.add(rank)
                self.has_admitted(rank)
                self.note("replaced", rank)
                self.take_in(rank, message)
            elif channel.lost is not None or now - channel.last_sent > _REPLACEMENT_SECONDS:
                del self._expected[rank]
                channel.close()
                logger.warning("Replacement %d was lost before it could begin.", rank)
                replacements.wanted(1)
                replacements.note_death_before_first_push()

    def _new_number(self) -> int:
        """Return a number that no rank has had, under this server or an earlier one."""
        events = (event["rank"] for event in self.group.events.entries)
        known = (self.group.wire.size - 1, *self.table.applied, *events, *self.peers, *self._expected)
        return max(known) + 1

    def _drop(self, rank: int, why: str) -> None:
        """Exclude `rank`, and tell it and all others."""
        if self._replacements is not None:
            self._replacements.wanted(1)
            if rank in self._untried:
                self._untried.discard(rank)
                self._replacements.note_death_before_first_push()
        # If that raises, this rank is one of those that have to be told.
        returned = 0 if self.peers[rank].waits else self.has_lost(rank)
        self.peers.pop(rank).channel.close()
        self.note("excluded", rank, returned, why)
        self._change_members(set(self.group.view.members) - {rank}, rank)

    def _change_members(self, members: set[int], *others: int) -> None:
        group = self.group
        view = View(group.view.term, group.view.revision + 1, group.rank, tuple(sorted(members)))
        self._announced.add(view)
        group.announce(view, *others)

    def _let_go(self, rank: int, leave: Leave) -> None:
        """Do without a worker that says so itself: it leaves the job, or only waits for the end."""
        peer = self.peers[rank]
        returned = 0 if peer.waits else self.has_lost(rank)
        self.note(leave.event, rank, returned, leave.why)
        peer.waits = True
        if not leave.waits:
            peer.channel.send(encode(Release()))
            self._gone.append(self.peers.pop(rank).channel)
            self._change_members(set(self.group.view.members) - {rank})

    def announce_events(self) -> None:
        """Tell all what has happened."""
        self._change_members(set(self.group.view.members))

    def _let_join(self, rank: int, number: int) -> None:
        """Answer a rank that asks to take part, once however often it repeats the question `number`."""
        if number > self._joins.get(rank, 0):
            self._joins[rank] = number
            self.admit(rank)

    def admit(self, rank: int) -> None:
        """Let `rank` take part from now on."""
        group = self.group
        if rank in self.peers:  # it was away for less time than it takes to be missed
            self._drop(rank, "it asks to join anew")
        group.dead.discard(rank)
        self.note("readmitted", rank)
        self._change_members({*group.view.members, rank})
        admission = FIRST_ADMISSION + group.view.revision
        self._open(rank, admission)
        group.send(rank, Welcome(admission, self.table.applied.get(rank, 0), group.view, self.told))
        self.has_admitted(rank)

    def await_successor(self) -> None:
        """Find out who has taken over the checkpoints: another server of this run, or somebody else.

        Raises
        ------
        Deposed
            If another rank serves now.
        """
        group, wire = self.group, self.group.wire
        begin = wire.now()
        backoff = Backoff(wire.sleep)
        while wire.now() - begin < group.timing.silence:
            self._take_in_control()
            self.receive()
            heard = [rank for rank, peer in self.peers.items() if peer.channel.last_heard > begin]
            if self._announced.may_serve({group.rank, *heard}, group.dead, group.hosts):
                break  # they still follow this one
            backoff.wait()

    # The end

    def finish(self, result: dict[str, Any]) -> None:
        """Send the whole table and `result` to all, and let them go when all that are there have it.

        Until then each of them could take over from this rank.
        """
        group = self.group
        message = encode(Final(self.table.refresh(-1), result))
        waiting = set(self.peers)
        for rank in waiting:
            self.peers[rank].channel.send(message)
        have_it: set[int] = set()
        backoff = Backoff(group.wire.sleep)
        while waiting:
            now = self.wake()
            said = {rank for rank, peer in self.peers.items() if self._says_goodbye(rank, peer, now)}
            have_it |= said
            say_beat(self.channels, self.beat(), group.timing.interval, now)
            if group.is_due():
                before = self.channels
                self._take_in_control()
                for rank, peer in self.peers.items():
                    if peer.channel not in before:
                        peer.channel.send(message)
                        have_it.discard(rank)
            for rank, why in self._judge(now).items():
                self._drop(rank, f"{why}, at the end")
            waiting = set(self.peers) - have_it
            if said:
                backoff.reset()
            backoff.wait()
        for channel in self.channels:
            channel.send(encode(Release()))

    def _says_goodbye(self, rank: int, peer: Peer, now: float) -> bool:
        goodbye = False
        while (answer := peer.channel.poll()) is not None:
            peer.arrivals.heard(now)
            match decode(answer):
                case Failed() | Beat() as told:
                    self.take_in_common(rank, told)
                case Bye():
                    goodbye = True
        return goodbye
