"""A call of `train` that ends after so many episodes."""

import os
import signal

import gymnasium
import numpy as np
import pytest
from rank_environments import Corridor

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import SettingsError, TrainingStopped
from dist_classicrl.model import places
from dist_classicrl.schedules import PerVisit

LENGTH = 5
CORRIDOR = TabularMDP.from_dict(
    [dict.fromkeys((0, 1), [(1.0, min(s + 1, LENGTH - 1), 1.0, s == LENGTH - 1)]) for s in range(LENGTH)],
    [1.0] + [0.0] * (LENGTH - 1),
    max_episode_steps=8,
)


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action), 0.0, False, False, {}


def agent(**settings):
    return DistAsyncQLearning(epsilon=0.3, learning_rate=PerVisit(0.7), seed=1, **settings)


@pytest.mark.parametrize("episodes", [1, 2, 7, 100, 12_345])
def test_so_many_episodes_are_played(episodes):
    result = agent().train(CORRIDOR, total_episodes=episodes)
    assert episodes <= result.episodes <= episodes + 1 and result.mean_return == LENGTH
    assert result.steps < (episodes + 2) * LENGTH


def test_steps_are_a_bound_besides():
    own = agent()
    assert own.train(CORRIDOR, total_steps=1_000, total_episodes=10**6).steps == 1_000
    assert own.train(CORRIDOR, total_steps=10**6, total_episodes=50).episodes in (50, 51)


def test_in_the_reproducible_mode_the_end_depends_on_steps_alone():
    settings = {"async_updates": False, "logical_workers": 2, "sync_frequency": 1}
    once, again = (agent(**settings).train(CORRIDOR, total_episodes=300) for _ in range(2))
    assert once.steps == again.steps and 300 <= once.episodes <= 300 + 2 * 64 / LENGTH


SHARDED = {"placement": "sharded", "walkers": 4}


@pytest.mark.parametrize("asked", [{}, pytest.param(SHARDED, marks=pytest.mark.slow)])
def test_who_is_told_more_often_does_not_move_the_end(asked):
    ends, heard = [], []
    for watching in ({}, {"progress": heard.append, "progress_interval": 0.0}):
        own = agent(async_updates=False)
        result = own.train(CORRIDOR, total_episodes=30_000, **asked, **watching)
        ends.append((result.steps, result.episodes, own.q_table.tobytes()))
    assert ends[0] == ends[1]
    assert len(heard) > 8


def test_a_call_that_is_gone_on_with_counts_the_episodes_before(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})
    options = {"total_episodes": 400, "checkpoint_dir": tmp_path}
    made = agent().train(CORRIDOR, **options)
    places._agents.clear()  # as in a new process
    assert agent().train(CORRIDOR, **options).episodes == made.episodes


@pytest.mark.parametrize("episodes", [0, -1, 1.5, "3", True])
def test_what_is_no_number_of_episodes_is_refused(episodes):
    with pytest.raises(SettingsError, match="total_episodes must be a whole number of at least 1, or None"):
        agent().train(CORRIDOR, total_episodes=episodes)


def test_without_a_limit_of_their_length_steps_have_to_be_given():
    with pytest.raises(SettingsError, match="nobody knows how long an episode of .* Write total_steps="):
        agent().train(TabularMDP.from_gymnasium("CliffWalking-v1"), total_episodes=5)
    with pytest.raises(SettingsError, match="nobody knows how long"):
        agent().train(lambda: gymnasium.wrappers.TransformReward(Endless(), float), total_episodes=5)


@pytest.mark.parametrize("episodes", [1, 5])
@pytest.mark.parametrize("is_batch", [False, True])
def test_the_time_limit_of_an_environment_that_is_stepped_is_such_a_limit(is_batch, episodes):
    def limited():
        return gymnasium.wrappers.TimeLimit(Endless(), 12)

    env = gymnasium.vector.SyncVectorEnv([limited] * 3) if is_batch else limited
    own = DistAsyncQLearning(seed=1, n_envs=3)
    result = own.train(env, total_episodes=episodes)  # of which each takes all 12 steps
    assert episodes <= result.episodes <= episodes + 3 and result.steps <= 12 * (episodes + 2)


def limited_corridor():
    return gymnasium.wrappers.TimeLimit(Corridor(cells=10), 200)


@pytest.mark.parametrize(
    ("env", "episodes", "more", "settings"),
    [
        ("CliffWalking-v1", {"total_steps": 10**7, "total_episodes": 500}, 2, {}),
        ("Taxi-v4", {"total_episodes": 500}, 2, {"epsilon": 0.1}),
        (limited_corridor, {"total_episodes": 20}, 2, {"n_envs": 1, "batch_size": 1}),
        (limited_corridor, {"total_episodes": 1_000}, 16, {"n_envs": 16}),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_episodes_that_get_shorter_are_as_many_as_asked_for(env, episodes, more, settings, seed):
    result = DistAsyncQLearning(seed=seed, **settings).train(env, **episodes)
    assert 0 <= result.episodes - episodes["total_episodes"] <= more


@pytest.mark.parametrize("episodes", [1, 3])
def test_long_episodes_are_not_looked_for_at_every_few_steps(episodes):
    length, reports = 20_000, []
    line = TabularMDP.from_dict([{0: [(1.0, 0, 0.0, False)]}], [1.0], max_episode_steps=length)
    own = agent()
    result = own.train(line, total_steps=10**6, total_episodes=episodes, progress=reports.append)
    assert result.episodes == episodes and result.steps < (episodes + 1) * length
    assert len(reports) < 100 + 200 * result.steps / 10**6


@pytest.mark.slow
def test_who_goes_on_ends_where_one_run_would(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})
    settings = {"seed": 1, "async_updates": False, "logical_workers": 2, "sync_frequency": 2}
    asked = {"total_steps": 10**7, "total_episodes": 500}
    straight = DistAsyncQLearning(**settings)
    result = straight.train("CliffWalking-v1", **asked)

    def stop(told):
        if told["num_timesteps"] > 0.9 * result.steps:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(**settings).train(
            "CliffWalking-v1", **asked, checkpoint_dir=tmp_path, callbacks=stop
        )
    places._agents.clear()  # as in a new process
    again = DistAsyncQLearning(**settings)
    gone_on = again.train("CliffWalking-v1", **asked, checkpoint_dir=tmp_path)
    assert (gone_on.steps, gone_on.episodes) == (result.steps, result.episodes)
    assert np.array_equal(again.q_table, straight.q_table)
    assert 500 <= result.episodes <= 500 + 2 * 64 / 13


def test_who_names_no_steps_is_told_of_episodes():
    with pytest.raises(SettingsError, match="total_episodes= alone; got steps=None and total_steps=None"):
        agent().train(CORRIDOR)
