"""What the tests of several ranks share. Each runs on every rank, and at any number of ranks."""

from __future__ import annotations

import hashlib
import threading
import time

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


class Standstill:
    """Notes for how long this process, in the block, stood still at most, as where the machine held it up."""

    def __enter__(self):
        self.seconds, self._is_over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._is_over.set()
        self._thread.join()

    def _look(self):
        before, is_over = time.monotonic(), False
        while not is_over:
            is_over = self._is_over.wait(0.01)
            now = time.monotonic()
            self.seconds, before = max(self.seconds, now - before), now


@pytest.fixture
def unless_held_up(world):
    """Give a function that calls `attempt` with a deadline on all ranks, and with the next if it is held up.

    A deadline that is short, for a test to be quick, can pass because a rank got no core for that long. So a
    failure counts unless a rank stood still for a quarter of the deadline, and with the last one always.
    """

    def run(attempt, *deadlines):
        for seconds in deadlines:
            failure = None
            with Standstill() as held_up:
                try:
                    attempt(seconds)
                except (Exception, pytest.fail.Exception) as error:
                    failure = error
            found = world.allgather((failure is not None, held_up.seconds > seconds / 4))
            failures, excuses = (any(said) for said in zip(*found, strict=True))
            if not (failures and excuses):
                break
        if failure is not None:
            raise failure

    return run


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
