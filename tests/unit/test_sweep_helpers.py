"""Helper processes of a sweep: those that save are waited for, and none is left."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import gymnasium
import pytest
from numba.core.compiler_lock import global_compiler_lock

from dist_classicrl import Sweep
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


def apart(n, make, tick=lambda: None):
    """Return the records of so many runs that `make` makes in another process, where that can live."""

    def begins(those):
        yield None
        yield from make(those)

    return list(records_apart(trials(n), begins, made, tick))


def test_runs_are_made_in_another_process_in_their_order():
    found = apart(500, made)
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

    found = apart(7, dies)
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
        apart(1, stays, stop)
    assert not is_running(int((tmp_path / "ready").read_text()))


def test_a_process_that_ends_in_order_or_before_it_has_begun_says_nothing_of_its_runs(tmp_path, caplog):
    def ends_early(status, those):
        yield from made(those[:2])
        os._exit(status)

    def cannot_live(those):
        os.kill(os.getpid(), signal.SIGKILL)
        yield from made(those)

    for status in (os.EX_TEMPFAIL, 130):
        found = apart(4, partial(ends_early, status))
        assert [record["key"] for record in found] == [trial.key for trial in trials(4)]
        assert [record["by"] == os.getpid() for record in found] == [False, False, True, True]
    found = list(records_apart(trials(3), cannot_live, made, lambda: None))
    assert [(record["by"], record["error"]) for record in found] == [(os.getpid(), None)] * 3
    assert "ended by SIGKILL, which says nothing of its runs: this one makes them" in caplog.messages[-1]


def test_a_process_that_does_nothing_for_long_is_ended(monkeypatch, caplog):
    def waits(those):
        for record in made(those):
            if record["key"] == "1-10":
                threading.Event().wait()
            yield record

    def waits_at_first(those):
        threading.Event().wait()
        yield from made(those)

    monkeypatch.setattr("dist_classicrl.sweep.hosts.processes._IDLE_SECONDS", 0.3)
    errors = [record["error"] for record in apart(3, waits)]
    assert errors[0] is errors[2] is None
    assert "2 times in a row (the last time since it did nothing for long)" in errors[1]
    assert caplog.messages == ["A forked process has done nothing for 0 seconds: it is ended."] * 2
    found = list(records_apart(trials(2), waits_at_first, made, lambda: None))
    assert [record["by"] for record in found] == [os.getpid()] * 2


def test_a_process_that_computes_is_left_alone(monkeypatch, tmp_path):
    def works(those):
        while not (tmp_path / "enough").exists():
            pass
        yield from made(those)

    with helpers() as those:
        those.start(lambda: list(works([])))
        (child,) = those._running
        before, deadline = those.busy_ticks(child), time.monotonic() + DEADLINE
        while those.busy_ticks(child) == before:
            assert time.monotonic() < deadline
        (tmp_path / "enough").touch()
    (tmp_path / "enough").unlink()
    ticks = iter(range(10**9))
    monkeypatch.setattr(processes.Helpers, "busy_ticks", lambda self, child: [str(next(ticks))])
    monkeypatch.setattr("dist_classicrl.sweep.hosts.processes._IDLE_SECONDS", 0.1)
    asked = iter(range(10**9))
    (record,) = apart(1, works, lambda: next(asked) == 30 and (tmp_path / "enough").touch())
    assert record["error"] is None and record["by"] != os.getpid()


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
        assert ends[-1] in (0, -signal.SIGKILL) and len(ends) <= 3 * 8 + 1
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
        assert left.claim("left") and not left.lost_owners("left")
    about = {"host": os.uname().nodename, "pid": os.getpid(), "start": "0"}
    for number in range(2):
        (tmp_path / "members" / f"dead{number}").write_text(json.dumps(about))
        (tmp_path / "claims" / f"dead.{number}").write_text(f"dead{number}")
    with Member(folder) as member:
        assert all(member.claim(name) for name in ("left", "dead", "new"))
        assert [member.lost_owners(name) for name in ("left", "dead", "new")] == [0, 2, 0]


POOL = ThreadPoolExecutor(1)


class Served(gymnasium.Env):
    """It steps in a thread of the process, which a process that was forked from it has not."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action), POOL.submit(float, action).result(), True, False, {}


def after_losses(folder, n_lost, seeds=4):
    """Return a sweep all of whose runs but the first ones have had so many owners that were killed."""
    sweep = Sweep({"served": Served}, 20_000, seeds, points=2, eval_episodes=2, folder=folder)
    sweep.begin()
    parcels = sweep.plan.parcels([sweep.plan.trial(number) for number in range(seeds)], {"served": 200.0})
    assert len(parcels) > 1
    about = {"host": os.uname().nodename, "pid": os.getpid(), "start": "0"}
    for number in range(n_lost):
        (folder / "members" / f"dead{number}").write_text(json.dumps(about))
        for parcel in parcels[1:]:
            (folder / "claims" / f"{parcel.name}.{number}").write_text(f"dead{number}")
    return sweep


@pytest.mark.slow
@pytest.mark.parametrize(
    "given, n_lost, is_apart", [(1, 2, False), (1, 3, True), (2, 1, False), (2, 2, True)]
)
def test_runs_are_made_apart_where_several_processes_were_lost(
    tmp_path, monkeypatch, given, n_lost, is_apart
):
    def noted(*arguments):
        (tmp_path / "apart").touch()
        return records_apart(*arguments)

    monkeypatch.setattr("dist_classicrl.sweep.hosts.run_maker.records_apart", noted)
    sweep = after_losses(tmp_path / "study", n_lost)
    monkeypatch.setattr(Served, "step", lambda self, action: (int(action), 1.0, True, False, {}))
    assert [row["error"] for row in sweep.run(given).rows()] == [None] * 4
    assert (tmp_path / "apart").exists() is is_apart


@pytest.mark.slow
def test_helpers_whose_environment_has_lost_its_threads_are_no_hang(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(processes, "_IDLE_SECONDS", 2.0)
    monkeypatch.setattr(processes, "_IDLE_RUNS", 0.0)
    POOL.submit(float, 0).result()  # so that there is a thread to be lost
    sweep = after_losses(tmp_path / "study", 0, seeds=8)
    assert [row["error"] for row in sweep.run(4).rows()] == [None] * 8
    assert "A forked process has done nothing for 2 seconds: it is ended." in caplog.messages
    assert not any("a forked process makes them" in each for each in caplog.messages)


def test_time_in_which_nobody_looked_is_no_idleness(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_IDLE_SECONDS", 0.5)
    now = [100.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    with helpers() as those:
        those.start(lambda: stay(tmp_path, signal.SIG_DFL))
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        (child,) = those._running
        while "S" not in open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]:
            time.sleep(0.01)
        for _ in range(3):
            now[0] += 1000.0
            assert those.kill_idle(float) == []
        for _ in range(5):
            assert those.kill_idle(lambda: 0.07) == []  # or 20 times as long as a run takes
            now[0] += 0.2
        assert those.kill_idle(lambda: 0.07) == []
        os.kill(child, signal.SIGSTOP)
        while "T" not in open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]:
            time.sleep(0.01)
        now[0] += 0.2
        assert those.kill_idle(float) == []  # somebody has stopped it, and may let it go on
        os.kill(child, signal.SIGCONT)
        killed = []
        for _ in range(5):
            now[0] += 0.2
            killed += those.kill_idle(float)
        assert killed == [child]


@pytest.mark.slow
def test_runs_that_cannot_be_made_in_a_forked_process_are_made_in_this_one(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("dist_classicrl.sweep.hosts.processes._IDLE_SECONDS", 1.0)
    monkeypatch.setattr("dist_classicrl.sweep.hosts.processes._IDLE_RUNS", 0.0)
    sweep = after_losses(tmp_path / "study", 3)
    assert [row["error"] for row in sweep.run(1).rows()] == [None] * 4
    said = " ".join(caplog.messages)
    assert "3 processes were lost with" in said and "done nothing for" in said
    assert "since it did nothing for long, which says nothing of its runs: this one makes them" in said
