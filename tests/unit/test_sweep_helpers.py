"""Helper processes of a sweep: those that save are waited for, and none is left."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from numba.core.compiler_lock import global_compiler_lock

from dist_classicrl.process.jobs import is_running
from dist_classicrl.sweep.folder import Member, StudyFolder
from dist_classicrl.sweep.hosts import processes
from dist_classicrl.sweep.hosts.apart import records_apart
from dist_classicrl.sweep.hosts.processes import helpers

DEADLINE = 120.0


def stay(folder, hear):
    """Work as a helper process that tells its id, and does `hear` when it is to end."""
    signal.signal(signal.SIGTERM, hear)
    (folder / "written").write_text(f"{os.getpid()}")
    (folder / "written").rename(folder / "ready")
    time.sleep(600.0)


def wait_for(folder):
    deadline = time.monotonic() + DEADLINE
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(folder, hear):
    """Return the id of a helper process that was ended, and that does `hear` when it hears of that."""
    with helpers() as those:
        those.start(lambda: stay(folder, hear))
        wait_for(folder)
    return int((folder / "ready").read_text())


@pytest.mark.slow
def test_one_that_saves_on_a_slow_disk_is_waited_for(tmp_path):
    def save(*heard):
        time.sleep(6.0)
        (tmp_path / "saved").touch()
        os._exit(0)

    ended(tmp_path, save)
    assert (tmp_path / "saved").exists()


def test_one_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_ENDING_SECONDS", 0.1)
    assert not is_running(ended(tmp_path, signal.SIG_IGN))


def test_none_is_left_where_waiting_for_them_is_interrupted(tmp_path, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    those = processes.Helpers()
    those.start(lambda: stay(tmp_path, signal.SIG_IGN))
    wait_for(tmp_path)
    monkeypatch.setattr(processes.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        those.end()
    assert not is_running(int((tmp_path / "ready").read_text()))


def test_one_that_is_started_while_another_thread_compiles_can_compile(tmp_path):
    holds = threading.Event()

    def compile_for_a_while():
        with global_compiler_lock:
            holds.set()
            time.sleep(0.5)

    def work():
        with global_compiler_lock:
            (tmp_path / "ready").touch()

    thread = threading.Thread(target=compile_for_a_while)
    thread.start()
    assert holds.wait(DEADLINE)
    with helpers() as those:
        those.start(work)
        wait_for(tmp_path)
    thread.join()
    with helpers() as those, global_compiler_lock:  # this thread compiles
        (tmp_path / "ready").unlink()
        those.start(work)
        wait_for(tmp_path)


# Runs that end the process in which they are made


def trials(n):
    return [SimpleNamespace(number=number, run=number, key=f"{number}-10") for number in range(n)]


def made(those):
    for trial in those:
        yield {"key": trial.key, "error": None, "by": os.getpid()}


def test_runs_are_made_in_another_process_in_their_order():
    found = list(records_apart(trials(500), made, lambda: None))
    assert [record["key"] for record in found] == [trial.key for trial in trials(500)]
    (by,) = {record["by"] for record in found}
    assert by != os.getpid()


def test_the_run_that_ends_the_process_twice_has_failed_and_the_others_are_made(tmp_path):
    def dies(those):
        for record in made(those):
            if record["key"] == "2-10":
                os.kill(os.getpid(), signal.SIGKILL)
            if record["key"] == "4-10":
                os._exit(3)
            if record["key"] == "5-10" and not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield record

    found = list(records_apart(trials(7), dies, lambda: None))
    assert [record["key"] for record in found] == [trial.key for trial in trials(7)]
    errors = {record["key"]: record["error"] for record in found if record["error"] is not None}
    assert set(errors) == {"2-10", "4-10"}
    assert errors["2-10"].startswith("ChildProcessError: The process that made this run ended")
    assert "2 times in a row (the last time by SIGKILL)" in errors["2-10"]
    assert "with exit status 3" in errors["4-10"]


def test_the_process_that_makes_runs_ends_with_who_waits_for_them(tmp_path):
    def stays(those):
        (tmp_path / "written").write_text(f"{os.getpid()}")
        (tmp_path / "written").rename(tmp_path / "ready")
        time.sleep(600.0)
        yield {}

    def stop():
        if (tmp_path / "ready").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(records_apart(trials(1), stays, stop))
    assert not is_running(int((tmp_path / "ready").read_text()))


DEADLY = """
import os, signal, sys
import gymnasium
from dist_classicrl import Sweep

class Deadly(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        if self.np_random.random() < float(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return int(action), float(action), bool(action), False, {}

study = Sweep(Deadly, 100, seeds=8, points=2, eval_episodes=2, folder=sys.argv[1]).run(int(sys.argv[3]))
assert len(study.rows()) == 8
"""


def run_deadly(folder, probability, processes):
    given = [sys.executable, "-c", DEADLY, str(folder), f"{probability}", f"{processes}"]
    return subprocess.run(given, capture_output=True, timeout=DEADLINE)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_a_study_with_runs_that_kill_their_process_is_finished(tmp_path, processes):
    ends = []
    while 0 not in ends:
        ends.append(run_deadly(tmp_path / "deadly", 0.002, processes).returncode)
        assert ends in ([-signal.SIGKILL], [0], [-signal.SIGKILL, 0])
    assert run_deadly(tmp_path / "harmless", 0.0, 1).returncode == 0
    deadly, harmless = (
        (tmp_path / name / "results.csv").read_text().splitlines() for name in ("deadly", "harmless")
    )
    killed = [line for line in deadly if "ChildProcessError" in line]
    assert 0 < len(killed) < 8
    assert [line for line in deadly if line not in killed] == [
        other for line, other in zip(deadly, harmless, strict=True) if line not in killed
    ]


def test_only_who_left_without_a_word_makes_others_careful(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin({})
    with Member(folder) as left:
        assert left.claim("left") and not left.has_lost_its_owner("left")
    about = {"host": os.uname().nodename, "pid": os.getpid(), "start": "0"}
    (tmp_path / "members" / "dead").write_text(json.dumps(about))
    (tmp_path / "claims" / "dead.0").write_text("dead")
    with Member(folder) as member:
        assert all(member.claim(name) for name in ("left", "dead", "new"))
        careful = [name for name in ("left", "dead", "new") if member.has_lost_its_owner(name)]
        assert careful == ["dead"]
