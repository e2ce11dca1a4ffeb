"""Keys of 128 bits: against dictionaries in plain Python, tables of numbered states, and keys of 64 bits."""

import json
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
import own_rules
import pytest
from edited_checkpoints import edit, put_array, with_value
from keyed_games import (
    Corridor,
    behind,
    corridor,
    reset_corridor,
    reset_wide_corridor,
    scrambled,
    scrambled_wide,
    step_corridor,
    step_wide_corridor,
    taxi,
    wide_corridor,
    wide_keys_of,
    wide_states_of,
)
from learned_runs import run_command
from test_interleaved import StopAt, garnet

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.agent.agent import state_of
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.environments.state_keys import (
    WIDE,
    as_numbers,
    as_stored,
    as_words,
    ascending,
    from_numbers,
    from_stored,
)
from dist_classicrl.errors import (
    ActionMaskError,
    CheckpointError,
    CheckpointMismatchError,
    EnvError,
    ExportError,
    ModelError,
    ModelFileError,
    OutsideSpaceError,
    RewardError,
    SettingsError,
    StateLimitError,
    TrainingStopped,
)
from dist_classicrl.export.formats import export
from dist_classicrl.learning import interleaved, keyed_table
from dist_classicrl.model import model_file
from dist_classicrl.model.keyed import KeyIndex
from dist_classicrl.tables.keys import empty_slots, find_rows, slots_of

# Each kernel here takes long to compile.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("anew")]


# Numbers, pairs and words


def some_keys(n, seed=0):
    """Return so many different keys: of some only the high half differs, of others the low one."""
    draw = np.random.default_rng(seed).integers(0, 1 << 63, (n, 2), np.uint64) * np.uint64(2)
    draw[: n // 3, 0] = 5
    draw[n // 3 : n // 2, 1] = 1 << 63
    return [high << 64 | low for high, low in draw.tolist()]


def test_a_key_is_one_number_however_it_is_held():
    numbers = [0, 1, (1 << 64) - 1, 1 << 64, (1 << 128) - 1, *some_keys(50)]
    keys = from_numbers(numbers, WIDE)
    assert as_numbers(keys) == numbers == as_numbers(from_stored(as_stored(keys)))
    assert as_stored(keys).tolist() == [[key >> 64, key & (1 << 64) - 1] for key in numbers]
    assert as_numbers(ascending(keys)) == sorted(numbers)
    assert as_numbers(as_words(keys).view(WIDE)) == numbers
    for nothing in (from_stored(np.zeros((0, 2), np.uint64)), from_numbers([], WIDE)):
        assert nothing.dtype == WIDE and as_stored(nothing).shape == (0, 2)


@pytest.mark.parametrize("n", [0, 1, 716, 717, 5000])
def test_keys_are_found_as_in_a_dictionary(n):
    numbers = some_keys(n, n)
    # Pairs that a hash of one half, or of both exchanged or added up, would take for the same.
    likely = [1 << 64, 1, 1 << 127, 1 << 63, (5 << 64) + 7, (7 << 64) + 5, (6 << 64) + 6]
    numbers += likely
    twin = {key: row for row, key in enumerate(numbers)}
    assert len(twin) == len(numbers)
    asked = [*numbers, *some_keys(100, n + 1), 0, (1 << 128) - 1, *(key + 1 for key in numbers)]
    rows = np.zeros(len(asked), np.int64)
    slots = slots_of(from_numbers(numbers, WIDE))
    find_rows(slots, as_words(from_numbers(asked, WIDE)), rows)
    assert rows.tolist() == [twin.get(key, -1) for key in asked]
    assert slots.size // 4 * 0.7 >= len(numbers)


def test_a_key_that_comes_twice_is_told():
    with pytest.raises(ValueError, match=str(3 << 64)):
        slots_of(from_numbers([3 << 64, 3, 3 << 64], WIDE))


# Learning


def learned(env, steps=300_000, **settings):
    agent = DistAsyncQLearning(seed=3, **settings)
    return agent, agent.train(env, total_steps=steps)


def both(model, steps=300_000, **settings):
    """Return agents that have learned a model, with numbers and with wide keys as states."""
    (numbered, first), (keyed, second) = (
        learned(env, steps, **settings) for env in (model, scrambled_wide(model))
    )
    assert (first.episodes, first.mean_return) == (second.episodes, second.mean_return)
    return numbered, keyed


@pytest.mark.parametrize("model", [garnet(), garnet(forbidden=True), taxi()], ids=["garnet", "mask", "taxi"])
def test_the_values_are_those_of_a_table_of_numbers(model, interleaves):
    numbered, keyed = both(model, discount_factor=0.9)
    found = wide_states_of(keyed.q_table.states)
    assert len(set(found.tolist())) == found.size and found.max() > 8  # both halves are needed
    np.testing.assert_array_equal(keyed.q_table.array, numbered.q_table[found])
    np.testing.assert_array_equal(keyed.visits.array, numbered.visits[found])
    assert keyed.visits.array.sum() == 300_000


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("high", [0, 0x0123456789ABCDEF])
def test_keys_of_64_bits_behind_one_half_learn_the_same(dtype, high):
    (narrow, first), (wide, second) = (
        learned(env, dtype=dtype) for env in (scrambled(garnet()), behind(garnet(), high))
    )
    assert repr(first.mean_return) == repr(second.mean_return)
    assert list(wide.q_table) == [high << 64 | key & (1 << 64) - 1 for key in narrow.q_table]
    np.testing.assert_array_equal(wide.q_table.array, narrow.q_table.array)
    np.testing.assert_array_equal(wide.visits.array, narrow.visits.array)


@pytest.mark.parametrize("rule", ["DoubleQ", "NStepSarsa", "Differential"])
def test_with_several_tables_and_shared_numbers(rule, interleaves):
    with own_rules.registered():
        numbered, keyed = both(garnet(), steps=100_000, algorithm=getattr(own_rules, rule)())
        found = wide_states_of(keyed.q_table.states)
        np.testing.assert_array_equal(keyed.q_table.array, numbered.q_table[found])


def test_it_learns_the_optimum_and_plays_it():
    model = garnet(forbidden=True)
    agent, _ = learned(scrambled_wide(model), 2_000_000, discount_factor=0.9)
    reached = model.policy_value(agent.predict(wide_keys_of(np.arange(model.n_states))), 0.9)
    best = model.start_value(model.solve(0.9).v)
    assert model.start_value(reached) >= best - 0.01 * abs(best)


def test_evaluation_plays_the_greedy_policy(interleaves):
    numbered, keyed = both(taxi(), steps=3_000_000, discount_factor=0.99)
    assert keyed.evaluate(scrambled_wide(taxi()), 2000, seed=1).mean_return == pytest.approx(
        numbered.evaluate(taxi(), 2000, seed=1).mean_return, abs=0.3
    )


def test_where_nothing_is_known_legal_actions_are_drawn():
    model = garnet(forbidden=True)
    fresh, _ = learned(scrambled_wide(model), 32)
    assert fresh.evaluate(scrambled_wide(model), 500).episodes == 500  # an illegal one would have no outcome


class Plane(NamedTuple):
    size: np.uint64


@numba.njit
def reset_plane(data, memory, random):
    return np.uint64(0), np.uint64(0)


@numba.njit
def step_plane(data, memory, key, action, random):
    x, y = key
    if action == 0:
        x = (x + np.uint64(1)) % data.size
    else:
        y = (y + np.uint64(1)) % data.size
    return (x, y), np.float64(x * data.size + y), False


def test_each_half_of_a_key_counts():
    """A walk on a torus, whose states share halves with each other, and are each other's exchanged."""
    plane = CompiledSimulator.game(
        "plane", None, 2, Plane(np.uint64(30)), reset_plane, step_plane, max_episode_steps=200, keyed=True
    )
    agent, _ = learned(plane, 320_000, epsilon=1.0, learning_rate=1.0, discount_factor=0.0)
    assert set(agent.q_table) == {x << 64 | y for x in range(30) for y in range(30)}
    for x in range(30):
        for y in range(30):
            after = [(x + 1) % 30 * 30 + y, x * 30 + (y + 1) % 30]
            assert agent.action_values(x << 64 | y).tolist() == after


def test_the_table_grows_and_the_result_is_the_same_however_calls_are_cut(monkeypatch):
    tables = []
    for grows in (True, False):
        if not grows:
            monkeypatch.setattr(keyed_table, "empty_slots", lambda n, kind: empty_slots(1 << 20, kind))
        agent, _ = learned(wide_corridor(limit=20_000, stride=2), 3_000_000, epsilon=1.0)
        tables.append(agent.q_table)
    assert len(tables[0]) > 3000
    np.testing.assert_array_equal(tables[0].states, tables[1].states)
    np.testing.assert_array_equal(tables[0].array, tables[1].array)


def test_at_the_limit_training_ends_with_what_was_learned(tmp_path, anew):
    agent = DistAsyncQLearning(seed=5, epsilon=1.0, max_states=100)
    with pytest.raises(StateLimitError, match="max_states=100 allows no more"):
        agent.train(wide_corridor(stride=2), total_steps=1_000_000, checkpoint_dir=tmp_path)
    assert len(agent.q_table) == 100 and 0 < agent.steps < 1_000_000
    assert agent.visits.array.sum() == agent.steps
    saved = DistAsyncQLearning.load_model(tmp_path)
    assert list(saved.q_table) == list(agent.q_table)
    np.testing.assert_array_equal(saved.q_table.array, agent.q_table.array)
    agent.max_states = None
    agent.train(wide_corridor(stride=2), total_steps=100_000)
    assert len(agent.q_table) > 100


def test_a_state_takes_more_memory_than_one_of_64_bits(monkeypatch):
    monkeypatch.setattr(keyed_table, "memory_left", lambda: 1 << 20)
    monkeypatch.setattr(keyed_table, "_FEWEST", 64)
    known = []
    for env in (corridor(limit=20_000, stride=2), wide_corridor(limit=20_000, stride=2)):
        agent = DistAsyncQLearning(seed=5, epsilon=1.0)
        with pytest.raises(StateLimitError, match="bytes of memory"):
            agent.train(env, total_steps=10_000_000)
        known.append(len(agent.q_table))
    assert 1000 < known[1] < 0.8 * known[0]


# What is refused


@numba.njit
def reset_to_three(data, memory, random):
    return random, random, random


@numba.njit
def reset_to_floats(data, memory, random):
    return 0.5, 1.0


@numba.njit
def reset_to_narrow_pair(data, memory, random):
    return 7, np.int64(reset_corridor(data, memory, random))


@numba.njit
def legal_by_number(data, key, action):
    return key > 3


@numba.njit
def step_to_floats(data, memory, key, action, random):
    return (key[0] * 0.5, key[1]), 1.0, False


@numba.njit
def step_to_four(data, memory, key, action, random):
    return key[0], key[1], 1.0, False


def game(**changes):
    given = dict(n_actions=2, data=Corridor(9, 1), reset=reset_wide_corridor, step=step_wide_corridor)
    return CompiledSimulator.game("bad", **{**given, "memory_size": 1, "keyed": True, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(reset=reset_to_three), r"reset gives states of the type .* a pair of uint64, \(high, low\)"),
        (dict(reset=reset_to_floats), "reset gives states of the type .*float64"),
        (dict(step=step_to_floats), "step gives states of the type .*float64"),
        (dict(step=step_to_four), "three values"),
        (dict(reset=reset_corridor), "step cannot be compiled"),
        (dict(step=step_corridor), "step cannot be compiled"),
        (dict(legal=legal_by_number), "legal cannot be compiled"),
        (dict(keyed=False, n_states=9), "state; step.* which are a whole number"),
    ],
)
def test_bad_games_are_refused(changes, said):
    with pytest.raises((ModelError, SettingsError), match=said):
        env = game(**changes)
        DistAsyncQLearning(seed=1).train(env, total_steps=100)


@numba.njit
def step_to_number(data, memory, key, action, random):
    return np.uint64(5), 1.0, False


def test_both_functions_have_to_give_pairs():
    with pytest.raises(ModelError, match=r"Both must give one whole number, or both a pair of them"):
        game(step=step_to_number)


def test_pairs_of_any_whole_numbers_are_taken_as_uint64():
    env = game(reset=reset_to_narrow_pair, data=Corridor(1 << 40, 1), max_episode_steps=50)
    agent, _ = learned(env, 20_000, epsilon=1.0)
    twin, _ = learned(game(data=Corridor(1 << 40, 1), max_episode_steps=50), 20_000, epsilon=1.0)
    assert list(agent.q_table) == list(twin.q_table)


@numba.njit
def step_to_nothing(data, memory, key, action, random):
    return (key[0], key[1] + np.uint64(1)), np.inf if key[1] == 5 else 0.0, False


@numba.njit
def nothing_legal_at_seven(data, key, action):
    return key[1] != 7


@numba.njit
def step_out_of_memory(data, memory, key, action, random):
    memory[np.int64(key[1])] = 1
    return (key[0], key[1] + np.uint64(1)), 0.0, False


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (dict(step=step_to_nothing), RewardError, rf"in state {7 << 64 | 5} with action [01] gave"),
        (dict(legal=nothing_legal_at_seven), ActionMaskError, rf"state {7 << 64 | 7}, "),
        (
            dict(step=step_out_of_memory, check=True),
            OutsideSpaceError,
            rf"in state ({(7 << 64) + 1}|{(7 << 64) + 2}) ",
        ),
    ],
)
@pytest.mark.parametrize("on_trial", [False, True])
def test_what_a_game_does_wrong_is_told_with_the_key(changes, error, said, on_trial, monkeypatch):
    if not on_trial:
        monkeypatch.setattr(interleaved, "try_out", lambda simulator: None)
    changes = {"data": Corridor(1 << 40, 1), **changes}
    with pytest.raises(error, match=said):
        DistAsyncQLearning(seed=1, epsilon=1.0).train(
            game(**changes, max_episode_steps=50), total_steps=100_000
        )


def test_keys_of_64_and_128_bits_do_not_mix(tmp_path, anew):
    narrow, wide = scrambled(garnet()), scrambled_wide(garnet())
    agents = []
    for env, folder in ((narrow, tmp_path / "narrow"), (wide, tmp_path / "wide")):
        agent = DistAsyncQLearning(seed=1)
        agent.train(env, total_steps=1000, checkpoint_dir=folder)
        agents.append(agent)
    for agent, env in zip(agents, (wide, narrow), strict=True):
        with pytest.raises(EnvError, match="keys of .* as states, and those of the table are of"):
            agent.train(env, total_steps=1000, new_env=True)
        with pytest.raises(SettingsError, match="keys of .* as states, and those of the table are of"):
            agent.evaluate(env)
        path = agent.save_model(tmp_path / "model.npz")
        with pytest.raises(EnvError, match="Make another agent"):
            DistAsyncQLearning.load_model(path, env=env)
    for env, folder in ((narrow, tmp_path / "wide"), (wide, tmp_path / "narrow")):
        anew()
        with pytest.raises(CheckpointMismatchError, match="keys of .*checkpoint_dir of its own"):
            DistAsyncQLearning(seed=1).train(env, total_steps=2000, checkpoint_dir=folder, strict=False)
    assert "128 bits" in repr(wide) and "int64" in repr(narrow)


# Looking it up


@pytest.fixture(scope="module")
def trained():
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9)
    agent.train(scrambled_wide(garnet(forbidden=True)), total_steps=200_000)
    return agent


def test_the_table_is_a_mapping(trained):
    table = trained.q_table
    assert len(table) == len(list(table)) == len(set(table)) and table.shape == (len(table), 5)
    assert table.states.dtype == np.uint64 and table.states.shape == (len(table), 2)
    assert list(table) == [high << 64 | low for high, low in table.states.tolist()]
    twin = dict(zip(table, table.array.tolist(), strict=True))
    assert {key: row.tolist() for key, row in table.items()} == twin
    key = max(table)
    assert key in table and "no key" not in table
    assert all(other not in table for other in (key ^ 1, key ^ 1 << 64, key ^ 1 << 127))
    with pytest.raises(KeyError):
        table[12345]
    with pytest.raises(ValueError):
        table.array[0] = 1.0
    with pytest.raises(ValueError):
        table.states[0] = 1


def test_keys_are_looked_up_one_or_many_at_a_time(trained):
    keys, halves = list(trained.q_table), trained.q_table.states
    values = trained.action_values(halves)
    for key, pair, row, best in zip(keys, halves, values, trained.predict(halves), strict=True):
        for given in (key, pair, tuple(pair), divmod(key, 1 << 64), np.array(key)):
            np.testing.assert_array_equal(trained.action_values(given), row)
            assert trained.predict(given) == best == row.argmax()
            assert trained.state_values(given) == row.max()
        np.testing.assert_array_equal(trained.q_table[tuple(pair)], trained.q_table[key])
    for batch in (keys, np.array(keys, object), [tuple(pair) for pair in halves], list(halves)):
        np.testing.assert_array_equal(trained.action_values(batch), values)
        np.testing.assert_array_equal(trained.policy(batch), trained.predict(halves))
    legal = garnet(forbidden=True).action_mask[wide_states_of(halves)]
    np.testing.assert_array_equal(values > -np.inf, legal)
    assert trained.predict([]).shape == trained.predict(halves[:0]).shape == (0,)


@pytest.mark.parametrize(
    "given", [5, np.uint64(5), np.array(5), np.array(5, np.uint64), (0, 5), (np.uint64(0), np.uint64(5))]
)
def test_small_keys_are_given_as_any_whole_number(given):
    index = KeyIndex.of(np.array([(5, 0), (0, 5)], WIDE))
    assert index.encode(given) == 1 and index.encode_any([given, 5 << 64])[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    "given",
    [
        1.5,
        "a",
        -1,
        1 << 128,
        True,
        (1, 2, 3),
        (1,),
        (1, -1),
        (1 << 64, 0),
        (1.0, 2.0),
        (True, 1),
        ((1, 2), (3, 4)),
        [(1, 2, 3)],
        np.array(1.0),
        np.array(True),
        np.array(-1),
        [[1]],
        [[1], [2, 3]],
        None,
        [1, 2.5],
        [1, -1],
        np.zeros((2, 3), np.uint64),
        np.zeros(3, np.uint64),
        np.zeros(2, np.int64),
        np.zeros((2, 2), np.int64),
        np.zeros((1, 1, 2), np.uint64),
    ],
)
def test_what_is_no_key_is_refused(trained, given):
    with pytest.raises(
        OutsideSpaceError, match="whole number from 0 to 340282366920938463463374607431768211455"
    ):
        trained.predict(given)


def test_of_a_state_that_was_never_met_the_game_alone_tells_what_is_legal(tmp_path):
    model = garnet(forbidden=True)
    env = scrambled_wide(model)
    agent, _ = learned(env, 32)
    keys = wide_keys_of(np.arange(model.n_states))
    state, unknown = next((state, key) for state, key in enumerate(keys) if key not in agent.q_table)
    known, mask = next(iter(agent.q_table)), model.action_mask[state]
    assert agent.action_values(unknown).tolist() == np.where(mask, 0.0, -np.inf).tolist()
    assert agent.predict(unknown) == mask.argmax() == agent.policy(unknown)
    path = agent.save_model(tmp_path / "model.npz")
    loaded = DistAsyncQLearning.load_model(path)
    halves = divmod(unknown, 1 << 64)
    for given in (unknown, halves, [known, unknown], np.array([halves], np.uint64)):
        with pytest.raises(SettingsError, match=rf"state {unknown} was .* load_model\(path, env=...\)"):
            loaded.predict(given)
    told = DistAsyncQLearning.load_model(path, env=env)
    assert told.predict([known, unknown]).tolist() == agent.predict([known, unknown]).tolist()


# Files


def test_a_model_file_holds_all(tmp_path, trained):
    path = trained.save_model(tmp_path / "model.npz")
    with np.load(path) as file:
        assert file["keys"].dtype == np.uint64
        np.testing.assert_array_equal(file["keys"], trained.q_table.states)
    loaded = DistAsyncQLearning.load_model(path)
    assert list(loaded.q_table) == list(trained.q_table)
    np.testing.assert_array_equal(loaded.q_table.array, trained.q_table.array)
    np.testing.assert_array_equal(loaded.visits.array, trained.visits.array)
    env = scrambled_wide(garnet(forbidden=True))
    assert loaded.evaluate(env, 100, seed=1).mean_return == trained.evaluate(env, 100, seed=1).mean_return
    again = DistAsyncQLearning.load_model(path, env=env)
    again.train(env, total_steps=1000)
    assert again.steps == trained.steps + 1000 == again.visits.array.sum()


def test_an_agent_that_knows_no_state_is_saved(tmp_path):
    agent, _ = learned(wide_corridor(), 0)
    loaded = DistAsyncQLearning.load_model(agent.save_model(tmp_path / "model.npz"))
    assert (
        len(loaded.q_table) == 0 and loaded.q_table.states.shape == (0, 2) and loaded.predict(1 << 100) == 0
    )


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda keys: keys[:-1], "keys are"),
        (lambda keys: as_stored(keys).astype(np.int64), "keys are"),
        (lambda keys: as_stored(keys).repeat(2, axis=1), "keys are"),
        (lambda keys: np.concatenate([keys[:-1], keys[:1]]), "twice"),
    ],
)
def test_damaged_keys_are_refused(tmp_path, trained, damage, said):
    model = trained._state.to_model()
    path = model_file.write(tmp_path / "model.npz", replace(model, keys=damage(model.keys)))
    with pytest.raises(ModelFileError, match=said):
        DistAsyncQLearning.load_model(path)


def stopped(env, folder, at, steps, **settings):
    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(seed=3, **settings).train(
            env, total_steps=steps, checkpoint_dir=folder, checkpoint_interval=50_000, callbacks=StopAt(at)
        )


@pytest.mark.parametrize("name", ["garnet", "mask", "corridor"])
def test_a_stopped_training_goes_on_as_if_nothing_had_been(tmp_path, name, anew):
    env = {
        "garnet": lambda: scrambled_wide(garnet()),
        "mask": lambda: scrambled_wide(garnet(forbidden=True)),
        "corridor": lambda: wide_corridor(limit=20_000, stride=2),
    }[name]()
    steps = 1_000_000 if name == "corridor" else 300_000
    whole, _ = learned(env, steps, epsilon=0.9)
    stopped(env, tmp_path, steps // 3, steps, epsilon=0.9)
    anew()
    resumed = DistAsyncQLearning(seed=3, epsilon=0.9)
    assert resumed.train(env, total_steps=steps, checkpoint_dir=tmp_path).resumed_from is not None
    assert list(resumed.q_table) == list(whole.q_table)
    np.testing.assert_array_equal(resumed.q_table.array, whole.q_table.array)
    np.testing.assert_array_equal(resumed.visits.array, whole.visits.array)


@pytest.mark.parametrize("half", [-1, -2])
def test_walkers_are_put_where_their_keys_are(tmp_path, anew, half):
    env = scrambled_wide(garnet())
    stopped(env, tmp_path, 100_000, 300_000)
    saved = CheckpointFolder(tmp_path, "agent-0").read_newest()
    assert saved.arrays["keys"].dtype == np.uint64 and saved.arrays["keys"].shape[1] == 2
    other_key = saved.arrays["position"][0, 3, half] + 1
    anew()
    edit(saved, put_array("position", with_value((0, 3, half), other_key)))
    with pytest.raises(CheckpointError, match="keys"):
        DistAsyncQLearning(seed=3).train(env, total_steps=300_000, checkpoint_dir=tmp_path)


# The command line


def test_it_is_exported_and_shown(tmp_path, trained, capsys):
    keys = list(trained.q_table)
    rows = export(state_of(trained), tmp_path / "all.csv").read_text().splitlines()
    assert [int(row.split(",")[1]) for row in rows[1:]] == keys
    said = json.loads(export(state_of(trained), tmp_path / "all.json").read_text())
    assert said["observations"] == list(map(str, keys))
    with pytest.raises(ExportError, match="keys"):
        export(state_of(trained), tmp_path / "all.py")
    path = export(state_of(trained), tmp_path / "all.npz")
    assert list(DistAsyncQLearning.load_model(path).q_table) == keys
    most = max(keys, key=lambda key: trained.visits[key].sum())
    for words in (("--states", "3"), ("--observation", str(most))):
        status, shown, _ = run_command(capsys, "show", str(path), *words)
        assert status == 0 and str(most) in shown
