"""Memory that ranks of a host share: who opens it, what is refused, and that nothing is left."""

import ctypes
import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dist_classicrl import _memory
from dist_classicrl._memory import HUGE_PAGE
from dist_classicrl.comm import envelope
from dist_classicrl.engines.sharded import host_memory
from dist_classicrl.engines.sharded.host_memory import HostMemory, share_rows
from dist_classicrl.errors import SettingsError
from dist_classicrl.membership.election import Deposed
from dist_classicrl.membership.view import View
from dist_classicrl.tables.large_table import LargeTable
from dist_classicrl.tables.shape import TableShape


@pytest.fixture
def memory():
    made = HostMemory.new(1000)
    yield made
    made.close()


def test_who_opens_it_sees_what_the_other_writes(memory):
    told = memory.told
    other = HostMemory.opened(**told)
    one, two = memory.array(), other.array()
    assert one.size == two.size == 1000 and not one.any()
    one[7] = 5
    assert two[7] == 5
    other.close()
    two[8] = 6  # what was mapped stays
    assert one[8] == 6


def test_rows_in_it_begin_with_a_cache_line(memory):
    assert memory.array().ctypes.data % 64 == 0


def test_it_has_no_name_in_any_folder(memory, tmp_path):
    path = os.readlink(memory.told["path"])
    assert "(deleted)" in path or path.startswith("/memfd:")


@pytest.mark.parametrize("wrong", ["mark", "size"])
def test_something_else_in_its_place_is_not_taken(memory, wrong):
    told = memory.told
    told[wrong] = "0" * 64 if wrong == "mark" else 999
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="is something else"):
        HostMemory.opened(**told)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_gone_has_none():
    with pytest.raises(OSError):
        HostMemory.opened("/proc/999999999/fd/3", 1000, "0" * 64)


def test_more_than_there_is_is_refused_before_it_kills_anybody(monkeypatch):
    monkeypatch.setattr(host_memory._memory, "memory_left", lambda: 2**30)
    with pytest.raises(SettingsError, match=r"needs 2 GiB with its visits, and this host has 1 GiB left"):
        HostMemory.new(2**31)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages of other systems")


@pytest.fixture
def large():
    made = HostMemory.new(4 * HUGE_PAGE)
    yield made
    made.close()


def _mapped(memory):
    """Return the addresses at which this process has the memory, and how much of it in huge pages, in kB."""
    of, text = os.fstat(memory.descriptor), Path("/proc/self/smaps").read_text()
    device = f"{os.major(of.st_dev):02x}:{os.minor(of.st_dev):02x}"  # files of others may have its number
    found = re.findall(
        rf"^([0-9a-f]+)-\S+ \S+ \S+ {device} {of.st_ino} .*?ShmemPmdMapped: +(\d+) kB", text, re.M | re.S
    )
    return [int(first, 16) for first, _ in found], sum(int(huge) for _, huge in found)


@on_linux
def test_memory_that_is_taken_lies_in_huge_pages_where_there_are_any(large):
    other, whole = large.array(), large.array(is_taken=True)
    at = np.arange(0, whole.size, 4096)
    other[at] = np.arange(at.size) % 251
    assert (whole[at] == np.arange(at.size) % 251).all()
    addresses, huge = _mapped(large)
    assert len(addresses) == 2 and not any(address % HUGE_PAGE for address in addresses)
    assert large.taken >= 4 * HUGE_PAGE or not _memory.takes_huge_pages()
    # Another process may be at a page just then: most of them will do.
    assert huge >= 2 * HUGE_PAGE // 1024 or not _memory.takes_huge_pages()


@on_linux
def test_what_was_written_is_there_after_it_moved_to_huge_pages(large):
    array = large.array()
    written = np.arange(array.size // 8)
    array.view(np.int64)[:] = written
    _memory.take(array)
    assert (array.view(np.int64) == written).all() and (large.array().view(np.int64) == written).all()


@on_linux
def test_memory_goes_with_its_array(large):
    array = large.array()
    assert len(_mapped(large)[0]) == 1
    del array
    assert not _mapped(large)[0]


@on_linux
@pytest.mark.parametrize(
    ("number", "asked"), [(errno.EAGAIN, 3), (errno.EINVAL, 1), (errno.ENOMEM, 1), (errno.EPERM, 1)]
)
def test_where_the_system_has_no_huge_pages_it_is_asked_once_or_thrice(monkeypatch, large, number, asked):
    calls = []

    def refuse(address, size, advice):
        calls.append((address, size, advice))
        ctypes.set_errno(number)
        return -1

    array = large.array()
    monkeypatch.setattr(_memory, "_libc", lambda: SimpleNamespace(madvise=refuse))
    assert not _memory.take(array)
    assert len(calls) == asked and calls[0][0] % HUGE_PAGE == 0 and calls[0][1:] == (HUGE_PAGE, 25)


@on_linux
def test_huge_pages_are_not_asked_for_without_end(monkeypatch, large):
    calls = []
    slow = SimpleNamespace(madvise=lambda *asked: calls.append(asked) or 0)
    array = large.array()
    monkeypatch.setattr(_memory, "_libc", lambda: slow)
    now = iter([0.0, 9.0, 11.0])
    monkeypatch.setattr(_memory, "time", SimpleNamespace(monotonic=lambda: next(now)))
    assert not _memory.take(array)
    assert len(calls) == 1


@on_linux
def test_parts_of_a_table_are_taken_by_the_ranks_of_its_host(monkeypatch):
    table = LargeTable(TableShape(3 * 2**16, 8), np.dtype(np.float32))
    memory = HostMemory.new(table.size)
    table.move_to(memory, is_first=True)
    taken = []
    monkeypatch.setattr(
        _memory, "take", lambda array: taken.append(array.ctypes.data - table.memory.ctypes.data)
    )
    for number in range(3):
        table.take_part(number, 3)
    assert taken == [0, table.size // 3, 2 * table.size // 3]
    monkeypatch.setattr(_memory, "memory_left", lambda: 4 * table.size - 1)  # it would be more than a quarter
    table.take_part(0, 3)
    assert len(taken) == 3
    memory.close()


class Steps:
    """What the rank of a host does in a setup with one more, which is lost in one of the steps."""

    def __init__(self, head, told=None, lost_in=99):
        self.rank, self.head, self.is_head = 1, head, head == 1
        self.here = self.members = [0, 1]
        self.told, self.left = told, lost_in

    def agree(self, error, description, numbers, what=""):
        self.left -= 1
        if self.left == 0:
            raise Deposed(View(1, 0, 0, (0, 1)))
        return np.array([numbers, numbers])

    def broadcast_message(self, message, what):
        return envelope.text(self.told) if message is None else message


@on_linux
@pytest.mark.parametrize("lost_in", [2, 3, 99])
def test_rows_count_as_there_only_once_all_have_them(lost_in):
    """The rank that serves may be lost while it writes them; who takes its place has its own."""
    table, open_files = (
        LargeTable(TableShape(300_000, 4), np.dtype(np.float32)),
        len(os.listdir("/proc/self/fd")),
    )
    table.begin_with(2.5)
    lost = HostMemory.new(table.size, is_sparse=True)  # which nothing was written to
    with suppress(Deposed):
        share_rows(table, Steps(0, lost.told, lost_in))
    has_moved = lost_in == 99
    assert (table.shared is not None) == has_moved
    assert len(os.listdir("/proc/self/fd")) == open_files + 1 + has_moved
    lost.close()
    share_rows(table, Steps(1))
    assert (table.rows.values == (0.0 if has_moved else 2.5)).all()
    table.shared.close()
    assert len(os.listdir("/proc/self/fd")) == open_files


@on_linux
def test_values_that_were_put_into_rows_are_kept_until_others_have_them():
    table = LargeTable(TableShape(300_000, 4), np.dtype(np.float32))
    table.put(np.full((300_000, 4), 3.5, np.float32), np.ones((300_000, 4), np.int64))
    lost = HostMemory.new(table.size, is_sparse=True)
    with pytest.raises(Deposed):
        share_rows(table, Steps(0, lost.told, 3))
    lost.close()
    share_rows(table, Steps(1))
    assert (table.rows.values == 3.5).all() and (table.rows.counts == 1).all()
    table.shared.close()


@on_linux
def test_an_error_of_who_writes_the_rows_is_told_and_they_are_written_when_it_is_tried_again(monkeypatch):
    table, told = LargeTable(TableShape(300_000, 4), np.dtype(np.float32)), []
    table.begin_with(2.5)
    setup = Steps(1)

    def agree(error, description, numbers, what=""):
        told.append(error)
        if error is not None:
            raise error
        return np.array([numbers, numbers])

    def fail(self):
        raise MemoryError

    setup.agree = agree
    with monkeypatch.context() as failing, pytest.raises(MemoryError):
        failing.setattr(LargeTable, "_fill", fail)
        share_rows(table, setup)
    assert [error is None for error in told] == [True, True, False]
    share_rows(table, setup)
    assert (table.rows.values == 2.5).all()
    table.shared.close()
