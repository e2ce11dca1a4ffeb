"""A simulated network and its ranks: what the protocol sees through `Wire` and `Channel`.

Each rank is a thread, of which exactly one runs at a time. It passes the baton on where it sleeps and, now
and then, where it sends or receives. Time goes on to the next rank's waking. So a seed always gives the same
history.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from dist_classicrl.comm.envelope import Kind

_BY_PRESENCE = 0.5
_EAGER_BYTES = 512


class Killed(BaseException):
    """Raised in a rank's thread where it is killed, or where the history is given up."""


@dataclass
class Conditions:
    """How the network and the machines behave.

    Attributes
    ----------
    delay : float
        Typical seconds of a message.
    tail : float
        Share of messages that take up to `longest` seconds.
    longest : float
    hand_over : float
        How probably a rank that sends or receives lets others run first.
    nap : float
        The longest that a rank sleeps where it only wants to look again soon, as on a busy machine.
    has_word : bool
        Whether MPI says who died.
    detection : float
        The longest that it takes until it does.
    eager : float
        Share of the larger messages that go without the receiver's help.
    """

    delay: float = 1e-3
    tail: float = 0.01
    longest: float = 0.3
    hand_over: float = 0.05
    nap: float = 0.03
    has_word: bool = True
    detection: float = 0.5
    eager: float = 0.5


@dataclass
class _Letter:
    message: np.ndarray
    number: int  # in the order of sending from this rank to that one
    arrives: float
    needs_both: bool  # goes only when the receiver takes it
    is_gone: bool = False


@dataclass
class _Queue:
    """What one rank has sent to another with one tag, and nobody took yet."""

    letters: deque[_Letter] = field(default_factory=deque)
    last_arrival: float = 0.0
    not_before: float = 0.0


@dataclass
class Plan:
    """When a rank is killed or stopped in the middle of what it sends.

    Attributes
    ----------
    kind : Kind, optional
        With the `count`-th message of this kind, from 1; None: of any kind.
    count : int
    after_sending : bool
        Whether that message still goes.
    stop : float
        For how many seconds it stops; 0.0: it is killed.
    """

    kind: Kind | None = None
    count: int = 0
    after_sending: bool = False
    stop: float = 0.0


class SimRank:
    """One rank's thread, and what became of it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.baton = threading.Lock()
        self.baton.acquire()
        self.thread: threading.Thread | None = None
        self.died: float | None = None
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.trace = ""
        self.stopped_until = 0.0
        self.was_stopped = False
        self.plan: Plan | None = None
        self.sent: dict[Kind | None, int] = {}

    @property
    def is_alive(self) -> bool:
        return self.died is None


class SimNetwork:
    """Ranks, the messages between them, and what goes wrong.

    Parameters
    ----------
    size : int
    seed : int
    conditions : Conditions
    hosts : sequence of int, optional
        A number per rank; all on one by default.
    """

    def __init__(
        self, size: int, seed: int, conditions: Conditions, hosts: Sequence[int] | None = None
    ) -> None:
        self.random = random.Random(f"network {seed}")
        self.conditions = conditions
        self.size = size
        self.hosts = [0] * size if hosts is None else list(hosts)
        self.now = 0.0
        self.last_event = 0.0
        self.ranks = [SimRank(rank) for rank in range(size)]
        self.faults: list[str] = []
        self.gave_up = ""
        self.was_cut = False
        self.log: list[str] | None = None
        self._queues: dict[tuple[int, int, int], _Queue] = {}
        self._open: set[tuple[int, int, int]] = set()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, float, int, Any]] = []
        self._current: SimRank | None = None
        self._finished = threading.Lock()
        self._finished.acquire()
        self._cuts: list[frozenset[int]] = []
        self._words: dict[tuple[int, int], float] = {}  # when a rank learns from MPI that another has died
        self.most_turns = 1_000_000
        self._turns = 0

    # The scheduler

    def run(self, main: Callable[[SimWire], Any], limit: float) -> None:
        """Let every rank run `main` until all are over, or nothing failed or got on for `limit` seconds."""
        for sim in self.ranks:
            sim.thread = threading.Thread(target=self._live, args=(sim, main), daemon=True)
            self._push(self.random.random() * self.conditions.nap, sim)
            sim.thread.start()
        self._limit = limit
        self._pass_on()
        self._finished.acquire()
        for sim in self.ranks:
            assert sim.thread is not None
            sim.thread.join()

    def gets_on(self) -> None:
        """Note that ranks have made something: a slow network is no hang."""
        self.last_event = max(self.last_event, self.now)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._push(when, action)

    def _push(self, when: float, what: SimRank | Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, self.random.random(), next(self._numbers), what))

    def _live(self, sim: SimRank, main: Callable[[SimWire], Any]) -> None:
        sim.baton.acquire()
        try:
            if sim.died is not None or self.gave_up:
                raise Killed
            sim.result = main(SimWire(self, sim.rank))
        except Killed:
            pass
        except BaseException as error:
            sim.error = error
            sim.trace = traceback.format_exc()
        sim.is_over = True
        self.note(f"rank {sim.rank} is over: {'killed' if sim.died is not None else sim.error or 'returned'}")
        self._pass_on()

    def _pass_on(self) -> SimRank | None:
        """Let the next rank run. Return it, or None if all are over."""
        while self._heap:
            when, _, _, what = heapq.heappop(self._heap)
            if not isinstance(what, SimRank):
                if not self.gave_up and not all(sim.is_over for sim in self.ranks):
                    self.now = max(self.now, when)
                    what()
                continue
            if what.is_over:
                continue
            if what.stopped_until > when and what.is_alive and not self.gave_up:
                self._push(what.stopped_until, what)
                continue
            self.now = max(self.now, when)
            self._turns += 1
            if not self.gave_up and self.now > self.last_event + self._limit:
                self.gave_up = f"not over, and no step for {self._limit:g} s"
            if not self.gave_up and self._turns > self.most_turns:
                self.gave_up = f"not over after {self.most_turns} turns"
            if what is not self._current:
                self._current = what
                what.baton.release()
            return what
        self._finished.release()
        return None

    def pause(self, seconds: float) -> None:
        """Let the others run for so long, in the thread of the rank that runs."""
        sim = self._current
        assert sim is not None
        if sim.died is None and not self.gave_up:
            self._push(self.now + seconds, sim)
            if self._pass_on() is not sim:
                sim.baton.acquire()
        if sim.died is not None or self.gave_up:
            raise Killed

    def hand_over(self) -> None:
        """Let others run first, now and then."""
        if self.random.random() < self.conditions.hand_over:
            self.pause(self.random.random() * 1e-3)
        elif self._current is not None and (self._current.died is not None or self.gave_up):
            raise Killed

    def note(self, text: str) -> None:
        """Enter a line into the log, where one is kept."""
        if self.log is not None:
            self.log.append(f"{self.now:9.4f} {text}")

    # What goes wrong

    def fault(self, text: str) -> None:
        """Take note of something that goes wrong."""
        self.last_event = max(self.last_event, self.now)
        self.faults.append(f"{self.now:.3f} {text}")
        self.note(f"FAULT {text}")

    def kill(self, rank: int, when: str = "") -> None:
        """End a rank. Of what it sent and has not arrived, some last messages to each other rank are lost."""
        sim = self.ranks[rank]
        if sim.is_over or sim.died is not None:
            return
        self.fault(f"rank {rank} is killed {when}")
        sim.died = self.now
        self._push(self.now, sim)
        for peer in range(self.size):
            if peer != rank:
                self._lose_last(rank, peer)
                if self.conditions.has_word:
                    word = self.now + self.random.random() * self.conditions.detection
                    self._words[peer, rank] = min(word, self._words.get((peer, rank), word))
                    self.last_event = max(self.last_event, word)

    def _lose_last(self, sender: int, receiver: int) -> None:
        queues = [q for (s, r, _), q in self._queues.items() if (s, r) == (sender, receiver)]
        under_way = sorted(
            letter.number
            for queue in queues
            for letter in queue.letters
            if letter.arrives > self.now or (letter.needs_both and not letter.is_gone)
        )
        if not under_way:
            return
        first = self.random.choice([*under_way, under_way[-1] + 1])
        for queue in queues:
            for place, letter in enumerate(queue.letters):
                if letter.number >= first and letter.number in under_way:
                    while len(queue.letters) > place:
                        queue.letters.pop()
                    break

    def stop(self, rank: int, seconds: float, when: str = "") -> None:
        """Let a rank not run for some time."""
        sim = self.ranks[rank]
        if sim.is_over or sim.died is not None:
            return
        self.fault(f"rank {rank} is stopped for {seconds:.2f} s {when}")
        sim.was_stopped = True
        sim.stopped_until = max(sim.stopped_until, self.now + seconds)
        self.last_event = max(self.last_event, sim.stopped_until)

    def cut(self, hosts: frozenset[int], seconds: float | None, says: bool) -> None:
        """Cut these hosts off from the others, for so long or for good.

        With `says`, MPI takes those beyond the cut for dead.
        """
        self.fault(
            f"hosts {sorted(hosts)} are cut off {'for good' if seconds is None else f'for {seconds:.2f} s'}"
        )
        self.was_cut = True
        self._cuts.append(hosts)
        if says:
            for one in range(self.size):
                for other in range(self.size):
                    if self.is_cut(one, other):
                        word = self.now + self.random.random() * self.conditions.detection
                        self._words.setdefault((one, other), word)
        if seconds is not None:
            self.last_event = max(self.last_event, self.now + seconds)
            self.at(self.now + seconds, lambda: self._heal(hosts))

    def _heal(self, hosts: frozenset[int]) -> None:
        self.fault(f"hosts {sorted(hosts)} are back")
        self._cuts.remove(hosts)
        for queue in self._queues.values():
            if queue.letters:
                queue.not_before = self.now + self.random.random() * self.conditions.longest

    def is_cut(self, one: int, other: int) -> bool:
        """Whether there is no way between two ranks."""
        return any((self.hosts[one] in cut) != (self.hosts[other] in cut) for cut in self._cuts)

    def word(self, rank: int, peer: int) -> bool:
        """Whether MPI has said to `rank` that `peer` has died."""
        return self.now >= self._words.get((rank, peer), float("inf"))

    # Messages

    def before_sending(self, sender: int, message: np.ndarray) -> Plan | None:
        """Do what is planned for the sender instead of this message. Return what is planned for after it."""
        sim = self.ranks[sender]
        self.hand_over()
        kind = kind_of(message)
        for key in (kind, None):
            sim.sent[key] = sim.sent.get(key, 0) + 1
        plan = sim.plan
        if plan is None or not plan.count or sim.sent.get(plan.kind) != plan.count:
            return None
        sim.plan = None
        if plan.after_sending:
            return plan
        self.carry_out(plan, sender, f"before it sends {kind.name}")
        return None

    def carry_out(self, plan: Plan, rank: int, when: str) -> None:
        """Kill or stop the rank that runs."""
        if plan.stop:
            self.stop(rank, plan.stop, when)
            self.pause(0.0)
        else:
            self.kill(rank, when)
            raise Killed

    def post(self, sender: int, receiver: int, tag: int, message: np.ndarray) -> _Letter:
        """Send."""
        conditions, rng = self.conditions, self.random
        delay = conditions.delay * rng.expovariate(1.0)
        if rng.random() < conditions.tail:
            delay += conditions.longest * rng.random()
        queue = self.queue(sender, receiver, tag)
        queue.last_arrival = max(queue.last_arrival, self.now + delay)
        needs_both = message.size > _EAGER_BYTES and rng.random() >= conditions.eager
        letter = _Letter(message.copy(), next(self._numbers), queue.last_arrival, needs_both)
        if self.ranks[receiver].died is None:
            queue.letters.append(letter)
        if self.log is not None:
            self.note(f"{sender} -> {receiver} tag {tag}: {describe(message)}")
        return letter

    def queue(self, sender: int, receiver: int, tag: int) -> _Queue:
        """Return what was sent and not received."""
        key = (sender, receiver, tag)
        if key not in self._queues:
            self._queues[key] = _Queue()
        return self._queues[key]

    def has_come(self, sender: int, receiver: int, queue: _Queue) -> bool:
        """Whether the first message is there."""
        if not queue.letters or max(queue.letters[0].arrives, queue.not_before) > self.now:
            return False
        return not self.is_cut(sender, receiver) and not (
            queue.letters[0].needs_both and self.ranks[sender].stopped_until > self.now
        )

    def next_arrival(self, receiver: int) -> float:
        """Return when something comes on one of a rank's open channels, as far as that is known."""
        soonest = float("inf")
        for owner, peer, tag in self._open:
            if owner == receiver:
                queue = self._queues.get((peer, receiver, tag))
                if queue is not None and queue.letters and not self.is_cut(peer, receiver):
                    soonest = min(soonest, max(queue.letters[0].arrives, queue.not_before))
        return soonest

    def opened(self, rank: int, peer: int, tag: int) -> None:
        """Take note of a new channel."""
        assert peer != rank, f"rank {rank} opens a channel to itself"
        assert (rank, peer, tag) not in self._open, f"rank {rank} opens a second channel to {peer}, tag {tag}"
        self._open.add((rank, peer, tag))

    def closed(self, rank: int, peer: int, tag: int) -> None:
        """Take note that a channel is no more."""
        self._open.discard((rank, peer, tag))


class SimWire:
    """What `transport.Wire` is to the protocol."""

    has_threads = False
    tag_limit = 32767

    def __init__(self, network: SimNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.size = network.size

    def now(self) -> float:
        return self.network.now

    def sleep(self, seconds: float) -> None:
        network = self.network
        nap = max(seconds, network.conditions.nap * network.random.random())
        # Something that comes wakes it up, as if it had looked often; how soon depends on the machine.
        come = network.next_arrival(self.rank) - network.now
        if network.random.random() > 0.1:
            nap = min(nap, max(seconds, come + 1e-4))
        network.pause(nap)

    def work(self, seconds: float) -> None:
        """Be busy for so long."""
        self.network.pause(seconds)

    def channel(self, peer: int, tag: int, piece_bytes: int = 0) -> SimChannel:
        return SimChannel(self.network, self.rank, peer, tag)

    def receive(self, channels: Sequence[SimChannel]) -> list[tuple[SimChannel, np.ndarray]]:
        self.network.hand_over()
        arrived = []
        for channel in channels:
            if (message := channel.take()) is not None:
                arrived.append((channel, message))
        return arrived

    def abort(self, code: int) -> None:
        raise AssertionError(f"rank {self.rank} aborts the job with code {code}")


class SimChannel:
    """What `transport.Channel` is to the protocol."""

    def __init__(self, network: SimNetwork, rank: int, peer: int, tag: int) -> None:
        self.peer = peer
        self.lost: str | None = None
        self.peer_failed = False
        self.late = self.unfinished = None
        self.last_heard = self.last_sent = network.now
        self._network = network
        self._rank = rank
        self._tag = tag
        self._sent: deque[_Letter] = deque()
        self._queue = network.queue(peer, rank, tag)
        self._is_open = True
        network.opened(rank, peer, tag)
        self._look()

    def _look(self) -> bool:
        """Whether MPI has nothing to say against the peer."""
        if self.lost is None and self._network.word(self._rank, self.peer):
            self.lost = "MPI_ERR_PROC_FAILED"
            self._sent.clear()
        return self.lost is None

    def send(self, message: np.ndarray) -> None:
        network = self._network
        plan = network.before_sending(self._rank, message)
        if self._look():
            self._sent.append(network.post(self._rank, self.peer, self._tag, message))
            self.last_sent = network.now
        if plan is not None:
            network.carry_out(plan, self._rank, f"after it sent {kind_of(message).name} to rank {self.peer}")

    def reap(self) -> bool:
        self._look()
        while self._sent:
            letter = self._sent[0]
            if not letter.is_gone and (letter.needs_both or self._network.is_cut(self._rank, self.peer)):
                break
            self._sent.popleft()
        return not self._sent

    def poll(self) -> np.ndarray | None:
        self._network.hand_over()
        return self.take()

    def take(self) -> np.ndarray | None:
        """Return the next message without letting anybody else run."""
        network = self._network
        if not self._is_open or self.lost is not None:
            return None
        if network.has_come(self.peer, self._rank, self._queue):
            # What came before MPI's word may be there or not.
            if not network.word(self._rank, self.peer) or network.random.random() < _BY_PRESENCE:
                letter = self._queue.letters.popleft()
                letter.is_gone = True
                self.last_heard = network.now
                if network.log is not None:
                    network.note(
                        f"    {self._rank} takes from {self.peer} tag {self._tag}: {describe(letter.message)}"
                    )
                return letter.message
        self._look()
        return None

    def close(self, linger: float = 0.0) -> None:
        if not self._is_open:
            return
        network = self._network
        deadline = network.now + linger
        while not self.reap() and network.now < deadline:
            network.pause(min(1e-2, max(1e-4, deadline - network.now)))
        self._is_open = False
        network.closed(self._rank, self.peer, self._tag)


def kind_of(message: np.ndarray) -> Kind:
    """Return the kind of a whole message."""
    return Kind(struct.unpack_from("=q", message.data, 16)[0])


def describe(message: np.ndarray) -> str:
    """Return a message for the log."""
    from dist_classicrl.comm import envelope

    kind, parts = envelope.decode(message)
    numbers = [
        part.tolist() if part.size <= 12 else f"<{part.size}>" for part in parts if part.dtype == np.int64
    ]
    return f"{kind.name} {numbers}"


class _Time:
    """What stands in for the module `time` where protocol code asks it."""

    def __init__(self, network: SimNetwork) -> None:
        self._network = network

    def monotonic(self) -> float:
        return self._network.now

    perf_counter = thread_time = process_time = time = monotonic

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        self._network.pause(seconds)


@contextlib.contextmanager
def simulated_time(network: SimNetwork) -> Iterator[None]:
    """Let all of the package take the time from a network: costs and rates are measured with it."""
    for engine in (
        "local",
        "server",
        "rounds",
    ):  # which are loaded when they are chosen, and have to be there
        import_module(f"dist_classicrl.engines.{engine}.training")
    users = [
        module
        for name, module in sys.modules.items()
        if name.startswith("dist_classicrl.") and getattr(module, "time", None) is time
    ]
    for module in users:
        module.time = _Time(network)
    try:
        yield
    finally:
        for module in users:
            module.time = time
