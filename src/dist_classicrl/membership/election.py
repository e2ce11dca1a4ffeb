"""How the ranks that lost their server agree on a new one: the holder of the newest base.

A ballot after Lamport's "The Part-Time Parliament" (1998): a coordinator, normally the lowest rank that is
left, asks all to promise that they follow nobody older. With the promises of enough of them
(`membership.view.may_elect`) it names the server. Who promised takes nothing from an older server any more,
so there are never two that get anywhere; and no promise is given while the server is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dist_classicrl._words import START_AGAIN
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import message
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.errors import CutOffError
from dist_classicrl.membership.group import Group, NewView, Over, Question, Release
from dist_classicrl.membership.view import View, confirmed, may_elect

_FINISHED = 2**62
_RETRY_SHARE = 0.1
_PATIENCE_WITH_OTHERS = 1.5
_PATIENCE_WITH_REFUSALS = 2.0
_FRESH_SHARE = 0.5


@dataclass(frozen=True, order=True)
class Base:
    """How new what a rank holds is: bases are ordered, and one includes all that an older one includes.

    Term and version are those of the table that it has as a whole; -1, -1: none.
    """

    term: int = -1
    version: int = -1

    @classmethod
    def finished(cls, term: int) -> Base:
        """Return the base of a rank that has the final table and the result."""
        return cls(term, _FINISHED)

    @property
    def is_some(self) -> bool:
        """Whether there is one."""
        return self.version >= 0

    @property
    def is_final(self) -> bool:
        """Whether it is the final table."""
        return self.version == _FINISHED


@message(Kind.PREPARE)
@dataclass(frozen=True)
class Prepare(Question):
    """Who holds a vote asks all others to promise that they follow nobody older."""

    number: int  # of the vote: the term of the server that comes of it
    dead: tuple[int, ...]  # ranks that have died, as far as the sender knows


@message(Kind.PROMISE)
@dataclass(frozen=True)
class Promise:
    """One answer: the sender follows nobody older than vote `number`, holds `base`, and knows `view`."""

    number: int
    base: Base
    view: View
    events: list[dict[str, Any]]  # that came with the view
    dead: tuple[int, ...]


@message(Kind.REFUSE)
@dataclass(frozen=True)
class Refuse:
    """The other answer: the sender hears its server, or has promised to follow vote `promised`."""

    number: int
    promised: int
    view: View
    events: list[dict[str, Any]]  # that came with the view


class Deposed(Exception):
    """Another rank serves now, by `view`; raised where a server or a worker has to change its part."""

    def __init__(self, view: View) -> None:
        super().__init__(f"rank {view.server} serves now")
        self.view = view


class Settled(Exception):
    """There is nothing to go on with: all others have the result, as this rank has."""


@dataclass
class _Ballot:
    """A vote that this rank coordinates."""

    number: int
    begun: float
    bases: dict[int, Base] = field(default_factory=dict)
    refused: bool = False


class Election:
    """One rank's part in finding a new server, from when it lost the last one; `base` is what it holds.

    Where nobody has a base, whoever holds the vote calls `note_lost` with those that have no part in what
    comes of it, before all hear of that: whoever serves then knows of no loss otherwise.
    """

    def __init__(
        self, group: Group, base: Base, note_lost: Callable[[Iterable[int]], None] = lambda lost: None
    ) -> None:
        self._group = group
        self._base = base
        self._note_lost = note_lost
        self._begun = group.wire.now()
        self._lost = group.view.server
        self._ballot: _Ballot | None = None
        self._next_try = self._begun
        self._promised_at = self._begun
        self._promises = {group.promised}  # to others, of votes that they may still end
        self._highest = group.promised
        self._followed: tuple[float, View] | None = None

    def run(self) -> View:
        """Return the new view. This rank may not be in it: then it was taken for lost.

        If others go on hearing the server, the view is theirs, and this rank has lost them all. A
        `CutOffError` is raised if too few ranks answer, or the call is over and this rank has no result;
        `Settled` if the call is over, and this rank has its result.
        """
        group = self._group
        backoff = Backoff(group.wire.sleep)
        while True:
            something = False
            for sender, control in group.poll():
                something = True
                view = self._take_in(sender, control)
                if view is not None:
                    return view
            if not group.is_member:  # it was excluded without having heard of it
                return group.view
            view = self._coordinate() or self._give_in()
            if view is not None:
                return view
            if group.wire.now() - self._begun > 4.0 * group.timing.election:
                raise self._cut_off()
            if something:
                backoff.reset()
            backoff.wait()

    def _take_in(self, sender: int, control: object) -> View | None:
        """Take in a control message. Return the view to follow, if it brings one."""
        group, ballot = self._group, self._ballot
        match control:
            case NewView():
                return group.accept(control)
            case Prepare():
                if answer(group, sender, control, self._base, lambda: True):
                    self._promised_at = group.wire.now()
                    self._promises.add(control.number)
            case Promise():
                self._adopt_if_newer(control.view, control.events)
                group.hear_of_deaths(control.dead)
                if ballot is not None and control.number == ballot.number:
                    ballot.bases[sender] = control.base
            case Refuse():
                self._highest = max(self._highest, control.promised)
                self._forget_promises(sender, control.promised)
                self._adopt_if_newer(control.view, control.events)
                if sender not in group.view.members:
                    return None  # it is asked because it may vote elsewhere, and does not have to agree
                if control.promised < control.number:
                    self._followed = group.wire.now(), control.view
                if ballot is not None and control.number == ballot.number:
                    ballot.refused = True
            case Release() | Over():
                if self._base.is_final:
                    raise Settled
                if isinstance(control, Over):
                    raise ended_without(group.rank)
        return None

    def _adopt_if_newer(self, theirs: View, events: list[dict[str, Any]]) -> None:
        if theirs.key > self._group.view.key:
            self._group.adopt(theirs)
            self._group.events.take(events)

    def _forget_promises(self, rank: int, followed: int) -> None:
        """Take back what was promised to a rank that says that it follows somebody older than its votes."""
        votes = {vote for vote in self._promises if vote > followed and vote % self._group.wire.size == rank}
        self._promises -= votes
        if self._group.promised in votes:
            self._follow_earlier()

    def _follow_earlier(self) -> None:
        """Have promised what is left after the last vote was given up: only who held it can end it."""
        self._group.promised = max({self._group.view.term, *self._promises})

    def _coordinate(self) -> View | None:
        """Hold a vote if that is this rank's part. Return the view that comes of it, once it does."""
        group, ballot = self._group, self._ballot
        now = group.wire.now()
        patience = group.timing.silence
        if ballot is not None and group.promised > ballot.number:
            ballot = self._ballot = None  # somebody else's is later
        if ballot is None and group.promised > group.view.term:
            # It has the time that it may take before this rank tries for itself.
            others = group.promised % group.wire.size
            if others not in group.dead and now < self._promised_at + _PATIENCE_WITH_OTHERS * patience:
                return None
        electorate = set(group.view.members) - {self._lost, group.rank} - group.dead
        if ballot is None:
            lower = sum(1 for rank in electorate if rank < group.rank)
            # Each rank below this one has its time to begin.
            if now >= self._next_try and now >= self._begun + lower * patience / 2.0:
                self._begin(now)
            return None
        if ballot.refused:
            self._drop(ballot)
            self._next_try = now + _RETRY_SHARE * patience * (1.0 + group.rank / group.wire.size)
            return None
        is_over = now - ballot.begun >= patience
        if not is_over and not electorate <= ballot.bases.keys():
            return None
        # Who answered, and is dead by MPI's word since, may live beyond a cut and follow somebody else: it
        # does not count, and does not show that this side reaches its host.
        present = {*(ballot.bases.keys() - group.dead), group.rank}
        if may_elect(group.view, present, group.dead, group.host_of):
            return self._decide(ballot)
        if group.view.voters - {self._lost, group.rank} - group.dead <= ballot.bases.keys():
            raise self._cut_off()  # nobody else is left to answer
        if not is_over:
            return None
        self._drop(ballot)
        self._next_try = now
        return None

    def _drop(self, ballot: _Ballot) -> None:
        """Give up a vote, and what this rank promised itself with it."""
        self._ballot = None
        if self._group.promised == ballot.number:
            self._follow_earlier()

    def _give_in(self) -> View | None:
        """Return the view of those who refuse because they hear their server, after some time."""
        group = self._group
        now, patience = group.wire.now(), group.timing.silence
        if self._followed is None or self._ballot is not None:
            return None
        heard, view = self._followed
        if now - heard > _FRESH_SHARE * patience or now - self._begun < _PATIENCE_WITH_REFUSALS * patience:
            return None
        if view.term < group.promised or view.key < group.view.key:
            return None
        group.adopt(view)
        return view

    def _begin(self, now: float) -> None:
        group = self._group
        number = group.new_term(self._highest)
        self._ballot = _Ballot(number, now)
        group.promised = number
        prepare = Prepare(number, tuple(sorted(group.dead)))
        for rank in group.view.voters - {group.rank}:
            group.send(rank, prepare)

    def _decide(self, ballot: _Ballot) -> View:
        group = self._group
        # Who died since it answered has nothing any more.
        living = {rank: base for rank, base in ballot.bases.items() if rank not in group.dead}
        # Who was excluded before has maps under leases that were taken back.
        living = {rank: base for rank, base in living.items() if rank in group.view.members}
        bases = {**living, group.rank: self._base}
        best = max(bases.values())
        # Who has no base cannot go on with those that have one, but it may join them.
        members = sorted(rank for rank, base in bases.items() if base.is_some == best.is_some)
        server = min(rank for rank in members if bases[rank] == best)
        view = group.view.followed_by(ballot.number, server, tuple(members))
        others = {*group.view.members, *ballot.bases} - set(members)
        if not best.is_some:
            # Who does not answer may be in its script yet: it can still join.
            silent = set(group.view.members) - bases.keys()
            self._note_lost(silent & {self._lost, *group.dead})
        group.announce(view, *others, joining=tuple(sorted(bases.keys() - members)))
        return view

    def _cut_off(self) -> CutOffError:
        group = self._group
        gone = confirmed(group.dead, [group.rank], group.host_of)
        return CutOffError(
            f"Rank {group.rank} lost the server, rank {self._lost}, and too few of the ranks "
            f"{', '.join(map(str, group.view.members))} answer to go on without the others "
            f"(died: {', '.join(map(str, sorted(gone))) or 'none for sure'}): the network may be cut, and "
            f"the other side may go on. {START_AGAIN}"
        )


def ended_without(rank: int) -> CutOffError:
    """Return what a rank raises that was taken for lost when the call was over."""
    return CutOffError(
        f"Rank {rank} was taken for lost, and the run ended without it. Its result is on the other ranks."
    )


def answer(
    group: Group, sender: int, prepare: Prepare, base: Base, has_lost_server: Callable[[], bool]
) -> bool:
    """Answer the question of `sender`, and return whether this rank has promised to follow it."""
    group.hear_of_deaths(prepare.dead)
    no_server = sender == group.view.server or group.view.server in group.dead
    is_due = sender in group.view.members and (no_server or has_lost_server())
    if prepare.number <= group.promised or not is_due:
        group.send(sender, Refuse(prepare.number, group.promised, group.view, group.events.entries))
        return False
    group.promised = prepare.number
    dead = tuple(sorted(group.dead))
    group.send(sender, Promise(prepare.number, base, group.view, group.events.entries, dead))
    return True
