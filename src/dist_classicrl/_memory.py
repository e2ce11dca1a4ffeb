"""Memory for large arrays that are read and written here and there."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

LINE = 64
"""Bytes of a cache line."""

HUGE_PAGE = 1 << 21
"""Bytes of a huge page."""

_HUGE_FROM = 2 * HUGE_PAGE

# Of Linux: MAP_NORESERVE, which Python names from 3.13 on, MAP_FIXED and MADV_COLLAPSE.
_NO_RESERVE, _FIXED, _COLLAPSE = 0x4000, 0x10, 25

_FAILED = ctypes.c_void_p(-1).value
_TRIES = 3
_MOST_SECONDS = 10.0
"""After so long the rest stays in small pages: where memory is in pieces, others' has to be moved for it."""


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

    A large one begins where a huge page may begin, see `take`. `in_small_pages`: what is touched here and
    there takes no more memory than it has to.
    """
    if size >= _HUGE_FROM and sys.platform == "linux" and not in_small_pages:
        return _shared_from_huge_page(descriptor, size)
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
    if in_small_pages and hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


def _shared_from_huge_page(descriptor: int, size: int) -> np.ndarray:
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    first = -start % HUGE_PAGE
    # In place of that part of `memory`, which takes both away in the end.
    flags = mmap.MAP_SHARED | _FIXED
    if _libc().mmap(start + first, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _ask_for_huge_pages(memory, size)
    return np.frombuffer(memory, np.uint8, size, first)


def take(array: np.ndarray) -> bool:
    """Take the memory of what `shared` returned, or of a part: in huge pages if the system has them.

    Linux gives shared memory none of itself, unless an administrator lets it (`shmem_enabled`), but 6.1 and
    newer do when they are told to (MADV_COLLAPSE). Others may use the memory meanwhile. Return whether all is
    in huge pages but for what is too short for one.
    """
    if sys.platform != "linux":
        return False
    start, deadline = array.ctypes.data, time.monotonic() + _MOST_SECONDS
    for first in range(-start % HUGE_PAGE, array.size - HUGE_PAGE + 1, HUGE_PAGE):
        if time.monotonic() > deadline:
            return False
        array[first].item()  # where there is nothing yet, nothing could be moved to a huge page
        for _ in range(_TRIES):
            is_huge = _libc().madvise(start + first, HUGE_PAGE, _COLLAPSE) == 0
            if is_huge or ctypes.get_errno() != errno.EAGAIN:  # another process is at the same page
                break
        if not is_huge:
            return False
    return True


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


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


def takes_huge_pages() -> bool:
    """Return whether this system has huge pages for shared memory, given or taken; see `take`."""
    if not hasattr(os, "memfd_create"):
        return False
    descriptor = os.memfd_create("dist_classicrl", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, _HUGE_FROM)
        return take(shared(descriptor, _HUGE_FROM))
    finally:
        os.close(descriptor)


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
