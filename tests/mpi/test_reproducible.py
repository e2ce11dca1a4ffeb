"""The reproducible mode: the table of one process, bit for bit, at any number of ranks and any speed."""

import hashlib
import random

import pytest
from rank_environments import UnevenLake
from slowly import now_and_then

from dist_classicrl.environments import TabularMDP
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.schedules import Exponential, Linear, PerVisit


@pytest.fixture
def uneven_ranks(world, monkeypatch):
    """Make every rank's compiled learners stop now and then, for another time on every rank."""
    pace = random.Random(world.rank)

    for name in ("learn", "learn_apart"):
        slowed = now_and_then(getattr(CompiledLearner, name), pace, 0.3)
        monkeypatch.setattr(CompiledLearner, name, slowed)


def digest(agent):
    return hashlib.sha256(agent.q_table.tobytes() + agent.visits.tobytes()).hexdigest()


def check_same_as_one_process(world, alone, make_agent, env, calls, placement="auto", **settings):
    """Train over the world and over this rank alone, and compare."""
    settings = {"async_updates": False, **settings}
    together, single = make_agent(**settings), make_agent(**settings, comm=alone)
    for steps in calls:
        result = together.train(env, total_steps=steps, placement=placement)
        truth = single.train(env, total_steps=steps, placement=placement)
        assert digest(together) == digest(single)
        same = ("steps", "episodes", "mean_return", "mean_length")
        assert repr([getattr(result, name) for name in same]) == repr([getattr(truth, name) for name in same])
    assert set(world.allgather(digest(together))) == {digest(single)}
    assert together.visits.sum() == sum(calls)
    return digest(together)


SETTINGS = {
    "as it comes": {},
    "float32": {"dtype": "float32"},
    "more logical workers than ranks": {"logical_workers": 7},
    "fewer logical workers than ranks": {"logical_workers": 2},
    "one logical worker": {"logical_workers": 1},
    "per visit": {"learning_rate": PerVisit(0.7)},
    "schedules": {"learning_rate": Exponential(0.5, 0.05, 20_000), "epsilon": Linear(1.0, 0.1, 30_000)},
    "replay": {"replay_ratio": 0.75, "buffer_size": 100, "learning_rate": PerVisit(0.7)},
    "short rounds": {"sync_frequency": 3, "batch_size": 7},
}


@pytest.mark.core
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_compiled_environment(world, alone, make_agent, lake, uneven_ranks, name, seed):
    # Not a whole number of rounds, and a second call.
    calls = (4_001, 997) if name == "short rounds" else (40_001, 9_973)
    check_same_as_one_process(world, alone, make_agent, lake, calls, seed=seed, **SETTINGS[name])


def test_compression_that_loses_nothing_leaves_it_to_the_table_how_it_is_learned(make_agent, caplog):
    caplog.set_level("INFO", "dist_classicrl")
    model, digests = TabularMDP.garnet(2_000, 6, 2, seed=3), []
    for kind in ("none", "lossless", "delta"):
        agent = make_agent(async_updates=False, seed=5, compression=kind)
        agent.train(model, total_steps=50_003)
        digests.append(digest(agent))
    assert len(set(digests)) == 1
    if agent.rank == 0:
        assert caplog.text.count("is learned in supersteps") == 3
        assert caplog.text.count("No maps are sent that compression=") == 2


def test_a_large_table_and_compression_changes_no_bit_of_it(world, alone, make_agent, uneven_ranks):
    model = TabularMDP.garnet(20_000, 6, 2, seed=3)
    kept = {"placement": "replicated"}
    of_one = check_same_as_one_process(world, alone, make_agent, model, (100_003,), **kept, seed=5)
    for kind, least_share in (("lossless", 0.45), ("delta", 0.1)):
        agent = make_agent(async_updates=False, seed=5, compression=kind)
        result = agent.train(model, total_steps=100_003, **kept)
        assert digest(agent) == of_one
        assert result.most_waiting == 0  # all that was learned went with its round
        if world.size > 1:
            sent = result.bytes_pushed + result.bytes_pulled
            assert result.bytes_saved > least_share * (sent + result.bytes_saved) > 0.0
            assert result.compression_seconds > 0.0


def test_a_compiled_game_with_masks(world, alone, make_agent, uneven_ranks):
    from dist_classicrl.environments import TicTacToeEnv

    check_same_as_one_process(world, alone, make_agent, TicTacToeEnv, (60_001,))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("logical_workers", [1, 3, 6])
def test_a_stepped_environment(world, alone, make_agent, logical_workers, seed):
    settings = {"logical_workers": logical_workers, "n_envs": 2, "seed": seed}

    def env():
        return UnevenLake(world.rank)

    check_same_as_one_process(world, alone, make_agent, env, (2_501, 700), **settings)


def test_seeds_give_different_tables(world, alone, make_agent, lake):
    tables = [
        check_same_as_one_process(world, alone, make_agent, lake, (20_000,), seed=seed) for seed in (0, 1)
    ]
    assert tables[0] != tables[1]


@pytest.mark.core
def test_without_a_seed_all_ranks_take_what_rank_0_draws(world, alone, make_agent, lake):
    together = make_agent(seed=None, async_updates=False)
    together.train(lake, total_steps=20_000)
    drawn = world.bcast(together.seed)
    together.train(lake, total_steps=5_000)
    single = make_agent(seed=drawn, async_updates=False, comm=alone)
    for steps in (20_000, 5_000):
        single.train(lake, total_steps=steps)
    assert digest(together) == digest(single)
    assert together.seed == drawn
