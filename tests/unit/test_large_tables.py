"""Tables that an agent has as rows alone: the same to the bit as smaller ones, without copies of them."""

import copy
import io
import shutil
from dataclasses import replace

import numpy as np
import pytest

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP, _memory
from dist_classicrl.agent.agent import state_of
from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.engines.sharded.host_memory import HostMemory
from dist_classicrl.errors import SettingsError
from dist_classicrl.evaluation.episodes import _evaluate_compiled
from dist_classicrl.model import places
from dist_classicrl.model.fit import get_to_know
from dist_classicrl.tables import large_table
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.line_table import LineTable, size_of
from dist_classicrl.tables.shape import TableShape

pytestmark = pytest.mark.slow  # each kernel here takes long to compile

MODEL = TabularMDP.garnet(5_000, 4, 3, seed=2, terminal_states=4)
STATES = np.arange(5_000)[:, np.newaxis]
MASKED = replace(MODEL, action_mask=(np.arange(4) != STATES % 4) | (STATES < 4))
SMALL = large_table.FROM_ENTRIES


@pytest.fixture(autouse=True)
def large_from_here(monkeypatch):
    """Let tables of these tests be large, and arrays be read only when they are looked at."""
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 20_000)
    monkeypatch.setattr(array_files, "MAPPED_FROM", 1)


def agent(**settings):
    return DistAsyncQLearning(**{"seed": 1, "discount_factor": 0.9, **settings})


def dense(monkeypatch, make):
    """Return what `make` returns where no table is large."""
    with monkeypatch.context() as patch:
        patch.setattr(large_table, "FROM_ENTRIES", SMALL)
        return make()


def assert_same(one, other):
    np.testing.assert_array_equal(one.q_table, other.q_table)
    np.testing.assert_array_equal(one.visits, other.visits)


def is_large(learner):
    """Return whether the table is rows alone: values and visits lie in the same memory."""
    return np.may_share_memory(learner.q_table, learner.visits)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("placement", ["auto", "sharded"])
def test_it_learns_what_a_smaller_table_does(monkeypatch, dtype, placement):
    def learned():
        learner = agent(dtype=dtype)
        for steps in (100_000, 50_000):
            learner.train(MODEL, total_steps=steps, placement=placement)
        return learner

    large, small = learned(), dense(monkeypatch, learned)
    assert is_large(large) and not is_large(small)
    assert_same(large, small)
    states = np.arange(0, 5_000, 7)
    np.testing.assert_array_equal(large.predict(states), small.predict(states))
    np.testing.assert_array_equal(large.action_values(states), small.action_values(states))
    np.testing.assert_array_equal(large.state_values(states), small.state_values(states))
    np.testing.assert_array_equal(large.policy.greedy, small.policy.greedy)
    played = [learner.evaluate(MODEL, 20, seed=3).returns for learner in (large, small)]
    np.testing.assert_array_equal(*played)


@pytest.mark.parametrize(
    "settings",
    [{"async_updates": False, "logical_workers": 2}, {"replay_ratio": 1.0}, {"state_size": 6_000}],
    ids=["reproducible", "replay", "larger than the environment"],
)
def test_what_learns_in_copies_learns_the_same(monkeypatch, settings):
    def learned():
        learner = agent(**settings)
        for _ in range(2):
            learner.train(MODEL, total_steps=20_000)
        return learner

    large = learned()
    assert is_large(large)
    assert_same(large, dense(monkeypatch, learned))


def test_masked_actions_are_learned_in_copies(monkeypatch):
    def learned():
        learner = agent()
        learner.train(MASKED, total_steps=50_000)
        return learner

    large = learned()
    assert is_large(large) and not large.q_table[~MASKED.action_mask].any()
    assert_same(large, dense(monkeypatch, learned))


def test_what_is_written_to_the_table_is_learned_from(monkeypatch):
    def learned():
        learner = agent()
        learner.q_table = np.full((5_000, 4), 3.0)
        learner.q_table[7] = 5.0
        learner.visits[7] = 2
        learner.train(MODEL, total_steps=50_000)
        return learner

    assert_same(learned(), dense(monkeypatch, learned))
    learner = agent(state_size=5_000, action_size=4)
    learner.q_table[3, 1] = np.inf
    with pytest.raises(SettingsError, match="finite numbers"):
        learner.train(MODEL, total_steps=10)


def test_what_is_written_before_the_first_step_is_copied_with_the_agent():
    learner = agent(state_size=5_000, action_size=4)
    learner.q_table[3, 1] = 2.0
    learner.visits[4, 1] = 7
    assert_same(copy.deepcopy(learner), learner)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_it_is_saved_and_resumed_to_the_bit(monkeypatch, tmp_path, first, second):
    """Whoever reads it, and whoever wrote it: checkpoints of large tables are those of others."""

    def steps(learner, steps, is_large=True, **saved):
        def train():
            learner.train(MODEL, total_steps=steps, **saved)
            return learner

        return train() if is_large else dense(monkeypatch, train)

    monkeypatch.setattr(places, "_agents", {})
    saved = {"checkpoint_dir": tmp_path, "checkpoint_interval": 40_000}
    whole = steps(steps(agent(), 100_000), 60_000)
    steps(agent(), 100_000, first, **saved)
    for name in CheckpointFolder(tmp_path, "agent-0").names()[:1]:
        shutil.rmtree(tmp_path / "agent-0" / name)  # so that it goes on in the middle of the call
    places._agents.clear()
    again = agent()
    steps(again, 100_000, second, **saved)
    assert again.steps == 100_000
    steps(again, 60_000, second, **saved)
    assert is_large(again) == second
    assert_same(again, whole)
    loaded = DistAsyncQLearning.load_model(tmp_path)
    assert is_large(loaded)
    assert_same(loaded, whole)
    assert loaded.visits.sum() == 160_000


def test_a_model_file_of_it_is_that_of_a_smaller_table(monkeypatch, tmp_path):
    learner = agent()
    learner.train(MODEL, total_steps=50_000)
    path = learner.save_model(tmp_path / "model.npz")
    with np.load(path) as file:
        assert file["visits"].dtype == np.int64
    for loaded in (
        DistAsyncQLearning.load_model(path),
        dense(monkeypatch, lambda: DistAsyncQLearning.load_model(path)),
    ):
        assert_same(loaded, learner)


def test_a_table_that_does_not_fit_is_refused_before_the_run_by_how_much(monkeypatch):
    monkeypatch.setattr(_memory, "memory_left", lambda: 100_000)
    with pytest.raises(
        SettingsError, match=r"5,000 states and 4 actions needs .* with its visits.* GiB too little.*float32"
    ):
        agent().train(MODEL, total_steps=10)
    learner = agent(state_size=5_000, action_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(LineTable, "check_finite", lambda table: pytest.fail("all of it is read"))
        with pytest.raises(SettingsError, match=r"GiB too little"):
            learner.train(MODEL, total_steps=10)
    with pytest.raises(SettingsError, match=r"GiB too little"):
        learner.q_table = np.ones((5_000, 4))
    assert not learner.q_table.any()
    # Who joins others finds the table that they have.
    get_to_know(state_of(learner), MODEL).close()


def test_what_needs_a_copy_that_does_not_fit_is_refused_with_the_remedy(monkeypatch, tmp_path):
    learner, replaying = agent(), agent(replay_ratio=1.0)
    replaying.q_table = np.zeros((5_000, 4))
    learner.train(MODEL, total_steps=50_000)
    monkeypatch.setattr(_memory, "memory_left", lambda: 100_000)
    with pytest.raises(SettingsError, match="action_values"):
        _ = learner.policy
    with pytest.raises(SettingsError, match="checkpoint_dir"):
        learner.save_model(tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())
    assert 0 <= learner.predict(17) < 4
    learner.evaluate(MODEL, 3)
    learner.train(MODEL, total_steps=10_000, checkpoint_dir=tmp_path)
    assert learner.visits.sum() == 60_000
    with pytest.raises(SettingsError, match="without replay"):
        replaying.train(MODEL, total_steps=10)


def test_rows_move_to_shared_memory_and_are_given_back_here():
    table = LargeTable(TableShape(300_000, 4), np.dtype("float32"))
    values, counts = np.random.default_rng(1).random((300_000, 4), np.float32), np.full((300_000, 4), 1 << 33)
    table.put(values, counts)
    before = table.memory
    memory = HostMemory.new(table.size, is_sparse=True)
    table.move_to(memory, is_first=True)
    np.testing.assert_array_equal(table.rows.values, values)
    assert (table.rows.counts == np.uint32(0xFFFFFFFF)).all()
    assert not before[: 1 << 20].any()
    table.move_to(memory, is_first=True)  # it is there
    np.testing.assert_array_equal(table.rows.values, values)
    memory.close()


def test_first_values_are_written_where_the_rows_are_when_they_are_used():
    def table():
        made = LargeTable(TableShape(300_000, 4), np.dtype("float32"))
        made.begin_with(2.5)
        return made

    here = table()
    assert not here.unfilled.values.any() and not here.is_written
    assert (here.rows.values == 2.5).all() and not here.rows.counts.any() and here.is_written
    for is_first in (True, False):
        moved, memory = table(), HostMemory.new(here.size, is_sparse=True)
        before = moved.unfilled.values
        moved.move_to(memory, is_first)
        assert not before.any()  # no copy was made for that
        assert (moved.rows.values == (2.5 if is_first else 0.0)).all()
        memory.close()
    moved = LargeTable(TableShape(300_000, 4), np.dtype("float32"))
    moved.rows.values[:] = 1.0
    before, memory = moved.rows.values, HostMemory.new(here.size, is_sparse=True)
    moved.move_to(memory, False)
    assert not before[:-64].any()  # nor is one kept, but for a part of a page
    memory.close()


@pytest.mark.parametrize("asked", [{}, {"placement": "sharded"}, {"walkers": 64}])
def test_first_values_are_those_of_a_smaller_table(monkeypatch, asked):
    settings = {"initial_value": 2.5, "async_updates": "walkers" not in asked}
    if "walkers" in asked:
        asked = {**asked, "placement": "sharded"}

    def learned(look=lambda learner: None):
        learner = agent(**settings)
        get_to_know(state_of(learner), MODEL).close()
        look(learner)
        learner.train(MODEL, total_steps=20_000, **asked)
        return learner

    small = dense(monkeypatch, learned)
    assert (small.q_table == 2.5).any()
    assert_same(learned(), small)
    assert_same(learned(lambda learner: learner.action_values([7])), small)
    new = agent(state_size=5_000, action_size=4, **settings)
    assert (copy.deepcopy(new).q_table == 2.5).all() and (new.action_values([3]) == 2.5).all()
    with monkeypatch.context() as patch:
        patch.setattr(_memory, "memory_left", lambda: 100_000)
        with pytest.raises(SettingsError, match="GiB too little"):
            _ = agent(state_size=5_000, action_size=4, **settings).q_table


def test_arrays_that_are_written_in_slices_are_the_same_files():
    array = np.arange(120_000.0).reshape(-1, 6)[:, :4]
    whole, parts = (
        array_files.ArrayFile(array),
        array_files.ArrayFile(array_files.InSlices(array, array.dtype)),
    )
    assert b"".join(whole.chunks()) == b"".join(parts.chunks())
    assert whole.entry() == parts.entry()
    array[17, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        list(array_files.ArrayFile(array_files.InSlices(array, array.dtype)).chunks())


def test_damage_is_found_before_an_array_is_used(tmp_path):
    path = tmp_path / "array.npy"
    file = array_files.ArrayFile(np.arange(100_000.0).reshape(-1, 4))
    data = bytearray(whole := b"".join(file.chunks()))
    path.write_bytes(data)
    with path.open("rb") as opened:
        found = array_files.read(opened, file.entry())
    assert isinstance(found, np.memmap) and found[5, 1] == 21.0
    data[5_000] ^= 1
    path.write_bytes(data)
    with path.open("rb") as opened, pytest.raises(ValueError, match="checksum"):
        array_files.read(opened, file.entry())
    assert not isinstance(array_files.read(io.BytesIO(whole), file.entry()), np.memmap)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_evaluation_reads_nothing_beside_the_table(dtype):
    """Who looks at more than there is of the first row, or the last, finds what is greater than all."""
    both_ends = TabularMDP.from_dict(
        {s: {a: [(1.0, s, float(a), True)] for a in range(2)} for s in range(2)}, [0.5, 0.5]
    )
    shape, kind = TableShape(2, 2), np.dtype(dtype)
    around, size = 4096, size_of(shape, kind)
    memory = np.full(2 * around + size, 0x7E, np.uint8)  # large numbers of either type
    rows = memory[around : around + size]
    rows[:] = 0
    table = LineTable(shape, kind, None, rows)
    table.load(np.array([0.0, 1.0, 0.0, 1.0]), np.zeros(4, np.int64))
    simulator = CompiledSimulator.from_model(both_ends)
    assert _evaluate_compiled(simulator, table, 100, 1, 10).returns.tolist() == [1.0] * 100


def test_what_values_begin_with_takes_room_before_a_copy_does(monkeypatch):
    learner = agent(initial_value=2.0, state_size=5_100)  # more states than there are: it learns in a copy

    def left():
        large = state_of(learner).large
        is_written = large is not None and large.unfilled.values[0, 0] != 0.0
        return 200_000 if is_written else 500_000  # of a table of 326,400 bytes, and a copy of as many

    monkeypatch.setattr(_memory, "memory_left", left)
    with pytest.raises(SettingsError, match="A copy of the table, as this way of learning needs it"):
        learner.train(MODEL, total_steps=10)
