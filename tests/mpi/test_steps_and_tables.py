"""Exactly the steps asked for, and the same table and result on every rank."""

import numpy as np
import pytest
from rank_environments import SteppedLake

from dist_classicrl.comm import transport
from dist_classicrl.compression import TopK
from dist_classicrl.engines.roles import link
from dist_classicrl.environments import TabularMDP
from dist_classicrl.errors import MissingExtraError, RemoteRankError
from dist_classicrl.membership.group import Group
from dist_classicrl.schedules import PerVisit


def shares(world, pattern):
    """Return the steps that each rank asks for."""
    return {
        "only rank 0": [50_001] + [0] * (world.size - 1),
        "only the last rank": [0] * (world.size - 1) + [50_001],
        "each another": [1_000 * (rank + 1) ** 2 + rank for rank in range(world.size)],
        "one step": [0] * (world.size - 1) + [1],
    }[pattern]


def check(world, agent, result, digests, steps, is_stepped=False):
    """Check that nothing is lost and that ranks agree, bit for bit."""
    assert result.steps == steps
    assert agent.visits.sum() == steps
    assert len(set(digests(agent))) == 1
    # As text, in which a mean return of NaN equals another.
    assert len(set(world.allgather(repr(result)))) == 1
    in_rounds = not agent.settings.async_updates and not is_stepped  # then the server learns as well
    assert result.workers == (world.size if in_rounds else max(world.size - 1, 1))
    assert np.isfinite(agent.q_table).all()


@pytest.mark.parametrize(
    ("settings", "placement"),
    [
        ({}, "auto"),
        ({"topology": "decentralized"}, "auto"),
        ({}, "sharded"),
        ({"async_updates": False}, "replicated"),
        ({"async_updates": False, "logical_workers": 1}, "replicated"),
        ({"async_updates": False}, "sharded"),
    ],
)
def test_a_call_with_nothing_to_do_has_as_many_workers(world, make_agent, lake, settings, placement):
    if world.size == 1 and "topology" in settings:
        return
    agent = make_agent(**settings)
    workers = [agent.train(lake, total_steps=steps, placement=placement).workers for steps in (0, 2_000)]
    assert workers[0] == workers[1]


@pytest.mark.core
@pytest.mark.parametrize("async_updates", [True, False])
@pytest.mark.parametrize("pattern", ["only rank 0", "only the last rank", "each another", "one step"])
def test_the_sum_of_all_shares_is_made(world, make_agent, lake, digests, pattern, async_updates):
    agent = make_agent(async_updates=async_updates)
    asked = shares(world, pattern)
    result = agent.train(lake, steps=asked[world.rank])
    check(world, agent, result, digests, sum(asked))
    assert agent.steps == sum(asked)


@pytest.mark.core
@pytest.mark.parametrize("async_updates", [True, False])
def test_a_stepped_environment_makes_the_sum_of_all_shares(world, make_agent, digests, async_updates):
    agent = make_agent(async_updates=async_updates, n_envs=3, logical_workers=3)
    steps = 101 * world.rank + 700
    result = agent.train(SteppedLake, steps=steps)
    check(world, agent, result, digests, sum(101 * rank + 700 for rank in range(world.size)), True)


def test_no_steps_return_at_once_and_change_nothing(world, make_agent, lake, digests):
    agent = make_agent()
    agent.train(lake, steps=1_000)
    before = digests(agent)
    result = agent.train(lake, steps=0)
    assert (result.steps, result.seconds, agent.steps) == (0, 0.0, 1_000 * world.size)
    assert digests(agent) == before


@pytest.mark.core
def test_training_again_goes_on(world, make_agent, lake, digests):
    agent = make_agent(learning_rate=PerVisit(0.7))
    total = 0
    for call in range(5):
        steps = 2_000 * (call + world.rank) % 7_001
        result = agent.train(lake, steps=steps)
        total += world.allreduce(steps)
        assert result.steps == world.allreduce(steps)
        assert agent.steps == agent.visits.sum() == total
        assert len(set(digests(agent))) == 1


@pytest.mark.core
def test_two_agents_one_after_the_other_and_in_turn(world, make_agent, lake, digests):
    cliff = TabularMDP.from_gymnasium("CliffWalking-v1")
    first, second = make_agent(), make_agent(dtype="float32")
    for _ in range(2):
        check(world, first, first.train(lake, total_steps=10_000), digests, first.steps)
        check(world, second, second.train(cliff, total_steps=20_000), digests, second.steps)
        if first.steps == 10_000:
            break
    first.train(lake, total_steps=5_000)
    second.train(cliff, total_steps=5_000)
    assert (first.visits.sum(), second.visits.sum()) == (first.steps, second.steps) == (15_000, 25_000)
    assert (first.q_table.shape, second.q_table.shape) == ((16, 4), (48, 4))
    assert second.q_table.dtype == np.float32


def test_a_table_larger_than_the_environment_stays_zero_outside(world, make_agent, lake, digests):
    agent = make_agent(state_size=20, action_size=6)
    agent.q_table[16:] = 5.0
    agent.train(lake, total_steps=20_000)
    assert len(set(digests(agent))) == 1
    assert agent.visits[:16, :4].sum() == agent.visits.sum() == 20_000
    assert (agent.q_table[16:] == 5.0).all()
    assert (agent.q_table[:16, 4:] == 0.0).all()


OPTIONS = {
    "float32": {"dtype": "float32"},
    "replay": {"replay_ratio": 1.5, "buffer_size": 500},
    "threshold": {"compression_threshold": 0.01, "sync_frequency": 10},
    "threshold and float32": {"compression_threshold": 1e-4, "dtype": "float32"},
    "lossless": {"compression": "lossless", "sync_frequency": 10},
    "top k": {"compression": TopK(0.2), "sync_frequency": 10},
    "quantized": {"compression": "quantized", "sync_frequency": 10},
    "often": {"sync_frequency": 1, "batch_size": 50},
    "seldom": {"sync_frequency": 1_000_000},
    "one in flight": {"prefetch_factor": 1, "sync_frequency": 4},
    "eight in flight": {"prefetch_factor": 8, "sync_frequency": 4},
    "per visit": {"learning_rate": PerVisit(0.7)},
    "never behind": {"max_staleness": 0, "sync_frequency": 2, "prefetch_factor": 4},
    "order-free, and previews for who is not too far behind": {
        "max_staleness": 3,
        "merging": "order_free",
        "compression": "top_k",
        "sync_frequency": 2,
    },
    "weighted by staleness": {"merging": "staleness_weighted", "sync_frequency": 2},
    "all at once": {
        "dtype": "float32",
        "replay_ratio": 0.5,
        "compression_threshold": 0.01,
        "compression": "lossless",
        "sync_frequency": 3,
        "prefetch_factor": 8,
    },
}


@pytest.mark.core
@pytest.mark.parametrize("name", OPTIONS)
def test_no_visit_is_lost_whatever_the_options(world, make_agent, lake, digests, name):
    agent = make_agent(**OPTIONS[name])
    for steps in (30_011, 20_000):
        result = agent.train(lake, total_steps=steps)
        assert result.steps == steps
    assert agent.visits.sum() == 50_011
    assert len(set(digests(agent))) == 1
    if name in ("threshold", "lossless", "top k", "quantized") and world.size > 1:
        if name != "quantized":  # it may save nothing: messages of so small a table are short
            assert result.bytes_saved > 0
        assert result.compression_seconds > 0.0
        assert (result.most_waiting > 0) == (name != "lossless")


def test_rounded_shifts_are_fewer_bytes_where_messages_are_long(world, make_agent):
    result = make_agent(**OPTIONS["quantized"]).train(
        TabularMDP.garnet(300, 5, 3, seed=1), total_steps=50_000
    )
    assert (result.bytes_saved > 0) == (world.size > 1)


def test_steps_whose_learning_is_refused_count_all_the_same(world, make_agent, lake, digests):
    agent = make_agent(merging="reject_stale", max_staleness=0, sync_frequency=1)
    for steps in (30_011, 20_000):
        assert agent.train(lake, total_steps=steps).steps == steps
    assert agent.steps == 50_011 and len(set(digests(agent))) == 1
    # Without another worker nobody is behind.
    assert agent.visits.sum() == 50_011 or (world.size > 2 and 0 < agent.visits.sum() < 50_011)


@pytest.mark.parametrize("async_updates", [True, False])
def test_messages_of_many_pieces(world, make_agent, digests, monkeypatch, async_updates):
    # A piece is shorter than the table of its parts, and no multiple of it.
    monkeypatch.setattr(transport.Wire.channel, "__defaults__", (104,))
    model = TabularMDP.garnet(300, 5, 3, seed=1)
    agent = make_agent(async_updates=async_updates, logical_workers=3, prefetch_factor=8, sync_frequency=20)
    check(world, agent, agent.train(model, total_steps=30_000), digests, 30_000)


def test_auto_measures_the_link_between_hosts_and_all_ranks_take_what_the_head_chooses(
    world, make_agent, digests, monkeypatch
):
    measured = []

    def choose(speed, entries, has_library):
        measured.append((speed, entries, has_library))
        return ("lossless" if world.rank == 0 else "none"), "the head's choice counts"

    monkeypatch.setattr(link, "choose", choose)
    monkeypatch.setattr(Group, "host_of", lambda group, rank: f"host{rank}")
    model = TabularMDP.garnet(300, 5, 3, seed=1)
    agent = make_agent(compression="auto", sync_frequency=20)
    result = agent.train(model, total_steps=30_000)
    check(world, agent, result, digests, 30_000)
    if world.size > 1:
        ((speed, entries, has_library),) = measured
        assert 0.0 < speed.round_trip < 5.0 and 0.0 < speed.bytes_per_second and has_library
        assert entries == 1500 and result.bytes_saved > 0
    assert agent.settings.compression == "auto"


def test_a_large_table(world, make_agent, digests):
    model = TabularMDP.garnet(40_000, 5, 2, seed=1)
    agent = make_agent()
    check(world, agent, agent.train(model, total_steps=400_000, placement="replicated"), digests, 400_000)
    # The whole table goes to every rank at the end, in several pieces.
    assert agent.q_table.nbytes > 4 * transport.PIECE_BYTES


def test_a_communicator_of_some_ranks(world, make_agent, lake):
    color = world.rank % 2
    part = world.Split(color)
    agent = make_agent(comm=part, seed=color)
    result = agent.train(lake, steps=5_000 * (color + 1))
    assert result.steps == agent.visits.sum() == 5_000 * (color + 1) * part.size
    assert result.workers == max(part.size - 1, 1)
    tables = part.allgather(agent.q_table.tobytes())
    assert len(set(tables)) == 1
    part.Free()


@pytest.mark.core
def test_a_communicator_in_another_order_has_another_server(world, make_agent, lake, digests):
    turned = world.Split(0, -world.rank)
    agent = make_agent(comm=turned)
    check(world, agent, agent.train(lake, total_steps=10_000), digests, 10_000)
    turned.Free()


def test_a_rank_may_train_alone_while_others_do_not(world, make_agent, alone, lake):
    agent = make_agent(comm=alone)
    if world.rank == world.size - 1:
        assert agent.train(lake, steps=3_000).workers == 1
        assert agent.visits.sum() == 3_000


@pytest.mark.core
def test_the_users_communicator_is_left_as_it_was(world, make_agent, lake):
    own = world.Dup()
    if world.size > 1:
        # A message of the user's that lies there while the library trains over the same communicator.
        request = own.isend({"from": world.rank}, (world.rank + 1) % world.size, tag=71)
    make_agent(comm=own).train(lake, total_steps=5_000)
    if world.size > 1:
        source = (world.rank - 1) % world.size
        assert own.recv(source=source, tag=71) == {"from": source}
        request.wait()
    own.Free()


@pytest.mark.core
def test_progress_is_told_on_rank_0_alone(world, make_agent, lake):
    told = []
    make_agent().train(lake, total_steps=200_000, progress=told.append, progress_interval=0.01)
    assert (len(told) > 0) == (world.rank == 0)
    if told:
        assert [report.total_steps for report in told] == [200_000] * len(told)
        assert told[-1].steps == 200_000
        assert [report.steps for report in told] == sorted(report.steps for report in told)


@pytest.mark.core
def test_a_package_that_one_rank_lacks_is_named_on_all(world, make_agent, lake, monkeypatch):
    if world.size == 1:
        return
    agent = make_agent(compression="lossless")
    if world.rank == 1:
        monkeypatch.setattr("dist_classicrl.settings.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError if world.rank == 1 else RemoteRankError, match="needs zstandard"):
        agent.train(lake, total_steps=1_000)
    world.barrier()
    monkeypatch.undo()
    assert agent.train(lake, total_steps=1_000).steps == 1_000
