"""Checkpoints behind URLs: fsspec's memory, and S3 as moto serves it on this machine."""

import errno
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from dist_classicrl.checkpoint import remote
from dist_classicrl.checkpoint.folder import CheckpointFolder
from dist_classicrl.checkpoint.location import open_storage
from dist_classicrl.checkpoint.remote import RemoteStorage
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.errors import CheckpointError, CheckpointFencedError, CheckpointUnreadableError

fsspec = pytest.importorskip("fsspec")

RUN = "0123abcd"


@pytest.fixture(scope="module")
def endpoint():
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    """An S3 bucket, reached as a user reaches one: by the variables of the AWS command line."""
    import s3fs

    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    fs.mkdir("bucket")
    yield "s3://bucket"
    fs.invalidate_cache()
    fs.rm("bucket", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def memory():
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield "memory://runs"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "s3"])
def location(request):
    return request.getfixturevalue(request.param) + "/run-1"


def arrays_of(seed, shape=(3, 4)):
    rng = np.random.default_rng(seed)
    return {"q_table": rng.normal(size=shape), "visits": rng.integers(0, 9, shape), "none": np.zeros((0, 3))}


def same(one, other):
    return set(one) == set(other) and all(
        one[key].shape == other[key].shape and one[key].tobytes() == other[key].tobytes() for key in one
    )


def content(storage, path):
    with storage.open(path) as file:
        return file.read()


def claimed(location, **options):
    folder = CheckpointFolder(location, "agent-0", **options)
    folder.fence.claim()
    return folder


@pytest.mark.slow
def test_what_is_written_can_be_listed_read_replaced_and_removed(location):
    storage = open_storage(location, "agent-0", 0o600)
    assert isinstance(storage, RemoteStorage) and storage.url == f"{location}/agent-0"
    assert storage.names() == [] and storage.names("no/such/folder") == []
    storage.create()
    assert storage.names() == []
    storage.write("a/one", [b"12", memoryview(b"34"), b""])
    storage.write("b", [b"x"])
    assert storage.names() == ["a", "b"] and storage.names("a") == ["one"] and storage.names("b") == []
    assert content(storage, "a/one") == b"1234"
    storage.write("a/one", [b"5"])
    assert content(storage, "a/one") == b"5"
    storage.sync("a")
    for path in ("a", "b", "b", "no/such/folder"):
        storage.remove(path)
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.open("b")


@pytest.mark.slow
def test_only_the_first_writes_a_new_file(location):
    storage = open_storage(location, "agent-0", 0o600)
    storage.create()
    assert storage.write_new("fence", b"first") is True
    assert storage.write_new("fence", b"second") is False
    assert content(storage, "fence") == b"first"


@pytest.mark.slow
def test_of_many_at_once_one_writes_a_new_file(s3):
    storages = [open_storage(s3, "agent-0", 0o600) for _ in range(8)]
    start = threading.Barrier(len(storages))
    won = []

    def write(index):
        start.wait(30)
        if storages[index].write_new("fence", str(index).encode()):
            won.append(str(index).encode())

    threads = [threading.Thread(target=write, args=(index,)) for index in range(len(storages))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert won == [content(storages[0], "fence")]


@pytest.mark.slow
def test_the_backends_create_exclusively(location):
    storage = open_storage(location, "agent-0", 0o600)
    assert remote._creates_exclusively(storage._fs)
    storage._pipe("fence", b"first", exclusively=True)
    with pytest.raises(OSError):
        storage._pipe("fence", b"second", exclusively=True)
    assert content(storage, "fence") == b"first"


class Backend:
    """Stands for the file system, with a `pipe_file` of its own."""

    def __init__(self, storage, pipe_file):
        self._fs = storage._fs
        self.pipe_file_of_test = pipe_file
        storage._reached = {os.getpid(): (self, storage._root)}

    def __getattr__(self, name):
        return getattr(self._fs, name)

    def pipe_file(self, path, value, mode="overwrite"):
        self.pipe_file_of_test(self._fs, path, value, mode)


def test_a_store_that_knows_no_exclusive_creation_is_written_to_all_the_same(memory):
    def pipe_file(fs, path, value, mode):
        if mode == "create":
            raise OSError(errno.ENOSYS, "A header you provided implies functionality that is not implemented")
        fs.pipe_file(path, value)

    storage = open_storage(memory, "agent-0", 0o600)
    Backend(storage, pipe_file)
    assert storage.write_new("fence", b"first") is True
    assert storage.write_new("fence", b"second") is False
    assert content(storage, "fence") == b"first"


def test_without_exclusive_creation_the_last_of_two_wins_and_the_other_knows(memory, monkeypatch):
    def overtaken(fs, path, value, mode):
        assert mode == "overwrite"
        fs.pipe_file(path, value)
        fs.pipe_file(path, b"second")

    monkeypatch.setattr(remote, "_creates_exclusively", lambda fs: False)
    storage = open_storage(memory, "agent-0", 0o600)
    Backend(storage, overtaken)
    assert storage.write_new("fence", b"first") is False


def test_without_exclusive_creation_what_is_there_stays(memory, monkeypatch):
    monkeypatch.setattr(remote, "_creates_exclusively", lambda fs: False)
    storage = open_storage(memory, "agent-0", 0o600)
    assert storage.write_new("fence", b"first") is True
    assert storage.write_new("fence", b"second") is False
    assert content(storage, "fence") == b"first"


@pytest.mark.slow
def test_of_two_that_saw_nothing_there_only_one_writes(location, monkeypatch):
    storage = open_storage(location, "agent-0", 0o600)
    storage.create()
    storage.write("fence", [b"first"])
    look = storage._content
    looks = []

    def looked_before(path):
        looks.append(path)
        return look(path) if len(looks) > 1 else None

    monkeypatch.setattr(storage, "_content", looked_before)
    assert storage.write_new("fence", b"second") is False
    assert content(storage, "fence") == b"first"


def test_a_second_try_of_the_backend_that_meets_its_first_has_won(memory):
    def retried(fs, path, value, mode):
        fs.pipe_file(path, value, mode=mode)
        raise FileExistsError(path)

    storage = open_storage(memory, "agent-0", 0o600)
    Backend(storage, retried)
    assert storage.write_new("fence", b"first") is True


def test_an_error_of_the_backend_is_not_taken_for_a_lost_race(memory):
    def refuse(fs, path, value, mode):
        if mode == "create":
            raise PermissionError(errno.EACCES, "Access Denied")
        fs.pipe_file(path, value)

    storage = open_storage(memory, "agent-0", 0o600)
    Backend(storage, refuse)
    with pytest.raises(PermissionError, match="Access Denied"):
        storage.write_new("fence", b"first")


def test_a_stream_that_failed_is_not_published_when_it_is_collected(monkeypatch):
    """As a backend could that does nothing special on failure."""
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

    published = []

    class File(AbstractBufferedFile):
        def _upload_chunk(self, final=False):
            published.append(final)

        def _initiate_upload(self):
            pass

    class Plain(AbstractFileSystem):
        root_marker = "/"

        def _open(self, path, mode="rb", **options):
            return File(self, path, mode)

    def chunks():
        yield b"x"
        raise OSError("gone")

    monkeypatch.setattr(remote, "_filesystem", lambda location, url: (Plain(), "/runs"))
    storage = RemoteStorage("plain://runs", "agent-0")
    storage.write("file", [b"x"])
    assert published == [True]
    with pytest.raises(OSError, match="gone"):
        storage.write("file", chunks())
    gc.collect()
    assert published == [True]


def test_a_store_that_takes_no_objects_is_named(memory, monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(self, path, mode="rb", **options):
        raise PermissionError(errno.EACCES, "Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "_open", refuse)
    with pytest.raises(
        CheckpointError, match="PermissionError: .*Access Denied.*list, read, write and delete"
    ):
        claimed(memory)


def test_listings_are_not_taken_from_a_cache(s3):
    import s3fs

    storage = open_storage(s3, "agent-0", 0o600)
    storage.write("one", [b"1"])
    assert storage.names() == ["one"]
    other = s3fs.S3FileSystem(skip_instance_cache=True)
    other.pipe_file("bucket/agent-0/two", b"2")
    assert storage.names() == ["one", "two"]
    other.pipe_file("bucket/agent-0/two", b"22")
    assert content(storage, "two") == b"22"
    other.rm_file("bucket/agent-0/one")
    assert storage.names() == ["two"]
    other.rm_file("bucket/agent-0/two")
    storage.remove("two")
    with pytest.raises(FileNotFoundError):
        storage.open("two")


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1, 60])
def test_a_stream_that_fails_half_way_is_not_published(s3, megabytes):
    """60 MB: part of them is uploaded by then."""
    storage = open_storage(s3, "agent-0", 0o600)
    storage.create()

    def chunks():
        for _ in range(megabytes):
            yield bytes(1 << 20)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        storage.write("a/file", chunks())
    gc.collect()
    assert storage.names() == []
    assert storage._fs.call_s3("list_multipart_uploads", Bucket="bucket").get("Uploads", []) == []


@pytest.mark.slow
def test_a_large_array_in_several_parts_comes_back(s3):
    arrays = {"q_table": np.random.default_rng(1).normal(size=(8, 1_000_000))}
    folder = claimed(s3)
    name = folder.write(arrays, {"steps": 1}, RUN)
    assert same(folder.read(name).arrays, arrays)


@pytest.mark.slow
def test_checkpoints_come_back_rotate_and_are_fenced(location):
    folder = claimed(location, keep_last=2, keep_every=4)
    assert folder.read_newest() is None
    for step in range(6):
        folder.write(arrays_of(step), {"steps": step}, RUN)
    reader = CheckpointFolder(location + "/", "agent-0")
    assert [int(name[9:17]) for name in reader.names()] == [6, 5, 4]
    saved = reader.read_newest()
    assert same(saved.arrays, arrays_of(5)) and saved.body["steps"] == 5
    assert saved.url == f"{location}/agent-0/{saved.name}"
    new = claimed(location)
    with pytest.raises(CheckpointFencedError, match=f"pid {os.getpid()}"):
        folder.write(arrays_of(9), {"steps": 9}, RUN)
    new.write(arrays_of(10), {"steps": 10}, "99999999")
    assert same(folder.read_newest().arrays, arrays_of(10))
    assert sum(name.startswith("fence-") for name in new.storage.names()) == 1


def test_what_killed_jobs_left_is_removed_before_anything_is_written(location):
    left = "f000001-c00000001-step000000000000009-0123abcd"
    claimed(location).storage.write(f"{left}/a.npy", [b"half a table"])
    folder = claimed(location)
    there = []
    name = folder.write(
        {"a": np.ones(3)}, {"steps": 1}, "99999999", lambda: there.append(folder.storage.names())
    )
    assert left not in there[0] and folder.names() == [name]


def test_who_is_replaced_as_the_manifest_is_written_reports_nothing(memory, monkeypatch):
    """A store has no folders: an object can always be written where the rest was removed."""
    old = claimed(memory)
    write, written = old.storage.write, []

    def late(path, chunks):
        if path.endswith("manifest.json"):
            written.append(claimed(memory).write(arrays_of(2), {"steps": 2}, RUN))
        write(path, chunks)

    monkeypatch.setattr(old.storage, "write", late)
    with pytest.raises(CheckpointFencedError):
        old.write(arrays_of(1), {"steps": 1}, RUN)
    assert old.names() == written


@pytest.mark.slow
def test_damaged_objects_are_refused(location):
    folder = claimed(location)
    names = [folder.write(arrays_of(step), {"steps": step}, RUN) for step in range(2)]
    storage = folder.storage
    for path in ("q_table.npy", "none.npy", "manifest.json"):
        whole = content(storage, f"{names[1]}/{path}")
        for damaged in (whole[:-1], whole + b"x", b"", whole[:100] + b"?" + whole[101:]):
            storage.write(f"{names[1]}/{path}", [damaged])
            assert folder.read_newest().name == names[0], (path, damaged)
        storage.remove(f"{names[1]}/{path}")
        assert folder.read_newest().name == names[0]
        storage.write(f"{names[1]}/{path}", [whole])
        assert folder.read_newest().name == names[1]


@pytest.mark.slow
def test_what_other_processes_write_is_seen(s3):
    """Listings are not taken from a cache, whoever reads or is replaced."""
    folder = claimed(s3)
    folder.write(arrays_of(1), {"steps": 1}, RUN)
    assert folder.read_newest().body["steps"] == 1
    program = (
        "import numpy as np\n"
        "from dist_classicrl.checkpoint.folder import CheckpointFolder\n"
        "folder = CheckpointFolder('s3://bucket', 'agent-0')\n"
        "folder.fence.claim()\n"
        "folder.write({'a': np.arange(3)}, {'steps': 2}, '99999999')\n"
    )
    # The endpoint by fsspec's own variable this time.
    environment = {**os.environ, "FSSPEC_S3_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"]}
    del environment["AWS_ENDPOINT_URL"]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert folder.read_newest().body["steps"] == 2
    with pytest.raises(CheckpointFencedError):
        folder.fence.check()


FORKING = """
import os, sys, numpy as np
from dist_classicrl.checkpoint.folder import CheckpointFolder

def save(steps):
    folder.fence.claim()
    folder.write({"a": np.full(5, float(steps))}, {"steps": steps}, "0123abcd")

folder = CheckpointFolder(sys.argv[1], "agent-0")
save(1)
child = os.fork()
if child == 0:
    try:
        save(2)
    finally:
        print(folder.read_newest().body["steps"], flush=True)
        os._exit(0)
os.waitpid(child, 0)
save(3)
print(folder.read_newest().body["steps"])
"""


@pytest.mark.slow
def test_a_process_that_was_forked_from_one_that_saved_saves_as_well(s3):
    program = [sys.executable, "-c", FORKING, f"{s3}/run-1"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120.0)
    assert (done.returncode, done.stdout) == (0, "2\n3\n"), done.stderr
    assert len(CheckpointFolder(f"{s3}/run-1", "agent-0").names()) == 3


def test_the_writer_thread_writes_to_a_url(location):
    writer = Writer(claimed(location))
    writer.submit(arrays_of(1), {"steps": 1}, RUN)
    assert writer.wait(60.0)
    assert writer.last is not None and writer.last.startswith(f"{location}/agent-0/f000001-c00000001-")


def test_a_missing_bucket_is_named_and_not_made(s3):
    with pytest.raises(CheckpointError, match="there is no 'buckett', or these credentials may not see it"):
        claimed("s3://buckett/run-1")
    assert not fsspec.filesystem("s3").exists("buckett")
    with pytest.raises(CheckpointError, match="names no bucket. Write for instance s3://bucket/run-1"):
        claimed("s3://")


def test_a_store_that_is_not_there_is_an_error_in_words(s3, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    folder = CheckpointFolder("s3://bucket/run-1", "agent-0")
    with pytest.raises(CheckpointUnreadableError, match="cannot be listed: .*127.0.0.1:9.*: try again once"):
        folder.read_newest()
    with pytest.raises(CheckpointError, match="Checkpoints cannot be written to s3://bucket/run-1/agent-0"):
        folder.fence.claim()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("location", ["memory://", "memory://run/", "memory:///run//"])
def test_slashes_at_the_end_mean_nothing(memory, location):
    folder = claimed(location)
    folder.write(arrays_of(1), {"steps": 1}, RUN)
    assert CheckpointFolder(location.rstrip("/") + "/" * 3, "agent-0").names() == folder.names() != []


@pytest.mark.parametrize("user", ["somebody", "me@corp"])
@pytest.mark.parametrize("password", ["secret", "sec:ret", "sec@ret"])
def test_passwords_are_not_shown(monkeypatch, user, password):
    monkeypatch.setattr(remote, "_filesystem", lambda location, url: (fsspec.filesystem("memory"), "/runs"))
    storage = open_storage(f"sftp://{user}:{password}@host/runs", "agent-0", 0o600)
    assert storage.url == f"sftp://{user}:...@host/runs/agent-0"


@pytest.mark.slow
@pytest.mark.parametrize("missing, url", [("fsspec", "memory://x"), ("s3fs", "s3://bucket/x")])
def test_a_missing_package_is_named(missing, url):
    program = (
        "import sys\n"
        "sys.modules[sys.argv[1]] = None\n"
        "from dist_classicrl.checkpoint.folder import CheckpointFolder\n"
        "from dist_classicrl.errors import CheckpointError\n"
        "try:\n"
        "    CheckpointFolder(sys.argv[2], 'agent-0').read_newest()\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, missing, url], capture_output=True, text=True, timeout=100
    )
    assert "need a package that is not installed" in done.stdout, done.stderr
    assert "pip install fsspec" in done.stdout and "s3fs" in done.stdout


def test_local_folders_do_without_fsspec(tmp_path):
    program = (
        "import sys\n"
        "sys.modules['fsspec'] = None\n"
        "from dist_classicrl.checkpoint.folder import CheckpointFolder\n"
        "print(CheckpointFolder(sys.argv[1], 'agent-0').fence.claim())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "1\n", done.stderr
