"""`show` of a folder of runs."""

import json

import hand_made_metrics as hand_made
import pytest
from learned_runs import make_run, run_command

from dist_classicrl.cli import config
from dist_classicrl.cli.main import main
from dist_classicrl.model import places


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run that has ended, one that has not, one that was only begun, and what is no run."""
    monkeypatch.chdir(tmp_path)
    places._agents.clear()
    words = ("--total-steps", "3000", "--eval-episodes", "4", "--seed", "1", "-q")
    assert main(["train", "FrozenLake-v1", *words, "--out", "runs/ended"]) == 0
    lines = [hand_made.report(step, step / 100, recent_return=0.25) for step in (100, 1500)]
    hand_made.write(tmp_path / "runs" / "going on", lines)
    settings = {"environment": "Taxi-v4", "algorithm": "q_learning", "total_steps": 2000}
    for name in ("going on", "only begun"):
        (tmp_path / "runs" / name).mkdir(exist_ok=True)
        config.write(tmp_path / "runs" / name / "config.toml", settings, config.ABOUT)
    (tmp_path / "runs" / "nothing").mkdir()
    (tmp_path / "runs" / "plot.png").write_bytes(b"")


def test_the_runs_in_a_folder_are_listed(runs, capsys):
    status, out, _ = run_command(capsys, "show", "runs")
    head, *rows = [line.split() for line in out.splitlines()]
    assert status == 0 and head[:4] == ["run", "environment", "algorithm", "steps"] and len(rows) == 3
    assert rows[0][:5] == ["runs/ended", "FrozenLake-v1", "q_learning", "3,000", "done"]
    assert " ".join(rows[1]) == "runs/going on Taxi-v4 q_learning 1,500 of 2,000 not ended 0.25 -"
    assert " ".join(rows[2]) == "runs/only begun Taxi-v4 q_learning 0 of 2,000 not ended - -"


def test_the_list_is_there_for_programs_too(runs, capsys):
    ended, going_on, _ = json.loads(run_command(capsys, "show", "runs", "--json")[1])
    result = json.loads(open("runs/ended/result.json").read())
    assert ended["greedy_return"] == result["greedy"]["mean_return"] and ended["has_ended"]
    assert (going_on["steps"], going_on["mean_return"], going_on["greedy_return"]) == (1500, 0.25, None)


@pytest.mark.parametrize("words", [["evaluate"], ["export", "--to", "p.csv"], ["plot", "--kind", "maps"]])
def test_what_needs_one_run_is_told_to_name_one(runs, capsys, words):
    status, _, err = run_command(capsys, words[0], "runs", *words[1:])
    assert status == 2
    assert (
        "3 are given. Write one" in err
        if words[0] == "plot"
        else "Name one of them, such as runs/ended" in err
    )


@pytest.mark.parametrize("words", [["--states", "3"], ["--env", "Taxi-v4"], ["--observation", "0"]])
def test_what_is_asked_of_one_run_is_not_asked_of_a_folder_of_them(runs, capsys, words):
    status, _, err = run_command(capsys, "show", "runs", *words)
    assert status == 2 and "Name one of them, such as runs/ended" in err


@pytest.mark.parametrize(
    "edited",
    [
        {"steps": "12"},
        {"steps": None},
        {"steps": [12]},
        {"mean_return": "0.5"},
        {"events": [{}]},
    ],
)
def test_a_result_that_is_none_of_this_library_is_no_result(runs, capsys, edited):
    with open("runs/ended/result.json") as file:
        result = json.load(file)
    with open("runs/ended/result.json", "w") as file:
        json.dump({**result, **edited}, file)
    status, out, err = run_command(capsys, "show", "runs", "--json")
    listed = json.loads(out)
    assert (status, err, len(listed)) == (0, "", 3)
    assert (listed[0]["has_ended"], listed[0]["steps"], listed[0]["greedy_return"]) == (False, 3000, None)


def test_a_result_in_which_another_version_counted_more_or_less_is_one(runs, capsys):
    with open("runs/ended/result.json") as file:
        result = json.load(file)
    del result["most_waiting"]
    with open("runs/ended/result.json", "w") as file:
        json.dump({**result, "colour": "red"}, file)
    status, out, _ = run_command(capsys, "show", "runs", "--json")
    ended = json.loads(out)[0]
    assert status == 0 and ended["has_ended"] and ended["steps"] == result["steps"]


@pytest.mark.parametrize("greedy", [[1], "0.5", {"mean_return": "0.5"}, {"mean_return": 0.5}, {}])
def test_what_the_greedy_policy_was_worth_is_not_known_from_what_somebody_wrote(runs, capsys, greedy):
    with open("runs/ended/result.json") as file:
        result = json.load(file)
    with open("runs/ended/result.json", "w") as file:
        json.dump({**result, "greedy": greedy}, file)
    status, out, _ = run_command(capsys, "show", "runs", "--json")
    ended = json.loads(out)[0]
    assert status == 0 and ended["has_ended"] and ended["greedy_return"] is None
    assert ended["mean_return"] == result["mean_return"]


def test_damaged_files_of_a_run_do_not_hide_the_others(runs, tmp_path, capsys):
    (tmp_path / "runs" / "ended" / "result.json").write_text("{}")
    (tmp_path / "runs" / "going on" / "config.toml").write_text("= nothing")
    status, out, _ = run_command(capsys, "show", "runs")
    assert status == 0 and len(out.splitlines()) == 4


def test_a_folder_with_a_configuration_of_something_else_is_no_run(runs, tmp_path, capsys):
    for name in (".streamlit", "site"):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "config.toml").write_text("x = 1\n")
    hand_made.write(tmp_path / "runs" / ".hidden", [hand_made.report(100, 1.0)])
    (tmp_path / "runs" / ".hidden" / "config.toml").write_text(f"# {config.ABOUT}\n")
    config.write(tmp_path / "runs" / "ended" / "config.toml", {"environment": "Mine-v0"}, "edited")
    listed = json.loads(run_command(capsys, "show", "runs", "--json")[1])
    assert [each["run"] for each in listed] == ["runs/ended", "runs/going on", "runs/only begun"]
    assert listed[0]["environment"] == "Mine-v0"
    _, _, err = run_command(capsys, "report", "runs")
    assert ".hidden" not in err and "site" not in err and "only begun is left out" in err
    _, _, err = run_command(capsys, "show", "runs/sitee")
    assert "There is no 'runs/sitee'." in err and "runs/site'" not in err


def test_a_folder_without_runs_is_none_of_them(tmp_path, capsys):
    assert run_command(capsys, "show", str(tmp_path))[0] == 2
    run = make_run(tmp_path / "runs" / "one", "FrozenLake-v1")
    assert "greedy action" in run_command(capsys, "show", run)[1]
