"""Memory for large arrays that are read and written here and there."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np

LINE = 64
"""Bytes of a cache line."""

_HUGE_FROM = 1 << 22


_NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.13 on


def zeros(n: int, dtype: Any, is_sparse: bool = False) -> np.ndarray:
    """Return `n` zeros of `dtype` that begin with a cache line; large ones in huge pages where there are any.

    One in a table of a gigabyte is found two to three times as fast in pages of 2 MB as in pages of 4 kB.
    `is_sparse`: most will not be used, and take no memory until they are. OSError where there is not that
    much room for addresses.
    """
    size = max(1, n * np.dtype(dtype).itemsize)
    reserve = _NO_RESERVE if is_sparse and sys.platform == "linux" else 0
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve)
    _ask_for_huge_pages(memory, size)
    return np.frombuffer(memory, dtype, n)


def shared(descriptor: int, size: int, in_small_pages: bool = False) -> np.ndarray:
    """Return the `size` bytes, uint8, of an open file that other processes map as well.

    `in_small_pages`: what is touched here and there takes no more memory than it has to.
    """
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
    if not in_small_pages:
        _ask_for_huge_pages(memory, size)
    elif hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


def give_back(array: np.ndarray, part: slice) -> None:
    """Let the system have the memory of these bytes of what `zeros` returned; they are 0 from now on."""
    first = -(-part.start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = part.stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    memory: Any = array.base
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        memory.obj.madvise(mmap.MADV_DONTNEED, first, length)


def _ask_for_huge_pages(memory: mmap.mmap, size: int) -> None:
    if size >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)


def memory_left() -> int | None:
    """Return the bytes of memory that processes on this host may still take; None where it cannot be told.

    The least of what the machine has and what a control group allows.
    """
    limits = []
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    for limit, used in _CONTROL_GROUPS:
        try:
            with open(limit) as most, open(used) as now:
                limits.append(int(most.read()) - int(now.read()))
        except (OSError, ValueError):  # "max" where there is no limit
            continue
    return min(limits, default=None)


def huge_pages_for_shared_memory() -> str | None:
    """Return when the system gives them, in the kernel's words ("never", "advise"); None: it does not say."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/shmem_enabled") as file:
            words = file.read()
    except OSError:
        return None
    return words.partition("[")[2].partition("]")[0] or None


_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
