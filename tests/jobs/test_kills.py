"""Jobs that are killed while they write checkpoints as fast as they can; see also kill_many.py."""

from random import Random

import pytest
from killing import Kills, kill_and_finish, uninterrupted

ROUNDS_STEPS = 8_000_000


@pytest.fixture(scope="module")
def table_of_rounds():
    """The table of the reproducible mode, on whatever ranks."""
    return uninterrupted("rounds", ROUNDS_STEPS)


def test_killed_alone_it_ends_as_if_it_had_not_been(tmp_path):
    steps, seen = 60_000_000, Kills()
    kill_and_finish("alone", steps, tmp_path, 2, Random(1), seen)
    assert seen.kills == 2 and seen.finished == 1
    assert seen.tables == {uninterrupted("alone", steps)}


@pytest.mark.parametrize("way, kills", [("rounds", 2), ("rounds-3", 1)])
def test_killed_in_the_reproducible_mode_it_ends_as_if_it_had_not_been(tmp_path, table_of_rounds, way, kills):
    seen = Kills()
    kill_and_finish(way, ROUNDS_STEPS, tmp_path, kills, Random(2), seen)
    assert seen.kills == kills and seen.finished == 1
    assert seen.tables == {table_of_rounds}


def test_killed_on_three_ranks_it_finds_the_right_answer(tmp_path):
    seen = Kills()
    kill_and_finish("async-3", 30_000_000, tmp_path, 1, Random(3), seen)
    assert seen.kills == 1 and seen.finished == 1
