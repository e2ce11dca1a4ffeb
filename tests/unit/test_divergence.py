"""Rewards so large that values or their sums are no numbers any more: a named error, nothing of it kept."""

import gymnasium
import numpy as np
import pytest
from round_parts import merge_maps

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.errors import DivergenceError, SettingsError
from dist_classicrl.evaluation.episodes import EvaluationResult
from dist_classicrl.learning.learner import Totals
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.maps import PackedMap
from dist_classicrl.tables.round_merge import RoundMerge
from dist_classicrl.tables.shared import SharedTable


def pays(reward, ends=True):
    """Return a model of two states in which every step pays `reward`."""
    outcomes = {
        s: {a: [(0.5, 1 - s, reward, False), (0.5, s, reward, ends)] for a in range(2)} for s in range(2)
    }
    return TabularMDP.from_dict(outcomes, [1.0, 0.0], max_episode_steps=20)


class Pays(gymnasium.Env):
    """The same, stepped; from step `late` on it pays `reward`, before that 1."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward, late=0):
        self.reward, self.late, self.steps = reward, late, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.steps += 1
        reward = self.reward if self.steps > self.late else 1.0
        return self.steps % 2, reward, self.steps % 4 == 0, False, {}


ENVIRONMENTS = {"compiled": lambda reward: pays(reward), "stepped": lambda reward: lambda: Pays(reward)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", list(ENVIRONMENTS))
def test_an_evaluation_of_the_largest_rewards_is_right_or_an_error(kind):
    agent = DistAsyncQLearning(state_size=2, action_size=2)
    played = agent.evaluate(ENVIRONMENTS[kind](1e308), 3, seed=1, max_steps=1)
    assert played.returns.tolist() == [1e308] * 3
    assert played.in_short()["mean_return"] == 1e308 and repr(played).startswith("EvaluationResult(3 ")
    assert (played.std_return, played.standard_error) == (0.0, 0.0)
    with pytest.raises(DivergenceError, match="return of an episode .* Make the rewards smaller"):
        agent.evaluate(ENVIRONMENTS[kind](-1e308), 3, seed=1, max_steps=4)


@pytest.mark.filterwarnings("error")
def test_means_and_deviations_of_the_largest_returns_are_right():
    for scale in (1.0, 2.0**200, 2.0**1021):
        played = EvaluationResult(scale * np.array([1.0, 2.0, 6.0]), np.ones(3, int))
        assert played.mean_return == 3.0 * scale
        assert played.std_return == np.std([1.0, 2.0, 6.0]) * scale
        assert played.standard_error == np.std([1.0, 2.0, 6.0], ddof=1) / np.sqrt(3) * scale


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("kind", list(ENVIRONMENTS))
@pytest.mark.parametrize(("dtype", "reward"), [("float64", 1e308), ("float32", 3e38), ("float32", -3e38)])
def test_values_beyond_all_numbers_are_an_error_and_are_not_kept(kind, dtype, reward, is_async, tmp_path):
    agent = DistAsyncQLearning(
        seed=1, dtype=dtype, async_updates=is_async, logical_workers=2, n_envs=2, learning_rate=0.5
    )
    with pytest.raises(DivergenceError, match="Make "):
        agent.train(
            ENVIRONMENTS[kind](reward), total_steps=50_000, checkpoint_dir=tmp_path, checkpoint_interval=1_000
        )
    assert np.isfinite(agent.q_table).all()
    path = agent.save_model(tmp_path / "model.npz")
    assert np.array_equal(DistAsyncQLearning.load_model(path).q_table, agent.q_table)
    if any(tmp_path.glob("agent-0/*/manifest.json")):  # what it could save is good
        assert np.isfinite(DistAsyncQLearning.load_model(tmp_path).q_table).all()


@pytest.mark.parametrize("kind", list(ENVIRONMENTS))
def test_a_round_names_no_value_that_it_has_put_back(kind):
    agent = DistAsyncQLearning(seed=1, async_updates=False, logical_workers=2, n_envs=2, learning_rate=0.5)
    said = r"^The value of action \d in state \d has grown too large in a round, and a table of float64 holds"
    with pytest.raises(DivergenceError, match=said):
        agent.train(ENVIRONMENTS[kind](1e308), total_steps=50_000)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False])
def test_an_earlier_checkpoint_stays(is_async, tmp_path):
    settings = dict(seed=1, async_updates=is_async, logical_workers=1, n_envs=1)
    agent = DistAsyncQLearning(**settings)
    agent.train(lambda: Pays(1.0), total_steps=2_000, checkpoint_dir=tmp_path)
    good = agent.q_table.copy()
    with pytest.raises(DivergenceError):
        agent.train(lambda: Pays(1e308), total_steps=2_000, checkpoint_dir=tmp_path)
    loaded = DistAsyncQLearning.load_model(tmp_path)
    assert loaded.steps == 2_000 and np.array_equal(loaded.q_table, good)


@pytest.mark.slow
def test_what_was_learned_before_it_is_kept(tmp_path):
    agent = DistAsyncQLearning(seed=1, n_envs=1, batch_size=1)
    with pytest.raises(DivergenceError):
        agent.train(lambda: Pays(1e308, late=1_000_000), total_steps=10**9, checkpoint_dir=tmp_path)
    assert agent.steps > 0 and np.isfinite(agent.q_table).all()
    if any(tmp_path.glob("agent-0/*/manifest.json")):  # the values themselves were still numbers
        saved = DistAsyncQLearning.load_model(tmp_path)
        assert saved.steps == agent.steps and np.array_equal(saved.q_table, agent.q_table)


def test_sums_that_records_could_not_hold_are_an_error():
    totals = Totals()
    totals.values[:] = 3, 1e300, 30, 1e300
    assert totals.take().tolist() == [3, 1e300, 30, 1e300]
    for place in (1, 3):
        for bad in (1e302, -np.inf, np.nan):
            totals.values[place] = bad
            with pytest.raises(DivergenceError, match=r"allowed are 1\.07e\+301.* rewards .* rule"):
                totals.take()
            assert not totals.values.any()


def map_of(entries, weights, shifts):
    counts = np.ones(len(entries), np.uint32)
    return PackedMap(
        np.array(entries, np.int32), np.array(weights), np.array(shifts), counts, 0 * counts, None
    )


@pytest.mark.parametrize("shift", [np.inf, -np.inf, np.nan, 1e39])
def test_the_server_takes_no_push_that_is_no_number_and_names_its_rank(shift):
    table = SharedTable(np.ones(4, np.float32), np.zeros(4, np.int64))
    assert table.apply(3, 1, map_of([1], [0.5], [1.0]))
    with pytest.raises(DivergenceError, match="Push 2 of rank 3 would make entry 2 of the table infinite"):
        table.apply(3, 2, map_of([0, 2], [0.5, 0.5], [2.0, shift]))
    assert np.isfinite(table.values).all() and table.values[2] == 1.0
    assert table.version == 1 and table.applied == {3: 1}


@pytest.mark.parametrize("shift", [np.inf, np.nan, 1e39])
def test_no_round_is_merged_into_what_is_no_number(shift):
    table = SharedTable(np.ones(4, np.float32), np.zeros(4, np.int64))
    merge = RoundMerge(table)
    with pytest.raises(DivergenceError, match="The merge of a round would make entry 1 of the table infin"):
        merge_maps(merge, [map_of([0], [0.5], [1.0]), map_of([1], [0.5], [shift])])
    assert np.isfinite(table.values).all() and table.values[1] == 1.0
    merge_maps(merge, [map_of([1], [0.5], [1.0])])  # and nothing of it is left over
    assert table.values[1] == 1.5


def test_a_worker_packs_no_value_that_the_servers_table_could_not_hold():
    for dtype, value in ((np.float32, 3.5e38), (np.float64, np.inf), (np.float64, np.nan)):
        table = LocalTable(3, 2, np.dtype(dtype))
        table.touched[:2], table.n_touched[0], table.updates[[1, 5]] = (1, 5), 2, 1
        table.q[5] = value
        with pytest.raises(
            DivergenceError, match=rf"The value of action 1 in state 2 is .* of {table.base.dtype}"
        ):
            table.pack()
    table = LocalTable(3, 2, np.dtype(np.float64))
    table.touched[0], table.n_touched[0], table.updates[1], table.q[1] = 1, 1, 1, 1e308
    assert table.pack().entries.tolist() == [1]


def test_a_table_with_nan_written_into_it_is_neither_learned_from_nor_saved(tmp_path):
    agent = DistAsyncQLearning(state_size=2, action_size=2, seed=1)
    agent.q_table[1, 1] = np.nan
    with pytest.raises(SettingsError, match="NaN or infinity was written into it"):
        agent.train(pays(1.0), total_steps=100)
    with pytest.raises(SettingsError, match="NaN or infinity was written into it"):
        agent.save_model(tmp_path / "model.npz")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [-1, 2**48])
def test_visits_that_no_step_size_is_known_of_are_neither_learned_from_nor_saved(wrong, tmp_path):
    agent = DistAsyncQLearning(state_size=2, action_size=2, seed=1)
    agent.visits[1, 1] = wrong
    with pytest.raises(SettingsError, match=rf"visits must be from 0 to 2\*\*48 - 1, and {wrong} was"):
        agent.train(pays(1.0), total_steps=100)
    with pytest.raises(SettingsError, match="visits must be from 0"):
        agent.save_model(tmp_path / "model.npz")
    assert not any(tmp_path.iterdir())
    agent.visits[1, 1] = 2**47
    agent.train(pays(1.0), total_steps=100)
