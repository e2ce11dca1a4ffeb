"""Tables whose rows are divided among the ranks: the same bits at any number of ranks and any partition."""

import hashlib
import logging
import os
import random
import signal
import time
from typing import NamedTuple

import numba
import numpy as np
import pytest
from mpi4py import MPI
from slowly import now_and_then

from dist_classicrl import CompiledSimulator, TabularMDP
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.engines import laggards
from dist_classicrl.engines.supersteps import training
from dist_classicrl.engines.supersteps.part import Part
from dist_classicrl.engines.supersteps.who_plays import WhoPlays
from dist_classicrl.errors import OutsideSpaceError, RankMismatchError, SettingsError
from dist_classicrl.learning.supersteps.share import Share
from dist_classicrl.schedules import Linear

pytestmark = [
    pytest.mark.usefixtures("fast_ramp"),
    pytest.mark.skipif(MPI.COMM_WORLD.size == 2, reason="as with more; each process compiles for long"),
]


def digest(agent):
    return hashlib.sha256(agent.q_table.tobytes() + agent.visits.tobytes()).hexdigest()


@numba.njit
def nobody(state):
    return 77


@pytest.fixture
def garnet():
    return TabularMDP.garnet(
        300, 5, 3, seed=4, terminal_states=3, termination_probability=0.02, max_episode_steps=40
    )


@pytest.fixture(params=["memory", "messages", "one or all"])
def uneven_ranks(request, world, monkeypatch):
    """Make every rank stop now and then in its supersteps, for another time on every rank.

    Walkers travel in memory that all ranks share, or in messages, as on several hosts; or now and then one
    rank goes on without the others.
    """
    pace = random.Random(world.rank)
    for name in ("settle", "play_together"):
        monkeypatch.setattr(Share, name, now_and_then(getattr(Share, name), pace, 0.02))
    if request.param != "memory":
        monkeypatch.setattr(training, "share", no_memory)
    if request.param == "messages":
        monkeypatch.setattr(Part, "can_be_alone", False)
    elif request.param == "one or all":
        monkeypatch.setattr(WhoPlays, "note", change)
    return request.param


def change(who, steps, seconds, position, now):
    changes = random.random() < 0.4
    who.is_alone ^= changes
    return changes


def no_memory(*arguments, **more):
    raise SettingsError("There is none.")


# For settings of other types all kernels are compiled anew.
SETTINGS = {
    "as it comes": {},
    "float32, rates that bend": {
        "dtype": "float32",
        "learning_rate": Linear(0.5, 0.05, 20_000),
        "epsilon": Linear(1.0, 0.1, 30_000),
    },
}
PLACED = {"placement": "sharded", "walkers": 512}


def check_same(world, alone, make_agent, env, calls=(40_001, 9_973), asked=(), **settings):
    settings = {"async_updates": False, "discount_factor": 0.9, **settings}
    together, single = make_agent(**settings), make_agent(**settings, comm=alone)
    for steps in calls:
        result = together.train(env, total_steps=steps, **PLACED, **dict(asked))
        truth = single.train(env, total_steps=steps, **PLACED)
        assert digest(together) == digest(single)
        same = ("steps", "episodes", "mean_return", "mean_length")
        assert repr([getattr(result, name) for name in same]) == repr([getattr(truth, name) for name in same])
    assert set(world.allgather(digest(together))) == {digest(single)}
    waiting = 4 * PLACED["walkers"] * len(calls)  # steps whose targets are not known yet
    assert sum(calls) - waiting <= together.visits.sum() <= sum(calls)
    return result


@pytest.mark.parametrize(("name", "partition"), [*zip(SETTINGS, ("hash", "range"), strict=True)])
def test_any_number_of_ranks_learns_the_same_table(
    world, alone, make_agent, garnet, uneven_ranks, name, partition
):
    check_same(world, alone, make_agent, garnet, asked={"partition": partition}, **SETTINGS[name])


@pytest.mark.parametrize("algorithm", ["n_step_sarsa", "differential_q_learning"])
def test_rules_whose_targets_are_found_later_or_elsewhere(world, alone, make_agent, algorithm):
    model = TabularMDP.garnet(300, 5, 3, seed=4)
    check_same(world, alone, make_agent, model, calls=(20_001, 5_000), algorithm=algorithm)


def test_it_learns_as_well_as_one_learner(alone, make_agent, garnet):
    losses = []
    for settings in ({"async_updates": False}, {"comm": alone}):
        agent = make_agent(discount_factor=0.9, **settings)
        agent.train(garnet, total_steps=1_000_000, placement="replicated" if losses else "sharded")
        reached = garnet.start_value(garnet.policy_value(agent.q_table.argmax(axis=1), 0.9))
        losses.append(garnet.start_value(garnet.solve(0.9).v) - reached)
    assert losses[0] < 1.2 * losses[1] + 0.02


class Recorder(BaseCallback):
    def __init__(self):
        super().__init__()
        self.rows = []
        self.tables = []

    def _on_step(self):
        progress = self.progress
        self.rows.append(
            (progress.steps, progress.episodes, repr(progress.mean_return), repr(progress.td_error))
        )
        if len(self.tables) < 5:
            self.tables.append((progress.steps, digest(self.model)))
        return True


def test_what_is_recorded_is_the_same_too(world, alone, make_agent, garnet):
    seen = []
    for comm in ({}, {"comm": alone}):
        recorder = Recorder()
        agent = make_agent(async_updates=False, **comm)
        agent.train(garnet, total_steps=100_000, callbacks=recorder, **PLACED)
        seen.append((recorder.rows, recorder.tables))
    if world.rank == 0:
        assert seen[0] == seen[1] and len(seen[0][0]) > 150
        steps = [row[0] for row in seen[0][0]]
        # From 8,192 steps on all 512 walkers move at once, and reports are where supersteps end.
        assert all(abs(step - 500 * (number + 1)) < 256 for number, step in enumerate(steps[:16]))


def test_a_call_goes_on_from_its_checkpoint(world, alone, make_agent, garnet, folder, restart):
    single = make_agent(async_updates=False, comm=alone)
    truth = single.train(garnet, total_steps=200_000, **PLACED)

    def stop(progress):
        if progress.steps >= 50_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    kept = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"], **PLACED}
    first = make_agent(async_updates=False)
    with pytest.raises(SystemExit):
        first.train(garnet, total_steps=200_000, progress=stop, **kept)
    assert 50_000 <= first.steps < 200_000
    restart()
    again = make_agent(async_updates=False)
    result = again.train(garnet, total_steps=200_000, **kept)
    assert result.resumed_from is not None
    assert digest(again) == digest(single)
    assert (result.episodes, result.mean_return) == (truth.episodes, truth.mean_return)


def test_one_process_goes_on_where_many_stopped(
    world, alone, make_agent, garnet, folder, restart, several_ranks
):
    single = make_agent(async_updates=False, comm=alone)
    single.train(garnet, total_steps=200_000, **PLACED)

    def stop(progress):
        if progress.steps >= 50_000:
            os.kill(os.getpid(), signal.SIGUSR1)

    kept = {"checkpoint_dir": folder, "stop_signals": ["SIGUSR1"], **PLACED}
    with pytest.raises(SystemExit):
        make_agent(async_updates=False).train(garnet, total_steps=200_000, progress=stop, **kept)
    restart()
    if world.rank == 0:
        again = make_agent(async_updates=False, comm=alone)
        assert again.train(garnet, total_steps=200_000, **kept).resumed_from is not None
        assert digest(again) == digest(single)
    world.barrier()


@pytest.mark.parametrize(
    ("asked", "settings", "message"),
    [
        ({"walkers": 100}, {}, "walkers must be a power of two"),
        ({"partition": "blocks"}, {}, "partition must be"),
        ({"partition": nobody}, {}, "partition gives state 0 to 77"),
        ({}, {"replay_ratio": 0.5}, "replay_ratio=0.5"),
        ({}, {"prefetch_factor": 4}, "prefetch_factor=4: nothing is pushed.* Write prefetch_factor=2"),
        ({}, {"on_failure": "replace"}, "on_failure"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(make_agent, garnet, asked, settings, message):
    agent = make_agent(**{"async_updates": False, **settings})
    with pytest.raises(SettingsError, match=message):
        agent.train(garnet, total_steps=1000, placement="sharded", **asked)


def test_what_is_for_divided_rows_is_refused_elsewhere(make_agent, garnet):
    for asked, message in (({"walkers": 64}, "walkers=64"), ({"partition": "range"}, "partition='range'")):
        with pytest.raises(SettingsError, match=message):
            make_agent().train(garnet, total_steps=1000, **asked)


def test_ranks_that_disagree_are_told(world, make_agent, garnet, several_ranks):
    agent = make_agent(async_updates=False)
    with pytest.raises(RankMismatchError, match="walkers"):
        agent.train(garnet, total_steps=1000, placement="sharded", walkers=64 << world.rank)
    first, ranks = world.rank, world.size

    @numba.njit
    def owner(state):
        return (state + first) % ranks

    with pytest.raises(RankMismatchError, match="partition: 'a function whose owners are"):
        agent.train(garnet, total_steps=1000, placement="sharded", partition=owner)


def test_walkers_may_be_a_number_of_numpys(make_agent, garnet):
    agent = make_agent(async_updates=False)
    assert agent.train(garnet, total_steps=1000, placement="sharded", walkers=np.int64(64)).steps == 1000


@numba.njit
def broken(state):
    if state == 5:
        raise IndexError(state)
    return 0


def test_an_error_in_a_partition_is_told_as_one(make_agent, garnet):
    agent = make_agent(async_updates=False)
    with pytest.raises(SettingsError, match="of the 300 states: broken raised IndexError"):
        agent.train(garnet, total_steps=1000, placement="sharded", partition=broken)


def test_what_crosses_is_counted(world, make_agent, garnet, several_ranks):
    result = make_agent(async_updates=False).train(garnet, total_steps=50_000, **PLACED)
    # 32 bytes there and 8 back, for the share of the steps that leave their owner.
    crossing = 1.0 - 1.0 / world.size
    assert 0.5 * crossing < result.bytes_pushed / (40 * 50_000) < 1.5 * crossing
    assert result.workers == world.size


def test_a_rank_that_leaves_costs_nothing_but_time(world, alone, make_agent, garnet, monkeypatch):
    if world.size < 3:
        pytest.skip("takes a rank that can leave two others")
    single = make_agent(async_updates=False, comm=alone)
    single.train(garnet, total_steps=400_000, **PLACED)
    # Who has left has no part any more in what else is trained over that communicator.
    agent = make_agent(async_updates=False, comm=world.Dup())
    play = Part.play

    def leaving(self, until, tend):
        if world.rank == world.size - 1 and until > 200_000:
            agent.leave()
        return play(self, until, tend)

    monkeypatch.setattr(Part, "play", leaving)
    try:
        result = agent.train(garnet, total_steps=400_000, **PLACED)
    except SystemExit:
        assert world.rank == world.size - 1
    else:
        assert digest(agent) == digest(single)
        assert [event["kind"] for event in result.events] == ["left"]
    world.barrier()


def test_a_rank_that_is_slow_is_named(world, make_agent, garnet, monkeypatch, caplog):
    if world.size == 1:
        pytest.skip("nobody waits")
    settle, slow = Share.settle, world.size - 1

    def slowly(self, *arguments):
        if world.rank == slow:
            time.sleep(0.1)
        return settle(self, *arguments)

    monkeypatch.setattr(Share, "settle", slowly)
    monkeypatch.setattr(training, "share", no_memory)  # else they play in one compiled loop
    monkeypatch.setattr(Part, "can_be_alone", False)
    monkeypatch.setattr(laggards, "_WINDOW_SECONDS", 0.5)

    def named():
        return [each.getMessage() for each in caplog.records if "holds the others up" in each.getMessage()]

    def about_the_slow_one():
        return [text for text in named() if text.startswith(f"Rank {slow} on ")]

    class UntilNamed(BaseCallback):
        """Ends the run when the rank is named: on a busy machine others may be held up before."""

        def _on_step(self):
            return self.progress.seconds < 200.0 and not about_the_slow_one()

    with caplog.at_level(logging.WARNING, "dist_classicrl"):
        make_agent(async_updates=False).train(
            garnet, total_steps=10**12, callbacks=UntilNamed(), progress_interval=0.2, **PLACED
        )
    if world.rank == 0:
        (about,) = about_the_slow_one()
        assert "times as long" in about
    else:
        assert not named()


class Half(NamedTuple):
    """A game that comes to half a state."""

    place: float


@numba.njit
def half_reset(data, memory, random):
    return 0


@numba.njit
def half_step(data, memory, state, action, random):
    return data.place, 0.0, False


def test_a_game_is_tried_out_before_ranks_learn_in_it(make_agent):
    game = CompiledSimulator.game("half", 2, 2, Half(0.5), half_reset, half_step)
    agent = make_agent(async_updates=False)
    with pytest.raises(OutsideSpaceError, match="half: step in state 0 with action . gave the state 0.5"):
        agent.train(game, total_steps=1000, placement="sharded")
