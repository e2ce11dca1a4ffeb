"""What ranks learn together is right: the greedy policy's exact value is within 1 % of optimal."""

import numpy as np
import pytest
from rank_environments import SteppedLake

from dist_classicrl import TabularMDP
from dist_classicrl.engines.server import training
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.schedules import PerVisit

DISCOUNT = 0.95


def share_of_optimal(model, q_table):
    """Return the exact value of the greedy policy from the start, as a share of the optimal one."""
    value = model.start_value(model.policy_value(q_table.argmax(axis=1), DISCOUNT))
    return value / model.start_value(model.solve(DISCOUNT).v)


def rms_error(model, q_table):
    """Return the RMS error against Q* over the pairs that can be visited."""
    visited = model.reachable_pairs()
    return float(np.sqrt(np.mean((q_table - model.solve(DISCOUNT).q)[visited] ** 2)))


WAYS = {
    "auto": {},
    "a number": {"sync_frequency": 40},
    "reproducible": {"async_updates": False},
    "float32": {"dtype": "float32"},
    "replay": {"replay_ratio": 0.5},
    "threshold": {"compression_threshold": 1e-3},
    "eight in flight": {"prefetch_factor": 8, "sync_frequency": 10},
}


@pytest.mark.core
@pytest.mark.parametrize("way", WAYS)
def test_the_greedy_policy_is_within_a_percent_of_optimal(make_agent, lake, way):
    agent = make_agent(learning_rate=PerVisit(0.7), discount_factor=DISCOUNT, epsilon=0.3, **WAYS[way])
    agent.train(lake, total_steps=4_000_000)
    assert share_of_optimal(lake, agent.q_table) > 0.99
    assert rms_error(lake, agent.q_table) < 0.02


@pytest.mark.core
def test_stepped_environments_teach_the_same(make_agent, lake):
    agent = make_agent(learning_rate=PerVisit(0.7), discount_factor=DISCOUNT, epsilon=0.5)
    agent.train(SteppedLake, total_steps=60_000)
    # Too few steps to tell actions apart that are nearly as good. Values reach from 0.13 to 0.72.
    assert rms_error(lake, agent.q_table) < 0.06


@pytest.mark.core
def test_a_short_run_is_learned_by_one_worker_as_on_one_rank(make_agent, world, monkeypatch):
    monkeypatch.setattr(training, "_RAMP_SECONDS", 1e9)  # however slow this machine is
    made = 0
    learn = CompiledLearner.learn

    def counting(learner, walker, stream, steps):
        nonlocal made
        made += steps
        learn(learner, walker, stream, steps)

    monkeypatch.setattr(CompiledLearner, "learn", counting)
    cliff = TabularMDP.from_gymnasium("CliffWalking-v1")
    agent = make_agent(discount_factor=0.99, seed=0)
    agent.train(cliff, total_steps=10_000)
    assert sorted(world.allgather(made)) == [0] * (world.size - 1) + [10_000]
    value = cliff.start_value(cliff.policy_value(agent.policy.greedy, 0.99))
    assert value == pytest.approx(cliff.start_value(cliff.solve(0.99).v))


def test_every_rank_has_the_same_policy_and_values(make_agent, world, lake):
    agent = make_agent()
    agent.train(lake, total_steps=20_000)
    states = np.arange(lake.n_states)
    told = world.allgather(
        (agent.policy(states), agent.policy.greedy, agent.action_values(states), agent.state_values(states))
    )
    for actions, greedy, values, best in told:
        np.testing.assert_array_equal(actions, greedy)
        np.testing.assert_array_equal(actions, values.argmax(axis=1))
        np.testing.assert_array_equal(best, values.max(axis=1))
        np.testing.assert_array_equal(values, told[0][2])
