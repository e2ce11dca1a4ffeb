"""Who makes supersteps where ranks exchange messages: one rank, as long as it is the faster one."""

import pytest

from dist_classicrl.engines.supersteps.who_plays import WhoPlays
from dist_classicrl.learning.loops import STEPS_PER_WALKER


def told(who, *orders):
    """Let orders of 0.1 s be noted: rate, walkers at once, and when; return whether one is alone then."""
    alone = []
    for rate, at_once, now in orders:
        before = who.is_alone
        if who.note(int(0.1 * rate), 0.1, at_once * STEPS_PER_WALKER, now):
            who.begin()
            assert who.is_alone is not before
        alone.append(who.is_alone)
    return alone


def test_all_play_from_where_they_are_faster_on():
    who = WhoPlays(can_be_alone=True, walkers=1 << 14)
    assert who.is_alone
    assert told(who, (3e6, 1 << 14, 0.0)) == [True]  # the first order tells nothing
    assert told(who, (20e6, 500, 0.1), (20e6, 1023, 0.2)) == [True, True]
    # The second order of all is slower than one rank was.
    assert told(who, (20e6, 1024, 0.3), (30e6, 1030, 0.4), (10e6, 1040, 0.5)) == [False, False, True]
    # They are tried again with twice as many walkers, and go on, whatever comes.
    assert told(who, (3e6, 2000, 0.6), (20e6, 2000, 0.7), (20e6, 2048, 0.8)) == [True, True, False]
    later = [(1e6, 2050, 0.8), (30e6, 2060, 0.9), (1e6, 2070, 1.0), (1e6, 1 << 14, 99.0)]
    assert told(who, *later) == [False] * 4
    # Whoever is there then is judged anew.
    who.begin()
    assert told(who, (1e6, 1 << 14, 100.0), (1e6, 1 << 14, 100.1)) == [False, True]


def test_orders_that_are_cut_short_are_judged_together():
    who = WhoPlays(can_be_alone=True, walkers=64)
    told(who, (20e6, 64, 0.0), (20e6, 64, 0.1), (1e6, 64, 0.2))
    assert not who.is_alone
    # For a report an order may be a single superstep; of 0.1 s all are faster than one rank.
    slow = [who.note(64, 1e-3, 64 * STEPS_PER_WALKER, 0.3) for _ in range(50)]
    assert not any(slow) and not who.note(2_300_000, 0.06, 64 * STEPS_PER_WALKER, 0.4)
    assert not who.is_alone and told(who, (1e6, 64, 0.5)) == [False]


def test_who_was_slower_with_all_walkers_is_tried_again_in_a_minute(caplog):
    who = WhoPlays(can_be_alone=True, walkers=64)  # fewer than would be waited for
    caplog.set_level("INFO")
    assert told(who, (20e6, 64, 0.0), (20e6, 64, 0.1), (1e6, 64, 0.2), (10e6, 64, 0.3)) == [
        True,
        False,
        False,
        True,
    ]
    assert "One rank alone makes 20 M steps/s, and all together 10" in caplog.text
    assert told(who, (20e6, 100, 1.0), (20e6, 100, 30.0), (20e6, 100, 60.2)) == [True, True, False]


@pytest.mark.parametrize("rate", [10.0, 1e9])
def test_where_one_has_not_all_rows_all_play(rate):
    who = WhoPlays(can_be_alone=False, walkers=64)
    orders = [(rate, at_once, float(at_once)) for at_once in (1, 64, 100, 10_000)]
    assert not who.is_alone and told(who, *orders) == [False] * 4
