"""The step budget while workers die, come back and hand in: no step is lost, and none is made twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.errors import ProtocolError

WORKERS = range(1, 6)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Budget(RuleBasedStateMachine):
    """A book beside a model that knows of each single step whether it is free, held or made."""

    @initialize(start=st.sampled_from([0, 7, 10**12]), steps=st.integers(0, 300))
    def open(self, start, steps):
        self.clock = Clock()
        self.book = LeaseBook(start, steps, [1, 2], 40, self.clock)
        self.start, self.steps, self.made = start, steps, 0
        self.free = set(range(start, start + steps))
        self.held = {1: {}, 2: {}}  # worker: {lease id: its steps that are not reported, in order}
        self.lost = []  # (worker, lease id) of leases that were taken back or used up
        self.ids = set()

    @rule(seconds=st.floats(0.0, 1.0))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(worker=st.sampled_from(WORKERS), quantum=st.sampled_from([1, 3, 16, 100]))
    def grant(self, worker, quantum):
        if worker not in self.held:
            with pytest.raises(ProtocolError, match=f"Worker {worker} does not take part"):
                self.book.grant(worker, quantum)
            return
        lease = self.book.grant(worker, quantum)
        if lease is None:
            assert not self.free or any(self.held.values())
            return
        given = list(range(lease.start, lease.start + lease.steps))
        assert given and self.free.issuperset(given) and given[0] == min(self.free)
        assert lease.steps % quantum == 0 or given[-1] + 1 not in self.free
        assert lease.id not in self.ids
        self.ids.add(lease.id)
        self.free.difference_update(given)
        self.held[worker][lease.id] = given

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def report(self, data):
        worker = data.draw(st.sampled_from([worker for worker, leases in self.held.items() if leases]))
        made = []
        for lease_id, left in list(self.held[worker].items()):
            part = data.draw(st.integers(0, len(left)))
            split = data.draw(st.integers(0, part))
            made += [(lease_id, split), (lease_id, part - split)] if split else [(lease_id, part)]
            self.made += part
            del left[:part]
            if not left:
                del self.held[worker][lease_id]
                self.lost.append((worker, lease_id))
        self.book.report(worker, made)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def report_too_much(self, data):
        worker = data.draw(st.sampled_from([worker for worker, leases in self.held.items() if leases]))
        rights = [(lease_id, len(left)) for lease_id, left in self.held[worker].items()]
        with pytest.raises(ProtocolError, match="does not hold"):
            self.book.report(worker, [*rights, (rights[0][0], 1)])

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def report_of_what_was_taken_back(self, data):
        worker, lease_id = data.draw(st.sampled_from(self.lost))
        with pytest.raises(ProtocolError, match="does not hold a lease|which it does not hold"):
            self.book.report(worker, [(lease_id, 0)])

    @rule(worker=st.sampled_from(WORKERS))
    def remove(self, worker):
        if worker not in self.held:
            with pytest.raises(ProtocolError, match="does not take part"):
                self.book.remove(worker)
            return
        leases = self.held.pop(worker)
        assert self.book.remove(worker) == sum(map(len, leases.values()))
        self.free.update(*leases.values())
        self.lost += [(worker, lease_id) for lease_id in leases]

    @rule(worker=st.sampled_from(WORKERS))
    def add(self, worker):
        if worker in self.held:
            with pytest.raises(ProtocolError, match="takes part already"):
                self.book.add(worker)
            return
        self.book.add(worker)
        self.held[worker] = {}

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def credit(self, data):
        steps = data.draw(st.integers(0, len(self.free)))
        self.book.credit(steps)
        self.free.difference_update(sorted(self.free)[:steps])
        self.made += steps

    @rule(beyond=st.integers(1, 10))
    def credit_too_much(self, beyond):
        for steps in (len(self.free) + beyond, -beyond):
            with pytest.raises(ProtocolError, match=f"from 0 to {len(self.free)}"):
                self.book.credit(steps)

    @invariant()
    def agrees(self):
        book = self.book
        assert (book.done, book.pool, book.start) == (self.made, len(self.free), self.start)
        assert set(book.workers) == set(self.held)
        held = {worker: book.account(worker).outstanding for worker in book.workers}
        assert held == {worker: sum(map(len, leases.values())) for worker, leases in self.held.items()}
        assert book.done + book.pool + sum(held.values()) == self.steps
        assert book.finished == (self.made == self.steps)
        assert book.seconds_left >= 0.0


TestBudget = Budget.TestCase
TestBudget.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_was_taken_back_is_given_out_first_and_not_as_one_lease_with_what_follows():
    book = LeaseBook(0, 1000, [1, 2], 100, Clock())
    first, second, third = book.grant(1, 10), book.grant(2, 10), book.grant(2, 10)
    assert (first.start, second.start, third) == (0, 100, None)
    book.report(1, [(first.id, 30)])
    assert book.remove(1) == 70
    book.report(2, [(second.id, 100)])
    again = book.grant(2, 10)
    assert (again.start, again.steps) == (30, 70)


def test_what_touches_is_given_out_together():
    book = LeaseBook(0, 1000, [1, 2, 3], 100, Clock())
    leases = [book.grant(worker, 1) for worker in (1, 2, 3)]
    assert [lease.start for lease in leases] == [0, 100, 200]
    for worker in (2, 1):
        assert book.remove(worker) == 100
    given = []
    for worker in (4, 5, 6):
        book.add(worker)
        lease = book.grant(worker, 150)
        given.append((lease.start, lease.steps))
    assert given == [(0, 150), (150, 50), (300, 150)]


def test_a_worker_that_comes_back_starts_anew():
    clock = Clock()
    book = LeaseBook(0, 10**9, [1, 2], 100, clock)
    lease = book.grant(1, 1)
    clock.now += 0.01
    book.report(1, [(lease.id, 50)])
    assert book.account(1).rate == pytest.approx(5000.0) and book.account(1).outstanding == 50
    assert book.seconds_left > 0.0
    assert book.remove(1) == 50
    assert book.seconds_left == 0.0
    clock.now += 10.0
    book.add(1)
    assert book.account(1).rate == 0.0 and book.account(1).outstanding == 0
    again = book.grant(1, 1)
    assert again.start == 50 and again.id != lease.id
    clock.now += 0.01
    book.report(1, [(again.id, 50)])  # its absence was no slowness
    assert book.account(1).rate == pytest.approx(5000.0)


def test_a_new_server_goes_on_where_the_old_one_was():
    book = LeaseBook(500, 1000, [], 100, Clock())
    assert book.seconds_left == 0.0 and book.workers == () and not book.finished
    book.credit(400)
    book.credit(0)
    assert (book.start, book.done, book.pool, book.finished) == (500, 400, 600, False)
    book.add(3)
    assert book.grant(3, 1).start == 900
    with pytest.raises(ProtocolError, match="501 steps .* from 0 to 500"):
        book.credit(501)
    book.remove(3)
    book.credit(600)
    assert book.finished and book.pool == 0
    book.add(1)
    assert book.grant(1, 1) is None


def test_strangers_are_refused_by_name():
    book = LeaseBook(0, 10, [1, 2], 5, Clock())
    for ask in (
        lambda: book.account(7),
        lambda: book.report(7, []),
        lambda: book.grant(7, 1),
        lambda: book.remove(7),
    ):
        with pytest.raises(ProtocolError, match=r"Worker 7 does not take part \(those that do: 1, 2\)"):
            ask()
