"""Who holds the others up where all wait for the slowest."""

import logging

from dist_classicrl.engines.laggards import Laggards


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def windows(caplog, *each):
    """Return what is said of windows of 6 s, in which ranks make so many steps in so many seconds."""
    clock = Clock()
    laggards = Laggards(clock, lambda rank: f"node{rank}", "Divide them otherwise.")
    with caplog.at_level(logging.WARNING, "dist_classicrl"):
        for done in each:
            clock.seconds += 6.0
            for rank, (steps, seconds) in done.items():
                laggards.count(rank, steps, seconds)
            laggards.judge()
    return [record.getMessage() for record in caplog.records]


def test_a_rank_whose_steps_take_long_is_named_once(caplog):
    slow = {0: (100, 2.0), 1: (100, 5.8), 2: (100, 2.1)}
    (said,) = windows(caplog, slow, slow)
    assert said == (
        "Rank 1 on node1 holds the others up: it was busy for 97 % of the last 6.0 s, they for 34 % and "
        "waited for it otherwise. A step takes it 2.8 times as long as them: its core may be slower, or "
        "shared with other processes."
    )


def test_a_rank_with_more_steps_is_named_with_what_to_do(caplog):
    (said,) = windows(caplog, {0: (100, 2.0), 1: (100, 2.0), 2: (300, 5.9)})
    assert "Rank 2 on node2" in said
    assert said.endswith("It had 3.0 times as many steps to make as they. Divide them otherwise.")


def test_nobody_is_named_where_all_wait_for_messages_or_are_about_as_busy(caplog):
    assert (
        windows(caplog, {0: (100, 1.0), 1: (100, 3.0)}, {0: (100, 4.5), 1: (100, 5.9)}, {0: (9, 6.0)}) == []
    )


def test_before_the_window_has_passed_nobody_is_named(caplog):
    clock = Clock()
    laggards = Laggards(clock, str, "")
    clock.seconds = 4.9
    laggards.count(0, 1, 4.9)
    laggards.count(1, 1, 0.1)
    with caplog.at_level(logging.WARNING, "dist_classicrl"):
        laggards.judge()
    assert not caplog.records
