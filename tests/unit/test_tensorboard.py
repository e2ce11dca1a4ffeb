"""What TensorBoard reads of a run, by TensorBoard's own reader."""

import logging
import math
import os
import sys

import pytest
from callback_reports import Reports

from dist_classicrl.callbacks import BaseCallback, TensorBoardCallback
from dist_classicrl.callbacks.scalars import ScalarsCallback
from dist_classicrl.errors import MissingExtraError

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder):
    """Return what TensorBoard shows: (step, value) by name."""
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        name: [(one.step, pytest.approx(one.value, rel=1e-6)) for one in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_scalars_under_the_names_of_stable_baselines(tmp_path):
    run = Reports(TensorBoardCallback(tmp_path / "logs")).start()
    run.report(100, mean_return=1.0, mean_length=3.0, episodes=50)
    run.report(250, mean_return=4.0, mean_length=6.0, episodes=100)
    run.report(300, mean_return=math.nan, mean_length=math.nan, episodes=0, td_error=math.nan)
    shown = scalars(tmp_path / "logs")  # flushed: what is killed from here on has it
    assert shown["rollout/ep_rew_mean"] == [(100, 1.0), (250, 4.0), (300, 4.0)]
    assert shown["rollout/ep_len_mean"] == [(100, 3.0), (250, 6.0), (300, 6.0)]
    assert shown["train/td_error"] == [(100, 0.25), (250, 0.25)]
    assert shown["rollout/episodes"] == [(100, 50), (250, 100), (300, 0)]
    for name, value in {
        "rollout/exploration_rate": 0.1,
        "time/fps": 5e5,
        "train/learning_rate": 0.2,
        "workers/number": 2,
        "workers/communication_fraction": 0.125,
        "workers/staleness": 1.5,
        "workers/pushes": 4,
        "workers/bytes_pushed": 400,
        "workers/bytes_pulled": 800,
        "workers/bytes_saved": 40,
    }.items():
        assert shown[name] == [(step, value) for step in (100, 250, 300)], name
    assert shown["time/time_elapsed"] == [(100, 0.1), (250, 0.25), (300, 0.3)]
    run.end()
    assert len(os.listdir(tmp_path / "logs")) == 1


@pytest.mark.parametrize("verbose", [0, 1])
def test_where_the_files_are_is_said_if_asked_for(verbose, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        Reports(TensorBoardCallback(tmp_path, verbose)).start()
    assert (f"TensorBoard's files of this run are written to {tmp_path}." in caplog.text) == bool(verbose)


def test_a_run_that_goes_on_is_one_curve(tmp_path):
    run = Reports(TensorBoardCallback(tmp_path)).start()
    for step in (100, 200, 300):
        run.report(step)
    run = Reports(TensorBoardCallback(tmp_path)).start(200)
    run.report(290)
    run.end()
    run.start(290, before=290).report(350)
    run.end()
    assert [step for step, _ in scalars(tmp_path)["time/fps"]] == [100, 200, 290, 350]


def test_what_callbacks_record_is_written_once_with_its_step(tmp_path):
    def record(locals_):
        if locals_["num_timesteps"] == 200:
            run.callbacks.record("eval/mean_reward", 0.5)

    run = Reports([TensorBoardCallback(tmp_path), record]).start()
    for step in (100, 200, 300, 400):
        run.report(step)
    assert scalars(tmp_path)["eval/mean_reward"] == [(200, 0.5)]


def test_files_that_cannot_be_written_do_not_end_a_training(tmp_path, caplog, monkeypatch):
    callback = TensorBoardCallback(tmp_path)
    run = Reports(callback).start()

    def full():
        raise OSError("No space left on device")

    monkeypatch.setattr(callback._writer, "flush", full)
    assert run.report(100) and run.report(200)
    assert caplog.text.count("No space left") == 1
    run.end()


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install tensorboard"):
        TensorBoardCallback(tmp_path)


def test_a_package_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(
        MissingExtraError, match="TensorBoardCallback needs the package tensorboard, which is "
    ):
        Reports(TensorBoardCallback(tmp_path)).start()


def test_files_that_cannot_be_closed_are_told(tmp_path, caplog, monkeypatch):
    callback = TensorBoardCallback(tmp_path)
    run = Reports(callback).start()

    def full():
        raise OSError("No space left on device")

    monkeypatch.setattr(callback._writer, "close", full)
    run.end()
    assert "cannot be closed: No space left on device." in caplog.text


class Written(ScalarsCallback):
    """Keeps what a tracker would write."""

    def __init__(self):
        super().__init__()
        self.written = []

    def _write_scalars(self, step, scalars):
        self.written.append((step, scalars))


def test_reports_without_a_step_are_in_the_next_one():
    tracker = Written()
    run = Reports(tracker).start(100)
    run.report(100, steps_per_second=0.0, episodes=0)
    run.report(200)
    for _ in range(2):
        run.report(200, steps_per_second=0.0, episodes=20, mean_return=2.0)
    run.report(300)
    run.report(300, steps_per_second=0.0, episodes=0)
    run.end()
    assert [step for step, _ in tracker.written] == [200, 300]
    assert [scalars["rollout/episodes"] for _, scalars in tracker.written] == [10, 50]
    assert [scalars["workers/pushes"] for _, scalars in tracker.written] == [8, 12]
    assert tracker.written[1][1]["time/fps"] == pytest.approx(100 / 0.1)


def test_all_that_is_recorded_is_written():
    class Records(BaseCallback):
        def _on_step(self):
            self.record("twice", 1.0 if self is before else 2.0)

        def _on_training_end(self):
            if self is after:
                self.record("end", 3.0)

    before, after, tracker = Records(), Records(), Written()
    run = Reports([before, tracker, after]).start()
    run.report(100)
    run.end()
    (_, first), second = tracker.written
    assert first["twice"] == 1.0 and second == (100, {"twice": 2.0, "end": 3.0})


def test_a_tracker_of_a_second_agent_knows_nothing_of_the_first():
    def record(locals_):
        run.callbacks.record("eval/mean_reward", 0.5)

    tracker = Written()
    for name, episodes, mean in (("0a1b2c3d", 90, 1.0), ("another0", 10, 4.0)):
        run = Reports([tracker, record], run=name).start()
        run.report(100, mean_return=mean, episodes=episodes)
        run.end()
        (_, scalars), (step, recorded) = tracker.written
        assert scalars["rollout/ep_rew_mean"] == mean
        assert (step, recorded) == (100, {"eval/mean_reward": 0.5})
        del tracker.written[:]
