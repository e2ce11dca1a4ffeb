"""Where one process learns alone, nothing that it says is about ranks and what goes on between them."""

import re
import signal
import time

import hand_made_metrics as hand_made
import pytest
from learned_runs import run_command
from own_signals import own_signals
from rich.console import Console

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl.callbacks.bar import drawn
from dist_classicrl.cli.main import main
from dist_classicrl.errors import SettingsError, TrainingStopped
from dist_classicrl.model import places
from dist_classicrl.plotting import canvas, plot_timeline
from dist_classicrl.process import stop

GARNET = TabularMDP.garnet(25, 4, 3, seed=3, max_episode_steps=60)
OF_RANKS = re.compile(r"\b(ranks?|lease[sd]?|stale(ness)?|this rank's share|mpirun)\b", re.IGNORECASE)


def check(*said):
    assert any(said)
    for text in said:
        assert not OF_RANKS.search(text), text


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch):
    places._agents.clear()
    with own_signals(monkeypatch):
        yield


@pytest.mark.parametrize("steps", [{}, {"steps": 1, "total_steps": 1}])
def test_neither_is_what_is_wrong_with_a_call(steps):
    with pytest.raises(SettingsError) as error:
        DistAsyncQLearning().train(GARNET, **steps)
    check(str(error.value))
    assert "train() takes total_steps=" in str(error.value)


def test_a_process_alone_that_is_asked_to_leave_says_that_it_goes_on_and_does(caplog, monkeypatch):
    """Once, however often it is asked."""
    monkeypatch.setattr(stop, "end_by_default", lambda number: None)
    how = {"leave_signals": ["SIGUSR1"], "progress": lambda report: signal.raise_signal(signal.SIGUSR1)}
    agent = DistAsyncQLearning(seed=1)
    assert agent.train(GARNET, total_steps=20_000, **how).steps == 20_000
    assert agent.train(GARNET, total_steps=20_000, **how).steps == 20_000
    deadline = time.monotonic() + 60.0
    while not caplog.messages and time.monotonic() < deadline:  # a thread of its own says it
        time.sleep(0.01)
    said = [text for text in caplog.messages if "leave" in text]
    assert len(said) == 1 and said[0].startswith("SIGUSR1 asks this process to leave, but it trains alone")
    assert "A second SIGUSR1 ends it at once" in said[0]
    check(said[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_neither_is_a_stop_and_what_goes_on_from_there(number, tmp_path, caplog, capsys):
    reports = []

    def press(report):
        reports.append(report)
        if len(reports) == 1:
            signal.raise_signal(number)

    how = {"total_steps": 300_000, "checkpoint_dir": tmp_path / "saved", "progress_interval": 0.0}
    with pytest.raises(TrainingStopped) as stopped:
        DistAsyncQLearning(seed=1).train(GARNET, **how, progress=press)
    assert stopped.value.reason == {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
    places._agents.clear()
    result = DistAsyncQLearning(seed=1).train(GARNET, **how, progress=reports.append, verbose=True)
    assert result.resumed_from is not None
    console = Console(width=100, record=True, file=None)
    with console.capture() as drawing:
        console.print(drawn(reports[-1], with_workers=True))
    check(str(stopped.value), caplog.text, repr(result), capsys.readouterr().err, drawing.get())


def test_neither_are_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "FrozenLake-v1", "--total-steps", "20000", "--eval-episodes", "9", "-v"]) == 0
    check(*capsys.readouterr())
    monkeypatch.setattr(canvas, "save", lambda figure, path: path)
    for words in (["show"], ["evaluate"], ["report"], ["plot"], ["plot", "--kind", "timeline"]):
        status, out, _ = run_command(capsys, *words[:1], "runs/FrozenLake-v1", *words[1:])
        assert status == 0
        check(out)


def test_neither_is_the_timeline(tmp_path):
    from dist_classicrl.monitoring.reading import read_metrics

    lines = [hand_made.report(100 * i, 0.5 * i, ranks=[hand_made.rank(0, 100)]) for i in range(1, 5)]
    figure, timeline = plot_timeline(read_metrics(hand_made.write(tmp_path / "run", lines)))
    rows, scale = figure.axes
    assert timeline.ranks == (0,)
    check(*(label.get_text() for label in rows.get_yticklabels()), scale.get_ylabel())
