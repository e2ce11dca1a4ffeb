"""Jobs on three hosts, of which one dies, or is cut off for ten seconds: exact steps in each case."""

import cut_network
import pytest

KILLED = cut_network.Case(kill="h3", restarts=1, steps=12_000, grace=2.0)
# As long as ten seconds of silence count for nothing, the job waits; it has more to do than these seconds.
DOWN_SECONDS = 10.0
DOWN = cut_network.Case(cut="h3", seconds=DOWN_SECONDS, silence=30.0, steps=32_000, grace=2.0)

pytestmark = pytest.mark.usefixtures("possible", "survivable")


def test_a_job_starts_again_on_the_hosts_that_are_left_when_one_dies():
    seen = cut_network.one_run(KILLED)
    assert seen["restarts"] == 1
    assert seen["lost_workers"] == []


def test_a_job_goes_on_over_a_link_that_was_down_for_ten_seconds():
    seen = cut_network.one_run(DOWN)
    assert seen["restarts"] == 0
    assert seen["seconds"] > DOWN_SECONDS
    assert [event for event in seen["events"] if event["kind"] not in ("suspected", "cleared")] == []
