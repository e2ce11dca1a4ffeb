"""What is seen of a training where it is called: a bar, lines, or nothing; and of one that Ctrl-C ends."""

import io
import math
import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from callback_reports import Reports
from rank_environments import SteppedLake
from terminals import run_on_terminal

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.callbacks import BaseCallback, shown
from dist_classicrl.engines.progress import Progress
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.errors import SettingsError, TrainingInterrupted, TrainingStopped

ROOT = Path(__file__).resolve().parents[2]
GARNET = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)

LEARNS = """
import sys
from dist_classicrl import DistAsyncQLearning, TabularMDP
agent = DistAsyncQLearning(seed=1)
garnet = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)
"""
LONG = "agent.train(garnet, total_steps=10**14, progress_interval=0.1, progress=lambda report: None)\n"


def on_terminal(program, look=lambda process, got: None, **settings):
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    return run_on_terminal([sys.executable, "-c", LEARNS + program], look, env=environment, **settings)


def interrupts(at):
    """Return what presses Ctrl-C once, when the terminal shows `at`."""
    pressed = []

    def look(process, got):
        if at in got and not pressed:
            pressed.append(time.monotonic())
            process.send_signal(signal.SIGINT)

    return look


# Where something is shown


def test_nothing_is_shown_where_there_is_no_terminal(capfd):
    DistAsyncQLearning(seed=1).train(GARNET, total_steps=1_000)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_terminal_shows_how_far_the_training_is():
    status, got = on_terminal("agent.train(garnet, total_steps=200_000)\nprint('afterwards')\n")
    assert status == 0, got
    assert "200k/200k steps" in got and "100%" in got and "1 worker" in got
    assert got.rindex("200k/200k steps") < got.index("afterwards")
    assert got.rindex("\x1b[?25h") > got.rindex("\x1b[?25l")  # the cursor is back


def test_the_bar_ends_with_a_rate_and_a_return():
    drawn = []

    @contextmanager
    def draw(source, waiting, with_workers):
        yield
        drawn.append(source())

    showing = shown.ShownTraining(draw, False, False)
    showing.open()
    run = Reports(showing).start()
    run.report(100)
    run.report(100, steps_per_second=0.0, episodes=0, mean_return=math.nan)  # what pushes still brought
    run.end()
    assert [(each.steps_per_second, each.mean_return) for each in drawn] == [(5e5, 0.5)]


@pytest.mark.slow
def test_no_bar_on_a_terminal_for_who_wants_none():
    status, got = on_terminal("agent.train(garnet, total_steps=1_000, progress_bar=False)\n")
    assert (status, got.replace("\x1b[0m", "")) == (0, "")  # with which colorama ends, where it is installed


@pytest.mark.slow
def test_what_is_printed_to_a_file_stays_there(tmp_path):
    program = (
        "def say(report):\n    print('said', file=sys.stdout)\n"
        "agent.train(garnet, total_steps=1_000, progress=say)\n"
    )
    with open(tmp_path / "output", "w") as file:
        status, got = on_terminal(program, stdout=file)
    assert status == 0, got
    assert (tmp_path / "output").read_text().splitlines() == 200 * ["said"]
    assert "1k/1k steps" in got and "said" not in got


def test_a_rank_draws_nothing(monkeypatch):
    monkeypatch.setattr(shown, "_place_to_draw", lambda: lambda *arguments: pytest.fail("it draws"))
    monkeypatch.setattr(shown, "rank_of_environment", lambda: 0)
    with shown.shown_training(None, False) as nothing:
        assert nothing is None


@pytest.mark.slow
def test_a_bar_is_closed_when_training_fails():
    program = "def fail(report):\n    raise ValueError('no more')\n"
    program += "agent.train(garnet, total_steps=1_000, progress=fail)\n"
    status, got = on_terminal(program)
    assert status == 1
    assert got.rindex("\x1b[?25h") < got.index("Traceback") < got.index("ValueError: no more")


@pytest.mark.slow
def test_what_is_wrong_at_once_leaves_no_trace_of_a_bar():
    status, got = on_terminal("agent.train('NoSuch-v0', total_steps=1_000)\n")
    assert status == 1
    left = got.split("\x1b[2K")[-1]  # after the last line that was wiped
    assert "preparing" not in left and "Traceback" in left


@pytest.mark.slow
def test_a_training_within_a_training_draws_no_second_bar():
    program = (
        "def train_another(report):\n"
        "    other = DistAsyncQLearning(seed=2)\n"
        "    other.train(garnet, total_steps=77, verbose=True)\n"
        "agent.train(garnet, total_steps=1_000, progress=train_another)\n"
    )
    status, got = on_terminal(program)
    assert status == 0, got
    assert "trained 77 steps" in got and "77/77" not in got


def test_a_forked_process_writes_for_itself(monkeypatch):
    before = sys.stdout, sys.stderr
    monkeypatch.setattr(sys, "stdout", object())
    monkeypatch.setattr(sys, "stderr", object())
    monkeypatch.setattr(shown, "_streams", [before])
    shown._give_back_streams()
    assert (sys.stdout, sys.stderr) == before


# Where what is shown cannot be written


class Gone(io.StringIO):
    """A terminal, or a pipe, that takes nothing more once it has taken a few pieces."""

    def __init__(self, error, takes=0, is_terminal=False):
        super().__init__()
        self.error, self.takes, self.isatty = error, takes, lambda: is_terminal

    def write(self, text):
        self.takes -= 1
        if self.takes < 0:
            raise self.error
        return super().write(text)


def learned():
    agent = DistAsyncQLearning(seed=1)
    agent.train(GARNET, total_steps=1_000)
    return agent.q_table


@pytest.mark.parametrize("asked", [{"verbose": True}, {"progress_bar": True}])
@pytest.mark.parametrize(
    "error",
    [ValueError("I/O operation on closed file."), OSError(9, "Bad file descriptor"), BrokenPipeError()],
)
def test_a_training_goes_on_without_lines_that_cannot_be_written(monkeypatch, caplog, error, asked):
    caplog.set_level("INFO", "dist_classicrl")
    monkeypatch.setattr(sys, "stderr", Gone(error))
    agent = DistAsyncQLearning(seed=1)
    assert agent.train(GARNET, total_steps=1_000, **asked).steps == 1_000
    np.testing.assert_array_equal(agent.q_table, learned())
    assert caplog.text.count("The training is not shown any more") == 1


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_a_training_goes_on_without_a_terminal_that_is_gone(monkeypatch, caplog, takes):
    caplog.set_level("INFO", "dist_classicrl")
    terminal = Gone(OSError(5, "Input/output error"), takes, is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(shown, "rank_of_environment", lambda: None)
    agent = DistAsyncQLearning(seed=1)
    assert agent.train(GARNET, total_steps=1_000, verbose=True).steps == 1_000
    assert sys.stderr is terminal and bool(terminal.getvalue()) == (takes > 0)
    np.testing.assert_array_equal(agent.q_table, learned())
    assert "The training is not shown any more" in caplog.text


# Lines


def test_lines_where_a_bar_is_asked_for_and_cannot_be(capsys):
    DistAsyncQLearning(seed=1).train(GARNET, total_steps=1_000, progress_bar=True)
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("100%  0:00 left  1k/1k steps  ") and line.endswith("  1 worker")


@pytest.mark.parametrize("verbose", [1, 2])
def test_verbose_says_what_begins_and_what_came_of_it(capsys, verbose):
    result = DistAsyncQLearning(seed=1).train(GARNET, total_steps=1_000, verbose=verbose)
    begins, ends = capsys.readouterr().err.splitlines()
    assert begins == "training for 1,000 steps: 25 states, 4 actions, 1 worker, seed 1"
    assert ends.startswith("trained 1,000 steps in ")
    assert ends.endswith(f"/s on 1 worker; mean return {result.mean_return:.4g} while exploring")


def test_the_last_line_comes_before_what_came_of_it(capsys):
    DistAsyncQLearning(seed=1).train(GARNET, total_steps=1_000, progress_bar=True, verbose=True)
    first_words = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert first_words == ["training", "100%", "trained"]


@pytest.mark.parametrize(
    "wrong",
    [{"progress_bar": "yes"}, {"progress_bar": 1}, {"verbose": 3}, {"verbose": "yes"}, {"verbose": None}],
)
def test_what_is_no_wish(wrong):
    with pytest.raises(SettingsError, match=f"{next(iter(wrong))} must be True or False"):
        DistAsyncQLearning().train(GARNET, total_steps=10, **wrong)


def test_a_bar_does_not_change_how_often_callbacks_are_called(monkeypatch):
    monkeypatch.setattr(shown, "_place_to_draw", lambda: lambda *arguments: threading.Lock())
    reports = []

    class Counts(BaseCallback):
        def _on_step(self):
            reports.append(self.num_timesteps)
            return True

    for progress_bar in (False, True):
        DistAsyncQLearning(seed=1).train(
            GARNET, total_steps=3_000, callbacks=Counts(), progress_interval=1e6, progress_bar=progress_bar
        )
    assert reports == 2 * list(range(15, 3_001, 15))


# Notebooks


@pytest.fixture
def notebook(monkeypatch):
    """Return what a notebook that this process thinks it is in was shown, newest last."""
    pictures = []
    handle = types.SimpleNamespace(update=pictures.append)
    display = types.ModuleType("IPython.display")
    display.HTML = lambda text: text
    display.display = lambda picture, display_id: [pictures.append(picture), handle][1]
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(shown, "_NOTEBOOK_SECONDS", 0.01)
    return pictures


def test_a_notebook_shows_a_bar(notebook, capfd):
    DistAsyncQLearning(seed=1).train(GARNET, total_steps=200_000)
    assert capfd.readouterr() == ("", "")
    assert "<pre>" in notebook[0]
    assert "200k/200k steps" in notebook[-1] and "100%" in notebook[-1]
    count = len(notebook)
    time.sleep(0.05)
    assert len(notebook) == count


def test_a_notebook_shows_nothing_of_what_did_not_begin(notebook):
    with pytest.raises(SettingsError):
        DistAsyncQLearning().train(GARNET, total_steps=-1)
    assert notebook[-1] == ""


def test_a_process_forked_from_a_notebook_which_cannot_send_there_shows_nothing(notebook, monkeypatch):
    session = types.SimpleNamespace(pid=os.getpid())
    ipython = types.SimpleNamespace(kernel=types.SimpleNamespace(session=session))
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: ipython)
    assert shown._place_to_draw() is shown._in_notebook
    child = os.fork()
    if not child:
        os._exit(shown._place_to_draw() is not None)
    assert os.waitpid(child, 0)[1] == 0


# Ctrl-C where nothing is saved


@pytest.mark.slow
def test_ctrl_c_is_one_line_and_no_traceback():
    status, got = on_terminal(LONG, interrupts(b"steps"))
    assert status == 130
    assert "Traceback" not in got and "KeyboardInterrupt\r\n" not in got
    last = [line for line in got.split("\r\n") if line][-1]
    assert "Stopped by Ctrl-C after " in last and " of 100,000,000,000,000 steps." in last
    assert "save_model()" in last and "checkpoint_dir=" in last


@pytest.mark.slow
def test_a_script_that_catches_ctrl_c_has_what_was_learned():
    program = (
        f"try:\n    {LONG}except KeyboardInterrupt:\n"
        "    print('kept', agent.visits.sum() == agent.steps > 0, agent.steps)\n"
    )
    status, got = on_terminal(program, interrupts(b"steps"))
    assert status == 0, got
    assert "kept True" in got


class Presses:
    """A progress function that presses Ctrl-C once, after so many steps."""

    def __init__(self, steps=1):
        self.steps = steps
        self.at = None

    def __call__(self, report: Progress):
        if self.at is None and report.steps >= self.steps:
            self.at = report.steps
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("async_updates", [True, False])
def test_ctrl_c_stops_between_two_updates(async_updates, caplog):
    agent = DistAsyncQLearning(seed=1, async_updates=async_updates)
    presses = Presses()
    with pytest.raises(TrainingInterrupted) as stopped:
        agent.train(GARNET, total_steps=10**12, progress=presses, progress_interval=0)
    assert stopped.value.code == 130 and stopped.value.checkpoint is None
    assert agent.steps == agent.visits.sum() == stopped.value.steps >= presses.at > 0
    assert np.abs(agent.q_table).max() > 0.0
    assert f"Stopped by Ctrl-C after {agent.steps:,} of 1,000,000,000,000 steps" in caplog.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_ctrl_c_during_the_preparations_waits_for_their_end():
    """Numba cannot be interrupted: it goes on with half of what it was compiling."""
    agent = DistAsyncQLearning(seed=1, n_envs=1)

    def make():
        signal.raise_signal(signal.SIGINT)
        return SteppedLake()

    with pytest.raises(TrainingInterrupted):
        agent.train(make, total_steps=10**12)
    assert agent.steps == agent.visits.sum() > 0


def test_ctrl_c_at_the_last_report_is_not_lost():
    agent = DistAsyncQLearning(seed=1)
    with pytest.raises(KeyboardInterrupt):
        agent.train(GARNET, total_steps=500, progress=Presses(500))
    assert agent.steps == agent.visits.sum() == 500


def test_ctrl_c_at_a_prompt_ends_the_training_alone(monkeypatch, caplog):
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    agent = DistAsyncQLearning(seed=1)
    with pytest.raises(KeyboardInterrupt) as stopped:
        agent.train(GARNET, total_steps=10**12, progress=Presses(), progress_interval=0)
    assert not isinstance(stopped.value, SystemExit)
    assert agent.steps == agent.visits.sum() > 0
    assert "The agent keeps what it learned, and train() goes on from there." in caplog.text


def test_a_second_ctrl_c_ends_it_at_once():
    agent = DistAsyncQLearning(seed=1)

    def press(report):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.3)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        agent.train(GARNET, total_steps=10**12, progress=press, progress_interval=0)
    assert not isinstance(stopped.value, SystemExit)


class SlowLake(SteppedLake):
    """Presses Ctrl-C at its `at`-th step, which takes so many `seconds`."""

    at, seconds = 7, 0.0

    def __init__(self):
        super().__init__()
        self.made = 0

    def step(self, action):
        self.made += 1
        if self.made == self.at:
            signal.raise_signal(signal.SIGINT)
            time.sleep(self.seconds)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("has_folder", [False, True])
def test_ctrl_c_stops_after_the_step_that_is_being_made(n_envs, has_folder, tmp_path, caplog):
    """Not after the batch, which holds 32 of them."""
    agent = DistAsyncQLearning(seed=1, n_envs=n_envs)
    envs = []
    make = partial(kept_in, envs, SlowLake)
    folder = tmp_path / "checkpoints" if has_folder else None
    with pytest.raises(TrainingInterrupted) as stopped:
        agent.train(make, total_steps=10**6, checkpoint_dir=folder)
    made = max(env.made for env in envs)
    assert made == SlowLake.at
    assert agent.steps == agent.visits.sum() == stopped.value.steps == made * n_envs
    assert "rank" not in caplog.text


def kept_in(made, kind):
    made.append(kind())
    return made[-1]


@pytest.mark.slow
def test_ctrl_c_in_a_slow_step_says_what_is_waited_for_and_how_to_end_it_at_once(caplog):
    class VerySlow(SlowLake):
        seconds = 1.5

    agent = DistAsyncQLearning(seed=1, n_envs=1)
    with pytest.raises(TrainingInterrupted):
        agent.train(VerySlow, total_steps=10**6)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == (
        "Ctrl-C: training stops after the step of the environment that is being made. "
        "A second Ctrl-C ends it at once."
    )
    assert said[1].startswith("Stopped by Ctrl-C after 7 of 1,000,000 steps.")


def test_a_signal_that_was_left_over_is_told_by_its_name(tmp_path, caplog):
    """It came between two trainings, of which the second is not saved."""
    agent = DistAsyncQLearning(seed=1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        agent.train(GARNET, total_steps=500, checkpoint_dir=tmp_path / "checkpoints")
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(TrainingStopped) as stopped:
            agent.train(GARNET, total_steps=10**9)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.value.reason.startswith("SIGTERM between two trainings after ")
    assert "Stopped by SIGTERM between two trainings after " in caplog.text
    assert "catch TrainingStopped" in caplog.text


def test_a_program_that_hears_ctrl_c_itself_goes_on_hearing_it(monkeypatch):
    heard = []
    before = signal.signal(signal.SIGINT, lambda *arguments: heard.append(1))
    try:
        DistAsyncQLearning(seed=1).train(GARNET, total_steps=500, progress=Presses())
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [1]


@pytest.mark.slow
def test_a_prompt_survives_ctrl_c():
    """A real prompt, which a SystemExit would end."""
    typed = """
import signal
agent.train(garnet, total_steps=10**14, progress_interval=0, progress=lambda report: signal.raise_signal(2))
print("still here", agent.visits.sum() == agent.steps > 0)
"""
    done = subprocess.run(
        [sys.executable, "-q", "-i", "-c", LEARNS],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert "still here True" in done.stdout, done.stderr
    assert "The agent keeps what it learned" in done.stderr
