"""What an agent says and holds of a learning rule from outside the package."""

import json
import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import own_rules
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.cli.main import main
from dist_classicrl.errors import (
    CheckpointError,
    CheckpointMismatchError,
    EnvError,
    ModelFileError,
    SettingsError,
)
from dist_classicrl.learning.rules import find
from dist_classicrl.learning.rules.kernel import entry_of, move, rule_function, unvisited, update
from dist_classicrl.model import places
from dist_classicrl.rules import LearningRule, Shared, registry
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.schedules import Constant
from dist_classicrl.settings import Settings

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

MODEL = TabularMDP.garnet(6, 2, 2, seed=1)


@pytest.fixture(autouse=True, scope="module")
def registered():
    with own_rules.registered():
        yield


def agent_of(rule, **settings):
    return DistAsyncQLearning(algorithm=rule.parameters(), seed=3, **settings)


def table_of(agent, table):
    """Return one of the tables of an agent's rule."""
    return agent._state.shape.tables(agent._state.values)[table]


@pytest.fixture(scope="module")
def trained():
    """Give an agent with two tables that has learned a little."""
    agent = agent_of(own_rules.DOUBLE_Q)
    agent.train(MODEL, total_steps=2_000)
    return agent


def test_a_rule_has_defaults_of_its_own():
    agent = agent_of(own_rules.N_STEP_SARSA)
    usual = Settings()
    assert agent.settings.epsilon == Constant(0.2)
    assert agent.settings.learning_rate == usual.learning_rate
    assert agent_of(own_rules.N_STEP_SARSA, epsilon=0.1).settings.epsilon == Constant(0.1)
    assert agent_of(own_rules.DOUBLE_Q).settings.epsilon == usual.epsilon
    by_name = DistAsyncQLearning(algorithm="own_n_step_sarsa")
    assert by_name.settings.epsilon == Constant(0.2)
    assert DistAsyncQLearning(**by_name.settings.arguments()).settings == by_name.settings


def test_hyper_parameters_are_those_of_the_object(tmp_path):
    agent = DistAsyncQLearning(algorithm=own_rules.NStepSarsa(2), state_size=6, action_size=2)
    assert agent.settings.algorithm == {"name": "own_n_step_sarsa", "n": 2}
    json.dumps(agent.settings.to_dict())
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    assert loaded.settings == agent.settings
    with pytest.raises(SettingsError, match="n must be a whole number of at least 1, got 0"):
        DistAsyncQLearning(algorithm=own_rules.NStepSarsa(0))


def test_the_table_of_several_is_their_mean(trained):
    first, second = table_of(trained, 0), table_of(trained, 1)
    assert (first != second).any()
    np.testing.assert_array_equal(trained.q_table, (first + second) / 2.0)
    assert trained.visits.sum() == 2_000 and trained.q_table.shape == (6, 2)
    for array in (trained.q_table, trained.visits):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    assert [trained.predict(state) for state in range(6)] == trained.q_table.argmax(axis=1).tolist()


def test_what_is_set_goes_into_all_tables():
    agent = agent_of(own_rules.DOUBLE_Q, state_size=6, action_size=2)
    agent.q_table = np.arange(12.0).reshape(6, 2)
    for table in (0, 1):
        np.testing.assert_array_equal(table_of(agent, table), np.arange(12.0).reshape(6, 2))
    np.testing.assert_array_equal(agent.q_table, np.arange(12.0).reshape(6, 2))


def test_all_tables_are_in_a_model_file(trained, tmp_path):
    path = trained.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(path)
    np.testing.assert_array_equal(loaded._state.values, trained._state.values)
    np.testing.assert_array_equal(loaded._state.counts, trained._state.counts)
    with np.load(path) as archive:
        np.testing.assert_array_equal(archive["q_table"], trained.q_table)
    loaded.train(MODEL, total_steps=100)
    assert loaded.steps == 2_100


def test_what_was_saved_of_a_rule_that_is_not_known_asks_for_the_rule(tmp_path, capsys):
    agent = agent_of(own_rules.DOUBLE_Q)
    agent.train(MODEL, total_steps=1_000, checkpoint_dir=tmp_path / "saved")
    path = agent.save_model(tmp_path / "model.npz")
    unregister(own_rules.DOUBLE_Q)
    try:
        for error, where in ((ModelFileError, path), (CheckpointError, tmp_path / "saved")):
            with pytest.raises(error) as caught:
                DistAsyncQLearning.load_model(where)
            assert re.fullmatch(
                rf"{where}\S* cannot be loaded: its learning rule, 'own_double_q', is not known here\. "
                r"Register it first, on every rank, .*; the command line knows the package's own rules only.",
                str(caught.value),
            )
            assert main(["show", str(where)]) == 2 and str(caught.value) in capsys.readouterr().err
    finally:
        register(own_rules.DOUBLE_Q)


def test_a_rule_by_another_name_does_not_take_the_tables(trained, tmp_path):
    path = trained.save_model(tmp_path / "model.npz")
    three = own_rules.DOUBLE_Q.tables
    unregister(own_rules.DOUBLE_Q)
    rule = LearningRule(
        "own_double_q", own_rules.DoubleQ, own_rules.learn_double, None, tables=(*three, "third")
    )
    register(rule)
    try:
        with pytest.raises(ModelFileError, match="its tables are not those of the algorithm 'own_double_q'"):
            DistAsyncQLearning.load_model(path)
    finally:
        unregister(rule)
        register(own_rules.DOUBLE_Q)


def test_what_fits_of_another_rules_table_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})
    options = {"checkpoint_dir": tmp_path, "total_steps": 1_000}
    plain = DistAsyncQLearning(seed=3)
    plain.train(MODEL, **options)
    places._agents.clear()  # as in a new process
    agent = agent_of(own_rules.DOUBLE_Q)
    with pytest.raises(CheckpointMismatchError, match="algorithm: 'q_learning' there, 'own_double_q' here"):
        agent.train(MODEL, **options)
    assert agent.steps == 0
    agent.train(MODEL, strict=False, **options)
    assert agent.steps == 1_000
    for table in (0, 1):
        np.testing.assert_array_equal(table_of(agent, table), plain.q_table)
    np.testing.assert_array_equal(agent._state.counts[:6], plain.visits // 2)


def test_tables_of_another_definition_are_not_taken_for_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_agents", {})
    rule = own_rules.DIFFERENTIAL
    agent_of(rule).train(MODEL, total_steps=1_000, checkpoint_dir=tmp_path)
    unregister(rule)
    larger = register(replace(rule, shared=(*rule.shared, Shared("more", "sum", 2))))
    try:
        places._agents.clear()
        with pytest.raises(CheckpointError, match="its tables are not those of the algorithm 'own_diff"):
            agent_of(rule).train(MODEL, total_steps=1_001, checkpoint_dir=tmp_path)
    finally:
        unregister(larger)
        register(rule)


def test_rows_of_another_rule_are_not_taken_for_its_own(tmp_path, monkeypatch):
    """Differential values of 7 states have as many rows as two tables of 4 states."""
    monkeypatch.setattr(places, "_agents", {})
    options = {"checkpoint_dir": tmp_path, "total_steps": 500}
    other = agent_of(own_rules.DIFFERENTIAL)
    other.train(TabularMDP.garnet(7, 2, 2, seed=1), **options)
    places._agents.clear()
    agent = agent_of(own_rules.DOUBLE_Q)
    agent.train(TabularMDP.garnet(4, 2, 2, seed=1), strict=False, **options)
    for table in (0, 1):
        np.testing.assert_array_equal(table_of(agent, table), other.q_table[:4])


@pytest.mark.parametrize("dtype, large", [("float64", 1.5e308), ("float32", 3e38)])
def test_the_mean_of_large_values_is_finite(dtype, large, tmp_path):
    agent = agent_of(own_rules.DOUBLE_Q, state_size=6, action_size=2, dtype=dtype)
    agent.q_table = np.full((6, 2), large)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    np.testing.assert_allclose(loaded.q_table, large, rtol=1e-6)


def test_the_environment_has_the_size_of_the_table():
    agent = agent_of(own_rules.DOUBLE_Q, state_size=7, action_size=2)
    with pytest.raises(EnvError, match="6 states and 2 actions, and the table 7 and 2. They must be"):
        agent.train(MODEL, total_steps=10)
    assert agent.steps == 0


def test_a_rule_that_cannot_replay_says_so():
    with pytest.raises(SettingsError, match="'own_double_q' cannot do: .* Write replay_ratio=0, or take"):
        agent_of(own_rules.DOUBLE_Q, replay_ratio=0.5)
    assert agent_of(own_rules.EXPECTED_SARSA, replay_ratio=0.5).settings.replay_ratio == 0.5


def test_a_rule_that_is_not_reproducible_says_so():
    class Hasty(own_rules.ExpectedSarsa):
        pass

    rule = register(LearningRule("hasty", Hasty, own_rules.learn_expected, None, is_reproducible=False))
    try:
        agent = DistAsyncQLearning(algorithm="hasty")
        with pytest.raises(SettingsError, match=r"no place in the reproducible mode \(async_updates=False\)"):
            DistAsyncQLearning(algorithm="hasty", async_updates=False)
        assert agent.settings.async_updates
    finally:
        unregister(rule)


class Traces(NamedTuple):
    """Moves the chosen entry to 1 as a trace does, without a visit."""

    amount: float = 1.0


@rule_function
def learn_without_a_visit(rule, context, now, step, learned):
    entry = entry_of(context, step.state, step.action)
    return move(context, unvisited(now), entry, rule.amount, 0.5, learned)


@pytest.fixture
def traces():
    rule = register(LearningRule("own_traces", Traces, learn_without_a_visit, None))
    yield rule
    unregister(rule)


@pytest.mark.parametrize("async_updates", [True, False])
def test_what_is_no_visit_is_learned_all_the_same(traces, async_updates):
    agent = DistAsyncQLearning(algorithm=Traces(2.0), seed=1, async_updates=async_updates, epsilon=1.0)
    agent.train(MODEL, total_steps=20_000)
    np.testing.assert_allclose(agent.q_table, 2.0, rtol=1e-6)
    assert agent.visits.sum() == 0


def test_hyper_parameters_are_numbers_of_the_types_of_their_defaults(traces):
    for amount in (np.float32(0.25), 0.25):
        settings = DistAsyncQLearning(algorithm=Traces(amount)).settings
        assert json.loads(json.dumps(settings.algorithm)) == {"name": "own_traces", "amount": 0.25}
    assert DistAsyncQLearning(algorithm=Traces(1)).settings.algorithm == "own_traces"
    for amount in ("x", None, np.nan, np.inf, True, [1.0]):
        with pytest.raises(SettingsError, match="Traces: amount must be a finite number, got"):
            DistAsyncQLearning(algorithm=Traces(amount))
    with pytest.raises(SettingsError, match="NStepSarsa: n must be a whole number of 64 bits, got 2.5"):
        DistAsyncQLearning(algorithm=own_rules.NStepSarsa(2.5))


def test_what_cannot_be_registered_as_a_rule():
    class Open(NamedTuple):
        amount: float

    with pytest.raises(SettingsError, match="in Open amount must have a default that is a number, True or"):
        register(LearningRule("open", Open, learn_without_a_visit, None))


def test_a_rule_that_is_written_anew_learns_what_it_says_now():
    def cell(reward):
        class Paid(NamedTuple):
            pass

        @rule_function
        def learn_paid(rule, context, now, step, learned):
            return update(context, now, step.state, step.action, reward, learned)

        return register(LearningRule("paid", Paid, learn_paid))

    learned = []
    for reward in (1.0, 2.0):
        rule = cell(reward)
        agent = DistAsyncQLearning(algorithm="paid", learning_rate=1.0, seed=1)
        agent.train(MODEL, total_steps=100)
        learned.append(agent.q_table.max())
    unregister(rule)
    assert learned == [1.0, 2.0]


def test_what_is_not_jitted_is_no_rule():
    class Plain(NamedTuple):
        pass

    rule = register(LearningRule("plain", Plain, lambda *arguments: None, None))
    try:
        with pytest.raises(SettingsError, match="of the learning rule 'plain' is not jitted. Put @rule_func"):
            DistAsyncQLearning(algorithm=Plain())
    finally:
        unregister(rule)


class Forgetful(NamedTuple):
    """Does not give back what was learned."""


@rule_function
def learn_and_forget(rule, context, now, step, learned):
    update(context, now, step.state, step.action, step.reward, learned)


@rule_function
def learn_by_cases(rule, context, now, step, learned):
    if step.terminated:
        return update(context, now, step.state, step.action, step.reward, learned)
    elif not step.terminated:
        return update(context, now, step.state, step.action, step.reward, learned)


def test_a_rule_that_returns_nothing_is_named():
    rule = register(LearningRule("forgetful", Forgetful, learn_and_forget))
    try:
        told = "^learn_and_forget of the learning rule 'forgetful' .*py, line [0-9]+. returns None"
        with pytest.raises(SettingsError, match=told):
            DistAsyncQLearning(algorithm="forgetful", seed=1).train(MODEL, total_steps=100)
    finally:
        unregister(rule)


def test_a_rule_that_returns_on_each_way_is_none_of_these_though_its_code_may_end_otherwise():
    rule = register(LearningRule("forgetful", Forgetful, learn_by_cases))
    try:
        agent = DistAsyncQLearning(algorithm="forgetful", seed=1)
        assert agent.train(MODEL, total_steps=100).steps == 100
    finally:
        unregister(rule)


def test_a_rule_that_cannot_be_compiled_is_named():
    class Typo(NamedTuple):
        pass

    @rule_function
    def learn_nothing(rule, context, now, step, learned):
        return contxt  # noqa: F821

    rule = register(LearningRule("typo", Typo, learn_nothing, None))
    try:
        with pytest.raises(SettingsError, match=r"'typo' \(.*test_own_rules.py, line \d+\) cannot be"):
            DistAsyncQLearning(algorithm=Typo()).train(MODEL, total_steps=10)
    finally:
        unregister(rule)


class AlwaysCompares(NamedTuple):
    """The hyper-parameters of Q-learning with upper confidence bounds."""

    horizon: int = 10
    bonus: float = 0.05


def test_what_the_table_knows_of_the_best_action_makes_no_difference_to_upper_confidence_bounds():
    rule = find("ucb_q_learning")[0]
    register(replace(rule, name="always_compares", parameters=AlwaysCompares, is_by_value=None))
    tables = []
    try:
        for algorithm in ("ucb_q_learning", AlwaysCompares()):
            agent = DistAsyncQLearning(algorithm=algorithm, seed=5, discount_factor=0.9)
            agent.train(MODEL, total_steps=3_000)
            tables.append(agent.q_table)
    finally:
        unregister(registry.registered("always_compares"))
    assert 0 < (tables[0] == 0.0).sum() < 6  # some were never tried, and most states are settled
    np.testing.assert_array_equal(*tables)
