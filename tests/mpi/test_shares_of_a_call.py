"""Schedules that last for a share of a call of `train`: on any number of ranks, stopped, and taken over."""

import gymnasium
import numpy as np
import pytest
from own_signals import own_signals, stop_after
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.errors import RemoteRankError, TrainingStopped
from dist_classicrl.process import stop as stopping
from dist_classicrl.schedules import Exponential, Linear, Piecewise

MODES = pytest.mark.parametrize("async_updates", [True, False], ids=["async", "reproducible"])
ROUNDS = {"async_updates": False, "logical_workers": 3, "sync_frequency": 2, "batch_size": 8}
HALF = Linear(1.0, 0.1, fraction=0.5)
RATES = {"epsilon": HALF, "learning_rate": Exponential(0.5, 0.01, fraction=1.0)}
BY_POINTS = {
    "epsilon": Piecewise([(0.0, 1.0), (0.5, 0.1), (1.0, 0.1)], fraction=1.0),
    "learning_rate": Piecewise([(0.0, 0.5), (0.2, 0.5), (0.2, 0.1), (1.0, 0.01)], fraction=1.0),
}


class CountingBandit(gymnasium.Env):
    """Of two arms the second is good; what was played is written down."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.actions.append(int(action))
        return 0, float(action), True, False, {}


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    """Let no request to stop go from test to test."""
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.05)
    with own_signals(monkeypatch):
        yield


def in_steps(steps):
    """Return what `RATES` is in a first call of so many steps."""
    return {"epsilon": Linear(1.0, 0.1, steps // 2), "learning_rate": Exponential(0.5, 0.01, steps)}


def same(one, other):
    """Whether two agents know the same, bit for bit."""
    return one.q_table.tobytes() == other.q_table.tobytes() and one.visits.tobytes() == other.visits.tobytes()


@pytest.mark.core
@MODES
@pytest.mark.parametrize("env", ["compiled", "stepped"])
def test_a_share_of_all_steps_of_all_ranks(world, make_agent, lake, tmp_path, env, async_updates):
    seen = []
    agent = make_agent(async_updates=async_updates, logical_workers=2, n_envs=2, **RATES)
    assert (agent.epsilon, agent.learning_rate) == (1.0, 0.5)
    agent.train(
        lake if env == "compiled" else SteppedLake,
        steps=3_000 // world.size,
        progress=lambda progress: seen.append((progress.steps, progress.epsilon, progress.learning_rate)),
        progress_interval=0,
    )
    steps, call = agent.steps, (0, agent.steps)
    assert steps == 3_000 // world.size * world.size
    assert agent.settings.schedules == {
        "epsilon": Linear(1.0, 0.1, fraction=0.5, call=call),
        "learning_rate": Exponential(0.5, 0.01, fraction=1.0, call=call),
    }
    for made, epsilon, step_size in seen:
        assert epsilon == pytest.approx(max(0.1, 1.0 - 0.9 * made / (steps // 2)))
        assert step_size == pytest.approx(0.5 * (0.01 / 0.5) ** (made / steps))
    assert bool(seen) == (world.rank == 0)
    # What was learned is read back with the call that it was learned in.
    read = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    assert read.settings == agent.settings and read.epsilon == 0.1


@pytest.mark.parametrize("env", ["compiled", "stepped"])
def test_the_same_bits_at_any_number_of_ranks_as_with_schedules_in_steps(world, make_agent, alone, lake, env):
    env = lake if env == "compiled" else SteppedLake
    agent, one, straight = make_agent(**ROUNDS, **RATES), None, None
    agent.train(env, total_steps=4_001)
    one = make_agent(comm=alone, **ROUNDS, **RATES)
    one.train(env, total_steps=4_001)
    straight = make_agent(comm=alone, **ROUNDS, **in_steps(4_001))
    straight.train(env, total_steps=4_001)
    assert same(agent, one) and same(agent, straight)


def test_a_process_alone_learns_as_with_schedules_in_steps(make_agent, alone, lake):
    agent, straight = make_agent(comm=alone, **RATES), make_agent(comm=alone, **in_steps(4_001))
    for each in (agent, straight):
        each.train(lake, total_steps=4_001)
    assert same(agent, straight)


@MODES
def test_later_calls_hold_what_the_first_has_come_to(world, make_agent, lake, async_updates):
    agent = make_agent(async_updates=async_updates, logical_workers=2, epsilon=HALF)
    agent.train(lake, total_steps=0)
    assert agent.settings.epsilon == HALF and agent.epsilon == 1.0
    agent.train(lake, total_steps=1_000)
    agent.train(lake, total_steps=10_000)
    assert agent.settings.epsilon.call == (0, 1_000) and agent.epsilon == 0.1
    agent.epsilon = HALF  # anew
    assert agent.epsilon == 1.0
    agent.train(lake, total_steps=2_000)
    assert agent.settings.epsilon.call == (11_000, 2_000) and agent.epsilon == 0.1


@MODES
def test_a_call_that_failed_before_its_first_step_does_not_count(world, make_agent, lake, async_updates):
    def fails():
        raise OSError("no such maze")

    agent = make_agent(async_updates=async_updates, logical_workers=2, epsilon=HALF)
    with pytest.raises((OSError, RemoteRankError)):
        agent.train(fails, total_steps=500)
    agent.train(lake, total_steps=1_000)
    assert agent.settings.epsilon.call == (0, 1_000)


def test_a_call_that_a_callback_ends_counts_with_the_steps_that_it_made(make_agent, world, lake):
    agent = make_agent(epsilon=Linear(1.0, 0.0, fraction=1.0), async_updates=False, logical_workers=2)
    agent.train(lake, total_steps=100_000, callbacks=lambda *_: agent.steps < 20_000, progress_interval=0)
    assert 20_000 <= agent.steps < 100_000
    assert agent.epsilon == pytest.approx(1.0 - agent.steps / 100_000)
    made, heard = agent.steps, []
    agent.train(lake, total_steps=2_000, progress=lambda report: heard.append(report.epsilon))
    assert agent.settings.epsilon.call == (0, made) and agent.epsilon == 0.0
    assert set(heard) <= {0.0} and bool(heard) == (world.rank == 0)
    agent.epsilon = agent.settings.epsilon  # anew
    agent.train(lake, total_steps=500)
    assert agent.settings.epsilon.call == (made + 2_000, 500)


@pytest.mark.core
@pytest.mark.parametrize("rates", [RATES, BY_POINTS], ids=["from, to", "points"])
@pytest.mark.parametrize("total", [5_003, 9_001], ids=["the same total", "a longer one"])
def test_a_resumed_call_keeps_its_total(world, make_agent, alone, lake, folder, restart, total, rates):
    """As if it had not been interrupted, bit for bit; what is asked for beyond it holds the final value."""
    straight = make_agent(comm=alone, **ROUNDS, **rates)
    straight.train(lake, total_steps=5_003)
    for stop in (1_000, 3_000):
        agent = make_agent(**ROUNDS, **rates)
        with pytest.raises(TrainingStopped):
            agent.train(lake, total_steps=5_003, checkpoint_dir=folder, **stop_after(stop))
        restart()
        world.barrier()
    # Whoever looks at the checkpoint sees the values of the moment.
    read = DistAsyncQLearning.load_model(folder)
    assert read.settings.epsilon.call == (0, 5_003)
    assert read.epsilon == pytest.approx(max(0.1, 1.0 - 0.9 * read.steps / 2_501))
    world.barrier()
    agent = make_agent(**ROUNDS, **rates)
    agent.train(lake, total_steps=total, checkpoint_dir=folder)
    assert agent.steps == total and {each.call for each in agent.settings.schedules.values()} == {(0, 5_003)}
    if total == 5_003:
        assert same(agent, straight)
    else:
        assert (agent.epsilon, agent.learning_rate) == (0.1, 0.01)


def test_another_schedule_than_that_of_the_checkpoint_is_one_of_the_call_that_goes_on(
    world, make_agent, lake, folder, restart
):
    agent = make_agent(epsilon=HALF)
    agent.train(lake, total_steps=2_000, checkpoint_dir=folder)
    restart()
    world.barrier()
    other = Linear(0.5, 0.2, fraction=0.5)
    agent = make_agent(epsilon=other)
    agent.train(lake, total_steps=8_000, checkpoint_dir=folder)
    assert agent.settings.epsilon == Linear(0.5, 0.2, fraction=0.5, call=(0, 8_000))
    assert agent.epsilon == 0.2


def test_checkpoints_of_schedules_in_steps_go_on_as_they_did(world, make_agent, lake, folder, restart):
    agent = make_agent(epsilon=Linear(1.0, 0.1, 1_500))
    agent.train(lake, total_steps=1_000, checkpoint_dir=folder)
    if world.rank == 0:
        written = CheckpointFolder(folder, "agent-0").read_newest().body["settings"]["epsilon"]
        assert written == {"kind": "Linear", "initial": 1.0, "final": 0.1, "steps": 1_500}
    restart()
    world.barrier()
    agent = make_agent(epsilon=Linear(1.0, 0.1, 1_500))
    agent.train(lake, total_steps=1_200, checkpoint_dir=folder)
    assert agent.epsilon == pytest.approx(1.0 - 0.9 * 1_200 / 1_500)


def test_exploration_really_follows_it(make_agent, alone):
    """All actions are random at first, and none in the second half."""
    agent = make_agent(comm=alone, epsilon=Linear(1.0, 0.0, fraction=0.5), learning_rate=0.5, n_envs=1)
    env = CountingBandit()
    agent.train(env, total_steps=2_000)
    half = np.array(env.actions)
    assert set(half[-900:]) == {1}
    assert 0.3 < np.mean(half[:200] == 0) < 0.7
