"""Helper processes of a sweep: those that save are waited for, and none is left."""

import os
import signal
import time

import pytest

from dist_classicrl.process.jobs import is_running
from dist_classicrl.sweep.hosts import processes
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
