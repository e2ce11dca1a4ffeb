"""Who makes supersteps where ranks exchange messages: one rank, as long as it is the faster one."""

import pytest

from dist_classicrl.engines.supersteps.who_plays import WhoPlays
from dist_classicrl.learning.supersteps.share import STEPS_PER_WALKER


def told(who, orders):
    """Let orders be noted, of a rate, walkers at once, and seconds each; return who played each, and then."""
    alone = [who.is_alone]
    for rate, at_once, now in orders:
        before = who.is_alone
        assert who.note(rate, at_once * STEPS_PER_WALKER, now) is (who.is_alone is not before)
        alone.append(who.is_alone)
    return alone


def test_all_play_from_where_they_are_faster_on():
    who = WhoPlays(can_be_alone=True, walkers=1 << 14)
    early = [(20e6, 1, 0.0), (20e6, 500, 0.1), (20e6, 1023, 0.2)]
    assert told(who, early) == [True] * 4
    # The first order of all is a short one, and the second is slower than one rank was.
    assert told(who, [(20e6, 1024, 0.3), (1e6, 1030, 0.4), (10e6, 1040, 0.5)]) == [True, False, False, True]
    # They are tried again with twice as many walkers, and go on, whatever comes.
    assert told(who, [(20e6, 2000, 0.6), (20e6, 2048, 0.7)]) == [True, True, False]
    assert (
        told(who, [(1e6, 2050, 0.8), (30e6, 2060, 0.9), (1e6, 2070, 1.0), (1e6, 1 << 14, 99.0)])
        == [False] * 5
    )


def test_who_was_slower_with_all_walkers_is_tried_again_in_a_minute(caplog):
    who = WhoPlays(can_be_alone=True, walkers=64)  # fewer than would be waited for
    caplog.set_level("INFO")
    assert told(who, [(20e6, 64, 0.0), (1e6, 64, 0.1), (10e6, 64, 0.2)]) == [True, False, False, True]
    assert "One rank alone makes 20 M steps/s, and all together 10" in caplog.text
    assert told(who, [(20e6, 100, 30.0), (20e6, 100, 60.1)]) == [True, True, False]


@pytest.mark.parametrize("rate", [1.0, 1e9])
def test_where_one_has_not_all_rows_all_play(rate):
    who = WhoPlays(can_be_alone=False, walkers=64)
    assert told(who, [(rate, at_once, float(at_once)) for at_once in (1, 64, 100, 10_000)]) == [False] * 5
