"""Who sends what to whom in a round, so that every rank gets the sum of what all have learned.

A pattern is written as one rank sees it: as a generator, which says what goes to whom and whom it waits for,
and is given what came. Ranks are numbered by *place*, from 0 on, among those that take part. The sums of all
ranks have to come out as the same bits everywhere: floating-point sums depend on their order, so either one
rank adds up and the others get its sum, or both sides of an exchange add in the order of their places.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dist_classicrl.tables.maps import PackedSums
from dist_classicrl.tables.round_merge import MapSums


class Adder:
    """Adds up maps of a table of so many entries; in the result they ascend if they are to be `in_order`."""

    def __init__(self, entries: int, in_order: bool = False) -> None:
        self.entries = entries
        self._sums = MapSums(entries)
        self._in_order = in_order

    def __call__(self, first: PackedSums, second: PackedSums) -> PackedSums:
        """Return the sums of both: products of weights, sums of all else, in this order."""
        self._sums.add_sums(first)
        self._sums.add_sums(second)
        return self._sums.take(self._in_order)


@dataclass(frozen=True)
class Sums:
    """What one or several ranks have learned in a round, added up.

    Attributes
    ----------
    maps : PackedSums
        Of the entries that they touched, in any order.
    counted : ndarray(float64)
        What they counted; empty in all but the first part of a `split`.
    adder : callable
        Adds two `maps`.
    """

    maps: PackedSums
    counted: np.ndarray
    adder: Adder

    def plus(self, later: Sums) -> Sums:
        """Return the sum of both; the bits depend on the order."""
        return Sums(self.adder(self.maps, later.maps), self.counted + later.counted, self.adder)

    def split(self, parts: int) -> list[Sums]:
        """Return so many parts of it, by ranges of the table's entries that are the same on all ranks."""
        maps = self.maps
        order = np.argsort(maps.entries, kind="stable")
        ascending = PackedSums(*(array[order] for array in maps))
        ends = [self.adder.entries * number // parts for number in range(parts + 1)]
        cuts = np.searchsorted(ascending.entries, ends).tolist()
        return [
            Sums(
                PackedSums(*(array[cuts[number] : cuts[number + 1]] for array in ascending)),
                self.counted if number == 0 else self.counted[:0],
                self.adder,
            )
            for number in range(parts)
        ]

    @staticmethod
    def joined(parts: Sequence[Sums]) -> Sums:
        """Return what these are the parts of."""
        maps = PackedSums(*map(np.concatenate, zip(*(part.maps for part in parts), strict=True)))
        return Sums(maps, np.concatenate([part.counted for part in parts]), parts[0].adder)


class Step(NamedTuple):
    """What a rank does next: what it sends, by the place of who gets it, and whose message it waits for."""

    send: Mapping[int, Sums] = {}
    awaits: tuple[int, ...] = ()


Exchange = Generator[Step, dict[int, Sums], Sums]
"""Gives steps, is sent what came of each, by place, and returns the sum of all ranks."""


@runtime_checkable
class ExchangePattern(Protocol):
    """A way to exchange sums: any object that has these two methods. All ranks have to have the same one."""

    def suits(self, hosts: Sequence[int]) -> bool:
        """Whether it can be had where the rank at each place is on this host, numbered from 0 on."""

    def exchange(self, place: int, hosts: Sequence[int], own: Sums) -> Exchange:
        """Let the rank at `place` exchange its `own` sums with the others, and return the sum of all."""


class Tree:
    """Sums go up a binomial tree to the rank at place 0, and the sum comes down.

    That is 2 log2 n messages one after the other, of the whole of what was learned.
    """

    def suits(self, hosts: Sequence[int]) -> bool:
        """See `ExchangePattern`: always."""
        return True

    def exchange(self, place: int, hosts: Sequence[int], own: Sums) -> Exchange:
        """See `ExchangePattern`."""
        everybody = range(len(hosts))
        total = yield from _up(place, everybody, own)
        return (yield from _down(place, everybody, total))


class Doubling:
    """In turn k ranks whose places differ in bit k swap their sums.

    That is log2 n messages one after the other, of the whole of what was learned. Where n is no
    power of two, the ranks beyond give theirs to one before.
    """

    def suits(self, hosts: Sequence[int]) -> bool:
        """See `ExchangePattern`: always."""
        return True

    def exchange(self, place: int, hosts: Sequence[int], own: Sums) -> Exchange:
        """See `ExchangePattern`."""
        return (yield from _double(place, range(len(hosts)), own))


class Ring:
    """The table goes round in n parts, each once to be added up and once more as the sum.

    That is 2 (n - 1) messages one after the other, which together are less than twice
    what was learned, however many ranks there are.
    """

    def suits(self, hosts: Sequence[int]) -> bool:
        """See `ExchangePattern`: always."""
        return True

    def exchange(self, place: int, hosts: Sequence[int], own: Sums) -> Exchange:
        """See `ExchangePattern`."""
        ranks = len(hosts)
        if ranks == 1:
            return own
        after, before = (place + 1) % ranks, (place - 1) % ranks
        parts = own.split(ranks)
        for turn in range(ranks - 1):
            gone, next_one = (place - turn) % ranks, (place - turn - 1) % ranks
            came = yield Step({after: parts[gone]}, (before,))
            parts[next_one] = came[before].plus(parts[next_one])
        for turn in range(ranks - 1):
            gone, next_one = (place + 1 - turn) % ranks, (place - turn) % ranks
            came = yield Step({after: parts[gone]}, (before,))
            parts[next_one] = came[before]
        return Sums.joined(parts)


class TwoLevel:
    """A tree within each host, and swaps as in `Doubling` between the first ranks of the hosts.

    What was learned crosses to a host and from it log2 h times, of h hosts, however many ranks each has.
    """

    def suits(self, hosts: Sequence[int]) -> bool:
        """See `ExchangePattern`: always."""
        return True

    def exchange(self, place: int, hosts: Sequence[int], own: Sums) -> Exchange:
        """See `ExchangePattern`."""
        here = [other for other, host in enumerate(hosts) if host == hosts[place]]
        first = [hosts.index(host) for host in sorted(set(hosts), key=hosts.index)]
        total = yield from _up(here.index(place), here, own)
        if place == here[0]:
            total = yield from _double(first.index(place), first, total)
        return (yield from _down(here.index(place), here, total))


def _up(number: int, places: Sequence[int], own: Sums) -> Exchange:
    """Add up in the rank that is number 0 of these places; the others return what they have sent it."""
    total, bit = own, 1
    while bit < len(places) and not number & bit:
        if number | bit < len(places):
            other = places[number | bit]
            came = yield Step({}, (other,))
            total = total.plus(came[other])
        bit <<= 1
    if number:
        yield Step({places[number - bit]: total})
    return total


def _down(number: int, places: Sequence[int], total: Sums) -> Exchange:
    """Give all of these places the total of the rank that is number 0 of them."""
    bit = 1
    while bit < len(places) and not number & bit:
        bit <<= 1
    if number:
        above = places[number - bit]
        came = yield Step({}, (above,))
        total = came[above]
    below = []
    while bit > 1:
        bit >>= 1
        if number | bit < len(places):
            below.append(places[number | bit])
    if below:
        yield Step(dict.fromkeys(below, total))
    return total


def _double(number: int, places: Sequence[int], own: Sums) -> Exchange:
    """Swap with all others of these places, of whom those beyond a power of two give theirs to one before."""
    power = 1 << (len(places).bit_length() - 1)
    total = own
    if number >= power:
        partner = places[number - power]
        came = yield Step({partner: own}, (partner,))
        return came[partner]
    is_doubled = number + power < len(places)
    if is_doubled:
        beyond = places[number + power]
        came = yield Step({}, (beyond,))
        total = total.plus(came[beyond])
    bit = 1
    while bit < power:
        partner = places[number ^ bit]
        came = yield Step({partner: total}, (partner,))
        others = came[partner]
        total = others.plus(total) if number & bit else total.plus(others)
        bit <<= 1
    if is_doubled:
        yield Step({places[number + power]: total})
    return total


PATTERNS: Mapping[str, Callable[[], ExchangePattern]] = {
    "doubling": Doubling,
    "ring": Ring,
    "tree": Tree,
    "two_level": TwoLevel,
}
"""What ``exchange_pattern`` may name."""


def pattern_for(name: str) -> tuple[str, ExchangePattern]:
    """Return the pattern of this name, with the name of what "auto" takes.

    That is two levels, which are a tree on one host: of the patterns it adds up least in all, and was the
    quickest on 2 and 4 ranks with 256 to 100,000 entries (`benchmarks/results/topologies.md`).
    """
    name = "two_level" if name == "auto" else name
    return name, PATTERNS[name]()
