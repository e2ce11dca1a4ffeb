import errno
import os
import subprocess
import sys
import traceback

import click
import pytest

from dist_classicrl.cli import errors
from dist_classicrl.cli import main as module
from dist_classicrl.cli.main import COMMANDS, cli, main
from dist_classicrl.errors import (
    CheckpointError,
    DeviceError,
    LauncherError,
    RankLostError,
    RemoteRankError,
    SettingsError,
    StateLimitError,
    TrainingInterrupted,
    TrainingStopped,
)


@pytest.fixture
def raising(monkeypatch):
    """Give a function that runs a command which raises an error, and returns the exit status."""

    def run(error):
        @click.command()
        def command():
            raise error

        monkeypatch.setattr(module.LazyGroup, "get_command", lambda *anything: command)
        return main(["train"])

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_with_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = ("dist-classicrl", "python -m dist_classicrl")
    assert any(line.strip().startswith(tuple(f"{start} {name}" for start in starts)) for line in lines)


def test_the_help_names_commands_and_exit_statuses(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)
    assert all(f" {status} " in said for status in (0, 2, 75, 130, 70))


def test_help_starts_no_mpi_and_loads_nothing_heavy():
    program = (
        "import sys\nfrom dist_classicrl.cli.main import main\nmain(['--help'])\nmain(['train', '--help'])\n"
        "print(*(name for name in ('mpi4py', 'numpy', 'gymnasium', 'numba', 'rich') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "")


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert module.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, meant",
    [(["trian"], "'train'"), (["lunch"], "'launch'"), (["train", "--enviroment", "X"], "--environment")],
)
def test_what_is_mistyped_is_answered_by_the_nearest(words, meant, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert ("Did you mean" in said or "Possible options" in said) and meant in said  # as this click has it


def test_an_unknown_command_without_a_likeness_is_answered_by_all(capsys):
    assert main(["xyz"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean" not in said and ", ".join(COMMANDS) in said


@pytest.mark.parametrize(
    "error",
    [
        kind("no such thing")
        for kind in (SettingsError, CheckpointError, DeviceError, LauncherError, StateLimitError)
    ],
)
def test_what_the_user_has_to_change_is_status_2_without_a_traceback(raising, capsys, error):
    assert raising(error) == 2
    assert capsys.readouterr().err == "Error: no such thing\n"


@pytest.mark.parametrize("error", [ValueError("a defect"), RankLostError("a defect")])
def test_anything_else_is_status_70_with_a_traceback_and_how_to_report_it(raising, capsys, error):
    assert raising(error) == 70
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said and "a defect" in said
    assert "dist-classicrl doctor" in said.splitlines()[-1]


def test_an_interrupt_is_status_130(raising, capsys):
    assert raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


@pytest.mark.parametrize("kind, status", [(TrainingStopped, 75), (TrainingInterrupted, 130)])
def test_a_training_that_stopped_in_order_keeps_its_status(raising, kind, status):
    with pytest.raises(kind) as caught:
        raising(kind(status, "a signal", "here", 7))
    assert caught.value.code == status


@pytest.fixture
def rank_1(monkeypatch):
    """Let this be a rank of a job in which MPI has begun."""
    monkeypatch.setenv("PMIX_RANK", "1")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", object())
    monkeypatch.setattr(errors.time, "sleep", None)


def remote(error):
    summary = traceback.format_exception_only(error)[-1].strip()
    return RemoteRankError(0, "node1", summary, "Traceback ...")


@pytest.mark.parametrize(
    "error", [ValueError("a defect"), remote(KeyError("a defect")), RankLostError("gone")]
)
def test_a_defect_on_a_rank_is_left_to_the_job(raising, rank_1, capsys, error):
    with pytest.raises(type(error)):
        raising(error)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "error, said",
    [
        (SettingsError("no such thing"), "Error: no such thing\n"),
        (remote(CheckpointError("no such thing")), ""),  # rank 0 says it
        (remote(PermissionError(13, "Permission denied", "place")), ""),
    ],
)
def test_what_the_user_has_to_change_ends_all_ranks_in_order(raising, rank_1, capsys, error, said):
    assert raising(error) == 2
    assert capsys.readouterr().err == said


def test_an_error_with_a_file_names_it_in_a_sentence(raising, capsys):
    assert raising(PermissionError(13, "Permission denied", "place")) == 2
    assert capsys.readouterr().err == "Error: place: Permission denied.\n"
    assert raising(OSError(5, "Input/output error")) == 70


@pytest.mark.parametrize("rank, waits", [("0", 0), ("3", 1)])
def test_rank_0_says_first_what_is_wrong_on_all(monkeypatch, capsys, rank, waits):
    waited = []
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)  # another test may have imported it
    monkeypatch.setattr(errors.time, "sleep", waited.append)
    monkeypatch.setenv("PMIX_RANK", rank)
    assert main(["trian"]) == 2
    assert len(waited) == waits and "'train'" in capsys.readouterr().err


def test_the_list_of_commands_imports_none_of_them(monkeypatch):
    monkeypatch.setattr(module.importlib, "import_module", None)
    with click.Context(cli) as context:
        assert cli.list_commands(context) == list(COMMANDS)
        assert cli.get_help(context)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("goes", "why"),
    [
        (">&-", "it is closed. Let it go to a file, with > FILE."),
        (">/dev/full", "No space left on device. Make room, or write it elsewhere."),
        ("1</dev/null", "it is closed. Let it go to a file, with > FILE."),
    ],
)
def test_what_cannot_be_written_to_standard_output_is_an_error(goes, why, unbuffered):
    words = ["sh", "-c", f'exec "$@" {goes}', "sh", sys.executable, "-m", "dist_classicrl", "--version"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
    told = f"Error: Standard output cannot be written: {why}\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize(
    "words", [["train", "FrozenLake-v1", "--ranks", "2", "--out"], ["launch", "-n", "2"]]
)
def test_a_working_directory_that_was_removed_is_named(words, tmp_path, monkeypatch, capsys):
    gone, there = tmp_path / "gone", tmp_path / "there"
    gone.mkdir()
    there.touch()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main([*words, str(tmp_path / "run" if "train" in words else there)]) == 2
    assert capsys.readouterr().err.strip() == (
        "Error: The working directory has been removed. Change to a directory that is there, and try again."
    )
    assert main(["show", str(tmp_path / "nosuch")]) == 2
    assert "nosuch" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    assert list(tmp_path.iterdir()) == [there]


def test_an_error_of_the_system_is_not_taken_for_one_of_standard_output(capsys):
    assert errors.exit_status(OSError(errno.EBADF, "Bad file descriptor")) == errors.INTERNAL


@pytest.mark.parametrize(
    "words",
    [
        *(["show", ""], ["evaluate", ""], ["plot", ""], ["report", ""], ["compare", ""], ["sweep", ""]),
        ["export", "", "--to", "a.csv"],
        ["train", "--config", ""],
        ["plot", "run", "--out", ""],
        ["report", "run", "--html", ""],
        ["report", "run", "--baseline", ""],
        ["slurm", "--ntasks", "4", "sweep", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_not_this_folder(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert main(words) == 2
    heard = capsys.readouterr()
    assert heard.out == "" and heard.err.endswith("'' is no path. Write . for this folder.\n")
