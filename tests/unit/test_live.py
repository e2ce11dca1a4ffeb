"""`--live`: what a screen shows of a run and of a study, and that a terminal gets its screen back."""

import io
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_made_metrics import event, learning_run, rank, report, write
from learned_runs import run_command
from rich.console import Console
from rich.screen import Screen
from terminals import run_on_terminal

from dist_classicrl import Sweep
from dist_classicrl.cli.live.chart import Chart, braille, dots
from dist_classicrl.cli.live.run_view import LiveRecords, RunView
from dist_classicrl.cli.live.screen import check_screen
from dist_classicrl.cli.live.study_view import StudyView
from dist_classicrl.errors import SettingsError
from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
from dist_classicrl.sweep.folder import Member, StudyFolder

ROOT = Path(__file__).resolve().parents[2]
TAKEN, GIVEN_BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def lines_of(view, width=80, height=24, said=()):
    file = io.StringIO()
    console = Console(file=file, width=width, height=height)
    console.print(Screen(view.picture(list(said))), end="")
    lines = file.getvalue().splitlines()
    assert len(lines) == height and all(len(line) <= width for line in lines)
    return lines


# Curves


def test_dots_go_from_the_lowest_to_the_highest_value_without_a_gap():
    picture = dots([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0], 20, 12)
    assert picture[-1, 0] and picture[0, -1] and picture.any(axis=0).all() and picture.any(axis=1).all()
    rows = [np.flatnonzero(column).mean() for column in picture.T]
    assert all(later <= before for before, later in zip(rows, rows[1:], strict=False))


def test_values_that_are_not_known_are_left_out_and_one_alone_is_in_the_middle():
    assert not dots([1, 2], [np.nan, np.inf], 4, 4).any()
    assert (dots([1, 2, 3], [np.nan, 5.0, np.nan], 4, 5) == dots([2], [5.0], 4, 5)).all()
    assert dots([2], [5.0], 4, 5).sum() == 1 and dots([2], [5.0], 4, 5)[2, 0]


def test_braille_has_a_bit_for_each_dot():
    picture = np.zeros((4, 4), bool)
    picture[0, 0] = picture[3, 3] = True
    assert braille(picture) == ["\u2801\u2880"]
    assert braille(np.ones((4, 2), bool)) == ["\u28ff"]


def test_a_terminal_without_braille_gets_stars():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=40, height=8).print(Chart([1, 2_000_000], [0.25, 0.5], "none"))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")
    assert "*" in text and "0.25" in text and "0.5" in text and "2M steps" in text


# Runs


def test_records_are_read_as_they_come_and_anew_when_another_process_goes_on(tmp_path):
    records = LiveRecords(write(tmp_path, []) / "metrics.jsonl")
    records.look()
    assert records.progress is None
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(report(10, 1.0, [rank(1, 5), rank(2, 5)])) + "\n{")
    records.look()
    assert (records.progress.steps, records.steps, records.gone) == (10, [10], {})
    write(tmp_path / "other", [report(4, 1.0, [rank(2, 4)]), event("excluded", 2, 5, 1.5)])
    (tmp_path / "other" / "metrics.jsonl").replace(tmp_path / "metrics.jsonl")
    records.look()
    assert (records.steps, records.gone, len(records.events)) == ([4], {2: "node2"}, 1)


def test_a_long_curve_keeps_every_other_point(tmp_path, monkeypatch):
    monkeypatch.setattr("dist_classicrl.cli.live.run_view._MOST_POINTS", 16)
    records = LiveRecords(learning_run(tmp_path, reports=100) / "metrics.jsonl")
    records.look()
    assert 8 <= len(records.steps) <= 16 and records.steps == sorted(records.steps)
    assert len(records.steps) == len(records.returns)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_run_has_its_progress_curve_workers_and_what_happened(tmp_path, size):
    ranks = [rank(1, 500), {**rank(3, 500), "silence": 61.0}]
    learning_run(tmp_path)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        for line in (event("excluded", 2, 10**9, 201.0), report(10**9, 202.0, ranks, total_steps=2 * 10**9)):
            file.write(json.dumps(line) + "\n")
    lines = lines_of(RunView(tmp_path, "FrozenLake-v1", "Ctrl-C ends it"), *size, said=["a warning"])
    text = "\n".join(lines)
    assert lines[0].startswith("FrozenLake-v1") and lines[0].rstrip().endswith("Ctrl-C ends it")
    assert "50%" in lines[1] and "1G/2G steps" in lines[2]
    assert "3:21 excluded rank 2" in text and "a warning" in text
    states = {line.split()[1]: line for line in lines if "node" in line}
    assert "learns" in states["1"] and "silent 1:01" in states["3"] and "gone" in states["2"]
    assert any("\u2801" <= letter <= "\u28ff" for letter in text)


def test_before_the_first_record_it_says_so(tmp_path):
    assert "Before the first record" in "\n".join(lines_of(RunView(tmp_path, "x", "y")))


# Studies


@pytest.fixture
def study(tmp_path):
    """A study with 16 runs, and a function that writes down one that was made."""
    sweep = Sweep(
        {"lake": "FrozenLake-v1"},
        1_000,
        seeds=4,
        vary={"learning_rate": [0.1, 0.2], "epsilon": [0.1, 0.3]},
        folder=tmp_path,
    )
    folder = StudyFolder(tmp_path)
    folder.begin(sweep.plan.to_dict())
    with Member(folder) as member:

        def make(run, value, error=None):
            trial = sweep.plan.trial(run)
            record = {"key": trial.key, "run": run, "error": error}
            if error is None:
                known = {"optimal_value": 1.0, "random_value": 0.0, "exact_value": value}
                returns = {"training_return": value, "final_return": value, "episodes": 10}
                record |= {"seconds": 0.1, "train_seconds": 0.1, "steps": 1_000, **known, **returns}
                record["curve"] = [[500, 0.1, 5], [1_000, value, 5]]
            member.keep(record)

        yield make


def test_a_study_has_its_runs_processes_best_settings_and_failures(study, tmp_path):
    view = StudyView(tmp_path, "Ctrl-C ends it")
    assert "0/16 runs" in "\n".join(lines_of(view))
    for run, value in ((0, 0.25), (1, 0.75), (4, 0.875)):
        study(run, value)
    study(8, None, "EnvError: it is broken")
    lines = lines_of(view, said=["a warning"])
    assert "25%" in lines[1] and "4/16 runs  1 failed  12 left" in lines[2]
    best = [line.split()[1:] for line in lines if "learning_rate=" in line]
    assert best[0][:4] == ["0.875", "1", "learning_rate=0.1", "epsilon=0.3"]
    assert best[1][:4] == ["0.5", "2", "learning_rate=0.1", "epsilon=0.1"]
    (process,) = [line for line in lines if f".{os.getpid()}" in line]
    assert "works" in process and process.split()[-3] == "4"
    text = "\n".join(lines)
    assert "run 8: EnvError: it is broken" in text and "a warning" in text and "1k steps" in text


def test_settings_that_got_further_come_before_those_that_were_stopped_early(whole_study, tmp_path):
    plan = whole_study.plan
    with Member(StudyFolder(tmp_path)) as member:

        def make(run, steps, value):
            trial = plan.trial(run, steps)
            known = {"optimal_value": 1.0, "random_value": 0.0, "exact_value": value, "final_return": value}
            more = {"training_return": value, "episodes": 10, "seconds": 0.1, "train_seconds": 0.1}
            curve = [[steps, value, 5]]
            member.keep(
                {"key": trial.key, "run": run, "error": None, "steps": steps, "curve": curve} | known | more
            )

        for run in range(18):  # the first settings are the best after 100 steps, and not after 300
            make(run, 100, 0.75 - run // 3 / 8)
        for run in range(6):
            make(run, 300, 0.25 + run // 3 / 8)
    lines = lines_of(StudyView(tmp_path, "x"), height=34)
    best = [line.split()[1:5] for line in lines if "epsilon=" in line]
    assert best[:3] == [
        ["0.375", "3", "300", "epsilon=0.2"],
        ["0.25", "3", "300", "epsilon=0.1"],
        ["0.5", "3", "100", "epsilon=0.3"],
    ]
    told = {each["settings"]: each for each in whole_study.summary()}
    assert [told[f"epsilon={name}"]["steps"] for name in ("0.2", "0.3")] == [300, 100]
    first = whole_study.first_rows()
    assert len(first) == 18 and {row["steps"] for row in first} == {100}
    assert [row["score"] for row in first[:4]] == [0.75, 0.75, 0.75, 0.625]


def test_a_study_that_is_not_there_yet_is_no_error(tmp_path):
    assert "no study yet" in "\n".join(lines_of(StudyView(tmp_path / "none", "x")))


def test_with_early_stopping_there_are_more_trainings_than_runs(whole_study):
    # 6 settings, then 2 of them, then 1, of 3 seeds each.
    assert whole_study.trainings == (6 + 2 + 1) * 3
    assert whole_study.group_of(4) == ("FrozenLake-v1", "epsilon=0.2")


@pytest.fixture
def whole_study(tmp_path):
    from dist_classicrl import Study

    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    stopping = SuccessiveHalving(factor=3, rungs=3)
    sweep = Sweep("FrozenLake-v1", 900, 3, vary={"epsilon": values}, early_stopping=stopping, folder=tmp_path)
    StudyFolder(tmp_path).begin(replace(sweep.plan).to_dict())
    return Study(tmp_path)


# Where there is none


@pytest.mark.parametrize("command", ["train FrozenLake-v1", "sweep {study}", "show {run}"])
def test_without_a_terminal_it_is_refused_by_name(command, tmp_path, capsys):
    (tmp_path / "study.toml").write_text('environment = "FrozenLake-v1"\ntotal_steps = 100\n')
    words = command.format(study=tmp_path / "study.toml", run=tmp_path).split()
    more = [] if words[0] == "show" else ["--out", str(tmp_path / "out")]
    status, _, err = run_command(capsys, *words, *more, "--live")
    assert status == 2 and "--live draws on a terminal" in err and "show --live FOLDER" in err
    assert not (tmp_path / "out").exists()


def test_what_is_quiet_or_a_rank_is_not_live():
    with pytest.raises(SettingsError, match="--quiet nothing"):
        check_screen(is_quiet=True)
    with pytest.raises(SettingsError, match="as a rank"):
        check_screen(is_rank=True)


# The screen

DRAWS = """
import os, signal, sys, time
from rich.text import Text
from dist_classicrl.cli.live.screen import full_screen
from dist_classicrl.cli.signals import cleaned_up
class View:
    def picture(self, lines):
        return Text(f"on the screen: {lines}")
print("before", flush=True)
with cleaned_up(), full_screen(View()):
    print("a line", flush=True)
    os.system("echo of a child >&2")
    {end}
print("afterwards")
"""
ENDINGS = {
    "end": ("while not os.path.exists(sys.argv[1]): time.sleep(0.01)", 0),
    "error": ("raise ValueError('own mistake')", 1),
    "exit": ("os._exit(3)", 3),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)", None),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)", 143),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -9),
}


def on_terminal(command, look=lambda process, got: None, **settings):
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": ""}
    return run_on_terminal(command, look, env=environment, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_screen_is_given_back_however_it_ends(ending, tmp_path):
    code, expected = ENDINGS[ending]
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", DRAWS.replace("{end}", code), str(seen)]
    status, got = on_terminal(command, lambda _, got: seen.touch() if b"of a child" in got else None)
    assert status == expected if expected is not None else status in (1, -signal.SIGINT), got
    assert got.index("before") < got.index(TAKEN) < got.rindex(GIVEN_BACK)
    after = got[got.rindex(GIVEN_BACK) :]
    assert got.count(TAKEN) == 1 and CURSOR in got[got.index("on the screen") :]
    if ending in ("end", "error", "SIGINT", "SIGTERM"):  # what was written meanwhile is there, in order
        assert after.index("a line") < after.index("of a child")
    assert ("afterwards" in after) == (ending == "end")
    assert ("own mistake" in after) == (ending == "error")


def test_a_terminal_without_a_size_gets_what_is_drawn_and_what_was_written(tmp_path):
    """As those of containers and of `expect`."""
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", DRAWS.replace("{end}", ENDINGS["end"][0]), str(seen)]
    status, got = on_terminal(
        command, lambda _, got: seen.touch() if b"of a child']" in got else None, columns=0, lines=0
    )
    after = got[got.rindex(GIVEN_BACK) :]
    assert status == 0 and "on the screen: ['a line', 'of a child']" in got, got
    assert after.index("a line") < after.index("of a child") < after.index("afterwards")


@pytest.mark.slow
def test_a_training_and_a_sweep_are_shown_and_their_summaries_come_below(tmp_path):
    out, study = tmp_path / "out", tmp_path / "study.toml"
    study.write_text('environment = "FrozenLake-v1"\ntotal_steps = 1000\nseeds = 2\n')
    dist = [sys.executable, "-m", "dist_classicrl"]
    status, got = on_terminal(
        [*dist, "train", "FrozenLake-v1", "--total-steps", "1e3", "--live", "--out", str(out)]
    )
    assert status == 0 and "Ctrl-C saves and ends it" in got, got
    assert "1,000 steps" in got[got.rindex(GIVEN_BACK) :] and not list(out.glob(".status*"))
    status, got = on_terminal([*dist, "sweep", str(study), "--live", "--out", str(tmp_path / "of")])
    assert status == 0 and "typed again, it goes on" in got, got
    assert "results.csv" in got[got.rindex(GIVEN_BACK) :]
    # Both are done, so there is nothing to wait for.
    for folder in (out, tmp_path / "of"):
        status, got = on_terminal([*dist, "show", str(folder), "--live"])
        assert status == 0 and got.count(TAKEN) == got.count(GIVEN_BACK) == 1, got
        said = " ".join(got[got.rindex(GIVEN_BACK) :].split())
        assert f"{folder} is done. `dist-classicrl show {folder}` shows what has come of it." in said, got
