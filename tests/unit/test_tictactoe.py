"""The Gymnasium environment against a plain Python game over raw boards."""

import functools
import math
import warnings
from collections import Counter
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
import tictactoe_brute_force as brute
from gymnasium.utils.env_checker import check_env

import dist_classicrl.environments
from dist_classicrl.environments import tiktaktoe_mod
from dist_classicrl.environments.tictactoe.env import TicTacToeEnv
from dist_classicrl.environments.tictactoe.rules import rules
from dist_classicrl.errors import IllegalActionError, SettingsError


@pytest.fixture(params=["first", "second", "both"])
def agent_plays(request):
    return request.param


class ScriptedAnswers:
    """A random generator whose `integers` follow a script, and then give each range's first number."""

    def __init__(self, script):
        self.script, self.ranges = list(script), []

    def integers(self, low, high=None):
        low, high = (0, low) if high is None else (low, high)
        if len(self.ranges) == len(self.script):
            self.script.append(0)
        answer = self.script[len(self.ranges)]
        self.ranges.append(int(high - low))
        return int(low) + answer


def every_result(env, script, play):
    """Call `play` for every way that the randomness after `script` can turn out.

    Yields the whole script, the probability of what came after the given one, and what `play` returned.
    """
    own = []
    while True:
        env.np_random = answers = ScriptedAnswers([*script, *own])
        result = play()
        own, ranges = answers.script[len(script) :], answers.ranges[len(script) :]
        yield answers.script, Fraction(1, math.prod(ranges)), result
        while own and own[-1] + 1 == ranges[len(own) - 1]:
            own.pop()
        if not own:
            return
        own[-1] += 1


def random_games(env, n_games, seed):
    """Play legal random actions; yield (state, action, result of the step) of every step."""
    choose = np.random.default_rng(seed)
    for game in range(n_games):
        state, info = env.reset(seed=seed if game == 0 else None)
        over = False
        while not over:
            action = int(choose.choice(np.flatnonzero(info["action_mask"])))
            result = env.step(action)
            yield state, action, result
            state, _, over, _, info = result


def test_gymnasiums_checker_finds_nothing(agent_plays, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("dist_classicrl/TicTacToe-v0", agent_plays=agent_plays).unwrapped)
        # Without an id the checker cannot make the other render modes, and says so.
        check_env(TicTacToeEnv(agent_plays), skip_render_check=True)
    assert capsys.readouterr().out.startswith("agent ")


@pytest.mark.parametrize(("agent_plays", "n_states"), [("first", 338), ("second", 289), ("both", 627)])
def test_spaces(agent_plays, n_states):
    env = TicTacToeEnv(agent_plays=agent_plays)
    assert env.observation_space == gymnasium.spaces.Discrete(n_states)
    assert env.action_space == gymnasium.spaces.Discrete(9)
    assert TicTacToeEnv().observation_space.n == 338


@pytest.mark.slow
def test_every_turn_has_the_exact_probabilities(agent_plays):
    env = TicTacToeEnv(agent_plays)
    expected = brute.expected_transitions(rules(agent_plays).boards)

    def play(actions):
        env.reset()
        return [env.step(action) for action in actions][-1]

    starts = Counter()
    way_to = {}  # for each state one (script, actions) that leads to it
    for script, p, (state, _) in every_result(env, [], env.reset):
        starts[state] += p
        way_to.setdefault(state, (script, []))
    assert starts == brute.expected_starts(rules(agent_plays).boards, agent_plays)

    todo, found = list(way_to), {}
    while todo:
        state = todo.pop()
        script, actions = way_to[state]
        for action in (action for action in range(9) if (state, action) in expected):
            cells = Counter()
            way = [*actions, action]
            for longer, p, result in every_result(env, script, functools.partial(play, way)):
                next_state, reward, terminated, truncated, _ = result
                assert not truncated
                cells[next_state, reward, terminated] += p
                if not terminated and next_state not in way_to:
                    way_to[next_state] = (longer, way)
                    todo.append(next_state)
            found[state, action] = dict(cells)
    assert found == expected


@pytest.mark.slow
def test_the_machine_and_the_openings_are_uniformly_random():
    """Chi-square of the frequencies under the environment's own generator."""
    env = TicTacToeEnv("both")
    expected = brute.expected_transitions(rules("both").boards)
    seen = {}
    starts = Counter()
    new_game = True
    for state, action, (next_state, reward, terminated, _, _) in random_games(env, 3000, seed=5):
        if new_game:
            starts[state] += 1
        new_game = terminated
        seen.setdefault((state, action), Counter())[next_state, reward, terminated] += 1
    tables = [(starts, brute.expected_starts(rules("both").boards, "both"))]
    tables += [(counts, expected[pair]) for pair, counts in seen.items()]
    statistic, degrees = 0.0, 0
    for counts, probabilities in tables:
        n = sum(counts.values())
        assert set(counts) <= set(probabilities)
        if n * min(probabilities.values()) >= 5:
            statistic += sum(
                (counts[c] - n * float(p)) ** 2 / (n * float(p)) for c, p in probabilities.items()
            )
            degrees += len(probabilities) - 1
    assert degrees > 100
    # A chi-square variable has mean `degrees` and variance 2 * degrees.
    assert abs(statistic - degrees) < 4 * np.sqrt(2 * degrees)


def test_an_action_changes_the_square_that_it_stands_for(agent_plays):
    env = TicTacToeEnv(agent_plays)
    canonical_boards = [brute.from_numbers(board) for board in rules(agent_plays).boards]
    turned = 0
    for game in range(60):
        choose = np.random.default_rng(game)
        state, info = env.reset(seed=game)
        over = False
        while not over:
            before = brute.from_numbers(env.board)
            sign = ".XO"[env.agent_mark]
            assert sign == brute.to_move(before)
            assert brute.key(before) == brute.key(canonical_boards[state])
            squares = [env.square_of(action) for action in range(9)]
            assert sorted(squares) == list(range(9))
            assert info["action_mask"].tolist() == [int(before[square] == ".") for square in squares]
            for action in np.flatnonzero(info["action_mask"]):
                seen = brute.place(canonical_boards[state], action, sign)
                assert brute.key(seen) == brute.key(brute.place(before, squares[action], sign))
            turned += squares != list(range(9))
            action = int(choose.choice(np.flatnonzero(info["action_mask"])))
            state, _, over, _, info = env.step(action)
            after = brute.from_numbers(env.board)
            changed = [square for square in range(9) if before[square] != after[square]]
            assert after[squares[action]] == sign
            assert [after[square] for square in changed if square != squares[action]] in (
                [["X" if sign == "O" else "O"]] if not over else [["X" if sign == "O" else "O"], []]
            )
    assert turned > 20


def test_a_finished_games_board_shows_its_result(agent_plays):
    env = TicTacToeEnv(agent_plays)
    rewards = set()
    for _, _, (_, reward, terminated, _, _) in random_games(env, 100, seed=1):
        board = brute.from_numbers(env.board)
        agent = ".XO"[env.agent_mark]
        machine = "X" if agent == "O" else "O"
        result = int(brute.has_line(board, agent)) - int(brute.has_line(board, machine))
        assert reward == result
        assert terminated == (result != 0 or not brute.empty_squares(board))
        rewards |= {reward} if terminated else set()
    assert rewards == {-1.0, 0.0, 1.0}


def test_the_last_observation_is_the_position_of_the_last_move(agent_plays):
    env = TicTacToeEnv(agent_plays)
    for state, action, (last, reward, terminated, _, info) in random_games(env, 30, seed=2):
        assert env.observation_space.contains(last)
        assert isinstance(last, int) and isinstance(reward, float)
        assert info["action_mask"].dtype == np.int8
        assert np.array_equal(info["action_mask"], rules(agent_plays).legal[last])
        if terminated:
            assert last == state
            with pytest.raises(gymnasium.error.ResetNeeded, match=r"reset\(\)"):
                env.step(action)


def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"reset\(\)"):
        TicTacToeEnv().step(0)


def test_an_illegal_move_loses():
    env = TicTacToeEnv()
    env.reset(seed=0)
    state, _, _, _, info = env.step(4)
    board = env.board
    taken = int(np.flatnonzero(info["action_mask"] == 0)[0])
    last, reward, terminated, truncated, info = env.step(taken)
    assert (last, reward, terminated, truncated) == (state, -1.0, True, False)
    assert np.array_equal(env.board, board)
    assert np.array_equal(info["action_mask"], rules("first").legal[state])
    env.reset()
    assert not env.board.any()


def test_an_illegal_move_raises_where_asked_and_the_game_goes_on():
    env = TicTacToeEnv(illegal_action="raise")
    env.reset(seed=0)
    state, _, _, _, info = env.step(4)
    board = env.board
    taken = int(np.flatnonzero(info["action_mask"] == 0)[0])
    allowed = np.flatnonzero(info["action_mask"]).tolist()
    with pytest.raises(IllegalActionError) as error:
        env.step(taken)
    for text in (f"Action {taken}", f"position {state}", str(allowed), "illegal_action='lose'"):
        assert text in str(error.value)
    assert np.array_equal(env.board, board)
    env.step(allowed[0])
    assert np.count_nonzero(env.board != board) >= 1


@pytest.mark.parametrize("action", [-1, 9, 2.0, "4", None, np.array([4])])
@pytest.mark.parametrize("illegal_action", ["lose", "raise"])
def test_what_is_no_action_raises(action, illegal_action):
    env = TicTacToeEnv(illegal_action=illegal_action)
    env.reset(seed=0)
    with pytest.raises(IllegalActionError, match="integer from 0 to 8"):
        env.step(action)
    with pytest.raises(IllegalActionError, match="integer from 0 to 8"):
        env.square_of(action)
    assert not env.board.any()


def test_numpy_integers_are_actions():
    env = TicTacToeEnv()
    env.reset(seed=0)
    square = env.square_of(4)
    env.step(np.int64(4))
    assert env.board.ravel()[square] == env.agent_mark


def test_a_seed_makes_the_games_reproducible():
    def games(seed):
        env = TicTacToeEnv("both")
        choose = np.random.default_rng(0)
        history = []
        for game in range(20):
            _, info = env.reset(seed=seed if game == 0 else None)
            over = False
            while not over:
                action = int(choose.choice(np.flatnonzero(info["action_mask"])))
                _, reward, over, _, info = env.step(action)
                history.append((env.board.tolist(), reward))
        return history

    assert games(7) == games(7)
    assert games(7) != games(8)


def test_board_is_a_copy():
    env = TicTacToeEnv()
    env.reset(seed=0)
    env.board[:] = 1
    assert not env.board.any()


def test_ansi_render_shows_the_board():
    env = TicTacToeEnv("second", render_mode="ansi")
    _, info = env.reset(seed=0)
    assert env.render().startswith("agent O, machine X\n")
    for _ in range(2):
        rows = [row.split(" ") for row in env.render().splitlines()[1:]]
        assert rows == np.array(list(".XO"))[env.board].tolist()
        info = env.step(int(np.argmax(info["action_mask"])))[-1]


def test_human_render_writes_every_position(capsys):
    env = TicTacToeEnv(render_mode="human")
    env.reset(seed=0)
    empty = "agent X, machine O\n. . .\n. . .\n. . .\n\n"
    assert capsys.readouterr().out == empty
    square = env.square_of(0)
    env.step(0)
    shown = capsys.readouterr().out
    assert shown.count("X") == 2 and shown.count("O") == 2
    assert shown.splitlines()[1 + square // 3].split(" ")[square % 3] == "X"


def test_render_without_a_mode_says_what_to_write():
    env = TicTacToeEnv()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"agent_plays": "third"}, "agent_plays='third'.*'both'"),
        ({"agent_plays": ["first"]}, "agent_plays=.'first'.*'both'"),
        ({"illegal_action": np.array(["lose", "raise"])}, "illegal_action=array.*'lose'.*'raise'"),
        ({"render_mode": np.array(["ansi", "human"])}, "render_mode=array.*'ansi'.*'human'"),
        ({"illegal_action": "ignore"}, "illegal_action='ignore'.*'lose'.*'raise'"),
        ({"render_mode": "rgb_array"}, "render_mode='rgb_array'.*'ansi'.*'human'"),
    ],
)
def test_unknown_settings_are_refused(setting, message):
    with pytest.raises(SettingsError, match=message):
        TicTacToeEnv(**setting)


def test_existing_import_paths():
    assert tiktaktoe_mod.TicTacToeEnv is TicTacToeEnv
    assert dist_classicrl.environments.TicTacToeEnv is TicTacToeEnv
    assert {"TabularMDP", "TicTacToeEnv"} <= set(dir(dist_classicrl.environments))
    with pytest.raises(AttributeError, match="no attribute 'TicTacToe'"):
        dist_classicrl.environments.TicTacToe  # noqa: B018
