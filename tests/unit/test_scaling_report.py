"""Speed-up, efficiency and communication, from records whose numbers are known."""

import json
import math

import hand_made_metrics as hand_made
import numpy as np
import pytest
from click.testing import CliRunner

from dist_classicrl import TrainingResult
from dist_classicrl.cli.commands.report import command
from dist_classicrl.errors import MetricsError, PlotError
from dist_classicrl.monitoring.reading import read_metrics
from dist_classicrl.monitoring.scaling import compare, measure
from dist_classicrl.plotting import plot_scaling


def result(workers, rate, communication=0.1, **changed):
    numbers = {"seconds": 10.0, "steps_per_second": rate, "communication_fraction": communication}
    return TrainingResult(steps=int(10 * rate), workers=workers, **numbers, **changed).to_dict()


def lost(rank):
    return {"kind": "excluded", "rank": rank, "seconds": 5.0, "steps_returned": 0, "detail": ""}


@pytest.fixture
def metrics(tmp_path):
    """Two reports: after 2 s with two workers, after 10 s with one of them alone."""
    both = [hand_made.rank(1, 200, 2.0, 0.1), hand_made.rank(2, 300, 2.0, 0.4)]
    alone = [hand_made.rank(1, 1600, 8.0, 0.2)]
    lines = [
        hand_made.report(500, 2.0, both, communication_fraction=0.25),
        hand_made.report(2100, 10.0, alone, communication_fraction=0.2),
    ]
    return read_metrics(hand_made.write(tmp_path / "run", lines))


def test_speed_up_and_efficiency_are_relative_to_the_fewest_workers():
    runs = [measure(str(n), None, result(n, rate)) for n, rate in ((8, 500.0), (2, 200.0), (4, 380.0))]
    report = compare(runs)
    assert report.baseline == "2"
    found = [(s.run.name, s.speed_up, s.efficiency) for s in report.runs]
    assert found == [("2", 1.0, 1.0), ("4", pytest.approx(1.9), pytest.approx(0.95)), ("8", 2.5, 0.625)]
    other = compare(runs, baseline="4")
    assert [(s.speed_up, s.efficiency) for s in other.runs][1:] == [
        (1.0, 1.0),
        (pytest.approx(500 / 380), pytest.approx(250 / 380)),
    ]
    with pytest.raises(MetricsError, match="baseline 16 is not one of the runs. Those are 2, 4, 8"):
        compare(runs, baseline="16")


def test_the_slower_of_two_equals_is_the_baseline():
    runs = [measure(name, None, result(2, rate)) for name, rate in (("fast", 300.0), ("slow", 200.0))]
    assert compare(runs).baseline == "slow"


def test_communication_of_each_worker_is_weighted_by_time(metrics):
    run = measure("run", metrics)
    first, second = run.per_worker
    assert (first.rank, first.host, first.steps, first.steps_per_second) == (1, "node1", 1800, 180.0)
    assert (second.steps, second.steps_per_second) == (300, 150.0)
    shares = np.repeat([0.1, 0.2], [2, 8])
    assert first.communication.mean == pytest.approx(shares.mean())
    assert first.communication.deviation == pytest.approx(shares.std())
    assert (first.communication.min, first.communication.max) == (0.1, 0.2)
    assert second.communication.mean == 0.4 and second.communication.deviation == 0.0
    means = np.array([shares.mean(), 0.4])
    overall = run.communication
    assert (overall.min, overall.max) == (pytest.approx(0.18), 0.4)
    assert (overall.mean, overall.deviation) == (pytest.approx(means.mean()), pytest.approx(means.std()))


def test_a_report_with_no_step_of_a_worker_tells_nothing_of_its_communication(tmp_path, monkeypatch):
    lines = [
        hand_made.report(
            100 * (number + 1),
            2.0 * (number + 1),
            [hand_made.rank(1, 100, 2.0, first), hand_made.rank(2, steps, 2.0, second), hand_made.rank(3, 0)],
        )
        for number, (first, steps, second) in enumerate([(0.1, 0, 0.0), (0.1, 60, 0.4), (0.1, 40, 0.8)])
    ]
    lines[0]["ranks"][0].update(steps=0, communication_fraction=0.0)
    run = measure("run", read_metrics(hand_made.write(tmp_path / "run", lines)))
    first, second, third = run.per_worker
    assert (first.communication.min, first.communication.mean) == (0.1, pytest.approx(0.1))
    shares = np.repeat([0.4, 0.8], [4, 2])  # the first push came after two reports
    assert second.communication.mean == pytest.approx(shares.mean())
    assert second.communication.deviation == pytest.approx(shares.std())
    assert (second.communication.min, second.steps_per_second) == (0.4, pytest.approx(100 / 6))
    assert third.communication is None and third.steps == 0
    assert run.communication.mean == pytest.approx((0.1 + shares.mean()) / 2)
    monkeypatch.chdir(tmp_path)
    assert said("run").splitlines()[-1].split() == ["3", "node3", "0", "0", "-", "-", "-", "-"]


def test_a_run_without_a_result_is_measured_by_its_reports(metrics):
    run = measure("run", metrics)
    assert (run.steps, run.seconds, run.steps_per_second) == (2100, 10.0, 210.0)
    assert run.workers == pytest.approx((2 * 2 + 8 * 1) / 10)
    # Two workers' time before the first report, one worker's before the second.
    assert run.communication_fraction == pytest.approx((4 * 0.25 + 8 * 0.2) / 12)


def test_a_run_that_went_on_with_other_ranks_has_the_mean_of_both_calls(metrics):
    assert measure("run", metrics, result(1, 210.0)).workers == pytest.approx(1.2)


def test_a_result_counts_and_lost_workers_count_as_long_as_they_learned(metrics, tmp_path):
    lines = [hand_made.report(500, 2.0, workers=2), hand_made.report(900, 10.0, workers=2)]
    steady = read_metrics(hand_made.write(tmp_path / "steady", lines))
    assert measure("run", steady, result(3, 300.0)).workers == 3.0
    whole = measure("run", None, result(2, 300.0))
    assert (whole.workers, whole.steps_per_second, whole.communication_fraction) == (2.0, 300.0, 0.1)
    assert measure("run", metrics, result(2, 300.0)).per_worker == measure("run", metrics).per_worker
    after_loss = result(2, 300.0, lost_workers=(2,), events=(lost(2),))
    assert measure("run", metrics, after_loss).workers == pytest.approx(1.2)
    assert measure("run", None, after_loss).workers == 2.0


def test_what_cannot_be_measured_is_said(tmp_path):
    empty = read_metrics(hand_made.write(tmp_path, []))
    with pytest.raises(MetricsError, match="run has no result and no report"):
        measure("run", empty)
    with pytest.raises(MetricsError, match="made no step"):
        measure("run", None, result(2, 0.0))
    with pytest.raises(MetricsError, match="result of run is not one of this library: 'events'"):
        measure("run", None, {key: value for key, value in result(2, 1.0).items() if key != "events"})
    nobody = [hand_made.report(500, 2.0, workers=0), hand_made.report(900, 3.0, workers=0)]
    with pytest.raises(MetricsError, match="run says that it had 0 workers"):
        measure("run", read_metrics(hand_made.write(tmp_path, nobody)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", None),
        ("workers", "two"),
        ("workers", [2]),
        ("workers", 10**400),
        ("steps_per_second", "1"),
        ("communication_fraction", math.nan),
        ("seconds", -1.0),
        ("events", None),
        ("events", [{}]),
        ("events", ["excluded"]),
    ],
)
def test_a_result_that_somebody_has_edited_is_refused_with_what_is_wrong(name, value):
    with pytest.raises(MetricsError, match=f"not one of this library: '{name}' of it"):
        measure("run", None, {**result(2, 1.0), name: value})
    with pytest.raises(MetricsError, match="run says that it had 0 workers"):
        measure("run", None, result(0, 1.0))


def test_the_plot_has_a_point_for_each_run_beside_the_ideal():
    runs = [
        measure(str(i), None, result(n, rate))
        for i, (n, rate) in enumerate([(2, 200.0), (4, 300.0), (4, 340.0)])
    ]
    figure, drawn = plot_scaling(compare(runs))
    assert drawn["workers"].tolist() == [2, 4, 4] and drawn["ideal"].tolist() == [1, 2, 2]
    np.testing.assert_allclose(drawn["speed_up"], [1.0, 1.5, 1.7])
    np.testing.assert_allclose(drawn["efficiency"], [1.0, 0.75, 0.85])
    ideal, means, points = figure.axes[0].get_lines()
    np.testing.assert_allclose(ideal.get_ydata(), 0.5 * ideal.get_xdata())
    np.testing.assert_allclose(means.get_data(), [[2, 4], [1.0, 1.6]])
    np.testing.assert_allclose(points.get_data(), [[2, 4, 4], [1.0, 1.5, 1.7]])
    with pytest.raises(PlotError, match="got 1"):
        plot_scaling(compare(runs[:1]))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Runs of 1 and of 4 workers, the second one without metrics."""
    monkeypatch.chdir(tmp_path)
    one = hand_made.learning_run(tmp_path / "n1", reports=4, workers=1)
    one.joinpath("result.json").write_text(json.dumps(result(1, 1e6)))
    four = tmp_path / "n4"
    four.mkdir()
    four.joinpath("result.json").write_text(json.dumps(result(4, 3e6, 0.25)))


def said(*words):
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_shows_runs_side_by_side_and_draws_them(folders, tmp_path):
    shown = said("n4", "n1/", "--out", "scaling.svg")
    header, first, second = shown.splitlines()[:3]
    assert header.split()[:6] == ["run", "workers", "steps/s", "speed-up", "efficiency", "communication"]
    assert first.split()[:7] == ["n1", "(baseline)", "1", "1,000,000", "1.00", "100.0%", "10.00%"]
    assert second.split() == ["n4", "4", "3,000,000", "3.00", "75.0%", "25.00%", "-", "-", "-", "-"]
    assert tmp_path.joinpath("scaling.svg").stat().st_size > 1000
    data = json.loads(said("n4", "--baseline", "n1", "--json"))
    assert data["baseline"] == "n1" and [run["speed_up"] for run in data["runs"]] == [1.0, 3.0]
    assert data["runs"][0]["per_worker"][0]["rank"] == 1 and data["runs"][1]["communication"] is None


def test_a_run_that_is_spelled_in_several_ways_is_one(folders, tmp_path):
    tmp_path.joinpath("link").symlink_to("n4")
    spelled = [str(tmp_path / "n1"), "link", "n4", "n1", "./n4/../n4", "--baseline", str(tmp_path / "n4")]
    data = json.loads(said(*spelled, "--json"))
    assert [run["name"] for run in data["runs"]] == [str(tmp_path / "n1"), "link"]
    assert data["baseline"] == "link"
    assert len(said("n1", str(tmp_path / "n1")).splitlines()) == 6  # its workers, as of one run
    with pytest.raises(MetricsError, match="The baseline . is not one of the runs"):
        said("n1", "--baseline", ".")


def test_the_command_shows_the_workers_of_a_single_run(folders):
    shown = said("n1").splitlines()
    assert shown[3] == "workers, from report to report"
    assert shown[5].split()[:2] == ["1", "node1"] and len(shown) == 6
    assert "speed-up" not in shown[0] and "baseline" not in shown[1]
    with pytest.raises(MetricsError, match="n2"):
        said("n1", "n2")
