"""How many of something there are, in messages."""

import io
import os
import sys
from pathlib import Path

import hand_made_metrics as hand_made
import numpy as np
import pytest
from learned_runs import make_run, run_command

from dist_classicrl._words import closest, counted, nearest, shown_name, why_not_compiled
from dist_classicrl.cli.main import main
from dist_classicrl.diagnosis import cores
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.plotting import canvas
from dist_classicrl.settings import Settings


@pytest.mark.parametrize(
    "number, said", [(0, "0 workers"), (1, "1 worker"), (2, "2 workers"), (1024, "1,024 workers")]
)
def test_one_is_no_plural(number, said):
    assert counted(number, "worker") == said


def test_what_is_no_word_is_like_no_other():
    assert closest("tabel", ["table"]) == "table" and nearest("tabel", ["table"]) == " Did you mean 'table'?"
    assert closest(5, ["table"]) is None and nearest(None, ["table"]) == ""


def test_a_name_that_is_no_utf_8_can_be_shown():
    names = ["caf\udce9", "caf\udcea", "café", Path("a/b")]
    assert [*map(shown_name, names)] == [r"caf\xe9", r"caf\xea", "café", "a/b"]


def test_what_numba_says_is_told_without_its_colors():
    colored = TypeError("\x1b[1m\x1b[1mFailed in \x1b[31;1mnopython\x1b[0m mode [pipeline]\x1b[0m")
    assert why_not_compiled(colored) == "Numba says why: Failed in nopython mode [pipeline]"


@pytest.mark.slow
def test_runs_whose_names_are_no_utf_8_are_drawn_and_told_of(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [str(hand_made.learning_run(tmp_path / name)) for name in ("caf\udce9", "b\udce9")]
    commands = (
        *(("plot", runs[0], "--kind", kind, "--out", "one.svg") for kind in ("all", "curves", "timeline")),
        ("plot", *runs, "--out", "several.svg"),
        ("report", *runs, "--baseline", runs[1], "--out", "scaling.svg"),
    )
    for words in commands:
        assert run_command(capsys, *words)[0] == 0, words
    table = run_command(capsys, "report", *runs, "--baseline", runs[1])[1]
    assert r"caf\xe9 " in table and r"b\xe9 (baseline)" in table

    make_run(tmp_path / "l\udce9", "FrozenLake-v1", np.ones((16, 4)))
    assert run_command(capsys, "plot", "l\udce9", "--kind", "maps", "--out", "map.svg")[0] == 0
    assert run_command(capsys, "report", "l\udce9", "--html", "page.html")[0] == 0
    assert r"<h1>l\xe9</h1>" in Path("page.html").read_text()


def test_commands_say_one_worker(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(canvas, "save", lambda figure, path: path)
    run = hand_made.learning_run(tmp_path / "run", reports=2, workers=1)
    assert run_command(capsys, "plot", str(run))[1] == f"{run / 'plot.png'}: 2 reports, 1 worker\n"
    assert run_command(capsys, "plot", str(run), "--kind", "timeline")[1].endswith(": 1 rank, 0 events\n")


def test_names_that_are_no_utf_8_are_written_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(canvas, "save", lambda figure, path: path)
    run = hand_made.learning_run(tmp_path / "caf\udce9", reports=2, workers=1)
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "utf-8"))
    assert main(["plot", str(run), "--kind", "curves"]) == 0
    sys.stdout.flush()
    assert written.getvalue() == os.fsencode(run / "curves.png") + b": 2 reports\n"


def test_doctor_says_one_worker(monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    assert "1 worker and a server" in str(cores.examine_slots(TrainingPlan(2, Settings())))
