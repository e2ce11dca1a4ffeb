"""Stepped environments where rows are divided: each rank steps its share, and the bits are the same."""

import os
import shutil
import signal
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete
from mpi4py import MPI
from rank_environments import BrokenLake, Spread, UnevenLake

from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.errors import RemoteRankError, SettingsError
from dist_classicrl.membership.group import Group

pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size < 3, reason="as with more; each process compiles for long"
)

PLACED = {"placement": "sharded", "walkers": 64}


class SpreadLake(Spread, UnevenLake):
    """FrozenLake, whose observations are few of very many."""

    def __init__(self):
        super().__init__(MPI.COMM_WORLD.rank)
        self.observation_space = MultiDiscrete([1 << 40, 4, 4])

    @staticmethod
    def seen(state):
        return np.array([state * 12345, state // 4, state % 4])


def limited(make):
    return lambda: gymnasium.wrappers.TimeLimit(make(), 30)


LAKES = {"dense": partial(UnevenLake, MPI.COMM_WORLD.rank), "keys": SpreadLake}


@pytest.fixture
def several_hosts(monkeypatch):
    """Let each rank be on a host of its own: on one, asynchronous ranks share its rows."""
    monkeypatch.setattr(Group, "host_of", lambda group, rank: f"host {rank}")


def table_of(agent):
    whole = agent.q_table, agent.visits
    return [array if isinstance(array, np.ndarray) else array.array for array in whole]


def assert_same(world, agent, single):
    for own, truth in zip(table_of(agent), table_of(single), strict=True):
        np.testing.assert_array_equal(own, truth)
    assert len(set(world.allgather(table_of(agent)[0].tobytes()))) == 1


@pytest.mark.parametrize("kind", LAKES)
def test_any_number_of_ranks_learns_the_same_table(world, alone, make_agent, several_hosts, kind):
    together, single = make_agent(epsilon=0.5), make_agent(epsilon=0.5, async_updates=False, comm=alone)
    for steps in (4_001, 999):
        result = together.train(limited(LAKES[kind]), total_steps=steps, **PLACED)
        truth = single.train(limited(LAKES[kind]), total_steps=steps, **PLACED)
        same = ("steps", "episodes", "mean_return", "mean_length")
        assert repr([getattr(result, name) for name in same]) == repr([getattr(truth, name) for name in same])
        assert_same(world, together, single)
    assert table_of(together)[1].sum() == 5_000 and result.episodes > 50 and result.bytes_pushed > 0
    if kind == "keys":
        np.testing.assert_array_equal(together.q_table.states, single.q_table.states)
        some = np.array([SpreadLake.seen(state) for state in range(16)])
        np.testing.assert_array_equal(together.predict(some), single.predict(some))


def test_reports_and_the_last_episode_come_at_the_same_steps(world, alone, make_agent, several_hosts):
    ends = []
    for comm in ({}, {"comm": alone}):
        heard = []
        agent = make_agent(epsilon=0.5, async_updates=False, **comm)
        result = agent.train(
            limited(LAKES["dense"]),
            total_steps=5_000,
            total_episodes=40,
            progress=lambda progress, heard=heard: heard.append(progress.steps),
            **PLACED,
        )
        ends.append((result.steps, result.episodes, agent.q_table.tobytes(), heard))
    assert ends[0][:3] == ends[1][:3] and 0 < ends[0][0] < 5_000
    if world.rank == 0:
        assert ends[0][3] == ends[1][3] and len(ends[0][3]) > 5


def test_the_limit_of_states_is_of_all_ranks_together(world, alone, make_agent):
    settings = {"async_updates": False, "max_states": 8, "epsilon": 1.0}
    single, agent = make_agent(**settings, comm=alone), make_agent(**settings)
    for one in (single, agent):
        with pytest.raises(Exception, match="more than 8 states"):
            one.train(limited(LAKES["dense"]), total_steps=10_000, **PLACED)
    if world.rank == 0:
        assert agent.steps == single.steps > 0
        for own, truth in zip(table_of(agent), table_of(single), strict=True):
            np.testing.assert_array_equal(own, truth)
    world.barrier()


def test_what_has_no_place_there_is_refused_on_all_ranks(make_agent, several_hosts):
    with pytest.raises(SettingsError, match="on_error=.exclude. cannot be had where rows are divided"):
        make_agent(on_error="exclude").train(LAKES["dense"], total_steps=100, **PLACED)


@pytest.mark.parametrize("culprit", [0, -1])
def test_what_an_environment_raises_comes_to_all_ranks(world, make_agent, culprit):
    culprit %= world.size
    breaks_at = 50 if world.rank == culprit else 10**9
    make = partial(BrokenLake, breaks_at, ZeroDivisionError("in the environment"))
    agent = make_agent(async_updates=False)
    expected = ZeroDivisionError if world.rank == culprit else RemoteRankError
    with pytest.raises(expected, match="in the environment"):
        agent.train(make, total_steps=10**9, **PLACED)


def test_other_ranks_go_on_with_new_episodes(world, alone, make_agent, folder, restart):
    def stop(progress):
        if progress.steps >= 2_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    kept = {"stop_signals": ["SIGUSR1"], **PLACED}
    make = limited(LAKES["dense"])
    with pytest.raises(SystemExit):
        make_agent(async_updates=False).train(
            make, total_steps=6_000, progress=stop, checkpoint_dir=folder / "run", **kept
        )
    if world.rank == 0:
        shutil.copytree(folder / "run", folder / "copy")
    world.barrier()
    restart()
    again = make_agent(async_updates=False)
    result = again.train(make, total_steps=6_000, checkpoint_dir=folder / "run", **kept)
    assert result.resumed_from is not None and again.visits.sum() == 6_000
    restart()
    if world.rank == 0:
        single = make_agent(async_updates=False, comm=alone)
        truth = single.train(make, total_steps=6_000, checkpoint_dir=folder / "copy", **kept)
        for own, known in zip(table_of(again), table_of(single), strict=True):
            np.testing.assert_array_equal(own, known)
        assert (result.episodes, result.mean_return) == (truth.episodes, truth.mean_return)
    world.barrier()


def test_without_a_rank_that_leaves_others_step_its_environments(world, make_agent, monkeypatch):
    # Who has left has no part any more in what else is trained over that communicator.
    agent = make_agent(async_updates=False, comm=world.Dup())
    play = Part.play

    def leaving(self, until, tend):
        if world.rank == world.size - 1 and until > 1_000:
            agent.leave()
        return play(self, until, tend)

    monkeypatch.setattr(Part, "play", leaving)
    try:
        result = agent.train(limited(LAKES["dense"]), total_steps=6_000, **PLACED)
    except SystemExit:
        assert world.rank == world.size - 1
    else:
        assert result.steps == agent.visits.sum() == 6_000
        assert [event["kind"] for event in result.events] == ["left"]
    world.barrier()
