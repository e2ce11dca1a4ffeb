"""Games whose states are keys: each has one owner, and the table is the same at any number of ranks."""

import logging

import numpy as np
import pytest
from keyed_walks import NARROW, PLACED, WIDE, digest
from mpi4py import MPI
from own_signals import stop_after

from dist_classicrl.engines.supersteps import training
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.environments.pocket_cube import pocket_cube
from dist_classicrl.errors import SettingsError, StateLimitError

pytestmark = pytest.mark.usefixtures("fast_ramp")
# Each process compiles for long.
not_two = pytest.mark.skipif(MPI.COMM_WORLD.size == 2, reason="as with more")
not_many = pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="as with fewer")
of_64_and_128_bits = pytest.mark.parametrize(
    "walk", [pytest.param(NARROW, marks=not_two), pytest.param(WIDE, marks=not_many)], ids=["64", "128"]
)


@pytest.fixture(params=["in memory", "by messages"])
def exchange(request, monkeypatch):
    """Let walkers cross in the memory of the host, or as between hosts."""
    if request.param == "by messages":
        monkeypatch.setattr(training, "_memory", lambda run, group, start: None)
        monkeypatch.setattr(Part, "can_be_alone", False)


@pytest.mark.parametrize(
    ("exchange", "is_async"),
    [("in memory", False), ("by messages", False), ("in memory", True)],
    indirect=["exchange"],
)
@of_64_and_128_bits
def test_any_number_of_ranks_learns_the_same_table(world, alone, make_agent, exchange, is_async, walk):
    settings = {"epsilon": 0.5, "discount_factor": 0.9}
    together = make_agent(**settings, async_updates=is_async)
    single = make_agent(**settings, async_updates=False, comm=alone)
    placed = {**PLACED, "placement": "auto"} if is_async and world.size > 1 else PLACED
    if world.size == 1 and is_async:
        pytest.skip("alone they take turns in one table")
    for steps in (60_001, 9_973):
        result = together.train(walk.game(), total_steps=steps, **placed)
        truth = single.train(walk.game(), total_steps=steps, **PLACED)
        assert digest(together) == digest(single)
        np.testing.assert_array_equal(together.q_table.states, single.q_table.states)
        same = ("steps", "episodes", "mean_return", "mean_length")
        assert repr([getattr(result, name) for name in same]) == repr([getattr(truth, name) for name in same])
    assert set(world.allgather(digest(together))) == {digest(single)}
    assert together.visits.array.sum() == 69_974 and len(together.q_table) > 100
    assert together.q_table.states.shape == (len(together.q_table), 2)[: walk.words]
    for some in (together.q_table.states[:50], list(together.q_table)[:50]):
        np.testing.assert_array_equal(together.predict(some), single.predict(some))
    found, known = (agent.evaluate(walk.game(), 100, seed=1).mean_return for agent in (together, single))
    assert found == known


@of_64_and_128_bits
def test_a_partition_of_ones_own(world, alone, make_agent, walk):
    together, single = make_agent(async_updates=False), make_agent(async_updates=False, comm=alone)
    partition = walk.by_tens if world.size > 1 else "hash"
    together.train(walk.game(), total_steps=50_000, partition=partition, **PLACED)
    single.train(walk.game(), total_steps=50_000, **PLACED)
    assert digest(together) == digest(single)


@not_many
def test_a_partition_of_numbers_is_refused_on_all_ranks(make_agent, several_ranks):
    with pytest.raises(SettingsError, match="partition must take a state of the type UniTuple"):
        make_agent(async_updates=False).train(
            WIDE.game(), total_steps=1000, partition=NARROW.by_tens, **PLACED
        )


@not_two
def test_several_ranks_say_what_they_do(make_agent, caplog, several_ranks):
    with caplog.at_level(logging.INFO, "dist_classicrl"):
        make_agent().train(NARROW.game(), total_steps=1000)
    assert "each rank owns those that a hash gives it" in caplog.text


@of_64_and_128_bits
def test_another_number_of_ranks_goes_on(world, alone, make_agent, folder, restart, walk):
    single = make_agent(async_updates=False, comm=alone)
    truth = single.train(walk.game(), total_steps=200_000, **PLACED)
    kept = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"], **PLACED}
    with pytest.raises(SystemExit):
        make_agent(async_updates=False).train(walk.game(), total_steps=200_000, **stop_after(50_000), **kept)
    restart()
    if world.rank == 0:
        fewer = make_agent(async_updates=False, comm=alone)
        with pytest.raises(SystemExit):
            fewer.train(walk.game(), total_steps=200_000, **stop_after(100_000), **kept)
        assert 100_000 <= fewer.steps < 200_000
    world.barrier()
    restart()
    again = make_agent(async_updates=False)
    result = again.train(walk.game(), total_steps=200_000, **kept)
    assert result.resumed_from is not None
    assert digest(again) == digest(single)
    assert (result.episodes, result.mean_return) == (truth.episodes, truth.mean_return)
    restart()
    loaded = type(again).load_model(folder)
    assert digest(loaded) == digest(single)


@of_64_and_128_bits
def test_the_limit_is_of_all_ranks_together(world, alone, make_agent, folder, exchange, walk):
    settings = {"async_updates": False, "max_states": 80, "epsilon": 1.0}
    single = make_agent(**settings, comm=alone)
    with pytest.raises(StateLimitError, match="more than 80 states.*max_states=80 allows no more"):
        single.train(walk.game(), total_steps=1_000_000, **PLACED)
    assert len(single.q_table) > 80
    agent = make_agent(**settings)
    with pytest.raises(StateLimitError, match="^walk has come to more than 80 states") as caught:
        agent.train(walk.game(), total_steps=1_000_000, checkpoint_dir=folder, **PLACED)
    assert agent.steps == caught.value.steps == single.steps
    is_elsewhere = "Rank 0 alone has what was learned until the next call of train" in str(caught.value)
    assert is_elsewhere == (world.rank > 0)
    if world.rank == 0:
        assert digest(agent) == digest(single)
        saved = type(agent).load_model(folder)
        assert digest(saved) == digest(single) and saved.steps == single.steps
    world.barrier()
    for each, more in ((single, {}), (agent, {"checkpoint_dir": folder})):
        each.max_states = 10_000
        each.train(walk.game(), total_steps=20_000, **PLACED, **more)
    assert set(world.allgather((agent.steps, digest(agent)))) == {(single.steps, digest(single))}


@pytest.mark.parametrize(
    ("asked", "settings", "message"),
    [
        ({"partition": "range"}, {}, "partition='range' cannot divide"),
        ({"placement": "replicated"}, {}, "cannot be had with that"),
        ({}, {"replay_ratio": 0.5}, "replay_ratio=0.5"),
        ({}, {"compression_threshold": 0.1}, "compression_threshold=0.1"),
    ],
)
@not_two
def test_what_cannot_be_is_refused_on_all_ranks(make_agent, several_ranks, asked, settings, message):
    agent = make_agent(**settings)
    with pytest.raises(SettingsError, match=message):
        agent.train(NARROW.game(), total_steps=1000, **asked)
    agent = make_agent()
    agent.train("FrozenLake-v1", total_steps=2000)  # nobody waits for anybody
    assert agent.steps == 2000


@not_two
def test_alone_in_rounds_is_refused(make_agent, alone):
    with pytest.raises(SettingsError, match="async_updates=False cannot be had.*auto"):
        make_agent(async_updates=False, comm=alone).train(
            NARROW.game(), total_steps=1000, placement="replicated"
        )


@not_two
def test_the_pocket_cube_is_learned(world, alone, make_agent):
    cube = pocket_cube(max_episode_steps=20)
    settings = {"epsilon": 1.0, "learning_rate": 1.0, "discount_factor": 1.0, "async_updates": False}
    together, single = make_agent(**settings), make_agent(**settings, comm=alone)
    for agent in (together, single):
        agent.train(cube, total_steps=300_000, placement="sharded")
    assert len(together.q_table) > 100_000
    assert digest(together) == digest(single)
