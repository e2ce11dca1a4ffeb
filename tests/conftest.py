"""What all tests share: tests under `tests/mpi` run on every rank, and end on all ranks together."""

from __future__ import annotations

import faulthandler
import sys
import time
from pathlib import Path

import pytest

MPI_FOLDER = Path(__file__).parent / "mpi"
# How long the ranks that are through with a test wait for the others.
PATIENCE_SECONDS = 45.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what lies in tests/mpi, so that without mpirun it is skipped, and nobody can forget the mark."""
    for item in items:
        if MPI_FOLDER in item.path.parents:
            item.add_marker("mpi")


def pytest_configure(config):
    if config.getoption("--with-mpi"):
        config.pluginmanager.register(_RanksAgree())


class _RanksAgree:
    """Makes a test that fails on one rank fail on every rank, and lets no rank run ahead of the others."""

    def __init__(self):
        from mpi4py import MPI

        # A communicator of its own: messages that a failed test left behind cannot be mistaken for these.
        self.comm = MPI.COMM_WORLD.Dup()
        self.failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "setup":
            self.failed = False
        self.failed = self.failed or report.failed
        if call.when == "teardown" and "mpi" in item.keywords:
            others = [rank for rank in self._ranks_that_failed(item.nodeid) if rank != self.comm.rank]
            if others and not self.failed:
                report.outcome = "failed"
                report.longrepr = (
                    f"{item.nodeid} failed on rank {', '.join(map(str, others))} (of {self.comm.size})"
                )
        return report

    def _ranks_that_failed(self, test):
        import numpy as np

        mine, everybody = np.array([self.failed], "i"), np.zeros(self.comm.size, "i")
        request = self.comm.Iallgather(mine, everybody)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not request.Test():
            if time.monotonic() > deadline:
                # pytest holds back what is printed during a test, so write to where the process began.
                print(
                    f"rank {self.comm.rank}: {'failed' if self.failed else 'passed'} {test}; "
                    f"not every rank was through with it {PATIENCE_SECONDS:.0f} s later",
                    file=sys.__stderr__,
                    flush=True,
                )
                faulthandler.dump_traceback(sys.__stderr__)
                self.comm.Abort(1)
            time.sleep(0.001)
        return np.flatnonzero(everybody)
