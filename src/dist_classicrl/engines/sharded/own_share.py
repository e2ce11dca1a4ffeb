"""What the rank that serves learns itself, in a thread: compiled loops let others run meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

import numpy as np

from dist_classicrl.learning.learner import Learner, Stream

_AHEAD = 2
_SECONDS = 0.05
_SMOOTHING = 0.3


@dataclass(frozen=True)
class Chunk:
    """Steps of a lease that are to be made, or were."""

    lease: int
    stream: Stream
    steps: int


@dataclass(frozen=True)
class Done:
    """A chunk that was made, with what it added to the totals of its learner."""

    chunk: Chunk
    totals: np.ndarray
    seconds: float


class OwnShare:
    """Learns chunks with one walker of a learner, in a thread, in the order in which they were given."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.rate = 0.0  # steps per second of late
        self._walker = learner.walkers[0]
        self._asked: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Done | BaseException] = queue.SimpleQueue()
        self._under_way = 0
        self._thread = threading.Thread(target=self._learn_all, name="own share", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether it is to be given another chunk: one is learned, and one waits, so that it never does."""
        return self._under_way < _AHEAD

    @property
    def is_idle(self) -> bool:
        """Whether all that was given has been made and taken."""
        return self._under_way == 0

    @property
    def steps_at_once(self) -> int | None:
        """As many steps as take 50 ms; None: not known yet."""
        return max(1, int(self.rate * _SECONDS)) if self.rate > 0.0 else None

    def give(self, chunk: Chunk) -> None:
        """Let it learn a chunk."""
        self._under_way += 1
        self._asked.put(chunk)

    def take(self) -> list[Done]:
        """Return what was made since the last call; what was raised there is raised."""
        made: list[Done] = []
        while True:
            try:
                one = self._made.get_nowait()
            except queue.Empty:
                return made
            self._under_way -= 1
            if isinstance(one, BaseException):
                raise one
            made.append(one)
            rate = one.chunk.steps / max(one.seconds, 1e-9)
            self.rate = rate if self.rate == 0.0 else self.rate + _SMOOTHING * (rate - self.rate)

    def close(self) -> None:
        """Let it learn nothing more; a chunk that is under way comes to its end."""
        while True:
            try:
                self._asked.get_nowait()
            except queue.Empty:
                break
        self._asked.put(None)
        self._thread.join()

    def _learn_all(self) -> None:
        while (chunk := self._asked.get()) is not None:
            begin = time.perf_counter()
            try:
                self.learner.learn(self._walker, chunk.stream, chunk.steps)
                totals = self.learner.totals.take()
            except BaseException as error:  # the main loop raises it
                self._made.put(error)
                return
            self._made.put(Done(chunk, totals, time.perf_counter() - begin))
