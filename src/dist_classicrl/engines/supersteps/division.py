"""Which host has which rows of a table that is divided between hosts.

States belong to slots, as many as there were ranks when the table was first divided, and a slot to a host: as
long as that has a rank that learns, its rows stay there, whoever else comes or goes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_classicrl._jit import jit_for
from dist_classicrl._memory import LINE
from dist_classicrl.learning.supersteps.owners import Holding, Written, owned_by, owners_of

SLICE_BYTES = 1 << 24

BLOCK_SHIFT = (mmap.PAGESIZE // LINE).bit_length() - 1
"""Binary logarithm of the states of a block: a row takes whole lines, so that a block of them fills pages."""


def slices_of(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Give the first row of each slice, and the one behind its last."""
    at_once = max(1, SLICE_BYTES // row_bytes)
    for first in range(0, n_rows, at_once):
        yield first, min(first + at_once, n_rows)


@dataclass(eq=False)
class Division:
    """How `n_states` rows are divided; `holders` are the hosts of the slots, `ranks` those of the job.

    Slots are fewer where a rank was lost before, whom a function as `partition` may name all the same.
    """

    partition: Any  # of states among slots: "hash", "range", or a function of the user's
    n_states: int
    row_bytes: int
    holders: list[str]
    ranks: int
    _slots: Any = field(init=False)

    def __post_init__(self) -> None:
        nobody = np.zeros(len(self.holders), np.int64)
        self._slots = owned_by(self.holding(nobody), self.n_states, 0, 1).arrays.slots

    def holding(self, owners: np.ndarray) -> Holding:
        """Return how learners have to be told of it, where slots have these owners."""
        partition = Written(self.partition, self.ranks) if callable(self.partition) else self.partition
        return Holding(partition, owners, BLOCK_SHIFT)

    def owners(self, players: Sequence[int], host_of: Callable[[int], str]) -> np.ndarray:
        """Return whose each slot is, int64: the number of one of the players, on the host that has it."""
        by_host: dict[str, list[int]] = {}
        for number, rank in enumerate(players):
            by_host.setdefault(host_of(rank), []).append(number)
        seen: dict[str, int] = {}
        found = []
        for host in self.holders:
            here, number = by_host[host], seen.get(host, 0)
            found.append(here[number % len(here)])
            seen[host] = number + 1
        return np.array(found, np.int64)

    def give_away(self, hosts: Collection[str]) -> bool:
        """Give slots of other hosts to these, evenly; return whether there were any."""
        homeless = [slot for slot, host in enumerate(self.holders) if host not in hosts]
        for slot in homeless:
            self.holders[slot] = min(sorted(hosts), key=self.holders.count)
        return bool(homeless)

    def slices(self) -> Iterator[tuple[int, int]]:
        """See `slices_of`, of states."""
        return slices_of(self.n_states, self.row_bytes)

    def rows_of(self, host: str, first: int, last: int) -> np.ndarray:
        """Return those rows from `first` to before `last` that a host has."""
        states = np.arange(first, last)
        rows: np.ndarray = states[self._is_held_by(host)[self.slots_of(states)]]
        return rows

    def share_of(self, host: str) -> float:
        """Return the share of the slots that a host has."""
        return self.holders.count(host) / len(self.holders)

    def bytes_of(self, host: str) -> int:
        """Return how much memory a host needs at most: the pages in which it has rows.

        Unlike others, a function as `partition` need not keep blocks of states together that fill pages.
        """
        if not callable(self.partition):
            return int(self.share_of(host) * self.n_states * self.row_bytes)
        pages, last = 0, -1
        for part in self.slices():
            begins = self.rows_of(host, *part) * self.row_bytes
            if begins.size:
                firsts, lasts = begins // mmap.PAGESIZE, (begins + self.row_bytes - 1) // mmap.PAGESIZE
                seen = np.maximum(firsts - 1, np.append(last, lasts[:-1]))
                pages, last = pages + int((lasts - seen).sum()), int(lasts[-1])
        return pages * mmap.PAGESIZE

    def _is_held_by(self, host: str) -> np.ndarray:
        return np.array([holder == host for holder in self.holders])

    def slots_of(self, states: np.ndarray) -> np.ndarray:
        """Return in which slot each of these states is, int64."""
        slots = np.empty(states.size, np.int64)
        jit_for(owners_of, type(self._slots))(self._slots, states, slots)
        return slots
