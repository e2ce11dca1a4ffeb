"""Learning rules from outside the package, through agents: they learn the truth, are saved, and go on."""

from dataclasses import replace

import numpy as np
import own_rules
import pytest
from own_signals import own_signals, stop_after

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import CheckpointMismatchError, RankMismatchError, RemoteRankError, TrainingStopped
from dist_classicrl.process import stop as stopping
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.schedules import PerVisit

RULES = {rule.name: rule for rule in own_rules.RULES}
NAMES = pytest.mark.parametrize("name", RULES)
DISCOUNT = 0.9
WAITING_STEPS = 3
"""The most that n-step SARSA has collected and not learned."""


@pytest.fixture(autouse=True, scope="module")
def registered():
    with own_rules.registered():
        yield


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.05)
    with own_signals(monkeypatch):
        yield


@pytest.fixture(scope="module")
def model():
    """Give a problem without an end, in which states are left by chance."""
    return TabularMDP.garnet(10, 3, 3, seed=4)


@pytest.fixture
def make(make_agent):
    """Give a function that makes an agent with a rule and step sizes for which it is compiled once."""

    def made(rule, **settings):
        return make_agent(algorithm=rule.parameters(), learning_rate=PerVisit(0.7), **settings)

    return made


def raw(agent):
    """Return all that an agent's rule has learned, as bytes."""
    state = agent._state
    return state.values.tobytes() + state.counts.tobytes()


def error_of(agent, rule, model):
    """Return how far an agent's `q_table` is from what its rule converges to."""
    truth = rule.truth(model, rule.parameters(), agent.settings)
    table = agent.q_table
    if rule is own_rules.DIFFERENTIAL:  # known up to a constant
        table, truth = table - table.mean(), truth - truth.mean()
    return np.abs(table - truth).max()


@NAMES
def test_all_ranks_together_learn_the_truth(world, make, model, name):
    rule = RULES[name]
    agent = make(rule, epsilon=0.3, discount_factor=DISCOUNT)
    before = None
    for steps in (10_000, 10_000_000):
        agent.train(model, total_steps=steps)
        before = before or error_of(agent, rule, model)
    assert error_of(agent, rule, model) < min(0.1, before / 3)
    assert len(set(world.allgather(raw(agent)))) == 1
    assert 0 <= agent.steps - agent.visits.sum() <= WAITING_STEPS * 2 * world.size
    if rule is own_rules.DIFFERENTIAL:
        shared = agent._state.values.reshape(-1)[model.n_states * model.n_actions :]
        solved = rule_gain(model)
        assert abs(shared[0] - solved) < 0.02 * max(1.0, abs(solved))
        assert shared[1] == agent.steps  # each worker's are added up


def rule_gain(model):
    """Return the best mean reward of a problem without an end, by relative value iteration."""
    q = np.zeros((model.n_states, model.n_actions))
    for _ in range(20_000):
        new = own_rules.backed_up(model, q.max(axis=1), 1.0)
        gain = new.max(axis=1)[0]
        q = new - gain
    return gain


@NAMES
def test_in_the_reproducible_mode_a_stop_and_any_number_of_ranks_change_nothing(
    world, alone, make, make_agent, model, folder, restart, name
):
    rule = RULES[name]
    settings = {"async_updates": False, "logical_workers": 3, "sync_frequency": 5}
    straight = make(rule, **settings, comm=alone)
    straight.train(model, total_steps=20_001)
    stopped = make(rule, **settings)
    with pytest.raises(TrainingStopped):
        stopped.train(model, total_steps=20_001, checkpoint_dir=folder, **stop_after(5_000))
    world.Barrier()
    restart()
    resumed = make(rule, **settings)
    resumed.train(model, total_steps=20_001, checkpoint_dir=folder)
    assert stopped.steps < resumed.steps == 20_001
    assert raw(resumed) == raw(straight)
    restart()
    other = make_agent(**settings)
    with pytest.raises((CheckpointMismatchError, RemoteRankError), match=f"algorithm: '{name}' there, 'q_l"):
        other.train(model, total_steps=20_001, checkpoint_dir=folder)


@NAMES
def test_many_ranks_are_stopped_and_gone_on_with(world, make, model, folder, restart, name):
    rule = RULES[name]
    stopped = make(rule)
    with pytest.raises(TrainingStopped):
        stopped.train(model, total_steps=10**10, checkpoint_dir=folder, **stop_after(20_000))
    world.Barrier()
    saved = DistAsyncQLearning.load_model(folder)
    assert saved.settings.algorithm == stopped.settings.algorithm
    if world.rank == 0:
        assert raw(saved) == raw(stopped) and saved.steps == stopped.steps
    restart()
    resumed = make(rule)
    more = stopped.steps + 5_000
    result = resumed.train(model, total_steps=more, checkpoint_dir=folder)
    assert result.resumed_from is not None and resumed.steps == more
    assert len(set(world.allgather(raw(resumed)))) == 1
    assert (resumed._state.counts >= saved._state.counts).all()


def test_a_rule_that_is_another_on_one_rank(world, make, model, several_ranks):
    rule = own_rules.DOUBLE_Q
    if world.rank == 1:
        unregister(rule)
        register(replace(rule, tables=(*rule.tables, "third")))
    try:
        agent = make(rule)
        with pytest.raises(RankMismatchError, match="tables of the rule: 'first, second: 20 rows' on rank 0"):
            agent.train(model, total_steps=1_000)
    finally:
        if world.rank == 1:
            unregister(rule)
            register(rule)
