import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def start(script, *arguments, **variables):
    """Start one of the scripts as a program, in a bare environment."""
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
    bare = {"PATH": path, "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [script, *arguments], env={**bare, **variables}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.core
@pytest.mark.parametrize("name", ["train", "test", "test-cluster"])
def test_help_needs_no_set_up_and_works_through_a_link(tmp_path, name):
    (tmp_path / "inner").symlink_to(SCRIPTS / name)
    (tmp_path / "outer").symlink_to("inner")
    done = start(tmp_path / "outer", "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: scripts/{name}" in done.stdout


@pytest.mark.parametrize("ranks", ["0", "-1", "many", "2.5"])
def test_a_number_of_ranks_that_is_none_is_refused_before_anything_is_done(ranks):
    done = start(SCRIPTS / "train", RANKS=ranks)
    assert done.returncode == 1
    assert repr(ranks) in done.stderr
    assert done.stdout == ""
