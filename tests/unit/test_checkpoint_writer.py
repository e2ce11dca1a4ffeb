"""The threads that write checkpoints: one at a time, and no failure of theirs ends training."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from dist_classicrl.checkpoint import arrays as array_files
from dist_classicrl.checkpoint import writer as writer_module
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
    folder.fence.claim()
    return folder


@pytest.fixture
def writer(folder):
    writer = Writer(folder)
    yield writer
    assert writer.wait(PATIENCE)


def arrays_of(value):
    return {"a": np.full(5, float(value))}


def write_now(writer, arrays, steps):
    """Return where the checkpoint is; None if it could not be written."""
    writer.submit(arrays, {"steps": steps}, RUN)
    assert writer.wait(PATIENCE)
    return None if writer.failed else writer.last


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "checkpoints"]


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


def test_no_thread_outlives_its_checkpoint(folder, writer):
    gate = Gate(folder)
    for value in (1, 2):
        gate.open.clear()
        writer.submit(arrays_of(value), {"steps": value}, RUN)
        (thread,) = threads()
        assert thread.daemon
        gate.open.set()
        assert writer.wait(PATIENCE)
        thread.join(PATIENCE)
        assert threads() == [] and not writer_module._writing
    assert len(folder.names()) == 2


def test_a_system_without_more_threads_is_a_checkpoint_that_failed(folder, writer, monkeypatch, caplog):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert write_now(writer, arrays_of(1), 1) is None
    assert not writer.busy and "can't start new thread" in caplog.text and not writer_module._writing
    assert write_now(writer, arrays_of(1), 1) == folder.read_newest().url


def test_only_one_at_a_time(folder, writer):
    gate = Gate(folder)
    writer.submit(arrays_of(1), {"steps": 1}, RUN)
    assert gate.entered.wait(PATIENCE) and writer.busy and not writer.wait(0.01)
    with pytest.raises(ValueError, match="busy"):
        writer.submit(arrays_of(2), {"steps": 2}, RUN)
    gate.open.set()
    assert writer.wait(PATIENCE)
    assert [name[-24:-9] for name in folder.names()] == ["000000000000001"]


PROGRAM = """
import os, sys, threading, numpy as np
from dist_classicrl.checkpoint import writer as writer_module
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.writer import Writer

folder = CheckpointFolder(sys.argv[1], "agent-0")
folder.fence.claim()
write, ending = folder.write, threading.Event()

def late(*arguments):
    threading.main_thread().join()  # until the process ends
    if sys.argv[2] == "slow":
        ending.wait(0.5)
    elif sys.argv[2] == "hanging":
        ending.wait()
    return write(*arguments)

folder.write = late
writer = Writer(folder)
writer_module._EXIT_SECONDS = float(sys.argv[3])
writer.submit({"a": np.ones(5)}, {"steps": 1}, "0123abcd")
if sys.argv[4] == "abandoned":
    writer.abandon()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "speed, seconds, wanted, written",
    [
        ("quick", 60, "wanted", True),
        ("slow", 60, "wanted", True),
        ("hanging", 0.3, "wanted", False),
        ("hanging", 1e9, "abandoned", False),
    ],
)
def test_what_was_submitted_just_before_the_end_is_still_written(tmp_path, speed, seconds, wanted, written):
    """By a process that ends; but nothing holds it up for ever."""
    program = [sys.executable, "-c", PROGRAM, tmp_path, speed, str(seconds), wanted]
    subprocess.run(program, check=True, timeout=PATIENCE)
    found = CheckpointFolder(tmp_path, "agent-0").read_newest()
    assert (found is not None) == written
    assert not written or (found.arrays["a"] == 1).all()


class Watched(dict):
    """Arrays of a checkpoint; something happens between the first and the second."""

    def __init__(self, happens):
        super().__init__(a=np.zeros(5), b=np.zeros(5))
        self.happens = happens

    def items(self):
        yield "a", self["a"]
        self.happens()
        yield "b", self["b"]


def test_what_was_abandoned_is_never_published(folder, writer, caplog):
    first = write_now(writer, arrays_of(1), 1)
    seconds = writer.seconds

    def change():
        writer.abandon()
        arrays["b"][:] = 9.0  # now nothing in it need fit together

    arrays = Watched(change)
    assert write_now(writer, arrays, 2) == first
    assert not writer.failed and writer.seconds == seconds and not caplog.records
    assert len(os.listdir(folder.url)) == 2  # nothing is left of it
    writer.abandon()  # where nothing is being written, that is nothing
    assert write_now(writer, arrays_of(3), 3) == folder.read_newest().url != first


@pytest.mark.parametrize("at", ["write", "open"])
def test_one_that_hangs_is_seen_and_ends_at_its_next_piece_once_it_was_abandoned(
    folder, writer, monkeypatch, caplog, at
):
    """In the middle of an array, and as it is read back."""
    monkeypatch.setattr(array_files, "_CHUNK", 8)
    hangs, goes_on, begins = threading.Event(), threading.Event(), time.monotonic()
    before, pieces = getattr(folder.storage, at), []

    def hang():
        hangs.set()
        assert goes_on.wait(PATIENCE)

    def write(path, chunks):
        def some():
            for number, chunk in enumerate(chunks):
                pieces.append(bytes(chunk))
                if number == 2:
                    hang()
                yield chunk

        before(path, some())

    def read(path):
        if path.endswith(".npy"):
            pieces.append(path)
            hang()
        return before(path)

    monkeypatch.setattr(folder.storage, at, write if at == "write" else read)
    arrays = arrays_of(1)
    assert writer.stalled_for == 0.0
    writer.submit(arrays, {"steps": 1}, RUN)
    assert hangs.wait(PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.time, "monotonic", lambda: begins + 1000.0)
        assert 1000.0 - PATIENCE < writer.stalled_for <= 1000.0
    writer.abandon()
    arrays["a"][:] = 9.0
    goes_on.set()
    assert writer.wait(PATIENCE) and writer.stalled_for == 0.0
    assert writer.last is None and not writer.failed and not caplog.records
    assert len(pieces) == (3 if at == "write" else 1)
    assert all(name.startswith("fence") for name in os.listdir(folder.url))


def test_one_that_takes_long_is_reported_once(folder, writer, caplog, monkeypatch):
    writer.report_slow(0.0)
    first = write_now(writer, arrays_of(1), 1)
    gate = Gate(folder)
    for _ in range(2):
        caplog.clear()
        gate.open.clear()
        now = time.monotonic()
        writer.submit(arrays_of(2), {"steps": 2}, RUN)
        with monkeypatch.context() as patch:
            patch.setattr(writer_module.time, "monotonic", lambda now=now: now + 100.0)
            writer.report_slow(120.0)
            assert not caplog.records
            writer.report_slow(90.0)
            writer.report_slow(0.0)
        (record,) = caplog.records
        assert record.levelname == "WARNING" and "still being written" in record.message
        assert folder.url in record.message and "after 100 s" in record.message
        assert f"since the last good checkpoint of this process ({first}) is not saved" in record.message
        gate.open.set()
        assert writer.wait(PATIENCE)
        first = writer.last


def test_a_full_disk_is_logged_once_and_training_goes_on(folder, writer, caplog):
    first = write_now(writer, arrays_of(1), 1)
    gate = Gate(folder)
    gate.open.set()
    gate.error = no_space()
    for _ in range(3):
        assert write_now(writer, arrays_of(2), 2) is None
        assert writer.failed and writer.last == first
    writer.check()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "No space left on device" in record.message
    assert record.message.endswith(
        "As long as training goes on, the next one is tried. "
        f"The last good checkpoint of this process is {first}."
    )
    gate.error = None
    second = write_now(writer, arrays_of(3), 3)
    assert second == writer.last != first and not writer.failed
    assert caplog.records[1].message == f"Checkpoints can be written to {folder.url} again."
    gate.error = ConnectionError("gone")
    assert write_now(writer, arrays_of(4), 4) is None
    assert "ConnectionError: gone" in caplog.records[2].message and len(caplog.records) == 3


def test_the_last_good_one_is_none_where_somebody_has_removed_it(folder, writer, caplog):
    write_now(writer, arrays_of(1), 1)
    shutil.rmtree(folder.url)
    assert write_now(writer, arrays_of(2), 2) is None
    assert caplog.messages[0].endswith("The last good checkpoint of this process is none.")
    assert writer.last_good == "none"


def test_a_failure_half_way_leaves_nothing_half_written(folder, writer, monkeypatch, caplog):
    write = folder.storage.write

    def full(path, chunks):
        if path.endswith("b.npy"):
            raise no_space()
        write(path, chunks)

    monkeypatch.setattr(folder.storage, "write", full)
    arrays = {"a": np.zeros(3), "b": np.zeros(3)}
    assert write_now(writer, arrays, 1) is None
    assert os.listdir(folder.url) == ["fence-000001.json"]
    assert "The last good checkpoint of this process is none." in caplog.text
    monkeypatch.setattr(folder.storage, "remove", lambda path: 1 / 0)  # not even that works any more
    assert write_now(writer, arrays, 1) is None
    monkeypatch.undo()
    assert write_now(writer, arrays, 2) is not None
    assert len(os.listdir(folder.url)) == 2


def test_who_was_replaced_is_told_by_check_in_its_own_thread(tmp_path, folder, writer, caplog):
    CheckpointFolder(tmp_path, "agent-0").fence.claim()
    writer.check()
    assert write_now(writer, arrays_of(1), 1) is None
    assert writer.failed and not caplog.records
    for _ in range(2):
        with pytest.raises(CheckpointFencedError, match="has been replaced"):
            writer.check()


def test_the_arrays_are_released_after_the_write(folder, writer):
    arrays = arrays_of(1)
    reference = weakref.ref(arrays["a"])
    assert write_now(writer, arrays, 1)
    del arrays
    deadline = time.monotonic() + PATIENCE
    while reference() is not None and time.monotonic() < deadline:
        time.sleep(0.001)  # the thread lets go just after it has said that it is idle
    assert reference() is None


def test_seconds_is_the_longest_of_the_last_ten(folder, writer, monkeypatch):
    durations = iter([9.0, 2.0, *[1.0] * 9, 0.5])
    clock = {"now": 0.0}

    def lasting(arrays, body, run, look, *parts):
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
