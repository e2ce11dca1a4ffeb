"""Who is in a run, as agreed, and which side of a cut goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A membership that a server announced."""

    term: int  # of this server: a later one has a higher number, and no two servers ever have the same
    revision: int  # counts changes of the membership within the term
    server: int  # rank
    members: tuple[int, ...]  # ranks in ascending order, the server's included

    @property
    def key(self) -> tuple[int, int]:
        """What orders views in time."""
        return self.term, self.revision

    @property
    def workers(self) -> list[int]:
        """The members without the server."""
        return [rank for rank in self.members if rank != self.server]


HostOf = Callable[[int], str]
"""Gives the name of a rank's host."""


def confirmed(dead: Collection[int], present: Collection[int], host_of: HostOf) -> set[int]:
    """Return those of the `dead`, by MPI's word, that have died beyond doubt.

    Of a host that is gone as a whole, only silence is known: the same word comes when a network is cut.
    `present` are the ranks of this side.
    """
    here = {host_of(rank) for rank in present}
    return {rank for rank in dead if host_of(rank) in here}


def may_elect(view: View, present: Collection[int], dead: Collection[int], host_of: HostOf) -> bool:
    """Whether the ranks `present`, without the server, are a strict majority of those that may be alive."""
    living = set(view.members) - confirmed(dead, present, host_of)
    return 2 * len(living.intersection(present)) > len(living)


def may_serve(view: View, present: Collection[int], dead: Collection[int], host_of: HostOf) -> bool:
    """Whether the ranks `present`, the server among them, are at least half of those that may be alive."""
    living = set(view.members) - confirmed(dead, present, host_of)
    return 2 * len(living.intersection(present)) >= len(living)


class Announced:
    """The last view of a server that a majority of the one before has heard of, and all later ones.

    A server that lost more than half of any of them may have been replaced.
    """

    def __init__(self, view: View) -> None:
        self._views = [view]
        self._heard: dict[int, tuple[int, int]] = {}

    def add(self, view: View) -> None:
        """Take note of a new view."""
        self._views.append(view)

    def awaits(self, rank: int, key: tuple[int, int]) -> bool:
        """Whether it matters that `rank` knows the view with this key."""
        return len(self._views) > 1 and self._heard.get(rank) != key

    def echo(self, rank: int, key: tuple[int, int], dead: Collection[int] = ()) -> None:
        """Hear that `rank` knows the view with this key, and `settle`."""
        self._heard[rank] = key
        self.settle(dead)

    def settle(self, dead: Collection[int]) -> None:
        """Forget the views that a majority knows to be over; the `dead`, beyond doubt, never will."""
        while len(self._views) > 1:
            old, new = self._views[:2]
            known = [m for m in old.members if m == old.server or self._heard.get(m, (-1, -1)) >= new.key]
            if 2 * len(known) <= len(set(old.members) - set(dead)):
                return
            del self._views[0]

    def may_serve(self, present: Collection[int], dead: Collection[int], host_of: HostOf) -> bool:
        """Whether the ranks `present` are enough to go on."""
        return all(may_serve(view, present, dead, host_of) for view in self._views)
