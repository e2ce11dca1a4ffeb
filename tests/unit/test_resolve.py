"""What becomes of an `env`: which environments are made, used and closed, and whether masks are followed."""

from typing import NamedTuple

import gymnasium
import numba
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import resolve as resolving
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import EnvError, SettingsError, SpaceError


class Counted(gymnasium.Env):
    """Keeps track of its instances, and refuses to be used once it is closed."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)
    made: list = []

    def __init__(self):
        self.closed = False
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        assert not self.closed
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        assert not self.closed
        return 1, 1.0, False, False, {}

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def nothing_made():
    Counted.made.clear()


def use(source):
    source.stepped.reset(1)
    source.stepped.step(np.zeros(source.stepped.n_envs, np.int64))


@pytest.mark.parametrize("compile_env", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_factory_is_called_once_per_copy(n_envs, compile_env):
    source = resolve(Counted, n_envs, None, compile_env)
    assert len(Counted.made) == n_envs
    use(source)
    other = source.another()
    assert len(Counted.made) == 2 * n_envs
    use(other)
    source.close()
    assert [env.closed for env in Counted.made] == [True] * n_envs + [False] * n_envs
    other.close()
    assert all(env.closed for env in Counted.made)


def test_an_id_is_made_once_per_copy():
    gymnasium.register("dist_classicrl_tests/Counted-v0", Counted)
    try:
        source = resolve("dist_classicrl_tests/Counted-v0", 2, None)
        assert len(Counted.made) == 2 and source.name == "dist_classicrl_tests/Counted-v0"
        use(source)
        source.close()
    finally:
        del gymnasium.registry["dist_classicrl_tests/Counted-v0"]


def test_a_vector_environment_is_made_once():
    def make():
        return gymnasium.vector.SyncVectorEnv([Counted] * 3)

    source = resolve(make, 8, None)
    in_use = len(Counted.made)
    use(source)
    reference = make()
    assert in_use == len(Counted.made) - in_use
    reference.close()
    source.close()


def test_a_factory_may_return_the_callers_own_environment():
    env = Counted()
    use(resolve(lambda: env, 1, None))
    assert not env.closed and Counted.made == [env]


def test_an_environment_with_compiled_code_stays_open():
    env = gymnasium.make("FrozenLake-v1")
    closed = []
    env.unwrapped.close = lambda: closed.append(True)
    assert resolve(lambda: env, 4, None).simulator is not None
    assert not closed


# Masks of compiled environments


def masked_model(all_played):
    """Two states and two actions; action 1 of state 0, which pays most, is illegal."""
    probability = np.zeros((2, 2, 2))
    probability[:, :, 1] = 1.0
    if not all_played:
        probability[0, 1] = 0.0
    return TabularMDP.from_arrays(
        probability,
        [[1.0, 5.0], [0.0, 0.0]],
        [1.0, 0.0],
        action_mask=[[True, False], [True, True]],
    )


@pytest.mark.parametrize("wrap", [lambda model: model, CompiledSimulator.from_model])
def test_the_mask_of_a_model_can_be_left_out(wrap):
    model = masked_model(True)
    for follow in (None, True):
        source = resolve(wrap(model), 1, follow)
        assert source.simulator.legal.tolist() == [[True, False], [True, True]]
        assert source.simulator.model.solve(0.9).v[0] == 1.0
    free = resolve(wrap(model), 1, False)
    assert free.simulator.legal is None
    assert free.simulator.model.solve(0.9).v[0] == 5.0
    assert free.fingerprint != source.fingerprint


@pytest.mark.parametrize("wrap", [lambda model: model, CompiledSimulator.from_model])
def test_a_mask_that_covers_what_cannot_be_played_stays(wrap):
    with pytest.raises(SettingsError, match="use_action_mask=False is not allowed .*pairs without outcomes"):
        resolve(wrap(masked_model(False)), 1, False)


class Data(NamedTuple):
    reward: float


@numba.njit
def reset(data, memory, random):
    return 0


@numba.njit
def step(data, memory, state, action, random):
    return 0, data.reward, True


def test_the_mask_of_a_compiled_game_stays():
    masked = CompiledSimulator.game("game", 1, 2, Data(1.0), reset, step, np.array([[True, False]]))
    assert resolve(masked, 1, True).simulator is masked
    with pytest.raises(
        SettingsError, match="use_action_mask=False is not allowed with game: .*without legal="
    ):
        resolve(masked, 1, False)
    free = CompiledSimulator.game("game", 1, 2, Data(1.0), reset, step)
    assert resolve(free, 1, False).simulator is free


def test_a_model_without_a_mask_is_used_as_it_is():
    model = TabularMDP.from_arrays(np.ones((1, 2, 1)), [[0.0, 1.0]], [1.0])
    assert resolve(model, 1, False).simulator.model is model


def recorded(**options):
    made = gymnasium.make("FrozenLake-v1", **options)
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.RecordEpisodeStatistics(made), 50)


def test_what_stays_empty_where_compiled_code_runs_is_told_once(caplog, monkeypatch):
    monkeypatch.setattr(resolving, "_given", set())
    env, agent = recorded(), DistAsyncQLearning(seed=1)
    agent.train(env, total_steps=500)
    agent.train(env, total_steps=500)
    agent.evaluate(env, episodes=3)
    (record,) = caplog.records
    said = record.getMessage()
    assert "FrozenLake-v1 runs in compiled code" in said and "return_queue stays empty" in said
    assert "MetricsCallback(folder)" in said and len(env.env.return_queue) == 0
    stepped = gymnasium.wrappers.TransformReward(env, lambda reward: reward)  # as the warning says
    DistAsyncQLearning(seed=1).train(stepped, total_steps=500)
    assert len(env.env.return_queue) > 0 and len(caplog.records) == 1


def test_that_nothing_is_drawn_where_compiled_code_runs_is_told(caplog, monkeypatch):
    monkeypatch.setattr(resolving, "_given", set())
    agent = DistAsyncQLearning(seed=1)
    agent.train(lambda: gymnasium.make("FrozenLake-v1", render_mode="human"), total_steps=100)
    assert "nothing is drawn, which render_mode='human' asks for" in caplog.text


def test_who_has_nothing_that_stays_idle_is_told_nothing(caplog, monkeypatch):
    monkeypatch.setattr(resolving, "_given", set())
    for env in (recorded, "FrozenLake-v1", gymnasium.make("FrozenLake-v1", render_mode="rgb_array")):
        DistAsyncQLearning(seed=1).train(env, total_steps=100)
    assert not caplog.records


def test_observations_that_were_made_one_hot_are_told_to_be_left_as_they_are(caplog, monkeypatch):
    monkeypatch.setattr(resolving, "_given", set())
    flat = gymnasium.wrappers.FlattenObservation
    with pytest.raises(
        SpaceError, match=r"FlattenObservation makes .*values of Discrete\(500\).* Leave that"
    ):
        DistAsyncQLearning().train(lambda: flat(gymnasium.make("Taxi-v4")), total_steps=10)
    for _ in range(2):
        DistAsyncQLearning(seed=1).train(flat(gymnasium.make("FrozenLake-v1")), total_steps=10)
    (record,) = caplog.records
    assert "16 zeros and ones of the 16 values of Discrete(16)" in record.getMessage()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: wrappers.FlattenObservation(gymnasium.make("CliffWalking-v1")), "Leave that wrapper out"),
        (lambda: wrappers.FlattenObservation(gymnasium.make("Blackjack-v1")), "Leave that wrapper out"),
        (
            lambda: wrappers.vector.FlattenObservation(gymnasium.make_vec("CliffWalking-v1", 2)),
            r"gymnasium\.wrappers\.vector\.FlattenObservation makes .* Leave that wrapper out",
        ),
        (
            lambda: gymnasium.make_vec("Taxi-v4", 2, wrappers=[wrappers.FlattenObservation]),
            r"gymnasium\.wrappers\.FlattenObservation makes .* Leave that wrapper out",
        ),
        (
            lambda: wrappers.TimeAwareObservation(gymnasium.make("Taxi-v4")),
            r"TimeAwareObservation makes .*TimeAwareObservation\(env, flatten=False\)",
        ),
    ],
)
def test_one_instance_of_too_many_states_is_told_which_wrapper_made_them(make, told):
    with pytest.raises((SettingsError, SpaceError), match=told):
        DistAsyncQLearning().train(make(), total_steps=10)


def test_the_time_that_is_flattened_with_the_state_is_told_once(caplog, monkeypatch):
    monkeypatch.setattr(resolving, "_given", set())
    for flatten in (True, True, False):
        env = wrappers.TimeAwareObservation(
            gymnasium.make("FrozenLake-v1", max_episode_steps=3), flatten=flatten
        )
        DistAsyncQLearning(seed=1).train(env, total_steps=10)
    (record,) = caplog.records
    assert "16 zeros and ones, and the time, of the 16 values of Discrete(16)" in record.getMessage()
    assert "TimeAwareObservation(env, flatten=False)" in record.getMessage()


def test_numbers_that_were_flattened_are_fine(caplog, monkeypatch):
    monkeypatch.setattr(resolving, "_given", set())

    class Numbers(Counted):
        observation_space = spaces.Dict({"a": spaces.Box(0, 3, (2,), np.int64), "b": spaces.MultiBinary(2)})

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return {"a": np.zeros(2, np.int64), "b": np.zeros(2, np.int8)}, {}

        def step(self, action):
            return self.reset()[0], 1.0, True, False, {}

    agent = DistAsyncQLearning(seed=1)
    agent.train(lambda: gymnasium.wrappers.FlattenObservation(Numbers()), total_steps=10)
    assert agent.q_table.shape == (64, 2) and not caplog.records


def test_a_name_of_the_command_line_is_told_what_it_stands_for():
    with pytest.raises(EnvError, match=r"command line has TicTacToeEnv: from dist_.* import TicTacToeEnv"):
        resolve("tictactoe", 1, None)
