"""Operations of MPI with a deadline, on one rank. tests/mpi has several ranks."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dist_classicrl.comm import collectives

ROOT = Path(__file__).resolve().parents[2]
GIVES_UP = """
import os
from types import SimpleNamespace
import mpi4py
mpi4py.rc.initialize = False  # nothing is sent here
from dist_classicrl.comm.collectives import finish, spin
from dist_classicrl.errors import RankTimeoutError

class Buffer:
    def __del__(self, write=os.write):
        write(1, b"freed, ")

class Request:
    def Test(self):
        return False

for operation in finish, spin:
    words = ("a test", "a remedy") if operation is finish else ("a test",)
    try:
        operation(SimpleNamespace(), Request(), 0.0, *words, Buffer())
    except RankTimeoutError:
        os.write(1, b"given up, ")
"""


def test_what_was_given_up_is_not_freed_before_mpi_ends():
    """Which is after Python: a message is sent from memory until then."""
    settings = {"capture_output": True, "check": True, "text": True, "timeout": 120}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", GIVES_UP], env=environment, **settings)
    assert ended.stdout == "given up, given up, "


@pytest.mark.parametrize("size", [0, 2])
def test_asking_for_deaths_leaves_no_group_behind(size):
    groups = []

    def get_failed():
        groups.append(SimpleNamespace(Get_size=lambda: size, Free=lambda: groups.pop()))
        return groups[-1]

    assert collectives._has_deaths(SimpleNamespace(Get_failed=get_failed)) is (size > 0)
    assert groups == []
