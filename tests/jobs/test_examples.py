import os
import re
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
from signal_masks import listens
from slowly import slowly

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.environments import TabularMDP
from dist_classicrl.environments.tictactoe.model import model as tictactoe_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALONE_AND_TOGETHER = pytest.mark.parametrize("ranks", [None, 3])

# From start to goal along the cliff: one step up, eleven to the right, one down, each with a reward of -1.
CLIFF_RETURN = -13
CLIFF = ("--env", "CliffWalking-v1", "--steps", 400_000, "--episodes", 20)


def greedy_value(agent, model, discount):
    """The exact value of the greedy policy from the start states, as a share of what is optimal."""
    table = agent.q_table[: model.n_states]
    if model.action_mask is not None:
        table = np.where(model.action_mask, table, -np.inf)
    value = model.start_value(model.policy_value(table.argmax(axis=1), discount))
    return value / model.start_value(model.solve(discount).v)


@ALONE_AND_TOGETHER
def test_typed_learns_the_best_policy_of_its_corridor(run_python, ranks):
    job = run_python(EXAMPLES / "typed.py", ranks=ranks)
    assert re.fullmatch(r"400,000 steps, [\d,]+ episodes", job.output.splitlines()[0])
    assert float(re.search(r"the greedy policy is ([\d.]+) below the best", job.output)[1]) < 0.1


@ALONE_AND_TOGETHER
def test_train_ends_with_the_return_the_speed_and_the_model(run_python, tmp_path, ranks):
    job = run_python(EXAMPLES / "train.py", *CLIFF, "--output", "made/cliff.npz", ranks=ranks)
    *progress, greedy, speed, model = job.output.splitlines()
    assert re.search(r"400,000 of 400,000 steps +[\d,]+ steps/s +mean return -\d", progress[-1])
    assert greedy.split()[2] == str(CLIFF_RETURN)
    workers = "1 worker" if ranks is None else f"{ranks - 1} workers"
    assert re.fullmatch(rf"speed +[\d,]+ steps/s on {workers}", speed)
    path = model.split()[1]
    assert path == str(tmp_path / "made" / "cliff.npz")
    agent = DistAsyncQLearning.load_model(path)
    assert agent.q_table.shape == (48, 4)
    assert greedy_value(agent, TabularMDP.from_gymnasium("CliffWalking-v1"), 0.99) == pytest.approx(1.0)


def test_train_gives_the_same_table_on_any_number_of_ranks(run_python, tmp_path):
    small = ("--env", "FrozenLake-v1", "--steps", 100_000, "--seed", 5, "--reproducible")
    tables = []
    for ranks in (None, 3):
        run_python(EXAMPLES / "train.py", *small, "--output", f"{ranks}.npz", ranks=ranks)
        tables.append(DistAsyncQLearning.load_model(tmp_path / f"{ranks}.npz").q_table)
    assert np.count_nonzero(tables[0]) > 0
    assert tables[0].tobytes() == tables[1].tobytes()


def test_train_passes_its_arguments_on(run_python, tmp_path):
    options = ("--learning-rate", 0.25, "--discount", 0.5, "--epsilon", 0.75, "--seed", 9)
    run_python(EXAMPLES / "train.py", "--env", "FrozenLake-v1", "--steps", 3_000, *options)
    assert os.listdir(tmp_path) == ["runs"]
    agent = DistAsyncQLearning.load_model(tmp_path / "runs" / "FrozenLake-v1.npz")
    settings = agent.settings
    assert (settings.discount_factor, settings.seed, settings.async_updates) == (0.5, 9, True)
    assert (settings.learning_rate.value, settings.epsilon.value) == (0.25, 0.75)


@ALONE_AND_TOGETHER
def test_an_environment_that_cannot_be_learned_ends_the_job_with_a_named_error(run_python, ranks):
    job = run_python(EXAMPLES / "train.py", "--env", "MountainCarContinuous-v0", ranks=ranks, status=1)
    assert re.search(r"SpaceError: .*MountainCarContinuous|SpaceError: .*Box", job.output)
    assert "greedy return" not in job.output


@ALONE_AND_TOGETHER
def test_train_stopped_by_a_signal_goes_on_when_typed_again(run_python, start_python, tmp_path, ranks):
    steps = 60_000_000
    arguments = (EXAMPLES / "train.py", "--env", "FrozenLake-v1", "--steps", steps)
    arguments += ("--checkpoint-dir", "saved", "--checkpoint-interval", "1")
    job = start_python(*slowly(arguments), ranks=ranks)
    job.must_wait_for(lambda: list(tmp_path.glob("saved/agent-0/f*/manifest.json")), "the first checkpoint")
    job.send(signal.SIGUSR1)
    job.wait()
    assert job.process.returncode == 75, job.output
    assert "Stopped by SIGUSR1" in job.output and "greedy return" not in job.output
    stopped = DistAsyncQLearning.load_model(tmp_path / "saved")
    assert 0 < stopped.steps < steps
    finished = run_python(*arguments, ranks=ranks)
    assert re.search(rf"^resumed from .*-step{stopped.steps:015d}-", finished.output, re.MULTILINE)
    assert "60,000,000 of 60,000,000 steps" in finished.output
    model = DistAsyncQLearning.load_model(tmp_path / "runs" / "FrozenLake-v1.npz")
    assert model.steps == model.visits.sum() == steps
    assert greedy_value(model, TabularMDP.from_gymnasium("FrozenLake-v1"), 0.99) > 0.98
    saved = sorted(os.listdir(tmp_path / "saved" / "agent-0"))
    again = run_python(*arguments, ranks=ranks)
    assert "nothing to do" in again.output and "greedy return" in again.output
    assert "of 60,000,000 steps  " not in again.output
    assert sorted(os.listdir(tmp_path / "saved" / "agent-0")) == saved


def test_train_stops_by_itself_at_its_time_limit(run_python, tmp_path):
    arguments = ("--steps", 10**12, "--checkpoint-dir", "saved", "--time-limit", "1s")
    job = run_python(EXAMPLES / "train.py", *arguments, status=75)
    assert "Stopped by the time limit of 1 s" in job.output
    assert not (tmp_path / "runs").exists()
    assert DistAsyncQLearning.load_model(tmp_path / "saved").steps > 0


def test_train_passes_on_what_it_is_told_about_checkpoints(run_python, tmp_path):
    def checkpoints():
        return sorted(path.name for path in tmp_path.glob("saved/agent-0/f*-c*"))

    arguments = (EXAMPLES / "train.py", "--env", "FrozenLake-v1", "--steps", 10_000_000)
    arguments += ("--checkpoint-dir", "saved")
    refused = run_python(*arguments, "--resume", "must", status=1)
    assert 'resume="must"' in refused.output
    assert (
        "checkpoint_interval must be" in run_python(*arguments, "--checkpoint-interval", 0, status=1).output
    )
    run_python(*arguments, "--checkpoint-interval", "1h")
    (only,) = checkpoints()
    assert "-c00000001-step000000010000000-" in only
    afresh = run_python(*arguments, "--resume", "never", "--checkpoint-interval", 1, "--keep-last", 1)
    assert "resumed from" not in afresh.output
    first, newest = checkpoints()
    assert first == only and int(newest.split("-c")[1][:8]) > 2


def test_tictactoe_stopped_in_its_second_call_goes_on_there_when_typed_again(
    run_python, start_python, tmp_path
):
    total = 60_000_000
    arguments = (EXAMPLES / "tictactoe.py", "--total_steps", total, "--checkpoint_interval", 20_000_000)
    arguments += ("--checkpoint_dir", "saved", "--output", "game.npz")
    job = start_python(*slowly(arguments, calls=1))
    job.must_wait_for(
        lambda: "20,000,000 steps" in job.output and listens(job.process.pid, signal.SIGUSR1), "a second call"
    )
    job.send(signal.SIGUSR1)
    job.wait(75)
    finished = run_python(*arguments)
    ends = re.findall(r"^([\d,]+) steps, .* saved game.npz$", job.output + finished.output, re.MULTILINE)
    assert ends == ["20,000,000", "40,000,000", "60,000,000"]
    assert "trained 60,000,000 steps" in finished.output
    agent = DistAsyncQLearning.load_model(tmp_path / "game.npz")
    assert agent.steps == agent.visits.sum() == total
    assert greedy_value(agent, tictactoe_model(), 0.95) > 0.95


@ALONE_AND_TOGETHER
def test_tictactoe_saves_at_every_checkpoint_and_plays_well(run_python, tmp_path, ranks):
    sizes = ("--state_size", 512, "--action_size", 9, "--total_steps", 900_000)
    arguments = (*sizes, "--checkpoint_interval", 300_000, "--output", "game.pkl")
    job = run_python(EXAMPLES / "tictactoe.py", *arguments, ranks=ranks)
    *saves, greedy, trained = job.output.splitlines()
    assert [line.split()[0] for line in saves] == ["300,000", "600,000", "900,000"]
    assert all(line.endswith("saved game.pkl") for line in saves)
    assert float(greedy.split()[2]) > 0.85
    assert trained.startswith("trained 900,000 steps at ")
    # A .pkl that holds no pickle: a zip file of plain arrays.
    with zipfile.ZipFile(tmp_path / "game.pkl") as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())
    agent = DistAsyncQLearning.load_model(tmp_path / "game.pkl")
    assert agent.q_table.shape == (512, 9)
    assert greedy_value(agent, tictactoe_model(), 0.95) > 0.95


def test_tictactoe_saves_even_with_fewer_steps_than_ranks(run_python, tmp_path):
    job = run_python(EXAMPLES / "tictactoe.py", "--total_steps", 2, "--output", "game.npz", ranks=3)
    assert "0 steps, saved game.npz" in job.output.splitlines()
    agent = DistAsyncQLearning.load_model(tmp_path / "game.npz")
    assert agent.q_table.shape == (512, 9) and not agent.q_table.any()


def test_tictactoe_saves_once_without_an_interval(run_python):
    job = run_python(EXAMPLES / "tictactoe.py", "--total_steps", 3_000)
    assert [line.split()[-1] for line in job.output.splitlines() if "saved" in line] == [
        "tictactoe_model.pkl"
    ]


def test_the_pocket_cube_is_compared_with_breadth_first_search(run_python):
    job = run_python(EXAMPLES / "pocket_cube.py", "--steps", 1_000_000, "--most", 2)
    first, one, two = job.output.splitlines()
    assert first == "3,674,160 states, at most 14 turns from the solved one"
    known, more = (int(re.search(r"([\d,]+) states", line)[1].replace(",", "")) for line in (one, two))
    assert 500_000 < known < more and two.startswith("2,000,000 steps")


def test_2048_grows_to_its_limit(run_python):
    job = run_python(EXAMPLES / "game_2048.py", "--total_steps", 400_000, "--max_states", 100_000)
    *_, why, known, score = job.output.splitlines()
    assert "max_states=100,000 allows no more" in why and known.endswith(" 100,000 boards")
    assert 900 < float(score.split()[-1]) < 1300  # random moves score some 1,100


def test_the_textbooks_figures_are_drawn_and_their_numbers_are_met(run_python, tmp_path):
    job = run_python(EXAMPLES / "textbook.py", "--quick", "--out", "drawn", timeout=600.0)
    pictures = {path.stem for path in tmp_path.glob("drawn/*.png") if path.stat().st_size > 10_000}
    known = "4.2 4.3 5.1 5.3 5.4 6.2 6.5 6.6 6.7 7.1 8.1 8.2 8.3 8.4 10.2 12.1 12.6 deep-sea".split()
    assert pictures == set(known)
    rows = (tmp_path / "drawn" / "checks.md").read_text().splitlines()[2:]
    assert all(row.endswith("| met |") for row in rows) and job.output.count("| met |") == len(rows)
    assert {row.split("|")[1].strip() for row in rows} == set(known)


def test_several_ranks_draw_no_textbook(run_python):
    job = run_python(EXAMPLES / "textbook.py", "--quick", "--figures", "6.5", ranks=2, status=2)
    assert job.output.count("One process draws them, and these are 2 ranks.") == 1
    assert "Traceback" not in job.output


def test_one_of_several_ranks_tells_how_2048_is_played(run_python):
    job = run_python(EXAMPLES / "game_2048.py", "--total_steps", 50_000, ranks=2)
    assert job.output.count("a game scores") == job.output.count("50,000 steps, ") == 1


def test_a_number_of_the_textbook_that_is_not_met_ends_with_status_1(run_python, tmp_path):
    """Here what it is compared with is wrong."""
    script = tmp_path / "wrong.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import textbook, textbook_chapters.chapter_4 as chapter\n"
        "chapter._bold_play = lambda share: share\n"
        "sys.exit(textbook.main())\n"
    )
    job = run_python(script, "--figures", "4.3", "--out", "drawn", status=1)
    assert re.search(r"\| 4.3 +\| largest distance from bold play +\| 0 .*\| WRONG \|", job.output)
    assert "not met: 1 of 8 numbers, of 4.3" in job.output and (tmp_path / "drawn" / "4.3.png").exists()


def test_the_textbook_has_no_figure_of_another_number(run_python):
    job = run_python(EXAMPLES / "textbook.py", "--figures", "3.1", status=2)
    assert "invalid choice: '3.1'" in job.output
