"""Jobs on three hosts, of which one dies, or is cut off for ten seconds: exact steps in each case."""

import cut_network
import pytest

# More steps than are made until something has happened, however late that is; then they hurry.
LONG = {"steps": 100_000, "share": 0.02, "hurries": True, "grace": 30.0}
KILLED = cut_network.Case(kill="h3", restarts=1, silence=60.0, **LONG)
# No silence of such a length counts for anything: the job waits.
DOWN_SECONDS = 10.0
DOWN = cut_network.Case(cut="h3", seconds=DOWN_SECONDS, silence=120.0, **LONG)

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
