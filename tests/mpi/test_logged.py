"""Learning from logged transitions on several ranks."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.comm import rooted
from dist_classicrl.data.empirical import empirical_model
from dist_classicrl.data.transitions import Transitions
from dist_classicrl.errors import DataError, RankLostError, RankMismatchError, RemoteRankError
from dist_classicrl.schedules import Linear

MODEL = TabularMDP.garnet(10, 3, 2, seed=3, termination_probability=0.1)


def logged(seed=0, size=2_000):
    """Transitions of random actions in random states."""
    rng = np.random.default_rng(seed)
    pair = rng.integers(30, size=size)
    outcome = MODEL.outcome_ptr[pair] + (rng.random(size)[:, None] > np.cumsum(outcomes(pair), axis=1)).sum(
        axis=1
    )
    return {
        "states": pair // 3,
        "actions": pair % 3,
        "rewards": MODEL.outcome_reward[outcome],
        "next_states": MODEL.outcome_next[outcome],
        "terminated": MODEL.outcome_terminated[outcome],
    }


@dataclass(frozen=True)
class Long:
    """A message in many pieces."""

    numbers: np.ndarray


def outcomes(pair):
    return MODEL.outcome_prob.reshape(30, 3)[pair][:, :2]


def test_ranks_divide_the_data_and_come_to_the_solution(world):
    data = logged()
    best = empirical_model(Transitions(**data), 10, 3).solve(0.8).q
    agent = DistAsyncQLearning(seed=1, discount_factor=0.8, comm=world, timeout=60)
    result = agent.learn(data, epochs=600)
    assert np.abs(agent.q_table - best).max() < 0.01 * np.abs(best).max()
    assert agent.visits.sum() == result.updates == 600 * 2_000  # each once an epoch, by somebody
    assert result.ranks == world.size
    for table in world.allgather(agent.q_table):
        np.testing.assert_array_equal(table, agent.q_table)
    # Sweeps have the bits of a process alone, on every rank.
    agent.learn(data, method="sweeps")
    np.testing.assert_array_equal(agent.q_table, best)


def test_ranks_follow_a_learning_rate_that_falls(world):
    data = logged()
    best = empirical_model(Transitions(**data), 10, 3).solve(0.8).q
    falls = Linear(0.5, 0.0005, fraction=0.9)
    agent = DistAsyncQLearning(seed=1, discount_factor=0.8, learning_rate=falls, comm=world, timeout=60)
    agent.learn(data, epochs=300)
    assert np.abs(agent.q_table - best).max() < 0.02 * np.abs(best).max()
    for table in world.allgather(agent.q_table):
        np.testing.assert_array_equal(table, agent.q_table)


@pytest.mark.core
def test_ranks_hear_of_what_is_wrong_with_the_data_of_one(world):
    agent = DistAsyncQLearning(seed=1, comm=world, timeout=60)
    if world.size == 1:
        return
    is_last = world.rank == world.size - 1
    data = logged()
    wrong = {**data, "states": data["states"] - 1} if is_last else data
    with pytest.raises(DataError if is_last else RemoteRankError, match="states has -1"):
        agent.learn(wrong)
    with pytest.raises(RankMismatchError, match=f"Rank {world.size - 1} was given other transitions"):
        agent.learn(logged(seed=int(is_last)))
    assert agent.learn(data, epochs=1).updates == 2_000


def test_each_call_gives_its_communicator_back(world, monkeypatch):
    made, given_back = [], []

    def make(self, comm):
        made.append(comm)
        make_of_rooted(self, comm)

    def give_back(self, comm):
        free(self, comm)
        given_back.append(comm)

    make_of_rooted, free = rooted.Wire.__init__, rooted.RootedCollectives.free
    monkeypatch.setattr(rooted.Wire, "__init__", make)
    monkeypatch.setattr(rooted.RootedCollectives, "free", give_back)
    agent = DistAsyncQLearning(seed=1, discount_factor=0.8, comm=world, timeout=60)
    for _ in range(3):
        agent.learn(logged(size=10), epochs=1)
    assert len(made) == (3 if world.size > 1 else 0) and given_back == made


def test_what_was_told_last_arrives_though_who_told_it_calls_mpi_no_more(world, tmp_path):
    folder = Path(world.bcast(str(tmp_path)))
    if world.size == 1:
        pytest.skip("there is nobody to tell")
    own = world.Dup()
    told = rooted.RootedCollectives.over(own, 60.0)
    if told.is_root:
        told.tell(Long(np.ones(1 << 21)), Long, "numbers")
        told.free(own)
        until = time.monotonic() + 30.0
        while len(list(folder.glob("rank-*"))) < world.size - 1 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(list(folder.glob("rank-*"))) == world.size - 1
    else:
        time.sleep(2.5)  # longer than what is left of a failed call gets
        assert told.tell(None, Long, "numbers").numbers.sum() == 1 << 21
        (folder / f"rank-{world.rank}").touch()
        told.free(own)


def test_nobody_waits_for_a_rank_that_failed_when_it_had_given_its_part(world):
    if world.size == 1:
        pytest.skip("there is nobody to wait for")
    last = world.size - 1
    with pytest.raises(MemoryError if world.rank == last else (RankLostError, RemoteRankError)) as caught:
        with rooted.rooted_over(world, 300.0, "test") as (together, _):
            with together.operation():
                together.gather(Long(np.zeros(1)), "numbers")
                if world.rank == last:
                    world.Recv(np.zeros(1), 0)  # rank 0 has ended the step
                    raise MemoryError
            if together.is_root:
                world.Send(np.zeros(1), last)
            with together.operation():
                together.share(Long(np.zeros(1)), "all ranks")
    if world.rank == 0:
        assert "closed its end" in str(caught.value) and f"Rank {last} " in str(caught.value)
