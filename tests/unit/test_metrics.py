"""metrics.jsonl and metrics.csv: what is written, what survives, and how it is read back."""

import csv
import dataclasses
import errno
import json
import math
import os
import re
import tracemalloc

import hand_made_metrics as hand_made
import numpy as np
import pytest
from callback_reports import Reports, event, progress

from dist_classicrl.agent.agent import state_of
from dist_classicrl.callbacks import MetricsCallback
from dist_classicrl.engines.progress import Progress, RankProgress
from dist_classicrl.errors import MetricsError
from dist_classicrl.monitoring import read_metrics, reading
from dist_classicrl.monitoring.reports import RecentEpisodes, ReportHistory


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "one"


def recorded(folder, steps=(100, 200, 300), **others):
    """Record a run of these reports in `folder`, and return what calls the callbacks."""
    run = Reports(MetricsCallback(folder)).start()
    for step in steps:
        run.report(step, **others)
    return run


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


def check_csv(folder):
    """Check that metrics.csv says the same as metrics.jsonl."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    metrics = read_metrics(folder)
    assert len(rows) == len(metrics)
    for name in reading.COLUMNS:
        told = [math.nan if row[name] == "" else float(row[name]) for row in rows]
        np.testing.assert_array_equal(told, metrics[name], err_msg=name)


def test_columns_are_the_numbers_of_a_report():
    names = [field.name for field in dataclasses.fields(Progress)]
    assert list(reading.COLUMNS) == ["step", "time", "recent_return", *names[: names.index("ranks")]]
    assert set(names[names.index("ranks") :]) == {"ranks", "events"}
    ranks = [field.name for field in dataclasses.fields(RankProgress)]
    assert ranks == ["rank", "host", *reading.RANK_COLUMNS]


def test_what_is_reported_is_read_back(folder):
    run = recorded(folder, ())
    run.report(100, mean_return=math.nan, mean_length=math.nan, episodes=0, td_error=math.inf)
    run.report(200, mean_return=1.0, episodes=150, events=(event(),))
    run.report(300, mean_return=3.0, episodes=50)
    metrics = read_metrics(folder)
    assert len(metrics) == 3
    assert metrics["step"].tolist() == metrics["steps"].tolist() == [100, 200, 300]
    assert metrics["step"].dtype == np.int64
    np.testing.assert_array_equal(metrics["mean_return"], [math.nan, 1.0, 3.0])
    np.testing.assert_array_equal(metrics["recent_return"], [math.nan, 1.0, 1.5])
    assert math.isnan(metrics["td_error"][0]) and metrics["td_error"][1] == 0.25
    assert metrics["bytes_pulled"].tolist() == [800] * 3
    assert metrics["time"].tolist() == [0.1, 0.2, 0.3]
    assert metrics.events == [{**event(), "step": 100, "time": 0.5}]
    assert sorted(metrics.ranks) == [1, 2]
    assert metrics.ranks[2]["step"].tolist() == [100, 200, 300]
    assert metrics.ranks[2]["host"].tolist() == ["host2"] * 3
    assert metrics.ranks[2]["silence"].tolist() == [0.125] * 3
    assert b"NaN" not in (folder / "metrics.jsonl").read_bytes()
    assert "events" not in lines(folder)[0]
    check_csv(folder)


def test_an_event_is_written_at_once_and_once(folder):
    run = recorded(folder, (100,))
    run.callbacks.on_worker_lost(event())
    assert [line["kind"] for line in lines(folder)] == ["progress", "event"]
    run.callbacks.on_worker_joined(event("replaced", 4))
    run.callbacks.on_failover(event("failover", 1))
    run.report(200, events=(event(), event("replaced", 4), event("failover", 1), event("cleared", 1)))
    kinds = [each["kind"] for each in read_metrics(folder).events]
    assert kinds == ["excluded", "replaced", "failover", "cleared"]


def test_events_have_the_step_of_the_report_before(folder):
    run = recorded(folder, (100,))
    run.report(200, events=(event("suspected", seconds=0.15),))
    run.callbacks.on_worker_lost(event(seconds=0.25))
    run.report(300, events=(event("cleared", seconds=0.26),))
    told = [(each["kind"], each["step"]) for each in read_metrics(folder).events]
    assert told == [("suspected", 100), ("excluded", 200), ("cleared", 200)]


def test_an_event_of_who_serves_from_before_the_last_line_can_be_read(folder):
    run = recorded(folder, (100, 200))
    state_of(run.agent).steps = 150  # of a rank that took over, and makes again what was reported
    for callbacks in (run.callbacks, Reports(MetricsCallback(folder)).start(200).callbacks):
        state_of(callbacks.callbacks[0].model).steps = 150
        callbacks.on_training_start(progress(150), 200)
        callbacks.on_failover(event("failover", 1))
    found = read_metrics(folder)
    assert found["step"].tolist() == [100, 200] and [each["step"] for each in found.events] == [200]


def test_time_never_falls_where_the_clock_of_a_new_server_is_behind(folder):
    run = recorded(folder, ())
    for step, seconds in ((100, 5.0), (200, 4.0), (300, 6.0)):
        run.report(step, seconds=seconds)
    assert read_metrics(folder)["time"].tolist() == [5.0, 5.0, 6.0]
    check_csv(folder)
    # Earlier versions wrote down the clock as it was; such records are read, and gone on with.
    content = (
        (folder / "metrics.jsonl")
        .read_bytes()
        .replace(b'"step": 200, "time": 5.0', b'"step": 200, "time": 4.0')
    )
    assert b'"time": 4.0' in content
    (folder / "metrics.jsonl").write_bytes(content)
    found = read_metrics(folder)
    assert found["time"].tolist() == found.ranks[1]["time"].tolist() == [5.0, 5.0, 6.0]
    Reports(MetricsCallback(folder)).start(300).report(400, seconds=7.0)
    assert read_metrics(folder)["time"].tolist() == [5.0, 5.0, 6.0, 7.0]


def test_each_checkpoint_is_an_event(folder):
    run = recorded(folder, (100,))
    for name in ("saved/1", "saved/2"):  # both before the next report
        run.callbacks.on_checkpoint(100, name)
    found = read_metrics(folder).events
    assert [(each["kind"], each["detail"], each["step"]) for each in found] == [
        ("checkpoint", "saved/1", 100),
        ("checkpoint", "saved/2", 100),
    ]
    assert [each["time"] for each in found] == [0.1, 0.1]


def test_a_report_without_a_new_step_is_no_line(folder):
    run = recorded(folder)
    run.report(300, events=(event(),))
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300]
    assert len(read_metrics(folder).events) == 1
    check_csv(folder)


def test_the_recent_return_is_over_a_hundred_episodes_at_least():
    recent = RecentEpisodes()
    for number in range(20):
        recent.add(30, float(number), 2.0 * number)
        assert recent.is_full == (number >= 3)
        last = [float(n) for n in range(max(0, number - 3), number + 1)]
        assert recent.mean_return == pytest.approx(np.mean(last))
        assert recent.mean_length == pytest.approx(2.0 * np.mean(last))
    recent.add(1000, 7.0, 1.0)
    recent.add(0, math.nan, math.nan)
    assert recent.mean_return == 7.0
    recent.add(1, 100.0, 1.0)
    assert recent.mean_return == pytest.approx(7100 / 1001)


def test_a_hundred_episodes_are_enough():
    recent = RecentEpisodes()
    for value, mean in ((1.0, 1.0), (2.0, 1.5), (3.0, 2.5)):
        recent.add(50, value, 1.0)
        assert recent.mean_return == mean and recent.is_full == (value > 1.0)


def test_a_frame_has_the_columns(folder):
    pandas = pytest.importorskip("pandas")
    recorded(folder, (100, 200, 300))
    metrics = read_metrics(folder)
    frame = metrics.frame()
    assert isinstance(frame, pandas.DataFrame) and list(frame) == list(metrics.columns)
    assert frame["step"].tolist() == [100, 200, 300] and frame.equals(pandas.DataFrame(metrics.columns))


# Going on


def test_later_steps_are_moved_away_and_the_rest_goes_on(folder):
    run = recorded(folder, (100, 200))
    run.callbacks.on_worker_lost(event(seconds=0.25))
    run.report(300)
    before = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(before[-1][:37])  # what a killed process may leave
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300]

    run = Reports(MetricsCallback(folder)).start(200)
    assert (folder / "metrics.jsonl").read_bytes() == b"".join(before[:2])
    assert (folder / "metrics.lost.jsonl").read_bytes() == b"".join(before[2:])
    check_csv(folder)
    run.report(250, mean_return=4.5, episodes=20)
    metrics = read_metrics(folder)
    assert metrics["step"].tolist() == [100, 200, 250]
    assert metrics["recent_return"][-1] == pytest.approx((10 * 0.5 + 10 * 0.5 + 20 * 4.5) / 40)
    assert metrics.events == []
    check_csv(folder)


def test_events_before_the_place_where_it_goes_on_are_kept(folder):
    run = recorded(folder, (100,))
    run.callbacks.on_worker_lost(event(seconds=0.125))
    run.report(200)
    kept = (folder / "metrics.jsonl").read_bytes()
    run.callbacks.on_worker_lost(event(rank=1, seconds=0.25))
    Reports(MetricsCallback(folder)).start(200)
    assert (folder / "metrics.jsonl").read_bytes() == kept
    # A new server knows of it, since the training was not killed.
    run = Reports(MetricsCallback(folder)).start(210)
    run.callbacks.on_worker_lost(event(seconds=0.125))
    assert (folder / "metrics.jsonl").read_bytes() == kept
    assert [each["rank"] for each in read_metrics(folder).events] == [2]


def test_another_agent_that_goes_on_does_not_append(folder, caplog):
    callback = MetricsCallback(folder)
    run = Reports(callback).start()
    run.report(100)
    assert json.loads((folder / "metrics.jsonl").read_bytes())["run"] == run.agent.run_id
    run.end().start(100).report(200)  # another call of train
    state_of(run.agent).places.run = "another0"
    run.end().start(200).report(300)  # one callback for another agent
    assert read_metrics(folder)["step"].tolist() == [300]
    Reports(MetricsCallback(folder), run="a third!").start(1_000).report(1_100)
    assert read_metrics(folder)["step"].tolist() == [1_100]
    assert read_metrics(folder / "metrics.1.jsonl")["step"].tolist() == [100, 200]
    assert read_metrics(folder / "metrics.2.jsonl")["step"].tolist() == [300]
    assert caplog.text.count("they are of another agent") == 2


def test_time_and_steps_count_over_all_calls_of_train(folder):
    callback = MetricsCallback(folder)
    run = Reports(callback).start()
    run.report(1000)
    file = os.stat(folder / "metrics.jsonl").st_ino
    run.end().start(1000, before=1000)
    run.report(1500)
    run.end()
    assert os.stat(folder / "metrics.jsonl").st_ino == file  # what is known need not be read again
    Reports(MetricsCallback(folder)).start(1500, before=1000).report(1750)
    metrics = read_metrics(folder)
    assert metrics["step"].tolist() == [1000, 1500, 1750]
    assert metrics["steps"].tolist() == [1000, 500, 750]
    np.testing.assert_allclose(metrics["time"], [1.0, 1.5, 1.75])
    check_csv(folder)
    assert not (folder / "metrics.lost.jsonl").exists()


def test_a_new_callback_for_each_call_reads_and_writes_nothing_again(folder):
    run, files = Reports(MetricsCallback(folder)).start(), ("metrics.jsonl", "metrics.csv")
    run.report(1000, mean_return=2.0, episodes=60)
    run.end()
    places = [os.stat(folder / name).st_ino for name in files]
    for step in (2000, 3000):
        run = Reports(MetricsCallback(folder)).start(step - 1000, before=step - 1000)
        run.callbacks.on_worker_lost(event(seconds=step / 8000))
        run.report(step, mean_return=4.0, episodes=60, events=(event(seconds=step / 8000),))
        run.end()
        metrics = read_metrics(folder)
        assert metrics["recent_return"][-1] == (3.0 if step == 2000 else 4.0)
    assert [os.stat(folder / name).st_ino for name in files] == places
    assert metrics["step"].tolist() == [1000, 2000, 3000] and metrics["time"].tolist() == [1.0, 2.0, 3.0]
    # Event by event: both calls have one that both tell of.
    assert [(each["step"], each["time"]) for each in metrics.events] == [(1000, 1.25), (2000, 2.375)]
    check_csv(folder)


def test_a_new_callback_goes_back_although_the_last_one_is_at_rest(folder):
    recorded(folder).end()
    Reports(MetricsCallback(folder)).start(200).report(250)
    assert read_metrics(folder)["step"].tolist() == [100, 200, 250]
    assert [line["step"] for line in lines(folder, "metrics.lost.jsonl")] == [300]
    check_csv(folder)


def test_a_new_callback_sees_what_others_did_while_the_last_one_was_at_rest(folder, caplog):
    recorded(folder).end()
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b"half a li")  # of another process that was killed
    run = Reports(MetricsCallback(folder)).start(300)
    run.report(400)
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300, 400]
    run.end()
    os.unlink(folder / "metrics.csv")
    Reports(MetricsCallback(folder)).start(400).report(500)
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300, 400, 500]
    check_csv(folder)
    Reports(MetricsCallback(folder), run="another!").start(500).report(600)
    assert read_metrics(folder)["step"].tolist() == [600] and "they are of another agent" in caplog.text


def test_another_run_renames_the_files_of_the_one_before(folder):
    for end in (100, 200, 300):
        recorded(folder, (end,))
    with open(folder / "metrics.lost.jsonl", "wb") as file:
        file.write(b"lost\n")
    recorded(folder, (400,))
    for number, end in ((1, 100), (2, 200), (3, 300)):
        assert read_metrics(folder / f"metrics.{number}.jsonl")["step"].tolist() == [end]
        assert (folder / f"metrics.{number}.csv").read_bytes().count(b"\n") == 2
    assert (folder / "metrics.3.lost.jsonl").read_bytes() == b"lost\n"
    assert not (folder / "metrics.lost.jsonl").exists()
    assert read_metrics(folder)["step"].tolist() == [400]


def test_one_callback_for_several_agents(folder):
    run = recorded(folder, (100,)).end()
    run.start().report(50)
    assert read_metrics(folder)["step"].tolist() == [50]
    assert read_metrics(folder / "metrics.1.jsonl")["step"].tolist() == [100]


def test_a_run_that_has_recorded_nothing_leaves_no_file_behind(folder):
    recorded(folder, ())
    recorded(folder, (100,))
    assert sorted(os.listdir(folder)) == ["metrics.csv", "metrics.jsonl"]


def test_damaged_metrics_are_renamed_and_do_not_stop_a_run(folder, caplog):
    recorded(folder)
    content = (folder / "metrics.jsonl").read_bytes().replace(b'"step": 200', b'"step": 2x0')
    (folder / "metrics.jsonl").write_bytes(content)
    Reports(MetricsCallback(folder)).start(300).report(400)
    assert (folder / "metrics.1.jsonl").read_bytes() == content
    assert "line 2" in caplog.text
    assert read_metrics(folder)["step"].tolist() == [400]


# Two writers, and disks that are full


def test_who_was_replaced_writes_no_more(folder, caplog):
    old = recorded(folder, (100, 200))
    new = Reports(MetricsCallback(folder)).start(150)
    old.report(300)
    old.report(400)
    old.end()
    assert caplog.text.count("records no more") == 1
    new.report(250)
    assert read_metrics(folder)["step"].tolist() == [100, 250]
    check_csv(folder)


def test_who_was_replaced_and_serves_again_goes_on_with_what_is_there(folder):
    old = recorded(folder, (100, 200))
    Reports(MetricsCallback(folder)).start(200).report(300)
    old.start(300).report(400)
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300, 400]
    check_csv(folder)


def test_a_folder_that_is_gone_does_not_end_a_training(folder, caplog):
    run = recorded(folder)
    os.unlink(folder / "metrics.jsonl")
    assert run.report(400)
    assert "is gone" in caplog.text and not (folder / "metrics.jsonl").exists()


@pytest.mark.parametrize("leaves_half", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_what_a_full_disk_refuses_is_written_later(folder, monkeypatch, caplog, number, leaves_half):
    run = recorded(folder)
    write, rests = os.write, []

    def full(handle, data):
        if leaves_half and data not in rests:
            rests.append(data[10:])
            return write(handle, data[:10])
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert run.report(400)
        assert run.report(500, events=(event(),))
    assert caplog.text.count(os.strerror(number)) == 1
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300]
    run.report(600)
    assert read_metrics(folder)["step"].tolist() == [100, 200, 300, 400, 500, 600]
    assert len(read_metrics(folder).events) == 1
    check_csv(folder)


def test_a_folder_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "file").touch()
    with pytest.raises(MetricsError, match="cannot be written to .*file"):
        Reports(MetricsCallback(tmp_path / "file")).start()
    run = Reports(MetricsCallback(tmp_path / "file")).start(1000)  # far on, it would be a pity
    assert run.report(2000)
    assert "goes on without" in caplog.text


# Reading


def test_there_is_nothing_to_read(tmp_path):
    with pytest.raises(MetricsError, match=r"metrics.jsonl cannot be read.*MetricsCallback\(folder\)"):
        read_metrics(tmp_path)
    recorded(tmp_path, ())
    assert len(read_metrics(tmp_path)) == 0 and read_metrics(tmp_path).ranks == {}


def test_a_column_that_is_not_there(folder):
    recorded(folder)
    with pytest.raises(MetricsError, match="no column 'mean_retrun'.*Did you mean 'mean_return'"):
        read_metrics(folder)["mean_retrun"]
    for name in (0, ["step"], None):
        with pytest.raises(MetricsError, match="no column"):
            read_metrics(folder)[name]


@pytest.mark.slow
def test_records_of_long_runs_take_little_more_memory_than_their_file(folder):
    ranks = [hand_made.rank(number, 1_000) for number in range(1, 9)]
    hand_made.write(folder, [hand_made.report(1_000 * i, float(i), ranks) for i in range(1, 2_000)])
    size = (folder / "metrics.jsonl").stat().st_size
    tracemalloc.start()
    metrics = read_metrics(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(metrics) == len(metrics.ranks[8]["host"]) == 1_999
    assert size < peak < 2.5 * size


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda line: b"", "it is no JSON"),
        (lambda line: line[:-3], "it is no JSON"),
        (lambda line: b"\0" * 20, "it is no JSON"),
        (lambda line: b"\xff\xfe", "it is no JSON"),
        (lambda line: b"[]", "neither progress nor an event"),
        (lambda line: line.replace(b'"progress"', b'"else"'), "neither progress nor an event"),
        (lambda line: line.replace(b'"step": 200', b'"step": 2.5'), "no step"),
        (lambda line: line.replace(b'"step": 200', b'"step": 100'), "step 100 comes after step 100"),
        (lambda line: line.replace(b'"step": 200', b'"step": 50'), "step 50 comes after step 100"),
        (lambda line: line.replace(b'"staleness": 1.5, "workers"', b'"workers"'), "it lacks staleness"),
        (lambda line: line.replace(b'"epsilon": 0.1', b'"epsilon": "x"'), "its epsilon is 'x'"),
        (lambda line: line.replace(b'"workers": 2', b'"workers": null'), "its workers is None"),
        (lambda line: line.replace(b'"step": 200', b'"step": ' + b"9" * 19), "no step"),
        (lambda line: line.replace(b'"workers": 2', b'"workers": ' + b"9" * 19), "its workers is 9"),
        (lambda line: line.replace(b'"epsilon": 0.1', b'"epsilon": 1' + b"0" * 400), "its epsilon is 10"),
        (lambda line: line.replace(b'"epsilon": 0.1', b'"epsilon": Infinity'), "its epsilon is inf"),
        (lambda line: re.sub(rb'"time": [^,]+,', b'"time": NaN,', line), "no step or no time"),
        (lambda line: re.sub(rb'"time": [^,]+,', b'"time": null,', line), "no step or no time"),
        (lambda line: re.sub(rb'"time": [^,]+,', b'"time": 1' + b"0" * 400 + b",", line), "no time"),
        (lambda line: line.replace(b'"host1"', b"1"), "its ranks"),
        (lambda line: b'{"kind": "event", "step": 200, "time": 1.0, "event": {}}', "it has no event"),
        (lambda line: b'{"kind": "event", "step": 50, "time": 1.0}', "it has no event"),
    ],
)
def test_what_else_is_wrong_is_said_with_the_line(folder, change, complaint):
    recorded(folder)
    content = (folder / "metrics.jsonl").read_bytes().splitlines()
    assert change(content[1]) != content[1]
    content[1] = change(content[1])
    (folder / "metrics.jsonl").write_bytes(b"\n".join(content) + b"\n")
    with pytest.raises(MetricsError, match=rf"metrics.jsonl, line 2: .*{complaint}"):
        read_metrics(folder)


def test_reports_without_a_line_are_in_the_next_one(folder):
    run = recorded(folder, (100,))
    before = read_metrics(folder)
    first = read_metrics(folder)["seconds"][0]
    for _ in range(3):  # nobody has made a step
        run.report(100)
    run.report(200)
    after = read_metrics(folder)
    assert after["step"].tolist() == [100, 200]
    assert (
        after["pushes"][1] == 4 * before["pushes"][0]
        and after["bytes_pulled"][1] == 4 * before["bytes_pulled"][0]
    )
    passed = after["seconds"][1] - first
    assert after["steps_per_second"][1] == pytest.approx(100 / passed)
    rank = after.ranks[1]
    assert rank["steps_per_second"][1] == pytest.approx(rank["steps"][1] / passed)


def test_means_of_joined_reports_are_weighted():
    history = ReportHistory()
    for number in range(1_000):  # so many that neighbors are joined
        steps, seconds = 400 * number, 4.0 * number
        first = progress(steps + 100, td_error=1.0, communication_fraction=0.5, seconds=seconds + 1.0)
        history.add(first)
        other = {"seconds": seconds + 4.0, "workers": 4, "communication_fraction": 0.22}
        history.add(progress(steps + 400, td_error=2.0, **other))
    joined = history.reports
    assert len(joined) == 1_000 and {each.td_error for each in joined} == {1.75}
    for each in joined:
        assert each.communication_fraction == pytest.approx((1 * 2 * 0.5 + 3 * 4 * 0.22) / (1 * 2 + 3 * 4))
        assert each.steps_per_second == pytest.approx(100.0)
    nothing = {"td_error": math.nan, "communication_fraction": 0.0, "seconds": 5_000.0}
    history.add(progress(400_000, **nothing))  # nobody has made a step
    assert history.reports[-1].td_error == 1.75
    assert history.reports[-1].communication_fraction == joined[-1].communication_fraction
