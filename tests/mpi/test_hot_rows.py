"""Rows that get most of the visits, where ranks are on several hosts: all have copies, and the same bits."""

import hashlib
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from dist_classicrl import TabularMDP
from dist_classicrl.agent.agent import state_of
from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.learning.supersteps.by_messages.hot_rows import HotRows
from dist_classicrl.membership.group import Group
from dist_classicrl.tables import large_table

WORLD = MPI.COMM_WORLD
pytestmark = [
    pytest.mark.usefixtures("fast_ramp"),
    pytest.mark.skipif(WORLD.size < 3, reason="two hosts, and one of them with two ranks"),
]

PLACED = {"placement": "sharded", "walkers": 512}
STATES = 5_000


@pytest.fixture(scope="module")
def model():
    """Return a model with short episodes that all begin in one state."""
    found = TabularMDP.garnet(STATES, 5, 3, seed=2, terminal_states=4, max_episode_steps=6)
    start = np.zeros(STATES)
    start[77] = 1.0
    return replace(found, start_prob=start)


@pytest.fixture
def chosen(monkeypatch):
    """Let ranks be on two hosts; return how many rows were hot, whenever that was chosen."""
    monkeypatch.setattr(Group, "host_of", lambda self, rank: f"host {rank % 2}")
    monkeypatch.setattr(Part, "can_be_alone", False)
    seen, choose = [], HotRows.choose

    def noted(self, parts, owners_of):
        changed = choose(self, parts, owners_of)
        seen.append(len(self))
        return changed

    monkeypatch.setattr(HotRows, "choose", noted)
    return seen


def learned(make_agent, model, **more):
    agent = make_agent(async_updates=False, discount_factor=0.9, **more.pop("settings", {}))
    for steps in (60_001, 120_000):
        result = agent.train(model, total_steps=steps, **PLACED, **more)
    return agent, result


def digest(agent):
    return hashlib.sha256(np.ascontiguousarray(agent.action_values(np.arange(STATES)))).hexdigest()


@pytest.fixture
def truth(make_agent, alone, model):
    agent, result = learned(make_agent, model, settings={"comm": alone})
    return digest(agent), (result.steps, result.episodes, repr(result.mean_return))


@pytest.mark.parametrize("partition", ["hash", "range"])
def test_ranks_of_several_hosts_learn_the_same_table(make_agent, model, truth, chosen, partition):
    agent, result = learned(make_agent, model, partition=partition)
    assert (digest(agent), (result.steps, result.episodes, repr(result.mean_return))) == truth
    assert max(chosen) > 0 and set(WORLD.allgather(tuple(chosen))) == {tuple(chosen)}


@pytest.mark.parametrize("is_divided", [False, True])
def test_rows_that_a_host_has_once_are_copied_in_place(
    make_agent, model, truth, chosen, is_divided, monkeypatch
):
    monkeypatch.setattr(large_table, "FROM_ENTRIES", 20_000)
    monkeypatch.setattr(large_table, "WHOLE_SHARE", 0.0 if is_divided else 1.0)
    agent, _ = learned(make_agent, model)
    assert state_of(agent).large.is_divided == is_divided
    assert digest(agent) == truth[0] and max(chosen) > 0
    WORLD.barrier()


@pytest.mark.parametrize("is_large", [False, True])
def test_a_call_goes_on_from_its_checkpoint(
    make_agent, model, truth, chosen, is_large, folder, restart, alone, monkeypatch
):
    if is_large:
        monkeypatch.setattr(large_table, "FROM_ENTRIES", 20_000)
        monkeypatch.setattr(array_files, "MAPPED_FROM", 1)

    def stop(progress):
        if progress.steps >= 45_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    kept = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"]}
    with pytest.raises(SystemExit):
        learned(make_agent, model, progress=stop, **kept)
    assert max(chosen) > 0
    restart()
    if WORLD.rank == 0:  # alone, up to the middle of the second call
        with pytest.raises(SystemExit):
            settings = {"comm": alone}
            learned(make_agent, model, settings=settings, progress=stop_late, **kept)
    WORLD.barrier()
    restart()
    agent, _ = learned(make_agent, model, **kept)
    assert digest(agent) == truth[0]
    WORLD.barrier()


def stop_late(progress):
    if progress.steps >= 90_000:
        os.kill(os.getpid(), signal.SIGUSR1)
