"""Runs of several ranks that stop, fail and go on, on as many ranks as there are or on others."""

import math
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from edited_checkpoints import edit, put, put_array, with_value
from own_signals import own_signals, stop_after
from rank_environments import SteppedLake
from slowly import one_by_one

from dist_classicrl import TabularMDP
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.engines.roles.participants import Participant
from dist_classicrl.engines.run import Run
from dist_classicrl.engines.server import server
from dist_classicrl.environments.tictactoe.env import TicTacToeEnv
from dist_classicrl.errors import (
    CheckpointError,
    CheckpointFencedError,
    CheckpointMismatchError,
    RankMismatchError,
    RemoteRankError,
    SettingsError,
    TrainingInterrupted,
    TrainingStopped,
)
from dist_classicrl.learning.compiled import CompiledLearner
from dist_classicrl.process import stop as stopping
from dist_classicrl.schedules import Linear, PerVisit
from dist_classicrl.tables import snapshot

MODES = pytest.mark.parametrize("async_updates", [True, False], ids=["async", "reproducible"])
LONG = 10**12


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    """Let no request to stop go from test to test, and do not wait for late copies of the same signal."""
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.05)
    with own_signals(monkeypatch):
        yield


@pytest.fixture
def parts(world):
    """Give communicators of fewer ranks, by size: of all, of half of them and of rank 0 alone.

    A rank that is in none of that size has None there.
    """
    made = {}
    for size in {world.size, max(1, world.size // 2), 1}:
        part = world.Split(0 if world.rank < size else 1)
        made[size] = part if world.rank < size else None
        if world.rank >= size:
            part.Free()
    yield made
    for part in made.values():
        if part is not None:
            part.Free()


def told(result):
    """Return what of a result depends neither on time nor on the number of ranks."""
    return result.steps, result.episodes, repr(result.mean_return), repr(result.mean_length)


def same(one, other):
    """Whether two agents know the same, bit for bit."""
    return one.q_table.tobytes() == other.q_table.tobytes() and one.visits.tobytes() == other.visits.tobytes()


def newest(folder):
    """Return the newest checkpoint."""
    return CheckpointFolder(folder, "agent-0").read_newest()


def signal_soon(world, patched, ranks, number=signal.SIGUSR1):
    """Make `ranks` soon send themselves a signal in `train`, and return arguments for it."""
    if world.rank not in ranks:
        return {}
    if world.rank == 0:
        return stop_after(1, number)
    learn, seen = CompiledLearner.learn, []

    def learning(self, walker, stream, steps):
        learn(self, walker, stream, steps)
        seen.append(None)
        if len(seen) == 3:
            os.kill(os.getpid(), number)

    patched.setattr(CompiledLearner, "learn", learning)
    patched.setattr(CompiledLearner, "learn_apart", one_by_one)
    return {}


def stopped_everywhere(comm, error, folder, races=False):
    """Check that all ranks stopped alike, with a checkpoint of what was made, and return its steps.

    Where two ranks write to the same rows, whose `races` cost a visit now and then, there may be fewer.
    """
    here = type(error).__name__, error.code, error.reason, error.checkpoint, error.steps
    everywhere = comm.allgather(here)
    assert len(set(everywhere)) == 1, everywhere
    if comm.rank == 0:
        saved = newest(folder)
        assert saved.url == error.checkpoint
        visits = saved.arrays["visits"].sum()
        assert saved.body["steps"] == error.steps
        assert 0.8 * error.steps < visits <= error.steps if races else visits == error.steps
        assert np.isfinite(saved.arrays["q_table"]).all()
    comm.barrier()
    return error.steps


def check_exact(comm, agent, result, steps):
    """Check that exactly `steps` were made, and that ranks agree."""
    assert result.steps == agent.steps == agent.visits.sum() == steps
    assert len(set(comm.allgather(agent.q_table.tobytes() + agent.visits.tobytes()))) == 1
    assert len(set(comm.allgather(repr(result)))) == 1


# Stops


@pytest.mark.core
@MODES
@pytest.mark.parametrize("who", ["rank 0", "a worker", "all"])
def test_a_signal_on_any_rank_stops_all_and_the_next_run_goes_on(
    world, make_agent, lake, folder, restart, monkeypatch, who, async_updates
):
    ranks = {"rank 0": {0}, "a worker": {world.size - 1}, "all": set(range(world.size))}[who]
    settings = {"async_updates": async_updates, "learning_rate": PerVisit(0.7)}
    agent = make_agent(**settings)
    with monkeypatch.context() as patched, pytest.raises(TrainingStopped) as stopped:
        options = signal_soon(world, patched, ranks)
        agent.train(lake, total_steps=LONG, checkpoint_dir=folder, **options)
    steps = stopped_everywhere(world, stopped.value, folder)
    assert (stopped.value.code, agent.steps) == (75, steps)
    if world.size == 1:
        assert stopped.value.reason == "SIGUSR1"
    else:
        assert any(f"SIGUSR1 on rank {rank} " in stopped.value.reason for rank in ranks)
    assert 0 < steps < LONG
    restart()
    agent = make_agent(**settings)
    result = agent.train(lake, total_steps=steps + 20_000, checkpoint_dir=folder)
    check_exact(world, agent, result, steps + 20_000)
    assert result.resumed_from == stopped.value.checkpoint


@MODES
def test_ctrl_c_on_one_rank_is_130_on_all(world, make_agent, lake, folder, monkeypatch, async_updates):
    agent = make_agent(async_updates=async_updates)
    options = signal_soon(world, monkeypatch, {world.size - 1}, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as stopped:
        agent.train(lake, total_steps=LONG, checkpoint_dir=folder, **options)
    assert isinstance(stopped.value, TrainingInterrupted) and stopped.value.code == 130
    assert stopped_everywhere(world, stopped.value, folder) == agent.steps


def test_a_time_limit_of_rank_0_stops_all(world, make_agent, lake, folder):
    agent = make_agent()
    with pytest.raises(TrainingStopped, match="time limit of 0.5 s"):
        # That of the others does not count.
        agent.train(
            lake, total_steps=LONG, checkpoint_dir=folder, time_limit=0.5 if world.rank == 0 else 1e-3
        )
    assert len(set(world.allgather(agent.steps))) == 1


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({}, {}),
        ({"async_updates": False}, {}),
        ({"topology": "decentralized"}, {}),
        ({}, {"placement": "sharded"}),
        ({"async_updates": False}, {"placement": "sharded"}),
    ],
    ids=str,
)
def test_a_time_limit_too_short_for_a_step_lets_some_be_made(world, make_agent, lake, folder, settings, how):
    """Else a script that types the same command again, as exit status 75 asks it to, would never come on."""
    if world.size == 1 and settings.get("topology") == "decentralized":
        pytest.skip("needs several ranks")
    with pytest.raises(TrainingStopped, match="time limit of 0.01 s") as stopped:
        make_agent(**settings).train(lake, total_steps=LONG, checkpoint_dir=folder, time_limit=0.01, **how)
    races = how.get("placement") == "sharded" and settings.get("async_updates", True) and world.size > 1
    assert stopped_everywhere(world, stopped.value, folder, races) > 0


def test_a_time_limit_is_one_of_training_and_not_of_what_is_compiled_first(
    world, make_agent, lake, folder, monkeypatch
):
    compile_all, compiled = Run.compile, []

    def compile_slowly(*arguments):
        compile_all(*arguments)
        time.sleep(3.0)
        compiled.append(time.monotonic())

    monkeypatch.setattr(Run, "compile", compile_slowly)
    with pytest.raises(TrainingStopped, match="time limit of 2.5 s") as stopped:
        make_agent().train(lake, total_steps=LONG, checkpoint_dir=folder, time_limit=2.5)
    # Had it begun before, it would have been over when the training began. It leaves time for saving.
    if world.rank == 0 and world.size > 1:  # a process alone compiles elsewhere
        assert time.monotonic() - compiled[0] > 0.5
    assert stopped_everywhere(world, stopped.value, folder) > 0


@MODES
def test_a_request_in_the_last_report_stops_all_behind_the_call(
    world, make_agent, lake, folder, restart, async_updates
):
    agent = make_agent(async_updates=async_updates)
    with pytest.raises(TrainingStopped) as stopped:
        agent.train(lake, total_steps=3_000, checkpoint_dir=folder, **stop_after(3_000))
    assert stopped_everywhere(world, stopped.value, folder) == 3_000
    restart()
    agent = make_agent(async_updates=async_updates)
    check_exact(world, agent, agent.train(lake, total_steps=3_000, checkpoint_dir=folder), 3_000)
    assert agent.train(lake, total_steps=500, checkpoint_dir=folder).steps == 500


@MODES
def test_a_request_that_reaches_a_worker_too_late_stops_all_in_the_next_call(
    world, make_agent, lake, folder, monkeypatch, async_updates
):
    if world.size == 1:
        pytest.skip("one rank alone is never too late")
    work = Participant.work

    def late(self, worker):
        result = work(self, worker)
        if world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return result

    agent = make_agent(async_updates=async_updates)
    with monkeypatch.context() as patched:
        patched.setattr(Participant, "work", late)
        check_exact(world, agent, agent.train(lake, total_steps=3_000, checkpoint_dir=folder), 3_000)
    with pytest.raises(TrainingStopped, match=f"SIGUSR1 on rank {world.size - 1} ") as stopped:
        agent.train(lake, total_steps=LONG, checkpoint_dir=folder)
    made = stopped_everywhere(world, stopped.value, folder) - 3_000
    assert agent.train(lake, total_steps=10_000, checkpoint_dir=folder).steps == 10_000
    assert agent.steps == agent.visits.sum() == 13_000 + made


@MODES
def test_training_again_in_processes_that_were_stopped(
    world, make_agent, lake, folder, restart, caplog, async_updates
):
    agent, asked = make_agent(async_updates=async_updates, sync_frequency=10, logical_workers=3), 0
    for steps in (200_000, 300_000):
        with pytest.raises(TrainingStopped) as stopped:
            agent.train(lake, total_steps=LONG, checkpoint_dir=folder, **stop_after(steps // 3))
        made = stopped_everywhere(world, stopped.value, folder)
        asked = made + steps
        result = agent.train(lake, total_steps=steps, checkpoint_dir=folder)
        assert (result.steps, result.resumed_from) == (steps, None)
        assert agent.steps == agent.visits.sum() == asked
        assert len(set(world.allgather(agent.q_table.tobytes()))) == 1
    # That their tables were behind is nothing that the script did.
    assert "is not what it is on rank 0" not in caplog.text
    restart()
    again = make_agent(async_updates=async_updates, sync_frequency=10, logical_workers=3)
    check_exact(world, again, again.train(lake, total_steps=asked, checkpoint_dir=folder), asked)
    assert same(again, agent)


@MODES
@pytest.mark.parametrize("who", [0, -1])
def test_a_signal_between_two_calls_stops_the_next_at_its_beginning(
    world, make_agent, alone, lake, folder, restart, who, async_updates
):
    settings = {"async_updates": async_updates, "logical_workers": 3, "sync_frequency": 2, "batch_size": 8}
    agent = make_agent(**settings)
    agent.train(lake, total_steps=1_000, checkpoint_dir=folder)
    if world.rank == who % world.size:
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(TrainingStopped, match="SIGTERM") as stopped:
        agent.train(lake, total_steps=LONG, checkpoint_dir=folder)
    made = stopped_everywhere(world, stopped.value, folder)
    assert 1_000 <= made < LONG
    restart()
    agent = make_agent(**settings)
    assert agent.train(lake, total_steps=1_000, checkpoint_dir=folder).steps == 1_000
    result = agent.train(lake, total_steps=made + 2_000, checkpoint_dir=folder)
    assert result.steps == made + 2_000
    assert agent.steps == agent.visits.sum() == made + 3_000
    if not async_updates and made < 10_000_000:
        straight = make_agent(comm=alone, **settings)
        straight.train(lake, total_steps=1_000)
        straight.train(lake, total_steps=made + 2_000)
        assert same(agent, straight)


@MODES
def test_a_server_that_was_replaced_stops_all_its_ranks(
    world, make_agent, alone, lake, folder, restart, async_updates
):
    # So long it waits to hear that the other server is one of this run.
    agent = make_agent(async_updates=async_updates, heartbeat_timeout=15.0)
    agent.train(lake, total_steps=1_000, checkpoint_dir=folder)
    restart()
    if world.rank == 0:
        other = make_agent(async_updates=async_updates, comm=alone)
        other.train(lake, total_steps=2_000, checkpoint_dir=folder)
    world.barrier()
    refused(
        world,
        CheckpointFencedError,
        "belongs to another server",
        lambda: agent.train(lake, total_steps=LONG, checkpoint_dir=folder, checkpoint_interval="10ms"),
    )
    assert world.allgather(newest(folder).body["steps"]) == [2_000] * world.size
    assert agent.train(lake, total_steps=500).steps == 500
    assert len(set(world.allgather(agent.q_table.tobytes() + agent.visits.tobytes()))) == 1


def test_at_a_stop_all_that_was_learned_is_saved(world, make_agent, lake, folder, monkeypatch):
    learn, made = CompiledLearner.learn, []

    def learning(self, walker, stream, steps):
        learn(self, walker, stream, steps)
        made.append(steps)

    agent = make_agent(sync_frequency=1_000, prefetch_factor=4)
    with monkeypatch.context() as patched, pytest.raises(TrainingStopped) as stopped:
        patched.setattr(CompiledLearner, "learn", learning)
        agent.train(lake, total_steps=LONG, checkpoint_dir=folder, **stop_after(200_000))
    assert stopped_everywhere(world, stopped.value, folder) == world.allreduce(sum(made))


def test_the_end_of_a_call_holds_no_learners_that_are_behind(world, make_agent, lake, folder):
    settings = {"async_updates": False, "logical_workers": 3, "sync_frequency": 2, "batch_size": 8}
    make_agent(**settings).train(
        lake, total_steps=20_000, checkpoint_dir=folder, checkpoint_interval=1, keep_last=1_000
    )
    saved = CheckpointFolder(folder, "agent-0")
    last, *others = [saved.read(name) for name in saved.names()]
    assert last.body["steps"] == 20_000 and "position" not in last.arrays
    assert others and all(other.arrays["position"].shape[0] == 3 for other in others)


# Other numbers of ranks


ROUNDS = {
    "a lake": ("FrozenLake8x8-v1", {"learning_rate": PerVisit(0.7)}),
    "a game": (TicTacToeEnv, {"epsilon": 0.3}),
    "replay": ("FrozenLake-v1", {"replay_ratio": 1.3, "buffer_size": 60, "epsilon": Linear(1.0, 0.1, 4_000)}),
    "float32": ("CliffWalking-v1", {"dtype": "float32", "replay_ratio": 0.5, "buffer_size": 60}),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_in_the_reproducible_mode_nobody_can_tell_that_it_was_stopped(
    world, parts, make_agent, alone, folder, restart, name
):
    env, settings = ROUNDS[name]
    settings = {"async_updates": False, "logical_workers": 3, "sync_frequency": 2, **settings}
    settings["batch_size"] = 8
    straight = make_agent(comm=alone, **settings)
    whole = straight.train(env, total_steps=5_003)
    half = parts[max(1, world.size // 2)]
    for stop, part in [(1, world), (1_000, half), (2_000, parts[1]), (3_000, world), (4_000, half)]:
        if part is not None:
            agent = make_agent(comm=part, **settings)
            with pytest.raises(TrainingStopped) as stopped:
                agent.train(env, total_steps=5_003, checkpoint_dir=folder, **stop_after(stop))
            assert stop <= stopped_everywhere(part, stopped.value, folder) < 5_003
        restart()
        world.barrier()
    agent = make_agent(**settings)
    result = agent.train(env, total_steps=5_003, checkpoint_dir=folder)
    check_exact(world, agent, result, 5_003)
    assert same(agent, straight)
    assert told(result) == told(whole)


@pytest.mark.core
def test_asynchronous_training_goes_on_with_the_exact_number_of_steps_on_any_number_of_ranks(
    world, parts, make_agent, lake, folder, restart
):
    total, made = 0, 0
    half = parts[max(1, world.size // 2)]
    settings = {"learning_rate": PerVisit(0.7), "replay_ratio": 0.2, "dtype": "float32"}
    for part in (world, half, parts[1], world):
        if part is not None:
            agent = make_agent(comm=part, **settings)
            with pytest.raises(TrainingStopped) as stopped:
                agent.train(lake, total_steps=LONG, checkpoint_dir=folder, **stop_after(made + 1_000))
            stopped_everywhere(part, stopped.value, folder)
            assert agent.steps >= made + 1_000
            made = agent.steps
        made = world.bcast(made)
        restart()
    for part, more in ((half, 30_000), (parts[1], 20_000), (world, 10_000)):
        total = made + more
        if part is not None:
            agent = make_agent(comm=part, **settings)
            result = agent.train(lake, total_steps=total, checkpoint_dir=folder)
            check_exact(part, agent, result, total)
        made = total
        restart()
        world.barrier()


@MODES
def test_ten_calls_of_which_the_seventh_was_stopped(
    world, parts, make_agent, alone, lake, folder, restart, caplog, async_updates
):
    calls = [2_000, 1, 0, 3_000, 32, 700, 9_000, 64, 4_000, 333]
    settings = {"async_updates": async_updates, "logical_workers": 3, "sync_frequency": 2, "batch_size": 8}
    agent = make_agent(**settings)
    for steps in calls[:6]:
        agent.train(lake, total_steps=steps, checkpoint_dir=folder)
    stop = stop_after(4_000)
    try:
        agent.train(lake, total_steps=calls[6], checkpoint_dir=folder, **stop)
    except TrainingStopped as stopped:
        stopped_everywhere(world, stopped, folder)
    made = world.allgather(agent.steps)
    assert made == [made[0]] * world.size and made[0] >= sum(calls[:6]) + 4_000
    restart()
    part = parts[max(1, world.size // 2)]
    if part is not None:
        agent = make_agent(comm=part, **settings)
        results = []
        for number, steps in enumerate(calls):
            caplog.clear()
            results.append(agent.train(lake, total_steps=steps, checkpoint_dir=folder))
            assert results[-1].steps == steps
            assert agent.steps == max(sum(calls[: number + 1]), made[0] if number > 0 or steps else 0)
            if number < 6:
                assert ("had been made before" in caplog.text) == (part.rank == 0 and steps > 0)
            assert len(set(part.allgather(agent.q_table.tobytes()))) == 1
            assert len(set(part.allgather(repr(results[-1])))) == 1
        assert agent.visits.sum() == agent.steps == sum(calls)
        if not async_updates:
            straight = make_agent(comm=alone, **settings)
            expected = [told(straight.train(lake, total_steps=steps)) for steps in calls]
            assert [told(result) for result in results] == expected
            assert same(agent, straight)
    world.barrier()


def test_a_command_that_was_finished_gives_all_ranks_what_it_gave(world, make_agent, lake, folder, restart):
    settings = {"state_size": 20, "action_size": 6}
    agent = make_agent(**settings)
    if world.rank == 0:
        agent.q_table = np.arange(120.0).reshape(20, 6)
    first = agent.train(lake, total_steps=3_000, checkpoint_dir=folder)
    restart()
    again = make_agent(**settings)
    result = again.train(lake, total_steps=3_000, checkpoint_dir=folder)
    check_exact(world, again, result, 3_000)
    assert same(again, agent)
    assert (again.q_table[16:] == np.arange(96.0, 120.0).reshape(4, 6)).all()
    assert told(result) == told(first)
    assert result.resumed_from is not None


# What is in a checkpoint of a run that goes on


@pytest.mark.core
@MODES
def test_every_checkpoint_is_of_one_moment(
    world, make_agent, alone, folder, restart, monkeypatch, async_updates
):
    # Copied in many small pieces, between which others push
    monkeypatch.setattr(server, "_COPY_SECONDS", 0.0)
    monkeypatch.setattr(snapshot, "SLICE_ENTRIES", 500)
    env = TabularMDP.garnet(3_000, 4, 2, seed=1)
    settings = {"async_updates": async_updates, "sync_frequency": 3, "batch_size": 100, "logical_workers": 5}
    settings["epsilon"] = 0.1  # whatever the total
    agent = make_agent(**settings)

    sent = []

    def report(progress):
        # Once: a second one would end the process at once.
        if not sent and len(CheckpointFolder(folder, "agent-0").names()) >= 6:
            sent.append(None)
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(TrainingStopped):
        agent.train(
            env,
            total_steps=LONG,
            checkpoint_dir=folder,
            checkpoint_interval="10ms",
            keep_last=1_000,
            progress=report,
            progress_interval=0.02,
        )
    names = CheckpointFolder(folder, "agent-0").names() if world.rank == 0 else None
    names = world.bcast(names)
    made = []
    for name in names:
        saved = CheckpointFolder(folder, "agent-0").read(name)
        assert saved.arrays["visits"].sum() == saved.body["steps"] == saved.body["tally"]["steps"]
        assert not saved.arrays["q_table"][saved.arrays["visits"] == 0].any()
        made.append(saved.body["steps"])
    assert len(made) >= 6 and made == sorted(made, reverse=True) and made[0] == agent.steps
    # From one in the middle
    restart()
    kept = folder / "kept" / "agent-0" / names[3]
    if world.rank == 0:
        shutil.copytree(folder / "agent-0" / names[3], kept)
    world.barrier()
    agent = make_agent(**settings)
    result = agent.train(env, total_steps=made[3] + 20_000, checkpoint_dir=folder / "kept")
    check_exact(world, agent, result, made[3] + 20_000)
    if not async_updates and made[3] < 1_000_000:
        straight = make_agent(comm=alone, **settings)
        straight.train(env, total_steps=made[3] + 20_000)
        assert same(agent, straight)


def test_what_an_unsaved_call_learned_before_an_error_stays_in_the_next_that_is_saved(
    world, make_agent, lake, folder, restart
):
    """Rank 0 alone has it, and nobody has claimed the folder yet, since the first call had been made."""
    saved = {"env": lake, "total_steps": 600, "checkpoint_dir": folder}
    make_agent().train(**saved)
    restart()
    agent = make_agent()
    agent.train(**saved)

    def fail(locals_):
        if world.rank == 0 and locals_["num_timesteps"] >= 2_000:
            raise ArithmeticError("a callback's")

    with pytest.raises((ArithmeticError, RemoteRankError)):
        agent.train(env=lake, total_steps=300_000, callbacks=fail, progress_interval=1e-3)
    before = world.bcast(int(agent.visits.sum()))
    assert before > 600
    result = agent.train(env=lake, total_steps=60, checkpoint_dir=folder)
    assert (result.steps, agent.visits.sum()) == (60, before + 60)


@pytest.mark.core
@pytest.mark.parametrize("culprit", [0, -1])
def test_an_error_on_any_rank_costs_nothing_that_rank_0_had_learned(
    world, make_agent, lake, folder, restart, monkeypatch, culprit
):
    culprit %= world.size
    agent = make_agent(sync_frequency=1, batch_size=500)
    learn, seen = CompiledLearner.learn, []

    def learning(self, walker, stream, steps):
        learn(self, walker, stream, steps)
        seen.append(None)
        if world.rank == culprit and len(seen) == 8:
            raise ZeroDivisionError("over")

    def report(progress):
        if progress.steps > 3_000:
            raise ZeroDivisionError("over")

    options = {"progress": report, "progress_interval": 0} if culprit == 0 and world.size > 1 else {}
    with monkeypatch.context() as patched:
        patched.setattr(CompiledLearner, "learn", learning)
        with pytest.raises((ZeroDivisionError, RemoteRankError), match="over"):
            agent.train(lake, total_steps=LONG, checkpoint_dir=folder, **options)
    saved = world.bcast(newest(folder) if world.rank == 0 else None)
    made = saved.body["steps"]
    assert made == saved.arrays["visits"].sum() > 0
    restart()
    again = make_agent(sync_frequency=1, batch_size=500)
    result = again.train(lake, total_steps=made + 5_000, checkpoint_dir=folder)
    check_exact(world, again, result, made + 5_000)
    # Who caught the error goes on as well.
    steps = agent.steps
    agent.train(lake, total_steps=1_000)
    assert agent.steps == steps + 1_000
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1


# What does not fit


def refused(world, kind, text, train, culprit=0):
    """Check that `train` raises `kind` on the rank `culprit`, and word of it on all others."""
    begin = time.monotonic()
    with pytest.raises(kind if world.rank == culprit else RemoteRankError, match=text) as caught:
        train()
    assert time.monotonic() - begin < 120.0  # far less than ranks wait for each other
    if world.rank != culprit:
        assert caught.value.rank == culprit
        assert caught.value.summary.split(":")[0].endswith(kind.__name__)


def everything(folder):
    """Return all files below a folder, byte by byte."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


OTHERS = {
    "environment": ("CliffWalking-v1", {}, "environment: .*there.*CliffWalking.*here.*table: "),
    "dtype": ("FrozenLake-v1", {"dtype": "float32"}, "'float64' there, 'float32' here"),
    "seed": ("FrozenLake-v1", {"seed": 12}, "seed: 7 there, 12 here"),
    "mode": ("FrozenLake-v1", {"async_updates": False}, "async_updates: True there, False here"),
    "table": ("FrozenLake-v1", {"state_size": 17}, r"table: \(16, 4\) there, \(17, 4\) here"),
}


@pytest.mark.core
@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_something_else_is_refused_on_all_ranks(
    world, make_agent, folder, restart, caplog, name
):
    make_agent().train("FrozenLake-v1", total_steps=3_000, checkpoint_dir=folder)
    restart()
    before = everything(folder)
    env, settings, text = OTHERS[name]
    agent = make_agent(**settings)
    for _ in range(2):
        refused(
            world,
            CheckpointMismatchError,
            text,
            lambda: agent.train(env, total_steps=5_000, checkpoint_dir=folder),
        )
    assert everything(folder) == before
    world.barrier()
    result = agent.train(env, total_steps=5_000, checkpoint_dir=folder / "other")
    check_exact(world, agent, result, 5_000)
    assert result.resumed_from is None
    restart()
    agent = make_agent(**settings)
    result = agent.train(env, total_steps=5_000, checkpoint_dir=folder, strict=False)
    assert result.steps == agent.steps == 5_000
    assert len(set(world.allgather(agent.q_table.tobytes() + agent.visits.tobytes()))) == 1
    assert ("Taking over what fits" in caplog.text) == (world.rank == 0)


def test_a_checkpoint_that_must_be_there(world, make_agent, lake, folder):
    agent = make_agent()
    refused(
        world,
        CheckpointError,
        "no checkpoint in",
        lambda: agent.train(lake, total_steps=5_000, checkpoint_dir=folder / "none", resume="must"),
    )
    result = agent.train(lake, total_steps=5_000, checkpoint_dir=folder / "none")
    check_exact(world, agent, result, 5_000)


def test_where_all_are_damaged_every_rank_hears_of_it(world, make_agent, lake, folder, restart):
    make_agent().train(lake, total_steps=3_000, checkpoint_dir=folder)
    if world.rank == 0:
        (Path(newest(folder).url) / "visits.npy").write_bytes(b"")
    restart()
    world.barrier()
    agent = make_agent()
    for _ in range(2):
        refused(
            world,
            CheckpointError,
            "no usable checkpoint in",
            lambda: agent.train(lake, total_steps=5_000, checkpoint_dir=folder),
        )
    result = agent.train(lake, total_steps=5_000, checkpoint_dir=folder, resume="never")
    check_exact(world, agent, result, 5_000)


EDITS = {
    "tally of texts": (put("tally", "episodes", "12"), "its tally is"),
    "a return of NaN": (put_array("running", with_value((0, 0), math.nan)), "running is the return nan"),
    "a learner out of the table": (put_array("position", with_value((1, 0), 10_000)), "position, the state"),
    "a learner too few": (put_array("position", lambda array: array[1:]), "position has the shape"),
    "another learner's array": (put_array("replay_ring", lambda array: np.zeros((4, 3))), "replay_ring"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_state_that_no_learner_can_have_had_is_refused_on_all_ranks(
    world, make_agent, lake, folder, restart, name
):
    settings = {"async_updates": False, "logical_workers": 4}
    with pytest.raises(TrainingStopped):
        make_agent(**settings).train(lake, total_steps=LONG, checkpoint_dir=folder, **stop_after(1))
    change, text = EDITS[name]
    if world.rank == 0:
        edit(newest(folder), change)
    restart()
    world.barrier()
    agent = make_agent(**settings)
    # Some are found by rank 0, others by the workers that are to go on from them.
    with pytest.raises((CheckpointError, RemoteRankError), match=text) as caught:
        agent.train(lake, total_steps=LONG, checkpoint_dir=folder)
    assert "CheckpointError" in getattr(caught.value, "summary", "CheckpointError")
    kinds = world.allgather(type(caught.value).__name__)
    assert "CheckpointError" in kinds
    result = agent.train(lake, total_steps=5_000, checkpoint_dir=folder / "other")
    assert result.steps == 5_000
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_is_a_file(world, make_agent, lake, folder, where):
    if world.rank == 0:
        (folder / "file").write_text("not a folder")
    world.barrier()
    agent = make_agent()
    refused(
        world,
        CheckpointError,
        "file",
        lambda: agent.train(lake, total_steps=5_000, checkpoint_dir=folder / where),
    )
    check_exact(world, agent, agent.train(lake, total_steps=5_000), 5_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint_interval": 0},
        {"keep_last": 0},
        {"resume": "maybe"},
        {"time_limit": -1},
        {"stop_signals": ["SIGKILL"]},
        {"checkpoint_dir": 5},
        {"checkpoint_dir": None, "keep_every": 4},
    ],
)
def test_a_wrong_argument_is_refused_on_all_ranks(world, make_agent, lake, folder, wrong):
    agent = make_agent()
    options = {"checkpoint_dir": folder / "runs", **wrong}
    with pytest.raises(SettingsError, match=list(wrong)[-1]):
        agent.train(lake, total_steps=1_000, **options)
    # On one rank alone
    culprit = world.size - 1
    options = options if world.rank == culprit else {"checkpoint_dir": folder / "runs"}
    refused(
        world,
        SettingsError,
        list(wrong)[-1],
        lambda: agent.train(lake, total_steps=1_000, **options),
        culprit,
    )
    assert not (folder / "runs").exists()
    check_exact(world, agent, agent.train(lake, total_steps=1_000), 1_000)


def test_a_folder_on_some_ranks_alone(world, make_agent, lake, folder):
    if world.size == 1:
        pytest.skip("takes two ranks to disagree")
    agent = make_agent()
    for saving in (0, world.size - 1):
        with pytest.raises(RankMismatchError, match="checkpoints: (True|False) on rank 0"):
            agent.train(lake, total_steps=1_000, checkpoint_dir=folder if world.rank == saving else None)
    # Which folder it is, rank 0 says.
    other = folder / "0" if world.rank == 0 else folder / "elsewhere"
    check_exact(world, agent, agent.train(lake, total_steps=1_000, checkpoint_dir=other), 1_000)
    assert not (folder / "elsewhere").exists()


# Scripts that keep their own state


def warned(caplog, world, name):
    """Return which ranks were told that what they hold of `name` is not what rank 0 holds."""
    text = f"agent.{name} on rank {world.rank} is not what it is on rank 0"
    ranks = world.allgather(sum(text in record.getMessage() for record in caplog.records))
    caplog.clear()
    return {rank for rank, times in enumerate(ranks) if times}


@MODES
def test_the_table_that_rank_0_holds_is_what_counts(world, make_agent, lake, caplog, async_updates):
    agent = make_agent(async_updates=async_updates, state_size=20, action_size=5, logical_workers=2)
    values = np.full((20, 5), 3.0)
    # A new agent that nobody has touched has nothing to be told.
    if world.rank == 0:
        agent.q_table = values
    check_exact(world, agent, agent.train(lake, total_steps=10), 10)
    assert warned(caplog, world, "q_table") == set()
    assert (agent.q_table[16:] == 3.0).all() and (agent.q_table[:, 4:] == 3.0).all()
    # On all alike
    agent.q_table = 2.0 * values
    agent.train(lake, total_steps=10)
    assert warned(caplog, world, "q_table") == set()
    assert (agent.q_table[16:] == 6.0).all()
    # On one rank differently
    odd = world.size - 1
    agent.q_table = (5.0 if world.rank == odd and odd else 4.0) * values
    agent.train(lake, total_steps=10)
    assert warned(caplog, world, "q_table") == {odd} - {0}
    assert (agent.q_table[16:] == 12.0).all()
    assert len(set(world.allgather(agent.q_table.tobytes()))) == 1
    # Also where nothing is left to do
    agent.q_table = np.full((20, 5), float(world.rank))
    agent.train(lake, total_steps=0)
    assert warned(caplog, world, "q_table") == set(range(1, world.size))
    assert not agent.q_table.any()
    agent.train(lake, total_steps=10)
    assert warned(caplog, world, "q_table") == set()
    assert agent.steps == agent.visits.sum() == 40


def test_the_exploration_of_rank_0_is_what_counts(world, make_agent, lake, caplog):
    agent = make_agent(epsilon=0.1 * (1 + world.rank))
    for epsilon, ranks in [(None, set(range(1, world.size))), (None, set()), (Linear(1.0, 0.0, 500), set())]:
        if epsilon is not None:
            agent.epsilon = epsilon
        agent.train(lake, total_steps=100)
        assert warned(caplog, world, "epsilon") == ranks
        assert len(set(world.allgather(agent.epsilon))) == 1
        assert agent.epsilon == pytest.approx(0.1 if epsilon is None else 1.0 - 300 / 500)
    if world.rank == world.size - 1:
        agent.epsilon = 0.77
    agent.train(lake, total_steps=100)
    assert warned(caplog, world, "epsilon") == {world.size - 1} - {0}
    assert len(set(world.allgather(agent.epsilon))) == 1
    if world.size > 1:
        assert agent.epsilon == pytest.approx(0.2)


@MODES
def test_scripts_that_write_a_file_per_rank_work_as_they_stand(
    world, make_agent, lake, folder, caplog, async_updates
):
    def script(calls):
        agent, path, begun = make_agent(async_updates=async_updates), folder / f"rank{world.rank}.npz", 0
        if path.exists():
            with np.load(path) as state:
                agent.q_table, agent.epsilon, begun = state["q"], float(state["epsilon"]), int(state["calls"])
        for call in range(begun, calls):
            agent.train(lake, steps=1_000)
            agent.epsilon *= 0.9
            np.savez(path, q=agent.q_table, epsilon=agent.epsilon, calls=call + 1)
        return agent

    first = script(3)
    second = script(5)
    assert second.steps == 2 * 1_000 * world.size and first.steps == 3 * 1_000 * world.size
    assert second.epsilon == pytest.approx(0.1 * 0.9**5)
    assert len(set(world.allgather(second.q_table.tobytes()))) == 1
    assert "is not what it is on rank 0" not in caplog.text


def test_two_agents_have_a_folder_each(world, make_agent, lake, folder, restart):
    cliff = TabularMDP.from_gymnasium("CliffWalking-v1")
    for _ in range(2):
        one, other = make_agent(), make_agent(dtype="float32")
        check_exact(world, one, one.train(lake, total_steps=3_000, checkpoint_dir=folder), 3_000)
        check_exact(world, other, other.train(cliff, total_steps=4_000, checkpoint_dir=folder), 4_000)
        restart()
    assert sorted(path.name for path in folder.iterdir()) == ["agent-0", "agent-1"]


def test_stepped_environments_begin_new_episodes_and_make_the_exact_number_of_steps(
    world, make_agent, folder, restart
):
    settings = {"n_envs": 2, "replay_ratio": 0.5, "buffer_size": 40}
    agent = make_agent(**settings)
    with pytest.raises(TrainingStopped) as stopped:
        agent.train(SteppedLake, total_steps=10_000_000, checkpoint_dir=folder, **stop_after(300))
    steps = stopped_everywhere(world, stopped.value, folder)
    restart()
    agent = make_agent(**settings)
    result = agent.train(SteppedLake, total_steps=steps + 700, checkpoint_dir=folder)
    check_exact(world, agent, result, steps + 700)
