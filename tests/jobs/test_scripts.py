import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from dist_classicrl.process.jobs import run_job

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def start(script, *arguments, **variables):
    """Start one of the scripts as a program, in a bare environment."""
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
    bare = {"PATH": path, "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [script, *arguments], env={**bare, **variables}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.core
@pytest.mark.parametrize("name", ["check-package", "train", "test", "test-cluster"])
def test_help_needs_no_set_up_and_works_through_a_link(tmp_path, name):
    (tmp_path / "inner").symlink_to(SCRIPTS / name)
    (tmp_path / "outer").symlink_to("inner")
    done = start(tmp_path / "outer", "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: scripts/{name}" in done.stdout


@pytest.mark.parametrize("name", ["benchmark", "check-package", "train", "test", "test-cluster"])
def test_help_that_nobody_reads_any_more_ends_quietly(name):
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as unread:
        done = subprocess.run(
            [sys.executable, SCRIPTS / name, "--help"],
            env=buffered,
            stdout=unread,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["benchmark", "check-package", "train", "test", "test-cluster"])
def test_help_that_has_nowhere_to_go_is_no_traceback(name):
    words = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, SCRIPTS / name, "--help"]
    told = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert told.startswith(("Standard output is closed. ", f"usage: scripts/{name}"))


@pytest.mark.parametrize("ranks", ["0", "-1", "many", "2.5"])
def test_a_number_of_ranks_that_is_none_is_refused_before_anything_is_done(ranks):
    done = start(SCRIPTS / "train", RANKS=ranks)
    assert done.returncode == 1
    assert repr(ranks) in done.stderr
    assert done.stdout == ""


def test_the_parts_of_all_tests_are_all_of_them_and_each_has_the_core(run_python):
    def chosen(*arguments):
        done = run_python("-m", "pytest", "--collect-only", "-q", *folders, *arguments)
        return [line for line in done.output.splitlines() if "::" in line]

    folders = [SCRIPTS.parent / "tests" / name for name in ("faults", "jobs")]
    everything, core = chosen(), chosen("-m", "core")
    parts = [chosen("--part", f"{part}/3") for part in (1, 2, 3)]
    assert 0 < len(core) < min(map(len, parts)) and max(map(len, parts)) < len(everything)
    assert sorted(sum(parts, [])) == sorted(everything + 2 * core)


def script_named(monkeypatch, name):
    """Return one of the scripts as a module, which has done nothing yet."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    loader = SourceFileLoader(f"{name}_script", str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    return script


def test_what_the_environment_can_do_without_ends_no_set_up(monkeypatch, tmp_path, capsys):
    script_named(monkeypatch, "test")
    setup = sys.modules["_setup"]
    stamp = {"about": ["3.11"], "extras": ["test"], "mpi": "Open MPI"}
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp.json")
    setup.STAMP.write_text(json.dumps(stamp))
    asked = []

    def install(package):
        asked.append(package)
        if len(asked) == 1:
            raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(setup, "_install", install)
    setup.add_if_possible("ptx", "nothing is compiled.")
    assert "ptx cannot be installed here: nothing is compiled." in capsys.readouterr().out
    assert json.loads(setup.STAMP.read_text()) == stamp
    for _ in range(2):
        setup.add_if_possible("ptx", "nothing is compiled.")
    assert asked == [f"{SCRIPTS.parent}[ptx]"] * 2
    assert json.loads(setup.STAMP.read_text()) == {**stamp, "extras": ["test", "ptx"]}


@pytest.fixture
def typed(monkeypatch):
    """Give a function that calls scripts/train without set-up: what it would become, and the extras."""
    script = script_named(monkeypatch, "train")

    def call(*arguments, ranks=""):
        monkeypatch.setenv("RANKS", ranks)
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        extras, programs = [], []
        monkeypatch.setattr(script, "set_up", extras.extend)
        monkeypatch.setattr(os, "execv", lambda path, words: programs.append(words))
        script.main()
        ((_, *words),) = programs
        assert extras == ["plot"] and words[:3] == ["-m", "dist_classicrl", "train"]
        return words[3:]

    return call


def test_train_passes_all_arguments_on_after_what_holds_without_them(typed):
    lake = ["--env-if-none", "FrozenLake8x8-v1"]
    assert typed(ranks="5") == [*lake, "--ranks", "5"]
    for given in (
        ["--lr", "0.5"],
        ["--total-steps", "1e6", "Taxi-v4"],
        ["--processes", "4"],
        ["-c", "x.toml"],
    ):
        *words, ranks = typed(*given)[:4]
        assert words == [*lake, "--ranks-if-none"] and int(ranks) >= 3
        assert typed(*given)[4:] == given and typed(*given, ranks="2") == [*lake, "--ranks", "2", *given]


def test_after_train_the_commands_of_the_readme_find_the_run(typed, run_python, tmp_path):
    words = typed("--steps", "20000", ranks="1")
    run_python("-m", "dist_classicrl", "train", *words)
    for command in ("show", "evaluate", "plot"):
        run_python("-m", "dist_classicrl", command, "runs/FrozenLake8x8-v1")
    assert (tmp_path / "runs" / "FrozenLake8x8-v1" / "plot.png").exists()


def test_the_oldest_versions_that_are_allowed_work(tmp_path):
    project = (SCRIPTS.parent / "pyproject.toml").read_text()
    oldest = re.search(r'requires-python = ">=([0-9.]+)"', project)[1]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = ["python" + oldest, *pyenv.glob(f"versions/{oldest}.*/bin/python")]
    works = (each for each in places if not os.system(f"{each} -c '' >/dev/null 2>&1"))
    if (python := next(works, None)) is None:
        pytest.skip(f"there is no Python {oldest}")
    tools = tmp_path / "tools"
    venv.create(tools, with_pip=True)
    own = tools / "bin" / "python"
    if subprocess.run([own, "-m", "pip", "install", "--quiet", "build", "twine"]).returncode:
        pytest.skip("no package index answers")
    job = run_job([own, SCRIPTS / "check-package", "--lowest", python], timeout=840.0, cwd=tmp_path)
    assert job.returncode == 0 and job.output.count("steps of Blackjack-v1") == 2, job.output
