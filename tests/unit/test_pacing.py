"""When workers push and ask: the parts that follow from numbers, on a clock that the test moves."""

from types import SimpleNamespace

import numpy as np
import pytest

from dist_classicrl.engines.server import pacing as module
from dist_classicrl.engines.server.pacing import MovementGauge, Pacer
from dist_classicrl.settings import Settings


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def settled(pacer, rate, load_per_step, push_seconds, rounds=60):
    """Let `pacer` run at a steady `rate` of steps per second until its interval no longer changes."""
    for _ in range(rounds):
        steps = pacer.interval
        pacer.learned(steps, steps / rate, steps / rate)
        pacer.pushed(load_per_step * steps, steps, push_seconds)
    return pacer.interval


def test_a_number_is_kept_to(clock):
    pacer = Pacer(Settings(sync_frequency=7, batch_size=32), 3, 1)
    assert pacer.interval == 224
    assert settled(pacer, 1e7, 1.0, 1e-3) == 224
    assert pacer.urgent  # who asks for short intervals must be answered as quickly


def test_calm_talk_takes_two_percent(clock):
    pacer = Pacer(Settings(), 3, 1)
    pacer.gauge.moving = False
    interval = settled(pacer, 1e6, 1e-3, 1e-3)
    assert 1e-3 / (1e-3 + interval / 1e6) == pytest.approx(0.02, rel=0.02)


def test_moving_values_are_pushed_when_n_k_a_reaches_four(clock):
    workers, load_per_step = 4, 1e-4
    pacer = Pacer(Settings(batch_size=1), workers, 1)
    interval = settled(pacer, 1e6, load_per_step, 1e-3)
    assert pacer.urgent
    assert workers * load_per_step * interval == pytest.approx(4.0, rel=0.02)


def test_moving_values_take_half_of_the_time_at_most(clock):
    pacer = Pacer(Settings(batch_size=1), 64, 1)
    interval = settled(pacer, 1e6, 1.0, 1e-3)
    assert 1e-3 / (1e-3 + interval / 1e6) == pytest.approx(0.5, rel=0.02)
    pacer.gauge.moving = False  # then talk is calm, whatever N k a
    assert not pacer.urgent
    interval = settled(pacer, 1e6, 1.0, 1e-3)
    assert 1e-3 / (1e-3 + interval / 1e6) == pytest.approx(0.02, rel=0.02)


def test_no_interval_is_longer_than_the_limit_and_none_is_nothing(clock):
    pacer = Pacer(Settings(), 2, 1)
    pacer.gauge.moving = False
    assert settled(pacer, 1e6, 0.0, 10.0) <= 0.1 * 1e6 + 32
    assert settled(Pacer(Settings(), 2, 1), 1e6, 1.0, 0.0) >= 1


@pytest.mark.parametrize(("quantum", "batch_size"), [(1, 32), (48, 32), (1000, 1)])
def test_intervals_are_whole_batches_or_whole_steps_of_the_environment(clock, quantum, batch_size):
    pacer = Pacer(Settings(batch_size=batch_size), 3, quantum)
    for rate in (1e3, 1e5, 1e7):
        assert settled(pacer, rate, 1e-3, 1e-4) % max(quantum, batch_size) == 0
        assert pacer.longest_call >= quantum


def test_refreshes_are_asked_for_by_what_they_cost(clock):
    pacer = Pacer(Settings(), 3, 1)
    pacer.gauge.moving = False
    assert pacer.wants_refresh
    pacer.refreshed(0.01)
    assert not pacer.wants_refresh
    clock.now += 0.49
    assert not pacer.wants_refresh  # 0.01 s may be spent every 0.5 s
    clock.now += 0.02
    assert pacer.wants_refresh
    pacer.refreshed(0.01)
    pacer.gauge.moving = True
    clock.now += 0.019
    assert not pacer.wants_refresh
    clock.now += 0.002
    assert pacer.wants_refresh  # every 0.02 s while values move


def test_the_gauge_sees_values_move_and_settle(clock):
    gauge = MovementGauge()
    base = np.ones(10_000)
    assert gauge.moving
    for _ in range(30):
        clock.now += 0.3
        base *= 1.2
        gauge.look(base)
        assert gauge.moving
    rng = np.random.default_rng(1)
    for _ in range(60):
        clock.now += 0.3
        gauge.look(base + 0.1 * rng.normal(size=base.size))
    assert not gauge.moving


def watch(clock, gauge, value, windows):
    """Let `gauge` watch a table of ``value(t)`` for `windows` windows, and return what it finds after each.

    A window is over when the gauge is a quarter older. `value` takes the gauge's age, relative to that when
    the watch began, and looks come often enough.
    """
    found = []
    first = clock.now - gauge._begin
    for _ in range(windows):
        end = 1.25 * (clock.now - gauge._begin)
        while clock.now - gauge._begin < end:
            clock.now += max(0.0065, 0.027 * (clock.now - gauge._begin))
            gauge.look(np.full(3, value((clock.now - gauge._begin) / first)))
        found.append(gauge.moving)
    return found


def growing(share):
    """Return a function of time that grows by `share` while the time grows by a quarter."""
    return lambda time: time ** (np.log(1.0 + share) / np.log(1.25))


def new_gauge(clock):
    gauge = MovementGauge()
    clock.now += 0.01
    return gauge


def test_values_move_from_three_percent_and_settled_ones_from_ten(clock):
    assert all(watch(clock, new_gauge(clock), growing(0.05), 60))
    assert not any(watch(clock, new_gauge(clock), growing(0.02), 60)[20:])
    for share, moves in ((0.05, False), (0.08, False), (0.15, True)):
        gauge = new_gauge(clock)
        assert not watch(clock, gauge, lambda time: 1.0, 20)[-1]
        assert watch(clock, gauge, growing(share), 30)[3:] == [moves] * 27
    # What has come to move is moving from three percent on again, until it stands.
    assert all(watch(clock, gauge, growing(0.05), 10))
    assert not watch(clock, gauge, lambda time: 1.0, 10)[-1]


def test_noise_of_single_looks_is_no_movement(clock):
    rng = np.random.default_rng(2)
    gauge = new_gauge(clock)
    assert not watch(clock, gauge, lambda time: 1.0, 20)[-1]
    # From look to look values differ by 7 % in the root mean square, and by over 10 % in every sixth pair.
    assert not any(watch(clock, gauge, lambda time: 1.0 + 0.05 * rng.normal(), 80))


def test_the_gauge_samples_large_tables(clock):
    gauge = MovementGauge()
    base = np.zeros(3 * 4096 + 5)
    base[::4] = 1.0  # these are looked at
    for _ in range(40):
        clock.now += 1.0
        gauge.look(base)
    assert not gauge.moving
    others = np.arange(base.size) % 4 != 0
    for _ in range(40):
        clock.now += 100.0
        base[others] += 100.0
        gauge.look(base)
        assert not gauge.moving
    base[~others] *= 3.0
    moved = False
    for _ in range(20):
        clock.now *= 1.05
        gauge.look(base)
        moved = moved or gauge.moving
    assert moved


def test_the_gauge_looks_at_empty_tables_too(clock):
    gauge = MovementGauge()
    for _ in range(40):
        clock.now += 1.0
        gauge.look(np.zeros(5, np.float32))
    assert not gauge.moving


def test_a_push_has_at_most_half_a_percent_of_the_run(clock):
    pacer = Pacer(Settings(), 3, 1, 2_000_000)
    pacer.gauge.moving = False
    assert settled(pacer, 1e6, 1e-3, 1e-3) == pytest.approx(10_000, abs=32)
    assert Pacer(Settings(), 3, 1, 20_000).interval == 128  # whole batches, from the first on
    assert Pacer(Settings(sync_frequency=100), 3, 1, 20_000).interval == 3_200  # a number is kept to


def test_a_push_that_waits_for_an_answer_has_at_most_a_tenth_of_a_second_of_work_or_half_a_percent(clock):
    short, long = Pacer(Settings(), 3, 1, 2_000_000), Pacer(Settings(), 3, 1, 10**9)
    for pacer in (short, long):
        settled(pacer, 1e6, 1e-3, 1e-3)
    assert short.longest_push == pytest.approx(100_000, abs=32)
    assert long.longest_push == pytest.approx(5_000_000, abs=32)
