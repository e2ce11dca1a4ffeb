"""Phi accrual: what the formula says, how it learns a peer's jitter, and what must not make it jumpy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_classicrl.membership.phi_accrual import Arrivals


def heard_at_intervals(intervals, expected=1.0, **arguments):
    """Return a peer's arrivals and when the last one was."""
    now = 50.0
    arrivals = Arrivals(expected, now=now, **arguments)
    for interval in intervals:
        now += interval
        arrivals.heard(now)
    return arrivals, now


def suspected_after(arrivals, now, threshold=8.0):
    """Return the silence at which suspicion begins, by bisection."""
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        if arrivals.is_suspect(now + middle, threshold):
            high = middle
        else:
            low = middle
    return high


def digits_of_tail(z):
    """-log10 of the chance of more than z, by numerical integration of the normal density."""
    x = np.linspace(0.0, 12.0 / max(z, 1.0) + 6.0, 200_001)
    density = np.exp(-0.5 * x * x - x * z) / math.sqrt(2 * math.pi)  # times exp(-z*z/2), added below
    return -math.log10((density[1:] + density[:-1]).sum() * 0.5 * x[1]) + 0.5 * z * z / math.log(10)


@pytest.mark.parametrize("z", [0.0, 0.5, 2.0, 5.6, 12.0, 29.9, 30.0, 30.1, 37.0, 44.0, 100.0])
def test_phi_is_the_logarithm_of_the_normal_tail(z):
    # Before there are intervals: mean 1, deviation 0.25.
    arrivals = Arrivals(1.0, now=0.0)
    assert arrivals.phi(1.0 + 0.25 * z) == pytest.approx(digits_of_tail(z), rel=2e-4)


def test_the_estimate_is_that_of_the_latest_intervals():
    intervals = np.random.default_rng(1).normal(3.0, 0.7, 500).clip(1.0)
    arrivals, now = heard_at_intervals(intervals, window=64)
    mean, deviation = intervals[-64:].mean(), intervals[-64:].std()
    assert suspected_after(arrivals, now, 2.0) == pytest.approx(mean + 2.3263 * deviation, rel=1e-4)
    # 1 of 100 intervals is longer than the silence at which phi is 2.
    assert 10 ** -arrivals.phi(now + mean + 2.3263 * deviation) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.slow
@given(
    st.lists(st.floats(0.0, 30.0), max_size=40),
    st.floats(1e-3, 100.0),
    st.lists(st.floats(0.0, 1e9), min_size=2, max_size=20),
)
@settings(deadline=None)
def test_suspicion_never_falls_while_a_peer_is_silent(intervals, expected, silences):
    arrivals, now = heard_at_intervals(intervals, expected)
    levels = [arrivals.phi(now + silence) for silence in sorted(silences)]
    assert levels == sorted(levels)
    assert all(math.isfinite(level) and level >= 0.0 for level in levels)


def test_a_sign_of_life_ends_suspicion_and_silence():
    arrivals, now = heard_at_intervals([1.0] * 5)
    assert arrivals.is_suspect(now + 20.0) and arrivals.silence(now + 20.0) == 20.0
    arrivals.heard(now + 20.0)
    assert arrivals.silence(now + 20.0) == 0.0 and arrivals.phi(now + 20.0) < 0.5


def test_jitter_makes_it_patient_and_its_end_impatient_again():
    rng = np.random.default_rng(2)
    steady, now = heard_at_intervals([1.0] * 200)
    assert 2.3 < suspected_after(steady, now) < 2.5
    jittery, now = heard_at_intervals(rng.exponential(4.0, 200))
    patience = suspected_after(jittery, now)
    assert 20.0 < patience < 40.0
    for _ in range(200):
        now += 1.0
        jittery.heard(now)
    assert 2.3 < suspected_after(jittery, now) < 2.5


@pytest.mark.parametrize("pause", [1e-9, 1e-4, 1e-3, 0.1])
def test_pushes_in_quick_succession_do_not_make_it_jumpy(pause):
    arrivals, now = heard_at_intervals([pause] * 30_000)
    assert suspected_after(arrivals, now) > 2.3


def test_a_burst_does_not_make_it_forget_the_jitter():
    slow = np.random.default_rng(3).exponential(5.0, 100)
    arrivals, now = heard_at_intervals(slow)
    patience = suspected_after(arrivals, now)
    for _ in range(10_000):  # ten expected intervals
        now += 1e-3
        arrivals.heard(now)
    assert suspected_after(arrivals, now) > 0.75 * patience


def test_a_pause_between_bursts_counts():
    bursts, now = heard_at_intervals(([0.01] * 30 + [2.5] + [0.01] * 30) * 100)
    steady, end = heard_at_intervals([0.01] * 61 * 100)
    assert suspected_after(bursts, now) > suspected_after(steady, end) + 0.5


def test_the_first_interval_alone_decides_nothing():
    for first in (1e-3, 1.0, 3.0):
        arrivals, now = heard_at_intervals([first])
        assert 2.3 < suspected_after(arrivals, now) < 10.0


def test_the_expected_interval_sets_the_scale():
    for expected in (1e-3, 30.0, 3600.0):
        arrivals, now = heard_at_intervals([expected] * 20, expected)
        assert 2.3 * expected < suspected_after(arrivals, now) < 2.5 * expected


def test_time_in_which_nobody_listened_is_not_silence():
    arrivals, now = heard_at_intervals([1.0] * 10)
    arrivals.excuse(60.0)
    assert arrivals.silence(now + 61.0) == 1.0 and not arrivals.is_suspect(now + 61.0)
    assert arrivals.is_suspect(now + 64.0)
    arrivals.heard(now + 61.0)
    assert suspected_after(arrivals, now + 61.0) < 2.5  # the minute was no jitter of the peer's


def test_more_excused_than_was_silent_is_forgotten_with_the_next_sign_of_life():
    arrivals, now = heard_at_intervals([1.0] * 10)
    arrivals.excuse(60.0)
    assert arrivals.silence(now + 2.0) == 0.0
    arrivals.heard(now + 2.0)
    assert arrivals.silence(now + 4.0) == 2.0


def test_of_a_long_past_only_the_window_is_kept():
    arrivals, _ = heard_at_intervals([1.0] * 5000, window=7)
    assert len(arrivals._intervals) == 7
