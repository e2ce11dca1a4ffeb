"""The step budget: exact whatever workers do when, shared by speed, and closed to strangers."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dist_classicrl.engines.outcome import Tally
from dist_classicrl.engines.progress import Reporter
from dist_classicrl.engines.server.leases import LeaseBook
from dist_classicrl.errors import ProtocolError


class Clock:
    """A clock that stands still unless it is moved."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def play(rng, clock, start, steps, workers, quantum, speeds=None, first_steps=1000):
    """Let workers take, split and report leases at random until the budget is used up; return all leases."""
    book = LeaseBook(start, steps, workers, first_steps, clock)
    held = {worker: [] for worker in workers}  # [lease id, steps left]
    granted, made = [], dict.fromkeys(workers, 0)
    for _ in range(100_000):
        if book.finished:
            break
        worker = workers[rng.integers(len(workers))]
        clock.now += float(rng.exponential(0.01))
        if rng.random() < 0.5:
            pool = book.pool
            lease = book.grant(worker, quantum)
            if lease is not None:
                assert 0 < lease.steps <= pool and book.pool == pool - lease.steps
                assert lease.steps % quantum == 0 or lease.steps == pool
                granted.append((worker, lease.id, lease.start, lease.steps))
                held[worker].append([lease.id, lease.steps])
        elif held[worker]:
            room = int(rng.integers(0, 2000 if speeds is None else speeds[worker]))
            report = []
            while held[worker] and room > 0:
                part = min(room, held[worker][0][1])
                report.append((held[worker][0][0], part))
                held[worker][0][1] -= part
                room -= part
                if held[worker][0][1] == 0:
                    held[worker].pop(0)
            book.report(worker, report)
            made[worker] += sum(part for _, part in report)
        assert book.done == sum(made.values())
        assert book.done + book.pool + sum(left for leases in held.values() for _, left in leases) == steps
    assert book.finished
    return granted, made


@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_budget_is_made_whatever_the_interleaving(seed, clock):
    rng = np.random.default_rng(seed)
    workers = rng.choice(50, int(rng.integers(1, 8)), replace=False).tolist()
    start, steps = int(rng.integers(0, 10**12)), int(rng.choice([1, 7, 100, 12_345, 60_000]))
    granted, made = play(rng, clock, start, steps, workers, int(rng.choice([1, 3, 16, 100])))
    # The leases are the budget, cut into pieces: no step twice, none left out.
    at = start
    for _, _, begin, size in granted:
        assert begin == at
        at += size
    assert at == start + steps
    assert len({lease for _, lease, _, _ in granted}) == len(granted)
    assert sum(made.values()) == steps


def test_leases_shrink_towards_the_end(clock):
    book = LeaseBook(0, 10_000_000, [1, 2], 4096, clock)
    sizes = []
    while True:
        pool, rate = book.pool, book.account(1).rate
        lease = book.grant(1, 1)
        if lease is None:
            break
        # Half of an equal share of what is left, but 2 ms of work at least.
        assert min(pool, int(0.002 * rate)) <= lease.steps <= max(pool / 4, 0.002 * rate, 1) + 1
        sizes.append(lease.steps)
        clock.now += lease.steps / 4e6
        book.report(1, [(lease.id, lease.steps)])
    assert book.finished and sum(sizes) == 10_000_000
    assert sizes[0] == 4096 and max(sizes) > 100_000
    after = sizes[sizes.index(max(sizes)) :]
    assert len(after) > 10 and after[-1] <= after[0] // 100


def test_a_lease_is_a_quarter_of_a_second_of_the_workers_own_rate(clock):
    book = LeaseBook(0, 10**12, [1, 2], 1000, clock)
    for rank, rate in ((1, 4_000_000), (2, 1000)):
        last = clock.now
        for _ in range(60):
            lease = book.grant(rank, 1)
            if lease is not None:
                clock.now = last + lease.steps / rate
                last = clock.now
                book.report(rank, [(lease.id, lease.steps)])
        book.account(2).heard = clock.now
        assert book.account(rank).rate == pytest.approx(rate, rel=0.02)
        assert book.grant(rank, 1).steps == pytest.approx(0.25 * rate, rel=0.02)
    assert book.grant(1, 1) is None  # it has enough


def test_what_is_left_lasts_as_long_as_the_workers_rates_say(clock):
    book = LeaseBook(0, 1_000_000, [1, 2], 1000, clock)
    assert book.seconds_left == 0.0  # nothing known
    for rank, rate in ((1, 30_000), (2, 10_000)):
        lease = book.grant(rank, 1)
        clock.now += lease.steps / rate
        book.report(rank, [(lease.id, lease.steps)])
    assert book.account(1).rate + book.account(2).rate == pytest.approx(40_000)
    assert book.seconds_left == pytest.approx((1_000_000 - 2000) / 40_000)
    book.grant(1, 1_000_000)
    assert book.pool == 0 and book.seconds_left == 0.0


def test_a_fast_worker_gets_more(clock):
    rng = np.random.default_rng(1)
    _, made = play(rng, clock, 0, 1_000_000, [1, 2], 1, {1: 20_000, 2: 2000})
    assert made[1] > 4 * made[2] > 0


def seconds_of_run(clock, steps, rates, quantum, first_steps, interval=0.0):
    """Let workers of these steps per second make all steps; return the time, and the steps of each."""
    book = LeaseBook(0, steps, list(rates), first_steps, clock)
    made = dict.fromkeys(rates, 0)
    due = [(clock.now, worker, None) for worker in rates]
    while not book.finished:
        clock.now, worker, lease = due.pop(due.index(min(due, key=lambda one: one[0])))
        if lease is not None:
            book.report(worker, [(lease.id, lease.steps)])
            made[worker] += lease.steps
        lease = book.grant(worker, quantum, interval)
        seconds = 0.5 if lease is None else -(-lease.steps // quantum) * quantum / rates[worker]
        due.append((clock.now + seconds, worker, lease))
    return clock.now - 100.0, made


@pytest.mark.parametrize("interval", [0.0, 5.0])
@pytest.mark.parametrize("quantum", [1, 16])
@pytest.mark.parametrize("factor", [3, 10])
def test_workers_of_different_speeds_end_together(clock, quantum, factor, interval):
    rates = {1: 100.0, 2: 100.0, 3: 100.0, 4: 100.0, 5: 100.0 / factor, 6: 100.0 / factor}
    steps = int(8 * sum(rates.values()))
    seconds, made = seconds_of_run(clock, steps, rates, quantum, quantum, interval)
    assert seconds < 1.05 * 8
    for worker, rate in rates.items():
        # One more or one less of what the environment makes in one go.
        assert made[worker] == pytest.approx(8 * rate, abs=0.03 * 8 * rate + quantum)


def test_equal_workers_make_equal_shares(clock):
    seconds, made = seconds_of_run(clock, 4_000_000, dict.fromkeys(range(8), 250_000.0), 1, 1000)
    assert seconds < 1.01 * 2
    assert max(made.values()) < 1.02 * min(made.values())


def book_with_rates(clock, steps, rates):
    """Return a book with so many steps left, in which each worker has reported at its own rate."""
    book = LeaseBook(0, steps + 10 * len(rates), list(rates), 10, clock)
    leases, begun = {worker: book.grant(worker, 10) for worker in rates}, clock.now
    for worker, rate in sorted(rates.items(), key=lambda one: -one[1]):
        clock.now = begun + 10 / rate
        book.report(worker, [(leases[worker].id, 10)])
    return book


def test_a_slow_worker_gets_nothing_that_others_make_sooner(clock):
    book = book_with_rates(clock, 210, {1: 100.0, 2: 1.0})
    report_once_more(clock, book, 2, 10.0)
    assert book.grant(1, 10).steps == 30
    # 170 steps are left: two seconds of the fast worker's. The slow one needs ten for as few as it can make.
    assert book.grant(2, 10) is None
    assert book.grant(2, 1).steps == 1


def report_once_more(clock, book, worker, seconds):
    """Let a worker take ten steps and report them after so many seconds."""
    lease = book.grant(worker, 10)
    assert lease.steps == 10
    clock.now += seconds
    book.report(worker, [(lease.id, 10)])


def test_nobody_is_too_slow_because_its_first_steps_took_long(clock):
    book = book_with_rates(clock, 200, {1: 100.0, 2: 1.0})
    assert book.grant(1, 10).steps == 30
    report_once_more(clock, book, 2, 0.1)
    assert book.account(2).rate == pytest.approx(100.0)
    assert book.grant(2, 10) is not None


@pytest.mark.parametrize("times", [1, 2, 5])
def test_who_has_reported_no_step_gets_a_lease(clock, times):
    book = book_with_rates(clock, 200, {1: 100.0, 2: 1.0})
    book.add(3)
    for _ in range(times):
        clock.now += 10.0
        book.report(3, [])
    assert book.account(3).rate == 0.0
    assert book.grant(3, 10).steps == 10


def test_who_was_too_slow_is_not_when_the_others_have_slowed_down(clock):
    book = book_with_rates(clock, 210, {1: 100.0, 2: 1.0})
    report_once_more(clock, book, 2, 10.0)
    assert book.grant(1, 10).steps == 30
    clock.now += 0.25  # the fast one is at work
    assert book.grant(2, 10) is None
    clock.now += 2.0  # by now it should have made seven times as much as it holds
    assert book.grant(2, 10).steps == 10


def test_time_without_work_makes_nobody_slow(clock):
    book = book_with_rates(clock, 100, {1: 100.0})
    clock.now += 50.0
    lease = book.grant(1, 10)
    clock.now += 0.1
    book.report(1, [(lease.id, 10)])
    assert book.account(1).rate == pytest.approx(100.0)


def test_the_only_worker_at_work_is_never_too_slow(clock):
    book = book_with_rates(clock, 20, {1: 100.0, 2: 1.0})
    # Nobody else holds anything, so nobody else would ever ask.
    assert book.grant(2, 10).steps == 10
    alone = book_with_rates(clock, 18, {1: 128.0})
    alone.report(1, [(alone.grant(1, 10).id, 9)])
    assert alone.pool == 8 and alone.grant(1, 10).steps == 8


def test_the_first_report_says_little_of_a_workers_rate(clock):
    book = LeaseBook(0, 10**9, [1], 10, clock)
    for _ in range(2):
        lease = book.grant(1, 1)
        clock.now += 5.0  # it began late
        book.report(1, [(lease.id, 10)])
        assert book.account(1).rate == pytest.approx(2.0)
        lease = book.grant(1, 10)
        clock.now += 0.02
        book.report(1, [(lease.id, 10)])
        assert book.account(1).rate == pytest.approx(500.0)
        book.give_up(1)


def test_the_rates_of_those_that_are_gone_count_for_nothing(clock):
    book = LeaseBook(0, 10_000, [1, 2, 3], 10, clock)
    leases = {worker: book.grant(worker, 10) for worker in (1, 2, 3)}
    clock.now += 1.0
    for worker, lease in leases.items():
        book.report(worker, [(lease.id, 10)])
    book.remove(3)
    assert book.seconds_left == pytest.approx((10_000 - 30) / 20)


def test_reports_that_arrive_together_say_little_of_a_workers_rate(clock):
    book = LeaseBook(0, 10**9, [1], 20, clock)
    lease = book.grant(1, 1)
    clock.now += 0.1
    book.report(1, [(lease.id, 10)])
    clock.now += 0.0002
    book.report(1, [(lease.id, 10)])
    assert book.account(1).rate < 0.03 * 10 / 0.0002


def test_a_worker_without_work_always_gets_some(clock):
    book = LeaseBook(0, 10, [1, 2, 3], 1000, clock)
    for _ in range(10):
        lease = book.grant(2, 1)
        assert lease is not None and lease.steps >= 1
        book.report(2, [(lease.id, lease.steps)])
        if book.finished:
            break
    assert book.finished and book.grant(1, 1) is None


def test_nothing_to_do_is_finished_at_once(clock):
    book = LeaseBook(5, 0, [1], 1000, clock)
    assert book.finished and book.pool == 0 and book.grant(1, 1) is None


def test_what_a_worker_does_not_hold_is_refused(clock):
    book = LeaseBook(0, 1000, [1, 2], 100, clock)
    lease = book.grant(1, 1)
    for worker, report in (
        (2, [(lease.id, 1)]),  # another's
        (1, [(lease.id, lease.steps + 1)]),  # more than it holds
        (1, [(lease.id, -1)]),
        (1, [(99, 1)]),
        (1, [(0, 0)]),
    ):
        with pytest.raises(ProtocolError, match=f"Worker {worker} reports .* which it does not hold"):
            book.report(worker, report)
        assert book.done == 0
    book.report(1, [(lease.id, lease.steps)])
    with pytest.raises(ProtocolError, match="does not hold"):
        book.report(1, [(lease.id, 1)])  # used up
    assert book.done == lease.steps


def test_a_lease_is_what_was_granted_whatever_is_reported(clock):
    book = LeaseBook(0, 1000, [1], 100, clock)
    lease = book.grant(1, 1)
    with pytest.raises(FrozenInstanceError):
        lease.steps += 50
    book.report(1, [(lease.id, 10)])
    assert (lease.start, lease.steps) == (0, 100)
    with pytest.raises(ProtocolError):
        book.report(1, [(lease.id, lease.steps)])


def test_what_is_not_made_when_the_run_ends_early_is_nobodys():
    book = LeaseBook(100, 1_000, [1, 2], 50, lambda: 0.0)
    first, second = book.grant(1, 1), book.grant(2, 1)
    book.end()
    assert book.pool == 0 and not book.finished and book.grant(1, 1) is None
    book.report(1, [(first.id, 20)])
    book.give_up(1)
    assert book.workers == (2, 1) and book.pool == 0 and not book.finished
    assert book.remove(2) == second.steps
    assert book.finished and book.done == 20 and book.grant(1, 1) is None


def test_what_is_given_back_is_free_again_and_other_leases_stay():
    book = LeaseBook(0, 1_000, [1], 50, lambda: 0.0)
    first = book.grant(1, 1)
    book.report(1, [(first.id, first.steps - 10)])
    second = book.grant(1, 1)
    pool = book.pool
    with pytest.raises(ProtocolError, match=f"gives back lease {second.id + 1}, which it does not hold"):
        book.give_back(1, [first.id, second.id + 1])
    book.give_back(1, [first.id])
    assert book.pool == pool + 10 and list(book.account(1).leases) == [second.id]
    assert book.grant(1, 1) is None
    book.report(1, [(second.id, second.steps)])
    assert book.grant(1, 1).start == first.steps - 10
    book.end()
    book.give_back(1, book.account(1).leases)
    assert book.finished


def test_time_in_which_nobody_was_heard_makes_nobody_slow():
    now = [0.0]
    book = LeaseBook(0, 10**6, [1], 50, lambda: now[0])
    lease = book.grant(1, 1)
    now[0] = 11.0
    book.excuse(10.0)
    book.report(1, [(lease.id, 50)])
    assert book.account(1).rate == pytest.approx(50.0)


def test_a_run_begins_with_one_worker_and_others_join_as_steps_are_made(clock):
    book = LeaseBook(0, 1_000_000, [1, 2, 3], 100, clock, ramp_seconds=1.0)
    only = book.grant(1, 1)
    assert only is not None
    assert book.grant(2, 1) is None
    most_at_work = 1
    while book.is_ramping:
        clock.now += 1e-4
        for worker in (1, 2, 3):
            leases = list(book.account(worker).leases.values())
            book.report(worker, [(lease.id, min(lease.steps, 50)) for lease in leases[:1]])
            book.grant(worker, 1)
        held = [book.account(worker).outstanding for worker in (1, 2, 3)]
        at_work = sum(steps > 0 for steps in held)
        assert at_work >= 1
        if at_work > most_at_work and book.is_ramping:
            assert sum(held) <= 0.05 * book.done
            most_at_work = at_work
    assert 6_000 <= book.done < 20_000  # 5 % of it are a first lease for each
    assert all(book.grant(worker, 1) or book.account(worker).outstanding for worker in (1, 2, 3))


def test_a_run_that_goes_on_begins_with_all_workers(clock):
    book = LeaseBook(1_000_000, 1_000_000, [1, 2, 3], 100, clock, ramp_seconds=1.0)
    assert all(book.grant(worker, 1) for worker in (1, 2, 3))


def test_nobody_waits_long_for_the_first_worker(clock):
    book = LeaseBook(0, 2000, [1, 2], 100, clock, ramp_seconds=1.0)
    assert book.grant(1, 1).steps == 400
    clock.now += 0.1
    book.report(1, [(1, 400)])
    assert book.grant(1, 1).steps >= 200
    clock.now += 0.15
    book.report(1, [(2, 200)])  # 2,400 by the end of the time, and 5 % of that are more than a first lease
    assert book.grant(2, 1) is None
    clock.now += 0.75
    assert book.grant(2, 1) is not None


def test_where_steps_take_long_all_begin_soon(clock):
    book = LeaseBook(0, 1000, [1, 2], 100, clock, ramp_seconds=1.0)
    assert book.grant(1, 1) is not None
    clock.now += 0.19
    assert book.grant(2, 1) is None
    clock.now += 0.02
    book.report(1, [(1, 21)])
    assert book.grant(2, 1) is not None


def test_another_begins_where_the_first_worker_is_lost(clock):
    book = LeaseBook(0, 1000, [1, 2], 100, clock, ramp_seconds=1.0)
    first = book.grant(1, 1)
    assert book.grant(2, 1) is None
    book.remove(1)
    assert book.grant(2, 1).start == first.start


def test_leases_do_not_dwindle_where_an_answer_takes_longer_than_a_lease_lasts(clock):
    pace, answer, steps = 1000, 0.4, 100_000
    book = LeaseBook(0, steps, [1], 100, clock)
    granted = []
    for _ in range(30):
        lease = book.grant(1, 1)
        granted.append(lease.steps)
        clock.now += answer + lease.steps / pace
        book.report(1, [(lease.id, lease.steps)], lease.steps / pace)
    # A quarter of a second's work each, whatever the worker waited.
    assert granted[1:] == [pace // 4] * 29


def play_episodes(rng, clock, episodes, length, rates, quantum):
    """Let workers play episodes, of `length(step)` steps, until so many have ended; return how many did."""
    tally = Tally(total_steps=10**12)
    reporter = Reporter(tally, episodes=episodes)
    reporter.begin(0.0, ())
    book = LeaseBook(0, 10**12, list(rates), 20_000, clock, 0.5, reporter.steps_foreseen)
    held = {worker: [] for worker in rates}
    rest = dict.fromkeys(rates, 0)  # steps of the episode that is under way
    for turn in range(1_000_000):
        reporter.end_if_enough()
        if reporter.wants_end:
            break
        worker = list(rates)[turn % len(rates)]
        foreseen = reporter.steps_foreseen()
        lease = book.grant(worker, quantum)
        if lease is not None:
            held[worker].append((lease.id, lease.steps))
            assert sum(steps for leases in held.values() for _, steps in leases) < foreseen + quantum
        clock.now += float(rng.exponential(0.002))
        if held[worker]:
            lease_id, steps = held[worker].pop(0)
            made = min(steps, max(1, int(rates[worker] * 0.01)))
            if made < steps:
                held[worker].insert(0, (lease_id, steps - made))
            book.report(worker, [(lease_id, made)], made / rates[worker])
            ended, rest[worker] = divmod(rest[worker] + made, length(book.done))
            tally.steps, tally.episodes = book.done, tally.episodes + ended
            tally.lengths += ended * length(book.done)
        if reporter.is_at_step:
            reporter.report(clock.now, ())
    return tally.episodes


@pytest.mark.parametrize("quantum", [1, 16])
@pytest.mark.parametrize("rates", [{1: 1e7}, {1: 1e7, 2: 1e7, 3: 1e6}, {1: 300.0, 2: 1_000.0}])
@pytest.mark.parametrize("episodes", [1, 1_000])
def test_workers_hold_no_more_steps_than_the_missing_episodes_take(clock, episodes, rates, quantum):
    played = play_episodes(np.random.default_rng(1), clock, episodes, lambda step: 20, rates, quantum)
    assert episodes <= played <= episodes + len(rates)


def test_episodes_that_get_shorter_end_few_too_many(clock):
    def shorter(step):
        return max(10, 100 - step // 1_000)

    played = play_episodes(np.random.default_rng(1), clock, 5_000, shorter, {1: 1e7, 2: 1e7}, 1)
    assert 5_000 <= played <= 6_000


def test_before_an_episode_has_ended_as_many_steps_are_given_out_as_episodes_are_missing(clock):
    tally = Tally(total_steps=10**12)
    reporter = Reporter(tally, episodes=1_000)
    book = LeaseBook(0, 10**12, [1, 2], 20_000, clock, 0.0, reporter.steps_foreseen)
    assert book.left == 1_000
    assert 0 < book.grant(1, 1).steps + book.grant(2, 1).steps <= 1_000
    tally.episodes = 1_000.0
    assert book.left == 0 and book.grant(2, 1) is None
