"""What the tests of several ranks share. Each runs on every rank, and at any number of ranks."""

from __future__ import annotations

import hashlib

import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.engines.roles import cores
from dist_classicrl.model import places

# A rank that hangs must fail its test, and long before pytest's own deadline.
TIMEOUT_SECONDS = 240.0


@pytest.fixture
def world():
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def alone():
    """Give the communicator of this rank alone: training over it is the single-process truth."""
    from mpi4py import MPI

    return MPI.COMM_SELF


@pytest.fixture
def folder(world, tmp_path):
    """Give rank 0's temporary folder."""
    return world.bcast(tmp_path)


@pytest.fixture(autouse=True)
def a_core_for_each_rank(monkeypatch):
    """Let all ranks learn on any machine: where they wait for each other only as many do as have cores."""
    monkeypatch.setattr(cores, "bound_cores", lambda: list(range(1024)))
    monkeypatch.setattr(cores, "core_quota", lambda: None)


@pytest.fixture
def restart(monkeypatch):
    """Give a function after which agents are numbered as in a new process."""
    monkeypatch.setattr(places, "_agents", {})
    return places._agents.clear


@pytest.fixture
def several_ranks(world):
    """Skip what takes more than one rank."""
    if world.size == 1:
        pytest.skip("takes two ranks to disagree")


@pytest.fixture
def make_agent():
    """Give a function that makes an agent with a fixed seed and a short deadline."""

    def make(**settings):
        return DistAsyncQLearning(**{"seed": 7, "timeout": TIMEOUT_SECONDS, **settings})

    return make


@pytest.fixture(scope="session")
def lake():
    """Give FrozenLake 4x4, slippery, as a model."""
    return TabularMDP.from_gymnasium("FrozenLake-v1")


@pytest.fixture
def digests(world):
    """Give a function that returns the SHA-256 of an agent's table and visits on every rank."""

    def gather(agent):
        table = agent.q_table.tobytes() + agent.visits.tobytes()
        return world.allgather(hashlib.sha256(table).hexdigest())

    return gather
