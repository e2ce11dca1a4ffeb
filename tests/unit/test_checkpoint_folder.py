"""Folders of checkpoints: round trips, who may write, what is kept, and crashes at every step."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from edited_checkpoints import edit

from dist_classicrl import DistAsyncQLearning, TabularMDP, _files
from dist_classicrl.checkpoint import arrays as arrays_module
from dist_classicrl.checkpoint import fence as fence_module
from dist_classicrl.checkpoint import local as local_module
from dist_classicrl.checkpoint.file_thread import GivenUp
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.checkpoint.names import checkpoints_in
from dist_classicrl.errors import CheckpointError, CheckpointFencedError, CheckpointUnreadableError
from dist_classicrl.model import places

RUN, OTHER_RUN = "0123abcd", "99999999"


def arrays_of(seed, shape=(3, 4)):
    rng = np.random.default_rng(seed)
    return {"q_table": rng.normal(size=shape), "visits": rng.integers(0, 9, shape)}


def same(one, other):
    return set(one) == set(other) and all(
        one[key].dtype == other[key].dtype
        and one[key].shape == other[key].shape
        and one[key].tobytes() == other[key].tobytes()
        for key in one
    )


def claimed(path, **options):
    folder = CheckpointFolder(path, "agent-0", **options)
    folder.fence.claim()
    return folder


def sequences(folder):
    return [int(name.split("-")[1][1:]) for name in folder.names()]


# Round trips


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (3, 4), (2, 3, 4), (700, 901)])
def test_every_type_and_shape_comes_back(tmp_path, dtype, shape):
    array = np.random.default_rng(1).integers(0, 2**31, shape).astype(dtype)
    folder = claimed(tmp_path)
    name = folder.write({"a": array}, {"steps": 0}, RUN)
    saved = CheckpointFolder(tmp_path, "agent-0").read(name)
    assert same(saved.arrays, {"a": array})
    assert saved.arrays["a"].flags.writeable and saved.arrays["a"].flags.c_contiguous
    # As plain NumPy reads it.
    assert same({"a": np.load(Path(saved.url) / "a.npy", allow_pickle=False)}, {"a": array})


def test_special_values_come_back_bit_by_bit(tmp_path):
    array = np.array([np.nan, -0.0, np.inf, -np.inf, 5e-324])
    folder = claimed(tmp_path)
    assert same(folder.read(folder.write({"a": array}, {"steps": 0}, RUN)).arrays, {"a": array})


def test_arrays_in_another_order_come_back_as_they_are(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    views = {"columns": np.asfortranarray(array), "every_other": array[:, ::2], "turned": array.T}
    folder = claimed(tmp_path)
    read = folder.read(folder.write(views, {"steps": 0}, RUN)).arrays
    assert all(np.array_equal(read[key], views[key]) for key in views) and set(read) == set(views)


def test_the_body_comes_back_with_what_the_folder_adds(tmp_path):
    body = {
        "steps": 12345,
        "settings": {"epsilon": 0.1, "n": [1, None, True]},
        "note": "Köln \u2603 \ud800",
        3: 4,
    }
    folder = claimed(tmp_path)
    name = folder.write(arrays_of(1), body, RUN)
    assert name == f"f000001-c00000001-step000000000012345-{RUN}"
    read = folder.read_newest()
    assert read.name == name and read.url == f"{tmp_path}/agent-0/{name}"
    assert {key: read.body[key] for key in ("steps", "settings", "note", "3")} == {
        "steps": 12345,
        "settings": {"epsilon": 0.1, "n": [1, None, True]},
        "note": "Köln \u2603 \ud800",
        "3": 4,
    }
    assert (read.body["format"], read.body["format_version"]) == ("dist_classicrl checkpoint", 3)
    assert (read.body["fence"], read.body["sequence"]) == (1, 1)
    assert read.body["arrays"]["visits"]["file"] == "visits.npy"
    assert read.body["arrays"]["visits"]["shape"] == [3, 4]


def test_reading_makes_nothing_and_finds_nothing_in_a_new_place(tmp_path):
    folder = CheckpointFolder(tmp_path / "runs", "agent-0")
    assert folder.names() == [] and folder.read_newest() is None
    assert os.listdir(tmp_path) == []


def test_a_large_array_is_read_without_a_second_copy(tmp_path):
    folder = claimed(tmp_path)
    size = 40_000_000
    name = folder.write({"a": np.ones(size, np.uint8)}, {"steps": 0}, RUN)
    tracemalloc.start()
    try:
        saved = folder.read(name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert saved.arrays["a"].nbytes == size and peak < 1.2 * size


@pytest.mark.parametrize(
    "arrays, body, run, why",
    [
        ({"Q": np.zeros(1)}, {"steps": 1}, RUN, "no names of a checkpoint and its arrays"),
        ({"../q": np.zeros(1)}, {"steps": 1}, RUN, "no names of a checkpoint and its arrays"),
        ({"q": np.zeros(1)}, {"steps": 1}, "run-1", "no names of a checkpoint and its arrays"),
        ({"q": np.zeros(1)}, {"steps": -1}, RUN, "no names of a checkpoint and its arrays"),
        ({"q": np.zeros(1)}, {"steps": 1, "fence": 7}, RUN, "fence are given by the folder itself"),
        ({"q": np.array([None])}, {"steps": 1}, RUN, "hold plain numbers .* got |O"),
        ({"q": np.zeros(1, ">f8")}, {"steps": 1}, RUN, "hold plain numbers .* got >f8"),
        ({"q": np.zeros(1)}, {"steps": 1, "loss": float("nan")}, RUN, "not JSON compliant"),
    ],
    ids=range(8),
)
def test_what_could_not_be_read_is_not_written(tmp_path, arrays, body, run, why):
    folder = claimed(tmp_path)
    with pytest.raises(ValueError, match=why):
        folder.write(arrays, body, run)
    assert os.listdir(tmp_path / "agent-0") == ["fence-000001.json"]


@pytest.mark.parametrize("mode, folder_mode", [(0o600, 0o700), (0o664, 0o775)])
def test_permissions(tmp_path, mode, folder_mode):
    folder = claimed(tmp_path / "runs", mode=mode)
    folder.write(arrays_of(1), {"steps": 0}, RUN)
    paths = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    assert len(paths) == 7
    for path in paths:
        assert path.stat().st_mode & 0o777 == (folder_mode if path.is_dir() else mode), path


# What is kept


@pytest.mark.parametrize(
    "keep_last, keep_every, kept",
    [(1, None, [9]), (3, None, [9, 8, 7]), (2, 4, [9, 8, 4]), (1, 1, [*range(9, 0, -1)])],
)
def test_rotation(tmp_path, keep_last, keep_every, kept):
    folder = claimed(tmp_path, keep_last=keep_last, keep_every=keep_every)
    for step in range(9):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    assert sequences(folder) == kept
    for name in folder.names():
        saved = folder.read(name)
        assert same(saved.arrays, arrays_of(saved.body["steps"]))
    assert len(os.listdir(tmp_path / "agent-0")) == len(kept) + 1


def test_what_is_kept_for_good_is_not_looked_into_again(tmp_path, monkeypatch):
    """There may be thousands of them, behind a URL."""
    folder = claimed(tmp_path, keep_last=1, keep_every=1)
    for step in range(8):
        folder.write(arrays_of(step), {"steps": step}, OTHER_RUN if step < 3 else RUN)
    listed = []
    names = folder.storage.names
    monkeypatch.setattr(folder.storage, "names", lambda place="": listed.append(place) or names(place))
    name = folder.write(arrays_of(8), {"steps": 8}, RUN)
    assert sorted(filter(None, listed)) == [folder.names()[1], name]
    listed.clear()
    assert folder.read_newest().name == name and listed == ["", name]
    # A rule that keeps less applies to them too, and so does another run's.
    folder.keep_last, folder.keep_every = 1, None
    folder.write(arrays_of(9), {"steps": 9}, RUN)
    assert sequences(folder) == [10, 3, 2, 1]
    folder.write(arrays_of(10), {"steps": 10}, OTHER_RUN)
    assert sequences(folder) == [11, 10]


def test_checkpoints_of_other_runs_and_foreign_files_stay(tmp_path):
    folder = claimed(tmp_path, keep_last=1)
    for step in range(2):
        folder.write(arrays_of(step), {"steps": step}, OTHER_RUN)
    root = tmp_path / "agent-0"
    foreign = [
        "notes.txt",
        "f000001-c00000001-step000000000000000-backup",
        "f1-c1-step1-0123abcd",
        "F000001-c00000001-step000000000000000-0123abcd",
        f"f0000001-c00000001-step000000000000000-{RUN}",
        "fence-1.json",
        "fence-000001.json.bak",
    ]
    for name in foreign:
        (root / name).mkdir()
        (root / name / "file").touch()
    for step in range(3):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    assert [name[-8:] for name in folder.names()] == [RUN, OTHER_RUN] and sequences(folder) == [5, 2]
    assert all((root / name / "file").exists() for name in foreign)


def test_incomplete_folders_are_no_checkpoints_and_are_removed_by_the_next_one(tmp_path):
    folder = claimed(tmp_path)
    name = folder.write(arrays_of(1), {"steps": 1}, RUN)
    root = tmp_path / "agent-0"
    earlier = root / f"f000001-c00000007-step000000000000009-{OTHER_RUN}"
    later = root / f"f000002-c00000001-step000000000000009-{OTHER_RUN}"
    for path in (earlier, later):
        path.mkdir()
        (path / "q_table.npy").touch()
    assert folder.names() == [name] and folder.read_newest().name == name
    folder.write(arrays_of(2), {"steps": 2}, RUN)
    assert sequences(folder) == [8, 1]
    assert not earlier.exists() and later.exists()


def killed_while_writing(path, run=RUN):
    """Leave what a process leaves that is killed while it writes its first checkpoint."""
    folder = claimed(path)
    with pytest.raises(Crash), pytest.MonkeyPatch.context() as patch:

        def crash(*arguments):
            raise Crash

        patch.setattr(folder.storage, "sync", crash)
        patch.setattr(folder.storage, "remove", crash)
        folder.write(arrays_of(9), {"steps": 9}, run)
    (left,) = set(map(str, checkpoints_in(folder.storage.names()))) - set(folder.names())
    return left


def test_what_killed_jobs_left_is_removed_before_anything_is_written(tmp_path):
    """Else it would fill the disk, and none would ever be written again."""
    kept = claimed(tmp_path).write(arrays_of(0), {"steps": 0}, OTHER_RUN)
    left = [killed_while_writing(tmp_path, run) for run in (RUN, OTHER_RUN, RUN)]
    folder = claimed(tmp_path)
    there = []

    def look():
        there.append(folder.storage.names())

    name = folder.write(arrays_of(1), {"steps": 1}, RUN, look)
    assert len(left) == 3 and kept in there[0] and not set(left).intersection(there[0])
    assert folder.names() == [name, kept]
    # Who has been replaced since removes nothing, and nothing that a later one writes goes.
    late, later = folder, killed_while_writing(tmp_path)
    with pytest.raises(CheckpointFencedError):
        late.write(arrays_of(2), {"steps": 2}, RUN)
    assert later in folder.storage.names()


def test_what_a_failed_write_could_not_remove_goes_before_the_next_one(tmp_path, monkeypatch, caplog):
    folder = claimed(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(folder.storage, "remove", lambda path: 1 / 0)
        patch.setattr(folder.storage, "sync", lambda path: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                folder.write(arrays_of(1), {"steps": 1}, RUN)
    assert len(checkpoints_in(folder.storage.names())) == 2
    assert len(caplog.records) == 1 and "division by zero" in caplog.text
    there = []
    folder.write(arrays_of(1), {"steps": 1}, RUN, lambda: there.append(folder.storage.names()))
    assert len(checkpoints_in(there[0])) <= 1


def test_a_listing_that_lags_behind_costs_no_checkpoint(tmp_path, monkeypatch):
    name = claimed(tmp_path).write(arrays_of(1), {"steps": 1}, RUN)
    folder = claimed(tmp_path)
    names = folder.storage.names
    monkeypatch.setattr(folder.storage, "names", lambda place="": [] if place == name else names(place))
    monkeypatch.setattr(folder, "_write", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        folder.write(arrays_of(2), {"steps": 2}, RUN)
    monkeypatch.undo()
    assert folder.read_newest().name == name


def test_a_file_that_is_called_as_a_checkpoint_stays_without_a_word(tmp_path, caplog):
    folder = claimed(tmp_path, keep_last=1)
    foreign = tmp_path / "agent-0" / f"f000001-c00000000-step000000000000000-{RUN}"
    foreign.write_text("mine")
    for step in range(2):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    assert foreign.read_text() == "mine" and not caplog.records and len(folder.names()) == 1


def test_order_is_by_fence_then_sequence_and_not_by_steps(tmp_path):
    late = claimed(tmp_path)
    late.write(arrays_of(1), {"steps": 1000}, RUN)
    root = tmp_path / "agent-0"
    first = late.names()[0]
    shutil.copytree(root / first, tmp_path / "aside")
    folder = claimed(tmp_path)
    folder.write(arrays_of(2), {"steps": 500}, RUN)
    assert [name[:17] for name in folder.names()] == ["f000002-c00000002", "f000001-c00000001"]
    # What a server that was replaced publishes late, with a high sequence number and more steps.
    body = json.loads((root / first / "manifest.json").read_text())["body"]
    assert body["fence"] == 1
    (tmp_path / "aside").rename(root / first.replace("c00000001", "c00000099"))
    assert folder.read_newest().body["steps"] == 500


def test_a_rotation_that_fails_does_not_fail_the_checkpoint(tmp_path, monkeypatch, caplog):
    folder = claimed(tmp_path, keep_last=1)
    folder.write(arrays_of(0), {"steps": 0}, RUN)

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(folder.storage, "remove", refuse)
    for step in (1, 2):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    assert sequences(folder) == [3, 2, 1]
    (record,) = caplog.records
    assert "Old checkpoints" in record.message and "Permission denied" in record.message
    monkeypatch.undo()
    folder.write(arrays_of(3), {"steps": 3}, RUN)
    assert sequences(folder) == [4]


@pytest.mark.parametrize("where", ["remove", "names"])
def test_one_that_cannot_be_removed_does_not_keep_the_others(tmp_path, monkeypatch, caplog, where):
    folder = claimed(tmp_path, keep_last=9)
    for step in range(5):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    folder.keep_last, folder.keep_every = 1, None
    original = getattr(folder.storage, where)

    def refuse(path=""):
        if "c00000003" in path or "c00000004" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return original(path)

    monkeypatch.setattr(folder.storage, where, refuse)
    folder.write(arrays_of(5), {"steps": 5}, RUN)
    monkeypatch.undo()
    assert sequences(folder) == [6, 4, 3]
    (record,) = caplog.records
    assert "Old checkpoints" in record.message and "c00000004" in record.message
    folder.write(arrays_of(6), {"steps": 6}, RUN)
    assert sequences(folder) == [7]


# What is no longer wanted


def test_what_is_no_longer_wanted_is_not_published_whenever_that_is(tmp_path):
    folder = claimed(tmp_path, keep_last=1)
    before = folder.write(arrays_of(0), {"steps": 0}, RUN)
    for answers in range(100):
        left = iter([True] * answers)

        def look(left=left):
            if not next(left, False):
                raise GivenUp

        try:
            written = folder.write(arrays_of(1), {"steps": 1}, RUN, look)
            break
        except GivenUp:
            pass
        assert folder.names() == [before] and len(os.listdir(folder.url)) == 2
    # Two arrays, each written in two pieces and verified in one, and the manifest
    assert answers == 7 and folder.names() == [written]


def test_whether_it_is_wanted_is_asked_right_before_the_manifest(tmp_path, monkeypatch):
    folder = claimed(tmp_path)
    calls = []
    for name in ("write", "open", "sync", "names"):

        def record(path="", *rest, name=name):
            calls.append((name, path.rpartition("/")[2]))
            return getattr(LocalStorage, name)(folder.storage, path, *rest)

        monkeypatch.setattr(folder.storage, name, record)
    folder.write(arrays_of(1), {"steps": 1}, RUN, lambda: calls.append("asked"))
    assert calls[calls.index(("write", "manifest.json")) - 1] == "asked"


# Who may write


def test_each_claim_takes_the_next_number_and_removes_the_earlier_file(tmp_path):
    assert [CheckpointFolder(tmp_path, "agent-0").fence.claim() for _ in range(3)] == [1, 2, 3]
    assert os.listdir(tmp_path / "agent-0") == ["fence-000003.json"]
    holder = json.loads((tmp_path / "agent-0" / "fence-000003.json").read_text())
    assert set(holder) == {"number", "token", "host", "pid", "time"} and holder["pid"] == os.getpid()


def test_a_claim_for_which_there_is_no_room_replaces_nobody(tmp_path, monkeypatch):
    owner = claimed(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fsync", lambda handle: (_ for _ in ()).throw(full_disk()))
        with pytest.raises(CheckpointError, match="cannot be claimed: .*No space left"):
            claimed(tmp_path)
    assert owner.fence.check() == 1


def test_a_claim_goes_above_the_checkpoints_where_the_fence_file_was_lost(tmp_path):
    claimed(tmp_path)
    claimed(tmp_path).write(arrays_of(1), {"steps": 1}, RUN)
    (tmp_path / "agent-0" / "fence-000002.json").unlink()
    assert CheckpointFolder(tmp_path, "agent-0").fence.claim() == 3


def test_writing_needs_a_claim(tmp_path):
    with pytest.raises(CheckpointError, match=r"not claimed. Call claim\(\) first"):
        CheckpointFolder(tmp_path, "agent-0").write(arrays_of(1), {"steps": 1}, RUN)


def test_who_was_replaced_cannot_write_and_leaves_nothing(tmp_path):
    old, new = claimed(tmp_path), claimed(tmp_path)
    name = new.write(arrays_of(2), {"steps": 2}, OTHER_RUN)
    for attempt in (old.fence.check, lambda: old.write(arrays_of(1), {"steps": 1}, RUN)):
        with pytest.raises(CheckpointFencedError, match=f"host .*pid {os.getpid()}, time .*must stop"):
            attempt()
    assert sorted(os.listdir(tmp_path / "agent-0")) == sorted([name, "fence-000002.json"])
    assert same(old.read_newest().arrays, arrays_of(2))
    new.fence.check()


def test_who_is_replaced_while_writing_does_not_publish(tmp_path, monkeypatch):
    """The claim comes after the arrays, just before the manifest."""
    old = claimed(tmp_path)
    verify = arrays_module.verify
    newer = []

    def verify_and_claim(*arguments):
        verify(*arguments)
        if not newer:
            newer.append(claimed(tmp_path))

    monkeypatch.setattr(arrays_module, "verify", verify_and_claim)
    with pytest.raises(CheckpointFencedError):
        old.write(arrays_of(1), {"steps": 1}, RUN)
    assert os.listdir(tmp_path / "agent-0") == ["fence-000002.json"]
    newer[0].write(arrays_of(2), {"steps": 2}, OTHER_RUN)
    assert same(old.read_newest().arrays, arrays_of(2))


def test_who_is_replaced_and_finds_its_files_removed_hears_that_it_was_replaced(tmp_path, monkeypatch):
    """And not of trouble with a disk: the next one clears the folder before it writes."""
    old = claimed(tmp_path)
    verify = arrays_module.verify

    def claim_and_clear(*arguments):
        monkeypatch.setattr(arrays_module, "verify", verify)
        claimed(tmp_path).write(arrays_of(2), {"steps": 2}, OTHER_RUN)
        raise FileNotFoundError("q_table.npy")

    monkeypatch.setattr(arrays_module, "verify", claim_and_clear)
    with pytest.raises(CheckpointFencedError):
        old.write(arrays_of(1), {"steps": 1}, RUN)
    assert same(old.read_newest().arrays, arrays_of(2))


def test_the_first_checkpoint_looks_no_further_than_the_newest_complete_one(tmp_path, monkeypatch):
    before = claimed(tmp_path, keep_last=9)
    for steps in range(1, 6):
        before.write(arrays_of(steps), {"steps": steps}, RUN)
    folder = claimed(tmp_path, keep_last=9)
    looked, listed = [], folder.storage.listed
    monkeypatch.setattr(folder.storage, "listed", lambda *name: looked.append(name) or listed(*name))
    folder.clear(folder.next_name(6, RUN))
    assert len([name for name in looked if name]) == 1


def test_who_is_replaced_as_the_manifest_is_written_reports_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    """Stopped after its last look at the fence, as the next one removes what it takes for half written."""
    old = claimed(tmp_path)
    write, written = old.storage.write, []

    def late(path, chunks):
        if path.endswith("manifest.json"):
            newer = claimed(tmp_path)
            written.append(newer.write(arrays_of(2), {"steps": 2}, RUN))
        write(path, chunks)

    monkeypatch.setattr(old.storage, "write", late)
    with pytest.raises(CheckpointFencedError):
        old.write(arrays_of(1), {"steps": 1}, RUN)
    assert sorted(os.listdir(old.url)) == sorted([*written, "fence-000002.json"])


@pytest.mark.parametrize("trouble", [errno.EACCES, errno.EIO, errno.ESTALE, None])
def test_who_was_replaced_is_told_although_it_cannot_read_by_whom(tmp_path, monkeypatch, trouble):
    old = claimed(tmp_path)
    fault = TimeoutError("no answer") if trouble is None else OSError(trouble, os.strerror(trouble))

    def failing(path):
        raise fault

    monkeypatch.setattr(old.storage, "open", failing)
    with pytest.raises(type(fault)):  # its own claim: another look may find it as it was
        old.fence.check()
    claimed(tmp_path)
    with pytest.raises(CheckpointFencedError, match="another server .unknown; fencing number 2"):
        old.fence.check()


@pytest.mark.parametrize(
    "name", ["fence-99999999999999999999.json", f"f{'9' * 20}-c00000001-step000000000000001-{RUN}"]
)
def test_a_number_beyond_all_that_are_given_is_no_claim(tmp_path, name):
    claimed(tmp_path)
    (tmp_path / "agent-0" / name).mkdir()
    folder = claimed(tmp_path)
    assert folder.fence.check() == 2
    folder.write(arrays_of(1), {"steps": 1}, RUN)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 9000])
def test_a_fence_file_that_is_half_written_counts_by_its_number(tmp_path, content):
    folder = claimed(tmp_path)
    (tmp_path / "agent-0" / "fence-000002.json").write_bytes(content)
    with pytest.raises(CheckpointFencedError, match="another server .unknown; fencing number 2"):
        folder.fence.check()
    assert CheckpointFolder(tmp_path, "agent-0").fence.claim() == 3


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_fence_file_of_ours_that_says_nothing_replaces_nobody(tmp_path, content):
    """It may be a short read, so the next checkpoint is tried; a later number counts as ever."""
    folder = claimed(tmp_path)
    path = tmp_path / "agent-0" / "fence-000001.json"
    whole = path.read_bytes()
    path.write_bytes(content)
    for attempt in (folder.fence.check, lambda: folder.write(arrays_of(1), {"steps": 1}, RUN)):
        with pytest.raises(
            CheckpointError, match="fence-000001.json .* is damaged .*start the prog"
        ) as caught:
            attempt()
        assert not isinstance(caught.value, CheckpointFencedError)
    path.write_bytes(whole)
    folder.write(arrays_of(1), {"steps": 1}, RUN)
    path.write_bytes(content)
    claimed(tmp_path)
    with pytest.raises(CheckpointFencedError, match="fencing number 2"):
        folder.fence.check()


def test_a_fence_file_that_goes_as_it_is_read_is_that_of_who_was_replaced(tmp_path, monkeypatch):
    """Whoever claims removes the earlier one, here between the listing and the reading."""
    folder = claimed(tmp_path)
    listed, later = folder.storage.listed, []

    def claim_behind(where=""):
        found = listed(where)
        if not later:
            later.append(claimed(tmp_path))
        return found

    monkeypatch.setattr(folder.storage, "listed", claim_behind)
    with pytest.raises(CheckpointFencedError, match=f"host .*pid {os.getpid()}, .*fencing number 2"):
        folder.fence.check()


def test_one_short_read_of_its_fence_file_costs_a_training_one_checkpoint(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(places, "_agents", {})
    agent = DistAsyncQLearning(seed=1)
    lake = TabularMDP.from_gymnasium("FrozenLake-v1")
    agent.train(lake, total_steps=500, checkpoint_dir=tmp_path)
    path = tmp_path / "agent-0" / "fence-000001.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert agent.train(lake, total_steps=500, checkpoint_dir=tmp_path).steps == 500
    assert "fence-000001.json" in caplog.text and "damaged" in caplog.text
    path.write_bytes(whole)
    agent.train(lake, total_steps=500, checkpoint_dir=tmp_path)
    assert "can be written to" in caplog.text and "again" in caplog.text
    assert CheckpointFolder(tmp_path, "agent-0").newest().steps == agent.steps == 1_500


def test_a_file_of_the_same_number_and_another_token_is_somebody_else(tmp_path):
    folder = claimed(tmp_path)
    path = tmp_path / "agent-0" / "fence-000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "token": "0" * 32, "host": "elsewhere"}))
    with pytest.raises(CheckpointFencedError, match="elsewhere"):
        folder.fence.check()


def test_a_folder_that_was_removed_is_an_error_but_nobody_else_has_it(tmp_path):
    folder = claimed(tmp_path)
    shutil.rmtree(tmp_path / "agent-0")
    with pytest.raises(CheckpointError, match="has been removed or emptied") as caught:
        folder.write(arrays_of(1), {"steps": 1}, RUN)
    assert not isinstance(caught.value, CheckpointFencedError)


def test_claims_at_the_same_time_leave_one_holder(tmp_path):
    folders = [CheckpointFolder(tmp_path, "agent-0") for _ in range(8)]
    numbers = [0] * len(folders)
    start = threading.Barrier(len(folders))

    def claim(index):
        start.wait(30)
        numbers[index] = folders[index].fence.claim()

    threads = [threading.Thread(target=claim, args=(index,)) for index in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(numbers)) == len(folders) and min(numbers) >= 1
    for folder, number in zip(folders, numbers, strict=True):
        if number == max(numbers):
            folder.fence.check()
        else:
            with pytest.raises(CheckpointFencedError):
                folder.fence.check()


def test_a_number_that_was_passed_over_is_not_taken(tmp_path, monkeypatch):
    """Somebody claims twice between the listing and the creation: the number is free again, but too low."""
    slow = CheckpointFolder(tmp_path, "agent-0")
    others = []
    write_new = slow.storage.write_new

    def late(path, data):
        if not others:
            others.extend([claimed(tmp_path), claimed(tmp_path)])
        return write_new(path, data)

    monkeypatch.setattr(slow.storage, "write_new", late)
    assert slow.fence.claim() == 3
    slow.fence.check()
    with pytest.raises(CheckpointFencedError):
        others[1].fence.check()


class LaggingStorage(LocalStorage):
    """A network file system whose listings are old for a while."""

    def __init__(self, url, listings):
        super().__init__(url, 0o600)
        self.listings, self.tried = listings, []

    def names(self, folder=""):
        if not folder and self.listings > 0:
            self.listings -= 1
            return []
        return super().names(folder)

    def write_new(self, path, data):
        self.tried.append(path)
        return super().write_new(path, data)


def test_a_claim_where_the_listing_lags_behind(tmp_path):
    for _ in range(3):
        claimed(tmp_path)
    folder = CheckpointFolder(tmp_path, "agent-0")
    folder.storage = folder.fence._storage = LaggingStorage(folder.url, 7)
    assert folder.fence.claim() > 3
    assert len(set(folder.storage.tried)) == len(folder.storage.tried)  # what was refused is not tried again
    folder.fence.check()
    assert len(os.listdir(folder.url)) == 1


def test_a_claim_that_never_succeeds_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(fence_module, "_CLAIM_SECONDS", 0.3)
    folder = CheckpointFolder(tmp_path, "agent-0")
    folder.storage = folder.fence._storage = LaggingStorage(folder.url, 10**9)
    with pytest.raises(CheckpointError, match="could not be claimed within 0.3 s: .* or give another"):
        folder.fence.claim()
    assert len(folder.storage.tried) < 20  # it pauses in between
    with pytest.raises(CheckpointError, match="was not claimed"):
        folder.fence.check()


# Damage while writing


@pytest.mark.parametrize(
    "seek, damage, why",
    [
        (-1, b"\xee", "checksum does not match"),
        (0, b"x", "225 bytes instead of 224"),
        (-5, None, "219 bytes"),
    ],
)
def test_what_reads_back_differently_is_not_published(tmp_path, monkeypatch, seek, damage, why):
    folder = claimed(tmp_path)
    before = folder.write(arrays_of(1), {"steps": 1}, RUN)
    write = folder.storage.write

    def bad_disk(path, chunks):
        write(path, chunks)
        if path.endswith("visits.npy"):
            with open(Path(folder.url) / path, "r+b") as file:
                file.seek(seek, os.SEEK_END)
                file.truncate() if damage is None else file.write(damage)

    monkeypatch.setattr(folder.storage, "write", bad_disk)
    with pytest.raises(ValueError, match=why):
        folder.write(arrays_of(2), {"steps": 2}, RUN)
    assert folder.names() == [before] and len(os.listdir(folder.url)) == 2


def test_arrays_are_synced_before_the_manifest_and_old_ones_removed_after_it(tmp_path, monkeypatch):
    folder = claimed(tmp_path, keep_last=1)
    old = folder.write(arrays_of(1), {"steps": 1}, RUN)
    calls = []
    for name in ("write", "open", "sync", "remove"):

        def record(path, *rest, name=name):
            calls.append((name, path))
            return getattr(LocalStorage, name)(folder.storage, path, *rest)

        monkeypatch.setattr(folder.storage, name, record)
    new = folder.write(arrays_of(2), {"steps": 2}, RUN)
    assert calls == [
        ("open", "fence-000001.json"),
        ("write", f"{new}/q_table.npy"),
        ("write", f"{new}/visits.npy"),
        ("sync", new),
        ("open", f"{new}/q_table.npy"),
        ("open", f"{new}/visits.npy"),
        ("open", "fence-000001.json"),
        ("write", f"{new}/manifest.json"),
        ("sync", new),
        ("sync", ""),
        ("open", f"{new}/manifest.json"),
        ("open", "fence-000001.json"),
        ("remove", f"{old}/manifest.json"),
        ("remove", old),
    ]


class Crash(BaseException):
    """The process is gone: nothing catches this."""


class FaultySystem:
    """What the storage asks of the operating system; call `fatal` and, if lasting, all later ones fail.

    A file that is written when it happens stays half written, a folder that is removed stays half removed.
    """

    COUNTED = ("open", "mkdir", "listdir", "fsync", "fchmod", "replace", "unlink", "posix_fadvise")

    def __init__(self, fatal, error, lasting):
        self.calls, self.fatal, self.error, self.lasting = 0, fatal, error, lasting

    def step(self):
        self.calls += 1
        if self.calls == self.fatal or (self.lasting and self.calls > self.fatal):
            raise self.error()

    def __getattr__(self, name):
        function = getattr(os, name)
        if name not in self.COUNTED:
            return function

        def counted(*arguments, **options):
            self.step()
            return function(*arguments, **options)

        return counted

    def fdopen(self, handle, mode):
        file = os.fdopen(handle, mode, buffering=0)
        if mode == "rb":
            return file
        return FaultyFile(file, self)

    def rmtree(self, path):
        for entry in sorted(os.listdir(path)):
            self.step()
            os.unlink(os.path.join(path, entry))
        self.step()
        os.rmdir(path)


class FaultyFile:
    def __init__(self, file, system):
        self.file, self.system = file, system

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, chunk):
        try:
            self.system.step()
        except BaseException:
            self.file.write(chunk[: len(chunk) // 2])
            raise
        self.file.write(chunk)

    def flush(self):
        pass


def install(monkeypatch, system):
    for module in (local_module, _files):
        monkeypatch.setattr(module, "os", system)
    monkeypatch.setattr(local_module, "shutil", SimpleNamespace(rmtree=system.rmtree))


def full_disk():
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize(
    "error, lasting", [(Crash, True), (Crash, False), (full_disk, True), (full_disk, False)]
)
def test_a_failure_at_any_step_leaves_a_folder_that_loads_and_can_be_written_again(
    tmp_path, monkeypatch, error, lasting
):
    outcomes = set()
    for fatal in range(1, 1000):
        place = tmp_path / str(fatal)
        folder = claimed(place, keep_last=1)
        folder.write(arrays_of(1), {"steps": 1}, RUN)
        system = FaultySystem(fatal, error, lasting)
        with monkeypatch.context() as patch:
            install(patch, system)
            try:
                folder.write(arrays_of(2), {"steps": 2}, RUN)
                written = True
            except (Crash, OSError, CheckpointError) as caught:
                assert not isinstance(caught, CheckpointFencedError)
                written = False
        found = CheckpointFolder(place, "agent-0").read_newest()
        step = found.body["steps"]
        assert same(found.arrays, arrays_of(step)) and step in (1, 2)
        assert step == 2 or not written
        if not lasting and not written and error is full_disk:
            assert step == 1 and len(os.listdir(folder.url)) == 2  # it cleaned up after itself
        outcomes.add((written, step))
        if fatal % 2:
            folder = claimed(place, keep_last=1)  # started again; otherwise the same process goes on
        folder.write(arrays_of(3), {"steps": 3}, RUN)
        assert same(CheckpointFolder(place, "agent-0").read_newest().arrays, arrays_of(3))
        (name,) = folder.names()
        assert sorted(os.listdir(folder.url))[0] == name and len(os.listdir(folder.url)) == 2
        assert sorted(os.listdir(f"{folder.url}/{name}")) == ["manifest.json", "q_table.npy", "visits.npy"]
        shutil.rmtree(place)
        if system.calls < fatal:
            break
    assert written and step == 2 and fatal > 40
    assert (False, 1) in outcomes and (True, 2) in outcomes
    if error is Crash:
        assert (False, 2) in outcomes  # after the manifest


@pytest.mark.parametrize("lasting", [True, False])
def test_a_claim_that_fails_at_any_step_leaves_a_folder_that_can_be_claimed(tmp_path, monkeypatch, lasting):
    for fatal in range(1, 200):
        place = tmp_path / str(fatal)
        claimed(place).write(arrays_of(1), {"steps": 1}, RUN)
        system = FaultySystem(fatal, Crash, lasting)
        with monkeypatch.context() as patch:
            install(patch, system)
            try:
                CheckpointFolder(place, "agent-0").fence.claim()
            except Crash:
                pass
        folder = claimed(place)
        folder.write(arrays_of(2), {"steps": 2}, RUN)
        assert folder.read_newest().body["steps"] == 2
        fences = [name for name in os.listdir(folder.url) if name.startswith("fence")]
        assert len(fences) == 1
        if system.calls < fatal:
            break
    assert 5 < fatal < 199


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_disk_that_is_really_full(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.decode()}")
    try:
        folder = claimed(tmp_path, keep_last=1)
        folder.write(arrays_of(1, (100, 100)), {"steps": 1}, RUN)
        with pytest.raises(OSError, match="No space left"):
            folder.write(arrays_of(2, (250, 250)), {"steps": 2}, RUN)
        assert same(folder.read_newest().arrays, arrays_of(1, (100, 100)))
        assert len(os.listdir(folder.url)) == 2
        folder.write(arrays_of(3, (100, 100)), {"steps": 3}, RUN)
        assert same(folder.read_newest().arrays, arrays_of(3, (100, 100)))
        del folder
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.slow
def test_a_process_killed_while_it_writes_leaves_the_last_checkpoint(tmp_path):
    """A real one, at a random moment, several times over."""
    program = (
        "import sys, numpy as np\n"
        "from dist_classicrl.checkpoint.folder import CheckpointFolder\n"
        "folder = CheckpointFolder(sys.argv[1], 'agent-0', keep_last=1)\n"
        "folder.fence.claim()\n"
        "for steps in range(10**6):\n"
        "    arrays = {'a': np.full((300, 300), steps), 'b': np.full(300, steps)}\n"
        "    folder.write(arrays, {'steps': steps}, '0123abcd')\n"
        "    print(steps, flush=True)\n"
    )
    for wait in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(3 + wait):
                seen = int(process.stdout.readline())
            process.kill()
            process.wait(60)
            rest = process.stdout.read().split()
        saved = CheckpointFolder(tmp_path, "agent-0").read_newest()
        steps = saved.body["steps"]
        assert steps >= max([seen, *map(int, rest)])
        assert (saved.arrays["a"] == steps).all() and (saved.arrays["b"] == steps).all()


def test_a_reader_beside_a_writer_always_finds_a_checkpoint(tmp_path, caplog):
    """Its listing grows old while the writer replaces all that was listed."""
    folder = claimed(tmp_path, keep_last=1)
    folder.write(arrays_of(0), {"steps": 0}, RUN)
    reader = CheckpointFolder(tmp_path, "agent-0")
    read = reader.read
    steps = iter(range(1, 4))

    def late(name, **more):
        for step in steps:
            folder.write(arrays_of(step), {"steps": step}, RUN)
            break
        return read(name, **more)

    reader.read = late
    assert same(reader.read_newest().arrays, arrays_of(3))


# Several runs


def break_newest(folder, number=1):
    """Damage the newest checkpoints and return their names."""
    names = folder.names()[:number]
    for name in names:
        (Path(folder.url) / name / "visits.npy").write_bytes(b"")
    return names


@pytest.mark.parametrize("trouble", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE, None])
@pytest.mark.parametrize("file", ["manifest.json", "visits.npy"])
def test_no_older_one_takes_the_place_of_one_that_cannot_be_read_for_now(
    tmp_path, caplog, monkeypatch, file, trouble
):
    folder = claimed(tmp_path)
    names = [folder.write(arrays_of(step), {"steps": step}, RUN) for step in (1, 2)]
    inner = folder.storage.open
    fault = TimeoutError("no answer") if trouble is None else OSError(trouble, os.strerror(trouble))

    def failing(path):
        if path == f"{names[1]}/{file}":
            raise fault
        return inner(path)

    with monkeypatch.context() as patch:
        patch.setattr(folder.storage, "open", failing)
        with pytest.raises(CheckpointUnreadableError, match=f"{names[1]} cannot be read: .*try again once"):
            folder.read_newest()
    assert folder.read_newest().name == names[1] and not caplog.records


@pytest.mark.parametrize("trouble", [errno.ESTALE, errno.ENOENT])
def test_one_that_is_removed_as_it_is_read_makes_no_trouble(tmp_path, caplog, monkeypatch, trouble):
    folder = claimed(tmp_path)
    names = [folder.write(arrays_of(step), {"steps": step}, RUN) for step in (1, 2)]
    inner = folder.storage.open

    gone = names[1:]

    def removed(path):
        if path.startswith(tuple(gone)):
            folder.storage.remove(path.partition("/")[0])
            raise OSError(trouble, os.strerror(trouble))
        return inner(path)

    monkeypatch.setattr(folder.storage, "open", removed)
    assert folder.read_newest().name == names[0]
    gone = names
    assert folder.read_newest() is None and not caplog.records


@pytest.mark.parametrize("way", ["folder", "pipe", "links"])
def test_what_is_no_file_is_damage(tmp_path, way):
    folder = claimed(tmp_path)
    names = [folder.write(arrays_of(step), {"steps": step}, RUN) for step in (1, 2)]
    file = Path(folder.url) / names[1] / "visits.npy"
    file.unlink()
    {"folder": file.mkdir, "pipe": lambda: os.mkfifo(file), "links": lambda: file.symlink_to(file)}[way]()
    assert folder.read_newest().name == names[0]


def test_another_run_does_not_take_the_place_of_a_damaged_one(tmp_path, caplog):
    folder = claimed(tmp_path)
    older = folder.write(arrays_of(1), {"steps": 1}, OTHER_RUN)
    for step in (2, 3):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    broken = break_newest(folder, 2)
    with pytest.raises(CheckpointError) as caught:
        folder.read_newest()
    message = str(caught.value)
    assert all(f"{folder.url}/{name} is no usable checkpoint" in message for name in broken)
    assert f"{folder.url}/{older} is of another run" in message
    assert f"to go on from it, move {broken[0]}, {broken[1]} away" in message
    assert not caplog.records
    for name in broken:
        (Path(folder.url) / name).rename(tmp_path / name)
    assert folder.read_newest().name == older


def test_the_same_run_takes_the_place_of_a_damaged_one_past_others(tmp_path, caplog):
    folder = claimed(tmp_path)
    names = [folder.write(arrays_of(step), {"steps": step}, run) for step, run in enumerate([RUN, OTHER_RUN])]
    folder.write(arrays_of(2), {"steps": 2}, RUN)
    (broken,) = break_newest(folder)
    assert folder.read_newest().name == names[0]
    (record,) = caplog.records
    assert broken in record.message and f"Using {names[0]} instead." in record.message


def test_a_run_that_begins_while_a_damaged_one_is_read_is_taken(tmp_path):
    folder = claimed(tmp_path)
    folder.write(arrays_of(1), {"steps": 1}, RUN)
    break_newest(folder)
    reader = CheckpointFolder(tmp_path, "agent-0")
    read, begun = reader.read, []

    def late(name, **more):
        if not begun:
            begun.append(folder.write(arrays_of(2), {"steps": 2}, OTHER_RUN))
        return read(name, **more)

    reader.read = late
    assert reader.read_newest().name == begun[0]


def test_neither_training_nor_load_model_takes_another_run_for_a_damaged_one(tmp_path, monkeypatch):
    lake = TabularMDP.from_gymnasium("FrozenLake-v1")
    for _ in range(2):
        monkeypatch.setattr(places, "_agents", {})
        DistAsyncQLearning(seed=1).train(lake, total_steps=500, checkpoint_dir=tmp_path, resume="never")
    folder = CheckpointFolder(tmp_path, "agent-0")
    (broken,), names = break_newest(folder), folder.names()
    monkeypatch.setattr(places, "_agents", {})
    agent = DistAsyncQLearning(seed=1)
    for attempt in (
        lambda: agent.train(lake, total_steps=1_000, checkpoint_dir=tmp_path),
        lambda: DistAsyncQLearning.load_model(tmp_path),
        lambda: DistAsyncQLearning.load_model(folder.url),
    ):
        with pytest.raises(CheckpointError, match=f"{names[-1]} is of another run.* move {broken} away"):
            attempt()
    assert agent.steps == 0 and folder.names() == names and broken != names[-1]
    assert DistAsyncQLearning.load_model(folder.url_of(names[-1])).steps == 500


def test_neither_training_nor_load_model_goes_back_behind_one_of_a_newer_format(tmp_path, monkeypatch):
    def run(steps, **options):
        monkeypatch.setattr(places, "_agents", {})
        return DistAsyncQLearning(seed=1).train(
            "FrozenLake-v1", total_steps=steps, checkpoint_dir=tmp_path, keep_last=1, **options
        )

    run(500)
    older = Path(shutil.copytree(tmp_path / "agent-0", tmp_path / "kept", dirs_exist_ok=True))
    run(1_000)
    shutil.copytree(older, tmp_path / "agent-0", dirs_exist_ok=True)
    folder = CheckpointFolder(tmp_path, "agent-0")
    names = folder.names()
    edit(folder.read(names[0]), lambda body, arrays: body.update(format_version=4, package_version="9.0.0"))
    for attempt in (
        lambda: run(1_500),
        lambda: run(1_500, strict=False),
        lambda: run(1_500, resume="must"),
        lambda: DistAsyncQLearning.load_model(tmp_path),
        lambda: DistAsyncQLearning.load_model(folder.url_of(names[0])),
    ):
        with pytest.raises(CheckpointUnreadableError, match=f"{names[0]} .*'9.0.0'.*install that version"):
            attempt()
    run(1_500, resume="never")
    assert len(names) == 2 and folder.names()[1:] == names


# What lies elsewhere


def test_pruning_removes_a_link_to_a_checkpoint_and_nothing_behind_it(tmp_path):
    folder = claimed(tmp_path / "here", keep_last=1)
    first = folder.write(arrays_of(1), {"steps": 10}, RUN)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(tmp_path / "here" / "agent-0" / first, elsewhere / first)
    (tmp_path / "here" / "agent-0" / first).symlink_to(elsewhere / first)
    before = sorted(path.name for path in (elsewhere / first).iterdir())
    assert "manifest.json" in before and first in folder.names()
    second = folder.write(arrays_of(2), {"steps": 20}, RUN)
    assert folder.names() == [second]
    assert not os.path.lexists(tmp_path / "here" / "agent-0" / first)
    assert sorted(path.name for path in (elsewhere / first).iterdir()) == before
