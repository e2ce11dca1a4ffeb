"""Games whose states are keys: against dictionaries in plain Python, and tables of numbered states."""

import errno
import json
import os
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
import own_rules
import pytest
from edited_checkpoints import edit, put_array, with_value
from keyed_games import (
    Corridor,
    corridor,
    keys_of,
    reset_corridor,
    scrambled,
    states_of,
    step_corridor,
    taxi,
)
from learned_runs import run_command
from test_interleaved import StopAt, garnet

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import (
    ActionMaskError,
    CheckpointError,
    CheckpointMismatchError,
    EnvError,
    ExportError,
    ModelError,
    OutsideSpaceError,
    RewardError,
    SettingsError,
    StateLimitError,
    TrainingStopped,
)
from dist_classicrl.evaluation import episodes
from dist_classicrl.learning import interleaved, keyed_table
from dist_classicrl.model.keyed import KeyIndex
from dist_classicrl.schedules import Linear
from dist_classicrl.tables.keys import empty_slots, enter_all, find_rows, slots_of

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("anew")]


# The table of keys


@pytest.mark.parametrize("n", [0, 1, 716, 717, 5000])
def test_keys_are_found_as_in_a_dictionary(n):
    rng = np.random.default_rng(n)
    keys = rng.integers(-(2**63), 2**63 - 1, n)
    keys[: n // 2] = np.arange(n // 2) * 1024  # that many go to neighboring slots only by their hash
    twin = {key: row for row, key in enumerate(keys.tolist())}
    asked = np.concatenate([keys, rng.integers(-(2**63), 2**63 - 1, 100), [0, -1]])
    rows = np.zeros(asked.size, np.int64)
    slots = slots_of(keys)
    find_rows(slots, asked, rows)
    assert rows.tolist() == [twin.get(key, -1) for key in asked.tolist()]
    assert slots.size // 2 * 0.7 >= n


def test_a_key_that_comes_twice_is_told():
    assert enter_all(empty_slots(3), np.array([5, 7, 5])) == 2


# Learning


def both(model, steps=300_000, **settings):
    """Return agents that have learned a model, with numbers and with keys as states."""
    agents = DistAsyncQLearning(seed=3, **settings), DistAsyncQLearning(seed=3, **settings)
    results = [
        agent.train(env, total_steps=steps)
        for agent, env in zip(agents, (model, scrambled(model)), strict=True)
    ]
    assert (results[0].episodes, results[0].mean_return) == (results[1].episodes, results[1].mean_return)
    return agents


@pytest.mark.parametrize("model", [garnet(), garnet(forbidden=True), taxi()], ids=["garnet", "mask", "taxi"])
def test_the_values_are_those_of_a_table_of_numbers(model, interleaves):
    numbered, keyed = both(model, discount_factor=0.9)
    found = states_of(keyed.q_table.states)
    np.testing.assert_array_equal(keyed.q_table.array, numbered.q_table[found])
    np.testing.assert_array_equal(keyed.visits.array, numbered.visits[found])
    assert set(np.flatnonzero(numbered.visits.any(axis=1))) <= set(found.tolist())
    assert keyed.visits.array.sum() == 300_000


def test_rows_are_in_the_order_in_which_states_were_met():
    """A walk of one walker to the right, in plain Python."""
    agent = DistAsyncQLearning(seed=1, epsilon=0.0)
    agent.train(corridor(), total_steps=3200)
    keys = agent.q_table.states.tolist()
    assert set(keys[:3]) == {0, 1, 2} and len(set(keys)) == len(keys)
    far = {key: row for row, key in enumerate(keys)}
    assert all(far[key] > far[key - 1] for key in keys if key > 3)
    assert all(far[key] > far[key + 1] for key in keys if key < 0)


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_alone_it_does_not_matter_where_the_table_is_to_be(placement):
    tables = []
    for where in ("auto", placement):
        agent = DistAsyncQLearning(seed=1)
        agent.train(scrambled(garnet()), total_steps=32_000, placement=where)
        tables.append(agent.q_table.array)
    np.testing.assert_array_equal(*tables)


def test_hidden_memory_and_time_limits_count():
    agent = DistAsyncQLearning(seed=1, epsilon=1.0)
    result = agent.train(corridor(limit=10), total_steps=32_000)
    assert result.episodes == 3200 and result.mean_return == 5.0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_it_learns_the_optimum(dtype):
    model = garnet(forbidden=True)
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9, dtype=dtype)
    agent.train(scrambled(model), total_steps=2_000_000)
    solution = model.solve(0.9)
    keys = keys_of(np.arange(model.n_states))
    reached = model.policy_value(agent.predict(keys), 0.9)
    best = model.start_value(solution.v)
    assert model.start_value(reached) >= best - 0.01 * abs(best)
    assert agent.q_table.array.dtype == dtype


def test_the_table_grows_and_the_result_is_the_same_however_calls_are_cut(monkeypatch):
    """Thousands of states from slots for some hundreds: and once as slots that need never grow."""
    tables = []
    for grows in (True, False):
        if not grows:
            monkeypatch.setattr(keyed_table, "empty_slots", lambda n, kind: empty_slots(1 << 20, kind))
        agent = DistAsyncQLearning(seed=5, epsilon=1.0)
        agent.train(corridor(limit=20_000, stride=2), total_steps=3_000_000)
        tables.append(agent.q_table)
    assert len(tables[0]) > 3000
    np.testing.assert_array_equal(tables[0].states, tables[1].states)
    np.testing.assert_array_equal(tables[0].array, tables[1].array)


def test_callbacks_see_the_table_grow():
    seen = []
    agent = DistAsyncQLearning(seed=5, epsilon=1.0)

    def look(progress):
        seen.append((progress.steps, int(agent.visits.array.sum()), len(agent.q_table)))

    agent.train(corridor(limit=20_000, stride=2), total_steps=400_000, progress=look)
    assert len(seen) > 100 and all(steps == visits for steps, visits, _ in seen)
    sizes = [size for _, _, size in seen]
    assert sizes == sorted(sizes) and sizes[-1] > 2 * sizes[2]


# The limit


def test_at_the_limit_training_ends_with_what_was_learned(tmp_path, anew):
    agent = DistAsyncQLearning(seed=5, epsilon=1.0, max_states=100)
    with pytest.raises(StateLimitError, match="max_states=100 allows no more"):
        agent.train(corridor(stride=2), total_steps=1_000_000, checkpoint_dir=tmp_path)
    assert len(agent.q_table) == 100 and 0 < agent.steps < 1_000_000
    assert agent.visits.array.sum() == agent.steps
    saved = DistAsyncQLearning.load_model(tmp_path)
    assert saved.steps == agent.steps
    np.testing.assert_array_equal(saved.q_table.array, agent.q_table.array)
    agent.max_states = None
    agent.train(corridor(stride=2), total_steps=100_000)
    assert len(agent.q_table) > 100
    anew()
    other = DistAsyncQLearning(seed=5, epsilon=1.0)
    other.train(corridor(stride=2), total_steps=1_000_000, checkpoint_dir=tmp_path)
    assert other.steps == 1_000_000 == other.visits.array.sum()


def test_after_the_limit_the_next_call_explores_as_the_error_says():
    explored = {}
    for sets_it in (False, True):
        agent = DistAsyncQLearning(seed=5, max_states=100)
        with pytest.raises(StateLimitError, match="agent.epsilon = Linear.agent.epsilon, 0.1, fraction=0.5"):
            agent.train(corridor(stride=2), total_steps=1_000_000)
        begin, reached, agent.max_states = agent.steps, agent.epsilon, None
        assert reached > 0.9
        if sets_it:
            agent.epsilon = Linear(agent.epsilon, 0.1, fraction=0.5)
        agent.train(corridor(stride=2), total_steps=10_000)
        explored[sets_it] = [agent.settings.epsilon.at(begin + step) for step in (0, 2_500, 5_000)]
    assert explored[False] == [0.1, 0.1, 0.1]
    assert explored[True] == pytest.approx([reached, (reached + 0.1) / 2.0, 0.1])


def test_a_limit_that_holds_all_states_is_no_limit():
    agent = DistAsyncQLearning(seed=5, max_states=40)
    agent.train(scrambled(garnet()), total_steps=100_000)
    assert len(agent.q_table) <= 40


def test_memory_is_a_limit_too(monkeypatch):
    monkeypatch.setattr(keyed_table, "memory_left", lambda: 1 << 20)
    monkeypatch.setattr(keyed_table, "_FEWEST", 64)
    agent = DistAsyncQLearning(seed=5, epsilon=1.0, max_states=1 << 30)
    with pytest.raises(StateLimitError, match="bytes of memory"):
        agent.train(corridor(limit=20_000, stride=2), total_steps=10_000_000)
    assert len(agent.q_table) > 1000


def test_where_there_is_no_memory_to_find_states_by_it_is_told_and_the_table_stays(monkeypatch):
    find_slots = keyed_table.empty_slots

    def scarce(n, kind=None):
        if n > 2_000:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return find_slots(n, kind)

    agent = DistAsyncQLearning(seed=5, epsilon=1.0)
    with monkeypatch.context() as patched:
        patched.setattr(keyed_table, "empty_slots", scarce)
        with pytest.raises(StateLimitError, match="no memory to find more by .*Cannot allocate memory"):
            agent.train(corridor(limit=20_000, stride=2), total_steps=10_000_000)
    known = len(agent.q_table)
    assert 2_000 < known < 2_868  # as many as 4,096 slots are for
    agent.train(corridor(limit=20_000, stride=2), total_steps=100_000)
    assert len(agent.q_table) > known


def test_a_numbered_table_obeys_the_limit():
    with pytest.raises(EnvError, match="max_states=10 allows no more"):
        DistAsyncQLearning(max_states=10).train(garnet(), total_steps=10)


# What is refused


@numba.njit
def reset_to_float(data, memory, random):
    return 1.5


@numba.njit
def step_to_pair(data, memory, key, action, random):
    return key, 1.0


@numba.njit
def step_to_float(data, memory, key, action, random):
    return key * 0.5, 1.0, False


@numba.njit
def no_bool(data, key, action):
    return "no"


class Unreadable(NamedTuple):
    board: object


def game(**changes):
    given = dict(n_actions=2, data=Corridor(9, 1), reset=reset_corridor, step=step_corridor, memory_size=1)
    return CompiledSimulator.game("bad", **{**given, "keyed": True, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (dict(reset=reset_to_float), ModelError, "reset gives states of the type float64"),
        (dict(step=step_to_float), ModelError, "step gives states of the type float64"),
        (dict(step=step_to_pair), ModelError, "three values"),
        (dict(legal=no_bool), ModelError, "legal returns"),
        (dict(legal=np.ones((3, 2), bool)), ModelError, "legal must be compiled"),
        (dict(n_states=9), SettingsError, "n_states=9"),
        (dict(keyed=False, n_states=9, legal=no_bool), ActionMaskError, "only keyed=True"),
        (dict(n_actions=None), SettingsError, "n_actions"),
        (dict(step=no_bool), ModelError, "step cannot be compiled .* takes 3 arguments"),
        (dict(data=Unreadable({})), ModelError, "data.board is dict, which compiled code cannot read"),
    ],
)
def test_bad_games_are_refused(changes, error, said):
    with pytest.raises(error, match=said):
        game(**changes)


@numba.njit
def step_to_nothing(data, memory, key, action, random):
    return key + 1, np.inf if key == 5 else 0.0, False


@numba.njit
def nothing_legal_at_seven(data, key, action):
    return key != 7


@numba.njit
def step_out_of_memory(data, memory, key, action, random):
    memory[key] = 1
    return key + 1, 0.0, False


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (dict(step=step_to_nothing), RewardError, "step in state 5 with action [01] gave the reward inf"),
        (dict(legal=nothing_legal_at_seven, step=step_corridor), ActionMaskError, "state 7"),
        (dict(legal=nothing_legal_at_seven, step=step_corridor, algorithm="td"), ActionMaskError, "state 7"),
        (dict(step=step_out_of_memory, check=True), OutsideSpaceError, "in state [123] "),
    ],
)
def test_what_a_game_does_wrong_is_told_with_the_key(changes, error, said, monkeypatch):
    monkeypatch.setattr(interleaved, "try_out", lambda simulator: None)
    changes = {"algorithm": "q_learning", **changes}
    agent = DistAsyncQLearning(seed=1, epsilon=1.0, algorithm=changes.pop("algorithm"))
    with pytest.raises(error, match=said):
        agent.train(game(**changes, max_episode_steps=50), total_steps=100_000)


def test_in_the_first_thousands_of_steps_indices_are_checked():
    with pytest.raises(OutsideSpaceError, match="in a memory of 1 numbers"):
        DistAsyncQLearning(seed=1).train(game(step=step_out_of_memory), total_steps=100)
    with pytest.raises(RewardError, match="in state 5"):
        DistAsyncQLearning(seed=1).train(game(step=step_to_nothing), total_steps=100)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(replay_ratio=0.5), "replay_ratio=0.5 cannot be had"),
        (dict(state_size=100), "state_size=100"),
        (dict(use_action_mask=False), "use_action_mask=False"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(settings, said):
    agent = DistAsyncQLearning(seed=1, **settings)
    with pytest.raises(SettingsError, match=said):
        agent.train(scrambled(garnet(forbidden=True)), total_steps=100)
    if "state_size" not in settings and "use_action_mask" not in settings:
        assert agent.steps == 0
        DistAsyncQLearning(seed=1).train(garnet(), total_steps=100)


def test_keys_and_numbers_do_not_mix(tmp_path, anew):
    keyed, numbered = DistAsyncQLearning(seed=1), DistAsyncQLearning(seed=1)
    keyed.train(scrambled(garnet()), total_steps=1000, checkpoint_dir=tmp_path)
    numbered.train(garnet(), total_steps=1000)
    for agent, env in ((keyed, garnet()), (numbered, scrambled(garnet()))):
        with pytest.raises(EnvError, match="as states|numbers"):
            agent.train(env, total_steps=1000, new_env=True)
        with pytest.raises(SettingsError, match="trained in"):
            agent.evaluate(env)
    with pytest.raises(SettingsError, match="cannot be assigned"):
        keyed.q_table = np.zeros((3, 5))
    anew()
    with pytest.raises(CheckpointMismatchError, match="keys"):
        DistAsyncQLearning(seed=1).train(garnet(), total_steps=2000, checkpoint_dir=tmp_path, strict=False)


def test_with_several_tables_and_shared_numbers(own_rule):
    numbered, keyed = both(garnet(), steps=100_000, algorithm=own_rule)
    found = states_of(keyed.q_table.states)
    np.testing.assert_array_equal(keyed.q_table.array, numbered.q_table[found])


@pytest.fixture(params=["DoubleQ", "NStepSarsa", "Differential"])
def own_rule(request, interleaves):
    with own_rules.registered():
        yield getattr(own_rules, request.param)()


# Looking it up


@pytest.fixture(scope="module")
def trained():
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9)
    agent.train(scrambled(garnet(forbidden=True)), total_steps=200_000)
    return agent


def test_the_table_is_a_mapping(trained):
    table = trained.q_table
    assert len(table) == len(list(table)) == len(set(table)) and table.shape == (len(table), 5)
    twin = dict(zip(table.states.tolist(), table.array.tolist(), strict=True))
    assert {key: row.tolist() for key, row in table.items()} == twin
    assert next(iter(table)) in table and 12345 not in table and "no key" not in table
    with pytest.raises(KeyError):
        table[12345]
    with pytest.raises(ValueError):
        table.array[0] = 1.0
    assert "states" in repr(table)


def test_keys_are_looked_up_one_or_many_at_a_time(trained):
    keys = trained.q_table.states
    values = trained.action_values(keys)
    for key, row, best in zip(keys.tolist(), values, trained.predict(keys), strict=True):
        np.testing.assert_array_equal(trained.action_values(key), row)
        assert trained.predict(key) == best == row.argmax()
        assert trained.state_values(key) == row.max()
    assert trained.predict(keys.tolist()).tolist() == trained.predict(keys).tolist()
    legal = garnet(forbidden=True).action_mask[states_of(keys)]
    np.testing.assert_array_equal(values > -np.inf, legal)


def test_of_a_state_that_was_never_met_the_game_tells_what_is_legal():
    agent = DistAsyncQLearning(seed=3)
    agent.train(scrambled(garnet(forbidden=True)), total_steps=32)
    unknown = next(s for s in range(40) if int(keys_of(s)) not in agent.q_table)
    mask = garnet(forbidden=True).action_mask[unknown]
    key = int(keys_of(unknown))
    assert agent.action_values(key).tolist() == np.where(mask, 0.0, -np.inf).tolist()
    assert agent.predict(key) == mask.argmax() and agent.state_values(key) == 0.0
    assert agent.policy(key) == mask.argmax()
    assert agent.predict(key, action_mask=[0, 0, 0, 1, 0]) == 3
    for asked in (5, [key, 5]):  # no state of the game
        with pytest.raises(
            OutsideSpaceError, match="index that it does not have, for the state 5. Ask for keys"
        ):
            agent.action_values(np.array(asked, np.uint64))


def test_a_loaded_agent_has_to_be_told_the_game_to_know_what_is_legal_elsewhere(tmp_path):
    game = scrambled(garnet(forbidden=True))
    agent = DistAsyncQLearning(seed=3)
    agent.train(game, total_steps=32)
    known = int(agent.q_table.states[0])
    unknown = next(key for key in keys_of(np.arange(40)).tolist() if key not in agent.q_table)
    path = agent.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(path)
    for ask in (loaded.predict, loaded.action_values, loaded.policy):
        ask(known)
        for given in (unknown, [known, unknown]):
            with pytest.raises(SettingsError, match=rf"state {unknown} was .* load_model\(path, env=...\)"):
                ask(given)
    assert loaded.state_values([unknown]).tolist() == [0.0]
    assert loaded.predict(unknown, action_mask=[0, 0, 0, 1, 0]) == 3
    told = DistAsyncQLearning.load_model(path, env=game)
    for one in (told.predict, told.policy):
        assert one([known, unknown]).tolist() == agent.predict([known, unknown]).tolist()


def test_keys_may_be_whole_numbers_of_any_kind():
    for kind in (np.int64, np.uint64):
        index = KeyIndex.of(np.array([5, 0], kind))
        for given in ([np.uint64(5), np.int64(0)], [np.uint64(5), 0], [np.array(5), 0], np.array([5, 0])):
            rows, is_batch = index.encode_any(given)
            assert rows.tolist() == [0, 1] and is_batch
        for given in ([5, True], [np.True_], True, [np.uint64(5), False], np.array([True])):
            with pytest.raises(OutsideSpaceError, match="whole number"):
                index.encode_any(given)


@pytest.mark.parametrize("given", [1.5, "a", -1, 1 << 64, (1, 2), [[1]], None, [1, 2.5]])
def test_what_is_no_key_is_refused(trained, given):
    with pytest.raises(OutsideSpaceError, match="whole number"):
        trained.predict(given)


def test_evaluation_plays_the_greedy_policy(interleaves):
    numbered, keyed = both(taxi(), steps=3_000_000, discount_factor=0.99)
    assert keyed.evaluate(scrambled(taxi()), 2000, seed=1).mean_return == pytest.approx(
        numbered.evaluate(taxi(), 2000, seed=1).mean_return, abs=0.3
    )


def test_evaluation_reads_nothing_outside_of_a_row(trained, monkeypatch):
    seen, play = [], episodes._play

    def playing(simulator, simulation, table, *rest):
        seen.append(table)
        return play(simulator, simulation, table, *rest)

    monkeypatch.setattr(episodes, "_play", playing)
    trained.evaluate(scrambled(garnet(forbidden=True)), 10)
    # Rows without a shape are searched in blocks, which are wider than short rows.
    assert [len(table.row_shape) for table in seen] == [garnet().n_actions]


def test_where_nothing_is_known_legal_actions_are_drawn():
    """Of a table that is empty: as in a uniformly random policy."""
    agent = DistAsyncQLearning(seed=3)
    agent.train(corridor(limit=10), total_steps=32)
    played = agent.evaluate(corridor(length=10, limit=50), 2000)
    assert played.mean_length > 20
    model = garnet(forbidden=True)
    fresh = DistAsyncQLearning(seed=3)
    fresh.train(scrambled(model), total_steps=32)
    assert fresh.evaluate(scrambled(model), 500).episodes == 500  # an illegal one would have no outcome


# Files


def test_a_model_file_holds_all(tmp_path, trained):
    path = trained.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(path)
    np.testing.assert_array_equal(loaded.q_table.states, trained.q_table.states)
    np.testing.assert_array_equal(loaded.q_table.array, trained.q_table.array)
    np.testing.assert_array_equal(loaded.visits.array, trained.visits.array)
    keys = trained.q_table.states
    np.testing.assert_array_equal(loaded.action_values(keys), trained.action_values(keys))
    env = scrambled(garnet(forbidden=True))
    assert loaded.evaluate(env, 100, seed=1).mean_return == trained.evaluate(env, 100, seed=1).mean_return
    again = DistAsyncQLearning.load_model(path, env=env)
    again.train(env, total_steps=1000)
    assert again.steps == trained.steps + 1000 == again.visits.array.sum()
    with pytest.raises(EnvError, match="numbers"):
        DistAsyncQLearning.load_model(path, env=garnet())


def test_an_agent_that_knows_no_state_is_saved(tmp_path):
    agent = DistAsyncQLearning(seed=1)
    agent.train(corridor(), total_steps=0)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    assert len(loaded.q_table) == 0 and loaded.predict(5) == 0


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda keys: keys[:-1], "keys are"),
        (lambda keys: keys.astype(np.int32), "keys are"),
        (lambda keys: np.concatenate([keys[:-1], keys[:1]]), "twice"),
    ],
)
def test_damaged_keys_are_refused(tmp_path, trained, damage, said):
    from dist_classicrl.errors import ModelFileError
    from dist_classicrl.model import model_file

    model = trained._state.to_model()
    path = model_file.write(tmp_path / "model.npz", replace(model, keys=damage(model.keys)))
    with pytest.raises(ModelFileError, match=said):
        DistAsyncQLearning.load_model(path)


@pytest.mark.parametrize("forbidden", [False, True])
def test_a_stopped_training_goes_on_as_if_nothing_had_been(tmp_path, forbidden, anew):
    def agent():
        return DistAsyncQLearning(seed=3, epsilon=0.2)

    env = scrambled(garnet(forbidden))
    whole = agent()
    whole.train(env, total_steps=300_000)
    with pytest.raises(TrainingStopped):
        agent().train(env, total_steps=300_000, checkpoint_dir=tmp_path, callbacks=StopAt(100_000))
    anew()
    resumed = agent()
    resumed.train(env, total_steps=300_000, checkpoint_dir=tmp_path)
    np.testing.assert_array_equal(resumed.q_table.states, whole.q_table.states)
    np.testing.assert_array_equal(resumed.q_table.array, whole.q_table.array)
    np.testing.assert_array_equal(resumed.visits.array, whole.visits.array)


def test_a_growing_table_goes_on_as_if_nothing_had_been(tmp_path, anew):
    def agent():
        return DistAsyncQLearning(seed=3, epsilon=1.0)

    env = corridor(limit=20_000, stride=2)
    whole = agent()
    whole.train(env, total_steps=2_000_000)
    with pytest.raises(TrainingStopped):
        agent().train(
            env,
            total_steps=2_000_000,
            checkpoint_dir=tmp_path,
            checkpoint_interval=200_000,
            callbacks=StopAt(700_000),
        )
    anew()
    resumed = agent()
    resumed.train(env, total_steps=2_000_000, checkpoint_dir=tmp_path)
    np.testing.assert_array_equal(resumed.q_table.states, whole.q_table.states)
    np.testing.assert_array_equal(resumed.q_table.array, whole.q_table.array)


def test_a_checkpoint_of_another_game_gives_its_table_where_that_is_asked_for(tmp_path, anew):
    first = DistAsyncQLearning(seed=3)
    first.train(scrambled(garnet()), total_steps=10_000, checkpoint_dir=tmp_path)
    other = scrambled(replace(garnet(forbidden=True), name="other"))
    anew()
    with pytest.raises(CheckpointMismatchError, match="environment"):
        DistAsyncQLearning(seed=3).train(other, total_steps=20_000, checkpoint_dir=tmp_path)
    anew()
    taken = DistAsyncQLearning(seed=3)
    taken.train(other, total_steps=20_000, checkpoint_dir=tmp_path, strict=False)
    assert taken.steps == 20_000 and len(taken.q_table) >= len(first.q_table)


def test_walkers_are_put_where_their_keys_are(tmp_path, anew):
    env = scrambled(garnet())
    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(seed=3).train(
            env, total_steps=300_000, checkpoint_dir=tmp_path, callbacks=StopAt(100_000)
        )
    saved = CheckpointFolder(tmp_path, "agent-0").read_newest()
    other_key = saved.arrays["position"][0, 3, -1] + 1
    anew()
    edit(saved, put_array("position", with_value((0, 3, -1), other_key)))
    with pytest.raises(CheckpointError, match="keys"):
        DistAsyncQLearning(seed=3).train(env, total_steps=300_000, checkpoint_dir=tmp_path)


# The command line


def test_it_is_exported(tmp_path, trained):
    from dist_classicrl.agent.agent import state_of
    from dist_classicrl.export.formats import export

    keys = trained.q_table.states.tolist()
    rows = export(state_of(trained), tmp_path / "all.csv").read_text().splitlines()
    assert [int(row.split(",")[1]) for row in rows[1:]] == keys
    few = export(state_of(trained), tmp_path / "few.csv", most_visited=3).read_text().splitlines()
    visits = trained.visits.array.sum(axis=1)
    most = sorted(range(len(keys)), key=lambda row: (-visits[row], row))[:3]
    assert [int(row.split(",")[0]) for row in few[1:]] == most
    said = json.loads(export(state_of(trained), tmp_path / "all.json").read_text())
    assert max(keys) > 2**53 and said["observations"] == list(map(str, keys))
    with pytest.raises(ExportError, match="keys"):
        export(state_of(trained), tmp_path / "all.py")
    with pytest.raises(ExportError, match="csv"):
        export(state_of(trained), tmp_path / "few.json", most_visited=3)
    again = DistAsyncQLearning.load_model(export(state_of(trained), tmp_path / "all.npz"))
    assert list(again.q_table) == keys


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("--total-steps", "2e5", "--eval-episodes", "5", "--max-states", "1000000", "--out", "run")
    assert run_command(capsys, "train", "pocket_cube", "--env-arg", "half_turns=True", *words)[0] == 0
    agent = DistAsyncQLearning.load_model("run/model.npz")
    assert agent.max_states == 1_000_000 and agent.q_table.shape[1] == 9
    key = max(agent.visits, key=lambda key: agent.visits[key].sum())
    for command in (("show", "run", "--states", "3"), ("show", "run", "--observation", str(key))):
        status, said, _ = run_command(capsys, *command)
        assert status == 0 and str(key) in said
    status, said, _ = run_command(capsys, "evaluate", "run", "--episodes", "3")
    assert status == 0 and "mean return" in said
    assert run_command(capsys, "export", "run", "--to", "most.csv", "--states", "5")[0] == 0
    assert len((tmp_path / "most.csv").read_text().splitlines()) == 6
