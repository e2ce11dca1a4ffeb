"""A new user's first ten minutes: the quick start, typed in a terminal, from training to a plot.

This repository stands for the clone, and the Python that runs the tests for the environment that the package
was installed into. Screens and pictures are kept in the folder that the environment variable
DIST_CLASSICRL_TEN_MINUTES names, too.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import documents
import pytest
from documents import ROOT

from dist_classicrl.monitoring import read_metrics
from dist_classicrl.plotting import plot_curves, plot_timeline
from dist_classicrl.process import jobs as processes

QUICK_START = ROOT / "docs" / "quickstart.md"
RUN = "runs/FrozenLake8x8-v1"
KEPT = "DIST_CLASSICRL_TEN_MINUTES"

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux to type in")


class Terminal:
    """Bash in a tmux of its own, whose screens are kept; after the `with` block nothing of it runs."""

    def __init__(self, folder, programs, screens):
        self._screens, self._typed = screens, 0
        self._job = uuid.uuid4().hex
        self._statuses = folder / ".statuses"
        self._statuses.touch()
        settings = folder / ".settings"
        note = f"PROMPT_COMMAND='echo $? >> {self._statuses}'"
        settings.write_text(f"PATH={programs}:$PATH\nPS1='$ '\nHISTFILE=\n{note}\n")
        bash = ["bash", "--noprofile", "--rcfile", str(settings), "-i"]
        self._start = ["new-session", "-d", "-x", "128", "-y", "50", "-c", str(folder), *bash]
        # The name of a socket has to be short.
        self._place = tempfile.TemporaryDirectory()
        self._tmux = ["tmux", "-u", "-f", "/dev/null", "-S", f"{self._place.name}/socket"]

    def __enter__(self):
        try:
            self._ask(*self._start)
            self._wait(1, 20.0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=20.0)
        self._place.cleanup()
        for pid in processes.processes_of(self._job):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def type(self, line, timeout=240.0):
        """Type a line; return the screen when its command has ended, which must be with status 0.

        It is kept, and so are those that were seen before.
        """
        self._ask("send-keys", "C-l")
        self._ask("clear-history")
        self._ask("send-keys", "-l", line)
        prompts = len(self._ended()) + 1
        self._ask("send-keys", "Enter")
        seen = self._wait(prompts, timeout)
        screen = self.screen()
        self._typed += 1
        name = f"{self._typed:02d}-{'-'.join(re.findall(r'[a-z]+', line)[:3])}"
        (self._screens / f"{name}.txt").write_text(screen)
        (self._screens / f"{name}-meanwhile.txt").write_text(f"{'-' * 40}\n".join(seen))
        assert self._ended()[-1] == "0", screen
        return screen

    def screen(self):
        """Return what can be seen now, and what has scrolled away."""
        return self._ask("capture-pane", "-p", "-S", "-").rstrip() + "\n"

    def _ended(self):
        return self._statuses.read_text().split()

    def _wait(self, prompts, timeout):
        """Wait for so many prompts since the beginning; return the screens that were seen, each once.

        The status of what ended is written just before the prompt, which ends the last of the screens.
        """
        deadline = time.monotonic() + timeout
        seen = [self.screen()]
        while len(self._ended()) < prompts or not seen[-1].endswith("$\n"):
            assert time.monotonic() < deadline, f"no end within {timeout:g} s:\n{seen[-1]}"
            time.sleep(0.05)
            now = self.screen()
            if now != seen[-1]:
                seen.append(now)
        return seen

    def _ask(self, *words):
        own = {processes.JOB_VARIABLE: self._job, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | own
        asked = subprocess.run(
            [*self._tmux, *words], env=environment, capture_output=True, text=True, timeout=20.0
        )
        assert asked.returncode == 0, asked.stderr
        return asked.stdout


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    """Give a terminal in which the package is installed."""
    programs, screens = tmp_path / "bin", tmp_path / "screens"
    programs.mkdir()
    screens.mkdir()
    for name, words in (("python", ""), ("dist-classicrl", "-m dist_classicrl")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    with Terminal(tmp_path, programs, screens) as opened:
        yield opened
    if KEPT in os.environ:
        shutil.copytree(screens, os.environ[KEPT], dirs_exist_ok=True)
        for picture in tmp_path.rglob("*.png"):
            shutil.copy(picture, os.environ[KEPT])


def test_the_quick_start_as_it_is_typed(terminal, tmp_path):
    lines = [line for block in documents.blocks(QUICK_START, "sh") for line in block.text.splitlines()]
    install, train, show, evaluate, plot, export, act, *_ = lines  # then comes the script
    assert install.startswith("pip install")  # which was done before

    screen = terminal.type(train)
    assert "50,000,000 steps" in screen and "on 2 workers" in screen
    check_records(tmp_path / RUN)

    screen = terminal.type(show)
    assert len(re.findall("[←↓→↑]", screen)) >= 53  # of 64 cells ten are holes and one is the goal

    screen = terminal.type(evaluate)
    assert float(re.search(r"mean return\D*([\d.]+)", screen)[1]) > 0.75

    terminal.type(plot)
    check_picture(tmp_path / RUN / "plot.png")

    terminal.type(export)
    screen = terminal.type(act)
    assert screen.splitlines()[-2] in list("0123")


def check_records(run):
    """Check what the plot shows: a curve that rises, a point for each record, and every worker."""
    metrics = read_metrics(run)
    records = [json.loads(line)["kind"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = plot_curves(metrics)[1]["mean_return", "steps"]
    assert curve.x.size == len(metrics) == records.count("progress") >= 4
    assert curve.x[-1] == 50_000_000
    assert curve.y[0] + 0.02 < curve.y[-curve.y.size // 3 :].mean()
    timeline = plot_timeline(metrics)[1]
    assert set(timeline.ranks) == {1, 2}
    assert all(spans.size for spans in timeline.learned.values())


def check_picture(path):
    """Check that a picture shows something."""
    from matplotlib.image import imread

    picture = imread(path)
    assert min(picture.shape[:2]) > 500
    assert (picture[..., :3].std(axis=2) > 0.1).mean() > 0.01  # neither white, nor grey
