"""An agent that is given another environment than the one that its table was learned in."""

import json

import gymnasium as gym
import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import CheckpointMismatchError, EnvError, EnvMismatchError, SettingsError
from dist_classicrl.model import places

LAKE, SLIPPERY_NOT = "FrozenLake-v1", TabularMDP.from_gymnasium("FrozenLake-v1", is_slippery=False)


def trained(env, **settings):
    agent = DistAsyncQLearning(seed=1, n_envs=2, **settings)
    agent.train(env, total_steps=500)
    return agent


def shaped():
    return gym.wrappers.TransformReward(gym.make("Blackjack-v1"), lambda reward: 2.0 * reward)


def limited():
    return gym.wrappers.TimeLimit(gym.make("Blackjack-v1"), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("Taxi-v4", "CliffWalking-v1", r"Taxi-v4 \(500 states, 6 actions\).*CliffWalking-v1 \(48 states"),
        (LAKE, SLIPPERY_NOT, "another FrozenLake-v1, with other rewards"),
        ("Blackjack-v1", shaped, "another Blackjack-v1, with other rewards"),
        ("Blackjack-v1", limited, "wrappers or time limit"),
    ],
)
def test_another_environment_is_refused_and_the_agent_stays_as_it_was(first, second, words):
    agent = trained(first)
    before, visits = agent.q_table.copy(), agent.visits.copy()
    observation = (14, 6, 0) if first == "Blackjack-v1" else 10
    action = agent.predict(observation)
    with pytest.raises(EnvMismatchError, match=words) as refusal:
        agent.train(second, total_steps=500)
    assert "train(..., new_env=True)" in str(refusal.value)
    np.testing.assert_array_equal(agent.q_table, before)
    np.testing.assert_array_equal(agent.visits, visits)
    assert agent.steps == 500 and agent.predict(observation) == action
    agent.train(first, total_steps=500)  # it goes on where it belongs
    assert agent.steps == 1_000
    agent.train(second, total_steps=500, new_env=True)
    assert agent.steps == 1_500
    with pytest.raises(EnvMismatchError):
        agent.train(first, total_steps=500)


def test_a_larger_environment_is_refused_as_another_one():
    agent = trained("CliffWalking-v1")
    with pytest.raises(
        EnvMismatchError, match=r"learned in CliffWalking-v1 .*Taxi-v4 needs a table of 500 states"
    ):
        agent.train("Taxi-v4", total_steps=10)
    assert agent.predict(36) in range(4) and agent.steps == 500


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (LAKE, lambda: gym.make(LAKE)),
        (LAKE, TabularMDP.from_gymnasium(LAKE)),
        ("Blackjack-v1", lambda: gym.make("Blackjack-v1")),
        ("Blackjack-v1", lambda: gym.make_vec("Blackjack-v1", num_envs=3)),
        (lambda: gym.make_vec(LAKE, num_envs=2), LAKE),
        (
            lambda: gym.make_vec("Blackjack-v1", num_envs=3),
            lambda: gym.make_vec("Blackjack-v1", num_envs=2, vectorization_mode="async"),
        ),
    ],
)
def test_the_same_process_in_another_form_is_not_refused(first, second):
    agent = trained(first)
    agent.train(second, total_steps=200)
    assert agent.steps == 700


def test_what_has_learned_nothing_takes_any_environment():
    agent = DistAsyncQLearning(state_size=500, action_size=6)
    agent.train("Taxi-v4", total_steps=0)
    agent.train("CliffWalking-v1", total_steps=100)
    assert agent.steps == 100


@pytest.mark.slow
def test_a_loaded_agent_knows_what_it_was_trained_in(tmp_path):
    path = trained("Taxi-v4").save_model(tmp_path / "taxi.npz")
    for source in (path, tmp_path / "saved"):
        if source != path:
            DistAsyncQLearning(seed=1).train("Taxi-v4", total_steps=500, checkpoint_dir=source)
        loaded = DistAsyncQLearning.load_model(source)
        with pytest.raises(EnvMismatchError, match="Taxi-v4.*500 steps.*CliffWalking-v1"):
            loaded.train("CliffWalking-v1", total_steps=100)
        loaded.train("Taxi-v4", total_steps=100)
    # A file of an earlier version does not tell it.
    with np.load(path, allow_pickle=False) as file:
        members = dict(file)
    about = json.loads(members["about"].tobytes())
    del about["environment"]
    np.savez(path, **{**members, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    older = DistAsyncQLearning.load_model(path)
    older.train("CliffWalking-v1", total_steps=100)
    assert older.steps == 600


def test_evaluating_elsewhere_is_allowed():
    assert trained(LAKE).evaluate(SLIPPERY_NOT, episodes=5).episodes == 5
    wrapped = gym.wrappers.TransformReward(gym.make(LAKE), float)
    assert trained(LAKE).evaluate(wrapped, episodes=5).episodes == 5
    for env in (LAKE, "Taxi-v4"):  # a table for both
        own = trained("Taxi-v4", state_size=500, action_size=6)
        assert own.evaluate(env, episodes=2, max_steps=50).episodes == 2


class Above(gym.Wrapper):
    """Counts the states of a lake from 1 on."""

    observation_space = gym.spaces.Discrete(16, start=1)

    def reset(self, **options):
        state, info = super().reset(**options)
        return state + 1, info

    def step(self, action):
        state, *rest = super().step(action)
        return state + 1, *rest


def test_what_the_table_is_not_of_is_not_played():
    with pytest.raises(EnvError, match="with 500 states and 6 actions, but FrozenLake-v1 has 16"):
        trained("Taxi-v4").evaluate(LAKE, episodes=5)
    with pytest.raises(EnvError, match=r"has other observations than .* trained in: Discrete\(16, start=1\)"):
        trained(LAKE).evaluate(lambda: Above(gym.make(LAKE)), episodes=5)


@pytest.mark.parametrize(
    "env, asked, error",
    [
        (LAKE, {"total_steps": 100, "walkers": 3}, "walkers"),
        ("Taxi-v4", {"total_steps": 100, "walkers": 3}, "walkers"),
        ("Blackjack-v1", {"total_episodes": 10}, "nobody knows how long"),
    ],
)
def test_a_call_that_is_refused_leaves_no_table(env, asked, error):
    for other, shape in ((LAKE, (16, 4)), ("Taxi-v4", (500, 6))):
        agent = DistAsyncQLearning(seed=1)
        with pytest.raises(SettingsError, match=error):
            agent.train(env, **asked)
        agent.train(other, total_steps=100)
        assert agent.q_table.shape == shape
    with pytest.raises(SettingsError, match="walkers"):
        agent.train(other, total_steps=100, walkers=3)
    assert agent.q_table.shape == shape and agent.steps == agent.visits.sum() == 100  # but what was learned


def test_new_env_is_a_flag():
    with pytest.raises(SettingsError, match="new_env must be True or False, got 'yes'"):
        DistAsyncQLearning().train(LAKE, total_steps=10, new_env="yes")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Give a function that trains in a list of environments, as a new process would."""

    def run(*calls, steps=1_000, folder="saved", **settings):
        monkeypatch.setattr(places, "_agents", {})
        agent = DistAsyncQLearning(seed=3, **settings)
        for number, env in enumerate(calls):
            agent.train(env, total_steps=steps, checkpoint_dir=tmp_path / folder, new_env=number > 0)
        return agent

    return run


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_curriculum_goes_on_from_its_checkpoints(script, before, dtype):
    stages = ("CliffWalking-v1", "FrozenLake-v1", "CliffWalking-v1")
    straight = script(*stages, folder="straight", dtype=dtype)
    script(*stages[:before], dtype=dtype)
    again = script(*stages, dtype=dtype)
    assert again.steps == 3_000
    np.testing.assert_array_equal(again.q_table, straight.q_table)


def test_a_checkpoint_of_a_later_call_does_not_open_the_door_to_another_environment(script):
    script("CliffWalking-v1", "FrozenLake-v1")
    with pytest.raises(CheckpointMismatchError, match="environment: 'CliffWalking-v1 .*'FrozenLake-v1 "):
        script("FrozenLake-v1", "FrozenLake-v1", state_size=48, action_size=4)


def test_a_call_that_was_begun_elsewhere_is_not_ended_here(script, tmp_path, monkeypatch):
    class Interrupted(Exception):
        pass

    def interrupt(progress):
        if progress.steps >= 150_000:
            raise Interrupted

    monkeypatch.setattr(places, "_agents", {})
    agent = DistAsyncQLearning(seed=3)
    agent.train("CliffWalking-v1", total_steps=1_000, checkpoint_dir=tmp_path / "saved")
    with pytest.raises(Interrupted):
        agent.train(
            LAKE,
            total_steps=10**9,
            checkpoint_dir=tmp_path / "saved",
            checkpoint_interval=50_000,
            progress=interrupt,
            progress_interval=0.0,
            new_env=True,
        )
    monkeypatch.setattr(places, "_agents", {})
    again = DistAsyncQLearning(seed=3)
    again.train("CliffWalking-v1", total_steps=1_000, checkpoint_dir=tmp_path / "saved")
    assert again.steps > 1_000
    with pytest.raises(EnvMismatchError, match="this call was begun there"):
        again.train(SLIPPERY_NOT, total_steps=10**9, checkpoint_dir=tmp_path / "saved", new_env=True)


def test_a_call_of_no_steps_does_not_change_what_an_agent_is_of():
    agent = trained("Taxi-v4")
    with pytest.raises(EnvMismatchError, match="learned in Taxi-v4 .*given FrozenLake-v1"):
        agent.train(LAKE, total_steps=0)
    assert agent.action_values(0).shape == (6,)
    agent.train("Taxi-v4", total_steps=0)
    agent.train(LAKE, total_steps=0, new_env=True)
    assert agent.action_values(0).shape == (4,)
