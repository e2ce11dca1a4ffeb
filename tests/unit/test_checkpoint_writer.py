"""The thread that writes checkpoints: one at a time, and no failure of it ends training."""

import errno
import os
import threading
import time
import weakref

import numpy as np
import pytest

from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.errors import CheckpointFencedError

RUN = "0123abcd"
PATIENCE = 60.0


class Gate:
    """Holds every write of a folder back until it is opened, and can make it fail."""

    def __init__(self, folder):
        self.write, self.entered, self.open = folder.write, threading.Event(), threading.Event()
        self.error = None
        folder.write = self

    def __call__(self, *arguments):
        self.entered.set()
        assert self.open.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.write(*arguments)


@pytest.fixture
def folder(tmp_path):
    folder = CheckpointFolder(tmp_path, "agent-0")
    folder.claim()
    return folder


@pytest.fixture
def writer(folder):
    writer = Writer(folder)
    yield writer
    writer.close(PATIENCE)


def arrays_of(value):
    return {"a": np.full(5, float(value))}


def no_space():
    return OSError(errno.ENOSPC, "No space left on device")


def test_what_is_submitted_is_written_and_verified(folder, writer):
    assert (writer.busy, writer.last, writer.seconds, writer.failed) == (False, None, 0.0, False)
    assert writer.wait(0.0)
    writer.submit(arrays_of(1), {"steps": 1}, RUN)
    assert writer.wait(PATIENCE) and not writer.busy and not writer.failed
    saved = folder.read_newest()
    assert writer.last == saved.url and (saved.arrays["a"] == 1).all()
    assert writer.seconds > 0.0
    writer.check()


def test_the_thread_starts_with_the_first_checkpoint_and_ends_with_close(folder):
    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "checkpoints"]

    before = threads()
    writer = Writer(folder)
    assert threads() == before
    writer.write_now(arrays_of(1), {"steps": 1}, RUN, PATIENCE)
    (thread,) = set(threads()) - set(before)
    assert thread.daemon
    writer.write_now(arrays_of(2), {"steps": 2}, RUN, PATIENCE)
    assert set(threads()) == {*before, thread}
    writer.close(PATIENCE)
    assert threads() == before
    with pytest.raises(ValueError, match="closed"):
        writer.submit(arrays_of(3), {"steps": 3}, RUN)
    writer.close()


def test_a_writer_that_never_wrote_closes(folder):
    Writer(folder).close()


def test_only_one_at_a_time(folder, writer):
    gate = Gate(folder)
    writer.submit(arrays_of(1), {"steps": 1}, RUN)
    assert gate.entered.wait(PATIENCE) and writer.busy and not writer.wait(0.01)
    with pytest.raises(ValueError, match="busy"):
        writer.submit(arrays_of(2), {"steps": 2}, RUN)
    assert writer.write_now(arrays_of(2), {"steps": 2}, RUN, 0.01) is None
    gate.open.set()
    assert writer.wait(PATIENCE)
    assert [name[-24:-9] for name in folder.names()] == ["000000000000001"]


def test_write_now_waits_for_the_one_before(folder, writer):
    gate = Gate(folder)
    writer.submit(arrays_of(1), {"steps": 1}, RUN)
    assert gate.entered.wait(PATIENCE)
    threading.Timer(0.05, gate.open.set).start()
    url = writer.write_now(arrays_of(2), {"steps": 2}, RUN, PATIENCE)
    assert url == writer.last == folder.read_newest().url and len(folder.names()) == 2


def test_write_now_that_takes_too_long_says_so_and_goes_on(folder, writer):
    gate = Gate(folder)
    assert writer.write_now(arrays_of(1), {"steps": 1}, RUN, 0.05) is None
    assert writer.busy
    gate.open.set()
    assert writer.wait(PATIENCE) and writer.last == folder.read_newest().url


def test_close_does_not_wait_for_ever(folder):
    gate = Gate(folder)
    writer = Writer(folder)
    writer.submit(arrays_of(1), {"steps": 1}, RUN)
    assert gate.entered.wait(PATIENCE)
    writer.close(0.05)
    assert writer.busy
    gate.open.set()
    writer.close(PATIENCE)  # what was begun is still finished
    assert not writer.busy and writer.last == folder.read_newest().url


def test_what_was_submitted_just_before_close_is_still_written(folder):
    writer = Writer(folder)
    with writer._changed:  # the thread cannot begin before both have happened
        writer.submit(arrays_of(1), {"steps": 1}, RUN)
        writer.close(0.0)
    assert writer.wait(PATIENCE) and writer.last == folder.read_newest().url
    writer.close(PATIENCE)


def test_a_full_disk_is_logged_once_and_training_goes_on(folder, writer, caplog):
    first = writer.write_now(arrays_of(1), {"steps": 1}, RUN, PATIENCE)
    gate = Gate(folder)
    gate.open.set()
    gate.error = no_space()
    for _ in range(3):
        assert writer.write_now(arrays_of(2), {"steps": 2}, RUN, PATIENCE) is None
        assert writer.failed and writer.last == first
    writer.check()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "No space left on device" in record.message
    assert record.message.endswith(
        f"Training goes on, and the next one is tried. The last good checkpoint of this process is {first}."
    )
    gate.error = None
    second = writer.write_now(arrays_of(3), {"steps": 3}, RUN, PATIENCE)
    assert second == writer.last != first and not writer.failed
    assert caplog.records[1].message == f"Checkpoints can be written to {folder.url} again."
    gate.error = ConnectionError("gone")
    assert writer.write_now(arrays_of(4), {"steps": 4}, RUN, PATIENCE) is None
    assert "ConnectionError: gone" in caplog.records[2].message and len(caplog.records) == 3


def test_a_failure_half_way_leaves_nothing_half_written(folder, writer, monkeypatch, caplog):
    write = folder._storage.write

    def full(path, chunks):
        if path.endswith("b.npy"):
            raise no_space()
        write(path, chunks)

    monkeypatch.setattr(folder._storage, "write", full)
    arrays = {"a": np.zeros(3), "b": np.zeros(3)}
    assert writer.write_now(arrays, {"steps": 1}, RUN, PATIENCE) is None
    assert os.listdir(folder.url) == ["fence-000001.json"]
    assert "The last good checkpoint of this process is none." in caplog.text
    monkeypatch.setattr(folder._storage, "remove", lambda path: 1 / 0)  # not even that works any more
    assert writer.write_now(arrays, {"steps": 1}, RUN, PATIENCE) is None
    monkeypatch.undo()
    assert writer.write_now(arrays, {"steps": 2}, RUN, PATIENCE) is not None
    assert len(os.listdir(folder.url)) == 2


def test_who_was_replaced_is_told_by_check_in_its_own_thread(tmp_path, folder, writer, caplog):
    CheckpointFolder(tmp_path, "agent-0").claim()
    writer.check()
    assert writer.write_now(arrays_of(1), {"steps": 1}, RUN, PATIENCE) is None
    assert writer.failed and not caplog.records
    for _ in range(2):
        with pytest.raises(CheckpointFencedError, match="has been replaced"):
            writer.check()


def test_the_arrays_are_released_after_the_write(folder, writer):
    arrays = arrays_of(1)
    reference = weakref.ref(arrays["a"])
    assert writer.write_now(arrays, {"steps": 1}, RUN, PATIENCE)
    del arrays
    deadline = time.monotonic() + PATIENCE
    while reference() is not None and time.monotonic() < deadline:
        time.sleep(0.001)  # the thread lets go just after it has said that it is idle
    assert reference() is None


def test_seconds_is_the_longest_of_the_last_ten(folder, writer, monkeypatch):
    durations = iter([9.0, 2.0, *[1.0] * 9, 0.5])
    clock = {"now": 0.0}

    def lasting(arrays, body, run):
        clock["now"] += next(durations)
        return "name"

    folder.write = lasting
    monkeypatch.setattr("dist_classicrl.checkpoint.writer.time.monotonic", lambda: clock["now"])
    seen = []
    for _ in range(12):
        writer.submit(arrays_of(1), {"steps": 1}, RUN)
        while writer.busy:
            time.sleep(0.001)
        seen.append(writer.seconds)
    assert seen == [9.0] * 10 + [2.0, 1.0]
