"""The parameter server of asynchronous training.

It applies pushes, hands out leases and refreshes, and sleeps in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dist_classicrl.comm import envelope
from dist_classicrl.comm.envelope import Kind
from dist_classicrl.comm.transport import Backoff
from dist_classicrl.engines.roles.server_base import Serving
from dist_classicrl.engines.roles.shutdown import take_in_stop
from dist_classicrl.engines.saving import Position, Saver
from dist_classicrl.engines.server.handover import Handover
from dist_classicrl.engines.server.leases import Lease, LeaseBook
from dist_classicrl.process.stop import Stop
from dist_classicrl.tables.maps import PackedMap, Refresh
from dist_classicrl.tables.snapshot import TableSnapshot
from dist_classicrl.tables.window import Pushed

_SHORTEST_SLEEP = 5e-5
_LONGEST_SLEEP = 4e-3
_LONGEST_CALM_SLEEP = 2e-2
_END_SECONDS = 0.5
_CALM_DUTY = 0.02
_BUSY_DUTY = 0.5
_OFFER_SECONDS = 0.1
LAST_PUSH = 8
"""The flag of a push after which its worker sends no other."""

_COPY_SECONDS = 2e-3
LAST_PUSH_SECONDS = 2.0
"""How long a stop waits for what the workers have not pushed."""


def reply_message(
    applied: int, refresh: Refresh | None, lease: tuple[int, int, int], handover: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """Return a receipt for push `applied`, with a refresh and a lease if there are any.

    The refresh includes the push, and `handover` are of the same version. A lease of 0, 0, 0 is none.
    """
    head = [applied, *lease]
    if refresh is None:
        return envelope.encode(Kind.REPLY, np.array([*head, 0, 0, 0], np.int64))
    numbers = np.array([*head, 1 if refresh.entries is None else 2, refresh.since, refresh.version], np.int64)
    return envelope.encode(Kind.REPLY, numbers, *handover, *refresh.parts)


@dataclass
class _Client:
    """What the server knows of one worker's work."""

    version: int
    quantum: int = 1
    interval_seconds: float = 0.0
    urgent: bool = True
    wants_refresh: bool = True
    starved: bool = True
    owes_reply: bool = True
    has_stopped: bool = False
    hands_in: bool = False  # it has not told all that this server may lack


@dataclass
class Server(Serving):
    """Serves one call of `train`, from its beginning or in place of a server that was lost.

    Attributes
    ----------
    leases : LeaseBook
    takes_over : bool
        Whether the workers have to hand in first what a lost server may not have passed on.
    """

    leases: LeaseBook = field(kw_only=True)
    takes_over: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        version = -1 if self.takes_over else self.table.version
        self._clients = {rank: _Client(version, hands_in=self.takes_over) for rank in self.group.view.workers}
        self._snapshot = TableSnapshot(self.table.values, self.table.counts)
        self._handover: tuple[int, list[np.ndarray]] = (-1, [])
        self._offered = 0.0
        super().__post_init__()

    @property
    def position(self) -> Position:
        """How far the run is, for a checkpoint of the table as it is now."""
        return Position(
            self.leases.start + self.leases.done,
            self.tally.to_dict(self.seconds),
            "async",
            version=self.table.version,
            applied={str(rank): sequence for rank, sequence in self.table.applied.items()},
        )

    def run(self) -> Stop | None:
        """Serve until all steps have been made, or until the run is to stop: return why, in that case.

        When it returns, all that the workers had learned is in the table, except what a worker held that did
        not answer within two seconds.

        Raises
        ------
        RemoteRankError
            If a worker failed.
        NobodyLeft
            If no worker is left, and steps are.
        RankLostError, CutOffError, Deposed
            See `Serving.look_around`.
        CheckpointFencedError
            If another server has taken over the checkpoints.
        """
        while True:
            if self.reporter.wants_end and not self._awaits_maps and not self.leases.is_over:
                self._end_early()
            if self._is_done:
                break
            woken = self.wake()
            # What each worker said up to here is received before anybody's silence is judged.
            self.receive()
            if self._is_done:
                break
            self.look_around(woken)
            if not self._awaits_maps:
                self.check_earlier_losses()
                for rank, client in self._clients.items():
                    if client.owes_reply:
                        self._reply(rank, client, self._grant(rank, client))
                self._offer(woken)
            self.report_progress()
            if self.saver is not None:
                if (stop := self.saver.look()) is not None:
                    self._take_in_last_pushes()
                    return None if self._is_done else stop
                self._save(self.saver)
            if not self._is_done:
                self._sleep(self.group.wire.now() - woken)
        return None

    @property
    def _is_done(self) -> bool:
        return self.leases.finished and not self._awaits_maps

    @property
    def _awaits_maps(self) -> bool:
        return self.takes_over and any(client.hands_in for client in self._clients.values())

    def _save(self, saver: Saver) -> None:
        """Begin a checkpoint if it is time, or copy some more of the table for the one that has begun."""
        snapshot = self._snapshot
        if not snapshot.copying:
            steps = self.leases.start + self.leases.done
            if not saver.is_due(steps):
                return
            saver.begin(steps)
            snapshot.begin()
            self.table.watch(snapshot)
        if snapshot.advance(_COPY_SECONDS):
            self.table.watch(None)
            self.report_progress(now=True)
            saver.save(snapshot.values, snapshot.counts, self.position)

    def _end_early(self) -> None:
        """Ask the workers for what they have not pushed, and give out no more steps."""
        self.leases.end()
        self._ask_for_last_pushes()

    def _ask_for_last_pushes(self) -> None:
        for channel in self.channels:
            channel.send(envelope.encode(Kind.STOP))

    def has_paused(self, seconds: float) -> None:
        """Take note that nobody was heard for so long."""
        self.leases.excuse(seconds)

    def _take_in_last_pushes(self) -> None:
        """Ask the workers for what they have not pushed, and wait for it, but not for long."""
        wire = self.group.wire
        self.table.watch(None)
        self._ask_for_last_pushes()
        deadline = wire.now() + LAST_PUSH_SECONDS
        backoff = Backoff(wire.sleep)
        while not all(client.has_stopped for client in self._clients.values()) and wire.now() < deadline:
            if not self.receive():
                backoff.wait()
            for rank in [rank for rank in self._clients if self.peers[rank].channel.lost]:
                self._clients[rank].has_stopped = True

    def take_in(self, rank: int, message: np.ndarray) -> None:
        """Take in a push, or what any worker may send."""
        kind, parts = envelope.decode(message)
        if kind is Kind.PUSH and rank in self._clients:
            self._push(rank, self._clients[rank], message.size, parts)
        elif kind is Kind.HAND_IN and rank in self._clients:
            self._take_hand_in(rank, self._clients[rank], message.size, parts)
        elif kind is Kind.STOP:
            take_in_stop(self.saver, parts)
        else:
            self.take_in_common(rank, kind, parts)

    def _push(self, rank: int, client: _Client, size: int, parts: list[np.ndarray]) -> None:
        numbers, reals = parts[0].tolist(), parts[1]
        sequence, flags, client.quantum, saved, progress, revision, known = numbers[:7]
        client.starved, client.urgent = bool(flags & 1), bool(flags & 2)
        client.wants_refresh = bool(flags & 4)
        client.has_stopped = bool(flags & LAST_PUSH)
        client.interval_seconds = float(reals[4])
        self.note_progress(rank, progress, (self.group.view.term, revision))
        self.has_pushed(rank)
        staleness = self.table.version - known if known >= 0 else 0
        self.table.apply(rank, sequence, PackedMap.from_parts(parts[2:]))
        made = list(zip(numbers[7::2], numbers[8::2], strict=True))
        self.leases.report(rank, made)
        if client.has_stopped and self.leases.is_over:
            self.leases.give_up(rank)
        self._count(rank, sum(steps for _, steps in made), size, reals, staleness)
        self.tally.bytes_saved += saved
        client.owes_reply = True

    def take_over_own(self, rank: int, pushed: Pushed) -> None:
        """Apply a push that this rank made as a worker, if the table lacks it."""
        if self.table.applied.get(rank, 0) < pushed.sequence:
            self.table.apply(rank, pushed.sequence, pushed.packed)
            self.leases.credit(pushed.steps)
            self._count(rank, pushed.steps, 0, pushed.reals)

    def has_made(self, steps: int) -> None:
        """Count steps that this rank made itself, in the table as it is now."""
        self.leases.credit(steps)
        self.table.overwritten()

    def _take_hand_in(self, rank: int, client: _Client, size: int, parts: list[np.ndarray]) -> None:
        """Apply a push that the server before this one may have had: what its survivors had, counts."""
        sequence, steps, is_last, last_sequence = parts[0].tolist()
        if sequence and self.table.apply(rank, sequence, PackedMap.from_parts(parts[2:])):
            self.leases.credit(steps)
            self._count(rank, steps, size, parts[1])
        if is_last:
            # What it forgot when it came back, before its base had caught up, is not missing here.
            self.table.applied[rank] = max(self.table.applied.get(rank, 0), last_sequence)
            client.hands_in = False
            client.owes_reply = True

    def _count(self, rank: int, steps: int, size: int, reals: np.ndarray, staleness: int = 0) -> None:
        tally = self.tally
        learning, passed = float(reals[5]), float(reals[6])
        tally.steps = tally.earlier_steps + self.leases.done
        tally.pushes += 1
        tally.bytes_pushed += size
        tally.staleness += staleness
        tally.add_totals(reals)
        tally.learning_seconds += learning
        tally.worker_seconds += passed
        self.reporter.count(rank, steps, learning, passed, staleness, size)

    def _offer(self, now: float) -> None:
        """Give leases, now and then, to those who got none: others may be lost by now, or slower."""
        if self.leases.pool == 0 or now - self._offered < _OFFER_SECONDS:
            return
        self._offered = now
        for rank, client in self._clients.items():
            if client.starved and (lease := self._grant(rank, client)) is not None:
                self._reply(rank, client, lease)

    def _grant(self, rank: int, client: _Client) -> Lease | None:
        return self.leases.grant(rank, client.quantum, client.interval_seconds)

    def _reply(self, rank: int, client: _Client, lease: Lease | None) -> None:
        granted = (0, 0, 0) if lease is None else (lease.id, lease.start, lease.steps)
        refresh, handover = None, []
        if client.wants_refresh and client.version < self.table.version:
            refresh, handover = self.table.refresh(client.version), self._current_handover()
            client.version = refresh.version
        message = reply_message(self.table.applied.get(rank, 0), refresh, granted, handover)
        self.peers[rank].channel.send(message)
        self.tally.bytes_pulled += message.size
        client.owes_reply = False
        client.starved = client.starved and lease is None

    def _current_handover(self) -> list[np.ndarray]:
        if self._handover[0] != self.table.version:
            handover = Handover(self.leases.done, self.table.applied, self.tally.to_numbers(self.seconds))
            self._handover = self.table.version, handover.parts
        return self._handover[1]

    def has_lost(self, rank: int) -> int:
        """Take back the worker's leases."""
        del self._clients[rank]
        return self.leases.remove(rank)

    def has_admitted(self, rank: int) -> None:
        """Give the worker leases."""
        self._clients[rank] = _Client(-1)
        self.leases.add(rank)

    def _sleep(self, worked: float) -> None:
        """Sleep for the shortest interval between pushes, half of it in a hurry."""
        clients = self._clients.values()
        hurry = any(client.urgent or client.starved for client in clients)
        duty = _BUSY_DUTY if hurry else _CALM_DUTY
        wanted = min((client.interval_seconds for client in clients if client.interval_seconds), default=0.0)
        if hurry:
            wanted *= 0.5
        # Towards the end leases are short, and who waits for one must not wait long.
        short = self.leases.seconds_left < _END_SECONDS or self._snapshot.copying
        longest = _LONGEST_SLEEP if short else _LONGEST_CALM_SLEEP
        self.group.wire.sleep(max(_SHORTEST_SLEEP, min(max(wanted, worked * (1.0 / duty - 1.0)), longest)))
