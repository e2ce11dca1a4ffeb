"""Operations of MPI with a deadline, on one rank. tests/mpi has several ranks."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dist_classicrl.comm import collectives
from dist_classicrl.errors import RankLostError

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


@pytest.mark.parametrize(
    "name, said",
    [
        ("ERR_PROC_FAILED", "^A rank died while this one waited for all ranks to come. Start again."),
        (
            "ERR_OTHER",
            "^MPI failed while this rank waited for all ranks to come, and names no rank that died: Too many "
            r"communicators \(0/2048 free\). If it has no communicators left, .* Start again.",
        ),
    ],
)
def test_a_rank_is_said_to_have_died_only_where_mpi_says_so(monkeypatch, name, said):
    class Failed(Exception):
        def Get_error_class(self):
            return name

        def Get_error_string(self):
            return "Too many communicators\n  (0/2048 free)"

    mpi = SimpleNamespace(Exception=Failed, ERR_OTHER="ERR_OTHER", ERR_PROC_FAILED="ERR_PROC_FAILED")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    monkeypatch.setattr(collectives, "leave_to_mpi", lambda *in_use: None)

    def fail(*ignored):
        raise Failed

    words = ("all ranks to come", "Start again.")
    request = SimpleNamespace(Test=fail)
    for comm in (SimpleNamespace(Idup=fail), SimpleNamespace(Idup=lambda: (None, request))):
        with pytest.raises(RankLostError, match=said):
            collectives.duplicate(comm, 1.0, *words)
