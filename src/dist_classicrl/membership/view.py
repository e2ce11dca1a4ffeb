"""Who is in a run, as agreed, and which side of a cut goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class View:
    """A membership that a server announced."""

    term: int  # of this server: a later one has a higher number, and no two servers ever have the same
    revision: int  # counts changes of the membership within the term
    server: int  # rank
    members: tuple[int, ...]  # ranks in ascending order, the server's included
    #: The members of each earlier view that a majority of them may not know to be over.
    before: tuple[tuple[int, ...], ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """What orders views in time."""
        return self.term, self.revision

    @property
    def workers(self) -> list[int]:
        """The members without the server."""
        return [rank for rank in self.members if rank != self.server]

    @property
    def memberships(self) -> tuple[tuple[int, ...], ...]:
        """The members of each view in which there may be an election: of this one, and those before it."""
        return *self.before, self.members

    @property
    def voters(self) -> set[int]:
        """All ranks that may take part in an election."""
        return set().union(*self.memberships)

    def followed_by(self, term: int, server: int, members: tuple[int, ...]) -> View:
        """Return the first view of a later term, before anybody knows it."""
        before = dict.fromkeys(each for each in self.memberships if each != members)
        return View(term, 0, server, members, tuple(before))

    def known_to(self, ranks: Collection[int]) -> View:
        """Return it without those before it of which no majority is left, as half are among the `ranks`.

        These know this view.
        """
        before = [each for each in self.before if 2 * len(set(each).intersection(ranks)) < len(each)]
        return replace(self, before=tuple(before))


def _is_over(
    members: Collection[int], known_by: Collection[int], dead: Collection[int], is_own: bool
) -> bool:
    """Whether so many of the `members` know a later view that the others may hold no election in theirs.

    That takes a majority of them, and half if it is the same server's (`is_own`), as nobody else serves them
    yet. The `dead`, beyond doubt, never will.
    """
    living = set(members).difference(dead)
    lead = 2 * len(living.intersection(known_by)) - len(living)
    return not living or lead > 0 or (is_own and lead == 0)


HostOf = Callable[[int], str]
"""Gives the name of a rank's host."""


def confirmed(dead: Collection[int], present: Collection[int], host_of: HostOf) -> set[int]:
    """Return those of the `dead`, by MPI's word, that have died beyond doubt.

    Of a host that is gone as a whole, only silence is known: the same word comes when a network is cut.
    `present` are the ranks of this side.
    """
    here = {host_of(rank) for rank in present}
    return {rank for rank in dead if host_of(rank) in here}


def _living(view: View, present: Collection[int], dead: Collection[int], host_of: HostOf) -> list[set[int]]:
    """Return who may be alive of the view and of each before it, where anybody may."""
    gone = confirmed(dead, present, host_of)
    return [living for members in view.memberships if (living := set(members) - gone)]


def may_elect(view: View, present: Collection[int], dead: Collection[int], host_of: HostOf) -> bool:
    """Whether the ranks `present`, without the server, are a strict majority of those that may be alive.

    Of those before the view as well: whoever has not heard of it may hold an election there.
    """
    living = _living(view, present, dead, host_of)
    return all(2 * len(each.intersection(present)) > len(each) for each in living)


def may_serve(view: View, present: Collection[int], dead: Collection[int], host_of: HostOf) -> bool:
    """Whether the ranks `present`, the server among them, are at least half of those that may be alive.

    Of those before the view as well.
    """
    living = _living(view, present, dead, host_of)
    return all(2 * len(each.intersection(present)) >= len(each) for each in living)


class Announced:
    """The newest view of a server, and which of those before it most of their members know to be over.

    A server that lost more than half of any other may have been replaced.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        #: Members of earlier views, and the key from which on a view tells that theirs is over.
        self._before = dict.fromkeys(view.before, view.key)
        self._first = view.key  # what was before that, another may have served
        self._heard: dict[int, tuple[int, int]] = {}

    def change(self, members: tuple[int, ...]) -> View:
        """Return the next view, in which these are the members."""
        old = self.view
        self._before[old.members] = old.term, old.revision + 1
        self._before.pop(members, None)
        self.view = View(old.term, old.revision + 1, old.server, members, tuple(self._before))
        return self.view

    @property
    def is_outdated(self) -> bool:
        """Whether the newest view tells of some before it that are known to be over by now."""
        return len(self._before) < len(self.view.before)

    def awaits(self, rank: int, key: tuple[int, int]) -> bool:
        """Whether it matters that `rank` knows the view with this key."""
        return bool(self._before) and self._heard.get(rank, (-1, -1)) < key

    def echo(self, rank: int, key: tuple[int, int], dead: Collection[int] = ()) -> None:
        """Hear that `rank` knows the view with this key, and `settle`."""
        self._heard[rank] = key
        self.settle(dead)

    def settle(self, dead: Collection[int]) -> None:
        """Forget the views that a majority knows to be over; the `dead`, beyond doubt, never will."""
        for members, key in tuple(self._before.items()):
            known_by = {self.view.server, *(rank for rank, heard in self._heard.items() if heard >= key)}
            if _is_over(members, known_by, dead, is_own=key > self._first):
                del self._before[members]

    def may_serve(self, present: Collection[int], dead: Collection[int], host_of: HostOf) -> bool:
        """Whether the ranks `present` are enough to go on."""
        view = replace(self.view, before=tuple(self._before))
        return may_serve(view, present, dead, host_of)
