"""What all ranks settle together before the first step.

They settle that they mean the same thing, the seed, and the compiled code. One rank, the server, gathers what
each has to say and tells all of it to all. A rank that dies meanwhile costs a new start of the whole, without
it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.messages import decode, encode
from dist_classicrl.comm.remote_errors import Failed, mark_as_told_elsewhere
from dist_classicrl.comm.transport import Backoff, Channel
from dist_classicrl.errors import (
    CutOffError,
    ProtocolError,
    RankMismatchError,
    RankTimeoutError,
)
from dist_classicrl.membership.election import Base, Deposed, Election, Prepare, answer
from dist_classicrl.membership.group import Group, NewView
from dist_classicrl.membership.view import View, may_serve


class Setup:
    """Steps that the members of a group make together, each within `timeout` seconds.

    Parameters
    ----------
    group : Group
        This rank is in its view.
    timeout : float

    Attributes
    ----------
    members : tuple of int
        The ranks that take part, in whose order everything gathered stands.
    is_head : bool
        Whether this rank is the one that gathers, and serves afterwards.
    head : int
        The rank that does.
    term : int
        Its number.
    """

    def __init__(self, group: Group, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self._step = 0
        view = group.view
        self.rank = group.rank
        self.members = view.members
        self.is_head = group.is_server
        self.head = view.server
        self.term = view.term
        tag = group.tag(view.term, 0)
        peers = view.workers if self.is_head else [view.server]
        self._channels = {peer: group.wire.channel(peer, tag) for peer in peers}

    def gather_numbers(self, numbers: list[int], what: str) -> np.ndarray:
        """Return every member's `numbers`, int64 of shape (members, len(numbers))."""
        texts = self._gather(np.array(numbers, np.int64).view(np.uint8), what)
        return np.stack([text.view(np.int64) for text in texts])

    def _gather(self, own: np.ndarray, what: str) -> list[np.ndarray]:
        """Return every member's bytes, ndarray(uint8)."""
        self._step += 1
        step = np.array([self._step], np.int64)
        if not self.is_head:
            self._channels[self.head].send(envelope.encode(Kind.GATHER, step, own))
            return self._await(self.head, Kind.TOLD, what)
        everything = {self.rank: own}
        for rank in self._channels:
            everything[rank] = self._await(rank, Kind.GATHER, what)[0]
        self._group.unheard.clear()
        parts = [everything[rank] for rank in self.members]
        self._tell_all(parts)
        return parts

    def _tell_all(self, parts: list[np.ndarray]) -> None:
        message = envelope.encode(Kind.TOLD, np.array([self._step], np.int64), *parts)
        for channel in self._channels.values():
            channel.send(message)

    def _await(self, peer: int, kind: Kind, what: str) -> list[np.ndarray]:
        """Wait for the next message of `peer`, of this step, and return its parts."""
        group, channel = self._group, self._channels[peer]
        backoff = Backoff(group.wire.sleep)
        deadline = group.wire.now() + self._timeout
        while (message := channel.poll()) is None:
            self._look_around(channel)
            for other in self._channels.values():
                other.reap()
            if group.wire.now() > deadline:
                raise RankTimeoutError(
                    f"Waited {self._timeout:g} s for {what}; rank {peer} is missing. If that can take "
                    "longer, raise timeout=; else look for a rank that hangs."
                )
            backoff.wait()
        its_kind, parts = envelope.decode(message)
        if its_kind is not kind or int(parts[0][0]) != self._step:
            raise ProtocolError(
                f"Rank {peer} sent {its_kind.name} of step {int(parts[0][0])} where {kind.name} of step "
                f"{self._step} belongs: the ranks do not run the same version, or not the same script."
            )
        return parts[1:]

    def _look_around(self, channel: Channel) -> None:
        """Take in who died, and what others found out.

        Raises
        ------
        Deposed
            If the setup has to start again, with other members.
        """
        group = self._group
        for sender, control in group.poll():
            if isinstance(control, NewView):
                view = group.accept(control)
                # The head itself may have got to the training, and tell of a loss there.
                if view is not None and (view.term > self.term or self.rank not in view.members):
                    raise Deposed(view)
            elif isinstance(control, Prepare):
                if answer(
                    group, sender, control, Base(), lambda: not self.is_head and channel.lost is not None
                ):
                    raise Deposed(Election(group, Base()).run())
        if self.is_head:
            lost = {*group.dead, *(rank for rank, link in self._channels.items() if link.lost is not None)}
            lost.intersection_update(group.view.members)
            if lost:
                self._go_on_without(lost)
        elif channel.lost is not None or self.head in group.dead:
            group.note_death(self.head, channel.lost or "its control link failed")
            raise Deposed(Election(group, Base()).run())

    def _go_on_without(self, lost: set[int]) -> NoReturn:
        group = self._group
        group.dead.update(lost)
        members = tuple(rank for rank in group.view.members if rank not in lost)
        # MPI gives up the ranks of a host that is cut off one by one.
        views = [*group.unheard, group.view]
        if not all(may_serve(view, members, group.dead, group.hosts) for view in views):
            raise CutOffError(
                f"The ranks {', '.join(map(str, sorted(lost)))} are gone, with their hosts, before training "
                "began: the network may be cut. Start the job again, best with `python -m dist_classicrl "
                "launch`."
            )
        term = group.view.term + group.wire.size  # still this rank's
        view = View(term, 0, group.rank, members)
        for rank in sorted(lost):
            group.events.add("excluded", rank, 0.0, detail="before training began")
        group.unheard = views
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

        Return every member's `numbers`. `what` says what takes time, where ranks wait too long.

        Raises
        ------
        BaseException
            `error`, if this rank has one.
        RemoteRankError
            If another rank has one.
        RankMismatchError
            If descriptions differ; the message shows what differs between which ranks.
        """
        data = json.dumps(description, sort_keys=True, default=str).encode()
        digest = np.frombuffer(hashlib.sha256(data).digest(), np.int64).tolist()
        own = [0 if error is None else 1, *digest, *numbers]
        everyone = self.gather_numbers(own, what)
        failed = np.flatnonzero(everyone[:, 0])
        if failed.size:
            text = np.empty(0, np.uint8) if error is None else encode(Failed.of(error, self.rank))
            texts = self._gather(text, "all ranks to report their errors")
            if error is not None:
                if self.members[failed[0]] != self.rank:
                    mark_as_told_elsewhere(error)
                raise error
            raise decode(texts[int(failed[0])]).error()
        if (everyone[:, 1:5] != everyone[0, 1:5]).any():
            texts = self._gather(np.frombuffer(data, np.uint8), "all ranks to report their settings")
            told = dict(zip(self.members, map(envelope.from_text, texts), strict=True))
            mismatch = RankMismatchError(_difference(told))
            if not self.is_head:
                mark_as_told_elsewhere(mismatch)
            raise mismatch
        return everyone[:, 5:]

    def broadcast(self, array: np.ndarray, what: str) -> None:
        """Overwrite `array` (C order) with the head's; `what` names it where it does not come."""
        flat = array.reshape(-1)
        message = flat if self.is_head else None
        told = self._broadcast(None if message is None else message.view(np.uint8), what)
        if not self.is_head:
            flat.view(np.uint8)[:] = told

    def broadcast_message(self, message: np.ndarray | None, what: str) -> np.ndarray:
        """Return the head's `message` (uint8), which the other ranks do not know the length of."""
        return self._broadcast(message, what)

    def _broadcast(self, message: np.ndarray | None, what: str) -> np.ndarray:
        self._step += 1
        if message is not None and self.is_head:
            self._tell_all([message])
            return message
        return self._await(self.head, Kind.TOLD, what)[0]

    def compile_in_turn(self, compile_all: Callable[[bool], None]) -> None:
        """Let one rank of each host compile first, so that the others find the machine code on disk.

        `compile_all` is called with whether it is that rank's turn, which compiles for the others too.
        """
        hosts = self._group.hosts
        first = min(rank for rank in self.members if hosts[rank] == hosts[self.rank])
        if first == self.rank:
            compile_all(True)
        self.gather_numbers([], "the first rank of each host to compile")
        if first != self.rank:
            compile_all(False)

    def close(self, linger: float) -> None:
        """Close the channels, and give what was sent on them up to `linger` seconds to go."""
        for channel in self._channels.values():
            channel.close(linger)


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
