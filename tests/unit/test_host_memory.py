"""Memory that ranks of a host share: who opens it, what is refused, and that nothing is left."""

import os

import pytest

from dist_classicrl.engines.sharded import host_memory
from dist_classicrl.engines.sharded.host_memory import HostMemory
from dist_classicrl.errors import SettingsError


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
