"""Local folders of checkpoints: whole files or none, permissions, and clear words where it cannot work."""

import errno
import os
import stat
from pathlib import Path

import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint import local as local_module
from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.checkpoint.location import open_storage
from dist_classicrl.errors import CheckpointError, CheckpointUnreadableError


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "runs" / "agent-0", 0o600)


def content(storage, path):
    with storage.open(path) as file:
        return file.read()


def permissions(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_what_is_written_can_be_listed_read_replaced_and_removed(storage):
    assert storage.names() == [] and storage.names("no/such/folder") == []
    storage.create()
    storage.write("a/one", [b"12", memoryview(b"34"), b""])
    storage.write("a/two", [])
    storage.write("b", [b"x"])
    assert storage.names() == ["a", "b"] and storage.names("a") == ["one", "two"] and storage.names("b") == []
    assert content(storage, "a/one") == b"1234" and content(storage, "a/two") == b""
    storage.write("a/one", [b"5"])
    assert content(storage, "a/one") == b"5"
    storage.sync("a")
    for path in ("a", "b", "b", "no/such/folder"):
        storage.remove(path)
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.open("b")


def test_a_link_is_removed_and_not_what_it_leads_to(storage, tmp_path):
    storage.create()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    os.symlink(tmp_path / "elsewhere", Path(storage.url) / "link")
    storage.remove("link")
    assert storage.names() == [] and (tmp_path / "elsewhere" / "file").exists()


def test_only_the_first_writes_a_new_file(storage):
    assert storage.write_new("fence", b"first") is True
    assert storage.write_new("fence", b"second") is False
    assert content(storage, "fence") == b"first"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
@pytest.mark.parametrize(
    "mode, folder_mode", [(0o600, 0o700), (0o640, 0o750), (0o644, 0o755), (0o666, 0o777)]
)
def test_permissions_do_not_depend_on_the_umask(tmp_path, umask, mode, folder_mode):
    storage = LocalStorage(tmp_path / "runs" / "agent-0", mode)
    before = permissions(tmp_path)
    previous = os.umask(umask)
    try:
        storage.create()
        storage.write("a/file", [b"x"])
        storage.write_new("fence", b"x")
    finally:
        os.umask(previous)
    root = Path(storage.url)
    assert [permissions(path) for path in (root.parent, root, root / "a")] == [folder_mode] * 3
    assert [permissions(path) for path in (root / "a" / "file", root / "fence")] == [mode] * 2
    assert permissions(tmp_path) == before


def test_folders_that_exist_are_left_as_they_are(storage):
    root = Path(storage.url)
    root.mkdir(parents=True)
    root.chmod(0o2775)
    storage.create()
    previous = os.umask(0o777)
    try:
        storage.write("a/file", [b"x"])
    finally:
        os.umask(previous)
    assert permissions(root) == 0o2775
    assert permissions(root / "a") == 0o2700  # the group goes on to what is made inside


def test_a_file_that_fails_half_way_leaves_what_was_there(storage):
    storage.write("a/file", [b"old"])

    def chunks():
        yield b"new"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        storage.write("a/file", chunks())
    with pytest.raises(OSError, match="No space left"):
        storage.write("a/other", chunks())
    assert storage.names("a") == ["file"] and content(storage, "a/file") == b"old"


def test_a_file_and_its_folders_are_on_disk_before_it_has_its_name(storage, monkeypatch):
    """The order of the calls is what a power cut leaves a whole file or none by."""
    calls = []
    opened = {}

    def record(name, describe):
        function = getattr(os, name)

        def recorded(*arguments, **options):
            result = function(*arguments, **options)
            if name == "open":
                opened[result] = arguments[0]
            calls.append((name, describe(*arguments)))
            return result

        monkeypatch.setattr(local_module.os, name, recorded)

    def plain(path):
        name = os.path.basename(path)
        return "temporary" if name.startswith(".file.") else name

    record("open", lambda path, *rest: plain(path))
    record("mkdir", lambda path, *rest: plain(path))
    record("fsync", lambda handle: plain(opened[handle]))
    record("replace", lambda one, other: (plain(one), plain(other)))
    Path(storage.url).mkdir(parents=True)
    calls.clear()
    storage.write("folder/file", [b"x"])
    assert [call for call in calls if call[0] != "open"] == [
        ("mkdir", "folder"),
        ("fsync", "agent-0"),
        ("fsync", "temporary"),
        ("replace", ("temporary", "file")),
        ("fsync", "folder"),
    ]
    calls.clear()
    storage.write_new("fence", b"x")
    assert [call for call in calls if call[0] != "open"] == [("fsync", "fence"), ("fsync", "agent-0")]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").touch()
    for path in ("file", "file/below/it"):
        with pytest.raises(CheckpointError, match="cannot be written to .*(is a file|Not a directory)"):
            LocalStorage(tmp_path / path, 0o600).create()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="link is a link that leads to no folder"):
        LocalStorage(tmp_path / "link", 0o600).create()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    for path in ("closed", "closed/below"):
        with pytest.raises(CheckpointError, match="closed.*Permission denied.*may write to"):
            LocalStorage(tmp_path / path, 0o600).create()


def test_a_folder_that_is_there_is_tried(storage, monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system", dir)

    storage.create()
    monkeypatch.setattr(local_module.tempfile, "TemporaryFile", refuse)
    with pytest.raises(CheckpointError, match="agent-0: Read-only file system. Give a folder"):
        storage.create()


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(CheckpointError, match="Checkpoints cannot be written to /proc/1/no/such"):
        LocalStorage("/proc/1/no/such", 0o600).create()


def test_files_of_other_kinds_are_not_opened(storage):
    storage.create()
    os.mkfifo(Path(storage.url) / "pipe")
    for path in ("pipe", ""):
        with pytest.raises(OSError, match="Not a regular file"):
            storage.open(path)


@pytest.mark.parametrize("location", ["runs", Path("runs"), "./runs/"])
def test_a_relative_path_stays_where_it_was_after_a_change_of_folder(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    storage = open_storage(location, "agent-0", 0o600)
    monkeypatch.chdir("/")
    storage.create()
    assert storage.url == str(tmp_path / "runs" / "agent-0") and os.path.isdir(storage.url)


class Answer(Exception):
    """What a store behind HTTP answers, in the words of one of fsspec's backends."""

    def __init__(self, **number):
        super().__init__("Forbidden")
        vars(self).update(number)


REFUSED, AWAY = "Give a folder that this user may read", "may be as good as ever: try again once"


@pytest.mark.parametrize(
    "trouble, said, cure",
    [
        (PermissionError(errno.EACCES, "Access Denied"), "Access Denied", REFUSED),
        (PermissionError("Access Denied"), "Access Denied", REFUSED),
        (Answer(status=403), "Forbidden", REFUSED),
        (Answer(code=403), "Forbidden", REFUSED),
        (Answer(status_code=401), "Forbidden", REFUSED),
        (Answer(status=503), "Forbidden", AWAY),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset"), "Connection reset", AWAY),
        (ConnectionRefusedError("no port"), "no port", AWAY),
        (TimeoutError(), "TimeoutError", AWAY),
        (OSError(errno.ESTALE, "Stale file handle"), "Stale file handle", AWAY),
        (RuntimeError("whatever a store says"), "whatever a store says", AWAY),
    ],
    ids=repr,
)
def test_only_who_may_not_read_a_folder_is_told_so(storage, monkeypatch, tmp_path, trouble, said, cure):
    def failing(*where):
        raise trouble

    with pytest.raises(CheckpointUnreadableError, match=f"cannot be listed: .*{said}.*{cure}") as raised:
        monkeypatch.setattr(LocalStorage, "names", failing)
        storage.listed()
    assert (REFUSED in str(raised.value)) != (AWAY in str(raised.value))
    with pytest.raises(CheckpointUnreadableError, match=f"cannot be listed: .*{said}.*{cure}"):
        DistAsyncQLearning.load_model(tmp_path)


@pytest.mark.parametrize("prefix", ["file://", "file://localhost", "FILE://", "Local://"])
def test_file_urls_are_local(tmp_path, prefix):
    storage = open_storage(f"{prefix}{tmp_path}/with%20space", "agent-0", 0o600)
    assert isinstance(storage, LocalStorage)
    assert storage.url == str(tmp_path / "with space" / "agent-0")


def test_a_scheme_may_be_written_in_capitals():
    open_storage("memory://capitals", "one", 0o600).write("file", [b"written"])
    assert open_storage("MEMORY://capitals", "one", 0o600).names() == ["file"]


@pytest.mark.parametrize(
    "location, why",
    [
        ("", "must be the path or the URL of a folder"),
        (b"bytes", "must be the path or the URL of a folder"),
        (3, "must be the path or the URL of a folder"),
        (None, "must be the path or the URL of a folder"),
        ("with\0zero", "must be the path or the URL of a folder"),
        (Path("s3://bucket/run"), "a path object cannot hold a URL"),
        ("file://host/path", "file:///absolute/path"),
        ("nosuchprotocol://x/y", "Give the path of a folder, or a URL that fsspec knows"),
    ],
    ids=range(8),
)
def test_what_is_no_place_is_refused(location, why):
    with pytest.raises(CheckpointError, match=why):
        open_storage(location, "agent-0", 0o600).create()
