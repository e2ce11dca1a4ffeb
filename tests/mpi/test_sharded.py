"""Tables that all ranks of a host learn in: `placement="sharded"`."""

import hashlib
import os
import signal
import threading
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from mpi4py import MPI
from own_signals import own_signals, stop_after

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.errors import RemoteRankError, SettingsError, TrainingStopped
from dist_classicrl.learning.interleaved import InterleavedLearner
from dist_classicrl.process import stop as stopping
from dist_classicrl.schedules import PerVisit

WORLD = MPI.COMM_WORLD
pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    """Let no request to stop go from test to test."""
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.05)
    with own_signals(monkeypatch):
        yield


def garnet(n_states=200, **fields):
    return TabularMDP.garnet(n_states, 4, 3, seed=2, terminal_states=4, **fields)


def agent(**settings):
    return DistAsyncQLearning(seed=1, discount_factor=0.9, **settings)


def on_all_ranks(value):
    return WORLD.allgather(value)


def gap(model, learner):
    """Return how much worse the greedy policy is than the best one, as a share of the best value."""
    best = model.start_value(model.solve(0.9).v)
    reached = model.start_value(model.policy_value(learner.policy.greedy, 0.9))
    return (best - reached) / abs(best)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_it_finds_the_optimum_and_all_ranks_have_the_same_table(dtype):
    model, learner = garnet(), agent(dtype=dtype)
    result = learner.train(model, total_steps=3_000_000, placement="sharded")
    assert result.steps == 3_000_000
    assert result.workers == WORLD.size  # whoever serves learns as well
    assert gap(model, learner) < 0.01
    q = learner.q_table
    assert q.dtype == dtype and len(set(on_all_ranks(hashlib.sha256(q.tobytes()).hexdigest()))) == 1
    visits = learner.visits
    # A visit is lost where two ranks learn an entry at the same moment.
    assert 0.8 * 3_000_000 < visits.sum() <= 3_000_000
    assert len(set(on_all_ranks(hashlib.sha256(visits.tobytes()).hexdigest()))) == 1


def test_a_further_call_goes_on_from_the_table():
    learner = agent()
    learner.train(garnet(), total_steps=200_000, placement="sharded")
    before = learner.visits.copy()
    learner.train(garnet(), total_steps=100_000, placement="sharded")
    assert (learner.visits >= before).all() and learner.visits.sum() > before.sum()
    learner.train(garnet(), total_steps=50_000, placement="replicated")
    assert learner.visits.sum() <= 350_000


def test_it_is_what_the_topology_auto_takes_for_a_large_table():
    model = garnet(1 << 15)  # 2^17 entries
    result = agent(topology="auto").train(model, total_steps=100_000)
    # One sixth of what replicated tables take at least; leases are shorter, and more, where cores are busy.
    assert result.steps == 100_000 and result.bytes_pulled < 8 * model.n_states


def test_illegal_actions_are_never_learned():
    model = garnet()
    mask = np.ones((model.n_states, model.n_actions), bool)
    mask[np.arange(model.n_states), np.arange(model.n_states) % 4] = False
    learner = agent()
    learner.train(replace(model, action_mask=mask), total_steps=100_000, placement="sharded")
    assert not learner.visits[~mask].any() and not learner.q_table[~mask].any()


def test_stepped_environments_learn_in_the_same_rows():
    learner = agent()
    env = gymnasium.wrappers.TransformReward(gymnasium.make("FrozenLake-v1", is_slippery=False), float)
    result = learner.train(env, total_steps=20_000, placement="sharded")
    assert result.steps == 20_000
    assert learner.visits.sum() > 15_000
    assert len(set(on_all_ranks(learner.q_table.tobytes()))) == 1


class Seen(BaseCallback):
    """Notes what is known of the table at each report."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_step(self, progress):
        self.seen.append((progress.steps, int(self.model.visits.sum())))
        return progress.steps < 600_000


def test_callbacks_see_the_table_as_it_is_and_may_end_the_run():
    seen, learner = Seen(), agent()
    result = learner.train(garnet(), total_steps=100_000_000, placement="sharded", callbacks=seen)
    assert 600_000 <= result.steps < 100_000_000
    if WORLD.rank == 0:
        assert len(seen.seen) > 1
        assert all(0.7 * steps < visits for steps, visits in seen.seen)


def test_it_is_saved_and_goes_on_with_any_placement(folder, restart):
    saved = {"checkpoint_dir": folder, "checkpoint_interval": 50_000}
    first = agent()
    first.train(garnet(), total_steps=300_000, placement="sharded", **saved)
    for placement in ("sharded", "replicated"):
        restart()
        again = agent()
        assert again.train(garnet(), total_steps=300_000, placement=placement, **saved).steps == 300_000
        np.testing.assert_array_equal(again.q_table, first.q_table)
    assert again.train(garnet(), total_steps=100_000, placement="replicated", **saved).steps == 100_000


@pytest.mark.parametrize("who", [0, -1])
def test_a_signal_on_any_rank_stops_all_and_another_run_goes_on(who, folder, restart):
    first = agent()
    asked = {} if WORLD.rank != who % WORLD.size else stop_after(3, signal.SIGUSR1)
    if WORLD.rank != 0 and asked:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        asked = {}
    with pytest.raises(TrainingStopped) as stopped:
        first.train(garnet(), total_steps=10**12, placement="sharded", checkpoint_dir=folder, **asked)
    steps = stopped.value.steps
    assert len(set(on_all_ranks(steps))) == 1 and 0 < steps < 10**12
    restart()
    again = agent()
    result = again.train(garnet(), total_steps=steps + 50_000, placement="sharded", checkpoint_dir=folder)
    assert result.steps == steps + 50_000 and result.resumed_from == stopped.value.checkpoint


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"compression_threshold": 0.1}, "compression_threshold=0"),
        ({"compression": "lossless"}, 'compression="none"'),
        ({"replay_ratio": 1.0}, "replay_ratio=0"),
    ],
)
def test_what_needs_copies_is_refused_by_name(settings, match):
    with pytest.raises(SettingsError, match=match):
        agent(**settings).train(garnet(), total_steps=1000, placement="sharded")


def test_auto_takes_it_for_large_tables(caplog, several_ranks):
    learner = agent(learning_rate=PerVisit(0.7))
    with caplog.at_level("INFO"):
        result = learner.train(garnet(40_000), total_steps=500_000)
    assert result.workers == WORLD.size and result.pushes > 0
    assert "same rows" in caplog.text


@pytest.mark.parametrize("who", [0, -1])
def test_an_error_on_any_rank_ends_it_on_all(who, monkeypatch):
    culprit = who % WORLD.size
    learn, calls = InterleavedLearner.learn, []

    def breaking(self, walker, stream, steps):
        calls.append(None)
        if WORLD.rank == culprit and len(calls) == 4:
            raise ArithmeticError("the machine is on fire")
        learn(self, walker, stream, steps)

    with monkeypatch.context() as patched:
        patched.setattr(InterleavedLearner, "learn", breaking)
        with pytest.raises((ArithmeticError, RemoteRankError), match="on fire") as caught:
            agent().train(garnet(), total_steps=10**12, placement="sharded")
    assert type(caught.value) is (ArithmeticError if WORLD.rank == culprit else RemoteRankError)
    assert agent().train(garnet(), total_steps=100_000, placement="sharded").steps == 100_000
