"""Ranks that compose the maps of others: steps are exact, and the table is right and the same everywhere."""

import logging

import numpy as np
import pytest
from rank_environments import BrokenLake

from dist_classicrl.engines.server import topology
from dist_classicrl.environments import TabularMDP
from dist_classicrl.errors import RemoteRankError
from dist_classicrl.membership.group import Group
from dist_classicrl.schedules import PerVisit

STEPS = 400_000
LEAST_RANKS = 4
NEVER = 1 << 60


@pytest.fixture
def two_hosts(world, monkeypatch):
    """Let rank 0 believe that it has a host of its own, and the others another one."""
    if world.size < LEAST_RANKS:
        pytest.skip("takes two workers on another host, and a rank that composes their maps")
    monkeypatch.setattr(Group, "host_of", lambda group, rank: "h1" if rank == 0 else "h2")


def test_two_calls_with_a_server_on_each_host(world, two_hosts, make_agent):
    problem = TabularMDP.from_gymnasium("FrozenLake-v1")
    agent = make_agent(
        topology="tree", learning_rate=PerVisit(0.7), discount_factor=0.9, epsilon=1.0, sync_frequency=40
    )
    for calls in (1, 2):
        result = agent.train(problem, total_steps=STEPS)
        assert result.steps == STEPS and agent.steps == agent.visits.sum() == calls * STEPS
        assert result.workers == world.size - 2
        assert result.episodes > STEPS / 100 and result.bytes_pushed > 0
    exact = problem.solve(0.9).q
    error = (agent.q_table - exact)[problem.reachable_pairs()]
    assert np.sqrt(np.mean(error**2)) < 0.03
    tables = world.allgather(agent.q_table.tobytes())
    assert len(set(tables)) == 1


def test_bounded_staleness_with_a_server_on_each_host(world, two_hosts, make_agent):
    agent = make_agent(topology="tree", max_staleness=0, merging="order_free", sync_frequency=10)
    result = agent.train("FrozenLake-v1", total_steps=100_000)
    assert result.steps == agent.visits.sum() == 100_000
    assert result.workers == world.size - 2


@pytest.mark.parametrize("is_worth_it", [True, False])
def test_auto_measures_the_link_and_decides_by_it(
    world, two_hosts, make_agent, monkeypatch, caplog, is_worth_it
):
    """What the link was measured to carry is in the log, and what share of it would be too much is set."""
    caplog.set_level(logging.INFO, "dist_classicrl")
    monkeypatch.setattr(topology, "_MOST_SHARE", 0.0 if is_worth_it else 1e9)
    result = make_agent(topology="auto").train("FrozenLake-v1", total_steps=STEPS)
    assert (result.steps, result.workers) == (STEPS, world.size - 1 - is_worth_it)
    told = "Maps go through a tree" if is_worth_it else "Maps go to the server directly"
    assert (f"{told}: {world.size - 1} workers on other hosts may" in caplog.text) == (world.rank == 0)


def test_a_tree_on_one_host_is_flat(world, several_ranks, make_agent):
    result = make_agent(topology="tree").train("FrozenLake-v1", total_steps=50_000)
    assert (result.steps, result.workers) == (50_000, world.size - 1)


def test_an_error_below_the_server_of_a_host_is_raised_everywhere(world, two_hosts, make_agent):
    """Its word goes straight to the server, whoever composes its maps."""
    culprit = world.size - 1
    expected = ValueError if world.rank == culprit else RemoteRankError
    with pytest.raises(expected, match="thin ice"):
        make_agent(topology="tree").train(
            lambda: BrokenLake(200 if world.rank == culprit else NEVER, ValueError("thin ice")),
            total_steps=NEVER,
        )


@pytest.mark.core
def test_a_tree_on_one_host_is_none_which_rank_0_alone_is_told_once(
    world, make_agent, lake, several_ranks, caplog
):
    agent = make_agent(topology="tree", logical_workers=2)
    for _ in range(2):
        agent.train(lake, total_steps=1_000)
    said = [each.getMessage() for each in caplog.records if " no part " in each.getMessage()]
    told = world.allgather(said)
    assert told[1:] == [[]] * (world.size - 1)
    (message,) = told[0]
    assert 'topology="tree" plays no part on one host' in message and "logical_workers=2 plays no" in message
