"""A learner from outside the package trains with whatever engine there is, is saved and gone on with."""

import numpy as np
import own_learner
import pytest
from own_learner import MODEL, PlainLearner
from own_signals import own_signals, stop_after

from dist_classicrl.errors import TrainingStopped
from dist_classicrl.process import stop as stopping

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def made_by_it(monkeypatch):
    """Register it, and give the list of the walkers that it has made a step with."""
    learn, learned = PlainLearner.learn, []

    def learning(self, walker, stream, steps):
        learned.append(walker)
        learn(self, walker, stream, steps)

    monkeypatch.setattr(PlainLearner, "learn", learning)
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.05)
    with own_learner.registered(), own_signals(monkeypatch):
        yield learned


def test_all_ranks_learn_with_it(world, make_agent, digests, made_by_it):
    agent = make_agent(discount_factor=0.5, learning_rate=0.02, epsilon=1.0)
    result = agent.train(MODEL, total_steps=40_000)
    assert result.steps == agent.visits.sum() == 40_000
    assert any(world.allgather(made_by_it))
    often = agent.visits > 500  # a state is hardly ever reached
    assert often.sum() >= 8
    assert (
        np.abs(agent.q_table - MODEL.solve(0.5).q)[often].max() < 0.4 < np.abs(MODEL.solve(0.5).q).max() / 5
    )
    assert len(set(digests(agent))) == 1


def test_in_the_reproducible_mode_a_stop_and_any_number_of_ranks_change_nothing(
    world, alone, make_agent, folder, restart, digests, made_by_it
):
    settings = {"async_updates": False, "logical_workers": 3, "sync_frequency": 2}
    straight = make_agent(**settings, comm=alone)
    straight.train(MODEL, total_steps=3_001)
    stopped = make_agent(**settings)
    with pytest.raises(TrainingStopped):
        stopped.train(MODEL, total_steps=3_001, checkpoint_dir=folder, **stop_after(1_000))
    world.Barrier()
    restart()
    resumed = make_agent(**settings)
    resumed.train(MODEL, total_steps=3_001, checkpoint_dir=folder)
    assert stopped.steps < resumed.steps == 3_001 and made_by_it
    assert set(digests(resumed)) == set(digests(straight))
