"""What all tests share: tests under `tests/mpi` run on every rank, and end on all ranks together."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import zlib
from pathlib import Path

import hypothesis
import pytest

# A machine that is busy may take any time for an example.
hypothesis.settings.register_profile("any time", deadline=None)
hypothesis.settings.load_profile("any time")

TESTS = Path(__file__).parent
# There a file stays whole, as its tests share kernels that are compiled, or what fixtures have started. Tests
# of the other folders are divided one by one, into parts that take more alike.
DIVIDED_BY_FILES = ("unit", "cluster")
# How long a rank that failed waits for the others before it says why: pytest says it only at the very end.
SAY_WHY_SECONDS = 5.0
# How long the ranks that are through with a test wait for the others: long enough for a rank that is stuck to
# reach pytest's faulthandler_timeout and show where it stands.
PATIENCE_SECONDS = 330.0


def pytest_addoption(parser):
    parser.addoption(
        "--part", type=part, metavar="K/N", help="run the core, and the Kth of N parts of all other tests"
    )


def part(text):
    """Return the two numbers of K/N."""
    which, parts = map(int, text.split("/"))
    if not 1 <= which <= parts:
        raise ValueError(f"a part is one of 1/{parts} to {parts}/{parts}, not {text}")
    return which, parts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Give tests the marks that follow from where they lie, which nobody can forget then, and choose a part.

    What lies in tests/mpi is skipped without mpirun. Of tests/unit all is core that is not slow.
    """
    for item in items:
        if folder_of(item) == "mpi":
            item.add_marker("mpi")
        if folder_of(item) == "unit" and "slow" not in item.keywords:
            item.add_marker("core")
    chosen = config.getoption("--part")
    if chosen:
        kept, left_out = [], []
        for item in items:
            (kept if "core" in item.keywords or is_in_part(item, *chosen) else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def folder_of(item):
    return item.path.relative_to(TESTS).parts[0]


def is_in_part(item, which, parts):
    """Whether a test is one of that part: the same in every process, and whatever tests are added."""
    name = item.path.name if folder_of(item) in DIVIDED_BY_FILES else item.nodeid
    return zlib.crc32(name.encode()) % parts == which - 1


@pytest.fixture(autouse=True)
def loggers_as_they_were():
    """Take back what a command does to the package's loggers, which would show in the logs of later tests."""
    loggers = [logging.getLogger(name) for name in ("dist_classicrl", "dist_classicrl.progress")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        for handler in [each for each in logger.handlers if each not in handlers]:
            logger.removeHandler(handler)
            handler.close()


@pytest.fixture
def fast_ramp(monkeypatch):
    """Let many walkers move in supersteps after few steps."""
    from dist_classicrl.learning import loops

    monkeypatch.setattr(loops, "STEPS_PER_WALKER", 16)


@pytest.fixture
def anew(monkeypatch):
    """Return what lets the next agent take up what another one saved, as in a process of its own."""
    from dist_classicrl.model import places

    monkeypatch.setattr(places, "_agents", {})
    return places._agents.clear


@pytest.fixture
def interleaves(monkeypatch):
    """Let compiled tables of any size be learned by walkers that take turns, as those of keys are."""
    from dist_classicrl.learning import interleaved

    monkeypatch.setattr(interleaved, "FROM_ENTRIES", 1)


@pytest.fixture(scope="session")
def files_of_mpirun():
    """Let each mpirun that this process starts keep its own files apart from those of any other.

    It names their folder after its process id, and cannot start where it finds what another one has left.
    """
    tempfile.gettempdir()  # asked now, this process itself goes on with the folder that it has
    with tempfile.TemporaryDirectory(prefix="mpi-", ignore_cleanup_errors=True) as folder:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TMPDIR", folder)
            yield folder


def pytest_configure(config):
    if config.getoption("--with-mpi"):
        config.pluginmanager.register(_RanksAgree())


class _RanksAgree:
    """Makes a test that fails on one rank fail on every rank, and lets no rank run ahead of the others."""

    def __init__(self):
        from mpi4py import MPI

        # A communicator of its own: messages that a failed test left behind cannot be mistaken for these.
        self.comm = MPI.COMM_WORLD.Dup()
        self.failure = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "setup":
            self.failure = ""
        if report.failed:
            self.failure = self.failure or f"rank {self.comm.rank}: {item.nodeid} failed: {report.longrepr}"
        if call.when == "teardown" and "mpi" in item.keywords:
            ranks = self._ranks_that_failed(item.nodeid)
            if ranks and not self.failure:
                report.outcome = "failed"
                report.longrepr = f"{item.nodeid} failed on rank {', '.join(ranks)} of {self.comm.size}"
        return report

    def _ranks_that_failed(self, test):
        import numpy as np

        mine, everybody = np.array([bool(self.failure)], "i"), np.zeros(self.comm.size, "i")
        request = self.comm.Iallgather(mine, everybody)
        started, unsaid = time.monotonic(), self.failure
        while not request.Test():
            waited = time.monotonic() - started
            if unsaid and waited > SAY_WHY_SECONDS:
                self._say(unsaid)
                unsaid = ""
            if waited > PATIENCE_SECONDS:
                self._say(f"rank {self.comm.rank}: not every rank is through with {test}; ending all of them")
                self.comm.Abort(1)
            time.sleep(0.001)
        return [str(rank) for rank in np.flatnonzero(everybody)]

    def _say(self, text):
        # pytest may hold back what is printed, so write to where the process began.
        print(f"\n{text}", file=sys.__stderr__, flush=True)
