import io
import logging
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from terminals import run_on_terminal

from dist_classicrl.callbacks import logs
from dist_classicrl.callbacks.bar import bar, clock, drawn, short
from dist_classicrl.callbacks.display import LogCallback, StatusCallback, StatusFile, as_line, time_left
from dist_classicrl.callbacks.shown import ShownTraining
from dist_classicrl.engines.progress import Progress, RankProgress

ROOT = Path(__file__).resolve().parents[2]

HALF = Progress(
    steps=50_000_000,
    total_steps=100_000_000,
    steps_per_second=1e6,
    episodes=12,
    mean_return=0.73456,
    seconds=50.0,
    epsilon=0.1,
    workers=2,
    ranks=(RankProgress(1, "node1", 10, 4.5e5, 0.1, 1.25, 0.04), RankProgress(2, "node2", 9, 5.5e5)),
)


class Agent:
    steps = 0


def called(callback, *reports):
    callback.init_callback(Agent())
    callback.on_training_start(reports[0])
    for report in reports:
        callback.on_step(report)
    return callback


def text_of(renderable, width=80, **settings):
    file = io.StringIO()
    Console(file=file, width=width, **settings).print(renderable)
    return file.getvalue()


# Lines and files


def test_a_line_has_names_and_values():
    words = dict(word.split("=") for word in as_line(HALF).split())
    assert words["steps"] == "50000000" and words["total_steps"] == "100000000"
    assert float(words["rate"]) == 1e6 and float(words["return"]) == 0.7346
    assert (words["workers"], words["left"], words["epsilon"]) == ("2", "50", "0.1")
    assert math.isnan(float(dict(w.split("=") for w in as_line(Progress(0, 5)).split())["left"]))


@pytest.mark.parametrize(
    "steps, rate, left", [(0, 0.0, None), (50, 10.0, 5.0), (100, 0.0, 0.0), (150, 1.0, 0.0)]
)
def test_the_time_left_is_known_once_there_is_a_rate(steps, rate, left):
    assert time_left(Progress(steps, 100, steps_per_second=rate)) == left


def test_a_line_is_logged_every_so_often_and_at_the_end(caplog):
    now = [0.0]
    callback = LogCallback(30.0, clock=lambda: now[0])
    callback.init_callback(Agent())
    with caplog.at_level(logging.INFO, "dist_classicrl.progress"):
        callback.on_training_start(Progress(0, 100))
        for step in range(1, 66):
            now[0] = float(step)
            callback.on_step(Progress(step, 100))
        callback.on_close()
        callback.on_close()
    assert [message.split()[0] for message in caplog.messages] == ["steps=30", "steps=60", "steps=65"]


def test_the_last_line_is_of_the_last_report_with_a_step(caplog):
    callback = LogCallback(30.0, clock=lambda: 0.0)
    callback.init_callback(Agent())
    with caplog.at_level(logging.INFO, "dist_classicrl.progress"):
        callback.on_training_start(Progress(0, 100))
        callback.on_step(Progress(65, 100, steps_per_second=5.0))
        callback.on_step(Progress(65, 100))
        callback.on_close()
    assert [message.split()[2] for message in caplog.messages] == ["rate=5"]


def test_the_return_that_is_shown_is_of_recent_episodes_and_not_of_the_last_report_alone(tmp_path):
    many = Progress(60, 100, episodes=300, mean_return=0.5, mean_length=2.0)
    last = Progress(100, 100, episodes=1, mean_return=-9.0, mean_length=2.0)
    none = Progress(100, 100)
    lines, recent = [], (300 * 0.5 - 9.0) / 301
    shown = [
        LogCallback(1e9, write=lines.append),
        StatusCallback(tmp_path / "status"),
        ShownTraining(None, False, False),
    ]
    for callback in shown:
        callback.init_callback(Agent())
        callback.on_training_start(Progress(0, 100))
        for progress in (many, last, none):
            callback.on_step(progress)
    shown[0].on_close()
    assert f"return={recent:.4g}" in lines[0]
    assert StatusFile(tmp_path / "status").progress.mean_return == pytest.approx(recent)
    assert shown[2].progress.mean_return == pytest.approx(recent)


def test_a_rank_that_never_served_says_nothing(caplog, tmp_path):
    for callback in (LogCallback(0.0), StatusCallback(tmp_path / "status")):
        callback.init_callback(Agent())
        callback.on_close()
    assert caplog.messages == [] and list(tmp_path.iterdir()) == []


def test_another_process_reads_how_far_the_run_is(tmp_path):
    status = StatusFile(tmp_path / "status")
    assert (status.progress, status.has_ended) == (None, False)
    callback = called(StatusCallback(tmp_path / "status"), HALF)
    assert (status.progress, status.has_ended) == (HALF, False)
    callback.on_close()
    assert (status.progress, status.has_ended) == (HALF, True)
    assert [path.name for path in tmp_path.iterdir()] == ["status"]
    (tmp_path / "status").unlink()
    assert status.progress == HALF  # a file that is gone for a moment takes nothing back


@pytest.mark.parametrize("text", ["", "{", "[]", '{"progress": {}}', '{"progress": {"steps": 1}}'])
def test_a_status_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "status").write_text(text)
    assert StatusFile(tmp_path / "status").progress is None


# Log lines


@pytest.fixture
def set_up():
    """Set up logging, and take it down afterwards."""
    yield logs.set_up
    for name in ("dist_classicrl", "dist_classicrl.progress"):
        for handler in list(logging.getLogger(name).handlers):
            logging.getLogger(name).removeHandler(handler)
            handler.close()


def speak():
    logging.getLogger("dist_classicrl.any").info("detail")
    logging.getLogger("dist_classicrl.any").warning("trouble")
    logging.getLogger("dist_classicrl.any").error("failure")
    logging.getLogger("dist_classicrl.membership.events").warning("rank lost")
    logging.getLogger("dist_classicrl.progress").info("steps=5")


def said(stream):
    return [line.split(" ", 2)[2] for line in stream.splitlines()]


@pytest.mark.parametrize(
    "rank, settings, out, err",
    [
        (0, {}, ["steps=5"], ["trouble", "failure", "rank lost"]),
        (0, {"is_verbose": True}, ["steps=5"], ["detail", "trouble", "failure", "rank lost"]),
        (0, {"is_quiet": True}, [], ["trouble", "failure", "rank lost"]),
        # Only who serves logs reports and what happens to ranks.
        (1, {}, ["steps=5"], ["failure", "rank lost"]),
        (1, {"is_verbose": True}, ["steps=5"], ["failure", "rank lost"]),
    ],
)
def test_the_console_hears_who_serves(set_up, capsys, rank, settings, out, err):
    set_up(rank, **settings)
    speak()
    heard = capsys.readouterr()
    assert (said(heard.out), said(heard.err)) == (out, err)


def test_a_rank_that_has_to_serve_begins_to_speak(set_up, capsys):
    callback = set_up(3)
    called(callback, HALF)
    speak()
    assert said(capsys.readouterr().err) == ["trouble", "failure", "rank lost"]


def test_each_rank_has_a_file_once_it_says_something(set_up, tmp_path):
    set_up(3, tmp_path / "logs")
    assert list((tmp_path / "logs").iterdir()) == []
    speak()
    lines = (tmp_path / "logs" / "rank-3.log").read_text().splitlines()
    assert len(lines) == 5 and lines[0].endswith("INFO dist_classicrl.any: detail")
    set_up(4, tmp_path / "logs")
    speak()
    assert len((tmp_path / "logs" / "rank-3.log").read_text().splitlines()) == 5


def remove(folder):
    shutil.rmtree(folder)


def fill_up(folder):
    (folder / "rank-0.log").symlink_to("/dev/full")


@pytest.mark.parametrize("happens", [remove, fill_up])
def test_a_log_file_that_cannot_be_written_costs_its_lines_and_not_the_run(set_up, capsys, tmp_path, happens):
    set_up(0, tmp_path / "logs")
    happens(tmp_path / "logs")
    speak()
    speak()
    first, *others = said(capsys.readouterr().err)
    assert "rank-0.log" in first and "are dropped" in first
    assert others == 2 * ["trouble", "failure", "rank lost"]
    shutil.rmtree(tmp_path / "logs", ignore_errors=True)
    (tmp_path / "logs").mkdir()
    if happens is remove:
        speak()
        assert len((tmp_path / "logs" / "rank-0.log").read_text().splitlines()) == 5


def test_lines_for_which_standard_output_has_no_room_are_dropped_and_the_others_come(
    set_up, capsys, monkeypatch
):
    set_up(0)
    with monkeypatch.context() as patch, open("/dev/full", "w", buffering=1) as full:
        patch.setattr(sys, "stdout", full)
        speak()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what it holds has to go somewhere
    heard = capsys.readouterr()
    assert (heard.out, said(heard.err)) == ("", ["trouble", "failure", "rank lost"])


# The bar


@pytest.mark.parametrize(
    "number, text",
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (45_210_000, "45.2M"),
        (999_999, "1M"),
        (0.12345, "0.123"),
        (7.5e9, "7.5G"),
    ],
)
def test_numbers_are_short(number, text):
    assert short(number) == text


def test_durations_are_those_of_a_clock():
    assert [clock(seconds) for seconds in (0, 7.4, 754, 3723)] == ["0:00", "0:07", "12:34", "1:02:03"]


def test_a_bar_has_all_that_one_wants_to_know():
    lines = text_of(drawn(HALF, with_workers=False)).splitlines()
    assert len(lines) == 2 and all(len(line) <= 80 for line in lines)
    assert "50%  0:50 left" in lines[0]
    assert lines[1].split("  ") == [
        *("50M/100M steps", "1M/s", "return 0.7346", "epsilon 0.1", "2 workers"),
    ]


def test_each_worker_has_a_line_if_asked():
    lines = text_of(drawn(HALF, with_workers=True)).splitlines()
    assert lines[2].split() == ["rank", "host", "steps/s", "staleness", "last", "heard"]
    assert lines[3].split() == ["1", "node1", "450k", "1.25", "0.0", "s", "ago"]
    assert len(lines) == 5


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_bar_fits_any_terminal(width):
    lines = text_of(drawn(HALF, with_workers=False), width=width).splitlines()
    assert len(lines) == 2 and all(len(line) <= width for line in lines)


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" in text_of(drawn(HALF, False), force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in text_of(drawn(HALF, False), force_terminal=True)


def test_a_bar_says_what_it_waits_for_and_then_how_far_it_is():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    reports = [None]
    with bar(console, lambda: reports[0], lambda: "starting 3 ranks"):
        reports[0] = HALF
    shown = file.getvalue()
    assert shown.index("starting 3 ranks") < shown.index("50M/100M steps")


# A terminal

DRAWS = """
import subprocess, sys, time
from pathlib import Path
from dist_classicrl.cli.terminal import bar_of_a_job, has_terminal
from dist_classicrl.callbacks.display import StatusFile
assert has_terminal()
with bar_of_a_job(StatusFile(Path(sys.argv[1])), "starting", False):
    subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], check=True)
print("afterwards")
"""

WORKS = """
import sys, time
from pathlib import Path
from dist_classicrl.engines.progress import Progress
from dist_classicrl.callbacks.display import StatusCallback
assert not sys.stdout.isatty() and not sys.stderr.isatty()
callback = StatusCallback(Path(sys.argv[1]))
callback.init_callback(type("Agent", (), {"steps": 0}))
callback.on_training_start(Progress(0, 100))
print("a line [bold] of output", flush=True)
print("\\x1b[31man error\\x1b[0m", file=sys.stderr, flush=True)
callback.on_step(Progress(70, 100, workers=5))
while not Path(sys.argv[1] + ".seen").exists():
    time.sleep(0.01)
callback.on_close()
print("a summary", flush=True)
print("\\x1b[0m", end="", flush=True)
"""


def test_what_processes_of_a_job_write_appears_above_the_bar_and_the_end_below(tmp_path):
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": ""}
    command = [sys.executable, "-c", DRAWS, str(tmp_path / "status"), WORKS]
    seen = tmp_path / "status.seen"
    status, shown = run_on_terminal(
        command, lambda process, got: seen.touch() if b"an error" in got else None, env=environment
    )
    assert status == 0, shown
    last_bar = shown.rindex("70/100 steps")
    assert "starting" in shown and "5 workers" in shown
    assert shown.index("a line [bold] of output") < shown.index("an error") < last_bar
    assert last_bar < shown.index("a summary") < shown.index("afterwards")
    assert "\x1b[31man error" in shown
    assert "summary\r\n\r\n" not in shown


def test_a_terminal_without_a_width_shows_what_processes_of_a_job_write(tmp_path):
    """As that of mpirun's ranks, whose input is none."""
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", DRAWS, str(tmp_path / "status"), "print('a summary')"]
    where = {"stdin": subprocess.DEVNULL, "env": environment}
    status, shown = run_on_terminal(command, lambda process, got: None, columns=0, **where)
    assert (status, "a summary" in shown) == (0, True), shown
