"""Games whose states are keys of 128 bits: each has one owner, and ranks and their number do not show."""

import hashlib
import os
import signal
from typing import NamedTuple

import numba
import numpy as np
import pytest
from mpi4py import MPI

from dist_classicrl import CompiledSimulator
from dist_classicrl.engines.supersteps import training
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.errors import SettingsError, StateLimitError

pytestmark = [
    pytest.mark.usefixtures("fast_ramp"),
    pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="each process compiles for long"),
]
PLACED = {"placement": "sharded", "walkers": 512}


@pytest.fixture(params=["in memory", "by messages"])
def exchange(request, monkeypatch):
    """Let walkers cross in the memory of the host, or as between hosts."""
    if request.param == "by messages":
        monkeypatch.setattr(training, "_memory", lambda run, group, start: None)
        monkeypatch.setattr(Part, "can_be_alone", False)


def stop_at(steps):
    def stop(progress):
        if progress.steps >= steps:
            os.kill(os.getpid(), signal.SIGUSR1)

    return stop


class Data(NamedTuple):
    most: int


@numba.njit
def pair_of(place):
    """Return what a place is called: many share the high half, and as many the low one."""
    return np.uint64(place // 10) << np.uint64(60), np.uint64(place % 10)


@numba.njit
def place_of(key):
    return np.int64(key[0] >> np.uint64(60)) * 10 + np.int64(key[1])


@numba.njit
def reset(data, memory, random):
    memory[0] += 1
    return pair_of(random % np.uint64(100))


@numba.njit
def step(data, memory, key, action, random):
    further = place_of(key) + (2 if action else -1) + np.int64(random % np.uint64(2))
    return pair_of(max(further, 0)), 1.0 + 1e-3 * (memory[0] % 7), further > data.most


@numba.njit
def legal(data, key, action):
    return action != 2 or key[1] % np.uint64(5) == 0


@numba.njit
def by_tens(key):
    return np.int64(key[0] >> np.uint64(60) & np.uint64(1))


@numba.njit
def by_number(key):
    return key // 10 % 2


def game(limit=30):
    return CompiledSimulator.game(
        "walk",
        n_actions=3,
        data=Data(140),
        reset=reset,
        step=step,
        legal=legal,
        keyed=True,
        memory_size=1,
        max_episode_steps=limit,
    )


def digest(agent):
    table = agent.q_table
    assert list(table) == sorted(table) and table.states.shape == (len(table), 2)
    arrays = table.states, table.array, agent.visits.array
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.mark.parametrize(
    ("exchange", "is_async"),
    [("in memory", False), ("by messages", False), ("in memory", True)],
    indirect=["exchange"],
)
def test_any_number_of_ranks_learns_the_same_table(world, alone, make_agent, exchange, is_async):
    if world.size == 1 and is_async:
        pytest.skip("alone they take turns in one table")
    settings = {"epsilon": 0.5, "discount_factor": 0.9}
    together = make_agent(**settings, async_updates=is_async)
    single = make_agent(**settings, async_updates=False, comm=alone)
    placed = {**PLACED, "placement": "auto"} if is_async else PLACED
    for steps in (60_001, 9_973):
        result = together.train(game(), total_steps=steps, **placed)
        truth = single.train(game(), total_steps=steps, **PLACED)
        assert digest(together) == digest(single)
        same = ("steps", "episodes", "mean_return", "mean_length")
        assert repr([getattr(result, name) for name in same]) == repr([getattr(truth, name) for name in same])
    assert set(world.allgather(digest(together))) == {digest(single)}
    assert together.visits.array.sum() == 69_974 and len(together.q_table) > 100
    for some in (together.q_table.states[:50], list(together.q_table)[:50]):
        np.testing.assert_array_equal(together.predict(some), single.predict(some))
    found, known = (agent.evaluate(game(), 100, seed=1).mean_return for agent in (together, single))
    assert found == known


def test_a_partition_of_ones_own_takes_a_pair(world, alone, make_agent):
    together, single = make_agent(async_updates=False), make_agent(async_updates=False, comm=alone)
    partition = by_tens if world.size > 1 else "hash"
    together.train(game(), total_steps=50_000, partition=partition, **PLACED)
    single.train(game(), total_steps=50_000, **PLACED)
    assert digest(together) == digest(single)


def test_a_partition_of_numbers_is_refused_on_all_ranks(make_agent, several_ranks):
    with pytest.raises(SettingsError, match="partition must take a state of the type UniTuple"):
        make_agent(async_updates=False).train(game(), total_steps=1000, partition=by_number, **PLACED)


def test_another_number_of_ranks_goes_on(world, alone, make_agent, folder, restart):
    single = make_agent(async_updates=False, comm=alone)
    truth = single.train(game(), total_steps=200_000, **PLACED)
    kept = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"], **PLACED}
    with pytest.raises(SystemExit):
        make_agent(async_updates=False).train(game(), total_steps=200_000, progress=stop_at(50_000), **kept)
    restart()
    if world.rank == 0:
        fewer = make_agent(async_updates=False, comm=alone)
        with pytest.raises(SystemExit):
            fewer.train(game(), total_steps=200_000, progress=stop_at(100_000), **kept)
        assert 100_000 <= fewer.steps < 200_000
    world.barrier()
    restart()
    again = make_agent(async_updates=False)
    result = again.train(game(), total_steps=200_000, **kept)
    assert result.resumed_from is not None
    assert digest(again) == digest(single)
    assert (result.episodes, result.mean_return) == (truth.episodes, truth.mean_return)
    restart()
    assert digest(type(again).load_model(folder)) == digest(single)


def test_the_limit_is_of_all_ranks_together(world, alone, make_agent):
    settings = {"async_updates": False, "max_states": 80, "epsilon": 1.0}
    single, agent = make_agent(**settings, comm=alone), make_agent(**settings)
    for each in (single, agent):
        with pytest.raises(StateLimitError, match="^walk has come to more than 80 states"):
            each.train(game(), total_steps=1_000_000, **PLACED)
    assert agent.steps == single.steps
    if world.rank == 0:
        assert digest(agent) == digest(single)
