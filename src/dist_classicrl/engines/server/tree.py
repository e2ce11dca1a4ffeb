"""Who composes whose maps, where servers of nodes stand between the server and the workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

LEAST_RANKS = 3
"""Ranks that a group has at least for one of them to compose the maps of the others, and not to learn."""

GroupOf = Callable[[int], Hashable]
"""Gives what the ranks of one group have in common."""


@dataclass(frozen=True, eq=False)
class Branch:
    """Ranks whose maps reach the server as one, by way of `head`."""

    number: int  # of the `Route` that they have
    head: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """How ranks are grouped: on each level, from the lowest to the highest."""

    levels: Sequence[GroupOf]

    @classmethod
    def by_host(cls, host_of: GroupOf) -> Tree:
        """Return the tree with a server on each host."""
        return cls([host_of])

    @classmethod
    def of_groups(cls, size: int, ranks: int) -> Tree:
        """Return the tree of groups of so many ranks, which are grouped likewise, as often as it takes."""
        levels: list[GroupOf] = []
        width = size
        while width < ranks:
            levels.append(partial(_number_of_group, width))
            width *= size
        return cls(levels)

    def parents(self, ranks: Iterable[int], server: int) -> dict[int, int]:
        """Return for each of `ranks`, all but the server, to which rank its maps go."""
        parents: dict[int, int] = {}
        composing: set[int] = set()
        heads = sorted(ranks)
        for group_of in self.levels:
            groups: dict[Hashable, list[int]] = {}
            for rank in heads:
                groups.setdefault(group_of(rank), []).append(rank)
            heads = groups.pop(group_of(server), [])
            parents.update(dict.fromkeys(heads, server))
            heads = []
            for members in groups.values():
                head = _head_of(members, composing)
                if head is None:
                    heads += members
                    continue
                composing.add(head)
                parents.update({rank: head for rank in members if rank != head})
                heads.append(head)
        parents.update(dict.fromkeys(heads, server))
        return parents


def branches(parents: dict[int, int], server: int, number: int) -> dict[int, Branch]:
    """Return by rank the branch that it is in, of those that do not talk to the server by themselves."""
    heads: dict[int, list[int]] = {}
    for rank in parents:
        head = rank
        while parents[head] != server:
            head = parents[head]
        heads.setdefault(head, []).append(rank)
    found = [Branch(number, head, tuple(ranks)) for head, ranks in heads.items() if len(ranks) > 1]
    return {rank: branch for branch in found for rank in branch.ranks}


def below(parents: dict[int, int], rank: int) -> tuple[int, ...]:
    """Return the ranks whose maps go to `rank`."""
    return tuple(child for child, parent in parents.items() if parent == rank)


def _head_of(members: Sequence[int], composing: Collection[int]) -> int | None:
    """Return who composes the maps of a group: one that does so already, if there is one."""
    if len(members) == 1:
        return None
    already = [rank for rank in members if rank in composing]
    if already:
        return already[0]
    return members[0] if len(members) >= LEAST_RANKS else None


def _number_of_group(size: int, rank: int) -> int:
    return rank // size
