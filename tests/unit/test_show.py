"""`show`: what it says of known tables, to the letter."""

import errno
import io
import json
import os
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from learned_runs import make_run, run_command, tied_values

from dist_classicrl import DistAsyncQLearning
from dist_classicrl._streams import silence_if_unread
from dist_classicrl.cli.main import cli, main
from dist_classicrl.environments.tictactoe.rules import rules
from dist_classicrl.launch import restart

LEFT, DOWN, RIGHT, UP = np.eye(4)
LAKE = {"desc": ["SFF", "HFG"]}


@pytest.fixture
def lake(tmp_path):
    """A lake of two rows whose greedy moves are right, down, left and nothing, right, nothing."""
    values = np.array([RIGHT, DOWN * 0.5, LEFT * 0.25, 0 * UP, RIGHT, 0 * UP])
    visits = np.array([3, 2, 1, 0, 5, 0])[:, None] * np.ones((1, 4), int)
    return make_run(tmp_path / "lake", "FrozenLake-v1", values, visits, LAKE)


LAKE_TEXT = """\
FrozenLake-v1 (desc=['SFF', 'HFG']): 6 states, 4 actions, 1,234,567 steps learned

greedy action
→ ↓ ←
H → G

value
1.000 0.500 0.250
    H 1.000     G

"""


def test_a_lake_is_a_map_with_arrows_and_values(lake, capsys):
    assert run_command(capsys, "show", lake) == (0, LAKE_TEXT, "")


def test_where_arrows_cannot_be_written_other_signs_stand_for_them(lake):
    result = CliRunner(charset="ascii").invoke(cli, ["show", lake])
    assert result.exception is None
    assert "> v <\nH > G\n" in result.stdout


def test_where_there_is_no_output_nothing_is_shown(lake, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)  # as after `>&-`
    assert main(["show", lake]) == 0
    assert capsys.readouterr().err == ""
    assert not silence_if_unread(sys.stdout)
    monkeypatch.setattr("sys.stderr", None)
    restart.say("nobody hears that")


class FullDisk(io.RawIOBase):
    """A file for which there is no room."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def writable(self):
        return True

    def fileno(self):
        return self.file.fileno()

    def write(self, data):
        if os.fstat(self.fileno()).st_rdev == os.stat(os.devnull).st_rdev:
            return len(data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_full_disk_is_no_defect(lake, tmp_path, capsys, monkeypatch, is_buffered):
    disk = FullDisk(tmp_path / "out")
    buffered = io.BufferedWriter(disk) if is_buffered else disk  # as Python has it with PYTHONUNBUFFERED
    output = io.TextIOWrapper(buffered, write_through=not is_buffered)
    monkeypatch.setattr("sys.stdout", output)
    assert main(["show", lake]) == 2
    assert capsys.readouterr().err == (
        "Error: Standard output cannot be written: No space left on device. Make room, or write it "
        "elsewhere.\n"
    )
    output.close()  # as Python does at its end: what has no room is dropped


def test_a_state_that_was_never_visited_is_a_dot(tmp_path, capsys):
    visits = np.zeros((48, 4), int)
    visits[[36, 24], 0] = 7
    path = make_run(tmp_path / "cliff", "CliffWalking-v1", -np.ones((48, 4)) * [1, 2, 3, 4], visits)
    _, out, _ = run_command(capsys, "show", path)
    dots = " ".join("·" * 12)
    assert f"greedy action\n{dots}\n{dots}\n↑{dots[1:]}\n↑ {' '.join('C' * 10)} G\n" in out
    assert out.count("-1.000") == 2


def test_a_table_without_visits_is_shown_in_full(tmp_path, capsys):
    path = make_run(tmp_path / "lake", "FrozenLake-v1", np.tile(UP, (6, 1)), None, LAKE)
    assert "↑ ↑ ↑\nH ↑ G\n" in run_command(capsys, "show", path)[1]


def test_a_table_of_the_first_visited_states(tmp_path, capsys):
    values, visits = np.zeros((500, 6)), np.zeros((500, 6), int)
    visits[[3, 17, 499]] = 1000, 0, 0, 0, 0, 234
    values[17, 5], values[3, 2] = 9.87654, -12.5
    path = make_run(tmp_path / "taxi", "Taxi-v4", values, visits)
    _, out, _ = run_command(capsys, "show", path, "--states", "2")
    lines = [line.split("  ") for line in out.splitlines()[2:5]]
    cells = [[cell.strip() for cell in line if cell] for line in lines]
    assert cells == [
        ["state", "observation", "south", "north", "east", "west", "pick up", "drop off", "visits", "greedy"],
        ["3", "at 0,0; red to blue", "0.000", "0.000", "-12.500", *["0.000"] * 3, "1,234", "south"],
        ["17", "at 0,0; aboard, to green", *["0.000"] * 5, "9.877", "1,234", "drop off"],
    ]
    assert out.endswith("\n2 of 3 visited states\n")


@pytest.mark.parametrize("text", ["(20, 10, 1)", "[20, 10, true]", " [20,\n10, 1]"])
def test_an_observation_as_python_and_as_json_has_it(tmp_path, capsys, text):
    values = np.zeros((704, 2))
    values[20 * 22 + 10 * 2 + 1] = 0.25, -0.5
    path = make_run(tmp_path / "blackjack", "Blackjack-v1", values, np.ones((704, 2), int) * [4000, 5])
    _, out, _ = run_command(capsys, "show", path, "--observation", text)
    assert out.split("\n\n", 1)[1] == (
        "state 461: (20, 10, 1)\n"
        "action  name    value  visits\n"
        "     0  stick   0.250   4,000  greedy\n"
        "     1  hit    -0.500       5\n\n"
    )
    data = json.loads(run_command(capsys, "show", path, "--observation", text, "--json")[1])
    assert data["environment"] == "Blackjack-v1" and data["steps"] == 1_234_567
    assert data["states"] == [
        {
            "state": 461,
            "observation": [20, 10, 1],
            "values": [0.25, -0.5],
            "visits": [4000, 5],
            "greedy": 0,
            "action": "stick",
        }
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(20, 99, 1)", "none of the observations, which are Tuple(Discrete(32)"),
        ("(20, 10", "neither JSON nor a Python literal"),
        ("{[1]: 2}", "neither JSON nor a Python literal"),
        ("7", "none of the observations"),
    ],
)
def test_an_observation_that_is_none(tmp_path, capsys, text, said):
    path = make_run(tmp_path / "blackjack", "Blackjack-v1", np.zeros((704, 2)))
    status, out, err = run_command(capsys, "show", path, "--observation", text)
    assert (status, out) == (2, "") and said in err


def test_boards_have_marks_and_values_and_the_greedy_square_is_legal(tmp_path, capsys):
    boards = rules("first").boards
    values = tied_values((338, 9))
    path = make_run(tmp_path / "game", "tictactoe", values)
    _, out, _ = run_command(capsys, "show", path)
    assert [f"state {state}:" in out for state in range(7)] == [True] * 6 + [False]
    state = 200
    _, out, _ = run_command(capsys, "show", path, "--observation", str(state))
    cells = " ".join(out.split("visits\n")[1].splitlines()[:3]).replace("[", " [").split()
    legal = np.where(boards[state] == 0, values[state], -np.inf)
    for square, cell in enumerate(cells):
        if boards[state, square]:
            assert cell == " XO"[boards[state, square]]
        else:
            chosen = square == legal.argmax()
            assert cell == (f"[{values[state, square]:.3f}]" if chosen else f"{values[state, square]:.3f}")
    assert out.count("illegal") == np.count_nonzero(boards[state])


def test_what_is_shortened_says_how_to_see_the_rest(tmp_path, capsys):
    values, visits = np.zeros((500, 6)), np.zeros((500, 6), int)
    visits[:30] = 1
    path = make_run(tmp_path / "taxi", "Taxi-v4", values, visits)
    _, out, _ = run_command(capsys, "show", path)
    said = "20 of 30 visited states. More of them: --states 30. All about one: --observation 19."
    assert out.splitlines()[-1] == said
    assert (
        run_command(capsys, "show", path, "--states", "30")[1].splitlines()[-1] == "30 of 30 visited states"
    )
    assert "state 19: " in run_command(capsys, "show", path, "--observation", "19")[1]
    status, _, err = run_command(capsys, "show", path, "--observation", "19", "--states", "3")
    assert status == 2 and "--states counts states from the first one on" in err


def test_of_boards_only_some_are_shown_which_is_said(tmp_path, capsys):
    rows = 338
    path = make_run(tmp_path / "game", "tictactoe", np.zeros((rows, 9)), np.ones((rows, 9), int))
    _, out, _ = run_command(capsys, "show", path)
    assert out.splitlines()[-1].startswith(f"6 of {rows:,} visited states. More of them: --states {rows}.")


def test_a_bare_model_file_is_a_table_of_numbers(tmp_path, capsys):
    agent = DistAsyncQLearning(state_size=3, action_size=2)
    agent.q_table = [[0.0, 1e-5], [2e7, 0.0], [0.5, 0.5]]
    path = str(agent.save_model(tmp_path / "model"))
    _, out, _ = run_command(capsys, "show", path)
    assert out.split("\n\n")[1:] == [
        "state      0      1  visits  greedy\n"
        "    0  0.000  1e-05       0       1\n"
        "    1  2e+07  0.000       0       0\n"
        "    2  0.500  0.500       0       0",
        "3 of 3 states\n",
    ]
    assert "a whole number" not in run_command(capsys, "show", path, "--observation", "2")[2]
    assert "from 0 to 2" in run_command(capsys, "show", path, "--observation", "3")[2]


def test_the_environment_can_be_named(lake, capsys):
    model = f"{lake}/model.npz"
    assert run_command(capsys, "show", model)[1] == LAKE_TEXT  # the folder around it tells
    for other in (["Taxi-v4"], ["FrozenLake-v1", "--env-arg", "desc=['SF', 'FG']"]):  # larger, and smaller
        status, out, err = run_command(capsys, "show", lake, "--env", *other)
        assert (status, out) == (2, "")
        assert "with 6 states and 4 actions" in err and "with its arguments" in err
    assert (
        "H → G"
        in run_command(capsys, "show", lake, "--env", "FrozenLake-v1", "--env-arg", "desc=['SFF','HFG']")[1]
    )


@pytest.mark.parametrize("command", ["show", "evaluate"])
def test_a_run_without_its_settings_is_read_by_what_is_said(lake, tmp_path, capsys, command):
    os.remove(f"{lake}/config.toml")
    status, out, err = run_command(capsys, command, lake)
    assert (status, out) == (2, "") and f"{lake} has no config.toml" in err and "load_model" not in err
    words = err.partition("`")[2].partition("`")[0].split()
    assert words == ["dist-classicrl", command, f"{lake}/model.npz"]
    env = ("--env", "FrozenLake-v1", "--env-arg", f"desc={LAKE['desc']}")
    assert "--env where" in err and run_command(capsys, *words[1:], *env)[0] == 0
    os.remove(f"{lake}/model.npz")
    for there, said in (("nothing", "There is no checkpoint"), ("metrics.jsonl", "neither config.toml nor")):
        (tmp_path / "lake" / there).touch()
        status, _, err = run_command(capsys, command, lake)
        assert status == 2 and said in err
