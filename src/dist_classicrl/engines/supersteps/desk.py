"""Where the ranks of a job ask each other for rows of a table that is divided between hosts.

Everything but `train` is local: whoever wants to know what stands in a row asks a rank of the host that has
it, and that rank answers in a thread, whatever its script is doing. So nothing is gathered. When its agent is
gone, or its script has ended, a rank goes on answering until all others have come there, too.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np

from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import decode, encode, message
from dist_classicrl.comm.transport import Channel
from dist_classicrl.engines.supersteps.division import Division
from dist_classicrl.errors import RankLostError, RankTimeoutError, SettingsError
from dist_classicrl.membership.group import Group
from dist_classicrl.membership.handshake import Setup
from dist_classicrl.tables.large_table import LargeTable

_TAGS = range(8, 64)
_TAG_TRIES, _TAG_SECONDS = 20, 0.1
_PIECE_BYTES = 1 << 16
_ROWS_AT_ONCE = 1 << 16
_SLEEP, _LONGEST_SLEEP = 1e-4, 5e-3
_EXIT_SECONDS = 600.0
"""So long a rank that asks nothing more waits, since it was last asked, for others who may ask."""


@message(Kind.ASK_VALUES)
@dataclass(frozen=True)
class AskValues:
    """A question: what stands in these rows."""

    number: int  # of the question
    rows: np.ndarray  # int64


@message(Kind.VALUES)
@dataclass(frozen=True)
class Values:
    """The answer."""

    number: int
    lines: np.ndarray  # uint8


@message(Kind.LEAVES)
@dataclass(frozen=True)
class Leaves:
    """The sender's agent is gone, or its script has ended: it will ask for nothing more."""

    answers: bool  # until all others have left


class RowDesk:
    """Answers the other ranks, and asks them for rows of `large`."""

    def __init__(self, group: Group, large: LargeTable, tag: int, in_use: set[int]) -> None:
        #: What the ranks send each other rows with.
        self.tag = tag
        self._group, self._in_use = group, in_use
        # The thread must not keep an agent's table for longer than others may ask for its rows.
        self._table = weakref.ref(large)
        self._held = large.memory, large.rows, large.shared
        wire = group.wire
        self._channels = {
            rank: wire.channel(rank, tag, _PIECE_BYTES)
            for rank in group.view.members
            if rank != group.rank and rank not in group.dead
        }
        self._changed = threading.Condition()
        self._to_send: deque[tuple[Channel, np.ndarray]] = deque()
        self._answers: dict[int, Values] = {}
        self._asked = 0
        self._left: set[int] = set()  # who ask for nothing more
        self._aside: set[int] = set()  # of these, who do not answer either
        self._last_asked = time.monotonic()
        self._is_over = self._is_aside = self._is_leaving = False
        self._thread = threading.Thread(target=self._answer_all, name="rows", daemon=True)
        self._thread.start()
        weakref.finalize(large, self._begin_to_leave).atexit = False
        atexit.register(self._leave)

    @property
    def _large(self) -> LargeTable:
        large = self._table()
        assert large is not None  # who asks has it
        return large

    def lines(self, states: np.ndarray) -> np.ndarray:
        """Return all that stands in the rows of these states, uint8 of shape (states, bytes of a row).

        RankLostError where nobody is left on a host that has some, and RankTimeoutError where nobody answers.
        """
        division: Division = self._large.division
        own = self._own_lines()
        found = np.empty((states.size, own.shape[1]), np.uint8)
        slots = division.slots_of(np.ascontiguousarray(states, np.int64))
        here = self._group.host_of(self._group.rank)
        for host in sorted({division.holders[slot] for slot in np.unique(slots).tolist()}):
            places = np.flatnonzero(np.array([holder == host for holder in division.holders])[slots])
            for first in range(0, places.size, _ROWS_AT_ONCE):
                some = places[first : first + _ROWS_AT_ONCE]
                found[some] = own[states[some]] if host == here else self._ask(host, states[some])
        return found

    def rows(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values and visits of these states, each of shape (states, A)."""
        table = self._large.rows
        lines = self.lines(states)
        n_actions, first = table.shape.n_actions, table.arrays.first_count
        values = lines.view(table.values.dtype)[:, :n_actions]
        return values, lines.view(np.uint32)[:, first : first + n_actions]

    def _own_lines(self) -> np.ndarray:
        self._hold()
        memory, rows, _ = self._held
        lines: np.ndarray = memory.reshape(rows.shape.n_rows, -1)
        return lines

    def _hold(self) -> bool:
        """Keep the table's rows, wherever they are by now; return whether the agent has it still."""
        large = self._table()
        if large is not None:
            self._held = large.memory, large.rows, large.shared
        return large is not None

    def _ask(self, host: str, rows: np.ndarray) -> np.ndarray:
        """Return what a rank of another host tells of rows; the next one is asked where the first is lost."""
        group = self._group
        for rank, channel in sorted(self._channels.items()):
            if group.host_of(rank) == host and channel.lost is None and rank not in self._aside:
                answer = self._answer_of(channel, rows)
                if answer is not None:
                    return answer.lines.reshape(rows.size, -1)
        raise RankLostError(
            f"Nobody is left on the host {host}, which alone has some of these rows of the table. Start the "
            "job again: with checkpoint_dir= it goes on from the last checkpoint."
        )

    def _answer_of(self, channel: Channel, rows: np.ndarray) -> Values | None:
        """Ask one rank; None: it is lost."""
        seconds = self._group.timing.stuck
        deadline = time.monotonic() + seconds
        with self._changed:
            self._asked += 1
            number = self._asked
            self._to_send.append((channel, encode(AskValues(number, np.ascontiguousarray(rows, np.int64)))))
            while number not in self._answers:
                if channel.lost is not None or self._is_over:
                    return None
                if time.monotonic() > deadline:
                    raise RankTimeoutError(
                        f"Waited {seconds:g} s for rank {channel.peer} to tell rows of the table. If that "
                        "can take longer, raise timeout=; else look for a rank that hangs."
                    )
                self._changed.wait(0.1)
            return self._answers.pop(number)

    # In the thread, which alone uses the channels

    def _answer_all(self) -> None:
        sleep = _SLEEP
        while not self._is_over:
            sleep = _SLEEP if self._turn() else min(2.0 * sleep, _LONGEST_SLEEP)
            if not self._hold() and self._is_leaving and self._is_done():
                break
            with self._changed:
                if not self._to_send:
                    self._changed.wait(sleep)
        are_closed = [channel.close(1.0) for channel in self._channels.values()]
        is_lost = [channel.lost is not None for channel in self._channels.values()]
        # Of who is silent something may come yet.
        if all(are_closed) and not any(is_lost) and set(self._channels) <= self._left:
            self._in_use.discard(self.tag)
        atexit.unregister(self._leave)

    def _turn(self) -> bool:
        """Send and receive what there is; return whether there was anything."""
        with self._changed:
            to_send = list(self._to_send)
            self._to_send.clear()
        for channel, told in to_send:
            channel.send(told)
        channels = [channel for channel in self._channels.values() if channel.lost is None]
        arrived = self._group.wire.receive(channels) if channels else []
        for channel, received in arrived:
            match decode(received):
                case AskValues(number, rows):
                    self._last_asked = time.monotonic()
                    told = np.ascontiguousarray(self._own_lines()[rows]).reshape(-1)
                    channel.send(encode(Values(number, told)))
                case Values() as answer:
                    with self._changed:
                        self._answers[answer.number] = answer
                        self._changed.notify_all()
                case Leaves(answers):
                    self._left.add(channel.peer)
                    if not answers:
                        self._aside.add(channel.peer)
        for channel in channels:
            channel.reap()
        return bool(arrived or to_send)

    # The end

    def _begin_to_leave(self) -> None:
        """Say that this rank asks nothing more."""
        with self._changed:
            if not self._is_leaving:
                self._is_leaving, self._last_asked = True, time.monotonic()
                told = encode(Leaves(not self._is_aside))
                self._to_send += [(channel, told) for channel in self._channels.values()]

    def _leave(self) -> None:
        """Answer at the end of the script until nobody asks any more."""
        self._begin_to_leave()
        while self._thread.is_alive() and not self._is_done():
            time.sleep(_LONGEST_SLEEP)
        self._is_over = True
        self._thread.join(1.0 + len(self._channels))  # it closes one after the other, a second each at most

    def _is_done(self) -> bool:
        return self._others_have_left() or time.monotonic() >= self._last_asked + _EXIT_SECONDS

    def _others_have_left(self) -> bool:
        group = self._group
        lost = {rank for rank, channel in self._channels.items() if channel.lost is not None}
        there = set(group.view.members) & set(self._channels) - lost - group.dead
        return self._is_aside or (there <= self._left and not self._to_send)

    def step_aside(self) -> None:
        """Do not wait for others at the end: this rank has left the training, and has no rows."""
        self._is_aside = True


_in_use: weakref.WeakKeyDictionary[Group, set[int]] = weakref.WeakKeyDictionary()
"""The tags of the desks of this rank, by the group of their ranks, until nothing more can come with them."""


def open_desk(large: LargeTable, group: Group, setup: Setup) -> None:
    """Let the ranks ask each other for rows from now on; all ranks call it together.

    Some may have a desk already, where a rank was lost while all opened theirs: the others take its tag.
    """
    if not group.wire.has_threads:
        raise SettingsError(
            "A table that is divided between hosts needs an MPI library that several threads may call "
            "(MPI_THREAD_MULTIPLE), so that ranks can ask each other for rows. Start MPI with it: mpi4py "
            "does by itself, unless mpi4py.rc.thread_level says otherwise."
        )
    in_use = _in_use.setdefault(group, set())
    own = None if large.desk is None else large.desk.tag
    for _ in range(_TAG_TRIES):
        can_be = [int(tag not in in_use if own is None else tag == own) for tag in _TAGS]
        everyone = setup.agree(None, {}, can_be, "all ranks to say which agents are gone")
        free = [tag for tag, answers in zip(_TAGS, everyone.T, strict=True) if answers.all()]
        if free:
            break
        time.sleep(_TAG_SECONDS)  # until all have heard that another agent is gone
    else:
        raise SettingsError(
            f"{len(_TAGS)} agents of these ranks have tables that are divided between hosts, and no more can "
            "at a time. Let go of those that are not needed any more, on all ranks (del agent). Where a rank "
            "was lost since, that does not help: start the job again."
        )
    if own is None:
        large.desk = RowDesk(group, large, free[0], in_use)
        in_use.add(free[0])
