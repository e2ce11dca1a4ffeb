"""The step budget, given out in leases.

So fast workers get more, and the run makes exactly the steps asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dist_classicrl.errors import ProtocolError

_AHEAD_SECONDS = 0.25
_AHEAD_INTERVALS = 4.0
_LEAST_SECONDS = 0.002
_SETTLING_SECONDS = 0.01
_SHARES = 2
_LONGEST_SECONDS = 1e9


@dataclass(frozen=True)
class Lease:
    """A range of `steps` global steps, from `start` on, that one worker makes."""

    id: int
    start: int
    steps: int


class LeaseBook:
    """Who makes which of `steps` steps, from global step `start` on.

    A worker gets about a quarter of a second's work at a time by its own measured rate (more where it pushes
    rarely), less towards the end: no more than what it does in half of the time that all together need for
    what is left, so that all finish together, but no less than what it does in 2 ms. A slow worker gets
    nothing at the end where the others will have made all that is left before it is through. It should ask
    again now and then, as they may slow down.

    What a worker that is lost had not reported becomes free again, and is given out before what nobody ever
    had, so the run makes exactly `steps` steps whoever dies.

    A worker gets `first_steps` before anything is known of its rate. `clock` gives the time in seconds.
    """

    def __init__(
        self,
        start: int,
        steps: int,
        workers: list[int],
        first_steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.start = start
        self._first_steps = first_steps
        self._clock = clock
        # What nobody holds, as [begin, end), in ascending order and with gaps between them.
        self._free = [(start, start + steps)]
        self._pool = steps
        self._done = 0
        self._total = steps
        self._is_over = False
        self._ids = 0
        self._leases: dict[int, tuple[int, Lease]] = {}
        self._outstanding: dict[int, int] = {}
        self._rates: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._first_heard: dict[int, float] = {}
        self._heard_again: set[int] = set()
        self._total_rate = 0.0
        for worker in workers:
            self.add(worker)

    @property
    def workers(self) -> tuple[int, ...]:
        """Ranks among which the steps are shared."""
        return tuple(self._outstanding)

    @property
    def done(self) -> int:
        """Steps reported or credited."""
        return self._done

    @property
    def finished(self) -> bool:
        """Whether all steps have been made."""
        return self._done == self._total

    @property
    def pool(self) -> int:
        """Steps that nobody holds and nobody has made."""
        return self._pool

    @property
    def is_over(self) -> bool:
        """Whether nothing more is given out."""
        return self._is_over

    def outstanding(self, worker: int) -> int:
        """Return the steps that `worker` holds and has not reported."""
        self._check_known(worker)
        return self._outstanding[worker]

    def rate(self, worker: int) -> float:
        """Return a worker's steps per second, 0.0 before its first report."""
        self._check_known(worker)
        return self._rates[worker]

    @property
    def seconds_left(self) -> float:
        """How long what nobody holds will last; 0.0 before the workers' rates are known."""
        return self.pool / self._total_rate if self._total_rate > 0.0 else 0.0

    def add(self, worker: int) -> None:
        """Let `worker`, which is new or was removed, take part."""
        if worker in self._outstanding:
            raise ProtocolError(f"Worker {worker} takes part already. Remove it before it is added again.")
        self._outstanding[worker] = 0
        self._rates[worker] = 0.0
        self._heard[worker] = self._clock()

    def remove(self, worker: int) -> int:
        """Forget `worker`, free what it holds, and return how many steps that was; its leases are void."""
        self._check_known(worker)
        held = [lease for owner, lease in self._leases.values() if owner == worker]
        for lease in held:
            del self._leases[lease.id]
        returned = self._outstanding.pop(worker)
        del self._rates[worker], self._heard[worker]
        self._first_heard.pop(worker, None)
        self._heard_again.discard(worker)
        self._total_rate = sum(self._rates.values())
        if self._is_over:
            self._total -= returned
            return returned
        self._free = _joined([*self._free, *((lease.start, lease.start + lease.steps) for lease in held)])
        self._pool += returned
        return returned

    def credit(self, steps: int) -> None:
        """Count `steps` steps as made without a lease, and take as many of those that nobody holds.

        A `ProtocolError` is raised if there are not so many.
        """
        if not 0 <= steps <= self._pool:
            raise ProtocolError(
                f"{steps} steps were made without a lease, but it must be from 0 to {self._pool}, the steps "
                f"that are neither made nor given out of {self._total}. Credit before leases are granted."
            )
        self._done += steps
        while steps:
            begin, end = self._take(steps)
            steps -= end - begin

    def end(self) -> None:
        """Give out nothing more: the run is over once what is given out has been made, or given up."""
        self._is_over = True
        self._total -= self._pool
        self._pool = 0
        self._free.clear()

    def give_up(self, worker: int) -> None:
        """Take back what `worker` holds, which makes no more of it and takes part all the same."""
        self.remove(worker)
        self.add(worker)

    def excuse(self, seconds: float) -> None:
        """Count so many seconds, in which nobody was heard, as nobody's work."""
        for worker in self._heard:
            self._heard[worker] += seconds

    def report(self, worker: int, made: Iterable[tuple[int, int]]) -> None:
        """Enter steps `made` by `worker`, as (lease id, steps).

        A `ProtocolError` is raised if a lease is not the worker's, or has fewer steps left. Then nothing is
        entered.
        """
        self._check_known(worker)
        total = 0
        left: dict[int, int] = {}
        for lease_id, steps in made:
            owner, lease = self._leases.get(lease_id, (None, None))
            if lease is None or owner != worker or not 0 <= steps <= left.get(lease_id, lease.steps):
                raise ProtocolError(
                    f"Worker {worker} reports {steps} steps of lease {lease_id}, which it does not hold."
                )
            left[lease_id] = left.get(lease_id, lease.steps) - steps
            total += steps
        for lease_id, steps in left.items():
            lease = self._leases.pop(lease_id)[1]
            if steps:
                # A worker makes the steps of a lease in order.
                begin = lease.start + lease.steps - steps
                self._leases[lease_id] = worker, Lease(lease_id, begin, steps)
        self._outstanding[worker] -= total
        self._done += total
        now = self._clock()
        passed = now - self._heard[worker]
        if passed > 1e-4:
            rate = total / passed
            old = self._rates[worker]
            first = self._first_heard.get(worker, now)
            if total > 0:
                if worker in self._first_heard:
                    self._heard_again.add(worker)
                self._first_heard[worker] = first
            # Smoothed over about a quarter of a second, whatever the reports' distance; in the beginning over
            # the time since the first report, which has waited for who knows what.
            share = min(1.0, passed / max(_SETTLING_SECONDS, min(_AHEAD_SECONDS, now - first)))
            self._rates[worker] = rate if old == 0.0 else old + share * (rate - old)
            self._total_rate += self._rates[worker] - old
            self._heard[worker] = now

    def grant(self, worker: int, quantum: int, interval_seconds: float = 0.0) -> Lease | None:
        """Give `worker` more if it has little left.

        It gets enough for several intervals between its pushes, since leases come with the replies to them,
        and multiples of `quantum` steps, except at the end of a free range: a lease is one range.
        """
        self._check_known(worker)
        rate = self._rates[worker]
        seconds = max(_AHEAD_SECONDS, _AHEAD_INTERVALS * interval_seconds)
        ahead = rate * seconds if rate > 0.0 else float(self._first_steps)
        fair = self.pool * self._share(worker) / _SHARES
        wanted = int(min(ahead, max(fair, rate * _LEAST_SECONDS, 1.0)))
        if self.pool == 0 or self._outstanding[worker] > wanted // 2:
            return None
        steps = -(-max(wanted, 1) // quantum) * quantum
        if self._is_too_slow(worker, steps, quantum):
            return None
        if self._outstanding[worker] == 0:
            self._heard[worker] = self._clock()  # it had to wait for this
        begin, end = self._take(steps)
        self._ids += 1
        lease = Lease(self._ids, begin, end - begin)
        self._outstanding[worker] += lease.steps
        self._leases[lease.id] = worker, lease
        return lease

    def _share(self, worker: int) -> float:
        """Return the part of what is left that a worker makes if all finish together."""
        rate = self._rates[worker]
        # Those of whom nothing is known count as average.
        average = self._total_rate / max(1, len(self._first_heard))
        return (rate / average if rate > 0.0 else 1.0) / len(self._outstanding)

    def _is_too_slow(self, worker: int, steps: int, quantum: int) -> bool:
        """Tell whether others who are at work will have made all that is left before `worker` makes `steps`.

        The last one at work, who has nobody to leave it to, never is. Neither is who has reported only once:
        a first report tells how long starting took.
        """
        if worker not in self._heard_again or self._rates[worker] == 0.0:
            return False
        seconds = min((self._outstanding[worker] + steps) / self._rates[worker], _LONGEST_SECONDS)
        made = 0
        for other, held in self._outstanding.items():
            if other != worker and held > 0:
                made += max(0, self._expected(other, seconds) - held) // quantum * quantum
        return made >= self._pool

    def _expected(self, worker: int, seconds: float) -> int:
        """Return how many steps `worker` will have made in so many seconds, with those not reported yet."""
        silent = max(0.0, self._clock() - self._heard[worker])
        rate = self._rates[worker]
        if silent > 0.0:
            # It has not reported all that it holds, so it makes no more than that in such a time.
            rate = min(rate, self._outstanding[worker] / silent)
        return int(rate * (silent + seconds))

    def _take(self, most: int) -> tuple[int, int]:
        """Take up to `most` steps off the first free range."""
        begin, end = self._free[0]
        middle = min(begin + most, end)
        if middle == end:
            del self._free[0]
        else:
            self._free[0] = (middle, end)
        self._pool -= middle - begin
        return begin, middle

    def _check_known(self, worker: int) -> None:
        if worker not in self._outstanding:
            known = ", ".join(map(str, self._outstanding)) or "none"
            raise ProtocolError(
                f"Worker {worker} does not take part (those that do: {known}), so it does not hold a lease. "
                "It has to be added first."
            )


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `ranges` in ascending order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return joined
