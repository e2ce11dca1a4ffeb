"""Rows that get most of the visits: all ranks have copies of them, so that nobody waits for their owners.

A walker that comes to such a row stays where it is, and acts by the copy; one that begins an episode there is
with the rank that its identity names. The target goes to the owner of the entry, who moves it with all others
of the superstep, in the order of the walkers' identities; then the owners tell the rows that have changed,
before anybody acts again. So the bits are those of walkers that travel, and which rows are hot changes
nothing but who does what.

Which these are is chosen anew every `WINDOW` supersteps, from what the owners count meanwhile: those that get
more than 1/(8 R) of the visits on R ranks, and those that were hot while they get half of that. So no other
row gives its owner more than an eighth of a mean rank's work. All choose from the same candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_classicrl.errors import ProtocolError
from dist_classicrl.learning.supersteps.by_messages import kernels
from dist_classicrl.learning.supersteps.by_messages.exchanges import Parts, parts_for
from dist_classicrl.learning.supersteps.copies import fill, new_copies
from dist_classicrl.learning.supersteps.crew import Crew
from dist_classicrl.learning.supersteps.in_place import TARGET_WORDS
from dist_classicrl.tables.line_table import LineTable
from dist_classicrl.tables.rows import legal_lists

WINDOW = 64
"""Supersteps after which it is chosen anew which rows are hot."""

LEAST_WALKERS = 64
"""Of each rank, in the mean: where fewer move, one more exchange costs more than what is won by it."""

_SHARE = 8
_MOST = 1024
_SAMPLE = 64
"""So many visits are counted of a superstep; a row that is hot has at least an eighth of a mean rank's."""

ENTRY_WORDS = 2
"""Of what is said of a record that asks for the target of an entry of others: which it is, and the state."""


def most_copies(ranks: int) -> int:
    """Return how many rows can be hot at most: more cannot get their share of the visits."""
    return min(_MOST, _SHARE * ranks)


class HotRows:
    """What one rank of several knows of the rows that are hot, and counts for the next choice.

    Its `table` has its own rows, those of `own_states` in their order, and behind them room for
    `most_copies`, in each of the rule's tables; None: it has all rows, where their states say. `legal` and
    `policy` are those of the whole problem, if any, and `own_policy` has room likewise.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        walkers: int,
        table: LineTable,
        own_states: np.ndarray | None,
        legal: np.ndarray | None,
        policy: np.ndarray | None = None,
        own_policy: np.ndarray | None = None,
    ) -> None:
        self._rank, self._ranks, self._own_states = rank, ranks, own_states
        self._most = most_copies(ranks)
        shape = table.shape
        self._n_states, self._n_actions, self._n_tables = shape.n_states, shape.n_actions, shape.n_tables
        self._lines = table.arrays.counts.view(np.int64).reshape(shape.n_rows, -1)
        self._legal, self._own_legal = legal, table.arrays.legal
        self._policy, self._own_policy = policy, own_policy
        self._row_words = self._n_tables * self._lines.shape[1]
        #: Which rows these are, as kernels see it.
        self.copies = new_copies(2 << (self._most - 1).bit_length())
        nothing = np.zeros(0, np.int64)
        self._states, self._owners, self._rows, self._own = nothing, nothing, nothing, nothing
        self._last_told = np.zeros((0, self._row_words), np.int64)
        self._forget_visits()
        self._entries = np.zeros((walkers, ENTRY_WORDS), np.int64)
        self._told = np.zeros((walkers, TARGET_WORDS), np.int64)
        # To which ranks these go, and where those stand that are no such.
        self._asked, self._to, self._kept = (np.zeros(walkers, np.int64) for _ in range(3))
        self._n_told = 0

    def __len__(self) -> int:
        """Return how many rows are hot."""
        return self._states.size

    # Which rows

    def _forget_visits(self) -> None:
        self._supersteps = self._steps = 0
        self._visited: list[np.ndarray] = []
        self._weights: list[float] = []

    def sample_of(self, n: int) -> slice:
        """Return which of `n` visits are counted."""
        return slice(0, n, max(1, n // _SAMPLE))

    def count(self, size: int, n: int, states: np.ndarray) -> None:
        """Count a superstep of `size` steps, in which this rank moved `n` entries, some of these `states`."""
        self._supersteps += 1
        self._steps += size
        self._visited.append(states)
        self._weights.append(n / max(1, states.size))
        if self.is_due and not (self._are_enough or len(self)):
            self._forget_visits()

    @property
    def _are_enough(self) -> bool:
        return self._steps >= WINDOW * LEAST_WALKERS * self._ranks

    @property
    def is_due(self) -> bool:
        """Whether it is time to choose, which it is on all ranks alike."""
        return self._supersteps >= WINDOW

    def candidates(self) -> Parts:
        """Return what this rank knows of its rows that may be hot: for each state its visits and its row."""
        found, visits = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if self._are_enough:
            found, which = np.unique(np.concatenate(self._visited), return_inverse=True)
            weights = np.repeat(self._weights, [states.size for states in self._visited])
            visits = np.bincount(which, weights, found.size).astype(np.int64)
            least = np.where(np.isin(found, self._states), 0.5, 1.0) * self._steps / (_SHARE * self._ranks)
            chosen = np.flatnonzero(visits > least)
            chosen = chosen[np.argsort(-visits[chosen], kind="stable")[: self._most]]
            found, visits = found[chosen], visits[chosen]
        self._forget_visits()
        rows = found if self._own_states is None else np.searchsorted(self._own_states, found)
        return [np.column_stack([found, visits, self._read(rows)])] * self._ranks

    def choose(self, parts: Parts, owners_of: Any) -> bool:
        """Let the most visited of the candidates of all ranks be hot; return whether others are than before.

        `owners_of` returns whose these states are.
        """
        told, owners = self._all_of(parts, 2)
        states = told[:, 0]
        if (states < 0).any() or (owners_of(states) != owners).any():
            raise _wrong("Rows that are not the sender's")
        order = np.lexsort((states, -told[:, 1]))[: self._most]
        order = order[np.argsort(states[order])]
        if np.array_equal(states[order], self._states):
            return False
        self._states, self._owners = states[order], owners[order]
        self._own = np.flatnonzero(self._owners == self._rank)
        if self._own_states is None:
            self._rows = self._states
        else:
            self._rows = self._own_states.size + np.arange(order.size)
            self._rows[self._own] = np.searchsorted(self._own_states, self._states[self._own])
        fill(self.copies, self._states, self._rows, self._owners)
        others = self._owners != self._rank
        self._lines[self._places(self._rows[others])] = self._shaped(told[order][others, 2:])
        if self._own_states is not None:
            self._copy_more(self._states[others], self._rows[others])
        self._last_told = self._read(self._rows[self._own])
        return True

    def _copy_more(self, states: np.ndarray, rows: np.ndarray) -> None:
        """Copy what else is known by rows: which actions are legal, and the policy."""
        if self._legal is not None and self._own_legal is not None:
            counts, order = legal_lists(self._legal[states])
            self._own_legal[0][rows] = counts
            self._own_legal[1].reshape(-1, self._n_actions)[rows] = order.reshape(-1, self._n_actions)
        if self._policy is not None and self._own_policy is not None:
            self._own_policy[rows] = self._policy[states]

    # Rows

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Return where rows are in all of the rule's tables, shape (rows, tables)."""
        places: np.ndarray = rows[:, np.newaxis] + self._n_states * np.arange(self._n_tables)
        return places

    def _shaped(self, lines: np.ndarray) -> np.ndarray:
        return lines.reshape(len(lines), self._n_tables, self._lines.shape[1])

    def _read(self, rows: np.ndarray) -> np.ndarray:
        """Return what stands in rows, int64 of shape (rows, words)."""
        return self._lines[self._places(rows)].reshape(rows.size, self._row_words)

    def _all_of(self, parts: Parts, words: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what all ranks say of rows, behind so many words, and who says it."""
        if any(part.shape[1] != words + self._row_words for part in parts):
            raise _wrong("Rows of another length")
        return np.concatenate(parts), np.repeat(np.arange(self._ranks), [len(part) for part in parts])

    def changed(self) -> Parts:
        """Return those of this rank's rows that have changed since all were told last: which, and the row."""
        lines = self._read(self._rows[self._own])
        has_changed = (lines != self._last_told).any(axis=1)
        self._last_told = lines
        return [np.column_stack([self._own[has_changed], lines[has_changed]])] * self._ranks

    def take_changed(self, parts: Parts) -> None:
        """Let the copies be what the owners have told."""
        told, owners = self._all_of(parts, 1)
        which = told[:, 0]
        if ((which < 0) | (which >= len(self))).any() or (self._owners[which] != owners).any():
            raise _wrong("Rows that are not the sender's")
        is_copy = owners != self._rank
        self._lines[self._places(self._rows[which[is_copy]])] = self._shaped(told[is_copy, 1:])

    # Targets of rules that learn each step at once

    def set_apart(self, crew: Crew) -> Parts:
        """Take the entries that others own out of what has moved, and keep the targets that are known.

        Return for each rank which of the records for it ask for targets of such entries, and of which states.
        """
        told, reals = self._told, self._told.view(np.float64)
        entries, asked = self._entries, self._asked
        first = 0 if self._own_states is None else self._own_states.size
        rest = self._kept, entries, asked, told, reals, self._to
        n, self._n_told = kernels.set_apart(crew, self._n_actions, first, *rest)
        return parts_for(entries[:n], asked[:n], self._ranks)[0]

    def tell(self, records: np.ndarray, counts: np.ndarray, replies: np.ndarray, asked: Parts) -> Parts:
        """Return what each rank is told of the targets of its entries: those of this rank's walkers as well.

        `asked` is what each rank has said of its records, of which `replies` has the targets.
        """
        starts = np.cumsum(counts) - counts
        entries = np.concatenate(asked)
        n_asked = [len(part) for part in asked]
        if ((entries[:, 0] < 0) | (entries[:, 0] >= np.repeat(counts, n_asked))).any():
            raise _wrong("Entries of no record")
        places = entries[:, 0] + np.repeat(starts, n_asked)
        told, reals = self._told, self._told.view(np.float64)
        rest = replies, places, entries[:, 1].copy(), told, reals, self._to, self._n_told
        n = kernels.tell(self.copies, records, *rest)
        if n < 0:
            raise _wrong("Entries of rows that are not hot")
        return parts_for(told[:n], self._to[:n], self._ranks)[0]

    def take_told(self, crew: Crew, size: int, parts: Parts) -> None:
        """Let what others have found out be settled with what this rank has; `size` walkers have moved."""
        told = np.concatenate(parts)
        n = kernels.take_told(crew, self._n_actions, self._n_tables, size, told, told.view(np.float64))
        order = np.argsort(crew.numbers[: max(n, 0)], kind="stable")
        for array in (crew.numbers, crew.rows, crew.actions, crew.pairs, crew.targets):
            array[: order.size] = array[order]
        if n < 0 or (np.diff(crew.numbers[:n]) == 0).any():
            raise _wrong("Targets of no entry")

    def compile(self, crew: Crew) -> None:
        """Compile what is called, or load it; nothing has moved yet."""
        nothing = [np.zeros((0, ENTRY_WORDS), np.int64)] * self._ranks
        counts = np.zeros(self._ranks, np.int64)
        self.set_apart(crew)
        told = self.tell(crew.records[:0], counts, crew.targets[:0], nothing)
        self.take_told(crew, 0, told)
        fill(self.copies, self._states, self._rows, self._owners)


def _wrong(what: str) -> ProtocolError:
    return ProtocolError(
        f"{what} came from another owner of rows. Do all ranks run the same version, with the same "
        "environment and partition?"
    )
