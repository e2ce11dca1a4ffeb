"""The pocket cube: what is known of it, and a small part of it learned."""

from functools import cache

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.pocket_cube import (
    CORNERS,
    STATES,
    distances,
    key_of,
    pocket_cube,
    turn_names,
)
from dist_classicrl.environments.pocket_cube import reset as begin
from dist_classicrl.environments.pocket_cube import turned as turn
from dist_classicrl.errors import SettingsError

# Known since the 1980s, for instance from Jaap Scherphuis's pages on puzzles.
QUARTER = [1, 6, 27, 120, 534, 2256, 8969, 33058, 114149, 360508, 930588, 1350852, 782536, 90280, 276]
HALF = [1, 9, 54, 321, 1847, 9992, 50136, 227536, 870072, 1887748, 623800, 2644]


@cache
def all_distances(half_turns):
    return distances(pocket_cube(half_turns))


@pytest.mark.slow
@pytest.mark.parametrize(("half_turns", "known"), [(False, QUARTER), (True, HALF)])
def test_so_many_states_are_so_many_turns_away(half_turns, known):
    keys, turns = all_distances(half_turns)
    assert np.bincount(turns).tolist() == known and keys.size == STATES
    assert (np.diff(keys) > 0).all()


def test_each_turn_has_one_back_and_four_of_them_do_nothing():
    cube, names = pocket_cube(half_turns=True), turn_names(half_turns=True)
    rng = np.random.default_rng(0)
    for _ in range(50):
        key = begin(cube.tables, np.zeros(0, np.int64), np.uint64(rng.integers(2**63)))
        for side in "RUF":
            once, back, twice = (names.index(side + how) for how in ("", "'", "2"))
            assert turn(cube.tables, turn(cube.tables, key, once), back) == key
            two = turn(cube.tables, turn(cube.tables, key, once), once)
            assert two == turn(cube.tables, key, twice) and turn(cube.tables, two, twice) == key


def test_half_turns_are_wanted_or_not():
    with pytest.raises(SettingsError, match="half_turns must be True or False, got 'no'"):
        pocket_cube(half_turns="no")


@pytest.mark.slow
def test_it_begins_with_each_cube_but_the_solved_one():
    """The first 10,000 of the numbers that are drawn are as many keys, all of cubes that can be had."""
    cube = pocket_cube()
    found = {begin(cube.tables, np.zeros(0, np.int64), np.uint64(number)) for number in range(10_000)}
    assert len(found) == 10_000 and cube.tables.solved not in found
    assert found <= set(all_distances(False)[0].tolist())
    assert cube.tables.solved == key_of(np.arange(CORNERS), np.zeros(CORNERS, np.int64))


@pytest.mark.slow
def test_learning_comes_from_above_to_the_distances():
    """What is hoped for at first, 0, never gets worse than a state is."""
    cube = pocket_cube()
    agent = DistAsyncQLearning(seed=1, learning_rate=1.0, epsilon=1.0, discount_factor=1.0, dtype="float32")
    agent.train(cube, total_steps=3_000_000)
    keys, turns = all_distances(False)
    assert (agent.state_values(keys) >= -turns).all()
    assert agent.q_table.array[agent.visits.array > 0].max() == -1.0
    assert len(agent.q_table) > 1_000_000
