"""The monitor on one rank: its points, its curves, its arguments. tests/mpi has several ranks."""

import builtins
import logging
import math

import numpy as np
import pytest

from dist_classicrl import DistributedMonitor
from dist_classicrl.errors import MissingExtraError, PlotError, SettingsError
from dist_classicrl.monitoring.loop_records import LoopRecords


@pytest.fixture
def alone():
    from mpi4py import MPI

    return MPI.COMM_SELF


def values(*given):
    return np.array([*given, *[np.nan] * (4 - len(given))])


def test_records_are_means_over_those_who_said_something():
    records = LoopRecords(interval=10)
    records.add(1, values(1.0, math.nan, 5.0, 0.1), 0.0)
    records.add(0, values(7.0), 0.0)
    records.add(1, values(3.0, 4.0, 6.0, 0.3), 0.0)
    columns = records.columns
    assert columns["step"].tolist() == [0, 10] and columns["ranks"].tolist() == [1, 2]
    assert columns["reward"].tolist() == [7.0, 2.0]
    assert math.isnan(columns["loss"][0]) and columns["loss"][1] == 4.0
    assert columns["throughput"][1] == 11.0  # the sum
    assert columns["comm_time"][1] == pytest.approx(0.2)


def test_each_record_is_told_once_when_complete_or_old():
    records = LoopRecords(interval=5)
    records.add(0, values(1.0, 2.0, 3.0, 4.0), 100.0)
    records.add(1, values(1.0), 101.0)
    assert records.news(-1, 100.0) == []
    assert records.news(0, 0.0) == [
        "step 0: reward 1, loss 2, throughput 3/s, communication 4 s, 1 ranks",
    ]
    assert records.news(0, 101.0) == []
    (line,) = records.news(0, 101.5)
    assert line.startswith("step 5: ")
    assert records.news(9, 1e9) == []


def test_an_infinite_value_is_kept_and_no_other_record_is_spoilt():
    records = LoopRecords(interval=1)
    records.add(0, values(math.inf), 0.0)
    records.add(1, values(1.0), 0.0)
    assert records.columns["reward"].tolist() == [math.inf, 1.0]


def test_steps_that_pass_a_multiple_make_a_point(alone):
    with DistributedMonitor(alone, log_interval=100) as monitor:
        for step in (30, 60, 130, 140, 420):
            monitor.log_metrics(step, reward=step)
    assert monitor.metrics["step"].tolist() == [0, 100, 400]
    assert monitor.metrics["reward"].tolist() == [30.0, 95.0, 280.0]


def test_points_are_logged(alone, caplog):
    with caplog.at_level(logging.INFO, "dist_classicrl"), DistributedMonitor(alone, 1) as monitor:
        monitor.log_metrics(3, 0.5, 0.25, 1000.0, 0.001)
        assert "step 3: reward 0.5, loss 0.25, throughput 1000/s, communication 0.001 s" in caplog.text


def test_the_curves_show_the_metrics(alone, tmp_path):
    monitor = DistributedMonitor(alone, log_interval=10)
    for step in range(0, 1000, 10):
        loss = math.nan if step == 500 else 1.0 / (1 + step)
        monitor.log_metrics(step, reward=step / 10, loss=loss, throughput=5e6, comm_time=0.01)
    target = tmp_path / "new" / "curves.png"
    figure = monitor.plot_training_curves(target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    titles = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert list(titles) == ["Reward", "Loss", "Throughput", "Communication"]
    for (_, axes), name in zip(titles.items(), ("reward", "loss", "throughput", "comm_time"), strict=True):
        (line,) = axes.lines
        there = np.isfinite(monitor.metrics[name])
        np.testing.assert_array_equal(line.get_xdata(), monitor.metrics["step"][there])
        np.testing.assert_array_equal(line.get_ydata(), monitor.metrics[name][there])
    assert titles["Reward"].lines[0].get_xdata().size == 100
    assert titles["Loss"].lines[0].get_xdata().size == 99
    monitor.close()
    assert monitor.plot_training_curves() is not None  # what there is stays


def test_curves_without_any_point_are_empty(alone):
    with DistributedMonitor(alone) as monitor:
        figure = monitor.plot_training_curves()
    assert [axes.lines[0].get_xdata().size for axes in figure.axes] == [0] * 4


def test_without_matplotlib_the_extra_is_named(alone, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    with DistributedMonitor(alone) as monitor:
        monitor.log_metrics(0, reward=1.0)
        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(MissingExtraError, match="pip install matplotlib"):
            monitor.plot_training_curves()


def test_a_picture_of_an_unknown_kind_is_refused(alone, tmp_path):
    with DistributedMonitor(alone) as monitor, pytest.raises(PlotError, match=".png"):
        monitor.plot_training_curves(tmp_path / "curves.txt")


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"log_interval": 0}, "log_interval must be a whole number of at least 1, got 0"),
        ({"log_interval": 2.5}, "log_interval"),
        ({"log_interval": 2**53}, r"log_interval must be below 2\*\*53"),
        ({"timeout": 0}, "timeout must be a finite number above 0"),
        ({"timeout": math.inf}, "timeout"),
    ],
)
def test_arguments_are_checked(alone, arguments, text):
    with pytest.raises(SettingsError, match=text):
        DistributedMonitor(alone, **arguments)


@pytest.mark.parametrize("comm", [None, "MPI.COMM_WORLD", 3])
def test_what_is_no_communicator_is_refused(comm):
    with pytest.raises(SettingsError, match="comm must be an intracommunicator of mpi4py"):
        DistributedMonitor(comm)


def test_what_is_logged_is_checked(alone):
    with DistributedMonitor(alone, 10) as monitor:
        monitor.log_metrics(5)
        with pytest.raises(SettingsError, match="step is 4 after 5"):
            monitor.log_metrics(4)
        with pytest.raises(SettingsError, match="step must be a whole number"):
            monitor.log_metrics(6.5)
        with pytest.raises(SettingsError, match="reward must be a number, got 'high'"):
            monitor.log_metrics(6, reward="high")
        with pytest.raises(SettingsError, match="loss must be a number, got 1000"):
            monitor.log_metrics(6, loss=10**400)
        for value in (np.complex64(2.0), 1j, "2.0", np.array("2.0"), np.ones(2), True, None):
            with pytest.raises(SettingsError, match="loss must be a number"):
                monitor.log_metrics(6, reward=100.0, loss=value)
        with pytest.raises(SettingsError, match=r"step must be below 2\*\*53"):
            monitor.log_metrics(2**53)
        monitor.log_metrics(np.int64(7), reward=np.float32(2.0))
        monitor.log_metrics(8, reward=np.array(4.0))
    with pytest.raises(SettingsError, match="This DistributedMonitor is closed"):
        monitor.log_metrics(8)
    monitor.close()  # again does nothing
    assert monitor.metrics["reward"][-1] == 3.0  # of refused calls nothing stays


def test_the_largest_steps_and_intervals_are_read_as_they_were(alone):
    most = 2**53 - 1
    for interval in (1, most):
        with DistributedMonitor(alone, interval) as monitor:
            monitor.log_metrics(most, reward=1.0)
            monitor.log_metrics(most, reward=2.0)
        assert monitor.metrics["step"].tolist() == [most, most + interval]
