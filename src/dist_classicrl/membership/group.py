"""The ranks of one communicator: control messages, MPI's word on who died, the agreed view."""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl.comm.collectives import duplicate, finish
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import decode_stamped, encode, message
from dist_classicrl.comm.transport import SMALL_PIECE_BYTES, Channel, Unfinished, Wire
from dist_classicrl.errors import ProtocolError, SettingsError
from dist_classicrl.membership.events import EventLog
from dist_classicrl.membership.view import View

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often a rank with work asks for messages that are rare: asking the MPI library in vain gives the core
away where ranks outnumber cores."""

ELECTION_SHARE = 1.5
"""After how many times the silence that excludes a worker the workers give up the server: it has given up
itself by then if it does not hear them either."""

_CONTROL_TAG = 1
_FIRST_TAG = 64
_HOST_BYTES = 64  # as many as Linux allows
# Of tags, in one call, and for one purpose. What comes late must not be met by what is sent later.
_PURPOSES = 2 * 8191
_NUMBERS = 4096
_ATTEMPTS_OF_TERM = 1 << 18


# Control messages. Each is stamped with the number of the call of `train` that it belongs to.


class Question:
    """A control message whose sender waits for an answer, even if the call is over."""


@message(Kind.VIEW)
@dataclass(frozen=True)
class NewView:
    """The word of a server, or of who held a vote: who is in the run now, and all that has happened."""

    view: View
    events: list[dict[str, Any]]
    joining: tuple[int, ...] = ()  # ranks that voted for it, have nothing to go on with, and ask to join it


@message(Kind.RELEASE)
@dataclass(frozen=True)
class Release:
    """Everybody has everything: the receiver may go."""


@message(Kind.OVER)
@dataclass(frozen=True)
class Over:
    """The answer to a question where the call is over."""


@dataclass(frozen=True)
class Timing:
    """When a rank counts as lost, in seconds."""

    interval: float  # after which a rank that has said nothing says that it is there
    silence: float  # of its process, after which a rank is lost
    stuck: float  # without progress of its main loop, after which it is lost

    @property
    def election(self) -> float:
        """Seconds of silence after which the server is lost."""
        return ELECTION_SHARE * self.silence


class Group:
    """The ranks of a communicator, through all calls of `train` over it."""

    def __init__(self, wire: Wire, hosts: Sequence[str]) -> None:
        self.wire = wire
        self.rank = wire.rank  # this process's
        self.hosts = list(hosts)  # by rank
        self.view = View(0, 0, 0, tuple(range(wire.size)))  # the newest that this rank knows
        self.dead: set[int] = set()  # ranks that have died, by MPI's word
        self.call = 0  # how many calls of `train` this rank has begun
        self.promised = 0  # the highest term that this rank has promised to follow, or follows
        self.timing = Timing(1.0, 30.0, 600.0)
        self.is_replacement = False
        self.events = EventLog()  # what happened to the ranks in this call, and who left before
        self.joining: tuple[int, ...] = ()  # who is to join the newest view, see `NewView`
        self.tried = 0  # the highest term that this rank has taken, see `new_term`
        self.joins = 0  # how often this rank has had to ask to take part
        self._links: dict[int, Channel] = {}
        self._waiting: deque[tuple[int, int, Any]] = deque()  # sender, call and message
        self._early: list[tuple[int, int, Any]] = []
        self._unfinished: dict[int, Unfinished] = {}  # what had come of a message when a call was over
        self._polled = -1.0

    @property
    def is_server(self) -> bool:
        """Whether this rank serves, as far as it knows."""
        return self.view.server == self.rank

    @property
    def is_member(self) -> bool:
        """Whether this rank is in the view."""
        return self.rank in self.view.members

    def host_of(self, rank: int) -> str:
        """Return the name of the host of `rank`, "" where none is known; replacements run on the server's."""
        known = [each for each in (rank, self.view.server) if each < len(self.hosts)]
        return self.hosts[known[0]] if known else ""

    @classmethod
    def of_replacement(cls, wire: Wire, rank: int, view: View, timing: Timing) -> Group:
        """Return the group of a process that was started to replace a rank: it knows the server alone."""
        wire.rank = rank
        group = cls(wire, [])
        group.view, group.timing, group.is_replacement = view, timing, True
        return group

    def begin_call(self, timing: Timing) -> None:
        """Open the control links for another call of `train`.

        Elections are of one call: in this one there was no view before.
        """
        self.view = replace(self.view, before=())
        self.timing = timing
        self.events = EventLog(self.events.left)
        self.call += 1
        for peer in range(self.wire.size):
            if peer != self.rank and peer not in self.dead:
                self._links[peer] = link = self.wire.channel(peer, _CONTROL_TAG, SMALL_PIECE_BYTES)
                # The tag is that of the last call: what is left of its last message comes first.
                link.unfinished = self._unfinished.pop(peer, None)

    def end_call(self, linger: float) -> None:
        """Close the control links."""
        for peer, link in self._links.items():
            link.close(linger)
            if link.late is not None:
                self._waiting.append((peer, *decode_stamped(link.late)))
            if link.unfinished is not None:
                self._unfinished[peer] = link.unfinished
        self._links.clear()

    def tag(self, term: int, admission: int = 0) -> int:
        """Return the tag of a server's messages in this call: to who got such an admission in its term."""
        return self._tag(2 * term, admission)

    @property
    def first_attempt(self) -> int:
        """The number before that of this term's first attempt at something that workers do together."""
        return self.view.term * _ATTEMPTS_OF_TERM

    def next_attempt(self, before: int) -> int:
        """Return the number of the attempt of this term that comes after the one `before`.

        A `ProtocolError` is raised where it would be one of the next term's.
        """
        if before + 1 >= self.first_attempt + _ATTEMPTS_OF_TERM:
            raise ProtocolError(
                f"Ranks have begun anew {_ATTEMPTS_OF_TERM - 1:,} times under the server of rank "
                f"{self.view.server}, and more cannot be told apart. Start the job again; it goes on from "
                "the last checkpoint, where there is one (checkpoint_dir=). The log tells which ranks come "
                "and go."
            )
        return before + 1

    def tag_between_workers(self, attempt: int) -> int:
        """Return the tag of what workers tell each other in an attempt, counted from `first_attempt` on.

        It comes again within the term, after as many attempts as there are numbers for tags.
        """
        term, number = divmod(attempt, _ATTEMPTS_OF_TERM)
        return self._tag(2 * term + 1, number)

    def _tag(self, purpose: int, number: int) -> int:
        tag = (self.call * _PURPOSES + purpose) * _NUMBERS + number % _NUMBERS
        return _FIRST_TAG + tag % (self.wire.tag_limit - _FIRST_TAG)

    def send(self, peer: int, control: object, call: int | None = None) -> None:
        """Send a control message, of this call if no other is given; to a dead rank it goes nowhere."""
        link = self._links.get(peer)
        if link is not None:
            link.send(encode(control, self.call if call is None else call))

    def announce(self, view: View, *others: int, joining: tuple[int, ...] = ()) -> None:
        """Make `view` this rank's, and tell it its members and `others`, with all that happened so far."""
        self.adopt(view)
        self.joining = joining
        for peer in {*view.members, *others} - {self.rank}:
            self.send(peer, NewView(view, self.events.entries, joining))

    def accept(self, new: NewView) -> View | None:
        """Adopt the view that came if this rank has promised nobody newer. Return it in that case."""
        view = new.view
        if view.term < self.promised or view.key <= self.view.key:
            return None
        is_elected = view.term > self.view.term
        self.hear_of_lives(set(view.members) - set(() if is_elected else self.view.members))
        self.adopt(view)
        self.joining = new.joining
        self.events.take(new.events)
        return view

    def tell_released(self) -> None:
        """Tell the others that all have the result, in case that the server dies while it says so."""
        for peer in set(self.view.members) - {self.rank, self.view.server}:
            self.send(peer, Release())

    def adopt(self, view: View) -> None:
        """Take `view` as the newest."""
        self.view = view
        self.promised = max(self.promised, view.term)

    def new_term(self, *known: int) -> int:
        """Return a term later than all that this rank knows, and those given; no other rank ever takes it."""
        size = self.wire.size
        highest = max(self.promised, self.view.term, self.tried, *known)
        self.tried = (highest // size + 1) * size + self.rank
        return self.tried

    def withdraw(self) -> None:
        """Take back promises to follow somebody newer than the server of the view.

        The others hear that server, or have excluded this rank: nothing came of those votes, or this rank's
        promise did not count in them.
        """
        self.promised = self.view.term

    def is_due(self) -> bool:
        """Whether it is time for somebody who has work to `poll` again."""
        now = self.wire.now()
        if now - self._polled < POLL_SECONDS:
            return False
        self._polled = now
        return True

    def poll(self) -> Iterator[tuple[int, Any]]:
        """Give the control messages of this call that have come, each with its sender. Never waits.

        `dead` is brought up to date. What belongs to a later call is kept for it, and what nobody has taken,
        because an exception ended the loop, for the next time. Of what came late of an earlier one only that
        it excluded this rank still counts.
        """
        arrived = self.wire.receive(list(self._links.values()))
        for peer, link in list(self._links.items()):
            link.reap()
            if link.lost is not None:
                self.note_death(peer, link.lost)
        self._waiting.extendleft(reversed(self._early))
        self._early.clear()
        self._waiting += [(channel.peer, *decode_stamped(received)) for channel, received in arrived]
        while self._waiting:
            sender, call, control = self._waiting.popleft()
            if call == self.call:
                yield sender, control
            elif call > self.call:
                self._early.append((sender, call, control))
            elif isinstance(control, Question):
                self.send(sender, Over(), call)
            elif isinstance(control, NewView) and self.rank not in control.view.members:
                # The others have gone on without it since: where it came late to the end of that call.
                yield sender, NewView(replace(control.view, before=()), self.events.entries)

    def hear_of_deaths(self, dead: Collection[int]) -> None:
        """Believe another rank's word that these have died: they may count in an election."""
        self.dead.update(self.view.voters.intersection(dead) - {self.rank})

    def hear_of_lives(self, ranks: Collection[int]) -> None:
        """Hear that these have spoken since: of who has died, only MPI's word to this rank itself counts."""
        self.dead -= {rank for rank in ranks if rank in self._links}

    def note_death(self, peer: int, why: str) -> None:
        """Take note of MPI's word that `peer` has died."""
        if peer not in self.dead:
            logger.debug("MPI says that rank %d has died: %s", peer, why)
            self.dead.add(peer)
        link = self._links.pop(peer, None)
        if link is not None:
            link.close()


def group_of(comm: Any, timeout: float) -> Group:
    """Return the group of a communicator, which all of its ranks make together the first time.

    This is the one place where all ranks have to be alive. A `RankTimeoutError` is raised if not all come
    within `timeout` seconds, and a `RankLostError` if one has died, or MPI can make no communicator.

    It is kept, with a communicator of its own, until MPI ends, whatever becomes of `comm`: messages may still
    be on their way there, which must not turn up in another one.
    """
    global _key
    from mpi4py import MPI

    if _key is None:
        _key = MPI.Comm.Create_keyval()
    found = comm.Get_attr(_key)
    if found is not None:
        return found
    # Its own communicator keeps the library's messages apart from the user's.
    what = "all ranks to reach train(); every rank of the communicator has to call it"
    wire = Wire(own := duplicate(comm, timeout, what, _REMEDY))
    hosts = np.zeros((wire.size, _HOST_BYTES), np.uint8)
    request = own.Iallgather(_host_bytes(), hosts)
    finish(comm, request, timeout, "all ranks to tell their hosts", _REMEDY, own, hosts)
    group = Group(wire, [name.tobytes().rstrip(b"\0").decode(errors="replace") for name in hosts])
    comm.Set_attr(_key, group)
    return group


@contextmanager
def sole_use(comm: Any) -> Iterator[None]:
    """Let no other call of `train` in this process use `comm` meanwhile; SettingsError where one uses it."""
    with _use:
        if any(comm == each for each in _in_use):
            raise SettingsError(
                "train() was called over ranks over which this process is training already, in another "
                "thread or in the call that a callback belongs to: their messages would be taken for each "
                "other's. Give each agent that trains at the same time a communicator of its own, "
                "comm=comm.Dup() with mpi4py.MPI.COMM_WORLD for comm, made on all ranks in the same order "
                "before the threads begin, and used for all calls of that thread."
            )
        _in_use.append(comm)
    try:
        yield
    finally:
        with _use:
            _in_use.remove(comm)


def serving_rank(comm: Any) -> int:
    """Return which rank of a communicator serves, or will."""
    group = None if _key is None else comm.Get_attr(_key)
    return 0 if group is None else group.view.server


_key: int | None = None
_in_use: list[Any] = []  # communicators over which this process trains
_use = threading.Lock()
_REMEDY = (
    "Until all ranks have begun to train, all have to live: start the job again, best with `python -m "
    "dist_classicrl launch`, which does that by itself."
)


def _host_bytes() -> np.ndarray:
    name = np.frombuffer(socket.gethostname().encode()[:_HOST_BYTES], np.uint8)
    return np.pad(name, (0, _HOST_BYTES - name.size))
