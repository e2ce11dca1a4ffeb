"""`evaluate`: episodes with their error, and the exact value where the model is known."""

import json
import math

import gymnasium
import numpy as np
import pytest
from learned_runs import agent_for, make_run, run_command

from dist_classicrl.agent.agent import state_of
from dist_classicrl.environments import TabularMDP, TicTacToeEnv, named
from dist_classicrl.environments.tictactoe import model as tictactoe_model
from dist_classicrl.errors import SettingsError
from dist_classicrl.evaluation.assessment import Assessment, assess
from dist_classicrl.evaluation.episodes import EvaluationResult
from dist_classicrl.evaluation.exact import ExactValue, exact_value, model_of

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")


@pytest.mark.slow
def test_the_best_policy_has_no_gap_and_another_its_own_value(tmp_path, capsys):
    optimal = LAKE.solve(0.99)
    best = make_run(tmp_path / "best", "FrozenLake-v1", optimal.q)
    data = json.loads(run_command(capsys, "evaluate", best, "--episodes", "4000", "--seed", "3", "--json")[1])
    assert data["environment"] == "FrozenLake-v1" and data["steps"] == 1_234_567
    assert data["episodes"] == 4000
    assert data["exact"]["optimum"] == pytest.approx(LAKE.start_value(optimal.v), abs=1e-9)
    assert data["exact"]["gap"] == pytest.approx(0.0, abs=1e-9)
    rate = data["mean_return"]
    assert 0.7 < rate < 0.78
    assert data["standard_error"] == pytest.approx(math.sqrt(rate * (1 - rate) / 3999), rel=1e-9)
    assert (data["min_return"], data["max_return"], data["max_length"]) == (0.0, 1.0, 100)
    played = agent_for("FrozenLake-v1", optimal.q).evaluate("FrozenLake-v1", 4000, 3)
    assert (rate, data["mean_length"]) == (played.mean_return, played.mean_length)
    always_left = make_run(tmp_path / "left", "FrozenLake-v1", np.tile([1.0, 0, 0, 0], (16, 1)))
    _, out, _ = run_command(capsys, "evaluate", always_left, "--episodes", "50")
    assert "exact value, discounted by 0.99  0\n" in out and "(100.00%)" in out
    assert "mean return                      0.0000 ± 0.0000" in out
    _, out, _ = run_command(capsys, "evaluate", always_left, "--episodes", "50", "--no-exact")
    assert "mean return  0.0000 ± 0.0000" in out and "exact" not in out


def test_ties_are_broken_at_random_in_the_exact_value_as_in_episodes():
    uniform = LAKE.policy_value(np.full((16, 4), 0.25), 0.99)
    exact = exact_value(LAKE, np.zeros((20, 4)), 0.99)
    assert exact.value == pytest.approx(LAKE.start_value(uniform), abs=1e-12)
    assert exact.gap == exact.optimum - exact.value > 0.5
    assert exact.relative_gap == exact.gap / exact.optimum
    assert exact_value(TabularMDP.garnet(5, 2, 1, seed=1, terminal_states=0), np.zeros((5, 2)), 0.0)
    with pytest.raises(SettingsError, match="16 states and 4 actions, the table only 16 and 3"):
        exact_value(LAKE, np.zeros((16, 3)), 0.99)


@pytest.mark.slow
@pytest.mark.parametrize("plays", ["first", "second", "both"])
def test_the_game_has_an_exact_value_in_which_illegal_moves_play_no_part(plays):
    model = tictactoe_model.model(plays)
    values = np.where(model.legal_pairs(), model.solve(0.99).q, 100.0)
    env = TicTacToeEnv(agent_plays=plays)
    found = assess(state_of(agent_for(env, values)), env, 2000, 1)
    assert found.exact.gap == pytest.approx(0.0, abs=1e-9)
    assert found.exact.optimum == pytest.approx(model.start_value(model.solve(0.99).v))
    # Every game of a policy that is optimal here ends soon, so discounting takes little.
    assert found.exact.value <= found.episodes.mean_return + 4 * found.episodes.standard_error
    assert model_of(env, use_action_mask=False) is None


@pytest.mark.slow
def test_without_a_model_there_are_episodes_alone(tmp_path, capsys):
    run = make_run(tmp_path / "run", "Blackjack-v1", np.tile([1.0, 0.0], (704, 1)))
    _, out, _ = run_command(capsys, "evaluate", run, "--episodes", "40")
    assert "mean length  1.0" in out and "exact" not in out
    data = json.loads(run_command(capsys, "evaluate", run, "--episodes", "1", "--json")[1])
    assert data["exact"] is None and data["standard_error"] is None


def test_the_environment_has_to_be_known(tmp_path, capsys):
    agent = agent_for("FrozenLake-v1", LAKE.solve(0.99).q)
    path = str(agent.save_model(tmp_path / "model.npz"))
    status, _, err = run_command(capsys, "evaluate", path)
    assert status == 2 and "--env FrozenLake-v1" in err
    words = ("evaluate", path, "--episodes", "20", "--json")
    named = json.loads(run_command(capsys, *words, "--env", "FrozenLake-v1")[1])
    sure = run_command(capsys, *words, "--env", "FrozenLake-v1", "--env-arg", "is_slippery=False")[1]
    assert named["exact"]["optimum"] < 0.6 < json.loads(sure)["exact"]["optimum"]
    assert run_command(capsys, *words, "--env", "Taxi-v4")[0] == 2
    assert run_command(capsys, "evaluate", str(tmp_path / "nothing"))[0] == 2
    assert run_command(capsys, *words, "--episodes", "0")[0] == 2


def test_a_wrapper_that_is_not_known_has_no_model():
    class Unknown(gymnasium.Wrapper):
        pass

    assert model_of(lambda: Unknown(gymnasium.make("FrozenLake-v1"))) is None
    assert model_of("FrozenLake-v1") == LAKE


def test_the_standard_error_is_that_of_the_mean():
    result = EvaluationResult(np.array([1.0, 2.0, 6.0]), np.ones(3, int))
    assert result.standard_error == pytest.approx(math.sqrt(7.0 / 3.0))
    assert math.isnan(EvaluationResult(np.ones(1), np.ones(1, int)).standard_error)


# Hints


class Corridor(gymnasium.Env):
    """Goes on for ever; each step costs 1, or nothing."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, cost=1.0):
        self.cost = cost

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, -self.cost, False, False, {}


@pytest.mark.parametrize("cost, said", [(1.0, "-7"), (0.0, "0")])
def test_a_policy_that_always_runs_into_the_limit_gets_a_hint(tmp_path, capsys, monkeypatch, cost, said):
    monkeypatch.setitem(named.BUILT_IN, "corridor", (f"{__name__}:Corridor", {}))
    monkeypatch.setattr(named, "_function", lambda path: limited)

    def limited(cost=cost):
        return gymnasium.wrappers.TimeLimit(Corridor(cost), 7)

    run = make_run(tmp_path / "run", "corridor")
    _, out, _ = run_command(capsys, "evaluate", run, "--episodes", "5")
    assert (
        f"Hint: every return is {said}, and every episode was cut off after 7 steps" in out
        and "train for more steps" in out
    )
    hint = json.loads(run_command(capsys, "evaluate", run, "--episodes", "5", "--json")[1])["hint"]
    assert hint.startswith(f"every return is {said}, and")


def test_only_returns_that_are_all_alike_get_a_hint(tmp_path, capsys):
    lost = np.tile([1.0, 0.0, 0.0, 0.0], (16, 1))  # against the wall for ever
    sure = {"is_slippery": False}
    run = make_run(tmp_path / "wall", "FrozenLake-v1", lost, arguments=sure)
    assert (
        "every return is 0, and every episode was cut off after 100 steps"
        in run_command(capsys, "evaluate", run)[1]
    )
    holes = make_run(tmp_path / "holes", "FrozenLake-v1", np.tile([0.0, 0.0, 1.0, 1.0], (16, 1)))
    assert "Hint" not in run_command(capsys, "evaluate", holes, "--no-exact")[1]
    best = make_run(tmp_path / "best", "FrozenLake-v1", LAKE.solve(0.99).q)
    assert "Hint" not in run_command(capsys, "evaluate", best)[1]


def test_the_best_policy_gets_no_hint_whatever_it_collects():
    # Nothing is to be had, and no end to be reached.
    model = TabularMDP.from_arrays(np.ones((1, 1, 1)), np.zeros((1, 1)), [1.0], max_episode_steps=5)
    found = assess(state_of(agent_for(model)), model, 10, 1)
    assert found.episodes.hint is not None and found.hint is None


@pytest.mark.parametrize("value, optimum", [(-3e-17, 0.0), (1.0 + 2.0**-52, 1.0), (-1e6 - 1e-4, -1e6)])
def test_a_gap_that_is_rounding_is_none(value, optimum):
    exact = ExactValue(1.0, value, optimum)
    lost = EvaluationResult(np.zeros(2), np.full(2, 7), 2)
    assert Assessment(lost, exact).hint is None
    assert Assessment(lost, exact).to_rows()[-1] == ["gap", "0"]
    assert Assessment(lost, ExactValue(1.0, optimum - 1.0, optimum)).hint is not None


def test_rewards_that_cancel_are_not_called_none():
    """The hint is of returns: each may be the sum of rewards and costs."""
    ended, cut_off = (EvaluationResult(np.full(2, -0.0), np.full(2, 7), number) for number in (0, 2))
    assert ended.hint.startswith("every return is 0, so the policy may have learned nothing")
    assert cut_off.hint.startswith("every return is 0, and every episode was cut off after 7 steps")
