"""Hosts of different speeds: each makes as many steps as it can, and none keeps the others waiting."""

import host_jobs
import pytest

PAUSE = 0.01
SLOWER = 3.0
SECONDS = 5.0
RATE = 1.0 / PAUSE


def test_a_host_that_takes_three_times_as_long_makes_a_third_of_the_steps(three_hosts, tmp_path):
    steps = int(SECONDS * RATE * (4 + 2 / SLOWER))
    options = {"pause": PAUSE, "factors": {"h3": SLOWER}, "steps": steps}
    said = host_jobs.train(three_hosts, tmp_path, options, slots={"h1": 3, "h2": 2, "h3": 2})
    made = {line["rank"]: line["made"] for line in said}
    assert [line["host"] for line in said] == ["h1"] * 3 + ["h2"] * 2 + ["h3"] * 2
    assert made.pop(0) == 0
    # Sixteen environments are stepped in turn, and a share may be so many steps more or less.
    for rank, steps_of_rank in made.items():
        share = SECONDS * RATE / (SLOWER if rank in (5, 6) else 1.0)
        assert steps_of_rank == pytest.approx(share, abs=0.05 * share + 16), made
