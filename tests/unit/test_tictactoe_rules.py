"""The rules' tables and the finite model against a plain Python game over raw boards."""

import subprocess
import sys

import numpy as np
import pytest
import tictactoe_brute_force as brute

from dist_classicrl.environments.tictactoe.model import model
from dist_classicrl.environments.tictactoe.rules import board_tables, rules
from dist_classicrl.errors import SettingsError

N_STATES = {"first": 338, "second": 289, "both": 627}


@pytest.fixture(params=N_STATES)
def agent_plays(request):
    return request.param


@pytest.mark.slow
def test_states_are_the_reachable_positions_up_to_symmetry(agent_plays):
    reachable = {brute.key(board) for board in brute.agent_boards(agent_plays)}
    ours = [brute.key(brute.from_numbers(board)) for board in rules(agent_plays).boards]
    assert len(ours) == len(set(ours)) == N_STATES[agent_plays]
    assert set(ours) == reachable


def test_states_are_ordered_by_marks_and_code(agent_plays):
    boards = rules(agent_plays).boards
    codes = boards @ 3 ** np.arange(9)
    order = list(zip(np.count_nonzero(boards, axis=1).tolist(), codes.tolist(), strict=True))
    assert order == sorted(order)
    assert np.array_equal(board_tables().canonical[codes], codes)


def test_every_symmetry_leads_to_the_canonical_board():
    tables = board_tables()
    images = np.take_along_axis(tables.boards, tables.squares[tables.symmetry].astype(np.int64), axis=1)
    assert np.array_equal(images, tables.boards[tables.canonical])


def test_legal_actions_are_the_empty_squares(agent_plays):
    tables = rules(agent_plays)
    expected = [
        [square in brute.empty_squares(brute.from_numbers(board)) for square in range(9)]
        for board in tables.boards
    ]
    assert tables.legal.tolist() == expected


def test_tables_are_read_only():
    for array in (*rules("first"), *board_tables()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.slow
def test_model_has_the_exact_probabilities_of_every_pair(agent_plays):
    game = model(agent_plays)
    expected = brute.expected_transitions(rules(agent_plays).boards)
    assert (game.n_states, game.n_actions, game.max_episode_steps) == (N_STATES[agent_plays], 9, None)
    for state in range(game.n_states):
        for action in range(9):
            pair = state * 9 + action
            row = slice(game.outcome_ptr[pair], game.outcome_ptr[pair + 1])
            cells = list(
                zip(
                    game.outcome_next[row].tolist(),
                    game.outcome_reward[row].tolist(),
                    game.outcome_terminated[row].tolist(),
                    strict=True,
                )
            )
            truth = expected.get((state, action), {})
            assert game.action_mask[state, action] == bool(truth)
            assert len(cells) == len(set(cells))
            assert dict(zip(cells, game.outcome_prob[row], strict=True)) == pytest.approx(
                {cell: float(p) for cell, p in truth.items()}, abs=1e-15
            )


def test_model_starts_where_the_game_does(agent_plays):
    expected = np.zeros(N_STATES[agent_plays])
    for state, p in brute.expected_starts(rules(agent_plays).boards, agent_plays).items():
        expected[state] = p
    np.testing.assert_allclose(model(agent_plays).start_prob, expected, rtol=0, atol=1e-15)


@pytest.mark.slow
def test_optimal_values_are_those_of_perfect_play(agent_plays):
    game = model(agent_plays)
    truth = [float(brute.best_value(brute.from_numbers(board))) for board in rules(agent_plays).boards]
    solution = game.solve(1.0)
    np.testing.assert_allclose(solution.v, truth, rtol=0, atol=1e-9)
    np.testing.assert_allclose(game.policy_value(solution.policy, 1.0), truth, rtol=0, atol=1e-9)
    start = sum(p * brute.best_value(board) for board, p in brute.openings(agent_plays).items())
    assert game.start_value(solution.v) == pytest.approx(float(start), abs=1e-9)


def test_a_random_agents_values_are_those_of_random_play(agent_plays):
    game = model(agent_plays)
    uniform = game.action_mask / game.action_mask.sum(axis=1, keepdims=True)
    truth = [float(brute.random_value(brute.from_numbers(board))) for board in rules(agent_plays).boards]
    np.testing.assert_allclose(game.policy_value(uniform, 1.0), truth, rtol=0, atol=1e-9)


def test_an_agent_can_come_to_every_legal_pair(agent_plays):
    game = model(agent_plays)
    assert np.array_equal(game.reachable_pairs(), game.action_mask)


@pytest.mark.parametrize("make", [rules, model])
def test_unknown_role_is_refused(make):
    with pytest.raises(SettingsError, match="agent_plays='third'.*'first'.*'second'.*'both'"):
        make("third")


@pytest.mark.slow
def test_the_tables_need_neither_gymnasium_nor_numba():
    code = (
        "import sys, dist_classicrl.environments as e, dist_classicrl.environments.tictactoe.rules as r;"
        "r.rules('first'); print(sorted({'gymnasium', 'numba', 'mpi4py'} & set(sys.modules)));"
        "e.TicTacToeEnv; print('gymnasium' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert out.stdout.split("\n")[:2] == ["[]", "True"]
