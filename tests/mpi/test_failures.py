"""What goes wrong on one rank is raised there as it is, by name on all others, and they can train again."""

import math
import socket
import time
from typing import NamedTuple

import gymnasium
import numba
import numpy as np
import pytest
from rank_environments import (
    BrokenLake,
    Corridor,
    CorridorData,
    SteppedLake,
    Unbounded,
    corridor_reset,
    corridor_step,
)
from slowly import one_by_one

from dist_classicrl import CompiledSimulator, DistAsyncQLearning
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.environments import TabularMDP
from dist_classicrl.errors import (
    ActionMaskError,
    CutOffError,
    DivergenceError,
    EnvError,
    ExitCalledError,
    ModelFileError,
    OutsideSpaceError,
    RankLostError,
    RankMismatchError,
    RankTimeoutError,
    RemoteRankError,
    RewardError,
    SettingsError,
    SpaceError,
)
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.tables.local import LocalTable
from dist_classicrl.tables.round_merge import PartSums

MODES = pytest.mark.parametrize("async_updates", [True, False])
# An exception crosses ranks in far less, also on a busy machine; a rank that merely waits takes
# TIMEOUT_SECONDS.
WITHIN_SECONDS = 120.0
# Nobody makes so many steps before what ends the run.
LONG = 10**12
NEVER = 1 << 60
SHORT_TIMEOUT = 4.0


def raised_by(world, culprits, kind, text, train):
    """Check that `train` raises `kind` on the ranks `culprits`, and word of it on all others.

    Return what was raised.
    """
    # Of several culprits one may hear of another before it comes to fail itself.
    here = world.rank in culprits
    expected = (
        (kind,) if culprits == {world.rank} else (kind, RemoteRankError) if here else (RemoteRankError,)
    )
    begin = time.monotonic()
    with pytest.raises(expected, match=text) as caught:
        train()
    assert time.monotonic() - begin < WITHIN_SECONDS
    error = caught.value
    assert type(error) in expected
    if type(error) is RemoteRankError:
        assert error.rank in culprits
        assert error.host == socket.gethostname()
        assert error.summary.split(":")[0].endswith(kind.__name__)
        assert error.remote_traceback.startswith("Traceback (most recent call last)")
    return error


def check_trains(world, agent, env, steps=20_000):
    """Check that the ranks can train together, whatever went wrong before."""
    before = agent.steps
    result = agent.train(env, total_steps=steps, new_env=True)
    assert (result.steps, agent.steps) == (steps, before + steps)
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1


# Exceptions


@pytest.mark.core
@MODES
@pytest.mark.parametrize("breaks_at", [1, 300])
def test_in_an_environment(world, make_agent, lake, async_updates, breaks_at):
    culprit = world.size - 1
    error = ZeroDivisionError(f"lake {world.rank} is frozen over")

    def env():
        return BrokenLake(breaks_at if world.rank == culprit else NEVER, error)

    agent = make_agent(async_updates=async_updates, n_envs=2, logical_workers=4)
    caught = raised_by(
        world,
        {culprit},
        ZeroDivisionError,
        f"lake {culprit} is frozen",
        lambda: agent.train(env, total_steps=LONG),
    )
    if world.rank == culprit:
        assert caught is error
    else:
        assert "raise self._error" in caught.remote_traceback
    check_trains(world, agent, lake)


@pytest.mark.parametrize("culprit", [0, -1])
def test_at_the_construction_of_an_environment(world, make_agent, lake, culprit):
    culprit %= world.size

    def env():
        if world.rank == culprit:
            raise OSError("no such map")
        return SteppedLake()

    agent = make_agent()
    raised_by(world, {culprit}, OSError, "no such map", lambda: agent.train(env, total_steps=10_000))
    check_trains(world, agent, lake)


@MODES
def test_at_the_construction_of_a_later_copy(world, make_agent, lake, async_updates):
    made = []

    def env():
        made.append(None)
        if len(made) > 4 and world.rank == world.size - 1:
            raise OSError("too many open files")
        return SteppedLake()

    agent = make_agent(async_updates=async_updates, n_envs=8, logical_workers=8)
    culprit = world.size - 1
    raised_by(world, {culprit}, OSError, "too many open", lambda: agent.train(env, total_steps=10_000))
    check_trains(world, agent, lake)


@pytest.mark.core
@MODES
def test_on_rank_0_while_others_learn(world, make_agent, lake, async_updates):
    def report(progress):
        raise KeyError("dashboard")

    agent = make_agent(async_updates=async_updates)

    def train():
        agent.train(lake, total_steps=LONG, progress=report, progress_interval=0.05)

    raised_by(world, {0}, KeyError, "dashboard", train)
    check_trains(world, agent, lake)


@pytest.mark.parametrize("kind, async_updates", [(KeyboardInterrupt, True), (ArithmeticError, False)])
def test_while_large_messages_are_on_their_way(
    world, make_agent, lake, monkeypatch, several_ranks, async_updates, kind
):
    model = TabularMDP.garnet(40_000, 5, 2, seed=1)
    culprit = world.size - 1
    calls = []
    learn = CompiledLearner.learn

    def breaking(self, walker, stream, steps):
        calls.append(None)
        if world.rank == culprit and len(calls) == 4:
            raise kind("the machine is on fire")
        learn(self, walker, stream, steps)

    agent = make_agent(async_updates=async_updates, sync_frequency=500, prefetch_factor=8, logical_workers=4)
    with monkeypatch.context() as patched:
        patched.setattr(CompiledLearner, "learn", breaking)
        patched.setattr(CompiledLearner, "learn_apart", one_by_one)
        # Copies on all ranks: where they learn in the same rows, messages are small.
        options = {"total_steps": LONG, "placement": "replicated"}
        raised_by(world, {culprit}, kind, "on fire", lambda: agent.train(model, **options))
    check_trains(world, agent, model, 400_000)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_leaving_at_the_construction_of_an_environment(world, make_agent, lake, kind):
    raised = ExitCalledError if kind is SystemExit and world.size > 1 else kind  # others are to hear of it

    def env():
        if world.rank == world.size - 1:
            raise kind("enough")
        return SteppedLake()

    agent = make_agent()
    raised_by(world, {world.size - 1}, raised, "enough", lambda: agent.train(env, total_steps=10_000))
    check_trains(world, agent, lake)


def test_the_rank_is_that_of_the_communicator(world, make_agent, lake):
    turned = world.Split(0, -world.rank)
    agent = make_agent(comm=turned, n_envs=1)
    culprit = turned.size - 1

    def env():
        return BrokenLake(50 if turned.rank == culprit else NEVER, ValueError("thin ice"))

    raised_by(turned, {culprit}, ValueError, "thin ice", lambda: agent.train(env, total_steps=LONG))
    check_trains(turned, agent, lake)
    turned.Free()


def test_again_and_again(world, make_agent, lake):
    culprit = world.size - 1
    agent = make_agent(n_envs=1)

    def env():
        return BrokenLake(20 if world.rank == culprit else NEVER, ValueError("thin ice"))

    for _ in range(10):
        raised_by(
            world, {culprit}, ValueError, "thin ice", lambda: agent.train(env, total_steps=LONG, new_env=True)
        )
        check_trains(world, agent, lake, 500)


# Ranks that say nothing, and ranks that are merely slow


def hanging_env(world, mark):
    """Return what makes environments: the one of the last rank hangs until there is the file `mark`."""
    culprit = world.rank == world.size - 1
    return lambda: Corridor(hangs_until=mark) if culprit else Corridor(seconds=2e-3)


class UntilItIsBack(BaseCallback):
    """Makes the file `mark` when `culprit` is lost, and ends the run when it is back."""

    def __init__(self, culprit, mark):
        super().__init__()
        self.culprit, self.mark, self.is_back = culprit, mark, False

    def _on_worker_lost(self, event):
        if event["rank"] == self.culprit:
            self.mark.touch()

    def _on_worker_joined(self, event):
        self.is_back = self.is_back or event["rank"] == self.culprit

    def _on_step(self):
        return not self.is_back


def test_a_rank_that_hangs_is_done_without_and_comes_back(world, make_agent, lake, folder, several_ranks):
    culprit, mark = world.size - 1, folder / "lost"
    check_trains(world, make_agent(n_envs=1), Corridor, 1_000)  # what has to be compiled is
    agent = make_agent(timeout=SHORT_TIMEOUT, n_envs=1, sync_frequency=1, batch_size=1)
    result = agent.train(
        hanging_env(world, mark),
        total_steps=LONG,
        callbacks=UntilItIsBack(culprit, mark),
        progress_interval=0.05,
    )
    assert result.steps == agent.visits.sum()
    assert culprit not in result.lost_workers
    # On a busy machine others may be held up for that long as well.
    events = [event for event in result.events if event["rank"] == culprit]
    assert [event["kind"] for event in events[:2]] == ["excluded", "readmitted"]
    assert "no progress" in events[0]["detail"]
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1
    check_trains(world, make_agent(), lake)


def test_the_reproducible_mode_cannot_do_without_a_rank_that_has_the_state_of_environments(
    world, make_agent, lake, folder, several_ranks
):
    culprit, mark = world.size - 1, folder / "lost"
    settings = {"async_updates": False, "n_envs": 1, "logical_workers": max(world.size - 1, 1)}
    check_trains(world, make_agent(**settings), Corridor, 1_000)
    agent = make_agent(timeout=SHORT_TIMEOUT, **settings)
    begin = time.monotonic()
    with pytest.raises((RankLostError, CutOffError, RemoteRankError), match="lost|too few") as caught:
        agent.train(hanging_env(world, mark), total_steps=LONG)
    mark.touch()
    if world.rank == 0:
        assert type(caught.value) is RankLostError
        assert f"Rank {culprit} is lost, and with it the state of its environments" in str(caught.value)
    elif world.rank != culprit:
        assert type(caught.value) is RemoteRankError
    assert time.monotonic() - begin < WITHIN_SECONDS
    world.Barrier()
    check_trains(world, make_agent(async_updates=False), lake)


@pytest.mark.core
@MODES
def test_a_rank_that_is_slow_is_waited_for(world, make_agent, unless_held_up, async_updates):
    # An update takes far less than the deadline, all of them far more, and the others are long done.
    settings = {"n_envs": 1, "batch_size": 2, "async_updates": async_updates}
    make_agent(**settings).train(Corridor, total_steps=60)  # else ranks may compile for longer than that
    slow = world.size - 1

    def is_waited_for(timeout):
        agent = make_agent(timeout=timeout, **settings)
        seconds = timeout / 13 if world.rank == slow else 0.0
        result = agent.train(lambda: Corridor(seconds=seconds), total_steps=60)
        assert result.steps == agent.visits.sum() == 60
        assert "excluded" not in [event["kind"] for event in result.events]

    unless_held_up(is_waited_for, SHORT_TIMEOUT, 12.0, 36.0)


# Ranks that were told different things


@pytest.mark.core
@pytest.mark.parametrize(
    "what, differs, shown",
    [
        ({"learning_rate": 0.2}, "learning_rate", "0.2"),
        ({"discount_factor": 0.5}, "discount_factor", "0.5"),
        ({"dtype": "float32"}, "dtype", "float32"),
        ({"async_updates": False}, "async_updates", "False"),
        ({"seed": 8}, "seed", "8"),
        ({"state_size": 17, "action_size": 4}, "state_size", "17"),
    ],
)
def test_different_settings(world, make_agent, lake, several_ranks, what, differs, shown):
    agent = make_agent(**(what if world.rank == world.size - 1 else {}))
    with pytest.raises(RankMismatchError, match=rf"{differs}: .*{shown}.* on rank {world.size - 1}"):
        agent.train(lake, total_steps=10_000)
    check_trains(world, make_agent(), lake)


OTHER_ENVIRONMENTS = {
    "another size": lambda: TabularMDP.from_gymnasium("CliffWalking-v1"),
    "another of that size": lambda: TabularMDP.from_gymnasium("FrozenLake-v1", is_slippery=False),
    "an id": lambda: "FrozenLake8x8-v1",
    "stepped": lambda: SteppedLake,
}


@pytest.mark.parametrize("name", OTHER_ENVIRONMENTS)
def test_different_environments(world, make_agent, lake, several_ranks, name):
    other = OTHER_ENVIRONMENTS[name]()
    agent = make_agent()
    with pytest.raises(RankMismatchError, match="environment: .*FrozenLake.* on rank"):
        agent.train(other if world.rank == 0 else lake, total_steps=10_000)
    check_trains(world, make_agent(), lake)


def test_different_totals(world, make_agent, lake, several_ranks):
    agent = make_agent()
    with pytest.raises(
        RankMismatchError, match=rf"total_steps: 1000 on rank 0, {1000 + world.size - 1} on rank"
    ):
        agent.train(lake, total_steps=1_000 + world.rank if world.rank in (0, world.size - 1) else 1_000)
    check_trains(world, agent, lake)


def test_a_total_here_and_a_share_there(world, make_agent, lake, several_ranks):
    agent = make_agent()
    how = {"total_steps": 1_000} if world.rank == 0 else {"steps": 1_000}
    with pytest.raises(RankMismatchError, match="total_steps: 1000 on rank 0, None on rank 1"):
        agent.train(lake, **how)
    check_trains(world, agent, lake)


def test_different_histories(world, make_agent, alone, lake, several_ranks):
    agent = make_agent()
    if world.rank == 0:
        agent._comm = alone
        agent.train(lake, steps=100)
        agent._comm = None
    with pytest.raises(RankMismatchError, match="steps so far: 100 on rank 0, 0 on rank 1"):
        agent.train(lake, total_steps=1_000)


# Input that no rank can use


BAD_TRAINING = {
    "a table with too few states": (
        {"state_size": 15, "action_size": 4},
        "lake",
        {"steps": 10},
        EnvError,
        "state_size=16",
    ),
    "a table with too few actions": ({"action_size": 3}, "lake", {"steps": 10}, EnvError, "action_size=4"),
    "an infinite space": ({}, Unbounded, {"steps": 10}, SpaceError, "gymnasium.wrappers"),
    "negative steps": ({}, "lake", {"steps": -1}, SettingsError, "at least 0"),
    "a negative total": ({}, "lake", {"total_steps": -1}, SettingsError, "at least 0"),
    "half a step": ({}, "lake", {"steps": 0.5}, SettingsError, "whole number"),
    "no steps at all": ({}, "lake", {}, SettingsError, "exactly one"),
    "steps twice": ({}, "lake", {"steps": 1, "total_steps": 1}, SettingsError, "exactly one"),
    "no environment": ({}, 5, {"steps": 1}, EnvError, ""),
    "an id that is none": ({}, "NoSuchLake-v0", {"steps": 1}, Exception, "NoSuchLake"),
}


@pytest.mark.parametrize("name", BAD_TRAINING)
def test_bad_arguments_are_refused_on_every_rank(world, make_agent, lake, name):
    settings, env, steps, kind, text = BAD_TRAINING[name]
    agent = make_agent(**settings)
    with pytest.raises(kind, match=text) as caught:
        agent.train(lake if env == "lake" else env, **steps)
    assert not isinstance(caught.value, (RemoteRankError, RankTimeoutError))
    check_trains(world, make_agent(), lake)


@pytest.mark.parametrize(
    "bad", [{"learning_rate": 0}, {"learning_rate": 1.5}, {"learning_rate": math.nan}, {"seed": 1 << 80}]
)
def test_bad_settings_are_refused_on_every_rank(make_agent, bad):
    with pytest.raises(SettingsError, match=next(iter(bad))):
        make_agent(**bad)


@pytest.mark.core
@pytest.mark.parametrize("steps", [{"steps": -1}, {"steps": "ten"}, {}])
def test_bad_arguments_on_one_rank_alone(world, make_agent, lake, steps):
    agent = make_agent()
    culprit = world.size - 1
    arguments = steps if world.rank == culprit else {"steps": 10}
    raised_by(world, {culprit}, SettingsError, "steps", lambda: agent.train(lake, **arguments))
    check_trains(world, agent, lake)


def workers(world):
    """Return the ranks that learn."""
    return set(range(1, world.size)) or {0}


@MODES
@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number(world, make_agent, lake, async_updates, reward):
    agent = make_agent(async_updates=async_updates, n_envs=2, logical_workers=3)

    def env():
        return BrokenLake(100, reward=reward)

    raised_by(world, workers(world), RewardError, "finite|NaN", lambda: agent.train(env, total_steps=50_000))
    check_trains(world, make_agent(async_updates=async_updates), lake)


@numba.njit
def reset_in_the_middle(data, memory, random):
    return 2


def game(end, way=0.0, legal=None, reset=corridor_reset):
    """Return a compiled corridor of 5 cells with these rewards."""
    return CompiledSimulator.game("corridor", 5, 2, CorridorData(end, way), reset, corridor_step, legal=legal)


@pytest.mark.parametrize("rewards", [(math.nan, 0.0), (1.0, math.nan), (math.inf, 0.0), (1.0, -math.inf)])
def test_a_compiled_game_with_a_reward_that_is_no_number(world, make_agent, lake, rewards):
    agent = make_agent()
    raised_by(
        world, workers(world), RewardError, "finite", lambda: agent.train(game(*rewards), total_steps=500_000)
    )
    check_trains(world, make_agent(), lake)


@MODES
@pytest.mark.parametrize("reset", [corridor_reset, reset_in_the_middle])
def test_a_compiled_game_of_a_user_trains(world, make_agent, async_updates, reset):
    agent = make_agent(async_updates=async_updates, logical_workers=max(1, world.size - 1))
    check_trains(world, agent, game(1.0, reset=reset), 100_000)
    assert (agent.q_table.argmax(axis=1)[:4] == 1).all()


def test_a_mask_that_forbids_everything(world, make_agent, lake):
    agent = make_agent(n_envs=2)
    raised_by(
        world,
        workers(world) | {0},
        ActionMaskError,
        "",
        lambda: agent.train(lambda: Corridor(mask=(False, False)), steps=1_000),
    )
    check_trains(world, make_agent(), lake)


def test_a_compiled_mask_that_forbids_everything(world, make_agent, lake):
    legal = np.ones((5, 2), bool)
    legal[2] = False
    agent = make_agent()
    raised_by(
        world,
        workers(world),
        ActionMaskError,
        "state 2",
        lambda: agent.train(game(1.0, legal=legal), total_steps=1_000),
    )
    check_trains(world, make_agent(), lake)


BAD_FILES = {
    "a pickle": lambda whole: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "text": lambda whole: b"state,action,value\n0,0,1.0\n",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_model_file_is_refused_on_every_rank(world, make_agent, lake, tmp_path, name):
    agent = make_agent()
    agent.train(lake, total_steps=1_000)
    whole = agent.save_model(tmp_path / "whole.pkl").read_bytes()
    (tmp_path / "bad.pkl").write_bytes(BAD_FILES[name](whole))
    with pytest.raises(ModelFileError, match=r"bad\.pkl"):
        DistAsyncQLearning.load_model(tmp_path / "bad.pkl")
    loaded = DistAsyncQLearning.load_model(tmp_path / "whole.pkl")
    check_trains(world, loaded, lake)


# Values that are no numbers any more


@MODES
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_rank_whose_values_overflow_ends_the_run_on_all_and_leaves_good_checkpoints(
    world, make_agent, folder, restart, async_updates, dtype
):
    culprit = world.size - 1
    agent = make_agent(async_updates=async_updates, dtype=dtype, logical_workers=world.size)
    agent.train(SteppedLake, total_steps=2_000, checkpoint_dir=folder)
    good = agent.q_table.copy()
    large = 1e308 if dtype == "float64" else 1e39

    def make():
        scale = large if world.rank == culprit else 1.0
        return gymnasium.wrappers.TransformReward(SteppedLake(), lambda reward: scale + reward)

    raised_by(
        world, {culprit}, DivergenceError, "Make the rewards smaller",
        lambda: agent.train(
            make, total_steps=LONG, new_env=True, checkpoint_dir=folder, checkpoint_interval="1h"
        ),
    )  # fmt: skip
    assert np.isfinite(agent.q_table).all()
    world.barrier()
    loaded = DistAsyncQLearning.load_model(folder)
    assert np.isfinite(loaded.q_table).all() and loaded.steps >= 2_000
    if not async_updates:
        assert loaded.steps == 2_000 and np.array_equal(loaded.q_table, good)


@MODES
def test_what_a_worker_sends_that_is_no_number_is_refused_and_its_rank_named(
    world, make_agent, lake, monkeypatch, several_ranks, async_updates
):
    culprit = world.size - 1
    agent = make_agent(async_updates=async_updates, logical_workers=world.size)
    agent.train(lake, total_steps=2_000)
    by, name = (LocalTable, "pack") if async_updates else (PartSums, "parts")
    whole = getattr(by, name)

    def broken(self, *arguments, **more):
        made = whole(self, *arguments, **more)
        (made.shift if async_updates else made.sums.targets)[:1] = np.nan
        return made

    if world.rank == culprit:
        monkeypatch.setattr(by, name, broken)
    text = f"of rank {culprit} would make entry" if async_updates else f"What rank {culprit} learned as log"
    raised_by(world, {0}, DivergenceError, text, lambda: agent.train(lake, total_steps=LONG))
    assert np.isfinite(agent.q_table).all()


class Runaway(NamedTuple):
    """A game that leaves its states at this step of its first episode."""

    at: int


@numba.njit
def runaway_reset(data, memory, random):
    return 0


@numba.njit
def runaway_step(data, memory, state, action, random):
    memory[0] += 1
    return 2**40 if memory[0] == data.at else 0, 0.0, False


@MODES
@pytest.mark.parametrize("at", [10, 100_000], ids=["on trial", "while it learns"])
def test_a_game_that_leaves_its_states_is_told_on_all_ranks(world, make_agent, async_updates, at):
    game, good = (
        CompiledSimulator.game("runaway", 2, 2, Runaway(when), runaway_reset, runaway_step, memory_size=1)
        for when in (at, -1)
    )
    agent = make_agent(async_updates=async_updates, logical_workers=max(1, world.size - 1))
    agent.train(good, total_steps=100)  # what has to be compiled is
    text = rf"runaway: step in state 0 with action [01] gave the state {2**40}"
    raised_by(
        world,
        workers(world),
        OutsideSpaceError,
        text,
        lambda: agent.train(game, total_steps=LONG, new_env=True),
    )
