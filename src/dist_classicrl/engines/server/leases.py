"""The step budget, given out in leases.

So fast workers get more, and the run makes exactly the steps asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from dist_classicrl.errors import ProtocolError

_AHEAD_SECONDS = 0.25
_AHEAD_INTERVALS = 4.0
_LEAST_SECONDS = 0.002
_SETTLING_SECONDS = 0.01
_SHARES = 2
_NEW_SHARE = 0.05
_FEW_SECONDS = 1e-3
_ALONE = 4
_JUDGED_AFTER = 0.2
_PACE_SMOOTHING = 0.2
_LONGEST_SECONDS = 1e9


@dataclass(frozen=True)
class Lease:
    """A range of `steps` global steps, from `start` on, that one worker makes."""

    id: int
    start: int
    steps: int


@dataclass
class Account:
    """What a lease book knows of one worker."""

    heard: float  # when it last reported, or was given work after it had none
    rate: float = 0.0  # steps per second; 0.0 before its first report
    pace: float = 0.0  # steps per second in which it learned; 0.0 while that is not known
    first_heard: float | None = None  # when it first reported that it has made any
    has_reported_again: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)  # by id, without the steps that it has reported

    @property
    def outstanding(self) -> int:
        """Steps that it holds and has not reported."""
        return sum(lease.steps for lease in self.leases.values())


class LeaseBook:
    """Who makes which of `steps` steps, from global step `start` on.

    A worker gets about a quarter of a second's work at a time by its own measured pace (more where it pushes
    rarely), less towards the end: no more than what it does in half of the time that all together need for
    what is left, so that all finish together, but no less than what it does in 2 ms. A slow worker gets
    nothing at the end where the others will have made all that is left before it is through. It should ask
    again now and then, as they may slow down.

    What a worker that is lost had not reported becomes free again, and is given out before what nobody ever
    had, so the run makes exactly `steps` steps whoever dies.

    A worker gets `first_steps` before anything is known of its rate. `clock` gives the time in seconds.

    A run that may end before all steps are made tells by `foreseen` how many steps may be under way now: all
    together hold no more than that, but for a last quantum, and each gets less as if no more were left.

    What a worker learns of a table of which nobody knows anything yet helps the others little, and may spoil
    what they found. So a run begins with one worker, and for `ramp_seconds` at most (0: not at all) another
    may join when what all hold is 5 % or less of the steps made so far. Leases are of 1 ms, or `first_steps`,
    until all are at work. Where steps take so long that nobody could join in that time, all begin after a
    fifth of it.
    """

    def __init__(
        self,
        start: int,
        steps: int,
        workers: list[int],
        first_steps: int,
        clock: Callable[[], float] = time.monotonic,
        ramp_seconds: float = 0.0,
        foreseen: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.start = start
        self._first_steps = first_steps
        self._clock = clock
        self._foreseen = foreseen
        # What nobody holds, as [begin, end), in ascending order and with gaps between them.
        self._free = [(start, start + steps)]
        self.pool = steps  # that nobody holds and nobody has made
        self.done = 0  # steps reported or credited
        self.is_over = False  # whether nothing more is given out
        self._total = steps
        self._ids = 0
        self._accounts: dict[int, Account] = {}
        self._ramp_begin = clock()
        self._ramp_seconds = ramp_seconds
        self._total_rate = 0.0
        self._n_rated = 0  # of how many workers something is known
        for worker in workers:
            self.add(worker)

    @property
    def workers(self) -> tuple[int, ...]:
        """Ranks among which the steps are shared."""
        return tuple(self._accounts)

    @property
    def finished(self) -> bool:
        """Whether all steps have been made."""
        return self.done == self._total

    def account(self, worker: int) -> Account:
        """Return what is known of `worker`; ProtocolError if it does not take part."""
        if worker not in self._accounts:
            known = ", ".join(map(str, self._accounts)) or "none"
            raise ProtocolError(
                f"Worker {worker} does not take part (those that do: {known}), so it does not hold a lease. "
                "It has to be added first."
            )
        return self._accounts[worker]

    @property
    def left(self) -> int:
        """Steps that may be given out now: of those that nobody holds, as many as are foreseen."""
        held = self._total - self.done - self.pool
        return int(min(self.pool, max(0.0, self._foreseen() - held)))

    @property
    def seconds_left(self) -> float:
        """How long what may be given out will last; 0.0 before the workers' rates are known."""
        return self.left / self._total_rate if self._total_rate > 0.0 else 0.0

    @property
    def is_ramping(self) -> bool:
        """Whether so little has been made that not all workers are at work."""
        if self._may_be_new(self.done) >= len(self._accounts) * self._first_steps:
            return False
        passed = self._clock() - self._ramp_begin
        if passed < _JUDGED_AFTER * self._ramp_seconds:
            return True
        at_the_end = self.done * self._ramp_seconds / passed if passed > 0.0 else 0.0
        return passed < self._ramp_seconds and self._may_be_new(at_the_end) >= self._first_steps

    def _may_be_new(self, done: float) -> float:
        """Return how many steps all together may hold while not all are at work, once so many are made."""
        return _NEW_SHARE * (self.start + done)

    def add(self, worker: int) -> None:
        """Let `worker`, which is new or was removed, take part."""
        if worker in self._accounts:
            raise ProtocolError(f"Worker {worker} takes part already. Remove it before it is added again.")
        self._accounts[worker] = Account(self._clock())

    def remove(self, worker: int) -> int:
        """Forget `worker`, free what it holds, and return how many steps that was; its leases are void."""
        account = self.account(worker)
        del self._accounts[worker]
        self._total_rate = sum(other.rate for other in self._accounts.values())
        self._n_rated -= account.first_heard is not None
        return self._take_back(account.leases.values())

    def give_back(self, worker: int, lease_ids: Iterable[int]) -> None:
        """Free what `worker`, which takes part all the same, has not reported of these of its leases.

        A `ProtocolError` is raised if one is not the worker's. Then nothing is freed.
        """
        leases = self.account(worker).leases
        ids = set(lease_ids)
        if strange := sorted(ids - leases.keys()):
            raise ProtocolError(f"Worker {worker} gives back lease {strange[0]}, which it does not hold.")
        self._take_back([leases.pop(lease_id) for lease_id in ids])

    def _take_back(self, leases: Collection[Lease]) -> int:
        returned = sum(lease.steps for lease in leases)
        if self.is_over:
            self._total -= returned
        else:
            ranges = ((lease.start, lease.start + lease.steps) for lease in leases)
            self._free = _joined([*self._free, *ranges])
            self.pool += returned
        return returned

    def credit(self, steps: int) -> None:
        """Count `steps` steps as made without a lease, and take as many of those that nobody holds.

        A `ProtocolError` is raised if there are not so many.
        """
        if not 0 <= steps <= self.pool:
            raise ProtocolError(
                f"{steps} steps were made without a lease, but it must be from 0 to {self.pool}, the steps "
                f"that are neither made nor given out of {self._total}. Credit before leases are granted."
            )
        self.done += steps
        while steps:
            begin, end = self._take(steps)
            steps -= end - begin

    def end(self) -> None:
        """Give out nothing more: the run is over once what is given out has been made, or given up."""
        self.is_over = True
        self._total -= self.pool
        self.pool = 0
        self._free.clear()

    def give_up(self, worker: int) -> None:
        """Take back what `worker` holds, which makes no more of it and takes part all the same."""
        self.remove(worker)
        self.add(worker)

    def excuse(self, seconds: float) -> None:
        """Count so many seconds, in which nobody was heard, as nobody's work."""
        for account in self._accounts.values():
            account.heard += seconds

    def report(self, worker: int, made: Iterable[tuple[int, int]], learning_seconds: float = 0.0) -> None:
        """Enter steps `made` by `worker`, as (lease id, steps), in so many seconds, if that is known.

        A `ProtocolError` is raised if a lease is not the worker's, or has fewer steps left. Then nothing is
        entered.
        """
        account = self.account(worker)
        leases = account.leases
        total = 0
        left: dict[int, int] = {}
        for lease_id, steps in made:
            lease = leases.get(lease_id)
            if lease is None or not 0 <= steps <= left.get(lease_id, lease.steps):
                raise ProtocolError(
                    f"Worker {worker} reports {steps} steps of lease {lease_id}, which it does not hold."
                )
            left[lease_id] = left.get(lease_id, lease.steps) - steps
            total += steps
        for lease_id, steps in left.items():
            lease = leases.pop(lease_id)
            if steps:
                # A worker makes the steps of a lease in order.
                leases[lease_id] = Lease(lease_id, lease.start + lease.steps - steps, steps)
        self.done += total
        if total and learning_seconds > 0.0:
            pace = total / learning_seconds
            account.pace += (_PACE_SMOOTHING if account.pace else 1.0) * (pace - account.pace)
        now = self._clock()
        passed = now - account.heard
        if passed > 1e-4:
            rate, old = total / passed, account.rate
            first = now if account.first_heard is None else account.first_heard
            if total > 0:
                account.has_reported_again = account.first_heard is not None
                self._n_rated += account.first_heard is None
                account.first_heard = first
            # Smoothed over about a quarter of a second, whatever the reports' distance; in the beginning over
            # the time since the first report, which has waited for who knows what.
            share = min(1.0, passed / max(_SETTLING_SECONDS, min(_AHEAD_SECONDS, now - first)))
            account.rate = rate if old == 0.0 else old + share * (rate - old)
            self._total_rate += account.rate - old
            account.heard = now

    def grant(self, worker: int, quantum: int, interval_seconds: float = 0.0) -> Lease | None:
        """Give `worker` more if it has little left.

        It gets enough for several intervals between its pushes, since leases come with the replies to them,
        and multiples of `quantum` steps, except at the end of a free range: a lease is one range.
        """
        account = self.account(worker)
        left = self.left
        rate, outstanding = account.rate, account.outstanding
        seconds = max(_AHEAD_SECONDS, _AHEAD_INTERVALS * interval_seconds)
        # Its rate counts the time in which it waited for work, too. By that alone, where answers take as long
        # as a lease, each lease would be smaller than the one before, down to a step for each answer.
        ahead = max(rate, account.pace) * seconds if rate > 0.0 else float(self._first_steps)
        fair = left * self._share(account) / _SHARES
        wanted = int(min(ahead, max(fair, rate * _LEAST_SECONDS, 1.0)))
        if self.is_ramping:
            others = sum(other.outstanding for other in self._accounts.values()) - outstanding
            wanted = max(self._first_steps, int(rate * _FEW_SECONDS))
            if others == 0:
                wanted *= _ALONE
            elif others + outstanding + wanted > self._may_be_new(self.done):
                return None
        if left == 0 or outstanding > wanted // 2:
            return None
        steps = -(-max(wanted, 1) // quantum) * quantum
        if self._is_too_slow(account, steps, quantum, left):
            return None
        if outstanding == 0:
            account.heard = self._clock()  # it had to wait for this
        begin, end = self._take(min(steps, -(-left // quantum) * quantum))
        self._ids += 1
        lease = Lease(self._ids, begin, end - begin)
        account.leases[lease.id] = lease
        return lease

    def _share(self, account: Account) -> float:
        """Return the part of what is left that a worker makes if all finish together."""
        # Those of whom nothing is known count as average.
        average = self._total_rate / max(1, self._n_rated)
        return (account.rate / average if account.rate > 0.0 else 1.0) / len(self._accounts)

    def _is_too_slow(self, account: Account, steps: int, quantum: int, left: int) -> bool:
        """Tell whether others who are at work will have made all that is `left` before it makes `steps`.

        The last one at work, who has nobody to leave it to, never is. Neither is who has reported only once:
        a first report tells how long starting took.
        """
        if not account.has_reported_again or account.rate == 0.0:
            return False
        seconds = min((account.outstanding + steps) / account.rate, _LONGEST_SECONDS)
        made = 0
        for other in self._accounts.values():
            if other is not account and (held := other.outstanding) > 0:
                made += max(0, self._expected(other, seconds) - held) // quantum * quantum
        return made >= left

    def _expected(self, account: Account, seconds: float) -> int:
        """Return how many steps a worker will have made in so many seconds, with those not reported yet."""
        silent = max(0.0, self._clock() - account.heard)
        rate = account.rate
        if silent > 0.0:
            # It has not reported all that it holds, so it makes no more than that in such a time.
            rate = min(rate, account.outstanding / silent)
        return int(rate * (silent + seconds))

    def _take(self, most: int) -> tuple[int, int]:
        """Take up to `most` steps off the first free range."""
        begin, end = self._free[0]
        middle = min(begin + most, end)
        if middle == end:
            del self._free[0]
        else:
            self._free[0] = (middle, end)
        self.pool -= middle - begin
        return begin, middle


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `ranges` in ascending order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return joined
