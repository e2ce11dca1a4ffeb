"""What an agent held is free as soon as the agent is gone, before the interpreter looks for circles."""

import weakref

import gymnasium
import numpy as np
import pytest
from freed_agents import held_by, nobody_looking_for_circles

from dist_classicrl import DistAsyncQLearning, _memory
from dist_classicrl.callbacks import EvalCallback, EveryNTimesteps, MetricsCallback
from dist_classicrl.errors import CheckpointError, EnvError, SettingsError, TrainingStopped
from dist_classicrl.tables import large_table

LAKE = "FrozenLake-v1"


@pytest.fixture(autouse=True)
def nobody_looks_for_circles():
    with nobody_looking_for_circles():
        yield


def left_after(act, **settings):
    """Return what is left of an agent that has trained, and then did as `act` says."""
    agent = DistAsyncQLearning(**{"seed": 1, **settings})
    act(agent)
    held = held_by(agent)
    del agent
    return [each() for each in held if each() is not None]


def training(env=LAKE, **asked):
    return lambda agent: agent.train(env, total_steps=600, **asked)


@pytest.mark.parametrize(
    "settings, asked",
    [
        ({}, {}),
        ({}, {"env": lambda: gymnasium.wrappers.TransformReward(gymnasium.make("Blackjack-v1"), float)}),
        ({}, {"placement": "sharded"}),
        pytest.param({"async_updates": False}, {"placement": "replicated"}, marks=pytest.mark.slow),
        pytest.param({"async_updates": False}, {"placement": "sharded"}, marks=pytest.mark.slow),
    ],
)
def test_after_a_training_in_one_process(settings, asked):
    assert left_after(training(**asked), **settings) == []


@pytest.mark.slow
@pytest.mark.parametrize("async_updates", [True, False])
def test_a_large_table_after_a_training_in_its_rows(monkeypatch, async_updates):
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 64)
    act = training(placement="sharded")
    assert left_after(act, async_updates=async_updates) == []


def test_after_a_training_with_checkpoints_and_callbacks_that_call_others(tmp_path):
    def act(agent):
        evaluation = EvalCallback(LAKE, lambda told: True, eval_freq=200, n_eval_episodes=1)
        callbacks = [MetricsCallback(tmp_path / "metrics"), EveryNTimesteps(100, evaluation)]
        agent.train(LAKE, total_steps=600, checkpoint_dir=tmp_path, callbacks=callbacks, verbose=True)
        agent.train(LAKE, total_steps=600, checkpoint_dir=tmp_path, progress_bar=True)

    assert left_after(act) == []


def test_after_a_training_that_an_error_or_a_stop_has_ended(tmp_path):
    def fail(progress):
        raise LookupError

    def act(agent):
        for asked in ({}, {"checkpoint_dir": tmp_path / "failed"}):
            with pytest.raises(LookupError):
                agent.train(LAKE, total_steps=600, progress=fail, **asked)
        with pytest.raises(TrainingStopped):
            agent.train(LAKE, total_steps=10**12, checkpoint_dir=tmp_path / "stopped", time_limit=0.1)

    assert left_after(act) == []


def test_after_a_call_that_could_not_begin(tmp_path):
    def act(agent):
        training()(agent)
        with pytest.raises(EnvError):
            training("Taxi-v4")(agent)
        (tmp_path / "file").write_text("no folder")
        with pytest.raises((CheckpointError, SettingsError)):
            training(checkpoint_dir=tmp_path / "file")(agent)
        agent.q_table[0] = np.nan
        with pytest.raises(SettingsError):
            training()(agent)

    assert left_after(act) == []


def test_memory_that_waits_in_a_circle_is_given_back_before_a_table_is_refused(monkeypatch):
    class Circle:
        def __init__(self):
            self.itself = self

    kept = weakref.ref(Circle())
    assert kept() is not None
    monkeypatch.setattr(_memory, "memory_left", lambda: 100 if kept() is None else 10)
    large_table.check_room(100, "A table", "Take a smaller one.")
    with pytest.raises(SettingsError, match="A table needs"):
        large_table.check_room(101, "A table", "Take a smaller one.")
