"""A worker of asynchronous training.

It learns while it has a lease, and pushes when it is time and there is room.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NoReturn

import numpy as np

from dist_classicrl._random import stream_key
from dist_classicrl.algorithms.learners import Learner, Stream
from dist_classicrl.distributed import messages
from dist_classicrl.distributed.failures import raise_remote
from dist_classicrl.distributed.messages import Kind
from dist_classicrl.distributed.pacing import Pacer
from dist_classicrl.distributed.server import EPOCH, LAST_PUSH, beat_seconds
from dist_classicrl.distributed.stopping import Stop, StopWatch
from dist_classicrl.distributed.transport import Backoff, Channel
from dist_classicrl.errors import ProtocolError, RankTimeoutError
from dist_classicrl.updates import kernels
from dist_classicrl.updates.local import LocalTable, PackedMap, Refresh
from dist_classicrl.updates.window import PushWindow

LOOK_SECONDS = 0.05
"""A worker with work looks for messages this often: asking the MPI library in vain gives the core away where
ranks outnumber cores."""


class Worker:
    """Works for one call of `train`.

    Parameters
    ----------
    rank : int
        This worker's.
    channel : Channel
        To the server.
    table : LocalTable
    learner : CompiledLearner or SteppedLearner
    pacer : Pacer
    window : PushWindow
    threshold : float
        `compression_threshold`.
    seed : int
    timeout : float
        Seconds of the server's silence after which the run ends with `RankTimeoutError`.
    watch : StopWatch, optional
        Tells when this rank was asked to stop.
    generation : int
        How often the run was taken up again from a checkpoint: what is learned again gets other random
        numbers than what was learned before, some of which is in the table.
    """

    def __init__(
        self,
        rank: int,
        channel: Channel,
        table: LocalTable,
        learner: Learner,
        pacer: Pacer,
        window: PushWindow,
        threshold: float,
        seed: int,
        timeout: float,
        watch: StopWatch | None = None,
        generation: int = 0,
    ) -> None:
        self._rank = rank
        self._channel = channel
        self._table = table
        self._learner = learner
        self._pacer = pacer
        self._window = window
        self._threshold = threshold
        self._seed = seed
        self._timeout = timeout
        self._watch = watch
        self._generation = generation
        self._stopping = False
        self._leases: deque[tuple[int, int, Stream]] = deque()
        self._made: dict[int, int] = {}
        self._since_push = 0
        self._looked = 0.0
        self._idle_since = 0.0
        self._waiting = np.zeros(0, np.int64)
        self._waiting_updates = np.zeros(0, np.int64)
        self._learning = 0.0
        self._cpu_learning = 0.0
        self._cpu_at_push = 0.0
        self._told_learning = 0.0
        self._told_time = 0.0
        self._final: tuple[Refresh, dict[str, Any]] | None = None

    def run(self) -> tuple[Refresh, dict[str, Any]]:
        """Work until the server says that the run is done. Return the whole final table and the run's result.

        Raises
        ------
        RemoteRankError
            If another rank failed.
        RankTimeoutError
            If the server was silent for too long.
        TrainingStopped
            If the server says that the run has stopped.
        """
        self._told_time = time.perf_counter()
        self._cpu_at_push = time.thread_time()
        self._idle_since = time.monotonic()
        backoff = Backoff()
        while self._final is None:
            if self._take_in():
                backoff.reset()
            if self._leases:
                self._learn()
                self._idle_since = time.monotonic()
                backoff.reset()
            elif self._since_push and self._window.has_room and not self._stopping:
                self._push(flush=True)
            elif self._final is None:
                self._check_server()
                self._channel.reap()
                backoff.wait()
            pass_on_stop(self._watch, self._channel)
            # Between pushes, and while others make the last steps, the server would hear nothing else.
            if time.monotonic() - self._channel.last_sent > beat_seconds(self._timeout):
                self._channel.send(messages.encode(Kind.BEAT))
        self._channel.send(messages.encode(Kind.BYE))
        return self._final

    def _learn(self) -> None:
        lease_id, left, stream = self._leases[0]
        pacer = self._pacer
        until_push = pacer.interval - self._since_push
        if until_push <= 0:  # the window is full: look for room again after half an interval
            until_push = -(-pacer.interval // 2)
        steps = min(left, until_push, pacer.longest_call)
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        self._learner.learn(stream, steps)
        seconds, cpu_seconds = time.perf_counter() - begin, time.thread_time() - cpu_begin
        self._learning += seconds
        self._cpu_learning += cpu_seconds
        pacer.learned(steps, seconds, cpu_seconds)
        self._since_push += steps
        self._made[lease_id] = self._made.get(lease_id, 0) + steps
        if steps == left:
            self._leases.popleft()
        else:
            self._leases[0] = (lease_id, left - steps, stream)
        if self._since_push >= pacer.interval and self._leases and self._window.has_room:
            self._push(flush=False)

    def _stop(self) -> None:
        """Push all that was learned, as the server asks, and learn no more."""
        self._stopping = True
        self._leases.clear()
        self._push(flush=True)

    def _push(self, flush: bool) -> None:
        begin = time.perf_counter()
        table = self._table
        pacer = self._pacer
        wants_refresh = pacer.wants_refresh or flush or self._window.needs_refresh
        if self._threshold > 0.0:
            sequence, packed, saved = self._pack_compressed(flush)
        else:
            (sequence, packed), saved = self._window.push(), 0
        load = kernels.map_load(packed.weight, packed.visits)
        flags = (0 if self._leases else 1) | (2 if pacer.urgent else 0) | (4 if wants_refresh else 0)
        flags |= LAST_PUSH if self._stopping else 0
        numbers = [EPOCH, sequence, flags, self._learner.quantum, saved]
        for lease_id, steps in self._made.items():
            numbers += (lease_id, steps)
        reals = np.empty(6)
        reals[:3] = self._learner.totals.take()
        reals[3] = pacer.interval_seconds
        reals[4] = self._learning - self._told_learning
        reals[5] = begin - self._told_time
        head = np.array(numbers, np.int64)
        self._channel.send(messages.encode(Kind.PUSH, head, reals, *packed.parts))
        self._told_learning, self._told_time = self._learning, begin
        self._made.clear()
        made, self._since_push = self._since_push, 0
        pacer.gauge.look(table.base)
        cpu_now = time.thread_time()
        pacer.pushed(load, made, cpu_now - self._cpu_at_push - self._cpu_learning)
        self._cpu_at_push, self._cpu_learning = cpu_now, 0.0

    def _pack_compressed(self, flush: bool) -> tuple[int, PackedMap, int]:
        """Pack what is large enough to go. Return the push's number, its maps, and the bytes saved."""
        table = self._table
        touched = int(table.n_touched[0])
        untouched = int(np.count_nonzero(table.updates[self._waiting] == self._waiting_updates))
        key = stream_key(self._seed, "compression", self._rank, self._window.last_sequence)
        sequence, packed = self._window.push(self._threshold, flush, key)
        self._waiting = table.touched[: table.n_touched[0]].copy()
        self._waiting_updates = table.updates[self._waiting]
        # Without a threshold all would have gone, but what only waits since an earlier push went with that.
        entries = touched - untouched - packed.size
        return sequence, packed, entries * sum(part.itemsize for part in packed.parts)

    def _take_in(self) -> bool:
        """Take in what the server sent, and return whether there was anything.

        While there is work and no push is on its way, nothing but bad news can come: it is looked for now and
        then.
        """
        now = time.monotonic()
        if self._busy_alone() and now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        something = False
        while self._final is None and (message := self._channel.poll()) is not None:
            something = True
            kind, parts = messages.decode(message)
            if kind is Kind.REPLY:
                self._reply(parts)
            elif kind is Kind.DONE:
                self._final = final_of(parts)
            elif kind is Kind.STOP:
                self._stop()
            elif kind is Kind.STOPPED:
                raise_stopped(self._channel, parts)
            elif kind is Kind.FAILED:
                raise_remote(self._channel, parts)
            elif kind is not Kind.BEAT:
                raise ProtocolError(f"The server sent {kind.name} where a reply belongs.")
            if self._busy_alone():
                break
        return something

    def _busy_alone(self) -> bool:
        return bool(self._leases) and self._window.in_flight == 0

    def _reply(self, parts: list[np.ndarray]) -> None:
        _, applied, lease_id, start, steps, form, since, version = parts[0].tolist()
        self._window.receipt(applied)
        if form:
            begin = time.thread_time()
            entries = parts[3] if form == 2 else None
            self._window.refresh(Refresh(since, version, entries, parts[1], parts[2]), applied)
            self._pacer.refreshed(time.thread_time() - begin)
        if steps:
            key = stream_key(self._seed, "lease", start, *([self._generation] if self._generation else []))
            stream = Stream(key, start)
            self._leases.append((lease_id, steps, stream))

    def _check_server(self) -> None:
        if time.monotonic() - max(self._channel.last_heard, self._idle_since) > self._timeout:
            raise RankTimeoutError(
                f"The server, rank {self._channel.peer}, gave no sign of life for {self._timeout:g} s. Look "
                "at its log for what it waits for; if its machine is only slow, raise timeout=."
            )


def pass_on_stop(watch: StopWatch | None, channel: Channel) -> None:
    """Tell the server, once, if this rank was asked to stop."""
    stop = None if watch is None else watch.untold()
    if stop is not None:
        channel.send(messages.encode(Kind.STOP, messages.text(stop.to_dict())))


def raise_stopped(channel: Channel, parts: list[np.ndarray]) -> NoReturn:
    """Say goodbye to the server, and raise the `TrainingStopped` of a STOPPED message that it sent."""
    channel.send(messages.encode(Kind.BYE))
    told = messages.from_text(parts[0])
    raise Stop.from_dict(told["stop"]).error(told["checkpoint"], told["steps"])


def final_of(parts: list[np.ndarray]) -> tuple[Refresh, dict[str, Any]]:
    """Return the whole table and the result that a DONE message carries."""
    return Refresh(-1, int(parts[0][1]), None, parts[1], parts[2]), messages.from_text(parts[3])
