"""What trackers have of a run, read back by their own means; nothing is sent anywhere."""

import json
import math
import os
import struct
import sys
import time
from pathlib import Path

import pytest
from callback_reports import Reports

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.callbacks import EvalCallback, MlflowCallback, WandbCallback
from dist_classicrl.errors import MetricsError, MissingExtraError

pytestmark = pytest.mark.slow  # MLflow takes long to import

MISSING = "is not installed: pip install '.[tracking]'"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for the files of trackers, which go nowhere else."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return tmp_path


@pytest.fixture
def wandb():
    return pytest.importorskip("wandb", reason=f"wandb {MISSING}")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An SQLite store of MLflow, which takes seconds to be made."""
    pytest.importorskip("mlflow", reason=f"mlflow {MISSING}")
    pytest.importorskip("sqlalchemy", reason=f"sqlalchemy {MISSING}")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"


def records(content):
    """Yield what a log in LevelDB's format has, which wandb's files are after seven bytes of their own."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32_768 - at % 32_768 < 7:  # the rest of the block is empty
            at += 32_768 - at % 32_768
            continue
        n_bytes, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + n_bytes]
        at += 7 + n_bytes
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def read_wandb(folder):
    """Return the configuration, {step: numbers}, and the exit code of the newest run in a folder."""
    *_, newest = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    ends_at = time.monotonic() + 60
    # A process of wandb's writes the last of it when the run is closed here.
    while (found := parsed(newest))[2] is None and time.monotonic() < ends_at:
        time.sleep(0.05)
    return found


def parsed(path):
    """Return the configuration, {step: numbers}, and the exit code that are in a file of wandb's."""
    from wandb.proto import wandb_internal_pb2

    config, history, exit_code = {}, {}, None
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            history.setdefault(record.history.step.num, {}).update(items)
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return config, history, exit_code


def read_mlflow(store, callback):
    """Return the run of a callback, and {name: {step: value}}."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    run = client.get_run(callback.run_id)
    history = {name: client.get_metric_history(callback.run_id, name) for name in run.data.metrics}
    return run, {name: {one.step: one.value for one in points} for name, points in history.items()}


def trained(callback):
    """Train, with an evaluation every 2,000 steps, and return the agent."""
    agent = DistAsyncQLearning(seed=3, discount_factor=0.9)
    evaluation = EvalCallback("FrozenLake-v1", eval_freq=2_000, n_eval_episodes=5)
    agent.train("FrozenLake-v1", total_steps=6_000, callbacks=[callback, evaluation])
    return agent


def fail(locals_):
    raise RuntimeError("on purpose")


def test_wandb_has_settings_numbers_at_their_steps_and_evaluations(folder, wandb):
    callback = WandbCallback("lakes", name="first", folder=folder / "kept")
    trained(callback)
    config, history, exit_code = read_wandb(folder / "kept")
    assert config["discount_factor"] == 0.9 and config["seed"] == 3 and config["total_steps"] == 6_000
    evaluated = [step for step, numbers in sorted(history.items()) if "eval/mean_reward" in numbers]
    assert evaluated == [2_000, 4_000, 6_000]
    assert "rollout/ep_rew_mean" in history[6_000] and history[6_000]["workers/number"] == 1
    assert exit_code == 0 and wandb.run is None


def test_wandb_closes_a_run_that_failed_and_leaves_that_of_the_caller(folder, wandb):
    with wandb.init(project="callers", dir=folder) as own:
        callback = WandbCallback("lakes", folder=folder / "failed")
        with pytest.raises(RuntimeError, match="on purpose"):
            DistAsyncQLearning(seed=3).train("FrozenLake-v1", total_steps=6_000, callbacks=[callback, fail])
        assert read_wandb(folder / "failed")[2] == 1
        own.log({"still": 1})
    assert callback.run_id != own.id


def test_a_later_call_goes_on_with_the_run_of_wandb(folder, wandb):
    callback = WandbCallback("lakes", folder=folder)
    run = Reports(callback).start()
    run.report(100)
    run.end()
    first = callback.run_id
    run.start(100, before=100).report(250, mean_return=math.nan, episodes=0, td_error=math.nan)
    run.end()
    _, history, _ = read_wandb(folder)
    assert callback.run_id == first and set(history) == {250}
    assert "train/td_error" not in history[250] and history[250]["rollout/ep_rew_mean"] == 0.5


def test_wandb_without_a_key_says_what_to_do(folder, wandb, monkeypatch):
    def refuse(**_):
        raise wandb.Error("api_key not configured (no-tty)")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(MetricsError, match="api_key not configured.*WANDB_MODE=offline"):
        Reports(WandbCallback()).start()


def test_mlflow_has_settings_numbers_at_their_steps_and_evaluations(folder, store):
    callback = MlflowCallback("lakes", name="first", tracking_uri=store)
    trained(callback)
    run, history = read_mlflow(store, callback)
    assert run.info.run_name == "first" and run.info.status == "FINISHED"
    assert run.data.params["discount_factor"] == "0.9" and run.data.params["learning_rate.kind"] == "PerVisit"
    assert run.data.params["seed"] == "3" and run.data.params["total_steps"] == "6000"
    assert sorted(history["eval/mean_reward"]) == [2_000, 4_000, 6_000]
    assert history["workers/number"][6_000] == 1 and len(history["time/fps"]) > 100


def test_mlflow_takes_the_path_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "all runs", Path("all runs")):
        assert MlflowCallback(tracking_uri=given).tracking_uri == (tmp_path / "all runs").as_uri()


def test_mlflow_closes_a_run_that_failed_and_goes_on_with_it(folder, store):
    callback = MlflowCallback("lakes", tracking_uri=store)
    agent = DistAsyncQLearning(seed=3)
    with pytest.raises(RuntimeError, match="on purpose"):
        agent.train("FrozenLake-v1", total_steps=6_000, callbacks=[callback, fail])
    assert read_mlflow(store, callback)[0].info.status == "FAILED"
    again = MlflowCallback("lakes", tracking_uri=store, run_id=callback.run_id)
    run = Reports(again, discount_factor=0.5).start()  # which cannot be changed any more
    run.report(7_000)
    run.end()
    run, history = read_mlflow(store, again)
    assert run.info.status == "FINISHED" and history["time/fps"][7_000] == 5e5
    assert run.data.params["discount_factor"] == "0.99"


def test_mlflow_that_cannot_be_reached_says_so_at_the_beginning_and_costs_no_training_later(
    folder, store, monkeypatch, caplog
):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with pytest.raises(MetricsError, match="MLflow cannot begin a run.*tracking_uri"):
        Reports(MlflowCallback(tracking_uri="nonsense://there")).start()
    Reports(MlflowCallback(tracking_uri="nonsense://there")).start(100).report(200)
    assert caplog.text.count("The training goes on without") == 1
    callback = MlflowCallback("lakes", tracking_uri=store)
    run = Reports(callback).start()

    def lose(*_, **__):
        raise MlflowException("the server is gone")

    monkeypatch.setattr(MlflowClient, "log_batch", lose)
    assert run.report(100) and run.report(200)
    assert caplog.text.count("the server is gone") == 1
    monkeypatch.undo()
    assert run.report(300) and run.report(400)  # after two failures in a row one report is passed over
    run.end()
    run, history = read_mlflow(store, callback)
    assert run.info.status == "FINISHED" and list(history["time/fps"]) == [400]


def test_a_run_whose_settings_mlflow_does_not_take_is_closed(folder, store, monkeypatch):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def lose(*_, **__):
        raise MlflowException("no room for parameters")

    monkeypatch.setattr(MlflowClient, "log_batch", lose)
    callback = MlflowCallback("lakes", tracking_uri=store)
    with pytest.raises(MetricsError, match="no room for parameters"):
        Reports(callback).start()
    assert read_mlflow(store, callback)[0].info.status == "FAILED"


def test_a_name_that_mlflow_does_not_take_costs_no_other_number(folder, store, caplog):
    callback = MlflowCallback("lakes", tracking_uri=store)
    run = Reports([lambda told: run.callbacks.record("loss [%]", told["num_timesteps"]), callback]).start()
    for step in (100, 200):
        run.report(step)
    run.end()
    _, history = read_mlflow(store, callback)
    assert sorted(history["time/fps"]) == sorted(history["rollout/ep_rew_mean"]) == [100, 200]
    assert caplog.text.count("MLflow does not take the name 'loss [%]'") == 1


@pytest.mark.parametrize("callback", [WandbCallback, MlflowCallback])
def test_without_the_package_it_says_what_to_install(callback, monkeypatch):
    extra = callback.__module__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtraError, match=rf"pip install '\.\[{extra}\]'"):
        callback()
