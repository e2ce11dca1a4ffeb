"""Jobs that are killed while they write checkpoints as fast as they can; see also kill_many.py."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from killing import Kills, kill_and_finish, uninterrupted

STEPS = {"alone": 40_000_000, "rounds": 6_000_000, "async-3": 20_000_000, "rounds-3": 6_000_000}
KILLS = {"alone": 2, "rounds": 2, "async-3": 1, "rounds-3": 1}


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory):
    """All runs, two at a time: what was seen of each way to train, and the tables without kills."""

    def run(way):
        seen, folder = Kills(), tmp_path_factory.mktemp(way)
        kill_and_finish(way, STEPS[way], folder, KILLS[way], Random(way), seen)
        return seen

    with ThreadPoolExecutor(2) as pool:
        tables = {way: pool.submit(uninterrupted, way, STEPS[way]) for way in ("alone", "rounds")}
        yield {way: pool.submit(run, way) for way in STEPS}, tables


@pytest.mark.parametrize("way", STEPS)
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(all_runs, way):
    seen = all_runs[0][way].result()
    assert (seen.kills, seen.ended, seen.finished) == (KILLS[way], 0, 1)
    if way == "async-3":  # who learns what depends on time there; that the answer is right was checked
        return
    assert seen.tables == {all_runs[1]["alone" if way == "alone" else "rounds"].result()}
