"""Steps that some ranks take together, led by one of them, in which nobody waits for longer than makes sense.

Point-to-point messages between that rank, the root, and each other one. What a rank does while it waits is
its caller's: find out who died, lose patience, say that it is at work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from dist_classicrl.comm.collectives import give_back, own_communicator
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import Bye, decode_stamped, encode, message
from dist_classicrl.comm.parts import from_parts, to_parts
from dist_classicrl.comm.remote_errors import Failed
from dist_classicrl.comm.transport import Backoff, Channel, Wire
from dist_classicrl.errors import ProtocolError, RankLostError, RankTimeoutError

T = TypeVar("T")

_TAG = 1
_PIECE_BYTES = 1 << 15
_BEAT_SECONDS = 0.5
_BEATS = 8.0  # of a rank that is at work, in the time in which it would be given up


# Each is stamped with the number of the step that it belongs to.


@message(Kind.GATHER)
@dataclass(frozen=True)
class Given:
    """What a rank gives the root, as parts."""

    parts: tuple[np.ndarray, ...]


@message(Kind.TOLD)
@dataclass(frozen=True)
class Told:
    """What the root tells a rank, as parts."""

    parts: tuple[np.ndarray, ...]


@message(Kind.AT_WORK)
@dataclass(frozen=True)
class AtWork:
    """The sender is not through with the step, and works on it."""


@dataclass(frozen=True)
class _Everyone:
    """What each of all ranks has given."""

    ranks: tuple[int, ...]
    given: tuple[Given, ...]


@dataclass(frozen=True)
class Waiting:
    """Whom a rank waits for, and for what."""

    missing: set[int]
    what: str
    begun: float  # when the waiting began
    heard: float  # when anything last came of one of the missing, if only a piece of a message


class RootedCollectives:
    """Channels between a root and every other rank.

    Every rank calls the same operations in the same order. What is sent are frozen dataclasses, see `parts`.
    While this rank waits, `attend` is called again and again with this object and a `Waiting`; it raises an
    exception when there is no use in waiting any more. `seconds` is how long that is for a rank that says
    nothing.
    """

    def __init__(
        self,
        wire: Wire,
        root: int,
        channels: dict[int, Channel],
        seconds: float,
        attend: Callable[[RootedCollectives, Waiting], None],
    ) -> None:
        self.wire = wire
        self.rank: int = wire.rank
        self.root = root
        self.is_root = self.rank == root
        self.channels = channels
        self.others = sorted(channels)  # the ranks at the other ends
        self.seconds = seconds
        self._attend = attend
        self._arrived: dict[int, deque[tuple[int, Any]]] = {rank: deque() for rank in channels}
        self.left: set[int] = set()  # ranks that have said goodbye
        self._step = 0
        self._given_up = -1
        self._is_in_operation = False

    @classmethod
    def over(cls, comm: Any, seconds: float) -> RootedCollectives:
        """Return those of all ranks of a communicator, which this object alone uses, with rank 0 as the root.

        Their waits end with a `RankLostError` where MPI reports a death, and with a `RankTimeoutError` after
        so many seconds without a word.
        """
        wire = Wire(comm)
        others = range(1, wire.size) if wire.rank == 0 else (0,)
        channels = {rank: wire.channel(rank, _TAG, _PIECE_BYTES) for rank in others}
        return cls(wire, 0, channels, seconds, _lose_patience)

    def begin_step(self) -> None:
        """Begin the next step: nothing that belongs to an earlier one is taken for part of it."""
        self._step += 1

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Surround a step: an exception in it is raised as `RemoteRankError` on the other ranks."""
        self.begin_step()
        self._is_in_operation = True
        try:
            yield
        except BaseException as error:
            self._given_up = self._step
            self._send(self.others, Failed.of(error, self.rank))
            raise
        finally:
            self._is_in_operation = False

    def send(self, ranks: Iterable[int], content: object) -> None:
        """Send a dataclass to each of `ranks`; it is packed once."""
        parts = tuple(to_parts(content))
        self._send(ranks, Told(parts) if self.is_root else Given(parts))

    def _send(self, ranks: Iterable[int], stamped: object) -> None:
        encoded = encode(stamped, self._step)
        for rank in ranks:
            self.channels[rank].send(encoded)

    def beat(self) -> None:
        """Let the others, who may have to wait for long, know that this rank is at work."""
        now = self.wire.now()
        interval = min(_BEAT_SECONDS, self.seconds / _BEATS)
        due = [rank for rank in self.others if now - self.channels[rank].last_sent > interval]
        if due:
            self._send(due, AtWork())

    def receive(self, ranks: Iterable[int], cls: type[T], what: str) -> dict[int, T]:
        """Wait for the next dataclass, of type `cls`, of each of `ranks`; `what` says what is waited for.

        It raises a `RemoteRankError` if this step has failed on another rank, and whatever `attend` raises.
        """
        missing = set(ranks)
        found: dict[int, T] = {}
        backoff = Backoff(self.wire.sleep)
        begun = heard = self.wire.now()
        while True:
            if self._listen(missing):
                backoff.reset()
            heard = max([heard, *(self.channels[rank].last_heard for rank in missing)])
            for rank in sorted(missing):
                parts = self._next(rank)
                if parts is not None:
                    found[rank] = from_parts(cls, parts)
                    missing.discard(rank)
            if not missing:
                if self._is_in_operation and self.is_root:
                    self._look_for_failures()
                return found
            self._attend(self, Waiting(missing, what, begun, heard))
            backoff.wait()

    def gather(self, own: T, what: str) -> dict[int, T]:
        """Bring to the root what every rank gives, and return it there by rank; nothing elsewhere."""
        if not self.is_root:
            self.send([self.root], own)
            return {}
        found = {self.rank: own, **self.receive(self.others, type(own), what)}
        return dict(sorted(found.items()))

    def share(self, own: T, what: str) -> dict[int, T]:
        """Return what every rank gives, by rank, on all of them; the root waits `seconds` for each one."""
        cls = type(own)
        if not self.is_root:
            self.send([self.root], own)
            everyone = self.receive([self.root], _Everyone, what)[self.root]
            by_rank = zip(everyone.ranks, everyone.given, strict=True)
            return {rank: from_parts(cls, given.parts) for rank, given in by_rank}
        found = {self.rank: own}
        for rank in self.others:
            found |= self.receive([rank], cls, what)
        found = dict(sorted(found.items()))
        given = tuple(Given(tuple(to_parts(each))) for each in found.values())
        self.send(self.others, _Everyone(tuple(found), given))
        return found

    def tell(self, told: T | None, cls: type[T], what: str) -> T:
        """Return what the root gives as `told` on every rank."""
        if not self.is_root:
            return self.receive([self.root], cls, what)[self.root]
        assert told is not None
        self.send(self.others, told)
        return told

    def close(self, linger: float = 1.0) -> None:
        """Stop listening; what was sent gets up to `linger` seconds to go."""
        for channel in self.channels.values():
            channel.close(linger)

    def leave(self) -> None:
        """Stop listening after a failure; the others need not wait for this rank any more."""
        self._send(self.others, Bye())
        self.close()

    def free(self, comm: Any) -> None:
        """Stop listening, as all ranks should, and give back `comm`, which this is `over`.

        MPI sends while it is called, which may not be for long after this: so first all that was sent goes,
        unless nobody takes any of it for `seconds`.
        """
        self._send(self.others, Bye())
        backoff = Backoff(self.wire.sleep)
        unsent, since = self.others, self.wire.now()
        while unsent and self.wire.now() < since + self.seconds:
            self._listen(set())
            still = [rank for rank in unsent if not self.channels[rank].reap()]
            if len(still) < len(unsent):
                since = self.wire.now()
            unsent = still
            backoff.wait()
        give_back(comm, self.channels.values(), self._channels_of_those_who_left)

    def _channels_of_those_who_left(self) -> list[Channel]:
        self._listen(set())
        return [self.channels[rank] for rank in self.left]

    def _listen(self, awaited: Collection[int]) -> bool:
        """Take in what has come, and return whether anything came of those who are waited for."""
        ranks = {channel: rank for rank, channel in self.channels.items()}
        heard = False
        for channel, received in self.wire.receive(list(ranks)):
            rank, (step, content) = ranks[channel], decode_stamped(received)
            if isinstance(content, Bye):
                self.left.add(rank)
                continue
            self._arrived[rank].append((step, content))
            heard = heard or rank in awaited
        for channel in ranks:
            channel.reap()
        return heard

    def _look_for_failures(self) -> None:
        """Raise, on the root, what a rank has failed with in this operation since it gave its part.

        What the root would say to it now, that rank has given up, so it would not do its part.
        """
        while self._listen(self.channels):
            pass
        for step, stamped in chain(*self._arrived.values()):
            if step == self._step and isinstance(stamped, Failed):
                raise stamped.error()

    def _next(self, rank: int) -> tuple[np.ndarray, ...] | None:
        """Return what `rank` said next in this step, as parts; None if that has not come."""
        arrived = self._arrived[rank]
        expected = Told if rank == self.root else Given
        while arrived:
            step, stamped = arrived.popleft()
            if step <= self._given_up or isinstance(stamped, AtWork):
                continue
            if isinstance(stamped, Failed):
                if step < self._step:  # this rank was through with it
                    continue
                raise stamped.error()
            if step != self._step or not isinstance(stamped, expected):
                raise ProtocolError(
                    f"Rank {rank} sent {type(stamped).__name__} of step {step} where {expected.__name__} of "
                    f"step {self._step} belongs: the ranks do not run the same version, or not the same "
                    "script."
                )
            return stamped.parts
        return None


@contextmanager
def rooted_over(comm: Any, seconds: float, name: str) -> Iterator[tuple[RootedCollectives, Any]]:
    """Give what all ranks talk by in one call, of which errors have the `name`, and the communicator for it.

    See `RootedCollectives.over` and `own_communicator`, of which the errors are.
    """
    own = own_communicator(comm, seconds, name)
    rooted = RootedCollectives.over(own, seconds)
    try:
        yield rooted, own
    except BaseException:
        rooted.leave()
        raise
    rooted.free(own)


def _lose_patience(rooted: RootedCollectives, waiting: Waiting) -> None:
    """Raise an exception if a rank that is waited for has died, or none has said anything for too long."""
    lost = [rank for rank in waiting.missing if rooted.channels[rank].lost is not None]
    if lost:
        raise RankLostError(
            f"{_named(lost)} died while rank {rooted.rank} waited for {waiting.what}. Go on over the ranks "
            "that are left, such as comm.Shrink()."
        )
    if left := waiting.missing & rooted.left:
        raise RankLostError(
            f"{_named(left)} closed its end while rank {rooted.rank} waited for {waiting.what}: it failed, "
            "and says why itself, or it has not made the same calls, as every rank has to."
        )
    if rooted.wire.now() > waiting.heard + rooted.seconds:
        raise RankTimeoutError(
            f"Nothing came from {_named(waiting.missing).lower()} for {rooted.seconds:g} s, while rank "
            f"{rooted.rank} waited for {waiting.what}. Every rank has to make the same calls; if one may "
            "take that long, raise timeout=, else look for a rank that hangs."
        )
    rooted.beat()


def _named(ranks: Collection[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, sorted(ranks)))}"
