"""The policy and the values of an agent, by observation: masks are obeyed, batches are answered in one go."""

import copy
import pickle
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import own_rules
import pytest
from gymnasium import spaces
from keyed_games import corridor
from older_models import without
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning, Policy, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.environments import TicTacToeEnv
from dist_classicrl.environments.identity import Identity
from dist_classicrl.errors import EnvMismatchError, OutsideSpaceError, SettingsError
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.policy import policy_of
from dist_classicrl.rules import LearningRule
from dist_classicrl.rules.registry import register, unregister
from dist_classicrl.settings import Settings

CAPACITY = 5


def inventory():
    """An inventory of up to five: nobody orders more than there is room for, and rewards are costs."""
    states = CAPACITY + 1
    mask = np.arange(states)[:, None] + np.arange(states) <= CAPACITY
    transition = np.zeros((states, states, states))
    reward = np.zeros((states, states))
    for stock in range(states):
        for order in range(states - stock):
            for demand in range(4):
                left = max(0, stock + order - demand)
                transition[stock, order, left] += 0.25
                reward[stock, order] -= 0.25 * (order + 0.5 * left + 4.0 * max(0, demand - stock - order))
    return TabularMDP.from_arrays(
        transition, reward, np.eye(states)[0], action_mask=mask, max_episode_steps=50, name="inventory"
    )


@pytest.fixture(scope="module")
def keeper():
    agent = DistAsyncQLearning(seed=1, discount_factor=0.9)
    agent.train(inventory(), total_steps=50_000)
    return agent


@pytest.mark.slow
def test_where_values_are_negative_the_policy_plays_legal_actions_and_argmax_of_the_table_does_not(
    keeper, tmp_path
):
    model = inventory()
    states = np.arange(model.n_states)
    assert not model.action_mask[states, keeper.q_table.argmax(axis=1)].all()
    truth = np.where(model.action_mask, keeper.q_table, -np.inf)
    for agent in (keeper, DistAsyncQLearning.load_model(keeper.save_model(tmp_path / "keeper.npz"))):
        policy = agent.policy
        assert isinstance(policy, Policy)
        for chosen in (
            policy.greedy,
            policy(states),
            agent.predict(states),
            agent.predict(states.tolist()),
            policy(range(6)),
        ):
            np.testing.assert_array_equal(chosen, truth.argmax(axis=1))
        np.testing.assert_array_equal(agent.action_values(states), truth)
        np.testing.assert_array_equal(agent.state_values(states), truth.max(axis=1))
        np.testing.assert_array_equal(policy.values, truth.max(axis=1))
        for state in states:
            assert policy(state) == agent.predict(int(state)) == truth[state].argmax()
            np.testing.assert_array_equal(agent.action_values(state), truth[state])
            assert agent.state_values(state) == truth[state].max()
        only = np.arange(6) == 0
        assert policy(0, only) == 0 and agent.state_values(0, only) == truth[0, 0]
        assert np.isneginf(agent.action_values(0, only)[1:]).all()
        rows = np.arange(6) == np.array([[1], [2]])
        assert policy([0, 1], rows).tolist() == [1, 2]
    assert model.start_value(model.policy_value(keeper.policy.greedy, 0.9)) < 0.0


@pytest.mark.slow
def test_a_policy_is_of_when_it_was_taken():
    agent = DistAsyncQLearning(seed=1)
    agent.train(inventory(), total_steps=2_000)
    policy = agent.policy
    before = policy.q.copy()
    agent.train(inventory(), total_steps=2_000)
    agent.q_table[:] = 7.0
    np.testing.assert_array_equal(policy.q, before)
    assert policy(0) == np.where(inventory().action_mask, before, -np.inf)[0].argmax()
    assert agent.state_values(0) == 7.0


class Nested(gym.Env):
    """Nine places and two flags; two whole numbers as action, one pair of which ends the episode."""

    observation_space = spaces.Dict({"at": spaces.MultiDiscrete([3, 3]), "flag": spaces.Discrete(2, start=1)})
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"at": self.np_random.integers(0, 3, 2), "flag": 1}, {}

    def step(self, action):
        seen = {"at": self.np_random.integers(0, 3, 2), "flag": int(self.np_random.integers(1, 3))}
        return seen, float(action.tolist() == [1, 2]), bool(self.np_random.random() < 0.2), False, {}


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Blackjack-v1", Nested])
def test_a_batch_gets_what_each_of_its_observations_gets(env):
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    agent.train(env, total_steps=3_000)
    one = gym.make(env) if isinstance(env, str) else env()
    vector = gym.vector.SyncVectorEnv([lambda: one] * 4)
    one.observation_space.seed(3)
    each = [one.observation_space.sample() for _ in range(4)]
    batch = gym.vector.utils.concatenate(
        one.observation_space, each, gym.vector.utils.create_empty_array(one.observation_space, 4)
    )
    for given in (batch, each):
        actions = agent.policy(given)
        assert vector.action_space.contains(actions)
        for observation, action in zip(each, actions, strict=True):
            np.testing.assert_array_equal(agent.predict(observation), action)
        values = agent.action_values(given)
        assert values.dtype == np.float64 and values.shape[0] == 4
        np.testing.assert_array_equal(values, [agent.action_values(observation) for observation in each])
        np.testing.assert_array_equal(agent.state_values(given), values.max(axis=1))
    assert isinstance(agent.state_values(each[0]), float)
    with pytest.raises(OutsideSpaceError):
        agent.action_values([*each[:1], ("not", "of", "this space")])


@pytest.mark.slow
def test_a_batch_with_masks_of_its_own():
    class Masked(Nested):
        observation_space = spaces.Dict(
            {"at": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)},
        )
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            gym.Env.reset(self, seed=seed)
            return {"at": 0, "action_mask": np.ones(2, np.int8)}, {}

        def step(self, action):
            return {"at": 1, "action_mask": np.ones(2, np.int8)}, -1.0, True, False, {}

    agent = DistAsyncQLearning(seed=1, n_envs=2)
    agent.train(Masked, total_steps=100)
    agent.q_table = [[1.0, 0.0]] * 3
    batch = {"at": np.array([0, 2]), "action_mask": np.array([[0, 1], [1, 1]], np.int8)}
    assert agent.policy(batch).tolist() == agent.predict(batch).tolist() == [1, 0]
    assert agent.action_values(batch).tolist() == [[-np.inf, 0.0], [1.0, 0.0]]
    assert agent.state_values(batch).tolist() == [0.0, 1.0]


@pytest.mark.slow
def test_ended_games_are_worth_nothing():
    transition = np.zeros((3, 2, 3))
    transition[:2, :, 2] = 1.0
    legal = np.array([[True, True], [False, True], [False, False]])
    model = TabularMDP.from_arrays(
        transition, -np.ones((3, 2)), [0.5, 0.5, 0.0], terminated=[False, False, True], action_mask=legal
    )
    agent = DistAsyncQLearning(seed=1)
    agent.train(model, total_steps=1_000)
    agent.q_table[:] = [[-3.0, -4.0]] * 3
    assert agent.state_values([0, 1, 2]).tolist() == agent.policy.values.tolist() == [-3.0, -4.0, 0.0]
    assert agent.state_values(2) == 0.0
    assert agent.action_values([1, 2]).tolist() == [[-np.inf, -4.0], [-3.0, -4.0]]


@pytest.mark.slow
def test_a_loaded_agent_that_was_not_told_its_environment_takes_no_observation_for_a_batch(tmp_path):
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    agent.train(Nested, total_steps=200)
    path = without(agent.save_model(tmp_path / "nested.npz"), "spaces")
    loaded = DistAsyncQLearning.load_model(path)
    for given in ([1, 2], np.array([1, 2]), (1, 2), {"at": np.array([1, 2]), "flag": 1}):
        for ask in (loaded.predict, loaded.action_values, loaded.policy):
            with pytest.raises(SettingsError, match=r"load_model\(path, env=...\)"):
                ask(given)
    told = DistAsyncQLearning.load_model(path, env=Nested)
    assert told.predict({"at": np.array([[1, 2]]), "flag": np.array([1])}).shape == (1, 2)


@pytest.mark.slow
def test_what_is_no_state_is_refused_in_a_batch_too(keeper):
    for wrong in (6, -1, [0, 6], 2.0, "3", [[0, 1]], [[0], [1, 2]], None):
        for ask in (keeper.policy, keeper.predict, keeper.action_values, keeper.state_values):
            with pytest.raises(SettingsError, match="from 0 to 5, got .*array of states is a batch"):
                ask(wrong)
    with pytest.raises(SettingsError, match=r"shape \(2, 6\), be of booleans \(or 0 and 1\) and allow an"):
        keeper.predict([0, 1], np.zeros((2, 6)))


def test_callbacks_see_the_policy_as_it_is():
    class Looker(BaseCallback):
        seen = ()

        def _on_step(self):
            agent = self.model
            np.testing.assert_array_equal(agent.policy.greedy, agent.predict(np.arange(6)))
            assert agent.action_values(0).max() == agent.state_values(0) == agent.policy.values[0]
            self.seen = (*self.seen, agent.state_values(0))
            return True

    looker = Looker()
    DistAsyncQLearning(seed=1).train(
        inventory(), total_steps=400_000, callbacks=looker, progress_interval=0.0
    )
    assert len(set(looker.seen)) > 1


class Corridor(gym.Env):
    """A way of five cells, -1 a step: at its left end a wall, which only `info` tells of."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def _told(self):
        return {"action_mask": np.array([self.cell > 0, True])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return 0, self._told()

    def step(self, action):
        assert self._told()["action_mask"][action]
        self.cell += 1 if action else -1
        return self.cell, -1.0, self.cell == 4, False, self._told()


@pytest.mark.slow
def test_what_masks_forbade_where_they_were_told_by_and_by_is_not_played(tmp_path):
    agent = DistAsyncQLearning(seed=1, discount_factor=0.9)
    agent.train(Corridor, total_steps=20_000)
    assert agent.q_table[0].argmax() == 0  # illegal: all that is known is negative
    for one in (agent, DistAsyncQLearning.load_model(agent.save_model(tmp_path / "corridor.npz"))):
        assert one.predict(0) == one.policy(0) == one.policy.greedy[0] == 1
        np.testing.assert_allclose(one.action_values(0), [-np.inf, -3.439], atol=0.01)
        assert one.state_values(0) == one.policy.values[0] == one.action_values(0)[1]
        assert one.predict([0, 1, 2, 3]).tolist() == [1, 1, 1, 1]
        assert one.predict(0, action_mask=[True, False]) == 0  # who gives a mask is believed
        assert one.predict(4) == 0  # of an end nothing is known
    agent.q_table[0, 0] = 5.0  # by hand: something is known of it
    assert agent.predict(0) == 0


@pytest.mark.slow
def test_what_a_table_begins_with_is_not_taken_for_something_known():
    for dtype in ("float64", "float32"):
        agent = DistAsyncQLearning(seed=1, discount_factor=0.9, initial_value=0.3, dtype=dtype)
        agent.train(Corridor, total_steps=20_000)
        assert agent.q_table[0].argmax() == 0 and agent.visits[0, 0] == 0
        assert agent.predict(0) == agent.policy(0) == agent.policy.greedy[0] == 1


class Triple(NamedTuple):
    """Three tables, whose mean is not always the number that all of them begin with."""


@pytest.mark.parametrize("n_tables", [1, 2, 3, 5, 7, 9])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_several_tables_begin_with_is_not_taken_for_something_known_either(n_tables, dtype):
    rule = LearningRule("own_several", Triple, own_rules.learn_double, tables=tuple("abcdefghi"[:n_tables]))
    register(rule)
    try:
        for value in (0.1, 0.2, 0.21, 0.3, 0.6, 0.7, 1.1, 2.3, -0.3):
            settings = Settings(algorithm="own_several", initial_value=value, dtype=dtype)
            state = AgentState(settings)
            state.make_table(4, 3)
            state.environment = Identity("ways", 4, 3, "", may_tell_masks=True)
            state.n_actions = 3
            first = state.shape.tables(state.values)[0]
            first[2, 1] = value - 5.0  # the only action that was not forbidden
            state.shape.tables(state.counts)[0][2, 1] = 4
            policy = policy_of(state)
            assert state.lookup().choose(2) == policy(2) == policy.greedy[2] == 1
            assert state.lookup().choose([0, 2]).tolist() == [0, 1]
            assert policy.allowed(2, 3).tolist() == [[False, True, False]]
    finally:
        unregister(rule)


def test_who_is_to_learn_in_two_environments_is_told_the_size_for_both():
    agent = DistAsyncQLearning(seed=1)
    agent.train("CliffWalking-v1", total_steps=100)
    with pytest.raises(EnvMismatchError, match="state_size=500, action_size=6"):
        agent.train("Taxi-v4", total_steps=100)
    agent = DistAsyncQLearning(seed=1)
    agent.train("Blackjack-v1", total_steps=100)
    with pytest.raises(EnvMismatchError, match="state_size=704, action_size=4"):
        agent.train("FrozenLake-v1", total_steps=100)


@pytest.mark.slow
def test_a_policy_cannot_be_written_to():
    agent = DistAsyncQLearning(seed=1)
    agent.train(TicTacToeEnv(), total_steps=200)
    policy = agent.policy
    for array in (policy.q, policy.visits, policy.legal, policy.greedy, policy.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    agent.q_table[0] = agent.visits[0] = 1  # which is not the policy's


@pytest.mark.parametrize("env", [SteppedLake, corridor()], ids=["numbered", "keyed"])
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_policy_is_copied_as_well_after_it_was_called(env, make_copy):
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    agent.train(env, total_steps=200)
    policy = agent.policy
    seen = [policy.observations.decode(state) for state in range(3)]
    chosen = [policy(each) for each in seen]
    copied = make_copy(policy)
    assert [copied(each) for each in seen] == chosen
    np.testing.assert_array_equal(copied.greedy, policy.greedy)
    assert not copied.q.flags.writeable and not np.may_share_memory(copied.q, policy.q)


@pytest.mark.parametrize(
    "name, given",
    [("q", [[1.0, 2.0], [3.0]]), ("q", [1.0, 2.0]), ("visits", 5), ("legal", [[True, False], [True]])],
)
def test_rows_that_make_no_table_are_no_policy(name, given):
    rows = {"q": [[1.0, 2.0], [4.0, 3.0]], "visits": [[1, 0], [1, 1]], "legal": [[True, True], [False, True]]}
    made = Policy(**rows)
    assert made.greedy.tolist() == [1, 1] and made.values.tolist() == [2.0, 3.0]
    with pytest.raises(SettingsError, match=rf"{name} must be an array of shape \(states, actions\), .* got"):
        Policy(**{**rows, name: given})
