"""What `predict` names: legal actions only, and, after loading, of the environment's own observations."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from older_models import without
from rank_environments import SteppedLake

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.agent.agent import state_of
from dist_classicrl.environments import TicTacToeEnv
from dist_classicrl.environments.identity import Identity
from dist_classicrl.environments.stepped.spaces import SpaceIndex
from dist_classicrl.errors import EnvError, ModelFileError, OutsideSpaceError, SettingsError
from dist_classicrl.model import model_file


@pytest.mark.slow
def test_predict_names_legal_actions_of_a_compiled_game_also_after_loading(tmp_path):
    env = TicTacToeEnv(agent_plays="second")
    agent = DistAsyncQLearning(seed=1, state_size=400)
    agent.train(env, total_steps=1_000)
    agent.q_table = np.zeros((400, 9)) - 1.0  # illegal pairs look no worse than legal ones
    agent.q_table[:, 0] = 5.0
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "game"))
    env.reset(seed=0)
    refused = 0
    for state in range(env.observation_space.n):
        legal = env._rules.legal[state]
        refused += not legal[0]
        for one in (agent, loaded):
            assert legal[one.predict(state)]
            assert one.predict(state) == (0 if legal[0] else np.flatnonzero(legal)[0])
    assert refused > 20
    assert loaded.predict(350) == 0  # beyond the game's states nothing is known


def test_a_mask_in_the_observation_is_followed():
    agent = DistAsyncQLearning(state_size=3, action_size=2)
    seen = spaces.Dict({"at": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    state_of(agent).observations = SpaceIndex(seen, mask_key="action_mask")
    agent.q_table = [[1.0, 0.0]] * 3
    assert agent.predict({"at": 1, "action_mask": np.array([0, 1], np.int8)}) == 1
    assert agent.predict({"at": 1}) == 0


@pytest.mark.parametrize("space", [None, spaces.Discrete(3), spaces.Discrete(3, start=5)])
def test_an_empty_list_is_a_batch_of_no_observations(space):
    agent = DistAsyncQLearning(state_size=3, action_size=2)
    state_of(agent).observations = None if space is None else SpaceIndex(space)
    assert agent.predict([]).tolist() == agent.policy([]).tolist() == agent.state_values([]).tolist() == []
    assert agent.action_values([]).shape == (0, 2)
    with pytest.raises((SettingsError, OutsideSpaceError)):
        agent.predict([[]])


def test_a_list_of_legal_actions_is_no_mask():
    agent = DistAsyncQLearning(state_size=3, action_size=3)
    assert agent.predict(0, np.array([0, 0, 1], np.uint8)) == agent.predict(0, [False, False, True]) == 2
    for wrong in ([0, 1, 2], [-1, 0, 0], [[0, 1, 2]]):
        states = 0 if np.ndim(wrong) == 1 else [0]
        for ask in (agent.predict, agent.policy, agent.action_values, agent.state_values):
            with pytest.raises(SettingsError, match=r"got \[.*does not list those that are"):
                ask(states, wrong)


def test_the_masks_in_a_list_of_observations_are_followed():
    agent = DistAsyncQLearning(state_size=3, action_size=2)
    seen = spaces.Dict({"at": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    state_of(agent).observations = SpaceIndex(seen, mask_key="action_mask")
    agent.q_table = [[1.0, 0.0]] * 3
    batch = [{"at": 1, "action_mask": np.array(mask, np.int8)} for mask in ([0, 1], [1, 1], [1, 0])]
    for chosen in (agent.predict(batch), agent.policy(batch)):
        assert chosen.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(agent.action_values(batch), [agent.action_values(one) for one in batch])
    assert agent.state_values(batch).tolist() == [0.0, 1.0, 1.0]
    assert agent.predict([{"at": 1}, {"at": 2}]).tolist() == [0, 0]
    with pytest.raises(
        SettingsError, match="2 of 3 observations have an 'action_mask', and number 1 has none"
    ):
        agent.predict([batch[0], {"at": 1}, batch[2]])
    with pytest.raises(SettingsError, match=r"action_mask must have shape \(2, 2\)"):
        agent.predict([batch[0], {"at": 1, "action_mask": np.ones(3, np.int8)}])


def test_a_loaded_agent_can_be_told_its_environment(tmp_path):
    agent = DistAsyncQLearning(seed=2, n_envs=2)
    agent.train("Blackjack-v1", total_steps=2_000)
    path = agent.save_model(tmp_path / "blackjack.pkl")
    hand = (20, 10, 0)
    agent.q_table[:] = 0.0
    agent.q_table[state_of(agent).observations.encode(hand), 1] = 1.0
    agent.save_model(path)
    assert DistAsyncQLearning.load_model(path).predict(hand) == 1
    with pytest.raises(SettingsError, match=r"load_model\(path, env=...\)"):
        DistAsyncQLearning.load_model(without(path, "spaces")).predict(hand)
    told = DistAsyncQLearning.load_model(path, env="Blackjack-v1")
    assert told.predict(hand) == 1
    assert told.predict((19, 10, 0)) == 0
    assert told.steps == 2_000
    with pytest.raises(EnvError, match="Taxi-v4 has 500"):
        DistAsyncQLearning.load_model(_saved_lake(tmp_path), env="Taxi-v4")


def _saved_lake(folder):
    agent = DistAsyncQLearning(seed=2)
    agent.train("FrozenLake-v1", total_steps=100)
    return agent.save_model(folder / "lake")


@pytest.mark.slow
def test_a_model_file_whose_mask_was_left_out_is_refused(tmp_path):
    agent = DistAsyncQLearning(seed=1)
    agent.train(TicTacToeEnv(), total_steps=100)
    path = agent.save_model(tmp_path / "game.npz")
    with np.load(path, allow_pickle=False) as file:
        members = dict(file)
    assert members.pop("legal").shape == (338, 9)
    np.savez(path, **members)
    with pytest.raises(ModelFileError, match="legal"):
        model_file.read(path)


def test_sizes_given_alone_hold_for_a_table_that_is_set():
    agent = DistAsyncQLearning(state_size=5)
    with pytest.raises(SettingsError, match="state_size=5"):
        agent.q_table = np.zeros((4, 2))
    agent.q_table = np.zeros((5, 2))
    assert agent.q_table.shape == (5, 2)


def test_a_table_that_no_memory_holds():
    with pytest.raises(SettingsError, match="GiB"):
        DistAsyncQLearning(state_size=2**40, action_size=2**20)


def test_masks_that_are_not_followed_in_training_are_not_followed_by_predict(tmp_path):
    seen = spaces.Dict({"at": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    for asked, action in ((False, 0), (None, 1), (True, 1)):
        agent = DistAsyncQLearning(state_size=3, action_size=2, use_action_mask=asked)
        state_of(agent).observations = SpaceIndex(seen, mask_key="action_mask")
        state_of(agent).actions = SpaceIndex(spaces.Discrete(2), "action")
        agent.q_table = [[1.0, 0.0]] * 3
        given = {"at": 1, "action_mask": np.array([0, 1], np.int8)}
        loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model"))
        assert [each(given) for each in (agent.predict, agent.policy, loaded.predict)] == [action] * 3
        assert np.isinf(agent.action_values(given)).any() == (action == 1)
        assert agent.predict(given, [0, 1]) == 1  # what is said with the question counts


def test_an_observation_outside_the_space_is_not_blamed_on_the_environment():
    seen = spaces.Dict({"at": spaces.Discrete(3), "on": spaces.MultiBinary(2)})
    agent = DistAsyncQLearning(state_size=12, action_size=2)
    state_of(agent).observations = SpaceIndex(seen)
    good, bits = {"at": 1, "on": [0, 1]}, np.array([[0, 1], [1, 1]])
    for given, what in (
        ({**good, "at": 3}, r"got 3 at \['at'\]"),
        ({"at": 1}, r"has nothing at \['on'\]"),
        ([good, {"at": 1, "on": [0, 2]}], r"got \[0, 2\] at \['on'\]"),
        ([good, {"at": 1, "on": [0]}], "differ in shape"),
        ({"at": np.array([1, 7]), "on": bits}, r"got 7 at \['at'\]"),
        ({"at": np.array(["x"]), "on": bits}, "dtype <U1.* where integers of shape"),
        (7, "has nothing at"),
    ):
        for ask in (agent.predict, agent.policy, agent.action_values):
            with pytest.raises(OutsideSpaceError, match=f"^The observation that was given .*{what}") as error:
                ask(given)
            assert "nvironment" not in str(error.value)


class Shifted(SteppedLake):
    """The same lake, which counts its cells, or its actions, from another number on."""

    def __init__(self, observations=0, actions=0):
        super().__init__()
        self.observation_space = spaces.Discrete(16, start=observations)
        self.action_space = spaces.Discrete(4, start=actions)
        self.first = observations, actions

    def reset(self, **given):
        observation, info = super().reset(**given)
        return observation + self.first[0], info

    def step(self, action):
        observation, *others = super().step(action - self.first[1])
        return observation + self.first[0], *others


def shifted(*first):
    return lambda: Shifted(*first)


@pytest.mark.parametrize(
    "trained_in, same, other, words",
    [
        ("Taxi-v4", "Taxi-v4", "FrozenLake-v1", "500 states and 6 actions, but FrozenLake-v1 has 16 and 4"),
        ("FrozenLake-v1", SteppedLake, shifted(3), r"other observations than.*Discrete\(16, start=3"),
        (SteppedLake, "FrozenLake-v1", shifted(0, 2), r"other actions than.*Discrete\(4, start=2"),
        (shifted(3), shifted(3), shifted(1), r"start=1\), and the table is of Discrete\(16, start=3"),
        (shifted(3), shifted(3), "FrozenLake-v1", "whole numbers from 0 on, and the table is of Discrete"),
    ],
)
def test_a_loaded_agent_is_not_told_of_another_environment(trained_in, same, other, words, tmp_path):
    agent = DistAsyncQLearning(seed=2)
    agent.train(trained_in, total_steps=100)
    path = agent.save_model(tmp_path / "model")
    assert DistAsyncQLearning.load_model(path, env=same).steps == 100
    with pytest.raises(EnvError, match=words):
        DistAsyncQLearning.load_model(path, env=other)


def test_what_was_trained_in_last_may_have_part_of_the_table(tmp_path):
    agent = DistAsyncQLearning(seed=2)
    agent.train("Taxi-v4", total_steps=100)
    agent.train("FrozenLake-v1", total_steps=100, new_env=True)
    path = agent.save_model(tmp_path / "both")
    assert DistAsyncQLearning.load_model(path, env="FrozenLake-v1").steps == 200


def test_of_two_tables_the_policy_is_that_of_predict_also_where_they_differ_by_rounding():
    agent = DistAsyncQLearning(algorithm="double_q_learning", dtype="float32", seed=1)
    agent.train(TabularMDP.garnet(5, 2, 2, seed=1), total_steps=100)
    state = state_of(agent)
    first, second = state.shape.tables(state.values)
    first[:], second[:] = 1.0, 1.0
    second[:, 1] = np.nextafter(np.float32(1), np.float32(2))
    assert (agent.q_table == 1.0).all()  # the mean, in float32
    assert agent.predict(np.arange(5)).tolist() == agent.policy.greedy.tolist() == [0] * 5


SPACES = {
    "none": None,
    "from 3": spaces.Discrete(12, start=3),
    "tuple": spaces.Tuple((spaces.Discrete(4), spaces.Discrete(3))),
    "array": spaces.MultiDiscrete([4, 3]),
    "dict": spaces.Dict({"at": spaces.Discrete(4), "has": spaces.MultiDiscrete([3])}),
}


def agent_of_twelve_states(space="none", masks="none", **settings):
    """Give an agent with many equal values, and each of its observations."""
    rng = np.random.default_rng(4)
    agent = DistAsyncQLearning(state_size=12, action_size=3, **settings)
    agent.q_table = rng.integers(-1, 1, (12, 3))  # untried actions may look best
    state = state_of(agent)
    if masks == "of states":
        state.legal = rng.random((10, 3)) < 0.5  # of the last two states nothing is known
        assert not state.legal.any(axis=1).all()
    if masks == "told":
        state.counts[:12] = rng.integers(0, 2, (12, 3))
        state.environment = replace(Identity("told", 12, 3, ""), may_tell_masks=True)
    if SPACES[space] is None:
        return agent, [*range(6), *np.arange(6, 12)]
    state.observations = index = SpaceIndex(SPACES[space])
    return agent, [index.decode(each) for each in range(12)]


@pytest.mark.parametrize("masks", ["none", "of states", "told"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("settings", [{}, {"dtype": "float32"}, {"algorithm": "double_q_learning"}])
def test_one_observation_is_answered_as_in_a_batch(space, masks, settings):
    agent, observations = agent_of_twelve_states(space, masks, **settings)
    values = np.array([agent.action_values(each) for each in observations])
    for ask in (agent.predict, agent.policy):
        found = [ask(each) for each in observations]
        assert found == values.argmax(axis=1).tolist() and {type(each) for each in found} == {int}
    if masks != "none":
        assert np.isneginf(values).any()
        assert (agent.q_table.argmax(axis=1) != values.argmax(axis=1)).any()


def test_what_is_no_observation_is_refused_one_by_one_too():
    agent, _ = agent_of_twelve_states()
    for wrong in (12, -1, True, 1.0, None, "1", (1,), np.int64(12)):
        for ask in (agent.predict, agent.policy):
            with pytest.raises(SettingsError, match="observation must be a state from 0 to 11"):
                ask(wrong)
    agent, _ = agent_of_twelve_states("tuple")
    for wrong in ((4, 0), (0,), (0, -1), 3):
        with pytest.raises(OutsideSpaceError):
            agent.predict(wrong)


@pytest.mark.parametrize("masks", ["none", "of states", "told"])
@pytest.mark.parametrize("space", SPACES)
def test_one_observation_is_looked_up_in_few_calls(space, masks):
    agent, observations = agent_of_twelve_states(space, masks)
    state_of(agent).counts[:] = 1  # as in a table that was learned
    policy, calls = agent.policy, []
    for ask in (agent.predict, policy):
        ask(observations[-1])
        calls.clear()
        sys.setprofile(lambda frame, event, arg: calls.append(event) if event.endswith("call") else None)
        try:
            ask(observations[-1])
        finally:
            sys.setprofile(None)
        assert len(calls) <= 32, len(calls)
