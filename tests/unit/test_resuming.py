"""One process that stops and goes on, over and over: bit for bit what it would have been without a stop."""

import hashlib
import json
import logging
import math
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.checkpoint.arrays import ArrayFile
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.distributed import alone, stopping
from dist_classicrl.environments.tictactoe import TicTacToeEnv
from dist_classicrl.errors import (
    CheckpointError,
    TrainingInterrupted,
    TrainingStopped,
)
from dist_classicrl.runtime import resuming, training
from dist_classicrl.schedules import Exponential, Linear, PerVisit

LAKE = TabularMDP.from_gymnasium("FrozenLake-v1")
GARNET = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    """Do without the time for which a stopped process still takes a late copy of the same signal."""
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.0)
    monkeypatch.setattr(training, "_unanswered", [])


@pytest.fixture
def small_slices(monkeypatch):
    """Look for requests to stop after every batch, so that runs stop where the tests say."""
    monkeypatch.setattr(alone, "_SLICE_SECONDS", 0.0)
    monkeypatch.setattr(alone, "_FIRST_SLICE_COMPILED", 1)


@pytest.fixture
def restart(monkeypatch):
    """Give a function after which agents are numbered as in a new process."""
    monkeypatch.setattr(resuming, "_agents", {})
    return resuming._agents.clear


def stop_after(steps, number=signal.SIGUSR1):
    """Return arguments of `train` with which the process sends itself a signal after `steps` of the call."""
    sent = []

    def report(progress):
        if progress.steps >= steps and not sent:
            sent.append(None)
            os.kill(os.getpid(), number)

    return {"progress": report, "progress_interval": 0}


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

RUNS = {
    "FrozenLake": ("FrozenLake8x8-v1", {}),
    "Taxi": ("Taxi-v4", {"batch_size": 1}),
    "a game with a memory": (TicTacToeEnv, {"epsilon": 0.3, "batch_size": 7}),
    "replay": (LAKE, {"replay_ratio": 1.3, "buffer_size": 300}),
    "replay of a game": (TicTacToeEnv, {"replay_ratio": 0.5, "buffer_size": 50, "epsilon": 0.5}),
    "per visit": ("FrozenLake8x8-v1", {"learning_rate": PerVisit(0.7)}),
    "linear": (GARNET, {"learning_rate": Linear(0.5, 0.01, 2_500), "epsilon": Linear(1.0, 0.1, 2_000)}),
    "exponential": (
        GARNET,
        {"learning_rate": Exponential(0.5, 0.05, 900), "epsilon": Exponential(1.0, 0.1, 1_000)},
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


@MODES
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_is_one_that_was_not(name, async_updates, tmp_path, restart, small_slices):
    env, settings = settings_of(name, async_updates)
    straight = DistAsyncQLearning(**settings)
    whole = straight.train(env, total_steps=4_001)
    for stop in (1, 700, 777, 2_000, 2_950):
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


def edit(saved, change):
    """Let `change` alter a checkpoint's body and arrays, and write it back with checksums that fit."""
    body, arrays = saved.body, saved.arrays
    change(body, arrays)
    folder = Path(saved.url)
    for name in list(body["arrays"]):
        if name not in arrays:
            del body["arrays"][name]
    for name, array in arrays.items():
        file = ArrayFile(array)
        (folder / f"{name}.npy").write_bytes(b"".join(map(bytes, file.chunks())))
        body["arrays"][name] = {"file": f"{name}.npy", **file.entry().to_dict()}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"body": body, "sha256": digest}))


def put(*path):
    """Return a change that puts the last of `path` at the others, in the body."""
    *names, last, value = path

    def change(body, arrays):
        at = body
        for name in names:
            at = at[name]
        at[last] = value

    return change


def put_array(name, make):
    """Return a change that puts ``make(array)`` in the place of the array `name`."""

    def change(body, arrays):
        arrays[name] = make(arrays.get(name))

    return change


def with_value(index, value):
    """Return a function that gives an array with another value at `index`."""

    def changed(array):
        array = array.copy()
        array[index] = value
        return array

    return changed


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
    "tally with more": put("tally", "__class__", 1),
    "finished of numbers": put("finished", [1, 2]),
    "finished without result": put("finished", [{"begin": 0, "end": 5}]),
    "finished in texts": put("finished", [{"begin": 0, "end": 5, "result": {"steps": "5"}}]),
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
        patched.setattr(resuming, "_agents", {})
        with pytest.raises(TrainingStopped):
            DistAsyncQLearning(seed=11).train(
                LAKE, total_steps=100_000, checkpoint_dir=folder, **stop_after(1)
            )
    return folder


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


def contents(folder):
    """Return all checkpoints in a folder, byte by byte."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.glob("agent-0/f0*/*"))
        if path.is_file()
    }


# Requests to stop at a call's edges


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


def test_a_request_in_a_call_that_was_made_before_is_answered_by_the_next(tmp_path, restart, caplog):
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=100, checkpoint_dir=tmp_path)
    restart()

    class Stopping(logging.Handler):
        def emit(self, record):
            if "had been made before" in record.getMessage():
                os.kill(os.getpid(), signal.SIGTERM)

    handler = Stopping()
    training.logger.addHandler(handler)
    resuming.logger.addHandler(handler)
    agent = DistAsyncQLearning(seed=11)
    try:
        assert agent.train(LAKE, total_steps=100, checkpoint_dir=tmp_path).steps == 100
    finally:
        training.logger.removeHandler(handler)
        resuming.logger.removeHandler(handler)
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
        assert time.monotonic() - begin < 20.0
        assert before < agent.steps == newest(tmp_path).body["steps"] < 10**12
        restart()
