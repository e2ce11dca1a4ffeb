"""Jobs that are killed while they write checkpoints as fast as they can; see also kill_many.py."""

from functools import cache
from random import Random

import pytest
from killing import Kills, kill_and_finish, uninterrupted

STEPS = {"alone": 40_000_000, "rounds": 6_000_000, "async-3": 20_000_000, "rounds-3": 6_000_000}
KILLS = {"alone": 2, "rounds": 1, "async-3": 1, "rounds-3": 1}

table_without_kills = cache(uninterrupted)


@pytest.mark.parametrize("way", STEPS)
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(way, tmp_path):
    seen = Kills()
    kill_and_finish(way, STEPS[way], tmp_path, KILLS[way], Random(way), seen)
    assert (seen.kills, seen.ended, seen.finished) == (KILLS[way], 0, 1)
    if way != "async-3":  # who learns what depends on time there; that the answer is right was checked
        alike = "alone" if way == "alone" else "rounds"
        assert seen.tables == {table_without_kills(alike, STEPS[way])}
