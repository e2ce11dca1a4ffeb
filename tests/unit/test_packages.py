"""The packages that the test bed of tests/cluster is made of are installed where they can be."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# Writes its arguments and two variables down, and fails as often as there are files to take away.
APT_GET = """#!/bin/sh
echo "$RUNLEVEL $DEBIAN_FRONTEND $*" >> {folder}/calls
rm {folder}/fails-once 2> /dev/null && exit 100
exit 0
"""


@pytest.fixture
def packages(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    spec = importlib.util.spec_from_file_location("_packages", SCRIPTS / "_packages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("_setup", "_pip"):
        sys.modules.pop(name, None)


@pytest.fixture
def machine(packages, tmp_path, monkeypatch):
    """A machine of root's, where nothing is installed but apt-get and what is put into the folder `bin`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "apt-get", APT_GET.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    monkeypatch.setattr(packages, "_FOLDERS", str(programs))
    monkeypatch.setattr(packages, "_is_installed", lambda package: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def program(path, text="#!/bin/sh\n"):
    path.write_text(text)
    path.chmod(0o755)


def calls(machine):
    path = machine / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_missing_is_installed_without_starting_services(packages, machine):
    program(machine / "bin" / "ip")
    packages.install_packages()
    (call,) = calls(machine)
    assert call.startswith("1 noninteractive ")
    words = call.split()
    assert set(words[words.index("install") + 1 :]) == set(packages.PACKAGES) - {"iproute2"}


def test_the_lists_are_fetched_where_nothing_is_found_at_first(packages, machine):
    (machine / "fails-once").touch()
    packages.install_packages()
    verbs = [word for call in calls(machine) for word in call.split() if word in ("install", "update")]
    assert verbs == ["install", "update", "install"]


def test_nothing_is_called_where_all_is_there(packages, machine, monkeypatch, capsys):
    monkeypatch.setattr(packages, "_is_there", lambda *_: True)
    packages.install_packages()
    assert calls(machine) == []
    assert capsys.readouterr().out == ""


def test_who_is_not_root_is_told_what_is_missing(packages, machine, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    packages.install_packages()
    assert calls(machine) == []
    said = capsys.readouterr().out
    assert "this is not root" in said and "slurmctld" in said


def test_where_one_of_them_cannot_be_had_the_others_are_installed(packages, machine, capsys):
    refuses = 'case "$*" in *slurmd*) exit 100;; esac'
    program(machine / "bin" / "apt-get", f'#!/bin/sh\necho "$*" >> {machine}/calls\n{refuses}\n')
    packages.install_packages()
    assert capsys.readouterr().out.endswith("are skipped: slurmd\n")
    alone = {call.split()[-1] for call in calls(machine)[3:]}
    assert alone == set(packages.PACKAGES)
