"""The step budget, given out in leases.

So fast workers get more, and the run makes exactly the steps asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dist_classicrl.errors import ProtocolError

_AHEAD_SECONDS = 0.25
_AHEAD_INTERVALS = 4.0
_LEAST_SECONDS = 0.002
_SHARES = 2


@dataclass
class Lease:
    """A range of global steps that one worker makes.

    Attributes
    ----------
    id : int
    start : int
        First global step.
    steps : int
    """

    id: int
    start: int
    steps: int


class LeaseBook:
    """Who makes which of `steps` steps, from global step `start` on.

    A worker gets about a quarter of a second's work at a time by its own measured rate (more where it pushes
    rarely), less towards the end: no more than half of an equal share of what is left, so that all finish
    together, but no less than what it does in 2 ms.

    Parameters
    ----------
    start, steps : int
    workers : list of int
        Ranks.
    first_steps : int
        What a worker gets before anything is known of its rate.
    """

    def __init__(self, start: int, steps: int, workers: list[int], first_steps: int) -> None:
        self.start = start
        self._first_steps = first_steps
        self._next = start
        self._end = start + steps
        self._done = 0
        self._total = steps
        self._ids = 0
        self._leases: dict[int, tuple[int, Lease]] = {}
        self._outstanding = dict.fromkeys(workers, 0)
        self._rates = dict.fromkeys(workers, 0.0)
        self._heard = dict.fromkeys(workers, time.monotonic())

    @property
    def done(self) -> int:
        """Steps reported."""
        return self._done

    @property
    def finished(self) -> bool:
        """Whether all steps have been made."""
        return self._done == self._total

    @property
    def pool(self) -> int:
        """Steps that nobody has been given yet."""
        return self._end - self._next

    def rate(self, worker: int) -> float:
        """Return a worker's steps per second, 0.0 before its first report."""
        return self._rates[worker]

    @property
    def seconds_left(self) -> float:
        """How long what nobody has been given yet will last; 0.0 before the workers' rates are known."""
        rate = sum(self.rate(worker) for worker in self._rates)
        return self.pool / rate if rate > 0.0 else 0.0

    def report(self, worker: int, made: list[tuple[int, int]]) -> None:
        """Enter steps `made` by `worker`, as (lease id, steps).

        Raises
        ------
        ProtocolError
            If a lease is not the worker's, or has fewer steps left.
        """
        total = 0
        for lease_id, steps in made:
            owner, lease = self._leases.get(lease_id, (None, None))
            if lease is None or owner != worker or not 0 <= steps <= lease.steps:
                raise ProtocolError(
                    f"Worker {worker} reports {steps} steps of lease {lease_id}, which it does not hold."
                )
            lease.steps -= steps
            if lease.steps == 0:
                del self._leases[lease_id]
            total += steps
        self._outstanding[worker] -= total
        self._done += total
        now = time.monotonic()
        passed = now - self._heard[worker]
        if passed > 1e-4:
            rate = total / passed
            old = self._rates[worker]
            # Smoothed over about a quarter of a second, whatever the reports' distance.
            share = min(1.0, passed / _AHEAD_SECONDS)
            self._rates[worker] = rate if old == 0.0 else old + share * (rate - old)
            self._heard[worker] = now

    def grant(self, worker: int, quantum: int, interval_seconds: float = 0.0) -> Lease | None:
        """Give `worker` more if it has little left.

        It gets multiples of `quantum` steps while there are enough, and enough for several intervals between
        its pushes, since leases come with the replies to them.
        """
        rate = self._rates[worker]
        seconds = max(_AHEAD_SECONDS, _AHEAD_INTERVALS * interval_seconds)
        ahead = rate * seconds if rate > 0.0 else float(self._first_steps)
        fair = self.pool / (_SHARES * len(self._outstanding))
        wanted = int(min(ahead, max(fair, rate * _LEAST_SECONDS, 1.0)))
        if self.pool == 0 or self._outstanding[worker] > wanted // 2:
            return None
        steps = min(-(-max(wanted, 1) // quantum) * quantum, self.pool)
        self._ids += 1
        lease = Lease(self._ids, self._next, steps)
        self._next += steps
        self._outstanding[worker] += steps
        self._leases[lease.id] = (worker, Lease(lease.id, lease.start, steps))
        return lease
