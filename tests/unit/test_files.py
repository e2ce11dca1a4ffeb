"""Files that are written whole or not at all."""

import os
import stat

import pytest

from dist_classicrl import _files
from dist_classicrl._files import new_file, whole_file


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_a_file_takes_the_place_of_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_what_raises_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("happens", ["disk is full", "folder is gone", "a folder has its name"])
def test_what_the_system_says_against_a_file_names_it(tmp_path, monkeypatch, happens):
    path = tmp_path / "runs" / "model.npz"
    if happens != "folder is gone":
        path.parent.mkdir()
    if happens == "a folder has its name":
        path.mkdir()
        (path / "more").touch()
    with pytest.raises(OSError) as caught, whole_file(path) as file:
        if happens == "disk is full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        file.write(b"new")
    assert caught.value.filename == str(path) and str(caught.value).endswith(f": {str(path)!r}")


def test_permissions_are_those_of_any_new_file_or_exactly_what_is_asked_for(tmp_path, umask):
    (tmp_path / "any").touch()
    with whole_file(tmp_path / "plain") as file:
        file.write(b"x")
    assert permissions(tmp_path / "plain") == permissions(tmp_path / "any") == 0o640
    for mode in (0o600, 0o664):
        with whole_file(tmp_path / "exact", mode) as file:
            (temporary,) = (path for path in tmp_path.iterdir() if path.name.startswith("."))
            assert permissions(temporary) == mode  # before there is anything to read
            file.write(b"x")
        assert permissions(tmp_path / "exact") == mode
    assert os.umask(0o027) == 0o027


def test_a_new_file_does_not_replace_one_that_is_there(tmp_path):
    with new_file(tmp_path / "file") as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), new_file(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_bytes() == b"first"


def test_of_a_new_file_that_cannot_be_written_nothing_is_left(tmp_path):
    with pytest.raises(OSError, match="No space left"), new_file(tmp_path / "file") as file:
        os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        file.write(b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("durable", [True, False])
def test_only_what_has_to_last_waits_for_the_disk(tmp_path, monkeypatch, durable):
    synced = []
    monkeypatch.setattr(_files.os, "fsync", synced.append)
    with whole_file(tmp_path / "file", durable=durable) as file:
        file.write(b"x")
    assert len(synced) == durable
