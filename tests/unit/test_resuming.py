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


# What was asked for, over several calls


CALLS = [300, 1, 0, 450, 32, 700, 1_200, 64, 900, 333]


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
        assert result.episodes > 0 or math.isnan(result.mean_return)


def test_the_result_of_a_call_that_is_no_longer_known(tmp_path, restart):
    DistAsyncQLearning(seed=11).train(LAKE, total_steps=1_000, checkpoint_dir=tmp_path)
    restart()
    agent = DistAsyncQLearning(seed=11)
    first = agent.train(LAKE, total_steps=400, checkpoint_dir=tmp_path)
    assert (first.steps, first.episodes, first.resumed_from) == (400, 0, newest(tmp_path).url)
    assert math.isnan(first.mean_return) and math.isnan(first.mean_length)
    assert agent.train(LAKE, total_steps=600, checkpoint_dir=tmp_path).steps == 600
    assert agent.steps == 1_000


@MODES
def test_calls_that_are_not_saved_in_between(async_updates, tmp_path, restart, small_slices):
    settings = {"seed": 11, "async_updates": async_updates, "logical_workers": 2, "sync_frequency": 1}
    calls = [(500, {"checkpoint_dir": tmp_path}), (700, {}), (2_000, {"checkpoint_dir": tmp_path}), (300, {})]
    straight = DistAsyncQLearning(**settings)
    results = [told(straight.train(LAKE, total_steps=steps)) for steps, _ in calls]
    for stopped_in in (0, 2, None):
        agent = DistAsyncQLearning(**settings)
        for number, (steps, options) in enumerate(calls):
            if number == stopped_in:
                with pytest.raises(TrainingStopped):
                    agent.train(LAKE, total_steps=steps, **options, **stop_after(steps // 2))
                break
            result = agent.train(LAKE, total_steps=steps, **options)
            assert told(result) == results[number]
        restart()
    assert same(agent, straight)


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


def test_two_folders_in_turn(tmp_path, restart, small_slices):
    one, other = {"checkpoint_dir": tmp_path / "one"}, {"checkpoint_dir": tmp_path / "other"}
    calls = [(500, one), (700, other), (2_000, one), (300, other)]
    straight = DistAsyncQLearning(seed=11)
    results = [told(straight.train(LAKE, total_steps=steps)) for steps, _ in calls]
    for stopped_in in (0, 1, 2, 3, None):
        agent = DistAsyncQLearning(seed=11)
        for number, (steps, options) in enumerate(calls):
            if number == stopped_in:
                with pytest.raises(TrainingStopped):
                    agent.train(LAKE, total_steps=steps, **options, **stop_after(steps // 2))
                break
            result = agent.train(LAKE, total_steps=steps, **options)
            assert told(result) == results[number]
        restart()
    assert same(agent, straight)


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
