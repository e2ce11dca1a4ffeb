"""A rank on a card dies, and those on cores make its steps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda", reason="the extra gpu is not installed")

PROGRAM = Path(__file__).with_name("card_program.py")


@pytest.mark.parametrize("table", ["copies", "one"])
def test_ranks_on_cores_go_on_without_the_one_on_a_card(survivable, tmp_path, table):
    command = [sys.executable, "-m", "dist_classicrl", "launch", "-n", "3", str(PROGRAM), table]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert sorted(said) == [f"rank {rank}: 2000 2000 (1,) cuda and cpu" for rank in (0, 2)]
