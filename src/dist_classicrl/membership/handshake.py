"""What all ranks settle together before the first step.

They settle that they mean the same thing, the seed, and the compiled code. One rank, the server, gathers what
each has to say and tells all of it to all. A rank that dies meanwhile costs a new start of the whole, without
it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from dist_classicrl._words import START_AGAIN
from dist_classicrl.comm.remote_errors import Failed, mark_as_told_elsewhere
from dist_classicrl.comm.rooted import RootedCollectives, Waiting
from dist_classicrl.errors import CutOffError, RankMismatchError, RankTimeoutError
from dist_classicrl.membership.election import Base, Deposed, Election, Prepare, answer
from dist_classicrl.membership.group import Group, NewView
from dist_classicrl.membership.view import may_serve

T = TypeVar("T")

# Bytes of the messages that measure a link.
_SHORT, _LONG = 8, 2**18


@dataclass(frozen=True)
class _Summary:
    """What a rank has to say where all agree."""

    has_failed: bool
    digest: str  # of its description
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class _Report:
    """What is wrong with a rank, if anything is."""

    failed: Failed | None


@dataclass(frozen=True)
class _Description:
    """What should be the same on all ranks."""

    settings: dict[str, Any]


@dataclass(frozen=True)
class LinkSpeed:
    """How fast messages go between the head and the other ranks."""

    round_trip: float  # seconds
    bytes_per_second: float  # to all other hosts together
    ranks: int  # on these


@dataclass(frozen=True)
class _Ready:
    """A rank has come to this step."""


@dataclass(frozen=True)
class _Bytes:
    content: np.ndarray


class Setup:
    """Steps that the members of a group make together, each within `timeout` seconds.

    This rank is in the group's view. The head gathers what all say, and serves afterwards.
    """

    def __init__(self, group: Group, timeout: float) -> None:
        self._group = group
        self._view = view = group.view
        self.rank = group.rank
        self.ranks = group.wire.size  # of the job
        self.members = view.members  # in whose order stands what was last gathered
        self.is_head = group.is_server
        self.head = view.server
        self.term = view.term
        tag = group.tag(view.term, 0)
        peers = view.workers if self.is_head else [view.server]
        channels = {peer: group.wire.channel(peer, tag) for peer in peers}
        self._rooted = RootedCollectives(group.wire, view.server, channels, timeout, self._attend)

    def _share(self, own: T, what: str) -> list[T]:
        """Return what every member gives, in their order."""
        self._rooted.begin_step()
        everyone = self._rooted.share(own, what)
        if self._group.view == self._view:
            self._group.view = self._view = self._view.known_to(everyone)
        # The head may have excluded somebody, and this rank have not heard of it.
        self.members = tuple(everyone)
        return list(everyone.values())

    def _attend(self, rooted: RootedCollectives, waiting: Waiting) -> None:
        """Take in who died, and what others found out, and wait no longer than `timeout`.

        `Deposed` is raised if the setup has to start again, with other members.
        """
        group = self._group
        head = rooted.channels.get(self.head)  # to it, if it is another rank
        for sender, control in group.poll():
            if isinstance(control, NewView):
                view = group.accept(control)
                # The head itself may have got to the training, and tell of a loss there.
                if view is not None and (view.term > self.term or self.rank not in view.members):
                    raise Deposed(view)
            elif isinstance(control, Prepare):
                if answer(group, sender, control, Base(), lambda: head is not None and head.lost is not None):
                    self._elect()
        if head is None:
            lost = {*group.dead, *(rank for rank, link in rooted.channels.items() if link.lost is not None)}
            lost.intersection_update(group.view.members)
            if lost:
                self._go_on_without(lost)
        elif head.lost is not None or self.head in group.dead:
            group.note_death(self.head, head.lost or "its control link failed")
            self._elect()
        if group.wire.now() > waiting.begun + rooted.seconds:
            raise RankTimeoutError(
                f"Waited {rooted.seconds:g} s for {waiting.what}; rank {min(waiting.missing)} is missing. If "
                "that can take longer, raise timeout=; else look for a rank that hangs."
            )

    def _elect(self) -> NoReturn:
        raise Deposed(Election(self._group, Base(), self._note_lost).run())

    def _note_lost(self, lost: Iterable[int]) -> None:
        for rank in sorted(lost):
            self._group.events.add("excluded", rank, 0.0, detail="before training began")

    def _go_on_without(self, lost: set[int]) -> NoReturn:
        group = self._group
        group.dead.update(lost)
        members = tuple(rank for rank in group.view.members if rank not in lost)
        # MPI gives up the ranks of a host that is cut off one by one.
        if not may_serve(group.view, members, group.dead, group.host_of):
            raise CutOffError(
                f"The ranks {', '.join(map(str, sorted(lost)))} are gone, with their hosts, before training "
                f"began: the network may be cut. {START_AGAIN}"
            )
        view = group.view.followed_by(group.new_term(), group.rank, members)
        self._note_lost(lost)
        group.announce(view)
        raise Deposed(view)

    def agree(
        self,
        error: BaseException | None,
        description: dict[str, Any],
        numbers: list[int],
        what: str = "all ranks to prepare their environments",
    ) -> np.ndarray:
        """Check that no rank failed so far and that all have the same `description`.

        Return every member's `numbers`. `what` says what takes time, where ranks wait too long. The `error`
        that this rank has is raised, or a `RemoteRankError` if another rank has one, or a `RankMismatchError`
        that shows what differs between which ranks.
        """
        text = json.dumps(description, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        everyone = self._share(_Summary(error is not None, digest, tuple(numbers)), what)
        failed = [place for place, summary in enumerate(everyone) if summary.has_failed]
        if failed:
            own = _Report(None if error is None else Failed.of(error, self.rank))
            reports = self._share(own, "all ranks to report their errors")
            if error is not None:
                if self.members[failed[0]] != self.rank:
                    mark_as_told_elsewhere(error)
                try:
                    raise error
                finally:
                    del error  # its traceback leads here: it would keep itself, and the agent
            first = reports[failed[0]].failed
            assert first is not None
            raise first.error()
        if any(summary.digest != digest for summary in everyone):
            told = self._share(_Description(json.loads(text)), "all ranks to report their settings")
            settings = (description.settings for description in told)
            mismatch = RankMismatchError(_difference(dict(zip(self.members, settings, strict=True))))
            if not self.is_head:
                mark_as_told_elsewhere(mismatch)
            raise mismatch
        return np.array([summary.numbers for summary in everyone], np.int64)

    def broadcast(self, array: np.ndarray, what: str) -> None:
        """Overwrite `array` (C order) with the head's; `what` names it where it does not come."""
        own = array.reshape(-1).view(np.uint8)
        told = self.broadcast_message(own if self.is_head else None, what)
        if not self.is_head:
            own[:] = told

    def broadcast_message(self, message: np.ndarray | None, what: str) -> np.ndarray:
        """Return the head's `message` (uint8), which the other ranks do not know the length of."""
        self._rooted.begin_step()
        own = None if message is None else _Bytes(message)
        return self._rooted.tell(own, _Bytes, what).content

    def agree_on_first(self, number: int) -> int:
        """Return the `number` that the head gives."""
        told = np.array([number], np.int64)
        self.broadcast(told, "the server's choice")
        return int(told[0])

    def measure_link(self) -> LinkSpeed:
        """Send something to all from the head and back, several times. What the head measures counts."""
        rng = np.random.default_rng(0)
        seconds = {_SHORT: math.inf, _LONG: math.inf}
        for size in (_SHORT, _SHORT, _SHORT, _LONG, _LONG):
            begin = time.perf_counter()
            content = rng.integers(0, 256, size, np.uint8)  # which no network makes shorter
            self.broadcast_message(content if self.is_head else None, "what measures the link")
            self._share(_Ready(), "all ranks to answer the server")
            seconds[size] = min(seconds[size], time.perf_counter() - begin)
        elsewhere = sum(self._group.host_of(rank) != self._group.host_of(self.head) for rank in self.members)
        passed = max(seconds[_LONG] - seconds[_SHORT], 1e-9)
        return LinkSpeed(seconds[_SHORT], (_LONG - _SHORT) * max(1, elsewhere) / passed, elsewhere)

    @property
    def here(self) -> list[int]:
        """The members that are on this rank's host, ascending."""
        host_of = self._group.host_of
        return sorted(rank for rank in self.members if host_of(rank) == host_of(self.rank))

    def compile_together(self, parts: Sequence[Callable[[], None]]) -> None:
        """Let the ranks of each host share out `parts`, so that all find the machine code on disk afterwards.

        What takes longest is first, and done by the first rank.
        """
        here = self.here
        for part in parts[here.index(self.rank) :: len(here)]:
            part()
        self._share(_Ready(), "the ranks of each host to compile")

    def close(self, linger: float) -> None:
        """Close the channels, and give what was sent on them up to `linger` seconds to go."""
        self._rooted.close(linger)


def _difference(descriptions: dict[int, dict[str, Any]]) -> str:
    head, first = next(iter(descriptions.items()))
    for rank, other in descriptions.items():
        names = sorted(name for name in {*first, *other} if first.get(name) != other.get(name))
        if names:
            shown = "; ".join(
                f"{name}: {first.get(name)!r} on rank {head}, {other.get(name)!r} on rank {rank}"
                for name in names
            )
            return (
                "The ranks of one job must have the same settings and environment, "
                f"but they differ in {shown}."
            )
    return "The ranks of one job must have the same settings and environment."
