"""One process that stops and goes on, over and over: bit for bit what it would have been without a stop."""

import json
import logging
import math
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from edited_checkpoints import edit, put, put_array, with_value
from own_signals import own_signals, stop_after
from rank_environments import SteppedLake

from dist_classicrl import CompiledSimulator, DistAsyncQLearning, TabularMDP
from dist_classicrl.agent import session
from dist_classicrl.agent.agent import state_of
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.engines import loops as alone
from dist_classicrl.engines import saving
from dist_classicrl.environments.tictactoe.env import TicTacToeEnv
from dist_classicrl.environments.tictactoe.rules import rules
from dist_classicrl.errors import (
    CheckpointError,
    CheckpointMismatchError,
    NotTrainedError,
    SettingsError,
    TrainingInterrupted,
    TrainingStopped,
)
from dist_classicrl.model import places
from dist_classicrl.process import stop as stopping
from dist_classicrl.rules import Boltzmann
from dist_classicrl.schedules import Exponential, Linear, PerVisit

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")
GARNET = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)


@pytest.fixture(autouse=True)
def only_the_signals_of_this_test(monkeypatch):
    """Let no request to stop go from test to test, and do not wait for late copies of the same signal."""
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.0)
    with own_signals(monkeypatch):
        yield


@pytest.fixture
def small_slices(monkeypatch):
    """Look for requests to stop after every batch, so that runs stop where the tests say."""
    monkeypatch.setattr(alone, "_SLICE_SECONDS", 0.0)
    monkeypatch.setattr(alone, "_FIRST_SLICE_COMPILED", 1)


@pytest.fixture
def restart(monkeypatch):
    """Give a function after which agents are numbered as in a new process."""
    monkeypatch.setattr(places, "_agents", {})
    return places._agents.clear


def is_new(agent):
    """Return whether an agent has learned nothing: its table is empty, or there is none yet."""
    try:
        return agent.steps == 0 and not agent.visits.any()
    except NotTrainedError:
        return agent.steps == 0


def newest(folder, agent="agent-0"):
    """Return the newest checkpoint."""
    return CheckpointFolder(folder, agent).read_newest()


def same(one, other):
    """Whether two agents know the same, bit for bit."""
    return (
        one.q_table.tobytes() == other.q_table.tobytes()
        and one.q_table.dtype == other.q_table.dtype
        and one.visits.tobytes() == other.visits.tobytes()
        and one.steps == other.steps
    )


def told(result):
    """Return what of a result does not depend on time."""
    return result.steps, result.episodes, repr(result.mean_return), repr(result.mean_length), result.workers


# Bit for bit


class Lock(NamedTuple):
    """A lock of two wheels, of which the player sees one: it opens where both show this number."""

    number: int


@numba.njit
def lock_reset(data, memory, random):
    memory[0] = random % np.uint64(7)
    memory[1] += 1
    return np.int64(random % np.uint64(5))


@numba.njit
def lock_step(data, memory, state, action, random):
    memory[0] = (memory[0] + action + memory[1]) % 7
    following = (state + 2 * action + memory[0]) % 5
    end = memory[0] == data.number and following == data.number
    return following, 1.0 if end else -0.1, end


LOCK = CompiledSimulator.game(
    "lock", 5, 3, Lock(3), lock_reset, lock_step, memory_size=2, max_episode_steps=50
)

RUNS = {
    "a hidden memory": (LOCK, {"replay_ratio": 0.5, "buffer_size": 50, "epsilon": 0.5}),
    "FrozenLake": ("FrozenLake8x8-v1", {}),
    "Taxi": ("Taxi-v4", {"batch_size": 1}),
    "a game": (TicTacToeEnv, {"epsilon": 0.3, "batch_size": 7}),
    "replay": (LAKE, {"replay_ratio": 1.3, "buffer_size": 300}),
    "replay of a game": (TicTacToeEnv, {"replay_ratio": 0.5, "buffer_size": 50, "epsilon": 0.5}),
    "per visit": ("FrozenLake8x8-v1", {"learning_rate": PerVisit(0.7)}),
    "linear": (GARNET, {"learning_rate": Linear(0.5, 0.01, 2_500), "epsilon": Linear(1.0, 0.1, 2_000)}),
    "exponential": (
        GARNET,
        {"learning_rate": Exponential(0.5, 0.05, 900), "epsilon": Exponential(1.0, 0.1, 1_000)},
    ),
    "a temperature that falls": (
        GARNET,
        {"behavior": Boltzmann(Exponential(3.0, 0.1, fraction=0.5)), "learning_rate": PerVisit(0.7)},
    ),
    "float32": (GARNET, {"dtype": "float32", "batch_size": 5}),
    "float32 and replay": (LAKE, {"dtype": "float32", "replay_ratio": 2.0, "learning_rate": PerVisit(0.8)}),
    "a large batch": (GARNET, {"batch_size": 500}),
    "a larger table": (LAKE, {"state_size": 20, "action_size": 6, "dtype": "float32"}),
}
MODES = pytest.mark.parametrize("async_updates", [True, False], ids=["alone", "reproducible"])


def settings_of(name, async_updates):
    env, settings = RUNS[name]
    if not async_updates:
        settings = {"logical_workers": 3, "sync_frequency": 4, **settings}
        settings["batch_size"] = min(settings.get("batch_size", 8), 20)
    return env, {"seed": 11, "async_updates": async_updates, **settings}


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_is_one_that_was_not(name, async_updates, tmp_path, restart, small_slices):
    env, settings = settings_of(name, async_updates)
    straight = DistAsyncQLearning(**settings)
    whole = straight.train(env, total_steps=4_001)
    # The game of this file is compiled anew for each.
    for stop in (2_000,) if env is LOCK else (1, 700, 777, 2_000, 2_950):
        agent = DistAsyncQLearning(**settings)
        with pytest.raises(TrainingStopped) as stopped:
            agent.train(env, total_steps=4_001, checkpoint_dir=tmp_path, **stop_after(stop))
        assert stop <= agent.steps == stopped.value.steps == agent.visits.sum() <= 4_001
        restart()
    agent = DistAsyncQLearning(**settings)
    result = agent.train(env, total_steps=4_001, checkpoint_dir=tmp_path)
    assert same(agent, straight)
    assert told(result) == told(whole)
    assert result.resumed_from


# Checkpoints that this library did not write


EVENT = {"kind": "left", "rank": 1, "seconds": 0.5, "steps_returned": 0, "detail": ""}
BODY = (
    "run",
    "steps",
    "seed",
    "settings",
    "environment",
    "call",
    "mode",
    "stream",
    "tally",
    "finished",
)
WRONG = {
    **{f"no {name}": lambda body, arrays, name=name: body.pop(name) for name in BODY if name != "steps"},
    **{f"{name} a list": put(name, []) for name in BODY if name not in ("steps", "finished")},
    **{f"{name} a number": put(name, 7.5) for name in BODY if name != "steps"},
    **{f"{name} none": put(name, None) for name in BODY if name not in ("steps", "stream")},
    "seed true": put("seed", True),
    "seed negative": put("seed", -1),
    "seed too large": put("seed", 2**63),
    "seed a text": put("seed", "11"),
    "another run": put("run", "00000000"),
    "run no digits": put("run", "../../etc"),
    "settings of nothing": put("settings", {}),
    "environment a number": put("environment", "text", 5),
    "call ends before": put("call", "end", 2),
    "call begins behind": put("call", "begin", 5_000),
    "call begins below 0": put("call", "begin", -1),
    "call begins in a text": put("call", "begin", "0"),
    "a mode that is none": put("mode", "together"),
    "stream elsewhere": put("stream", "used", 5),
    "stream below 0": put("stream", {"start": -500, "used": 1_500}),
    "stream of texts": put("stream", {"start": "0", "used": "992"}),
    "tally of texts": put("tally", "episodes", "12"),
    "tally of a list": put("tally", "returns", [1.0]),
    "tally true": put("tally", "pushes", True),
    "tally beyond numbers": put("tally", "lengths", 10**400),
    "tally without steps": lambda body, arrays: body["tally"].pop("steps"),
    "tally without time": lambda body, arrays: body["tally"].pop("seconds"),
    "tally with a moment of nothing": put("tally", "looked", {}),
    "finished of numbers": put("finished", [1, 2]),
    "finished without result": put("finished", [{"begin": 0, "end": 5}]),
    "finished in texts": put("finished", [{"begin": 0, "end": 5, "result": {"steps": "5"}}]),
    "finished without steps": put("finished", [{"begin": 0, "end": 5, "result": {"episodes": 5}}]),
    "no table": lambda body, arrays: arrays.pop("q_table"),
    "no visits": lambda body, arrays: arrays.pop("visits"),
    "a table of whole numbers": put_array("q_table", lambda array: array.astype(np.int64)),
    "a table of another type": put_array("q_table", lambda array: array.astype(np.float32)),
    "a flat table": put_array("q_table", np.ravel),
    "NaN in the table": put_array("q_table", with_value((3, 1), math.nan)),
    "infinity in the table": put_array("q_table", with_value((3, 1), -math.inf)),
    "visits below 0": put_array("visits", with_value((3, 1), -1)),
    "visits of another shape": put_array("visits", lambda array: array[:-1]),
    "visits in another type": put_array("visits", lambda array: array.astype(np.int32)),
    "exact of another shape": put_array("exact", lambda array: np.zeros(7)),
    "exact of another type": put_array("exact", lambda array: np.zeros(16 * 4, np.float32)),
    "exact NaN": put_array("exact", lambda array: np.full(16 * 4, math.nan)),
    "two learners": put_array("position", lambda array: np.concatenate([array, array])),
    "a learner out of the table": put_array("position", with_value((0, 0), 10_000)),
    "a learner far below": put_array("position", with_value((0, 0), -2)),
    "a learner behind the episode": put_array("position", with_value((0, 1), 100)),
    "a learner of texts": put_array("position", lambda array: array.astype(np.float64)),
    "a return that is none": put_array("running", with_value((0, 0), math.nan)),
    "a replay of nothing": put_array("replay_entries", lambda array: np.zeros((1, 5), np.int64)),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Give a folder in which a run was stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(places, "_agents", {})
        with pytest.raises(TrainingStopped):
            DistAsyncQLearning(seed=11).train(
                LAKE, total_steps=100_000, checkpoint_dir=folder, **stop_after(1)
            )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_what_no_training_has_written_is_refused_by_name(name, stopped, tmp_path, restart):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    edit(newest(tmp_path), WRONG[name])
    before = contents(tmp_path)
    agent = DistAsyncQLearning(seed=11)
    with pytest.raises(CheckpointError, match="checkpoint") as refused:
        agent.train(LAKE, total_steps=100_000, checkpoint_dir=tmp_path)
    assert type(refused.value) is CheckpointError
    assert contents(tmp_path) == before
    # Whatever it has taken up, it can go on elsewhere.
    assert agent.train(LAKE, total_steps=500, checkpoint_dir=tmp_path / "other").steps == 500


# What another version of the package may have written, with the same format version.
BESIDES = {
    "more of the run": put("colour", {"red": 1}),
    "more of the environment": put("environment", "colour", "red"),
    "more of the call": put("call", "colour", "red"),
    "more counters": put("tally", "colour", "red"),
    "more counters since the last report": put("tally", "looked", "__class__", 1),
    "a counter less": lambda body, arrays: body["tally"].pop("most_waiting"),
    "a counter less since the last report": lambda body, arrays: body["tally"]["looked"].pop("pushes"),
    "more of an array": put("arrays", "visits", "colour", "red"),
    "more settings": put("settings", "colour", "red"),
    "more of a finished call": put("finished", 0, "colour", "red"),
    "more of a result": put("finished", 0, "result", "colour", ["red"]),
    "less of a result": put("finished", 0, "result", {"steps": 500}),
    "more of an event": put("finished", 0, "result", "events", [{**EVENT, "colour": "red"}]),
    "an event of a new kind": put("finished", 0, "result", "events", [{**EVENT, "kind": "painted"}]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDES)
def test_what_another_version_says_besides_is_passed_over(name, tmp_path, restart):
    def run():
        restart()
        agent = DistAsyncQLearning(seed=11)
        results = [agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path) for steps in (500, 4_000)]
        return agent, [result.steps for result in results]

    restart()
    agent = DistAsyncQLearning(seed=11)
    agent.train(LAKE, total_steps=500, checkpoint_dir=tmp_path)
    with pytest.raises(TrainingStopped):
        agent.train(LAKE, total_steps=4_000, checkpoint_dir=tmp_path, **stop_after(1))
    shutil.copytree(tmp_path, tmp_path / "as it was")
    expected, made = run()
    shutil.rmtree(tmp_path / "agent-0")
    shutil.move(tmp_path / "as it was" / "agent-0", tmp_path)
    saved = newest(tmp_path)
    assert 500 < saved.body["steps"] < 4_500
    edit(saved, BESIDES[name])
    assert newest(tmp_path).name == saved.name
    if name != "more settings":  # which may mean something, and the agent has no place for
        assert DistAsyncQLearning.load_model(tmp_path).steps == saved.body["steps"]
    agent, again = run()
    assert same(agent, expected) and again == made == [500, 4_000]


def test_of_old_calls_that_ended_early_that_is_kept_which_the_next_need(tmp_path, restart, monkeypatch):
    monkeypatch.setattr(saving, "_KEPT_RESULTS", 2)

    def run(calls):
        restart()
        agent = DistAsyncQLearning(seed=11)
        made = [
            agent.train(LAKE, total_episodes=1, checkpoint_dir=tmp_path, checkpoint_interval="1h").steps
            for _ in range(calls)
        ]
        return agent, made

    first, made = run(5)
    finished = newest(tmp_path).body["finished"]
    assert [call["result"]["steps"] for call in finished] == made and sum(made) == first.steps
    assert [call["result"] for call in finished[:3]] == [{"steps": steps} for steps in made[:3]]
    assert all("episodes" in call["result"] for call in finished[3:])
    again, made_again = run(6)
    assert made_again[:5] == made and again.steps == sum(made_again) > first.steps


def contents(folder):
    """Return all checkpoints in a folder, byte by byte."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.glob("agent-0/f0*/*"))
        if path.is_file()
    }


# Requests to stop at a call's edges


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("steps", [1, 64, 4_001])
def test_a_request_in_the_last_steps_of_a_call_stops_the_script_behind_it(
    steps, async_updates, tmp_path, restart
):
    settings = {"seed": 11, "async_updates": async_updates, "logical_workers": 2, "sync_frequency": 1}
    straight = DistAsyncQLearning(**settings)
    first, second = straight.train(LAKE, total_steps=steps), straight.train(LAKE, total_steps=500)
    agent = DistAsyncQLearning(**settings)
    # The last report of progress comes when all is learned.
    with pytest.raises(TrainingStopped) as stopped:
        agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path, **stop_after(steps))
    assert (stopped.value.code, stopped.value.steps, agent.steps) == (75, steps, steps)
    assert stopped.value.checkpoint == newest(tmp_path).url
    # In the same process, the script would go on with the next call.
    assert told(agent.train(LAKE, total_steps=500)) == told(second)
    assert same(agent, straight)
    restart()
    again = DistAsyncQLearning(**settings)
    assert told(again.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path)) == told(first)
    assert again.steps == steps
    assert told(again.train(LAKE, total_steps=500, checkpoint_dir=tmp_path)) == told(second)
    assert same(again, straight)


@pytest.mark.parametrize("ended", ["callback", "episodes"])
def test_a_call_that_was_ended_says_so_when_it_is_given_again(tmp_path, restart, caplog, ended):
    def train(steps=10_000):
        more = {"callbacks": lambda locals_: False} if ended == "callback" else {"total_episodes": 5}
        agent = DistAsyncQLearning(seed=11)
        return agent, agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path, **more).steps

    _, made = train()
    restart()
    caplog.clear()
    agent, again = train()
    assert made == again < 10_000
    assert f"ended this call of train before, after {made:,} of the 10,000 steps" in caplog.text
    assert "had been made before" not in caplog.text
    assert agent.train(LAKE, total_steps=500, checkpoint_dir=tmp_path).steps == 500
    restart()
    caplog.clear()
    agent = DistAsyncQLearning(seed=11)  # with another number of steps it goes on in the same call
    assert agent.train(LAKE, total_steps=12_000, checkpoint_dir=tmp_path).steps == 12_000
    assert agent.steps == 12_000 and "nothing to do" not in caplog.text


def test_a_call_that_was_made_before_says_whose_table_the_agent_holds(tmp_path, restart, caplog):
    def script(calls):
        agent, made, fitting = DistAsyncQLearning(seed=11), 0, []
        for steps in calls:
            made += agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path).steps
            fitting.append(agent.steps == made)
        return fitting

    assert script([100, 200, 300]) == [True, True, True] and not caplog.records
    restart()
    assert script([100, 200, 300, 400]) == [False, False, True, True]
    texts = [text for text in caplog.messages if "nothing to do." in text]
    held = " The agent holds the table of step 600 already, not that of step {}, where this call ended"
    assert [held.format(step) in text for text, step in zip(texts, (100, 300, 600), strict=True)] == [
        True,
        True,
        False,
    ]
    assert texts[2].endswith("(600 in all): nothing to do.")


def test_a_request_in_a_call_that_was_made_before_is_answered_by_the_next(tmp_path, restart, caplog):
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=100, checkpoint_dir=tmp_path)
    restart()

    class Stopping(logging.Handler):
        def emit(self, record):
            if "had been made before" in record.getMessage():
                os.kill(os.getpid(), signal.SIGTERM)

    handler = Stopping()
    session.logger.addHandler(handler)
    agent = DistAsyncQLearning(seed=11)
    try:
        assert agent.train(LAKE, total_steps=100, checkpoint_dir=tmp_path).steps == 100
    finally:
        session.logger.removeHandler(handler)
    with pytest.raises(TrainingStopped, match="SIGTERM"):
        agent.train(LAKE, total_steps=10_000_000, checkpoint_dir=tmp_path)
    assert 100 <= agent.steps < 10_000_000
    # Answered once, and no more.
    assert agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path).steps == 1_000


def test_ctrl_c_leaves_a_checkpoint_and_code_130(tmp_path):
    agent = DistAsyncQLearning(seed=11)
    with pytest.raises(KeyboardInterrupt) as stopped:
        agent.train(LAKE, total_steps=10**9, checkpoint_dir=tmp_path, **stop_after(1, signal.SIGINT))
    assert isinstance(stopped.value, TrainingInterrupted) and stopped.value.code == 130
    assert stopped.value.checkpoint == newest(tmp_path).url
    assert newest(tmp_path).body["steps"] == agent.steps == agent.visits.sum()


def test_a_time_limit_stops_in_time_and_the_next_run_goes_on(tmp_path, restart):
    for _ in range(3):
        agent = DistAsyncQLearning(seed=11)
        before = 0 if newest(tmp_path) is None else newest(tmp_path).body["steps"]
        begin = time.monotonic()
        with pytest.raises(TrainingStopped, match="time limit of 0.3 s"):
            agent.train(LAKE, total_steps=10**12, checkpoint_dir=tmp_path, time_limit=0.3)
        assert time.monotonic() - begin < 120.0
        assert before < agent.steps == newest(tmp_path).body["steps"] < 10**12
        restart()


# What was asked for, over several calls


CALLS = [300, 1, 0, 450, 32, 700, 1_200, 64, 900, 333]


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("stop_at", [0, 500, 1_170])
def test_ten_calls_of_which_the_seventh_was_stopped(
    stop_at, async_updates, tmp_path, restart, small_slices, caplog
):
    settings = {
        "seed": 11,
        "async_updates": async_updates,
        "logical_workers": 2,
        "sync_frequency": 2,
        "batch_size": 5,
        "replay_ratio": 0.5,
        "learning_rate": PerVisit(0.7),
        "epsilon": Linear(0.9, 0.1, 2_000),
    }
    straight = DistAsyncQLearning(**settings)
    results = [straight.train(LAKE, total_steps=steps) for steps in CALLS]
    agent = DistAsyncQLearning(**settings)
    for steps, result in zip(CALLS[:6], results[:6], strict=True):
        assert told(agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path)) == told(result)
    with pytest.raises(TrainingStopped):
        agent.train(LAKE, total_steps=CALLS[6], checkpoint_dir=tmp_path, **stop_after(stop_at))
    stopped_at = agent.steps
    assert stopped_at >= sum(CALLS[:6]) + stop_at
    restart()
    again = DistAsyncQLearning(**settings)
    for number, (steps, result) in enumerate(zip(CALLS, results, strict=True)):
        caplog.clear()
        got = again.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path)
        assert told(got) == told(result)
        assert again.steps == max(sum(CALLS[: number + 1]), stopped_at if steps or number > 0 else 0)
        assert ("had been made before" in caplog.text) == (number < 6 and steps > 0)
        # From the call on that went on, it is as without a checkpoint.
        assert (got.resumed_from is None) == (number > 6 or steps == 0)
    assert same(again, straight)
    assert again.visits.sum() == again.steps == sum(CALLS)
    restart()
    third = DistAsyncQLearning(**settings)
    before = contents(tmp_path)
    assert [told(third.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path)) for steps in CALLS] == [
        told(result) for result in results
    ]
    assert same(third, straight)
    assert contents(tmp_path) == before


def test_rates_that_a_script_sets_by_what_they_are_are_set_alike_when_it_is_started_again(
    tmp_path, restart, small_slices
):
    def run(folder, **stop):
        agent = DistAsyncQLearning(
            seed=11, epsilon=Linear(0.9, 0.1, 2_000), learning_rate=Linear(0.5, 0.1, 2_000)
        )
        for steps in (300, 500, 1_000):
            agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path / folder, **stop)
            agent.epsilon *= 0.9
            agent.learning_rate *= 0.9
        restart()
        return agent

    straight = run("straight")
    with pytest.raises(TrainingStopped):
        run("stopped", **stop_after(600))
    restart()
    again = run("stopped")
    assert (again.epsilon, again.learning_rate) == (straight.epsilon, straight.learning_rate)
    assert same(again, straight)


@pytest.mark.parametrize("calls", [[4_000], [100, 3_900], [2_100, 1_000, 900], [4_000, 500], [2_500]])
def test_calls_with_other_boundaries_make_as_many_steps_as_they_ask_for(
    calls, tmp_path, restart, small_slices
):
    agent = DistAsyncQLearning(seed=11)
    agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path)
    with pytest.raises(TrainingStopped):
        agent.train(LAKE, total_steps=3_000, checkpoint_dir=tmp_path, **stop_after(1_200))
    stopped_at = agent.steps
    assert 2_200 <= stopped_at < 2_500
    restart()
    agent, asked = DistAsyncQLearning(seed=11), 0
    for steps in calls:
        result = agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path)
        asked += steps
        assert result.steps == steps
        assert agent.steps == agent.visits.sum() == max(asked, stopped_at)
        # Of a call that began elsewhere only what is made from here on is known: no earlier episode counts.
        lengths = result.episodes * result.mean_length if result.episodes else 0.0
        assert lengths <= min(steps, max(asked - stopped_at, 0)) + LAKE.max_episode_steps


def test_the_result_of_a_call_that_is_no_longer_known(tmp_path, restart):
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path)
    restart()
    agent = DistAsyncQLearning(seed=11)
    first = agent.train(LAKE, total_steps=400, checkpoint_dir=tmp_path)
    assert (first.steps, first.episodes, first.resumed_from) == (400, 0, newest(tmp_path).url)
    assert math.isnan(first.mean_return) and math.isnan(first.mean_length)
    assert agent.train(LAKE, total_steps=600, checkpoint_dir=tmp_path).steps == 600
    assert agent.steps == 1_000


def check_stopped_in_some_calls(calls, stopped_in, restart, **settings):
    """Make `calls`, stopped in one after the other and started again, and compare with one process."""
    straight = DistAsyncQLearning(**settings)
    results = [told(straight.train(LAKE, total_steps=steps)) for steps, _ in calls]
    for last in (*stopped_in, None):
        agent = DistAsyncQLearning(**settings)
        for number, (steps, options) in enumerate(calls):
            if number == last:
                with pytest.raises(TrainingStopped):
                    agent.train(LAKE, total_steps=steps, **options, **stop_after(steps // 2))
                break
            result = agent.train(LAKE, total_steps=steps, **options)
            assert told(result) == results[number]
        restart()
    assert same(agent, straight)


@pytest.mark.slow
@MODES
def test_calls_that_are_not_saved_in_between(async_updates, tmp_path, restart, small_slices):
    settings = {"seed": 11, "async_updates": async_updates, "logical_workers": 2, "sync_frequency": 1}
    calls = [(500, {"checkpoint_dir": tmp_path}), (700, {}), (2_000, {"checkpoint_dir": tmp_path}), (300, {})]
    check_stopped_in_some_calls(calls, (0, 2), restart, **settings)


def test_a_process_that_ends_in_a_call_that_is_not_saved(tmp_path, restart):
    straight = DistAsyncQLearning(seed=11)
    results = [told(straight.train(LAKE, total_steps=steps)) for steps in (500, 700, 900)]
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=500, checkpoint_dir=tmp_path)
    restart()
    agent = DistAsyncQLearning(seed=11)
    got = [
        agent.train(LAKE, total_steps=500, checkpoint_dir=tmp_path),
        agent.train(LAKE, total_steps=700),
        agent.train(LAKE, total_steps=900, checkpoint_dir=tmp_path),
    ]
    assert [told(result) for result in got] == results
    assert same(agent, straight)


def test_after_an_error_of_a_callback_it_goes_on_as_if_it_had_not_been(tmp_path, restart, small_slices):
    def fail(progress):
        if progress.steps >= 6000:
            raise ZeroDivisionError

    truth = DistAsyncQLearning(seed=5)
    truth.train(LAKE, total_steps=10_000)
    restart()
    with pytest.raises(ZeroDivisionError):
        DistAsyncQLearning(seed=5).train(LAKE, total_steps=10_000, checkpoint_dir=tmp_path, progress=fail)
    restart()
    again = DistAsyncQLearning(seed=5)
    assert again.train(LAKE, total_steps=10_000, checkpoint_dir=tmp_path).resumed_from is not None
    np.testing.assert_array_equal(again.q_table, truth.q_table)


def test_two_folders_in_turn(tmp_path, restart, small_slices):
    one, other = {"checkpoint_dir": tmp_path / "one"}, {"checkpoint_dir": tmp_path / "other"}
    calls = [(500, one), (700, other), (2_000, one), (300, other)]
    check_stopped_in_some_calls(calls, (0, 1, 2, 3), restart, seed=11)


@MODES
def test_a_model_that_was_loaded_goes_on_from_its_own_steps(async_updates, tmp_path, restart, small_slices):
    settings = {"seed": 11, "async_updates": async_updates, "logical_workers": 2, "sync_frequency": 2}
    first = DistAsyncQLearning(**settings)
    first.train(LAKE, total_steps=777)
    model, folder = first.save_model(tmp_path / "model"), tmp_path / "checkpoints"
    straight = DistAsyncQLearning.load_model(model)
    whole = straight.train(LAKE, total_steps=3_000)
    for stop in (1, 2_000):
        agent = DistAsyncQLearning.load_model(model)
        with pytest.raises(TrainingStopped):
            agent.train(LAKE, total_steps=3_000, checkpoint_dir=folder, **stop_after(stop))
        assert 777 + stop <= agent.steps < 3_777
        restart()
    agent = DistAsyncQLearning.load_model(model)
    assert told(agent.train(LAKE, total_steps=3_000, checkpoint_dir=folder)) == told(whole)
    assert same(agent, straight)


def test_a_call_of_no_steps_touches_no_folder(tmp_path):
    agent = DistAsyncQLearning(seed=11)
    assert agent.train(LAKE, total_steps=0, checkpoint_dir=tmp_path / "none").steps == 0
    assert not (tmp_path / "none").exists()
    assert agent.train(LAKE, total_steps=100, checkpoint_dir=tmp_path / "some").steps == 100
    assert newest(tmp_path / "some").body["steps"] == 100


@MODES
def test_training_again_in_the_process_that_was_stopped(async_updates, tmp_path, restart, small_slices):
    settings = {"seed": 11, "async_updates": async_updates, "logical_workers": 2, "sync_frequency": 1}
    agent, asked = DistAsyncQLearning(**settings), 0
    for steps in (1_000, 2_000, 500):
        with pytest.raises(TrainingStopped) as stopped:
            agent.train(LAKE, total_steps=steps, checkpoint_dir=tmp_path, **stop_after(steps // 3))
        made = agent.steps
        assert asked + steps // 3 <= made == stopped.value.steps == agent.visits.sum() < asked + steps
        result = agent.train(LAKE, total_steps=asked + steps - made, checkpoint_dir=tmp_path)
        assert result.steps == asked + steps - made
        assert result.resumed_from is None
        asked += steps
        assert agent.steps == agent.visits.sum() == asked
    restart()
    again = DistAsyncQLearning(**settings)
    assert again.train(LAKE, total_steps=3_500, checkpoint_dir=tmp_path).steps == 3_500
    assert same(again, agent)


def test_training_again_after_an_exception(tmp_path, restart, small_slices):
    class Broken(Exception):
        pass

    def break_at(steps):
        def report(progress):
            if progress.steps >= steps:
                raise Broken

        return {"progress": report, "progress_interval": 0}

    agent = DistAsyncQLearning(seed=11)
    with pytest.raises(Broken):
        agent.train(LAKE, total_steps=2_000, checkpoint_dir=tmp_path, **break_at(700))
    made = agent.steps
    assert 700 <= made == agent.visits.sum() < 2_000
    saved = newest(tmp_path)
    assert saved.body["steps"] == made
    assert saved.arrays["visits"].tobytes() == agent.visits.tobytes()
    assert saved.arrays["q_table"].tobytes() == agent.q_table.tobytes()
    assert agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path).steps == 1_000
    assert agent.steps == agent.visits.sum() == made + 1_000
    with pytest.raises(Broken):
        agent.train(LAKE, total_steps=5_000, checkpoint_dir=tmp_path, **break_at(50))
    made = agent.steps
    restart()
    again = DistAsyncQLearning(seed=11)
    result = again.train(LAKE, total_steps=8_000, checkpoint_dir=tmp_path)
    assert (result.steps, again.steps, again.visits.sum()) == (8_000, 8_000, 8_000)
    assert result.resumed_from.split("step")[1].startswith(f"{made:015d}")


def test_each_agent_has_a_folder_of_its_own(tmp_path, restart, small_slices):
    def script(stop_in):
        agents = []
        for number, (env, steps) in enumerate([(LAKE, 1_000), (GARNET, 2_000), (LAKE, 500)]):
            agents.append(DistAsyncQLearning(seed=number))
            options = stop_after(steps // 2) if number == stop_in else {}
            agents[-1].train(env, total_steps=steps, checkpoint_dir=tmp_path, **options)
        for agent in agents[::-1]:
            agent.train(GARNET if agent is agents[1] else LAKE, total_steps=300, checkpoint_dir=tmp_path)
        return agents

    for stop_in in (0, 1, 2):
        with pytest.raises(TrainingStopped):
            script(stop_in)
        restart()
    agents = script(None)
    assert sorted(os.listdir(tmp_path)) == ["agent-0", "agent-1", "agent-2"]
    for number, (env, steps) in enumerate([(LAKE, 1_000), (GARNET, 2_000), (LAKE, 500)]):
        straight = DistAsyncQLearning(seed=number)
        straight.train(env, total_steps=steps)
        straight.train(env, total_steps=300)
        assert same(agents[number], straight)
        assert newest(tmp_path, f"agent-{number}").body["steps"] == steps + 300


# What does not fit


LARGER = TabularMDP.garnet(40, 6, 3, seed=3, max_episode_steps=60)
ANOTHER = TabularMDP.garnet(25, 4, 3, seed=4, max_episode_steps=60)
OTHERS = {
    "environment": (ANOTHER, {}, ["environment: ", GARNET.fingerprint()[:12], ANOTHER.fingerprint()[:12]]),
    "table": (GARNET, {"state_size": 30, "action_size": 5}, ["(25, 4)", "(30, 5)"]),
    "environment and table": (LARGER, {}, ["environment", "(25, 4)", "(40, 6)"]),
    "dtype": (GARNET, {"dtype": "float32"}, ["'float64' there", "'float32' here"]),
    "discount_factor": (GARNET, {"discount_factor": 0.5}, ["0.99 there", "0.5 here"]),
    "seed": (GARNET, {"seed": 12}, ["11 there", "12 here"]),
    "async_updates": (GARNET, {"async_updates": False}, ["True there", "False here"]),
}


@pytest.fixture
def garnet_folder(tmp_path, restart):
    """Give a folder in which a run of 4096 steps in GARNET was stopped, and its agent."""
    folder, agent = tmp_path / "garnet", DistAsyncQLearning(seed=11)
    with pytest.raises(TrainingStopped):
        agent.train(GARNET, total_steps=200 * 4_096, checkpoint_dir=folder, **stop_after(1))
    restart()
    return folder, agent


def everything(folder):
    """Return all files below a folder, byte by byte."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_something_else_is_refused_and_left_alone(name, garnet_folder, tmp_path):
    folder, _ = garnet_folder
    env, settings, words = OTHERS[name]
    before = everything(folder)
    agent = DistAsyncQLearning(**{"seed": 11, **settings})
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError) as refused:
            agent.train(env, total_steps=100_000, checkpoint_dir=folder)
        assert all(word in str(refused.value) for word in (*words, "strict=False", "checkpoint_dir"))
        assert is_new(agent)
        assert everything(folder) == before
    straight = DistAsyncQLearning(**{"seed": 11, **settings})
    straight.train(env, total_steps=2_000)
    result = agent.train(env, total_steps=2_000, checkpoint_dir=tmp_path / "other")
    assert result.resumed_from is None
    assert same(agent, straight)


@pytest.mark.parametrize(
    "change",
    [{"logical_workers": 3}, {"sync_frequency": 5}, {"batch_size": 4}, {"replay_ratio": 1.0}],
)
def test_what_rounds_depend_on_is_the_same_in_the_reproducible_mode(change, tmp_path, restart):
    settings = {"seed": 11, "async_updates": False, "logical_workers": 2, "batch_size": 8}
    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(**settings).train(
            LAKE, total_steps=100_000, checkpoint_dir=tmp_path, **stop_after(1)
        )
    restart()
    (name,) = change
    with pytest.raises(CheckpointMismatchError, match=f"{name}: .* there, {change[name]} here"):
        DistAsyncQLearning(**{**settings, **change}).train(LAKE, total_steps=100_000, checkpoint_dir=tmp_path)


def test_auto_is_a_core_in_the_reproducible_mode_wherever_a_checkpoint_comes_from(tmp_path, restart):
    settings = {"seed": 11, "async_updates": False, "logical_workers": 2}
    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(**settings).train(
            LAKE, total_steps=100_000, checkpoint_dir=tmp_path, **stop_after(1)
        )
    restart()
    agent, straight = DistAsyncQLearning(**settings, device="auto"), DistAsyncQLearning(**settings)
    assert agent.train(LAKE, total_steps=100_000, checkpoint_dir=tmp_path).resumed_from is not None
    straight.train(LAKE, total_steps=100_000)
    assert same(agent, straight)


FREE = {
    "learning_rate": PerVisit(0.6),
    "epsilon": Linear(0.5, 0.0, 10_000),
    "batch_size": 5,
    "sync_frequency": 3,
    "logical_workers": 3,
    "replay_ratio": 2.0,
    "buffer_size": 77,
    "compression_threshold": 0.1,
    "compression": "lossless",
    "prefetch_factor": 5,
    "n_envs": 3,
    "timeout": 55.0,
    "use_action_mask": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("had", [{}, {"replay_ratio": 0.5}])
@pytest.mark.parametrize("name", FREE)
def test_other_settings_may_change_from_run_to_run(name, had, tmp_path, restart):
    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(seed=11, **had).train(
            LAKE, total_steps=100_000, checkpoint_dir=tmp_path, **stop_after(1)
        )
    restart()
    agent = DistAsyncQLearning(**{"seed": 11, **had, name: FREE[name]})
    result = agent.train(LAKE, total_steps=100_000, checkpoint_dir=tmp_path)
    assert result.steps == agent.visits.sum() == 100_000
    assert result.resumed_from is not None
    assert newest(tmp_path).body["settings"] == json.loads(json.dumps(agent.settings.to_dict()))


@pytest.mark.slow
def test_the_reproducible_mode_may_change_its_replay_memory(tmp_path, restart, caplog):
    settings = {"seed": 11, "async_updates": False, "replay_ratio": 1.0}
    with pytest.raises(TrainingStopped):
        DistAsyncQLearning(**settings).train(
            LAKE, total_steps=100_000, checkpoint_dir=tmp_path, **stop_after(1)
        )
    restart()
    agent = DistAsyncQLearning(**settings, buffer_size=77)
    assert agent.train(LAKE, total_steps=100_000, checkpoint_dir=tmp_path).steps == 100_000
    assert "buffer_size (from 10000 to 77)" in caplog.text


def test_a_seed_that_nobody_gave_comes_from_the_checkpoint(tmp_path, restart, small_slices):
    first = DistAsyncQLearning()
    with pytest.raises(TrainingStopped):
        first.train(LAKE, total_steps=3_000, checkpoint_dir=tmp_path, **stop_after(1_000))
    straight = DistAsyncQLearning(seed=newest(tmp_path).body["seed"])
    straight.train(LAKE, total_steps=3_000)
    restart()
    again = DistAsyncQLearning()
    again.train(LAKE, total_steps=3_000, checkpoint_dir=tmp_path)
    assert same(again, straight)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_not_strict_what_fits_is_taken_over(name, garnet_folder, restart, caplog):
    folder, first = garnet_folder
    env, settings, words = OTHERS[name]
    before, options = contents(folder), {"checkpoint_dir": folder, "keep_last": 1}
    agent = DistAsyncQLearning(**{"seed": 11, **settings})
    # Stopped at once: what was taken over is still to be seen.
    with pytest.raises(CheckpointMismatchError):
        agent.train(env, total_steps=4_096, checkpoint_dir=folder)
    result = agent.train(env, total_steps=4_096, **options, strict=False)
    assert (result.steps, agent.steps) == (4_096, 4_096)
    assert all(word in caplog.text for word in (*words, "Taking over what fits"))
    rows, columns = first.q_table.shape
    assert np.array_equal(agent.q_table[:rows, :columns], first.q_table.astype(agent.q_table.dtype))
    assert np.array_equal(agent.visits[:rows, :columns], first.visits)
    assert not agent.q_table[rows:].any() and not agent.visits[:, columns:].any()
    agent.train(env, total_steps=1_000, **options, strict=False)
    assert agent.steps == agent.visits.sum() == 5_096
    # What is of something else stays, and the next process goes on from its own without being told to.
    assert before.items() <= contents(folder).items()
    restart()
    again = DistAsyncQLearning(**{"seed": 11, **settings})
    again.train(env, total_steps=5_096, **options)
    assert same(again, agent)


@pytest.mark.slow
def test_not_strict_a_smaller_table_takes_its_corner(tmp_path, restart):
    first = DistAsyncQLearning(seed=11)
    first.train(LARGER, total_steps=20_000, checkpoint_dir=tmp_path)
    restart()
    agent = DistAsyncQLearning(seed=11)
    agent.train(GARNET, total_steps=20_000, checkpoint_dir=tmp_path, strict=False)
    assert agent.q_table.shape == (25, 4)
    assert np.array_equal(agent.q_table, first.q_table[:25, :4])
    assert np.array_equal(agent.visits, first.visits[:25, :4])


def test_not_strict_values_that_a_smaller_type_cannot_hold_are_refused(stopped, tmp_path, restart):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    edit(newest(tmp_path), put_array("q_table", with_value((0, 0), 1e300)))
    agent = DistAsyncQLearning(seed=11, dtype="float32")
    with pytest.raises(CheckpointError, match="too large for a table of float32"):
        agent.train(LAKE, total_steps=10_000, checkpoint_dir=tmp_path, strict=False)
    assert is_new(agent)


def test_an_agent_that_is_further_than_the_checkpoint(tmp_path, restart):
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path)
    restart()
    agent = DistAsyncQLearning(seed=11)
    agent.train(LAKE, total_steps=2_000)
    before = everything(tmp_path)
    with pytest.raises(CheckpointMismatchError, match="has 1000 steps, and this agent has made 2000"):
        agent.train(LAKE, total_steps=500, checkpoint_dir=tmp_path)
    assert everything(tmp_path) == before
    assert agent.train(LAKE, total_steps=500, checkpoint_dir=tmp_path, resume="never").steps == 500
    assert agent.steps == agent.visits.sum() == newest(tmp_path).body["steps"] == 2_500


# Whether to go on


@pytest.mark.parametrize("resume", ["must", True])
def test_a_checkpoint_that_must_be_there(resume, tmp_path, restart):
    agent = DistAsyncQLearning(seed=11)
    with pytest.raises(CheckpointError, match='no checkpoint in .*agent-0.*resume="must"'):
        agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path / "runs", resume=resume)
    assert not (tmp_path / "runs").exists()
    agent.train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path / "runs")
    restart()
    agent = DistAsyncQLearning(seed=11)
    result = agent.train(LAKE, total_steps=3_000, checkpoint_dir=tmp_path / "runs", resume=resume)
    assert result.resumed_from.split("-step")[1].startswith(f"{1_000:015d}")
    # Later calls of the same agent have nothing to take up.
    assert agent.train(LAKE, total_steps=10, checkpoint_dir=tmp_path / "runs", resume=resume).steps == 10


@pytest.mark.parametrize("resume", ["never", False])
def test_a_run_that_begins_afresh_leaves_the_others_alone(resume, tmp_path, restart):
    options = {"total_steps": 2_000, "checkpoint_dir": tmp_path, "checkpoint_interval": 1, "keep_last": 1}
    DistAsyncQLearning(seed=11).train(LAKE, **options)
    older = contents(tmp_path)
    for run in range(2):
        restart()
        agent = DistAsyncQLearning(seed=20 + run)
        assert agent.train(LAKE, **options, resume=resume).resumed_from is None
        straight = DistAsyncQLearning(seed=20 + run)
        straight.train(LAKE, total_steps=2_000)
        assert same(agent, straight)
        assert older.items() <= contents(tmp_path).items()
        older = contents(tmp_path)
    assert len({path.parent.name[-8:] for path in older}) == 3
    restart()
    last = DistAsyncQLearning(seed=21)
    assert last.train(LAKE, **options).resumed_from is not None
    assert same(last, agent)


def test_a_job_that_is_queued_again_does_not_begin_anew_each_time(tmp_path, restart, monkeypatch):
    options = {"total_steps": 2_000, "checkpoint_dir": tmp_path, "resume": "never"}
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    DistAsyncQLearning(seed=11).train(LAKE, **options)  # nothing is thrown away by that
    restart()
    with pytest.raises(CheckpointError, match='RESTART_COUNT is 1.*resume="never".*agent-0 .*2000 steps'):
        DistAsyncQLearning(seed=11).train(LAKE, **options)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert DistAsyncQLearning(seed=11).train(LAKE, **options).steps == 2_000


def damage(name, saved):
    """Damage a checkpoint in one of several ways."""
    folder = Path(saved.url)
    if name == "a table cut short":
        (folder / "q_table.npy").write_bytes((folder / "q_table.npy").read_bytes()[:-1])
    elif name == "visits flipped":
        data = bytearray((folder / "visits.npy").read_bytes())
        data[-3] ^= 16
        (folder / "visits.npy").write_bytes(data)
    elif name == "no manifest left":
        (folder / "manifest.json").write_bytes(b"")
    elif name == "a file missing":
        (folder / "position.npy" if (folder / "position.npy").exists() else folder / "visits.npy").unlink()


DAMAGES = ["a table cut short", "visits flipped", "no manifest left", "a file missing"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    name, tmp_path, restart, small_slices, caplog
):
    straight = DistAsyncQLearning(seed=11)
    straight.train(LAKE, total_steps=4_000)
    for stop in (1_000, 2_000):
        with pytest.raises(TrainingStopped):
            DistAsyncQLearning(seed=11).train(
                LAKE, total_steps=4_000, checkpoint_dir=tmp_path, **stop_after(stop)
            )
        restart()
    older = CheckpointFolder(tmp_path, "agent-0").names()[1]
    broken = newest(tmp_path)
    damage(name, broken)
    agent = DistAsyncQLearning(seed=11)
    result = agent.train(LAKE, total_steps=4_000, checkpoint_dir=tmp_path)
    assert result.resumed_from.endswith(older)
    warnings = [record.getMessage() for record in caplog.records if broken.name in record.getMessage()]
    assert any("no usable checkpoint" in text and f"Using {older} instead" in text for text in warnings)
    assert same(agent, straight)


@pytest.mark.parametrize("name", DAMAGES)
def test_where_all_are_damaged_nobody_begins_afresh_unasked(name, tmp_path, restart, small_slices):
    for stop in (1_000, 2_000):
        with pytest.raises(TrainingStopped):
            DistAsyncQLearning(seed=11).train(
                LAKE, total_steps=4_000, checkpoint_dir=tmp_path, **stop_after(stop)
            )
        restart()
    folder = CheckpointFolder(tmp_path, "agent-0")
    for saved in [folder.read(each) for each in folder.names()]:
        damage(name, saved)
    before = everything(tmp_path)
    agent = DistAsyncQLearning(seed=11)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no usable checkpoint in"):
            agent.train(LAKE, total_steps=4_000, checkpoint_dir=tmp_path)
        assert everything(tmp_path) == before
    assert agent.train(LAKE, total_steps=4_000, checkpoint_dir=tmp_path, resume="never").steps == 4_000
    assert before.items() - everything(tmp_path).items() == {
        item for item in before.items() if "fence" in item[0].name
    }


# The folder


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    agent = DistAsyncQLearning(seed=11)
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match="file"):
            agent.train(LAKE, total_steps=1_000, checkpoint_dir=folder)
        assert agent.steps == 0
    assert (tmp_path / "file").read_text() == "not a folder"
    assert agent.train(LAKE, total_steps=1_000).steps == 1_000


@pytest.fixture
def foreign(tmp_path_factory):
    """Give a folder that everybody can enter, and a function that makes this process somebody else's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    yield folder, lambda: os.seteuid(65534) if is_root else None
    if is_root:
        os.seteuid(0)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(folder)


def test_a_folder_that_may_be_read_but_not_written_to(foreign, restart):
    folder, become_another = foreign
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=1_000, checkpoint_dir=folder / "runs")
    restart()
    for path in [folder / "runs", *(folder / "runs").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = everything(folder)
    become_another()
    agent = DistAsyncQLearning(seed=11)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="cannot be written to .*runs/agent-0: Permission denied"):
            agent.train(LAKE, total_steps=90_000, checkpoint_dir=folder / "runs")
        assert is_new(agent)
    # What was all made needs nothing written, and so is no reason to refuse.
    assert agent.train(LAKE, total_steps=1_000, checkpoint_dir=folder / "runs").steps == 1_000
    assert agent.steps == agent.visits.sum() == 1_000
    assert everything(folder) == before


@pytest.mark.parametrize("mode", [0o000, 0o600])
def test_a_folder_that_may_not_be_read(mode, foreign, restart):
    folder, become_another = foreign
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=1_000, checkpoint_dir=folder / "runs")
    restart()
    (folder / "runs").chmod(mode)
    become_another()
    agent = DistAsyncQLearning(seed=11)
    with pytest.raises(CheckpointError, match="runs/agent-0 .*Permission denied"):
        agent.train(LAKE, total_steps=90_000, checkpoint_dir=folder / "runs")
    assert is_new(agent)
    with pytest.raises(CheckpointError, match="cannot be written to .*none/agent-0: Permission denied"):
        agent.train(LAKE, total_steps=90_000, checkpoint_dir=folder / "none")
    assert agent.train(LAKE, total_steps=500).steps == 500


# Arguments


BAD_ARGUMENTS = [
    ("checkpoint_dir", 5),
    ("checkpoint_dir", ""),
    ("checkpoint_interval", 0),
    ("checkpoint_interval", "soon"),
    ("keep_last", 0),
    ("keep_every", -1),
    ("resume", "maybe"),
    ("strict", "no"),
    ("time_limit", 0),
    ("stop_signals", ["SIGKILL"]),
    ("checkpoint_mode", 0o400),
]


@pytest.mark.parametrize(("name", "value"), BAD_ARGUMENTS)
def test_a_wrong_argument_is_refused_before_anything_happens(name, value, tmp_path):
    agent = DistAsyncQLearning(seed=11)
    options = {"checkpoint_dir": tmp_path / "runs", name: value}
    with pytest.raises(SettingsError, match=name):
        agent.train(LAKE, total_steps=1_000, **options)
    assert agent.steps == 0 and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_interval", 5),
        ("keep_last", 4),
        ("keep_every", 10),
        ("resume", "must"),
        ("strict", False),
        ("time_limit", 100),
        ("stop_signals", ["SIGUSR1"]),
        ("checkpoint_mode", 0o644),
    ],
)
def test_an_argument_that_would_be_ignored_is_refused(name, value):
    with pytest.raises(SettingsError, match=f"{name} would be ignored.*checkpoint_dir"):
        DistAsyncQLearning(seed=11).train(LAKE, total_steps=1_000, **{name: value})


# When, how many, and what is in them


def sequences(folder):
    """Return the checkpoints' sequence numbers, oldest first."""
    return sorted(int(name.split("-")[1][1:]) for name in CheckpointFolder(folder, "agent-0").names())


def steps_saved(folder):
    """Return the checkpoints' steps, oldest first."""
    return sorted(int(name.split("-step")[1][:15]) for name in CheckpointFolder(folder, "agent-0").names())


def waiting_for_the_writer(agent):
    """Return arguments of `train` with which each report waits for the writer, so no checkpoint is late."""

    def report(progress):
        for place in state_of(agent).places:
            assert place.writer.wait(30.0)

    return {"progress": report, "progress_interval": 0}


@MODES
def test_checkpoints_by_steps(async_updates, tmp_path, small_slices):
    agent = DistAsyncQLearning(
        seed=11, async_updates=async_updates, logical_workers=2, sync_frequency=1, batch_size=10
    )
    options = {"checkpoint_dir": tmp_path, "checkpoint_interval": 500, "keep_last": 1_000}
    agent.train(LAKE, total_steps=3_010, **options, **waiting_for_the_writer(agent))
    assert steps_saved(tmp_path) == [500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_010]
    for name in CheckpointFolder(tmp_path, "agent-0").names():
        saved = CheckpointFolder(tmp_path, "agent-0").read(name)
        assert saved.arrays["visits"].sum() == saved.body["steps"]


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("slow", [False, True])
def test_checkpoints_by_time(slow, async_updates, tmp_path, monkeypatch):
    if slow:  # the next one never begins before the last one is on disk
        write = CheckpointFolder.write
        monkeypatch.setattr(
            CheckpointFolder, "write", lambda *arguments: (time.sleep(0.4), write(*arguments))[1]
        )
    agent = DistAsyncQLearning(seed=11, async_updates=async_updates)
    begin = time.monotonic()

    sent = []

    def report(progress):
        if len(steps_saved(tmp_path)) >= 3 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGUSR1))
        assert time.monotonic() - begin < 100.0

    with pytest.raises(TrainingStopped):
        agent.train(
            LAKE,
            total_steps=10**12,
            checkpoint_dir=tmp_path,
            checkpoint_interval="20ms",
            keep_last=1_000,
            progress=report,
            progress_interval=0.05,
            stop_signals=["SIGUSR1"],
        )
    saved = steps_saved(tmp_path)
    assert len(saved) >= 4 and len(set(saved[:-1])) == len(saved) - 1
    assert saved[-1] == agent.steps


@pytest.mark.slow
def test_how_many_are_kept_may_change_from_call_to_call(tmp_path, small_slices):
    agent = DistAsyncQLearning(seed=11, batch_size=10)

    def train(**options):
        agent.train(
            LAKE,
            total_steps=1_000,
            checkpoint_dir=tmp_path,
            checkpoint_interval=100,
            **waiting_for_the_writer(agent),
            **options,
        )
        return sequences(tmp_path)

    # Each call writes nine by interval, and one at its end.
    assert train(keep_last=4) == [7, 8, 9, 10]
    assert train(keep_last=2) == [19, 20]
    assert train(keep_last=1, keep_every=3) == [21, 24, 27, 30]
    assert train(keep_last=6) == [35, 36, 37, 38, 39, 40]


def test_permissions_may_change_from_call_to_call(tmp_path):
    agent = DistAsyncQLearning(seed=11)
    agent.train(LAKE, total_steps=100, checkpoint_dir=tmp_path)
    assert {path.stat().st_mode & 0o777 for path in Path(newest(tmp_path).url).iterdir()} == {0o600}
    assert (tmp_path / "agent-0").stat().st_mode & 0o777 == 0o700
    agent.train(LAKE, total_steps=100, checkpoint_dir=tmp_path, checkpoint_mode=0o640)
    assert {path.stat().st_mode & 0o777 for path in Path(newest(tmp_path).url).iterdir()} == {0o640}


@pytest.mark.slow
def test_legal_actions_are_saved_where_they_are_known(tmp_path):
    DistAsyncQLearning(seed=11).train(TicTacToeEnv, total_steps=100, checkpoint_dir=tmp_path / "game")
    assert np.array_equal(newest(tmp_path / "game").arrays["legal"], rules().legal)
    DistAsyncQLearning(seed=11).train(SteppedLake, total_steps=100, checkpoint_dir=tmp_path / "stepped")
    assert "legal" not in newest(tmp_path / "stepped").arrays


def test_a_table_larger_than_the_environment_comes_back_whole(tmp_path, restart, small_slices):
    settings = {"seed": 11, "state_size": 20, "action_size": 6}
    agent = DistAsyncQLearning(**settings)
    agent.q_table = np.arange(120.0).reshape(20, 6)
    with pytest.raises(TrainingStopped):
        agent.train(LAKE, total_steps=3_000, checkpoint_dir=tmp_path, **stop_after(1_000))
    restart()
    again = DistAsyncQLearning(**settings)
    again.train(LAKE, total_steps=3_000, checkpoint_dir=tmp_path)
    straight = DistAsyncQLearning(**settings)
    straight.q_table = np.arange(120.0).reshape(20, 6)
    straight.train(LAKE, total_steps=3_000)
    assert same(again, straight)
    assert (again.q_table[16:] == np.arange(96.0, 120.0).reshape(4, 6)).all()


@pytest.mark.slow
def test_a_stepped_environment_makes_the_steps_asked_for_and_keeps_its_replay_memory(tmp_path, restart):
    settings = {"seed": 11, "n_envs": 3, "batch_size": 6, "replay_ratio": 0.5, "buffer_size": 40}
    for stop in (1, 200, 401):
        agent = DistAsyncQLearning(**settings)
        with pytest.raises(TrainingStopped):
            agent.train(SteppedLake, total_steps=100_003, checkpoint_dir=tmp_path, **stop_after(stop))
        saved = newest(tmp_path)
        assert saved.body["steps"] == agent.steps == agent.visits.sum()
        assert saved.arrays["replay_ring"][0, 0] == min(agent.steps, 40)
        restart()
    result = DistAsyncQLearning(**settings).train(
        SteppedLake, total_steps=agent.steps + 500, checkpoint_dir=tmp_path
    )
    assert result.steps == newest(tmp_path).body["steps"] == agent.steps + 500
