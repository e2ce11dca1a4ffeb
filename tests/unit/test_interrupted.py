"""What is left after a training that did not come to its end, and what `train` refuses before it begins."""

import math
import signal
from contextlib import nullcontext

import numpy as np
import pytest
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import SettingsError, TrainingStopped
from dist_classicrl.process.exit_record import LAUNCH_VARIABLE

GARNET = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)


class Stop(Exception):
    pass


@pytest.mark.parametrize("larger", [0, 3])
@pytest.mark.parametrize("async_updates", [True, False])
def test_what_was_learned_before_an_exception_is_kept_and_counted(async_updates, larger):
    agent = DistAsyncQLearning(
        state_size=25 + larger, action_size=4 + larger, seed=1, async_updates=async_updates
    )

    def stop(progress):
        if progress.steps > 200_000:
            raise Stop

    with pytest.raises(Stop):
        agent.train(GARNET, total_steps=50_000_000, progress=stop, progress_interval=0)
    assert 200_000 < agent.steps < 50_000_000
    assert agent.visits.sum() == agent.steps
    assert np.abs(agent.q_table[:25, :4]).max() > 0.0
    agent.train(GARNET, total_steps=1_000)
    assert agent.visits.sum() == agent.steps


class ClosesBadly(SteppedLake):
    def close(self):
        raise OSError("the display is gone")


def test_an_environment_that_fails_to_close_costs_a_warning(caplog):
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    result = agent.train(ClosesBadly, total_steps=500)
    assert result.steps == agent.visits.sum() == 500
    assert "the display is gone" in caplog.text


@pytest.mark.parametrize("is_launched", [True, False])
def test_a_launchers_own_stop_signal_is_heard_whatever_else_is(tmp_path, monkeypatch, is_launched):
    if is_launched:
        monkeypatch.setenv(LAUNCH_VARIABLE, str(tmp_path / "attempt-1"))
    heard = []

    def send(progress):
        if progress.steps and not heard:
            heard.append(progress.steps)
            signal.raise_signal(signal.SIGUSR1)

    saved = {"checkpoint_dir": tmp_path, "stop_signals": ("SIGTERM",)}
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        if is_launched:
            with pytest.raises(TrainingStopped) as stopped:
                agent.train(SteppedLake, total_steps=20_000, progress=send, progress_interval=0, **saved)
            assert (stopped.value.code, signal.SIGUSR1 in heard) == (75, False)
        else:
            agent.train(SteppedLake, total_steps=20_000, progress=send, progress_interval=0, **saved)
            assert (agent.steps, signal.SIGUSR1 in heard) == (20_000, True)
        for how in (saved, {}):
            refused = pytest.raises(SettingsError, match="launcher SIGUSR1 always")
            with refused if is_launched else nullcontext():
                agent.train(SteppedLake, total_steps=10, leave_signals=("SIGUSR1",), **how)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("name", "value"),
    [("progress", "often"), ("progress_interval", None), ("progress_interval", -1.0)]
    + [("progress_interval", value) for value in (math.nan, math.inf, "5", True)],
)
def test_what_is_no_progress_callback_or_interval(name, value):
    with pytest.raises(SettingsError, match=name):
        DistAsyncQLearning().train(GARNET, total_steps=10, **{name: value})


def test_more_steps_than_can_be_counted():
    agent = DistAsyncQLearning(seed=1)
    agent.train(GARNET, total_steps=10)
    with pytest.raises(SettingsError, match=r"2\*\*62"):
        agent.train(GARNET, total_steps=2**62 - 5)
    assert agent.steps == 10
