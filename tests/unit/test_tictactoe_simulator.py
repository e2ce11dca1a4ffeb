"""The compiled game against a plain Python game over raw boards."""

from collections import Counter
from fractions import Fraction

import numba
import numpy as np
import pytest
import tictactoe_brute_force as brute

from dist_classicrl.environments.tictactoe.rules import rules
from dist_classicrl.environments.tictactoe.simulator import game_data, reset, step
from dist_classicrl.errors import SettingsError

# The machine has up to 8 empty squares to choose from and 840 is a multiple of 1 to 8, so the middles of
# 840 equal parts of the range of 32 bits give every reply its exact share. Openings are 1, 9 or 18.
STRATA_OF_STEP, STRATA_OF_RESET = 840, 18
MEMORY = np.zeros(0, dtype=np.int64)


@pytest.fixture(params=["first", "second", "both"])
def agent_plays(request):
    return request.param


def strata(n):
    return np.array([(2 * k + 1) * 2**32 // (2 * n) for k in range(n)], dtype=np.uint64)


@numba.njit
def every_step(data, memory, n_states, randoms):
    states = np.empty((n_states * 9, randoms.size), dtype=np.int64)
    rewards = np.empty((n_states * 9, randoms.size))
    terminated = np.empty((n_states * 9, randoms.size), dtype=np.bool_)
    for pair in range(n_states * 9):
        for k in range(randoms.size):
            turn = step(data, memory, pair // 9, pair % 9, randoms[k])
            states[pair, k], rewards[pair, k], terminated[pair, k] = turn
    return states, rewards, terminated


@pytest.mark.slow
def test_every_turn_has_the_exact_probabilities(agent_plays):
    boards = rules(agent_plays).boards
    expected = brute.expected_transitions(boards)
    turns = every_step(game_data(agent_plays), MEMORY, len(boards), strata(STRATA_OF_STEP))
    for pair, columns in enumerate(zip(*(array.tolist() for array in turns), strict=True)):
        state, action = divmod(pair, 9)
        counts = Counter(zip(*columns, strict=True))
        shares = {cell: Fraction(count, STRATA_OF_STEP) for cell, count in counts.items()}
        an_illegal_move_loses = {(state, -1, True): Fraction(1)}
        assert shares == expected.get((state, action), an_illegal_move_loses)


def test_games_start_with_the_exact_probabilities(agent_plays):
    data = game_data(agent_plays)
    counts = Counter(int(reset(data, MEMORY, random)) for random in strata(STRATA_OF_RESET))
    shares = {state: Fraction(count, STRATA_OF_RESET) for state, count in counts.items()}
    assert shares == brute.expected_starts(rules(agent_plays).boards, agent_plays)


@pytest.mark.slow
def test_the_smallest_and_the_largest_random_bits_choose_the_first_and_the_last_reply():
    tables = rules("both")
    least, most = np.uint64(0), np.uint64(2**64 - 1)
    assert reset(game_data("both"), MEMORY, least) == tables.starts[0]
    assert reset(game_data("both"), MEMORY, most) == tables.starts[-1]
    first, last = every_step(game_data("both"), MEMORY, 627, np.array([least, most]))[0].T
    ends, slots = tables.slot_ptr, tables.slots
    own = np.repeat(np.arange(627), 9)
    assert np.array_equal(first, np.where(slots[ends[:-1]] < 0, own, slots[ends[:-1]]))
    assert np.array_equal(last, np.where(slots[ends[1:] - 1] < 0, own, slots[ends[1:] - 1]))


def test_unknown_role_is_refused():
    with pytest.raises(SettingsError, match="agent_plays='third'"):
        game_data("third")
