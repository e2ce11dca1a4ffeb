"""Nothing that is read is ever run, and nobody else may write where it would be."""

import ast
import hashlib
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numba
import numpy as np
import pytest

import dist_classicrl
from dist_classicrl import DistAsyncQLearning
from dist_classicrl.cli import config
from dist_classicrl.cli.main import main
from dist_classicrl.cli.run_folder import RunFolder
from dist_classicrl.errors import CheckpointError, LauncherError, MetricsError, ModelFileError, SettingsError
from dist_classicrl.export.table_file import read_table
from dist_classicrl.launch.folders import launch_folder, session_folder
from dist_classicrl.launch.hosts import read_hostfile
from dist_classicrl.monitoring.reading import parse

PACKAGE = Path(dist_classicrl.__file__).parent
SECONDS = 120

# What can make code of data, or a pickle: modules, and functions by their last name.
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "xmlrpc",
}
FUNCTIONS = {"eval", "exec", "execfile", "compile", "__import__", "read_pickle", "to_pickle"}
# mpi4py pickles what is given to its methods in lower case.
PICKLING = {
    *(
        "send",
        "bsend",
        "ssend",
        "recv",
        "sendrecv",
        "isend",
        "ibsend",
        "issend",
        "irecv",
        "mprobe",
        "improbe",
    ),
    *("bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan"),
}
COMMUNICATORS = {"comm", "_comm", "inter", "parent", "world", "COMM_WORLD", "COMM_SELF", "Get_parent", "Dup"}
# A user's script, which the launcher runs in the place of Python itself.
ALLOWED = {"launch/program.py": ["compile", "exec"]}


def calls(tree):
    """Give the calls in a module: the name before the last dot, the last name, and the node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                value = function.value.func if isinstance(function.value, ast.Call) else function.value
                yield getattr(value, "id", getattr(value, "attr", "")), function.attr, node
            elif isinstance(function, ast.Name):
                yield "", function.id, node


def what_runs_data(source):
    """Give what could run what it reads, as (line, what)."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [(node.lineno, name) for name in names if name.partition(".")[0] in MODULES]
    for owner, name, node in calls(tree):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in FUNCTIONS and owner in ("", "builtins"):
            found.append((node.lineno, name))
        if name in ("load", "save", "fromfile", "memmap") and owner in ("np", "numpy"):
            allowed = keywords.get("allow_pickle")
            if name in ("load", "save") and not (
                isinstance(allowed, ast.Constant) and allowed.value is False
            ):
                found.append((node.lineno, f"{name} without allow_pickle=False"))
        if name in PICKLING and owner in COMMUNICATORS:
            found.append((node.lineno, f"{owner}.{name}"))
        if name in ("Popen", "run", "call", "check_output", "system", "popen") and owner in (
            "subprocess",
            "os",
        ):
            if name in ("system", "popen") or "shell" in keywords:
                found.append((node.lineno, f"{owner}.{name} with a shell"))
    return found


def test_nothing_in_the_package_runs_what_it_reads():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if lines := what_runs_data(path.read_text(encoding="utf-8")):
            found[path.relative_to(PACKAGE).as_posix()] = sorted({what for _, what in lines})
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.save(path, array)",
        "MPI.COMM_WORLD.bcast(settings)",
        "self._comm.send(table, 1)",
        "comm.Dup().allreduce(1)",
        "eval(text)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
    ],
)
def test_what_would_run_data_is_found(line):
    assert what_runs_data(line)


class Bomb:
    """What a pickle can do: this one makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def object_array(path):
    file = io.BytesIO()
    array = np.empty(1, object)
    array[0] = Bomb(path)
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def trained(folder):
    agent = DistAsyncQLearning(4, 2)  # a table of zeros will do
    agent.save_model(folder / "model.npz")
    return folder / "model.npz"


@pytest.mark.parametrize("name", ["q_table.npy", "visits.npy", "about.npy"])
def test_an_array_of_objects_in_a_model_file_is_refused_and_not_run(tmp_path, name):
    model, mark = trained(tmp_path), tmp_path / "mark"
    with zipfile.ZipFile(model) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    members[name] = object_array(mark)
    with zipfile.ZipFile(model, "w") as archive:
        for each, data in members.items():
            archive.writestr(each, data)
    with pytest.raises(ModelFileError, match="no usable model file"):
        DistAsyncQLearning.load_model(model)
    assert not mark.exists()
    np.load(model, allow_pickle=True)[name[:-4]]
    assert mark.exists()  # so it would have run


def test_a_model_file_that_is_a_pickle_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "model.npz").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ModelFileError, match="no usable model file"):
        DistAsyncQLearning.load_model(tmp_path / "model.npz")
    assert not mark.exists()


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a training of some steps, and its folder."""
    agent = DistAsyncQLearning(seed=1)
    agent.train("FrozenLake-v1", total_steps=2000, checkpoint_dir=tmp_path / "saved")
    (manifest,) = (tmp_path / "saved").glob("agent-*/f*/manifest.json")
    return manifest.parent


def test_an_array_of_objects_in_a_checkpoint_is_refused_and_not_run(checkpoint, tmp_path):
    mark = tmp_path / "mark"
    data = object_array(mark)
    (checkpoint / "q_table.npy").write_bytes(data)
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    body = manifest["body"]
    body["arrays"]["q_table"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    for dtype in ("|O", "<f8"):
        body["arrays"]["q_table"]["dtype"] = dtype
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        sums = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
        (checkpoint / "manifest.json").write_text(json.dumps({**manifest, **sums, "body": body}))
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            DistAsyncQLearning.load_model(checkpoint.parents[1])
    assert not mark.exists()


DEEP = 100_000 * "["


@pytest.mark.parametrize("keys", [("q_table",), ("about",), ("q_table", "about")])
def test_a_model_file_whose_text_nests_too_deep_is_refused(tmp_path, keys):
    arrays = dict(np.load(trained(tmp_path), allow_pickle=False))
    arrays |= {key: np.frombuffer(DEEP.encode(), np.uint8) for key in keys}
    with open(tmp_path / "deep.npz", "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ModelFileError, match="no usable model file"):
        DistAsyncQLearning.load_model(tmp_path / "deep.npz")


def test_a_model_file_that_claims_to_be_huge_is_refused(tmp_path):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50, 1)}
    )
    with zipfile.ZipFile(trained(tmp_path)) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        for name, data in (members | {"q_table.npy": file.getvalue()}).items():
            archive.writestr(name, data)
    with pytest.raises(ModelFileError, match="no usable model file"):
        DistAsyncQLearning.load_model(tmp_path / "huge.npz")


def test_text_that_nests_too_deep_is_a_mistake_in_a_file_and_no_crash(tmp_path):
    table = tmp_path / "table.json"
    table.write_text(f'{{"q_table": {DEEP}')
    with pytest.raises(ModelFileError, match="no usable table"):
        read_table(table)
    (tmp_path / "config.toml").write_text(f"deep = {DEEP}")
    with pytest.raises(SettingsError, match=r"config\.toml"):
        config.read(tmp_path / "config.toml")
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "result.json").write_text(DEEP)
    assert RunFolder(tmp_path).read_result() is None
    (tmp_path / "metrics.jsonl").write_text(f"{DEEP}\n")
    with pytest.raises(MetricsError, match=r"metrics\.jsonl"):
        list(parse((tmp_path / "metrics.jsonl").read_bytes(), tmp_path / "metrics.jsonl"))


@pytest.fixture
def open_umask():
    """Whatever is made, everybody may change, unless the program cares."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_launchers_folders_are_the_users_own_whatever_the_umask(open_umask, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with launch_folder(tmp_path / "state") as folder, session_folder() as session:
        assert mode(folder) == mode(session) == 0o700
        assert Path(session).parent == tmp_path
    assert not Path(session).exists() and not folder.exists()


def test_another_users_folder_in_the_state_folder_does_no_harm(tmp_path):
    other = tmp_path / "launch-deep"
    other.mkdir()
    (other / "launcher.json").write_text(DEEP)
    with launch_folder(tmp_path):
        pass
    assert other.exists()


def test_checkpoints_are_the_users_own_whatever_the_umask(open_umask, checkpoint, tmp_path):
    for path in [*(tmp_path / "saved").rglob("*"), tmp_path / "saved"]:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    "url", ["sftp://me:secret@host/runs", "ftp://me:sec@ret@host/runs", "memory://me@corp:secret@h/x"]
)
def test_a_password_on_the_command_line_or_in_a_file_is_refused_and_not_repeated(tmp_path, url, capsys):
    (tmp_path / "own.toml").write_text(f'environment = "FrozenLake-v1"\ncheckpoint_dir = "{url}"\n')
    for words in (["FrozenLake-v1", "--checkpoint-dir", url], ["--config", str(tmp_path / "own.toml")]):
        assert main(["train", *words, "--out", str(tmp_path / "run")]) == 2
        said = "".join(capsys.readouterr())
        assert "ps would show the password" in said and "sec" not in said
    assert not (tmp_path / "run").exists()
    assert main(["doctor", "--checkpoint-dir", url]) == 2
    said = "".join(capsys.readouterr())
    assert "ps would show the password" in said and "sec" not in said


# The first process compiles a kernel into a cache of its own; what is found there later is somebody else's.
KERNEL = """
import numpy as np
from dist_classicrl.tables import kernels
kernels.gather(np.arange(2), np.ones(2), np.ones(2, np.int64), np.zeros(2), np.zeros(2, np.int64))
"""


def compile_kernel(cache):
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["cache", "its parent"])
def test_compiled_code_is_not_taken_from_where_others_may_write(tmp_path, opened):
    cache, mark = tmp_path / "cache", tmp_path / "mark"
    cache.mkdir(mode=0o700)
    assert compile_kernel(cache) == (0, "")
    indexes = list(cache.rglob("kernels.gather*.nbi"))
    assert len(indexes) == 1
    indexes[0].write_bytes(pickle.dumps(numba.__version__) + pickle.dumps(Bomb(mark)))
    (cache if opened == "its parent" else indexes[0].parent).chmod(0o777)
    code, said = compile_kernel(cache)
    assert code == 0 and not mark.exists(), said
    assert said.count("Other users may write to the folder") == 1 and "NUMBA_CACHE_DIR" in said
    for folder in (cache, indexes[0].parent):
        folder.chmod(0o700)
    compile_kernel(cache)
    assert mark.exists()  # numba does run what it finds


@pytest.mark.parametrize("line", ["-oProxyCommand=touch slots=2", "-F slots=2", "-v:2"])
def test_a_hosts_name_is_no_option_of_ssh(tmp_path, line):
    (tmp_path / "hosts").write_text(f"{line}\n")
    with pytest.raises(LauncherError, match="Write `node1 slots=4`"):
        read_hostfile(tmp_path / "hosts")


def test_a_batch_script_runs_no_word_of_its_arguments(tmp_path, capsys):
    script = "a b$(touch $0.1).py"
    (tmp_path / script).touch()
    words = [script, "--x;touch y", "`touch z`", "it's", "line\ntouch u", '"$(touch v)"']
    assert main(["slurm", "--ntasks", "2", "--", *words[:1], *words[1:]]) == 0
    text = capsys.readouterr().out
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nprintf "%s\\\\0" "$@" > "{tmp_path}/seen"\n')
    python.chmod(0o755)
    text = text.replace(sys.executable, str(python))
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (tmp_path / "seen").exists(), done.stderr
    assert (tmp_path / "seen").read_text().split("\0")[-len(words) - 1 : -1] == words
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([script, "python", "seen"])
