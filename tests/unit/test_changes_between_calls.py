"""Scripts that change the table between their calls of train, started again."""

import copy
import pickle
import signal
import sys

import numpy as np
import pytest
from keyed_games import corridor
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.agent.agent import state_of
from dist_classicrl.data import play_episodes
from dist_classicrl.errors import EnvError, SettingsError
from dist_classicrl.model import places
from dist_classicrl.model.agent_state import digest
from dist_classicrl.tables import large_table

ENV = "FrozenLake-v1"
LAKE = TabularMDP.from_gymnasium(ENV)
STEPS = 5_000


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Give a function that runs a script of several calls, as a new process would."""

    def run(calls, change=lambda agent: None, folder=tmp_path, **settings):
        monkeypatch.setattr(places, "_agents", {})
        agent = DistAsyncQLearning(seed=3, epsilon=0.5, **settings)
        for _ in range(calls):
            agent.train(ENV, total_steps=STEPS, checkpoint_dir=folder)
            change(agent)
        return agent

    return run


def halve(agent):
    agent.q_table *= 0.5


def learn_what_was_logged(agent):
    agent.learn(play_episodes(LAKE, np.full((16, 4), 0.25), 20, seed=0), epochs=1)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("before", [1, 3, 4])
@pytest.mark.parametrize("change", [halve, learn_what_was_logged])
def test_a_change_after_each_call_is_not_made_twice(script, tmp_path, dtype, before, change):
    straight = script(4, change, tmp_path / "straight", dtype=dtype)
    assert straight.q_table.any() and straight.steps == 4 * STEPS
    script(before, change, tmp_path / "again", dtype=dtype)
    again = script(4, change, tmp_path / "again", dtype=dtype)
    assert again.steps == straight.steps
    if (before, change) != (4, learn_what_was_logged):  # what comes after the last call is made each time
        np.testing.assert_array_equal(again.q_table, straight.q_table)
        np.testing.assert_array_equal(again.visits, straight.visits)


def test_a_change_after_the_last_call_that_was_made_counts(script, tmp_path):
    script(2, folder=tmp_path)
    agent = script(2, folder=tmp_path)
    agent.q_table[:] = 7.0
    agent.train(ENV, total_steps=10, checkpoint_dir=tmp_path)
    # Ten steps at step size 0.1 leave most entries as they were set.
    assert np.count_nonzero(agent.q_table == 7.0) > agent.q_table.size // 2


def test_digests_tell_tables_apart():
    table = np.random.default_rng(0).random((3000, 7))
    for change in (lambda t: t[::-1], lambda t: t + 1.0, lambda t: np.where(np.arange(7) == 6, 0.0, t)):
        assert digest(np.ascontiguousarray(change(table))) != digest(table)
    one = table.copy()
    one[1500, 3] = np.nextafter(one[1500, 3], 1.0)
    last = table.copy()
    last[-1, -1] = 0.0
    assert len({digest(array) for array in (table, one, last)}) == 3
    assert digest(table.copy()) == digest(table)
    odd = np.ones((1, 3), np.float32)
    assert digest(odd) != digest(2 * odd)


def test_a_second_agent_of_a_notebook_is_told_where_it_saves(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(places, "_agents", {})
    for settings in ({"seed": 1}, {"seed": 2}, {}, {}, {"seed": 1, "epsilon": 0.2}):
        DistAsyncQLearning(**settings).train(ENV, total_steps=10, checkpoint_dir=tmp_path)
    DistAsyncQLearning(seed=1).train("Taxi-v4", total_steps=10, checkpoint_dir=tmp_path)
    assert not caplog.records
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    DistAsyncQLearning(seed=3).train(ENV, total_steps=10, checkpoint_dir=tmp_path)
    assert "6 agents of this process" in caplog.text and "agent-6" in caplog.text
    assert 'by if "agent" not in globals():' in caplog.text
    monkeypatch.setattr(places, "_agents", {str(tmp_path / "other"): [""]})
    DistAsyncQLearning(seed=1).train(ENV, total_steps=10, checkpoint_dir=tmp_path / "other")
    assert "1 agent of this process" in caplog.text


def test_an_agent_that_begins_what_another_one_of_its_process_began_is_told_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(places, "_agents", {})
    for _ in range(2):  # a cell that is run twice, in whatever runs cells
        agent = DistAsyncQLearning(seed=1)
        assert not caplog.records
        agent.train(ENV, total_steps=10, checkpoint_dir=tmp_path)
    agent.train(ENV, total_steps=10, checkpoint_dir=tmp_path)
    (record,) = caplog.records
    assert "subfolder of its own, agent-1, and does not go on" in record.getMessage()


@pytest.mark.parametrize("is_of_study", [False, True])
def test_ctrl_c_at_a_prompt_says_what_goes_on(tmp_path, monkeypatch, caplog, is_of_study):
    monkeypatch.setattr(places, "_agents", {})
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    agent = DistAsyncQLearning(seed=1)
    state_of(agent).is_of_study = is_of_study
    with pytest.raises(KeyboardInterrupt):
        agent.train(
            ENV,
            total_steps=10**12,
            progress=lambda _: signal.raise_signal(signal.SIGINT),
            progress_interval=0,
            checkpoint_dir=tmp_path,
        )
    who = "the same sweep" if is_of_study else "train() of this agent"
    assert f"{who} goes on from there" in caplog.text
    steps = agent.steps
    assert agent.train(ENV, total_steps=10, checkpoint_dir=tmp_path).steps == 10 == agent.steps - steps


@pytest.mark.slow
@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize(
    "name, value",
    [("epsilon", 1.0), ("learning_rate", 0.5), ("max_states", 900), ("q_table", np.ones((16, 4)))],
)
def test_what_a_training_would_not_take_is_not_set_while_it_runs(async_updates, name, value):
    agent = DistAsyncQLearning(seed=1, epsilon=0.3, learning_rate=0.1, async_updates=async_updates)
    with pytest.raises(SettingsError, match=f"{name} cannot be set while the agent trains.*two calls"):
        agent.train("FrozenLake-v1", total_steps=2_000, callbacks=lambda _: setattr(agent, name, value))
    assert (agent.epsilon, agent.learning_rate, agent.max_states) == (0.3, 0.1, None)
    assert not agent.q_table[15].any()  # where nobody acts
    setattr(agent, name, value)
    agent.train("FrozenLake-v1", total_steps=10)


def test_a_copy_learns_by_itself():
    agent = DistAsyncQLearning(seed=1)
    agent.train("FrozenLake-v1", total_steps=1_000)
    before, other = agent.q_table.copy(), copy.copy(agent)
    other.train("FrozenLake-v1", total_steps=1_000)
    assert (agent.steps, other.steps) == (1_000, 2_000)
    np.testing.assert_array_equal(agent.q_table, before)
    assert not np.array_equal(other.q_table, before)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
@pytest.mark.parametrize(
    "env, settings, large_from",
    [
        (ENV, {}, None),
        (SteppedLake, {"algorithm": "double_q_learning"}, None),
        (corridor(), {}, None),
        (ENV, {"initial_value": 1.0}, 10),
    ],
    ids=["compiled", "stepped", "keyed", "large"],
)
def test_a_copy_that_a_callback_makes_is_another_agent_with_the_table_of_then(
    env, settings, large_from, make_copy, monkeypatch, tmp_path
):
    if large_from is not None:
        monkeypatch.setattr(large_table, "FROM_ENTRIES", large_from)
    agent, kept = DistAsyncQLearning(seed=1, **settings), []

    def keep(heard):
        if heard["num_timesteps"] >= 500 and not kept:
            kept.extend([make_copy(agent), np.array(rows(agent.q_table)), heard["num_timesteps"]])

    def rows(table):
        return getattr(table, "array", table)

    agent.train(env, total_steps=2_000, callbacks=keep, checkpoint_dir=tmp_path)
    learned = np.array(rows(agent.q_table))
    other, table, steps = kept
    assert other.steps == rows(other.visits).sum() == steps < 2_000
    np.testing.assert_array_equal(rows(other.q_table), table)
    assert other.run_id != agent.run_id
    other.epsilon = 0.5
    assert other.train(env, total_steps=700).steps == 700
    assert other.steps == rows(other.visits).sum() == steps + 700
    np.testing.assert_array_equal(rows(agent.q_table), learned)
    assert agent.steps == rows(agent.visits).sum() == 2_000


@pytest.mark.parametrize("env, large_from", [(ENV, None), (SteppedLake, None), (ENV, 10)])
def test_what_a_training_would_overwrite_is_read_only_while_it_runs(env, large_from, monkeypatch):
    if large_from is not None:
        monkeypatch.setattr(large_table, "FROM_ENTRIES", large_from)
    agent = DistAsyncQLearning(seed=1)
    for name in ("q_table", "visits"):
        with pytest.raises(ValueError, match="read-only"):
            agent.train(env, 500, callbacks=lambda _, name=name: getattr(agent, name).__setitem__(0, 0))
        getattr(agent, name)[0] = 7
        assert (getattr(agent, name)[0] == 7).all()


def test_too_few_states_are_told_whether_something_was_learned_or_not():
    agent = DistAsyncQLearning(seed=1)
    agent.train("FrozenLake-v1", total_steps=100)
    agent.max_states = 3
    for one in (agent, DistAsyncQLearning(max_states=3)):
        with pytest.raises(EnvError, match="has 16 states, and max_states=3 allows no more. Leave it out"):
            one.train("FrozenLake-v1", total_steps=100)
