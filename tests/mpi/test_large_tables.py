"""Tables that all ranks of a host have once, as rows alone, between calls of `train` as well."""

import errno
import hashlib
import os
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from own_signals import stop_after

from dist_classicrl import DistAsyncQLearning, TabularMDP, _memory
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.sharded import host_memory
from dist_classicrl.engines.supersteps import division
from dist_classicrl.errors import SettingsError
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.membership.group import Group
from dist_classicrl.model import places
from dist_classicrl.tables import large_table

WORLD = MPI.COMM_WORLD
pytestmark = pytest.mark.mpi

MODEL = TabularMDP.garnet(5_000, 4, 3, seed=2, terminal_states=4)


@pytest.fixture(autouse=True)
def large_from_here(monkeypatch):
    """Let tables of these tests be large, and arrays be read only when they are looked at."""
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 20_000)
    monkeypatch.setattr(array_files, "MAPPED_FROM", 1)
    monkeypatch.setattr(places, "_agents", {})
    yield
    WORLD.barrier()


@pytest.fixture
def folder(tmp_path):
    """Return a folder that is the same on all ranks."""
    return WORLD.bcast(tmp_path)


def agent(**settings):
    return DistAsyncQLearning(**{"seed": 1, "discount_factor": 0.9, **settings})


def is_large(learner):
    """Return whether the table is rows alone: values and visits lie in the same memory."""
    return np.may_share_memory(learner.q_table, learner.visits)


def all_have_the_same(learner):
    arrays = (np.ascontiguousarray(each) for each in (learner.q_table, learner.visits))
    own = [hashlib.sha256(each).hexdigest() for each in arrays]
    return all(each == own for each in WORLD.allgather(own))


def nowhere(memory):
    """Return what `HostMemory.told` is where others may not look at the files of a process."""
    return {"path": "/proc/0/fd/0", "size": memory.size, "mark": memory.mark}


def visits_of(steps):
    """Return the bounds of the visits after so many steps: some are lost where two learn the same entry."""
    return 0.8 * steps, steps


@pytest.mark.parametrize("way", ["/proc", "a file"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_there_is_one_table_in_all_calls(monkeypatch, dtype, way):
    if way == "a file":
        monkeypatch.setattr(host_memory.HostMemory, "told", property(nowhere))
    learner = agent(dtype=dtype)
    learner.train(MODEL, total_steps=300_000, placement="sharded")
    first = learner.visits.sum()
    WORLD.barrier()
    learner.train(MODEL, total_steps=200_000, placement="sharded")
    assert is_large(learner) and learner.q_table.dtype == dtype
    least, most = visits_of(500_000)
    assert first < learner.visits.sum() <= most and learner.visits.sum() >= least
    assert all_have_the_same(learner)
    best, found = MODEL.start_value(MODEL.solve(0.9).v), MODEL.policy_value(learner.policy.greedy, 0.9)
    assert MODEL.start_value(found) > 0.5 * best
    WORLD.barrier()
    if WORLD.size > 1 and way == "/proc":  # what one writes, the others have
        if WORLD.rank == 0:
            learner.q_table = np.full((5_000, 4), 2.0)
        WORLD.barrier()
        assert (learner.q_table == 2.0).all()
        with pytest.raises(ValueError, match="read-only"):  # else each rank would add it
            learner.q_table += 1.0
    assert learner.evaluate(MODEL, 3).episodes == 3


def test_a_file_that_has_no_room_is_refused_before_it_is_written_to(monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(host_memory.HostMemory, "told", property(nowhere))
    monkeypatch.setattr(os, "posix_fallocate", full)
    if WORLD.size > 1:
        with pytest.raises(SettingsError, match=r"temporary folder .* has no room for one of .* MiB"):
            agent().train(MODEL, total_steps=1_000, placement="sharded")


def test_it_goes_on_from_a_checkpoint_on_another_number_of_ranks(folder):
    saved = {"checkpoint_dir": folder, "checkpoint_interval": 50_000, "placement": "sharded"}
    calls = [60_000, 60_000, 60_000]
    for number in range(len(calls)):
        places._agents.clear()
        is_alone = number == 1
        if not is_alone or WORLD.rank == 0:
            learner = agent(comm=MPI.COMM_SELF if is_alone else None)
            for steps in calls[: number + 1]:
                learner.train(MODEL, total_steps=steps, **saved)
            made = sum(calls[: number + 1])
            assert learner.steps == made and is_large(learner)
            least, most = visits_of(made)
            assert least < learner.visits.sum() <= most
            if not is_alone:
                assert all_have_the_same(learner)
        WORLD.barrier()
    # All steps were made before: the table is read, and all have it.
    places._agents.clear()
    again = agent()
    for steps in calls:
        assert again.train(MODEL, total_steps=steps, **saved).steps == steps
    assert all_have_the_same(again) and again.visits.sum() == learner.visits.sum()
    WORLD.barrier()


def test_checkpoints_are_written_while_others_learn(folder):
    class Saved(BaseCallback):
        def __init__(self):
            super().__init__()
            self.steps = []

        def on_checkpoint(self, steps, name):
            self.steps.append(steps)

    saved = Saved()
    learner = agent()
    learner.train(
        MODEL,
        total_steps=3_000_000,
        placement="sharded",
        checkpoint_dir=folder,
        checkpoint_interval=200_000,
        callbacks=saved,
    )
    if learner.rank == 0:
        assert len(saved.steps) > 1 and saved.steps[-1] == 3_000_000
        loaded = DistAsyncQLearning.load_model(folder, comm=MPI.COMM_SELF)
        np.testing.assert_array_equal(loaded.q_table, learner.q_table)
        np.testing.assert_array_equal(loaded.visits, learner.visits)
    WORLD.barrier()


SUPERSTEPS = {"placement": "sharded", "walkers": 512}


OWNED = TabularMDP.garnet(5_000, 5, 3, seed=2, terminal_states=4)  # as in test_supersteps: compiled there


def learned_in_supersteps(calls, comm=None, dtype="float64", **asked):
    learner = agent(async_updates=False, comm=comm, dtype=dtype)
    for steps in calls:
        learner.train(OWNED, total_steps=steps, **SUPERSTEPS, **asked)
    return learner


def bits_of(learner):
    """Return the table and the visits, in the types of a small one, as a digest."""
    visits = np.ascontiguousarray(learner.visits, np.int64)
    return hashlib.sha256(np.ascontiguousarray(learner.q_table).tobytes() + visits.tobytes()).hexdigest()


@pytest.mark.skipif(WORLD.size == 2, reason="as with more; each process compiles for long")
@pytest.mark.usefixtures("fast_ramp")
@pytest.mark.parametrize(("partition", "hosts", "dtype"), [("range", 1, "float32"), ("hash", 2, "float64")])
def test_owners_of_rows_learn_in_place_what_they_learn_in_copies(
    monkeypatch, folder, partition, hosts, dtype
):
    calls = [60_001, 120_000]
    monkeypatch.setattr(Group, "host_of", lambda self, rank: f"host {rank % hosts}")
    monkeypatch.setattr(division, "SLICE_BYTES", 1 << 16)
    with monkeypatch.context() as patch:
        patch.setattr(large_table, "FROM_ENTRIES", 1 << 25)
        truth = bits_of(learned_in_supersteps(calls, MPI.COMM_SELF, dtype))

    def no_copy(*arguments):
        raise AssertionError("a whole table was told or divided")

    monkeypatch.setattr(Run, "take", no_copy)
    monkeypatch.setattr(Share, "load", no_copy)
    learner = learned_in_supersteps(calls, partition=partition, dtype=dtype)
    assert is_large(learner) and bits_of(learner) == truth and all_have_the_same(learner)

    # Stopped in the middle of each call, it goes on alone, and ends with all ranks.
    kept = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"], "partition": partition, "dtype": dtype}
    with pytest.raises(SystemExit):
        learned_in_supersteps(calls, **stop_after(30_000), **kept)
    places._agents.clear()
    if WORLD.rank == 0:
        with pytest.raises(SystemExit):
            learned_in_supersteps(calls, MPI.COMM_SELF, **stop_after(70_000), **kept)
    WORLD.barrier()
    places._agents.clear()
    assert bits_of(learned_in_supersteps(calls, **kept)) == truth


@pytest.mark.parametrize("settings", [{}, {"async_updates": False, "logical_workers": 2}])
def test_copies_of_it_are_told_to_all(settings):
    learner = agent(**settings)
    if WORLD.rank == 0:
        learner.q_table = np.full((5_000, 4), 3.0)
    learner.train(MODEL, total_steps=20_000, placement="replicated")
    assert is_large(learner) and all_have_the_same(learner)
    assert learner.visits.sum() == 20_000
    assert (learner.q_table[~learner.visits.astype(bool)] == 3.0).all()


def test_masked_actions_are_learned_in_copies():
    states = np.arange(5_000)[:, np.newaxis]
    model = replace(MODEL, action_mask=(np.arange(4) != states % 4) | (states < 4))
    learner = agent()
    learner.train(model, total_steps=50_000, placement="sharded")
    assert not learner.visits[~model.action_mask].any() and all_have_the_same(learner)


def test_a_table_that_does_not_fit_is_refused_on_all_ranks(monkeypatch):
    monkeypatch.setattr(_memory, "memory_left", lambda: 100_000)
    with pytest.raises(SettingsError, match="GiB too little"):
        agent().train(MODEL, total_steps=10, placement="sharded")
