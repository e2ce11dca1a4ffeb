"""Large tables that are divided between hosts: each has its share of the rows, and nobody all of them."""

import gc
import hashlib
import threading
import time

import numba
import numpy as np
import pytest
from mpi4py import MPI
from own_signals import stop_after

from dist_classicrl import DistAsyncQLearning, TabularMDP, _memory
from dist_classicrl.agent import reach
from dist_classicrl.agent.agent import state_of
from dist_classicrl.callbacks import EvalCallback
from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.engines.supersteps import desk, division
from dist_classicrl.errors import CheckpointError, RemoteRankError, SettingsError
from dist_classicrl.evaluation.exact import greedy_value
from dist_classicrl.evaluation.over_ranks import policy_value_over_ranks
from dist_classicrl.membership.group import Group
from dist_classicrl.model import places
from dist_classicrl.tables import large_table

WORLD = MPI.COMM_WORLD
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(WORLD.size < 3, reason="two hosts, and one of them with two ranks"),
    pytest.mark.usefixtures("fast_ramp"),
]

MODEL = TabularMDP.garnet(5_000, 5, 3, seed=2, terminal_states=4)  # as in test_supersteps: compiled there
STATES = np.arange(5_000)


@pytest.fixture(autouse=True)
def divided_from_here(monkeypatch):
    """Let tables of these tests be large, and too large for a host; ranks are on two hosts."""
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 20_000)
    monkeypatch.setattr(large_table, "WHOLE_SHARE", 0.0)
    monkeypatch.setattr(array_files, "MAPPED_FROM", 1)
    monkeypatch.setattr(division, "SLICE_BYTES", 1 << 16)
    monkeypatch.setattr(Group, "host_of", lambda self, rank: f"host {rank % 2}")
    monkeypatch.setattr(places, "_agents", {})
    yield
    WORLD.barrier()


@pytest.fixture
def folder(tmp_path):
    """Return a folder that is the same on all ranks."""
    return WORLD.bcast(tmp_path)


def learned_more(learner, steps=10, **asked):
    learner.train(MODEL, total_steps=steps, placement="sharded", walkers=512, **asked)


def learned(calls, comm=None, **asked):
    learner = DistAsyncQLearning(seed=1, discount_factor=0.9, async_updates=False, comm=comm)
    for steps in calls:
        learned_more(learner, steps, **asked)
    return learner


def bits_of(learner):
    """Return the values as a digest: asked for, where they are divided."""
    return hashlib.sha256(np.ascontiguousarray(learner.action_values(STATES))).hexdigest()


def taken(learner):
    """Return how much of the table's memory this rank's host has taken."""
    return state_of(learner).large.shared.taken


@pytest.fixture(scope="module")
def truth():
    """Return what a process alone learns, by the calls."""
    found = {}

    def learn(calls):
        if calls not in found:
            found[calls] = bits_of(learned(calls, MPI.COMM_SELF))
        return found[calls]

    return learn


@numba.njit
def scattered(state):
    """Give each host some rows of every page."""
    return state % 3


CALLS = (60_001, 120_000)


def test_each_host_has_its_share_and_learns_what_one_process_does(truth, folder):
    learner = learned(CALLS)
    large = state_of(learner).large
    assert large.is_divided and bits_of(learner) == truth(CALLS)
    shares = WORLD.allgather((large.division.share_of(f"host {WORLD.rank % 2}"), taken(learner)))
    for share, bytes_taken in shares:
        assert share < 0.7 and bytes_taken < (share + 0.1) * large.size + 16_384
    own = np.random.default_rng(WORLD.rank).integers(5_000, size=50)
    values = learner.action_values(own)
    assert (values[np.arange(50), learner.predict(own)] == values.max(axis=1)).all()
    assert learner.evaluate(MODEL, episodes=20, seed=3, max_steps=50).lengths.max() <= 50
    with pytest.raises(SettingsError, match=r"divided between hosts.*action_values.*save_model"):
        learner.q_table  # noqa: B018
    assert learner.shared == {}
    with pytest.raises(SettingsError, match=r"partition=.* cannot take the place of"):
        learned_more(learner, partition="range")
    with pytest.raises(SettingsError, match=r"the engine 'rounds' needs all of it.*Write placement="):
        learner.train(MODEL, total_steps=10, placement="replicated")
    if WORLD.rank == 1:  # others do something else meanwhile
        loaded = DistAsyncQLearning.load_model(learner.save_model(folder / "model"), comm=MPI.COMM_SELF)
        np.testing.assert_array_equal(loaded.q_table, learner.action_values(STATES))
        assert loaded.steps == learner.steps and loaded.visits.sum() == sum(CALLS)
    WORLD.barrier()
    learner.save_model(folder / "model")  # on all ranks, as a script does that knows nothing of ranks
    saved = DistAsyncQLearning.load_model(folder / "model", comm=MPI.COMM_SELF)
    assert hashlib.sha256(saved.q_table.tobytes()).hexdigest() == truth(CALLS)
    WORLD.barrier()


def test_what_is_written_before_the_first_step_goes_to_its_owners():
    def written(comm=None):
        learner = DistAsyncQLearning(5_000, 5, seed=1, discount_factor=0.9, async_updates=False, comm=comm)
        learner.q_table[::7] = 3.0
        learned_more(learner, 20_000)
        return bits_of(learner)

    alone = written(MPI.COMM_SELF)
    assert written() == alone


def test_it_is_shown_and_its_exact_value_known_while_it_is_learned(truth, capsys):
    evaluation = EvalCallback(MODEL, eval_freq=60_001, n_eval_episodes=2, max_steps=20)
    learner = learned(CALLS[:1], callbacks=[evaluation], verbose=True)
    assert bits_of(learner) == truth(CALLS[:1])
    values = learner.action_values(STATES)
    found = greedy_value(MODEL, values, 0.9)
    of_states = policy_value_over_ranks(MODEL, learner.predict, 0.9, WORLD, timeout=60)
    np.testing.assert_allclose(of_states, MODEL.policy_value(values.argmax(axis=1), 0.9), atol=1e-9)
    if WORLD.rank == 0:
        assert "5,000 states, 5 actions" in capsys.readouterr().err
        assert evaluation.last_exact_value == pytest.approx(found) and found > 0.0
    WORLD.barrier()


def desks():
    return [thread for thread in threading.enumerate() if thread.name == "rows"]


def test_a_rank_whose_agent_is_gone_tells_its_rows_until_all_are(truth):
    gc.collect()
    WORLD.barrier()
    before = len(desks())
    learner = learned(CALLS[:1])
    WORLD.barrier()
    if WORLD.rank == 0:
        time.sleep(0.5)  # the others' agents are gone by then
        assert bits_of(learner) == truth(CALLS[:1])
    del learner
    gc.collect()
    end = time.monotonic() + 60.0
    while len(desks()) > before and time.monotonic() < end:
        time.sleep(0.01)
    assert len(desks()) <= before


def test_agents_that_are_gone_leave_their_places_to_others(monkeypatch):
    monkeypatch.setattr(desk, "_TAGS", range(60, 62))
    for _ in range(4):
        learned((2_000,))
        gc.collect()
    kept = [learned((2_000,)) for _ in range(2)]
    with pytest.raises(SettingsError, match="2 agents of these ranks .* Let go"):
        learned((2_000,))
    assert len({bits_of(each) for each in kept}) == 1
    WORLD.barrier()


def test_it_is_saved_in_parts_and_goes_on_on_other_hosts(monkeypatch, truth, folder):
    saved = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"]}
    with pytest.raises(SystemExit):
        learned(CALLS, **stop_after(30_000), **saved)
    WORLD.barrier()
    (agent_folder,) = folder.glob("agent-*")
    newest = max(path for path in agent_folder.iterdir() if path.is_dir())
    names = {path.name for path in newest.iterdir()}
    assert {"values_0.npy", "values_1.npy"} <= names and "q_table.npy" not in names
    WORLD.barrier()
    # Alone it is a table like any other; then on three hosts.
    places._agents.clear()
    if WORLD.rank == 0:
        with pytest.raises(SystemExit):
            learned(CALLS, MPI.COMM_SELF, **stop_after(70_000), **saved)
    WORLD.barrier()
    places._agents.clear()
    monkeypatch.setattr(Group, "host_of", lambda self, rank: f"host {rank % 3}")
    learner = learned(CALLS, **saved)
    assert state_of(learner).large.is_divided and bits_of(learner) == truth(CALLS)
    WORLD.barrier()
    if WORLD.rank == 0:
        for taken_by_training in (folder, agent_folder):
            with pytest.raises(SettingsError, match=r"checkpoints of a training.*save_model\(.*-model"):
                learner.save_model(taken_by_training)
    WORLD.barrier()
    # All steps were made before: each host reads its share.
    places._agents.clear()
    again = learned(CALLS, **saved)
    assert bits_of(again) == truth(CALLS)
    if WORLD.rank == 0:
        loaded = DistAsyncQLearning.load_model(folder, comm=MPI.COMM_SELF)
        np.testing.assert_array_equal(loaded.q_table, again.action_values(STATES))
        assert loaded.visits.sum() == sum(CALLS)
    WORLD.barrier()


def test_a_call_that_is_refused_divides_nothing(folder):
    learner = DistAsyncQLearning(5_000, 5, seed=1, discount_factor=0.9, async_updates=False)
    learner.q_table[:] = 1.0
    with pytest.raises((CheckpointError, RemoteRankError), match="resume"):
        learned_more(learner, checkpoint_dir=folder, resume="must")
    assert (learner.q_table == 1.0).all() and learner.policy.greedy.size == 5_000
    assert learner.evaluate(MODEL, episodes=2, seed=3, max_steps=5).lengths.max() <= 5
    learned_more(learner, 20_000)
    assert state_of(learner).large.is_divided and (learner.action_values(STATES) == 1.0).any()


def test_hosts_that_do_not_reach_the_same_folder_are_told_so_before_the_first_step(monkeypatch, folder):
    monkeypatch.setattr(reach, "_REACH_SECONDS", 0.5)
    learner = DistAsyncQLearning(seed=1, discount_factor=0.9, async_updates=False)
    of_host = folder / str(WORLD.rank % 2)
    told = r"Rank 1 on .* does not find in .*1/agent-0 what rank 0 has written.*checkpoint_dir that all hosts"
    with pytest.raises((CheckpointError, RemoteRankError), match=told):
        learned_more(learner, 20_000, checkpoint_dir=of_host)
    assert learner.steps == 0
    learned_more(learner, 20_000, checkpoint_dir=folder)  # what was refused is no obstacle
    assert learner.steps == 20_000


def test_hosts_that_do_not_reach_the_folder_do_not_take_up_what_is_there_either(monkeypatch, folder):
    monkeypatch.setattr(reach, "_REACH_SECONDS", 0.5)
    asked = {"seed": 1, "discount_factor": 0.9, "async_updates": False, "initial_value": 3.0}
    learned_more(DistAsyncQLearning(**asked), 20_000, checkpoint_dir=folder)
    places._agents.clear()  # as in another process
    again = DistAsyncQLearning(**asked)
    with pytest.raises((CheckpointError, RemoteRankError), match="checkpoint_dir that all hosts reach"):
        elsewhere = folder if WORLD.rank == 0 else folder / "elsewhere"
        learned_more(again, 40_000, checkpoint_dir=elsewhere)
    assert again.steps == 0
    learned_more(again, 20_000)
    assert again.steps == 20_000 and (again.action_values(STATES) != 3.0).any()


def test_what_cannot_be_divided_or_does_not_fit_is_refused_by_name(monkeypatch):
    with pytest.raises(SettingsError, match="more than one table"):
        learned_more(DistAsyncQLearning(algorithm="double_q_learning", async_updates=False))
    monkeypatch.setattr(_memory, "memory_left", lambda: 250_000)
    with pytest.raises(SettingsError, match=r"This host's share, 1\.\d*, of a table .* GiB too little"):
        learned_more(DistAsyncQLearning(async_updates=False), partition=scattered)
    monkeypatch.setattr(_memory, "memory_left", lambda: 100_000)
    with pytest.raises(SettingsError, match=r"This host's share, 0\.\d+, of a table .* GiB too little"):
        learned_more(DistAsyncQLearning(async_updates=False))
