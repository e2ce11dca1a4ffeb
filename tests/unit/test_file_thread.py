"""Rows that are written while their rank says that it is there, and disks that hang with them."""

import threading

import pytest

from dist_classicrl.checkpoint import file_thread
from dist_classicrl.checkpoint.file_thread import FileThread, GivenUp
from dist_classicrl.errors import RankTimeoutError

PATIENCE = 60.0


class StoreError(Exception):
    """What a remote store raises: neither an OSError nor a ValueError."""


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(file_thread, "time", made)
    return made


class Hanging:
    """Work that hangs after its first piece until it is let go, and then begins another one."""

    def __init__(self):
        self.hangs, self.goes_on, self.pieces = threading.Event(), threading.Event(), []

    def __call__(self, look):
        look()
        self.pieces.append(1)
        self.hangs.set()
        assert self.goes_on.wait(PATIENCE)
        look()
        self.pieces.append(2)

    def interrupt(self):
        """Be what a rank hears while this hangs."""
        assert self.hangs.wait(PATIENCE)
        raise RankTimeoutError("rank 2 hangs")

    def end(self, writer):
        self.goes_on.set()
        with pytest.raises(GivenUp):
            writer._result.result(PATIENCE)


def test_what_is_written_comes_back_and_errors_of_every_kind_are_of_one():
    writer = FileThread("written")
    assert writer.do(lambda look: look() or 7, 10.0, lambda: None) == 7
    for error in (StoreError, OSError, ValueError):

        def fails(look, error=error):
            raise error("the connection is lost")

        with pytest.raises(OSError, match=f"^{error.__name__}: the connection is lost"):
            writer.do(fails, 10.0, lambda: None)


def test_work_that_goes_on_is_waited_for_and_work_that_hangs_is_given_up_for_good(clock):
    writer, work, seen = FileThread("written"), Hanging(), []

    def passes():
        assert work.hangs.wait(PATIENCE)
        seen.append(clock.now)
        clock.now += 3.0

    with pytest.raises(OSError, match="^nothing was written for 12 s"):
        writer.do(work, 10.0, passes)
    assert seen == [1000.0, 1003.0, 1006.0, 1009.0]
    with pytest.raises(OSError, match="^nothing was written for 12 s"):
        writer.do(lambda look: pytest.fail("this would hang as well"), 10.0, lambda: None)
    work.end(writer)
    assert work.pieces == [1]  # it reads no more of what has changed since
    assert writer.do(lambda look: 7, 10.0, lambda: None) == 7


def test_each_piece_has_the_patience_anew(clock):
    writer, passed, begins = FileThread("written"), threading.Event(), threading.Event()

    def work(look):
        for _ in range(5):
            assert passed.wait(PATIENCE)
            passed.clear()
            look()
            begins.set()
        return "all"

    turns = iter(range(5))

    def passes():
        if next(turns, None) is not None:
            clock.now += 9.0
            begins.clear()
            passed.set()
            assert begins.wait(PATIENCE)

    assert writer.do(work, 10.0, passes) == "all"
    assert clock.now == 1045.0


def test_what_a_rank_hears_meanwhile_comes_through_and_gives_the_work_up():
    writer, work = FileThread("written"), Hanging()

    with pytest.raises(RankTimeoutError):
        writer.do(work, 10.0, work.interrupt)
    work.end(writer)
    assert work.pieces == [1]


def test_what_was_given_up_and_goes_on_is_waited_for_before_the_next(clock):
    reader, work = FileThread("read"), Hanging()

    with pytest.raises(RankTimeoutError):
        reader.do(work, 10.0, work.interrupt)
    assert reader.do(lambda look: 7, 10.0, work.goes_on.set) == 7
    assert work.pieces == [1]
