"""A superstep of ranks that exchange messages, as one share makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.errors import ProtocolError
from dist_classicrl.learning.learner import Problem
from dist_classicrl.learning.loops import NO_STEPS, Stretch
from dist_classicrl.learning.supersteps import in_place, kernels
from dist_classicrl.learning.supersteps.by_messages.exchanges import (
    Exchanges,
    Parts,
    packed,
    parts_for,
    unpacked,
)
from dist_classicrl.learning.supersteps.by_messages.hot_rows import ENTRY_WORDS, HotRows
from dist_classicrl.learning.supersteps.crew import ASKED, MOVED, Crew
from dist_classicrl.learning.supersteps.partition import STATE_SHIFT, WHERE
from dist_classicrl.learning.supersteps.shared import move_numbers
from dist_classicrl.tables.shape import TableShape


class MessageSteps:
    """What `Share` does in a superstep with others to whom it sends messages.

    All ranks `depart`, which gives the records for the others, then `answer` what others sent, then `settle`
    what came back. Where rows are hot the owners tell these then. What is declared here is a share's.
    """

    ranks: int
    words: int
    width: int
    shares: bool
    _problem: Problem
    _whole: TableShape
    _rank: int
    _partition: Any
    _crew: Any
    _context: Any
    _asking: Any
    _waits: int | None
    _learns_there: bool
    _hot: HotRows | None
    _depart: Callable[..., Any]
    _answer: Callable[..., Any]
    _settle_there: Callable[..., Any]
    _read: Callable[..., Any]
    _move_out: Callable[..., Any]
    _owners_of: Callable[..., Any]

    if TYPE_CHECKING:

        def _count(self, steps: int) -> None: ...

        def _make_room(self) -> None: ...

        def _call(self, kernel: Any, crew: Crew, *arguments: Any) -> bool: ...

        def _check(self, wrong: int) -> None: ...

    def superstep(self, stretch: Stretch, done: int, size: int) -> Exchanges:
        """Let its walkers among the first `size` move: `done` steps of the stretch have been made."""
        asked = yield self.depart(stretch, done, size)
        told = yield self.answer(stretch, done, asked)
        self.settle(stretch, done, size, told)
        if self.shares:
            sums = self.sums()[np.newaxis].copy()
            self.take_sums(np.sum((yield [sums] * self.ranks), axis=(0, 1)))
        if self._hot is not None:
            yield from self._share_hot_rows(self._hot, size)

    def _share_hot_rows(self, hot: HotRows, size: int) -> Exchanges:
        """See to it that all have the same of the rows that are hot, and choose anew when it is time."""
        if len(hot):
            hot.take_changed((yield hot.changed()))
        hot.count(size, self._n_settled, self._settled_states(hot.sample_of(self._n_settled)))
        if hot.is_due and hot.choose((yield hot.candidates()), self._whose):
            self._move_out(self._partition, self._crew)
            came = yield self._sent()
            self._answer_all(NO_STEPS, 0, came)

    def settle_all(self) -> Exchanges:
        """Do what is left when as many supersteps were made as were ordered: nothing."""
        yield from ()

    @property
    def has_to_end(self) -> bool:
        """Whether the superstep that was made is the last, on all ranks alike."""
        return False

    @property
    def _sets_apart(self) -> bool:
        """Whether some entries are not its own on which its walkers act, and it writes no letters of them."""
        return self._waits is None and self.n_hot_rows > 0

    @property
    def n_hot_rows(self) -> int:
        """How many rows are hot, of which all ranks have copies."""
        return 0 if self._hot is None else len(self._hot)

    @property
    def moved(self) -> int:
        """How many steps it made in the last superstep."""
        return self._n_moved

    def depart(self, stretch: Stretch, done: int, size: int) -> Parts:
        """Let its walkers among the first `size` act.

        Return the records for each rank, which are good until the next superstep: `packed` with what
        `HotRows` asks for where rows are hot.
        """
        self._count(size)
        self._make_room()
        crew = self._crew
        self._call(self._depart, crew, self._context, self._asking, stretch, done, size)
        self._n_moved = int(crew.sizes[MOVED])
        sent = self._sent()
        if self._hot is not None and self._sets_apart:
            return [packed(*both) for both in zip(sent, self._hot.set_apart(crew), strict=True)]
        return sent

    def _sent(self) -> Parts:
        crew = self._crew
        return [
            crew.out[start : start + n]
            for start, n in zip(crew.out_starts.tolist(), crew.n_out.tolist(), strict=True)
        ]

    def answer(self, stretch: Stretch, done: int, came: Parts) -> Parts:
        """Return the replies to the records of each rank, the bits of float64, in their order.

        It takes the walkers in that came with them. Where steps wait what is returned are letters, and where
        rows are hot replies `packed` with the targets that `HotRows` tells.
        """
        asked: Parts = []
        if self._sets_apart:
            both = [unpacked(part, self.words, ENTRY_WORDS) for part in came]
            came, asked = [part for part, _ in both], [part for _, part in both]
        records, counts, replies = self._answer_all(stretch, done, came)
        crew = self._crew
        if self._waits is not None:
            post = crew.post
            n = int(post.n[0])
            owners, letters = post.owners[:n], post.letters[:n]
            leave = owners != self._rank
            return parts_for(letters[leave], owners[leave], self.ranks)[0]
        split = np.split(replies.view(np.int64), np.cumsum(counts)[:-1])
        if self._hot is not None and self._sets_apart:
            told = self._hot.tell(records, counts, replies, asked)
            return [packed(*both) for both in zip(split, told, strict=True)]
        return split

    def _answer_all(
        self, stretch: Stretch, done: int, came: Parts
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute the targets that records ask for, and take the walkers in that came with them.

        Return the records of all ranks, how many are whose, and the targets.
        """
        records, counts = np.concatenate(came), np.array([len(part) for part in came])
        replies = np.empty((len(records), self._crew.targets.shape[1]))
        starts = np.cumsum(counts) - counts
        inbox = records, records.view(np.float64), starts, counts, replies
        problem = self._problem
        arguments = self._partition, self._crew, self._asking, stretch, done, *inbox
        self._check(self._answer(problem.parameters, *arguments))
        return records, counts, replies

    def settle(self, stretch: Stretch, done: int, size: int, told: Parts) -> None:
        """Learn from what each rank `told` in answer to the records that `depart` returned."""
        crew, others = self._crew, []
        if self._sets_apart:
            both = [unpacked(part, self.width, in_place.TARGET_WORDS) for part in told]
            told, others = [part for part, _ in both], [part for _, part in both]
        counts = np.array([len(part) for part in told])
        if self._waits is None and (counts != crew.n_out).any():
            raise ProtocolError("The owners of rows answered another number of walkers than was sent.")
        came, starts = np.concatenate(told), np.cumsum(counts) - counts
        if self._waits is not None:
            letters = came, starts, counts
            self._n_settled = len(came) + int((crew.post.owners[: crew.post.n[0]] == self._rank).sum())
            self._check(self._read(self._partition, crew, self._context, stretch, done, size, *letters))
            return
        replies = came.view(np.float64)
        if self._hot is not None and self._sets_apart:
            kernels.take_replies(crew, replies, starts)
            crew.sizes[ASKED] = 0
            self._hot.take_told(crew, size, others)
        self._n_settled = int(crew.sizes[MOVED])
        if self._learns_there:
            self._settle_there(self._problem.parameters, crew, self._context, stretch, done, replies, starts)
        else:
            kernels.settle(crew, self._context, stretch, done, replies, starts)

    def _settled_states(self, which: slice) -> np.ndarray:
        """Return the states of some of the entries that it moved in the last superstep."""
        states: np.ndarray
        if self._waits is None:
            states = self._crew.pairs[which] // self._whole.n_actions
        else:
            states = self._crew.post.mail[which, WHERE] >> STATE_SHIFT
        return states

    def _whose(self, states: np.ndarray) -> np.ndarray:
        """Return who owns these states, int64; -1: there is no such state."""
        is_state = (states >= 0) & (states < self._whole.n_states)
        found, owners = np.empty(int(is_state.sum()), np.int64), np.full(states.size, -1)
        self._owners_of(self._partition, states[is_state], found)
        owners[is_state] = found
        return owners

    def sums(self) -> np.ndarray:
        """Return what its walkers add up in this superstep to move shared numbers: int64, flat."""
        sums: np.ndarray = self._context.table.sums
        return sums.ravel()

    def take_sums(self, of_all: np.ndarray) -> None:
        """Move the shared numbers by the sums of all shares, its own among them, added up."""
        table = self._context.table
        table.sums[:] = of_all.reshape(table.sums.shape)
        move_numbers(table, table.sums)
